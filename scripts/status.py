"""Show the progress of all sweeps, from their journals; with --watch, while another process runs them."""

import argparse
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from trainyard.cli import command_line
from trainyard.config.config import Config
from trainyard.config.load import read_config
from trainyard.config.trial_status import TrialStatus
from trainyard.packing.live_view import slot_table
from trainyard.planning.journal_fold import Fold
from trainyard.planning.plan import Plan, plan_sweep
from trainyard.utils.errors import UserError
from trainyard.utils.text import format_duration


def main(arguments: argparse.Namespace) -> None:
    """Print the progress once, or until interrupted."""
    config = read_config(arguments.config)
    if not config.sweeps:
        raise UserError(f"{arguments.config} has no sweeps")
    console = Console()
    folds = {name: Fold(arguments.results / "sweeps" / name / "journal.jsonl") for name in config.sweeps}
    if not arguments.watch:
        console.print(_view(config, arguments.results, folds))
        return
    with Live(_view(config, arguments.results, folds), console=console) as live:
        while True:
            time.sleep(arguments.every)
            live.update(_view(config, arguments.results, folds))


def _view(config: Config, results: Path, folds: Mapping[str, Fold]) -> RenderableType:
    """The progress of all sweeps; only new events of the journals are read."""
    plans = [plan_sweep(config, name, results, fold=fold) for name, fold in folds.items()]
    columns = ("finished", "stopped", "diverged", "running", "failed", "pending", "of", "predicted time left")
    table = Table("sweep", *columns, box=None)
    for plan in plans:
        table.add_row(*_row(plan))
    return Group(table, *_running(plans))


def _row(plan: Plan) -> Iterator[str]:
    """The cells of a sweep: its name, the counts of its trials, and the predicted time left."""
    last = {name: tries[-1].outcome for name, tries in plan.tries.items() if name in plan.trials and tries}
    open_ends = Counter(last.get(name) for name in plan.pending)
    ends = Counter(end.outcome for name in plan.trials if (end := plan.end(name)))
    running, failed = open_ends[TrialStatus.RUNNING], open_ends[TrialStatus.FAILED]
    final = [ends[status] for status in (TrialStatus.FINISHED, TrialStatus.STOPPED, TrialStatus.DIVERGED)]
    waiting = len(plan.pending) - running - failed
    yield plan.name
    yield from map(str, [*final, running, failed + ends[TrialStatus.UNREADABLE], waiting, len(plan.trials)])
    left = plan.predicted_seconds
    yield "-" if not plan.pending else "unknown yet" if left is None else format_duration(left)


def _running(plans: list[Plan]) -> Iterator[RenderableType]:
    for plan in plans:
        open_attempts = [tries[-1] for tries in plan.tries.values() if tries[-1].outcome == TrialStatus.RUNNING]
        if open_attempts:
            yield f"\nsweep {plan.name}: running, or killed without a final event"
            yield slot_table(open_attempts, plan)


def _arguments() -> argparse.Namespace:
    example = "python scripts/status.py --config config/config.yaml --watch"
    parser = command_line.build_parser("Show the progress of all sweeps.", example=example)
    parser.add_argument("--watch", action="store_true", help="update until interrupted")
    parser.add_argument("--every", type=float, default=2.0, metavar="S", help="seconds between updates (default: 2)")
    return parser.parse_args()


if __name__ == "__main__":
    command_line.run_program(main, _arguments())
