"""Show the trials of all sweeps in optuna-dashboard, also while they run; or write them as studies of Optuna."""

import argparse
import logging
import sys
from pathlib import Path

from trainyard.cli import command_line
from trainyard.cli.loopback_server import serve
from trainyard.planning.added_trials import read_current_config
from trainyard.utils.errors import UserError

try:
    from trainyard.report.dashboard import Dashboard, write_studies
except ModuleNotFoundError as missing:
    sys.exit(f"trials are shown with optuna-dashboard ({missing}): install trainyard[dashboard]")

log = logging.getLogger("dashboard")


def main(arguments: argparse.Namespace) -> None:
    """Write the file, or serve the dashboard until interrupted."""
    config = read_current_config(arguments.config, arguments.results)
    if not config.sweeps:
        raise UserError(f"{arguments.config} has no sweeps")
    if arguments.storage:
        write_studies(config, arguments.results, arguments.storage)
        log.info("%s: the studies %s", arguments.storage, ", ".join(config.sweeps))
        return
    serve(Dashboard(config, arguments.results), arguments.port, "the sweeps")


if __name__ == "__main__":
    example = "--config config/config.yaml"
    parser = command_line.build_parser("Show the trials of all sweeps in optuna-dashboard.", example=example)
    parser.add_argument("--port", type=int, default=8080, help="port on this node (default: 8080; 0: any)")
    parser.add_argument("--storage", type=Path, metavar="FILE",
                        help="write them to this file as studies for optuna.load_study, and show nothing")  # fmt: skip
    command_line.run_program(main, parser.parse_args())
