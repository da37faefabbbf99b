"""Show the progress of all sweeps, from their journals; with --watch, while another process runs them."""

import argparse
import time
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
    state, pending = plan.state, plan.forecast.pending
    outcomes = [last.outcome if (last := state.last_attempt(name)) else None for name in pending]
    ends = [end.outcome for name in state.trials if (end := state.end(name))]
    yield state.name
    yield str(ends.count(TrialStatus.FINISHED))
    yield str(ends.count(TrialStatus.STOPPED))
    yield str(ends.count(TrialStatus.DIVERGED))
    yield str(outcomes.count(TrialStatus.RUNNING))
    yield str(outcomes.count(TrialStatus.FAILED) + ends.count(TrialStatus.UNREADABLE))
    yield str(len(outcomes) - outcomes.count(TrialStatus.RUNNING) - outcomes.count(TrialStatus.FAILED))
    yield str(len(state.trials))
    left = plan.request.predicted_seconds
    yield "-" if not pending else "unknown yet" if left is None else format_duration(left)


def _running(plans: list[Plan]) -> Iterator[RenderableType]:
    for plan in plans:
        last = [attempts[-1] for attempts in plan.state.attempts.values()]
        open_attempts = [attempt for attempt in last if attempt.outcome == TrialStatus.RUNNING]
        if open_attempts:
            yield f"\nsweep {plan.state.name}: running, or killed without a final event"
            yield slot_table(open_attempts, plan.state)


def _arguments() -> argparse.Namespace:
    example = "python scripts/status.py --config config/config.yaml --watch"
    parser = command_line.build_parser("Show the progress of all sweeps.", example=example)
    parser.add_argument("--watch", action="store_true", help="update until interrupted")
    parser.add_argument("--every", type=float, default=2.0, metavar="S", help="seconds between updates (default: 2)")
    return parser.parse_args()


if __name__ == "__main__":
    command_line.run_program(main, _arguments())
