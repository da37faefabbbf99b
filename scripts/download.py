"""Download what a dataset is made from, where there is a network; what is there already is checked and left."""

import argparse
import logging

from trainyard.cli import command_line
from trainyard.config.load import read_config
from trainyard.data.staging import downloaded, remotes
from trainyard.utils.files import write_json

log = logging.getLogger("download")


def main(arguments: argparse.Namespace) -> None:
    """Have the files, and say where they are in `download.json`."""
    config = read_config(arguments.config)
    command_line.section(config, "datasets", arguments.dataset)
    dataset = config.datasets[arguments.dataset]
    files = {remote.name: remote.checksum for remote in remotes(dataset)}
    place = str(downloaded(dataset, config.data)) if files else None
    write_json(arguments.results / "data" / arguments.dataset / "download.json", {"place": place, "files": files})
    log.info("dataset %s: %s", arguments.dataset, f"downloaded to {place}" if files else "needs no download")


def _arguments() -> argparse.Namespace:
    example = "python scripts/download.py --config config/config.yaml --dataset digits"
    parser = command_line.parser("Download what a dataset is made from.", example=example)
    parser.add_argument("--dataset", required=True, metavar="NAME", help="a name in `datasets` of the config")
    return parser.parse_args()


if __name__ == "__main__":
    command_line.run(main, _arguments())
