"""The table of a plan, for the terminal."""

from collections.abc import Iterator, Sequence

from rich.table import Table

from trainyard.planning.forecast import PlannedJob
from trainyard.utils.text import format_duration

COLUMNS = ("job", "pending", "jobs", "nodes", "GPUs", "walltime", "predicted", "GPU-hours", "requested", "cost")
NAMES = {"job_array": "  as a job array", "separate_jobs": "  as separate jobs"}


def plan_table(rows: Sequence[PlannedJob]) -> Table:
    """A row for each job, the alternatives that are not submitted dimmed, and the totals of all known numbers."""
    table = Table(*COLUMNS)
    for row in rows:
        table.add_row(*_cells(row), style=None if row.is_submitted else "dim")
    submitted = [row for row in rows if row.is_submitted]
    totals = [
        sum(value for row in submitted if (value := getattr(row, name)) is not None)
        for name in ("predicted_gpu_hours", "asked_gpu_hours", "predicted_cost")
    ]
    table.add_section()
    jobs = sum(row.jobs for row in submitted)
    table.add_row("total of known values", "", str(jobs), "", "", "", "", *map(_number, totals))
    return table


def _cells(row: PlannedJob) -> Iterator[str]:
    yield NAMES.get(row.strategy, row.job)
    yield "" if row.pending is None or not row.is_submitted else f"{row.pending} of {row.total}"
    yield str(row.jobs)
    yield str(row.nodes)
    yield str(row.gpus)
    yield "" if row.walltime_minutes is None else format_duration(60 * row.walltime_minutes)
    yield _predicted(row)
    yield _number(row.predicted_gpu_hours)
    yield _number(row.asked_gpu_hours)
    yield _number(row.predicted_cost)


def _predicted(row: PlannedJob) -> str:
    if row.predicted_seconds is None:
        return "unknown yet" if row.gpus else ""
    low, high = (
        seconds and format_duration(seconds) for seconds in (row.predicted_low_seconds, row.predicted_high_seconds)
    )
    between = f" ({low} to {high})" if low and high and low != high else ""
    return format_duration(row.predicted_seconds) + between


def _number(value: float | None) -> str:
    return "" if not value else f"{value:.3g}"
