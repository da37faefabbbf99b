"""Download pretrained weights that torchvision publishes; a file that exists is verified and kept."""

import argparse
import logging

from trainyard.cli import command_line
from trainyard.config.load import read_config
from trainyard.config.weights import weights_receipt
from trainyard.data.downloads import download
from trainyard.data.torchvision_weights import remote_weights, weights_folder
from trainyard.utils.files import write_json

log = logging.getLogger("weights")


def main(arguments: argparse.Namespace) -> None:
    """Download the file, and write its path and checksum to the receipt."""
    config = read_config(arguments.config)
    remote = remote_weights(arguments.model, arguments.weights)
    path = download(remote, weights_folder(config.data.downloads))
    receipt = arguments.results / weights_receipt(arguments.model, arguments.weights)
    write_json(receipt, {"path": str(path), "url": remote.urls[0], "checksum": remote.checksum})
    log.info("weights %s of %s: in %s", arguments.weights, arguments.model, path)


if __name__ == "__main__":
    example = "--config config/config.yaml --model resnet18 --weights IMAGENET1K_V1"
    parser = command_line.build_parser("Download pretrained weights of torchvision.", example=example)
    parser.add_argument("--model", required=True, metavar="MODEL", help="a classification model of torchvision")
    parser.add_argument("--weights", required=True, metavar="NAME", help="the name of its weights")
    command_line.run_program(main, parser.parse_args())
