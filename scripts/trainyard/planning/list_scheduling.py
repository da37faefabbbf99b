"""Schedules of trials on slots, their makespan, and a lower bound of it."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class ScheduledTrial:
    """A trial on a slot, in seconds from the start of the first trial."""

    trial: int  # index in the given order
    slot: int
    start: float
    end: float


def schedule(durations: Sequence[float], slots: int) -> list[ScheduledTrial]:
    """The schedule in which each slot runs the next trial, in the given order, as soon as it is free."""
    free = [(0.0, slot) for slot in range(slots)]
    scheduled = []
    for trial, seconds in enumerate(durations):
        start, slot = free[0]
        scheduled.append(ScheduledTrial(trial, slot, start, start + seconds))
        heapq.heapreplace(free, (start + seconds, slot))
    return scheduled


def makespan(durations: Sequence[float], slots: int) -> float:
    """Seconds until the last trial of `schedule` ends."""
    free = [0.0] * slots
    for seconds in durations:
        heapq.heapreplace(free, free[0] + seconds)
    return max(free)


def lower_bound(durations: Sequence[float], slots: int) -> float:
    """Lower bound of the makespan on G slots: max(p_1, sum / G, p_G + p_(G+1)), p sorted descending.

    The last term holds because two of the G + 1 longest trials share a slot.
    """
    longest = sorted(durations, reverse=True)
    if not longest:
        return 0.0
    pair = longest[slots - 1] + longest[slots] if len(longest) > slots else 0.0
    return max(longest[0], sum(longest) / slots, pair)


def jobs_needed(durations: Sequence[float], slots: int, *, seconds: float) -> int:
    """The number of consecutive jobs in which all trials end, if they cannot resume.

    In each job, a slot runs the next trial, in the given order, that ends within the job's `seconds`. A longer trial
    counts as if it took exactly that long.
    """
    left, jobs = [min(each, seconds) for each in durations], 0
    while left:
        jobs += 1
        free, postponed = [0.0] * slots, []
        for each in left:
            if free[0] + each <= seconds:
                heapq.heapreplace(free, free[0] + each)
            else:
                postponed.append(each)
        left = postponed
    return jobs
