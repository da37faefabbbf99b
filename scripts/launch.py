"""Start the training of a scale on every GPU of this job: what rule `train` runs.

Trainyard's own training is train.py, whose options these are, too:
One node:      torchrun with a rendezvous of its own, so that two trainings on one host never meet.
Several nodes: inside a Slurm job, one torchrun per node, started by srun. They meet at the job's first node, at a port
derived from the job; a rank that dies ends the whole job at once.
Where the training fails, the last line says which rank failed first, on which node, and why.

A `script` of the user's is started by the launcher that the study names, and heard for its metrics.
"""

import argparse
import logging
import os
import signal
import subprocess
import tempfile
from pathlib import Path

from trainyard.cli import command_line
from trainyard.cluster import slurm
from trainyard.config.config import split_scale
from trainyard.config.load import read_config
from trainyard.scaling.launchers import training_line
from trainyard.scaling.user_script import Script
from trainyard.training import rank_failures

log = logging.getLogger("launch")


def main(arguments: argparse.Namespace, options: list[str]) -> int:
    """Launch what the study trains."""
    config = read_config(arguments.config)
    command_line.section(config, "scaling", arguments.study)
    study = config.scaling[arguments.study]
    if study.script is None:
        return _train(arguments, options)
    return Script(study, arguments.scale, arguments.results / "scaling" / arguments.study).run(arguments.results)


def _train(arguments: argparse.Namespace, options: list[str]) -> int:
    """Launch train.py, pass on a request to end, and end as the training does."""
    # torchrun sets one thread, with a warning, where nothing is set; train.py then sets what the study says.
    environment = os.environ | {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
    # torchrun would leave a folder behind at every run; this one lies where all nodes see it.
    with tempfile.TemporaryDirectory(prefix=".torchrun-", dir=Path.cwd()) as log_dir:
        allocation = slurm.allocation() if split_scale(arguments.scale)[0] > 1 else None
        line = training_line(arguments.scale, options, log_dir=log_dir, allocation=allocation)
        process = subprocess.Popen(line, env=environment)
        command_line.pass_on_sigterm(process)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches torchrun, too: it is for that to end first
        code = process.wait()
        if first := rank_failures.cause(Path(log_dir)):
            log.error("rank %d on %s ended the training: %s", first.rank, first.node, first.message)
    return code


def _arguments() -> argparse.Namespace:
    example = "python scripts/launch.py --scale 1x2 --config config/config.yaml --study width"
    parser = command_line.parser(str(__doc__), example=example)
    parser.add_argument("--study", required=True, metavar="NAME", help="a name in `scaling` of the config")
    parser.add_argument("--scale", required=True, metavar="NxG", help="nodes x GPUs per node, or 1x2/repeat-2")
    return parser.parse_args()


def _options(arguments: argparse.Namespace) -> list[str]:
    """train.py's options."""
    given = {"--config": arguments.config, "--results": arguments.results, "--study": arguments.study}
    given |= {"--log-file": arguments.log_file} if arguments.log_file else {}
    return [word for name, value in given.items() for word in (name, str(value))]


if __name__ == "__main__":
    parsed = _arguments()
    command_line.run(lambda arguments: main(arguments, _options(arguments)), parsed)
