"""Stage a dataset: turn it into the few large files that training maps into memory.

Killed half-way, the same command goes on from there. Bad images are listed in problems.csv, beside the files.
"""

import argparse
import gc
import logging

from trainyard.cli import command_line
from trainyard.config.load import read_config
from trainyard.data.staging import stage

log = logging.getLogger("stage")


def main(arguments: argparse.Namespace) -> None:
    """Stage one dataset, or say that it is there already."""
    gc.disable()  # it would look for cycles among a million names of files again and again
    config = read_config(arguments.config)
    command_line.section(config, "datasets", arguments.dataset)
    dataset, folder = config.datasets[arguments.dataset], arguments.results / "data" / arguments.dataset
    staged = stage(dataset, folder, config.data)
    log.info("dataset %s: %s, in %s", arguments.dataset, staged.description(), staged.folder)


def _arguments() -> argparse.Namespace:
    example = "python scripts/stage.py --config config/config.yaml --dataset digits"
    parser = command_line.parser("Stage a dataset.", example=example)
    parser.add_argument("--dataset", required=True, metavar="NAME", help="a name in `datasets` of the config")
    return parser.parse_args()


if __name__ == "__main__":
    command_line.run(main, _arguments())
