"""Write the event files of TensorBoard of all studies; with --watch, also while sweeps run."""

import argparse
import logging
import shlex
import sys
import time

from trainyard.cli import command_line
from trainyard.planning.added_trials import read_current_config
from trainyard.utils.errors import UserError
from trainyard.utils.typed_commands import as_typed, installed_program

try:
    from trainyard.report.tensorboard import FOLDER, KINDS, write_event_files
except ModuleNotFoundError as missing:
    sys.exit(f"event files are written with tensorboard ({missing}): install trainyard[tensorboard]")

log = logging.getLogger("event_files")


def main(arguments: argparse.Namespace) -> None:
    """Write the event files once, or until interrupted."""
    config = read_current_config(arguments.config, arguments.results)
    studies = [(kind, name) for kind in KINDS for name in getattr(config, kind)]
    if not studies:
        raise UserError(f"{arguments.config} has no sweeps and no scaling studies")
    folder = shlex.quote(as_typed(arguments.results / FOLDER))
    log.info("to see the curves: %s --logdir %s", installed_program("tensorboard"), folder)
    counts: dict[tuple[str, str], int] = {}
    while True:
        for kind, name in studies:
            count = write_event_files(config, kind, name, arguments.results)
            if count != counts.get((kind, name)):
                log.info("%s %s: event files of %d runs", kind, name, count)
                counts[kind, name] = count
        if not arguments.watch:
            break
        time.sleep(arguments.every)


if __name__ == "__main__":
    example = "--config config/config.yaml --watch"
    parser = command_line.build_parser("Write event files for TensorBoard.", example=example)
    parser.add_argument("--watch", action="store_true", help="update until interrupted, while sweeps run")
    parser.add_argument("--every", type=float, default=10.0, metavar="S", help="seconds between updates (default: 10)")
    command_line.run_program(main, parser.parse_args())
