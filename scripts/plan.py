"""Say what running all that is missing would ask for and cost, before anything is spent; write plan.csv and pictures.

For each sweep, the same trials as separate jobs and as a job array stand below what will be submitted.
"""

import argparse
import logging
import math
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path

import pandas as pd
from rich.console import Console
from rich.table import Table
from trainyard.cli import command_line
from trainyard.config.config import Config
from trainyard.config.load import read_config
from trainyard.data.staged import Staged
from trainyard.planning import forecast, trial_flops
from trainyard.planning.journal import Journal, Work
from trainyard.planning.plan import plan_sweep
from trainyard.report import style, sweep_plots
from trainyard.utils.csv_files import write_table
from trainyard.utils.errors import UserError
from trainyard.utils.files import LockHeldError
from trainyard.utils.text import format_duration

log = logging.getLogger("plan")


def main(arguments: argparse.Namespace) -> None:
    """Plan all that is missing."""
    config, results = read_config(arguments.config), arguments.results
    for name in config.sweeps:
        _count_work(config, name, results)
    found = list(
        forecast.rows(config, results, runtime_minutes=arguments.runtime_minutes, limit_minutes=arguments.limit_minutes)
    )
    if not found:
        log.info("nothing is missing: nothing will be spent")
        return
    folder = results / "plan"
    write_table(pd.DataFrame([asdict(row) for row in found]), folder / "plan.csv")
    for name in config.sweeps:
        plan = plan_sweep(config, name, results, limit_minutes=arguments.limit_minutes)
        if plan.pending:
            size = (8, 1.4 + 0.4 * min(plan.slots.count, 32))
            style.draw(partial(sweep_plots.planned, plan=plan), folder / name, size=size)
    Console(width=None if Console().is_terminal else 160).print(_table(found))
    log.info("the plan is %s, and beside it a picture for each sweep", folder / "plan.csv")


def _count_work(config: Config, name: str, results: Path) -> None:
    """FLOPs, where nothing else tells which trial takes longest and the data are staged."""
    plan = plan_sweep(config, name, results)
    staged = Staged(results / "data" / str(plan.sweep.dataset))
    if not trial_flops.is_needed(plan) or not (staged.folder / "meta.json").exists():
        return
    try:
        with Journal.opened(results / "sweeps" / name / "journal.jsonl") as journal:
            if flops := trial_flops.count_work(plan, staged):
                journal.record(Work(flops=flops))
    except (LockHeldError, UserError) as error:  # it runs just now, or cannot
        log.info("sweep %s: FLOPs are not counted: %s", name, error)


def _table(found: list[forecast.Row]) -> Table:
    table = Table("job", "pending", "jobs", "nodes", "GPUs", "walltime", "predicted", "GPU-hours", "asked for", "cost")
    for row in found:
        table.add_row(*_cells(row), style=None if row.is_submitted else "dim")
    submitted = [row for row in found if row.is_submitted]
    totals = [sum(value for row in submitted if (value := getattr(row, name)) is not None)
              for name in ("predicted_gpu_hours", "asked_gpu_hours", "predicted_cost")]  # fmt: skip
    table.add_section()
    jobs = sum(row.jobs for row in submitted)
    table.add_row("all that is known", "", str(jobs), "", "", "", "", *map(_number, totals))
    return table


def _cells(row: forecast.Row) -> Iterator[str]:
    names = {"job_array": "  as a job array", "separate_jobs": "  as separate jobs"}
    yield names.get(row.strategy, row.job)
    yield "" if row.pending is None or not row.is_submitted else f"{row.pending} of {row.total}"
    yield str(row.jobs)
    yield str(row.nodes)
    yield str(row.gpus)
    yield "" if row.walltime_minutes is None else format_duration(60 * row.walltime_minutes)
    yield _predicted(row)
    yield _number(row.predicted_gpu_hours)
    yield _number(row.asked_gpu_hours)
    yield _number(row.predicted_cost)


def _predicted(row: forecast.Row) -> str:
    if row.predicted_seconds is None:
        return "unknown yet" if row.gpus else ""
    low, high = row.predicted_low_seconds, row.predicted_high_seconds
    ends = [format_duration(end) for end in (low, high) if end]
    between = f" ({ends[0]} to {ends[1]})" if len(set(ends)) == 2 else ""
    return format_duration(row.predicted_seconds) + between


def _number(value: float | None) -> str:
    return "" if not value else f"{value:.3g}"


def _arguments() -> argparse.Namespace:
    parser = command_line.parser(__doc__.split("\n")[0], example="python scripts/plan.py --config config/config.yaml")
    parser.add_argument("--runtime-minutes", type=float, metavar="MIN",
                        help="walltime of jobs that choose none; left out, nobody is asked for any")  # fmt: skip
    parser.add_argument("--limit-minutes", type=float, metavar="MIN", default=math.inf,
                        help="the longest walltime that a job may ask for (default: no limit)")  # fmt: skip
    return parser.parse_args()


if __name__ == "__main__":
    command_line.run(main, _arguments())
