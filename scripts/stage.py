"""Stage a dataset: convert it to a few large files that trainings memory-map.

If it is interrupted, the same command continues. Bad images are listed in problems.csv, beside the files.
"""

import argparse
import gc
import logging

from trainyard.cli import command_line
from trainyard.cluster.job_memory import record_memory
from trainyard.config.load import read_config
from trainyard.data.staging import stage
from trainyard.planning.receipts import made_for, staging_terms

log = logging.getLogger("stage")


def main(arguments: argparse.Namespace) -> None:
    """Stage one dataset, unless it is staged already."""
    gc.disable()  # a list of a million file names makes every collection slow
    config = read_config(arguments.config)
    command_line.check_name(config, "datasets", arguments.dataset)
    dataset = config.datasets[arguments.dataset]
    folder = arguments.results / "data" / arguments.dataset
    with record_memory(folder, processes=1), made_for(folder / "meta.json", staging_terms(dataset)):
        staged = stage(dataset, folder, config.data)
    log.info("dataset %s: %s, in %s", arguments.dataset, staged.meta, staged.folder)


if __name__ == "__main__":
    example = "--config config/config.yaml --dataset digits"
    parser = command_line.build_parser("Stage a dataset.", example=example)
    parser.add_argument("--dataset", required=True, metavar="NAME", help="name in `datasets` of the config")
    command_line.run_program(main, parser.parse_args())
