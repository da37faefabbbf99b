"""Train one scale of a scaling study on all GPUs of this job.

1 node:   python scripts/train.py --scale 1x2 --config config/config.yaml --study width
N nodes:  the same in a Slurm job on N nodes; `snakemake --profile profiles/slurm` submits one.

It starts torchrun, which runs this program once per rank, or the launcher of the user's own `script`. If it is
interrupted, the same command continues from the last checkpoint.
"""

import argparse
import logging
from pathlib import Path

import trainyard.utils.quick_imports  # noqa: F401
from trainyard.cli import command_line
from trainyard.cluster.job_memory import record_memory
from trainyard.cluster.job_step import is_rank
from trainyard.config.config import Config
from trainyard.config.load import config_copy, read_config
from trainyard.config.scaling import ScriptScaling, split_scale
from trainyard.config.trials import result_digest
from trainyard.planning.history import dataset_digest
from trainyard.planning.receipts import record, training_terms
from trainyard.results.retention import restore_results
from trainyard.scaling.launchers import launch
from trainyard.scaling.user_script import UserScript

log = logging.getLogger("train")


def main(arguments: argparse.Namespace) -> int:
    """Train as a rank if torchrun has started this program; otherwise launch the training."""
    config = read_config(arguments.config)
    command_line.check_name(config, "scaling", arguments.study)
    folder = arguments.results / "scaling" / arguments.study
    if is_rank():
        from trainyard.scaling.rank import train_scale  # torch: ranks only

        train_scale(config, arguments.study, arguments.scale, results=arguments.results)
        return 0
    study = config.scaling[arguments.study]
    summary = folder / arguments.scale / "summary.json"
    record(summary, "")
    if code := _train(arguments, config, folder):
        return code
    record(summary, training_terms(study, arguments.scale))
    return 0


def _train(arguments: argparse.Namespace, config: Config, folder: Path) -> int:
    """Train at this scale, or take the results that are there; `folder` is that of the study."""
    study = config.scaling[arguments.study]
    if study.trains:
        digest = result_digest(study, arguments.scale, dataset_digest(arguments.results, study))
        if restore_results(folder / arguments.scale, digest):
            log.info("already trained: its checkpoints were removed, but not its results")
            return 0
    with record_memory(folder / arguments.scale, processes=split_scale(arguments.scale)[1]):
        if isinstance(study, ScriptScaling):
            digest = config_copy(config, arguments.results).stem
            UserScript(study, arguments.scale, folder, arguments.results, config=digest).run()
            return 0
        return launch(arguments.scale, _options(arguments))


def _options(arguments: argparse.Namespace) -> list[str]:
    """The options of this program that its ranks get."""
    given = {"--config": arguments.config, "--results": arguments.results, "--study": arguments.study}
    given |= {"--log-file": arguments.log_file} if arguments.log_file else {}
    words = ["--scale", arguments.scale]
    for name, value in given.items():
        words += [name, str(value)]
    return words


if __name__ == "__main__":
    example = "--scale 1x2 --config config/config.yaml --study width"
    parser = command_line.build_parser(str(__doc__), example=example)
    parser.add_argument("--study", required=True, metavar="NAME", help="name in `scaling` of the config")
    parser.add_argument(
        "--scale", required=True, metavar="NxG", help="<nodes>x<GPUs per node>, e.g. 1x2 or 1x2/repeat-2"
    )
    command_line.run_program(main, parser.parse_args())
