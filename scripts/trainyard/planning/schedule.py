"""Schedules of trials on slots: who runs where and when, how long that takes, and how long it must take."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Turn:
    """A trial's turn on a slot, in seconds from the beginning."""

    trial: int  # its place in the order given
    slot: int
    start: float
    end: float


def schedule(durations: Sequence[float], slots: int) -> list[Turn]:
    """Each slot takes the next trial, in the order given, as soon as it is free."""
    free = [(0.0, slot) for slot in range(slots)]
    turns = []
    for trial, seconds in enumerate(durations):
        start, slot = free[0]
        turns.append(Turn(trial, slot, start, start + seconds))
        heapq.heapreplace(free, (start + seconds, slot))
    return turns


def makespan(durations: Sequence[float], slots: int) -> float:
    """Seconds until the last trial of `schedule` ends."""
    free = [0.0] * slots
    for seconds in durations:
        heapq.heapreplace(free, free[0] + seconds)
    return max(free)


def lower_bound(durations: Sequence[float], slots: int) -> float:
    """No order of the trials ends before max(longest, sum / G, p_G + p_(G+1)), p sorted descending, on G slots.

    The last term: of the G + 1 longest trials, two must share a slot.
    """
    longest = sorted(durations, reverse=True)
    if not longest:
        return 0.0
    pair = longest[slots - 1] + longest[slots] if len(longest) > slots else 0.0
    return max(longest[0], sum(longest) / slots, pair)


def jobs_needed(durations: Sequence[float], slots: int, *, seconds: float) -> int:
    """Jobs, one after another, in which trials that cannot resume all end.

    In each job a slot takes the next trial, in the order given, that ends within the job's `seconds`. A trial that
    takes longer than that counts as if it took just as long.
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
