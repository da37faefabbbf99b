"""What the trials of a sweep cost by other strategies than packing: a job for each, or an array of jobs.

Strategies that were not run are computed from the durations of the trials, on a cluster that runs all jobs at once.
Each of their jobs starts its own program, which takes as long as the start of a slot's worker process, and ends with
its trial. Whoever submits them does not know the durations: each requests `PADDING` times what turns out to be needed.
Jobs are charged in units: GPUs, or in a sweep without GPUs, CPUs.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from trainyard.planning.order import lower_bound

PADDING: Final = 1.5  # requested over needed walltime, where the duration of a trial is not known
RequestedJob = tuple[float, int]  # seconds of walltime, and GPUs or CPUs


@dataclass(frozen=True)
class Strategy:
    """A row of strategies.csv; seconds, and GPUs or CPUs (units) times seconds."""

    strategy: str
    requested_seconds_per_job: float  # the mean, where they differ
    jobs: int
    requested_job_seconds: float
    units_per_job: float  # the mean, where they differ
    units_total: int  # allocated at the same time, at most
    requested_unit_seconds: float  # including start-up
    running_unit_seconds: float  # of attempts with a result, by their own clocks, and of what these continued
    wasted_unit_seconds: float  # used minus running
    wasted_fraction: float  # of the used ones
    makespan_seconds: float  # from the start of the first trial to the end of the last
    makespan_lower_bound_seconds: float  # on as many slots
    startup_unit_seconds: float  # once per job or slot; a part of the wasted ones
    slots: int  # at the same time, at most
    basis: str
    used_unit_seconds: float  # of all jobs, from their starts to their ends


def estimate_others(
    durations: Sequence[float], *, units_per_trial: float, startup: float, basis: str
) -> list[Strategy]:
    """The strategies that packing is compared with: separate jobs, and a job array.

    A job starts its program, which takes `startup` seconds up to its first step, and ends with its trial. A separate
    job requests `PADDING` times as much walltime, a task of the array `PADDING` times that of the longest trial.
    """
    units = max(1, math.ceil(units_per_trial))  # Slurm allocates whole GPUs
    count = len(durations)
    longest = max(durations, default=0.0)
    requested: dict[str, Sequence[float]] = {"separate_jobs": durations, "job_array": [longest] * count}
    return [
        make_strategy(
            name,
            [(PADDING * (startup + each), units) for each in seconds],
            durations,
            used_unit_seconds=units * (sum(durations) + count * startup),
            running_unit_seconds=sum(durations) * units_per_trial,
            units_total=units * count,
            slots=max(1, count),
            makespan=longest,
            startup_unit_seconds=startup * units * count,
            basis=basis,
        )
        for name, seconds in requested.items()
    ]


def make_strategy(
    name: str,
    requests: Sequence[RequestedJob],
    durations: Sequence[float],
    *,
    used_unit_seconds: float,
    running_unit_seconds: float,
    units_total: int,
    slots: int,
    makespan: float,
    startup_unit_seconds: float,
    basis: str,
) -> Strategy:
    """The row of trials with these `durations` that run on `slots` slots in the requested jobs."""
    job_seconds = sum(seconds for seconds, _ in requests)
    unit_seconds = sum(seconds * units for seconds, units in requests)
    return Strategy(
        strategy=name,
        requested_seconds_per_job=job_seconds / max(1, len(requests)),
        jobs=len(requests),
        requested_job_seconds=job_seconds,
        units_per_job=sum(units for _, units in requests) / max(1, len(requests)),
        units_total=units_total,
        requested_unit_seconds=unit_seconds,
        running_unit_seconds=running_unit_seconds,
        wasted_unit_seconds=used_unit_seconds - running_unit_seconds,
        wasted_fraction=(used_unit_seconds - running_unit_seconds) / used_unit_seconds if used_unit_seconds else 0.0,
        makespan_seconds=makespan,
        makespan_lower_bound_seconds=lower_bound(durations, slots),
        startup_unit_seconds=startup_unit_seconds,
        slots=slots,
        basis=basis,
        used_unit_seconds=used_unit_seconds,
    )
