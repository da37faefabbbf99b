"""Show the progress of all sweeps and scaling studies; with --watch, while another process runs them."""

import argparse
import signal
import textwrap
from contextlib import nullcontext

from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text
from trainyard.cli import command_line
from trainyard.cli.status_view import describe_other_run, status_view
from trainyard.cluster.stop_request import StopRequest
from trainyard.config.load import read_config
from trainyard.planning.attempts import Fold
from trainyard.utils.errors import UserError
from trainyard.utils.terminal import open_console


def main(arguments: argparse.Namespace) -> None:
    """Print the progress once, or until interrupted."""
    config = read_config(arguments.config)
    if not (config.sweeps or config.scaling):
        raise UserError(f"{arguments.config} has no sweeps and no scaling studies")
    console = open_console()
    folds = {name: Fold(arguments.results / "sweeps" / name) for name in config.sweeps}

    def view(height: int | None = None) -> RenderableType:
        other = describe_other_run(config, arguments.config, arguments.results)
        lines = [Text(line, style="yellow") for line in textwrap.wrap(other, console.width)]
        left = height and height - len(lines)
        return Group(*lines, status_view(config, arguments.results, folds, height=left))

    if arguments.watch:
        interrupt = StopRequest()  # an exception while a picture is drawn would leave half of it
        signal.signal(signal.SIGINT, interrupt.make)
        with Live(console=console, screen=True, auto_refresh=False) if console.is_terminal else nullcontext() as live:
            while not interrupt.is_made:
                if live:
                    live.update(view(console.height), refresh=True)
                else:  # lines cannot be replaced
                    console.print(view(), "")
                interrupt.wait(arguments.every)
    console.print(view())


if __name__ == "__main__":
    example = "--config config/config.yaml --watch"
    parser = command_line.build_parser("Show the progress of all sweeps and scaling studies.", example=example)
    parser.add_argument("--watch", action="store_true", help="update until interrupted (Ctrl-C)")
    parser.add_argument("--every", type=float, default=2.0, metavar="S", help="seconds between updates (default: 2)")
    command_line.run_program(main, parser.parse_args())
