"""Show the progress of all sweeps and scaling studies; with --watch or --wait, while another process runs them."""

import argparse
import signal
import textwrap
import time
from contextlib import nullcontext
from functools import cache
from typing import Final

from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text
from trainyard.cli import command_line, json_output
from trainyard.cli.progress import describe_other_run, progress_as_json, sweep_has_ended
from trainyard.cli.status_view import status_view
from trainyard.cluster.slurm_queries import list_jobs_in
from trainyard.cluster.stop_request import StopRequest
from trainyard.config.load import read_config
from trainyard.planning.attempts import Fold
from trainyard.planning.history import History, read_state
from trainyard.results.completeness import check_sweep
from trainyard.utils.errors import UserError
from trainyard.utils.terminal import open_console

LIST_SECONDS: Final = 10  # for which a listing of Slurm's queue holds


def main(arguments: argparse.Namespace) -> None:
    """Print the progress once, or until interrupted, or until all sweeps have ended."""
    config = read_config(arguments.config)
    results = arguments.results
    if not (config.sweeps or config.scaling):
        raise UserError(f"{arguments.config} has no sweeps and no scaling studies")
    if arguments.wait and not config.sweeps:
        raise UserError(f"--wait waits for sweeps, and {arguments.config} has none")
    console = open_console()
    folds = {name: Fold(results / "sweeps" / name) for name in config.sweeps}

    list_jobs = cache(lambda period: list_jobs_in(results.absolute().parent))

    def view(height: int | None = None) -> RenderableType:
        other = describe_other_run(config, arguments.config, results)
        lines = [Text(line, style="yellow") for line in textwrap.wrap(other, console.width)]
        left = height and height - len(lines)
        jobs = list_jobs(int(time.monotonic() / LIST_SECONDS))
        return Group(*lines, status_view(config, results, folds, jobs=jobs, height=left))

    def read_states() -> list[History]:
        return [read_state(config.sweeps[name], name, results, fold=fold) for name, fold in folds.items()]

    interrupt = StopRequest()  # an exception while a picture is drawn would leave half of it
    if arguments.watch or arguments.wait:
        signal.signal(signal.SIGINT, interrupt.make)
        is_live = arguments.watch and console.is_terminal
        with Live(console=console, screen=True, auto_refresh=False) if is_live else nullcontext() as live:
            while not interrupt.is_made and not (arguments.wait and all(map(sweep_has_ended, read_states()))):
                if live:
                    live.update(view(console.height), refresh=True)
                elif arguments.watch:  # lines cannot be replaced
                    console.print(view(), "")
                interrupt.wait(arguments.every)
    if arguments.json:
        json_output.print_json(**progress_as_json(config, results, folds, list_jobs(0)))
    else:
        console.print(view())
    if arguments.wait:
        if interrupt.is_made:
            raise KeyboardInterrupt
        for state in read_states():
            check_sweep(state)


if __name__ == "__main__":
    example = "--config config/config.yaml --watch"
    parser = command_line.build_parser("Show the progress of all sweeps and scaling studies.", example=example)
    parser.add_argument("--watch", action="store_true", help="update until interrupted (Ctrl-C)")
    parser.add_argument("--wait", action="store_true",
                        help="wait until all sweeps have ended; exit with 1 if one has failed")  # fmt: skip
    parser.add_argument("--every", type=float, default=2.0, metavar="S", help="seconds between updates (default: 2)")
    parser.add_argument(json_output.OPTION, action="store_true", help=json_output.HELP)
    command_line.run_program(main, parser.parse_args())
