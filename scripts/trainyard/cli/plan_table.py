"""The table of a plan and its total, for the terminal."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from rich.table import Table

from trainyard.planning.job_costs import PlannedJob
from trainyard.utils.terminal import open_console
from trainyard.utils.text import count_of, format_duration

UNITS: Final = {"gpus": ("GPUs", "GPU-hours"), "cpus": ("CPUs", "CPU-hours")}
NAMES = {"job_array": "  as a job array", "separate_jobs": "  as separate jobs"}
PIPE_WIDTH: Final = 160  # of the table, where there is no terminal


def draw_plan(rows: Sequence[PlannedJob], *, on_cpus: bool) -> str:
    """The table of a plan and a line with its total, as text for stdout."""
    console = open_console(PIPE_WIDTH)
    with console.capture() as capture:
        console.print(plan_table(rows, on_cpus=on_cpus))
    return f"{capture.get()}{describe_total(rows, on_cpus=on_cpus)}"


def _units(*, on_cpus: bool) -> Mapping[str, tuple[str, str]]:
    """What jobs have, and the unit of their use, by kind."""
    return UNITS | {"gpus": ("slots", "slot-hours")} if on_cpus else UNITS


def plan_table(rows: Sequence[PlannedJob], *, on_cpus: bool = False) -> Table:
    """A row for each job, the alternatives that are not submitted dimmed.

    The cost is the predicted one, or else that of all that is requested. There are columns about GPUs if a job has any,
    and about CPUs if a sweep without GPUs is charged for them; of the others, those in which a row has a value.
    With `on_cpus`, the jobs run on a machine without a GPU, where a slot or rank stands for one.
    """
    kinds = [kind for kind in UNITS if any(getattr(row, kind) for row in rows)] or ["gpus"]
    units = _units(on_cpus=on_cpus)
    counts = [units[kind][0] for kind in kinds]
    hours = [column for kind in kinds for column in (units[kind][1], f"{units[kind][1]} requested")]
    names = ("job", "pending", "jobs", "nodes", *counts, "walltime", "predicted", *hours, "cost")
    cells = [list(_cells(row, kinds)) for row in rows]
    shown = [number for number, name in enumerate(names) if name in counts or any(line[number] for line in cells)]
    table = Table(*(names[number] for number in shown))
    for row, line in zip(rows, cells, strict=True):
        table.add_row(*(line[number] for number in shown), style=None if row.is_submitted else "dim")
    return table


def describe_total(rows: Sequence[PlannedJob], *, on_cpus: bool) -> str:
    """What all jobs together need and cost, and of which this is not known, in a line."""
    submitted = [row for row in rows if row.is_submitted]
    total = [count_of(sum(row.jobs for row in submitted), "job")]
    for kind, (_, unit) in _units(on_cpus=on_cpus).items():
        predicted, asked = (
            _number(sum(getattr(row, f"{what}_{kind[:-1]}_hours") or 0.0 for row in submitted))
            for what in ("predicted", "asked")
        )
        if predicted:
            requested = f" of {asked} requested" if asked else ""
            total.append(f"about {predicted} {unit}{requested}")
        elif asked:
            total.append(f"at most {asked} {unit}")
    if cost := _cost(submitted):
        total.append(f"cost {cost}")
    text = f"total: {', '.join(total)}"
    unknown = [row for row in submitted if row.predicted_seconds is None and (row.gpus or row.cpus)]
    if not unknown:
        return text
    of = f" of {unknown[0].job}" if any(row.predicted_seconds for row in submitted) else ""
    more = f" and {len(unknown) - 1} more" if of and len(unknown) > 1 else ""
    first = " or ".join(dict.fromkeys("trial" if row.strategy else "scale" for row in unknown))
    return f"{text}; the time{of}{more} is unknown until a first {first} has finished"


def _cells(row: PlannedJob, kinds: Sequence[str]) -> Iterator[str]:
    yield NAMES.get(row.strategy, row.job)
    yield "" if row.pending is None or not row.is_submitted else f"{row.pending} of {row.total}"
    yield str(row.jobs)
    yield str(row.nodes)
    yield from (str(getattr(row, kind)) for kind in kinds)
    yield "" if row.walltime_minutes is None else format_duration(60 * row.walltime_minutes)
    yield _predicted(row)
    for kind in kinds:
        yield _number(getattr(row, f"predicted_{kind[:-1]}_hours"))
        yield _number(getattr(row, f"asked_{kind[:-1]}_hours"))
    yield _cost([row])


def _predicted(row: PlannedJob) -> str:
    if row.predicted_seconds is None:
        return "unknown yet" if row.gpus or row.cpus else ""
    low, high = (
        seconds and format_duration(seconds) for seconds in (row.predicted_low_seconds, row.predicted_high_seconds)
    )
    between = f" ({low} to {high})" if low and high and low != high else ""
    return format_duration(row.predicted_seconds) + between


def _cost(rows: Sequence[PlannedJob]) -> str:
    """The cost of jobs, `at most` if that of one is not predicted; "" if none has a price."""
    costs = [row.asked_cost if row.predicted_cost is None else row.predicted_cost for row in rows]
    is_limit = any(row.predicted_cost is None and row.asked_cost for row in rows)
    total = sum(cost or 0.0 for cost in costs)
    if not total:
        return ""
    return f"at most {total:.2f}" if is_limit else f"{total:.2f}"


def _number(value: float | None) -> str:
    return "" if not value else f"{value:.3g}"
