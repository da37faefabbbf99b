"""Download what a dataset is made from, where there is a network; what is there already is checked and left."""

import argparse
import logging

from trainyard import programs
from trainyard.configfile import read_config
from trainyard.files import write_json
from trainyard.staging import downloaded, remotes

log = logging.getLogger("download")


def main(arguments: argparse.Namespace) -> None:
    """Have the files, and say where they are in `download.json`."""
    config = read_config(arguments.config)
    programs.section(config, "datasets", arguments.dataset)
    dataset = config.datasets[arguments.dataset]
    files = {remote.name: remote.checksum for remote in remotes(dataset)}
    place = str(downloaded(dataset, config.data)) if files else None
    write_json(arguments.results / "data" / arguments.dataset / "download.json", {"place": place, "files": files})
    log.info("dataset %s: %s", arguments.dataset, f"downloaded to {place}" if files else "needs no download")


def _arguments() -> argparse.Namespace:
    example = "python scripts/download.py --config config/config.yaml --dataset digits"
    parser = programs.parser("Download what a dataset is made from.", example=example)
    parser.add_argument("--dataset", required=True, metavar="NAME", help="a name in `datasets` of the config")
    return parser.parse_args()


if __name__ == "__main__":
    programs.run(main, _arguments())
