"""Early stopping of trials that are worse than others at the same epoch: ASHA and the median stopping rule."""

import math
from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from trainyard.config.sweep import Stop
from trainyard.config.trial_status import TrialStatus
from trainyard.planning.attempts import Attempt


class EarlyStoppingRule:
    """Decides which trials to stop, from the metrics of all trials, also in earlier sessions."""

    def __init__(self, stop: Stop, tries: Iterable[Attempt] = ()) -> None:
        """`tries` are the earlier attempts that `retrain` has not overruled."""
        self._stop = stop
        self._curves: dict[str, _Curve] = defaultdict(_Curve)
        self._rungs: dict[int, list[float]] = defaultdict(list)  # by epoch: values of all trials there, ascending
        self._means: dict[int, list[float]] = {}  # by judged epoch: running means of all trials that reached it
        for attempt in tries:
            for row in attempt.epochs:
                self.verdict(attempt.trial, row)
            if attempt.outcome == TrialStatus.DIVERGED:
                self.diverged(attempt.trial)

    @property
    def content(self) -> dict[str, Any]:
        """What it decides by, for the journal."""
        return self._stop.rule

    def verdict(self, trial: str, row: Mapping[str, Any]) -> str:
        """Why the trial must stop after this epoch; "" if it continues.

        The value of an epoch replaces the one that an earlier attempt reported. A row without the metric is ignored.
        """
        if self._stop.metric not in row:
            return ""
        epoch = int(row["epoch"])
        self._record(trial, epoch, self._value(row))
        return self._judge_asha(trial, epoch) if self._stop.method == "asha" else self._judge_median(trial, epoch)

    def diverged(self, trial: str) -> None:
        """Record that a trial has diverged: it counts as the worst where it would have been judged next."""
        epoch = max(self._curves[trial].last, 0) + 1
        if self._stop.method == "asha":
            epoch = self._rung_from(epoch)
        self._record(trial, epoch, -math.inf)

    def _record(self, trial: str, epoch: int, value: float) -> None:
        """Record a trial's value at an epoch, replacing an earlier one."""
        curve = self._curves[trial]
        earlier = curve.values.get(epoch)
        if earlier == value:
            return
        epochs = curve.affected_by(epoch)
        fewer, others = sorted((epochs, self._means), key=len)
        affected = [at for at in fewer if at in others]
        before = {at: curve.mean(at) for at in affected if curve.covers(at)}
        curve.record(epoch, value)
        for at in affected:
            if at in before:
                _remove(self._means[at], before[at])
            insort(self._means[at], curve.mean(at))
        if self._stop.method != "asha" or not self._is_rung(trial, epoch):
            return
        reached = self._rungs[epoch]
        if earlier is not None:
            _remove(reached, earlier)
        insort(reached, value)

    def _value(self, row: Mapping[str, Any]) -> float:
        """The metric of an epoch, negated if lower is better; the worst value if it is missing or not finite."""
        value = row[self._stop.metric]
        if value is None or not math.isfinite(value):
            return -math.inf
        return float(value if self._stop.mode == "max" else -value)

    def _judge_asha(self, trial: str, epoch: int) -> str:
        """Asynchronous successive halving: Li et al. 2020, "A system for massively parallel hyperparameter tuning".

        A trial that has reached a rung continues if it is among the best 1/reduction of those that have reached it so
        far, rounded down as in the paper, but at least one: trials do not wait for others.
        """
        if not self._is_rung(trial, epoch):
            return ""
        value, reached = self._curves[trial].values[epoch], self._rungs[epoch]
        places = max(1, len(reached) // self._stop.reduction_factor)
        rank = len(reached) - bisect_right(reached, value) + 1
        if rank <= places:
            return ""
        return f"asha: rank {rank} of the {len(reached)} that have reached epoch {epoch}; the best {places} continue"

    def _is_rung(self, trial: str, epoch: int) -> bool:
        return self._rung_from(epoch) == epoch and not self._is_last(trial, epoch)

    def _is_last(self, trial: str, epoch: int) -> bool:
        """Whether a trial is complete after this epoch. Many programs count from 0."""
        return self._stop.epochs in (epoch, epoch + (self._curves[trial].first == 0))

    def _rung_from(self, epoch: int) -> int:
        """The first rung at this epoch or after it."""
        rung = self._stop.grace_period
        while rung < epoch:
            rung *= self._stop.reduction_factor
        return rung

    def _judge_median(self, trial: str, epoch: int) -> str:
        """The median stopping rule: Golovin et al. 2017, "Google Vizier", section 3.2.2."""
        if epoch < self._stop.grace_period or self._is_last(trial, epoch):
            return ""
        if epoch not in self._means:
            so_far = (curve for curve in self._curves.values() if curve.covers(epoch))
            self._means[epoch] = sorted(curve.mean(epoch) for curve in so_far)
        curve, means = self._curves[trial], self._means[epoch]
        others = len(means) - 1
        if others < self._stop.min_samples:
            return ""
        best, median = max(curve.until(epoch)), _median_without(means, curve.mean(epoch))
        if best >= median:
            return ""
        sign = 1 if self._stop.mode == "max" else -1
        limit = f"{sign * median:.4g}, the median of the means of {others} other trials"
        return f"median: its best value by epoch {epoch}, {sign * best:.4g}, is worse than {limit}"


class _Curve:
    """The values that a trial has reported by epoch, higher is better."""

    def __init__(self) -> None:
        self.values: dict[int, float] = {}
        self.first = self.last = -1  # epochs; -1 without values

    def record(self, epoch: int, value: float) -> None:
        """Set the value of an epoch."""
        self.first = min(epoch, self.first) if self.values else epoch
        self.last = max(epoch, self.last)
        self.values[epoch] = value

    def covers(self, epoch: int) -> bool:
        """Whether the trial reached an epoch and had reported a value by then."""
        return bool(self.values) and self.first <= epoch <= self.last

    def affected_by(self, epoch: int) -> range:
        """The epochs up to which the mean changes, or becomes known, with a value at this epoch."""
        start = min(epoch, self.last + 1) if self.values else epoch
        return range(start, max(epoch, self.last) + 1)

    def until(self, epoch: int) -> Sequence[float]:
        """The values up to an epoch."""
        if epoch >= self.last:  # nearly always: of trials with thousands of epochs, this is called for each
            return list(self.values.values())
        return [value for at, value in self.values.items() if at <= epoch]

    def mean(self, epoch: int) -> float:
        """Mean of the values up to an epoch, rounded once: equal values have this mean."""
        values = self.until(epoch)
        try:
            return math.fsum(values) / len(values)
        except OverflowError:  # values near the largest float
            return math.fsum(value / len(values) for value in values)


def _remove(ascending: list[float], value: float) -> None:
    del ascending[bisect_left(ascending, value)]


def _median_without(ascending: Sequence[float], one: float) -> float:
    """The median of all values but `one`, which is one of them."""
    place, count = bisect_left(ascending, one), len(ascending) - 1
    low, high = ((middle + (middle >= place)) for middle in ((count - 1) // 2, count // 2))
    return ascending[low] / 2 + ascending[high] / 2  # without overflow
