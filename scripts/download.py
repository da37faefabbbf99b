"""Download the files of a dataset; files that exist are verified and kept."""

import argparse
import logging

from trainyard.cli import command_line
from trainyard.config.load import read_config
from trainyard.data.staging import download_dataset, remote_files
from trainyard.planning.receipts import made_for, staging_terms
from trainyard.utils.files import write_json

log = logging.getLogger("download")


def main(arguments: argparse.Namespace) -> None:
    """Download the files, and write their folder and checksums to `download.json`."""
    config = read_config(arguments.config)
    command_line.check_name(config, "datasets", arguments.dataset)
    dataset = config.datasets[arguments.dataset]
    files = {remote.name: remote.checksum for remote in remote_files(dataset)}
    folder = str(download_dataset(dataset, config.data)) if files else None
    receipt = arguments.results / "data" / arguments.dataset / "download.json"
    with made_for(receipt, staging_terms(dataset)):
        write_json(receipt, {"place": folder, "files": files})
    log.info("dataset %s: %s", arguments.dataset, f"downloaded to {folder}" if files else "needs no download")


if __name__ == "__main__":
    example = "--config config/config.yaml --dataset digits"
    parser = command_line.build_parser("Download the files of a dataset.", example=example)
    parser.add_argument("--dataset", required=True, metavar="NAME", help="name in `datasets` of the config")
    command_line.run_program(main, parser.parse_args())
