"""Trials on slots: the makespan of their schedule, and those that start first before anything is known of durations.

A slot that becomes free takes the next trial in the order (list scheduling). Longest first has a makespan of at most
4/3 - 1/(3G) times the optimum on G slots (Graham, Bounds on Multiprocessing Timing Anomalies, 1969). Without evidence,
the first trials span the keys: their durations are then the best evidence for the others.
"""

import heapq
import math
from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import Any, Final

from trainyard.config.sweep import is_seed
from trainyard.config.trials import Trial

MAX_SPANNING: Final = 64  # trials


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
    one with the most extreme numbers. Of equally distant trials, the first one is taken. At most `MAX_SPANNING` are
    found: more would add little to what is known of durations then.
    """
    numbers = list[list[float]]()  # per key
    texts = list[list[int]]()
    for logs, groups in key_columns(trials):
        if any(groups):
            texts.append(groups)
        else:
            largest = (max(logs) - min(logs)) or 1.0
            numbers.append([each / largest for each in logs])
    count = min(count, len(trials), MAX_SPANNING)
    if not (numbers or texts):
        return list(range(count))

    def distances_from(point: Sequence[float]) -> list[float]:
        """The distance of each trial from a point in the numbers."""
        distances = [0.0] * len(trials)
        for values, own in zip(numbers, point, strict=True):
            distances = [far + abs(value - own) for far, value in zip(distances, values, strict=True)]
        return distances

    distances = distances_from([(min(values) + max(values)) / 2 for values in numbers])
    chosen = list[int]()
    while len(chosen) < count:
        rounded = [round(each, 9) for each in distances]  # rounding errors decide no tie
        last = rounded.index(max(rounded))
        from_last = distances_from([values[last] for values in numbers])
        for groups in texts:
            own = groups[last]
            from_last = [far + (group != own) for far, group in zip(from_last, groups, strict=True)]
        distances = list(map(min, distances, from_last)) if chosen else from_last
        distances[last] = -1.0
        chosen.append(last)
    return chosen


def key_columns(trials: Sequence[Trial]) -> Iterator[tuple[list[float], list[int]]]:
    """Of each key that may affect durations: the logs of numbers and all 0, or all 1 and the places of texts."""
    for key in dict.fromkeys(key for trial in trials for key in trial.values):
        values: list[Any] = [trial.values.get(key) for trial in trials]
        places = {text: place for place, text in enumerate(dict.fromkeys(map(str, values)))}
        if len(places) == 1 or is_seed(key):
            continue
        logs = centered_logs(values)
        if logs is None:
            yield [1.0] * len(values), [places[str(value)] for value in values]
        else:
            yield logs, [0] * len(values)


def centered_logs(values: Sequence[Any]) -> list[float] | None:
    """The logs of numbers, less their mean; None if not all values are numbers with which one can compute.

    Numbers that are not all positive are shifted.
    """
    if not all(
        isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e100 for value in values
    ):
        return None
    least = min(values)
    if least <= 0:
        shift = (max(values) - least) / 10 or 0.1
        values = [value - least + shift for value in values]
    logs = list(map(math.log, values))
    mean = fmean(logs)
    return [each - mean for each in logs]
