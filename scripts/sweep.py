"""Run what is pending of a sweep: trials packed onto slots, everything recorded in its journal.

Killed at any moment, it loses only the trials in progress: the same command trains what is missing.
"""

import argparse
import logging

from trainyard.cli import command_line
from trainyard.config.load import read_config
from trainyard.packing import driver

log = logging.getLogger("sweep")


def main(arguments: argparse.Namespace) -> None:
    """Train what is pending, then write the tables."""
    config = read_config(arguments.config)
    command_line.section(config, "sweeps", arguments.sweep)
    plan = driver.run(config, arguments.sweep, arguments.results, wait_seconds=arguments.wait_seconds)
    driver.check_results(plan)
    from trainyard.report.sweep_tables import write_sweep_tables  # pandas takes a second to import

    write_sweep_tables(plan, arguments.results / "sweeps" / arguments.sweep)
    log.info("%s", driver.how_it_ended(plan))


def _arguments() -> argparse.Namespace:
    example = "python scripts/sweep.py --config config/config.yaml --sweep depth"
    parser = command_line.parser("Run what is pending of a sweep.", example=example)
    parser.add_argument("--sweep", required=True, metavar="NAME", help="a name in `sweeps` of the config")
    parser.add_argument("--wait-seconds", type=float, default=0.0, metavar="S",
                        help="wait this long if another process works on the sweep (default: do not wait)")  # fmt: skip
    return parser.parse_args()


if __name__ == "__main__":
    command_line.run(main, _arguments())
