"""Trials on slots: the makespan of their schedule, and those that start first before anything is known of durations.

A slot that becomes free takes the next trial in the order (list scheduling). Longest first has a makespan of at most
4/3 - 1/(3G) times the optimum on G slots (Graham, Bounds on Multiprocessing Timing Anomalies, 1969). Without evidence,
the first trials span the keys: their durations are then the best evidence for the others.
"""

import heapq
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainyard.config.sweep import is_seed
from trainyard.config.trials import Trial

Seconds = NDArray[np.float64]
Places = NDArray[np.intp]  # in the given order


def makespan(durations: Sequence[float], slots: int) -> float:
    """Seconds until the last trial ends, if each slot runs the next one, in the given order, as soon as it is free."""
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
    remaining = [min(duration, seconds) for duration in durations]
    jobs = 0
    while remaining:
        jobs += 1
        free = [0.0] * slots
        postponed = []
        for duration in remaining:
            if free[0] + duration <= seconds:
                heapq.heapreplace(free, free[0] + duration)
            else:
                postponed.append(duration)
        remaining = postponed
    return jobs


def spanning_trials(trials: Sequence[Trial], count: int) -> list[int]:
    """The places of trials that differ from each other in as many keys as possible, found greedily: farthest first.

    Two texts differ by 1, two numbers by the difference of their logs over its largest value. The first trial is the
    one with the most extreme numbers. Of equally distant trials, the first one is taken.
    """
    keys = list(key_columns(trials))
    if not keys:
        return list(range(min(count, len(trials))))
    numbers = np.stack([logs / (np.ptp(logs) or 1.0) for logs, _ in keys])  # (keys, trials)
    texts = np.stack([groups for _, groups in keys])
    middle = (numbers.min(axis=1) + numbers.max(axis=1))[:, None] / 2
    distance = np.abs(numbers - middle).sum(axis=0)
    chosen = list[int]()
    while len(chosen) < min(count, len(trials)):
        chosen.append(int(distance.round(9).argmax()))  # rounding errors decide no tie
        last = slice(chosen[-1], chosen[-1] + 1)
        nearest = (np.abs(numbers - numbers[:, last]) + (texts != texts[:, last])).sum(axis=0)
        distance = nearest if len(chosen) == 1 else np.minimum(distance, nearest)
        distance[chosen] = -1.0
    return chosen


def key_columns(trials: Sequence[Trial]) -> Iterator[tuple[Seconds, Places]]:
    """Of each key that may affect durations: the logs of numbers and all 0, or all 1 and the places of texts."""
    for key in dict.fromkeys(key for trial in trials for key in trial.values):
        values: list[Any] = [trial.values.get(key) for trial in trials]
        places = {text: place for place, text in enumerate(dict.fromkeys(map(str, values)))}
        if len(places) == 1 or is_seed(key):
            continue
        logs = centered_logs(values)
        if logs is None:
            yield np.ones(len(values)), np.array([places[str(value)] for value in values], np.intp)
        else:
            yield logs, np.zeros(len(values), np.intp)


def centered_logs(values: Sequence[Any]) -> Seconds | None:
    """The logs of numbers, less their mean; None if not all values are numbers with which one can compute.

    Numbers that are not all positive are shifted.
    """
    if not all(
        isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e100 for value in values
    ):
        return None
    numbers = np.array(values, np.float64)
    if numbers.min() <= 0:
        numbers += (np.ptp(numbers) or 1.0) / 10 - numbers.min()
    logs: Seconds = np.log(numbers) - np.log(numbers).mean()
    return logs
