"""Write report.html: the answer of each study, its charts and tables, and how it ran. It also works while studies run.

With --watch, it serves this page on this machine until Ctrl-C, and the page follows the journals.
"""

import argparse
import logging
from itertools import chain
from pathlib import Path

from trainyard.cli import command_line
from trainyard.cli.loopback_server import serve
from trainyard.planning.added_trials import read_current_config
from trainyard.report.whole_report import LivePage, write_report
from trainyard.utils.typed_commands import run_call, trainyard_call

log = logging.getLogger("report")


def main(arguments: argparse.Namespace) -> None:
    """Write the page, or serve it until interrupted."""
    config = read_current_config(arguments.config, arguments.results)
    if arguments.watch:
        serve(LivePage(config, arguments.results), arguments.port, "the report")
        return
    page = Path("report.html")
    replaced = write_report(config, arguments.results, page)
    log.info("the report: %s", page.absolute())
    if replaced:
        call = trainyard_call("report", "--config", "FILE")
        log.info("it replaces one that had %s: `%s` writes that of another config again", ", ".join(replaced), call)
    runs = chain(arguments.results.glob("sweeps/*/*/*.jsonl"), arguments.results.glob("scaling/*/*"))
    if not any(runs):
        log.info("nothing has run yet: `%s`", run_call(arguments.config))


if __name__ == "__main__":
    parser = command_line.build_parser(str(__doc__), example="--config config/config.yaml")
    parser.add_argument("--watch", action="store_true", help="serve the page on this machine, and follow the sweeps")
    parser.add_argument("--port", type=int, default=0, help="of --watch (default: a free one)")
    command_line.run_program(main, parser.parse_args())
