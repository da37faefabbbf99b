"""Trials on slots: their schedule, its makespan, and the order in which they start.

The order is the best of several, judged by their mean makespan over samples of the durations.
Before anything is known about durations, the first trials span the keys: their durations are then the best evidence for
the others. Later, a slot that becomes free takes the next trial in this order (list scheduling). Candidates are longest
first, whose makespan is at most 4/3 - 1/(3G) times the optimum on G slots (Graham, Bounds on Multiprocessing Timing
Anomalies, 1969), the order in which trials start in a MULTIFIT schedule (Coffman, Garey and Johnson, An Application of
Bin-Packing to Multiprocessor Scheduling, 1978), and what a local search finds from the best of these. The search is
limited by a number of operations and not by time, so that the same samples give the same order on every machine.
"""

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from trainyard.config.trials import Trial
from trainyard.planning.sweep_state import SweepState, is_placeholder

if TYPE_CHECKING:
    from trainyard.planning.duration_model import Prediction

Seconds = NDArray[np.float64]
Places = NDArray[np.intp]  # in the given order

OPERATIONS: Final = 6_000_000  # of a search, some milliseconds: a trial compared with the load of a slot in a sample
SEARCH_DRAWS: Final = 64  # samples by which the search compares the orders of a batch
BATCH: Final = 32
COVERAGE: Final = 2  # of the moves and swaps, on average, after which a search that no longer improves ends
MAX_PER_SLOT: Final = 10  # with more trials per slot, longest first is within 0.5 % of the lower bound
MIN_GAIN: Final = 0.002  # of the makespan, for which the search goes on, and for which another order is chosen
STANDARD_ERRORS: Final = 2  # of the mean gain, which it must exceed
BISECTIONS: Final = 12  # of MULTIFIT
IRRELEVANT: Final = ("seed", "random_seed", "random_state")  # keys that never affect durations


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


def plan_order(
    state: SweepState, prediction: "Prediction | None", pending: list[str], slots: int, limit_seconds: float
) -> list[str]:
    """The unfinished trials of a sweep in the order in which they start; `pending` are these, longest first.

    Without evidence, the first trials, one per slot, span the keys if nothing is known about durations (`pending` is
    then the order of the config). The order is `pending` while the number of trials per GPU must be measured: the first
    trials show how much memory a trial needs at most, and the number of slots changes after them.
    """
    if state.is_gpu_fraction_open or (prediction is None and state.relative_costs(pending)):
        return pending
    if prediction is None:
        new = [name for name in pending if not state.has_failed(name) and not is_placeholder(name)]
        first = spanning_trials([state.trials[name] for name in new], slots)
        return list(dict.fromkeys([*(new[place] for place in first), *pending]))
    order = start_order(
        prediction,
        [state.has_failed(name) for name in state.unfinished],
        slots=slots,
        may_end_early=state.may_end_early,
        has_more=any(map(is_placeholder, state.unfinished)),
        limit_seconds=limit_seconds,
    )
    return [state.unfinished[place] for place in order]


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
    distance, found = np.abs(numbers - middle).sum(axis=0), list[int]()
    while len(found) < min(count, len(trials)):
        found.append(int(distance.round(9).argmax()))  # rounding errors decide no tie
        last = slice(found[-1], found[-1] + 1)
        nearest = (np.abs(numbers - numbers[:, last]) + (texts != texts[:, last])).sum(axis=0)
        distance = nearest if len(found) == 1 else np.minimum(distance, nearest)
        distance[found] = -1.0
    return found


def key_columns(trials: Sequence[Trial]) -> Iterator[tuple[Seconds, Places]]:
    """Of each key that may affect durations: the logs of numbers and all 0, or all 1 and the places of texts."""
    for key in dict.fromkeys(key for trial in trials for key in trial.values):
        values: list[Any] = [trial.values.get(key) for trial in trials]
        places = {text: place for place, text in enumerate(dict.fromkeys(map(str, values)))}
        if len(places) == 1 or key.split(".")[-1] in IRRELEVANT:
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


def start_order(
    prediction: "Prediction",
    failures: Sequence[int],
    *,
    slots: int,
    may_end_early: bool,
    has_more: bool,
    limit_seconds: float = math.inf,
    busy: Seconds | None = None,
    compares_given: bool = False,
) -> list[int]:
    """The order in which trials start on a number of slots, as places in the order in which they are given.

    It is the best order that is found (`best_order`), or longest first if trials `may_end_early` or a search
    `has_more`: then the predicted durations are only upper limits, or not all trials are known. Trials with more failed
    attempts (`failures`, one number per trial) start last. With `compares_given`, the given order is also a candidate.
    """
    places = np.lexsort((-prediction.seconds, np.array(failures)))
    if may_end_early or has_more:
        longest_first: list[int] = places.tolist()
        return longest_first
    best = best_order(
        prediction.seconds[places],
        prediction.draws[:, places],
        slots=slots,
        busy=busy,
        present=np.argsort(places).tolist() if compares_given else (),
        last=sum(map(bool, failures)),
        limit_seconds=limit_seconds,
    )
    order: list[int] = places[best].tolist()
    return order


def best_order(
    expected: Seconds,
    draws: Seconds,
    *,
    slots: int,
    busy: Seconds | None = None,
    present: Sequence[int] = (),
    last: int = 0,
    limit_seconds: float = math.inf,
) -> list[int]:
    """The best order found for trials that are given longest first, as places in the given order.

    `expected` are their expected seconds, of shape (trials,), and `draws` equally probable samples of these, of shape
    (draws, trials). `busy`, of shape (draws, busy slots), are the seconds until these slots are free; by default, all
    are. The `present` order, if there is one, is also a candidate. The `last` trials keep their places behind all
    others. The search uses one half of the draws. Its order is taken only if it is clearly better than the given one on
    the other half, too: an order that is better on few samples by chance is worse on average. If not even this order is
    expected to end within `limit_seconds`, the given one stays: short trials then fill what is left before the limit.
    """
    count, moved = len(expected), len(expected) - last
    if moved < 2 or len(draws) < 2 or count > MAX_PER_SLOT * slots or 2 * draws.size * slots > OPERATIONS:
        return list(range(count))
    loads = np.zeros((slots, len(draws)))
    if busy is not None:
        loads[: busy.shape[1]] = busy.T
    given = np.arange(count)
    multifit = np.concatenate([_multifit(expected[:moved], loads.mean(axis=1)), given[moved:]])
    candidates = np.stack([given, multifit, *([np.array(present)] if len(present) else [])])
    samples, loads = draws.T, np.sort(loads, axis=0)
    found = _search(candidates, samples[:, ::2], loads[:, ::2], moved=moved)
    before, after = _makespans(np.stack([given, found]), samples[:, 1::2], loads[:, 1::2])
    gain = before - after
    needed = max(MIN_GAIN * before.mean(), STANDARD_ERRORS * gain.std() / np.sqrt(len(gain)))
    is_better = gain.mean() > needed and after.mean() <= limit_seconds
    best: list[int] = (found if is_better else given).tolist()
    return best


def remaining_seconds(draws: Seconds, elapsed: Seconds) -> Seconds:
    """Sampled seconds until running trials end, from samples of their durations; both of shape (draws, trials).

    A sample that is not longer than the `elapsed` seconds of its trial (trials,) is replaced by another one that is. If
    none is, the trial is expected to end now.
    """
    remaining = draws - elapsed
    for column in remaining.T:
        longer = column[column > 0]
        column[column <= 0] = np.resize(longer, (column <= 0).sum()) if len(longer) else 0.0
    return remaining


def _search(candidates: Places, samples: Seconds, loads: Seconds, *, moved: int) -> Places:
    """The order found by a local search from the best candidate, or the first one if none is clearly better.

    The search moves or swaps two of the first `moved` trials. It selects the best order of a batch on a part of the
    samples, a different one each time, and accepts it on all of them.
    `samples` are of shape (trials, draws), `loads` of shape (slots, draws), ascending.
    """
    parts = max(1, samples.shape[1] // SEARCH_DRAWS)
    some = [(samples[:, part::parts].copy(), loads[:, part::parts]) for part in range(parts)]
    makespans = _makespans(candidates, samples, loads)
    given = makespans[0].mean()
    best: Places = candidates[makespans.mean(axis=1).argmin()]
    least, enough = makespans.mean(axis=1).min(), _lower_bounds(samples, loads).mean() * (1 + MIN_GAIN)
    generator, failed = np.random.default_rng(0), 0
    for number in range(OPERATIONS // (BATCH * some[0][0].size * len(loads))):
        if least <= enough or failed * BATCH > COVERAGE * 2 * moved**2:
            break
        batch = best[_neighbors(samples.shape[0], moved, generator)]
        found = batch[_makespans(batch, *some[number % parts]).mean(axis=1).argmin()]
        mean = _makespans(found[None], samples, loads).mean()
        failed += 1
        if mean < least:
            best, least, failed = found, mean, 0
    return best if least < given * (1 - MIN_GAIN) else candidates[0]


def _lower_bounds(samples: Seconds, loads: Seconds) -> Seconds:
    """Lower bounds of the makespans: (draws,)."""
    mean = (samples.sum(axis=0) + loads.sum(axis=0)) / len(loads)
    bounds: Seconds = np.maximum.reduce([mean, loads[-1], loads[0] + samples.max(axis=0)])
    return bounds


def _makespans(orders: Places, samples: Seconds, loads: Seconds) -> Seconds:
    """Makespans of `makespan` for each order and draw: (orders, draws)."""
    durations = samples[orders.T].reshape(orders.shape[1], -1)
    ends = [np.tile(slot, len(orders)) for slot in loads]
    for each in durations:
        end = ends[0] + each
        for slot in range(1, len(ends)):  # insert the new end among the others
            ends[slot - 1] = np.minimum(end, ends[slot])
            end = np.maximum(end, ends[slot])
        ends[-1] = end
    return ends[-1].reshape(len(orders), -1)


def _neighbors(count: int, moved: int, generator: np.random.Generator) -> Places:
    """Permutations that swap two of the first `moved` places (one half) or move one of them: (BATCH, count)."""
    first = generator.integers(moved, size=(BATCH, 1))
    second = (first + generator.integers(1, moved, size=(BATCH, 1))) % moved
    places = np.arange(count)
    swapped = np.where(places == first, second, np.where(places == second, first, places))
    is_between = (places >= np.minimum(first, second)) & (places <= np.maximum(first, second))
    shifted = np.where(places == second, first, places + np.where(first < second, is_between, -1 * is_between))
    neighbors: Places = np.where(np.arange(BATCH)[:, None] < BATCH // 2, swapped, shifted)
    return neighbors


def _multifit(expected: Seconds, loads: Seconds) -> Places:
    """Trials, given longest first, in the order in which they start in a MULTIFIT schedule of their durations."""
    mean = float(expected.sum() + loads.sum()) / len(loads)
    low = max(mean, float(loads.max()))
    high = low + float(expected.max())  # fits: the least loaded slot always has room
    starts = _first_fit(expected, loads, high)
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        fitting = _first_fit(expected, loads, middle)
        if fitting is None:
            low = middle
        else:
            high, starts = middle, fitting
    return np.argsort(np.zeros(len(expected)) if starts is None else starts, kind="stable")


def _first_fit(expected: Seconds, loads: Seconds, capacity: float) -> Seconds | None:
    """The start of each trial if each in turn goes to the first slot with room for it; None if there is none."""
    ends, starts = np.sort(loads)[::-1].tolist(), []
    for seconds in expected.tolist():
        slot = next((slot for slot, end in enumerate(ends) if end + seconds <= capacity), None)
        if slot is None:
            return None
        starts.append(ends[slot])
        ends[slot] += seconds
    return np.array(starts)
