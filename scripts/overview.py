"""Write the first page of the report: what was best, what it cost and wasted, what failed, and what to do next.

It also works while studies run, or after a run that failed: the page then says what is missing.
"""

import argparse
import logging

from trainyard.cli import command_line
from trainyard.planning.added_trials import read_current_config
from trainyard.planning.receipts import made_for, overview_terms
from trainyard.report.overview import write_overview

log = logging.getLogger("overview")


def main(arguments: argparse.Namespace) -> None:
    """Write the page."""
    config = read_current_config(arguments.config, arguments.results)
    with made_for(arguments.results / "overview.html", overview_terms(config)):
        page = write_overview(config, arguments.results)
    log.info("overview: %s", page)


if __name__ == "__main__":
    description = "Write the report's first page from the tables and plots of all studies."
    parser = command_line.build_parser(description, example="--config config/config.yaml")
    command_line.run_program(main, parser.parse_args())
