"""Early stopping of trials that are worse than others at the same epoch: ASHA and the median stopping rule."""

import math
from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from trainyard.config.metric_names import Mode
from trainyard.config.sweep import Stop
from trainyard.config.trial_status import TrialStatus
from trainyard.planning.attempts import Attempt
from trainyard.planning.journal import Ended, Epoch, TrialEvent


class EarlyStoppingRule:
    """Decides which trials to stop, from the metrics of all trials, also in earlier sessions."""

    def __init__(self, stop: Stop, metric: str, mode: Mode, tries: Iterable[Attempt] = ()) -> None:
        """`tries` are the earlier attempts that `retrain` has not overruled."""
        self._stop, self._metric, self._mode = stop, metric, mode
        self.content = stop.rule(metric, mode)  # what it decides by, for the journal
        self._curves: dict[str, _Curve] = defaultdict(_Curve)
        # By judged epoch: what each trial that has reached it is compared by there, ascending; see `_standing`.
        self._standings: dict[int, list[float]] = {}
        self._judged: set[tuple[str, int]] = set()  # for `asha`: trials and the rungs at which they were judged
        for attempt in tries:
            for row in attempt.epochs:
                if not self._record(attempt.trial, row) or attempt.early or attempt.rule:
                    continue  # without a value, or not judged by this rule
                if attempt.epoch_times.get(row["epoch"], attempt.end) < attempt.end:  # not only found in its output
                    self._judged.add((attempt.trial, self._rung_at(int(row["epoch"]))))
            if attempt.outcome == TrialStatus.DIVERGED:
                self.diverged(attempt.trial)

    def verdict(self, trial: str, row: Mapping[str, Any]) -> str:
        """Why the trial must stop after this epoch; "" if it continues.

        The value of an epoch replaces the one that an earlier attempt reported. A row without the metric is ignored.
        """
        if not self._record(trial, row):
            return ""
        epoch = int(row["epoch"])
        return self._judge_asha(trial, epoch) if self._stop.method == "asha" else self._judge_median(trial, epoch)

    def awaits_verdict(self, trial: str, row: Mapping[str, Any]) -> bool:
        """Whether `verdict` would compare the trial with others at this epoch, for the first time with `asha`."""
        if self._metric not in row:
            return False
        epoch = int(row["epoch"])
        if self._stop.method == "median":
            return epoch >= self._stop.grace_period
        return (rung := self._rung_at(epoch)) > 0 and (trial, rung) not in self._judged

    def note_elsewhere(self, event: TrialEvent) -> None:
        """Record an event of a trial in another job, which its own job has judged."""
        match event:
            case Epoch(metrics=row):
                self._record(event.trial, row)
            case Ended(status=TrialStatus.DIVERGED):
                self.diverged(event.trial)

    def diverged(self, trial: str) -> None:
        """Record that a trial has diverged: it counts as the worst where it would have been judged next."""
        epoch = max(self._curves[trial].last, 0) + 1
        if self._stop.method == "asha":
            rung = self._rung_at(epoch) or self._stop.grace_period
            epoch = rung if rung >= epoch else rung * self._stop.reduction_factor
        self._set_value(trial, epoch, -math.inf)

    def _record(self, trial: str, row: Mapping[str, Any]) -> bool:
        """Record the value of an epoch; returns whether there is one."""
        if self._metric not in row:
            return False
        value = row[self._metric]
        if value is None or not math.isfinite(value):
            value = -math.inf
        elif self._mode == "min":
            value = -value
        self._set_value(trial, int(row["epoch"]), float(value))
        return True

    def _set_value(self, trial: str, epoch: int, value: float) -> None:
        """Set a trial's value at an epoch, where higher is better, and update the standings that it changes."""
        curve = self._curves[trial]
        if curve.values.get(epoch) == value:
            return
        if self._stop.method == "asha":
            next_rung = self._rung_at(epoch) * self._stop.reduction_factor
            affected = [at for at in self._standings if epoch <= at < next_rung]
        else:
            fewer, others = sorted((curve.affected_by(epoch), self._standings), key=len)
            affected = [at for at in fewer if at in others]
        before = {at: self._standing(curve, at) for at in affected}
        curve.record(epoch, value)
        for at in affected:
            if (old := before[at]) is not None:
                del self._standings[at][bisect_left(self._standings[at], old)]
            if (new := self._standing(curve, at)) is not None:
                insort(self._standings[at], new)

    def _standing(self, curve: "_Curve", epoch: int) -> float | None:
        """What a trial is compared by at an epoch: for `asha` its last value since the rung, for `median` its mean.

        None if it has not reached the epoch.
        """
        if self._stop.method == "median":
            return curve.mean(epoch) if curve.covers(epoch) else None
        rung = self._rung_at(epoch)
        latest = max((at for at in curve.values if rung <= at <= epoch), default=None)
        return None if latest is None else curve.values[latest]

    def _standings_at(self, epoch: int) -> list[float]:
        """The standings of all trials at an epoch."""
        if epoch not in self._standings:
            found = (self._standing(curve, epoch) for curve in self._curves.values())
            self._standings[epoch] = sorted(value for value in found if value is not None)
        return self._standings[epoch]

    def _judge_asha(self, trial: str, epoch: int) -> str:
        """Asynchronous successive halving: Li et al. 2020, "A system for massively parallel hyperparameter tuning".

        A trial that has reached a rung continues if it is among the best 1/reduction of those that have reached it so
        far, rounded down as in the paper, but at least one: trials do not wait for others. A trial that does not report
        the epoch of the rung is judged by its first report after it, and compared with the last values that others had
        reported since the rung by then.
        """
        rung, values = self._rung_at(epoch), self._curves[trial].values
        if not rung or self._is_last(trial, epoch):
            return ""
        first = min(at for at in values if rung <= at <= epoch)
        if first < epoch and (trial, rung) in self._judged:
            return ""
        self._judged.add((trial, rung))
        value, reached = values[first], self._standings_at(first)
        places = max(1, len(reached) // self._stop.reduction_factor)
        rank = len(reached) - bisect_right(reached, value) + 1
        if rank <= places:
            return ""
        return f"asha: rank {rank} of the {len(reached)} that have reached epoch {first}; the best {places} continue"

    def _is_last(self, trial: str, epoch: int) -> bool:
        """Whether a trial is complete after this epoch. Many programs count from 0."""
        return self._stop.epochs in (epoch, epoch + (self._curves[trial].first == 0))

    def _rung_at(self, epoch: int) -> int:
        """The last rung at this epoch or before it; 0 before the first one."""
        rung = self._stop.grace_period
        while rung * self._stop.reduction_factor <= epoch:
            rung *= self._stop.reduction_factor
        return rung if rung <= epoch else 0

    def _judge_median(self, trial: str, epoch: int) -> str:
        """The median stopping rule: Golovin et al. 2017, "Google Vizier", section 3.2.2."""
        if epoch < self._stop.grace_period or self._is_last(trial, epoch):
            return ""
        curve, means = self._curves[trial], self._standings_at(epoch)
        others = len(means) - 1
        if others < self._stop.min_samples:
            return ""
        best, median = max(curve.until(epoch)), _median_without(means, curve.mean(epoch))
        if best >= median:
            return ""
        sign = 1 if self._mode == "max" else -1
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


def _median_without(ascending: Sequence[float], one: float) -> float:
    """The median of all values but `one`, which is one of them."""
    place, count = bisect_left(ascending, one), len(ascending) - 1
    low, high = ((middle + (middle >= place)) for middle in ((count - 1) // 2, count // 2))
    return ascending[low] / 2 + ascending[high] / 2  # without overflow
