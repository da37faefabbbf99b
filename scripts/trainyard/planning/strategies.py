"""The cost of the same trials as separate jobs, as a job array, and packed into one job: the rows of strategies.csv.

"Requested" is what jobs request from the scheduler: it determines the time in the queue, and blocks other users.
"Wasted" is the part of it in which no trial ran that produced a result: start-up, failed attempts, idle slots, and
unused walltime. The definitions are the same for every strategy. Strategies that were not run are computed from the
durations of the trials, on a cluster that runs all jobs at once. Each of their jobs starts its own program, which takes
as long as the start of a slot's worker process. Jobs are charged in units: GPUs, or in a sweep without GPUs, CPUs.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from trainyard.planning.schedule import lower_bound


@dataclass(frozen=True)
class RequestedJob:
    """A job that was or would be requested."""

    seconds: float  # of walltime
    units: int  # GPUs or CPUs


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
    wasted_unit_seconds: float  # requested minus running
    wasted_fraction: float
    makespan_seconds: float  # from the start of the first trial to the end of the last
    makespan_lower_bound_seconds: float  # on as many slots
    startup_unit_seconds: float  # once per job or slot; a part of the wasted ones
    basis: str


def estimate_others(
    durations: Sequence[float], *, units_per_trial: float, startup: float, basis: str
) -> list[Strategy]:
    """The strategies that packing is compared with: separate jobs, and a job array.

    A separate job requests exactly the duration of its trial, which is unknown beforehand in practice; a task of the
    array, the longest duration. Each also requests the `startup` seconds of its program, up to its first step.
    """
    units, count = max(1, math.ceil(units_per_trial)), len(durations)  # Slurm allocates whole GPUs
    longest = max(durations, default=0.0)
    requested: dict[str, Sequence[float]] = {"separate_jobs": durations, "job_array": [longest] * count}
    return [
        make_strategy(
            name,
            [RequestedJob(startup + each, units) for each in seconds],
            durations,
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
    running_unit_seconds: float,
    units_total: int,
    slots: int,
    makespan: float,
    startup_unit_seconds: float,
    basis: str,
) -> Strategy:
    """The row of trials with these `durations` that run on `slots` slots in the requested jobs."""
    job_seconds = sum(each.seconds for each in requests)
    unit_seconds = sum(each.seconds * each.units for each in requests)
    return Strategy(
        strategy=name,
        requested_seconds_per_job=job_seconds / max(1, len(requests)),
        jobs=len(requests),
        requested_job_seconds=job_seconds,
        units_per_job=sum(each.units for each in requests) / max(1, len(requests)),
        units_total=units_total,
        requested_unit_seconds=unit_seconds,
        running_unit_seconds=running_unit_seconds,
        wasted_unit_seconds=unit_seconds - running_unit_seconds,
        wasted_fraction=(unit_seconds - running_unit_seconds) / unit_seconds if unit_seconds else 0.0,
        makespan_seconds=makespan,
        makespan_lower_bound_seconds=lower_bound(durations, slots),
        startup_unit_seconds=startup_unit_seconds,
        basis=basis,
    )
