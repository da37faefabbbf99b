"""Early stopping of trials that are worse than others: ASHA, Hyperband and the median rule."""

import math
import zlib
from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any, Final

from trainyard.config.metric_names import Mode
from trainyard.config.sweep import Score, Stop
from trainyard.config.trial_status import TrialStatus
from trainyard.planning.attempts import Attempt
from trainyard.planning.history import History
from trainyard.planning.journal import Ended, Epoch, TrialEvent
from trainyard.planning.trial_value import score_of

MEDIAN_TRIALS: Final = 5  # others that must have reached an epoch, of which the median is taken


class EarlyStoppingRule:
    """Decides which trials to stop, from the metrics of all trials, also in earlier sessions."""

    def __init__(
        self,
        stop: Stop,
        metric: str,
        mode: Mode,
        tries: Iterable[Attempt] = (),
        *,
        score: Score = "last",
        is_ignored: Callable[[str], bool] = lambda trial: False,
    ) -> None:
        """`tries` are the earlier attempts that `retrain` has not overruled.

        Trials of which `is_ignored` is true are neither compared nor stopped.
        """
        self._metric = metric
        self._is_ignored = is_ignored
        self.content = stop.rule(metric, mode, score)  # what it decides by, for the journal
        first = stop.grace_period
        factor = stop.reduction_factor
        rungs = [first]  # at which trials are first compared: of each bracket
        while stop.method == "hyperband" and rungs[-1] * factor <= (stop.epochs or 0):
            rungs.append(rungs[-1] * factor)
        self._unjudged: dict[str, set[float]] = defaultdict(set)  # epochs of each trial
        self._elsewhere: dict[str, Mapping[str, Any]] = {}  # the last row of each trial that another job runs
        count = len(rungs)
        stops = [stop.model_copy(update={"grace_period": rung}) for rung in rungs]
        self._brackets = [_Comparison(each, mode, score) for each in stops]
        self._shares = list(accumulate(math.ceil(count * factor**left / (left + 1)) for left in reversed(range(count))))
        for attempt in tries:
            for row in attempt.epochs:
                time = attempt.epoch_times.get(row["epoch"], attempt.end)
                was_seen = time < attempt.end  # not only found in its output
                self._record(attempt.trial, row, is_judged=was_seen and not (attempt.why or attempt.rule))
            if attempt.why or attempt.rule:  # by another rule: only its last rung of `asha` decides again
                self._unjudged.pop(attempt.trial, None)
            self._judge(attempt.trial).end(attempt.trial, attempt.outcome)

    @classmethod
    def of(cls, history: History) -> "EarlyStoppingRule | None":
        """The rule of a sweep, with the epochs of all attempts that `retrain` has not overruled; None without one.

        Further seeds of the best are neither stopped nor compared with others.
        """
        if history.stop is None:
            return None
        compared = [record for record in history.records if record.name not in history.space.further]
        attempts = [attempt for record in compared for attempt in record.current]
        return cls(
            history.stop,
            *history.sweep.compared_by,
            attempts,
            score=history.sweep.score,
            is_ignored=lambda trial: trial in history.space.further,
        )

    def bracket(self, trial: str) -> int:
        """Of `hyperband`, the bracket of a trial: the first ones have more trials (Li et al. 2018).

        Optuna finds it by the number of a trial in a study, which may be another one in another job.
        """
        return bisect_right(self._shares, zlib.crc32(trial.encode()) % self._shares[-1])

    def _judge(self, trial: str) -> "_Comparison":
        return self._brackets[self.bracket(trial)]

    def _record(self, trial: str, row: Mapping[str, Any], *, is_judged: bool = False) -> bool:
        """Record the value of an epoch; returns whether there is one."""
        if self._metric not in row:
            return False
        epoch = row["epoch"]
        if self._judge(trial).record(trial, epoch, row[self._metric], is_judged=is_judged):
            self._unjudged[trial].add(epoch)
        if is_judged:
            self._unjudged[trial] = {at for at in self._unjudged[trial] if at > epoch}
        return True

    def verdict(self, trial: str, row: Mapping[str, Any]) -> str:
        """Why the trial must stop after this epoch; "" if it continues.

        The value of an epoch replaces the one that an earlier attempt reported. If it is the same, it is not judged
        again: a program that resumes may report what its file already has. A row without the metric is ignored.
        Earlier epochs that were not judged decide, too: the driver may have been killed after the one that stops it.
        """
        if self._is_ignored(trial) or not self._record(trial, row):
            return ""
        due = sorted(at for at in self._unjudged[trial] if at <= row["epoch"])
        self._unjudged[trial].difference_update(due)
        judge = self._judge(trial)
        return next(filter(None, (judge.verdict(trial, epoch) for epoch in due)), "")

    def awaits_verdict(self, trial: str, row: Mapping[str, Any]) -> bool:
        """Whether `verdict` would compare the trial with others at this epoch, for the first time with `asha`."""
        if self._is_ignored(trial) or self._metric not in row:
            return False
        return self._judge(trial).awaits_verdict(trial, row["epoch"])

    def on_event(self, event: TrialEvent, attempt: Attempt | None = None, *, is_own: bool) -> None:
        """Record an event of a trial in this job or in another one.

        An epoch was judged there if the same attempt goes on, or ends; otherwise, that job may have been killed before.
        """
        if self._is_ignored(event.trial):
            return
        before = self._elsewhere.pop(event.trial, None)
        if before and not is_own and isinstance(event, (Epoch, Ended)):
            self._record(event.trial, before, is_judged=True)
        match event:
            case Epoch(metrics=row):
                self._record(event.trial, row)
                if not is_own:
                    self._elsewhere[event.trial] = row
            case Ended(status=status):
                self._judge(event.trial).end(event.trial, status)


class _Comparison:
    """ASHA and the median rule. A verdict looks at a sorted list of what trials have at the epoch."""

    def __init__(self, stop: Stop, mode: Mode, score: Score) -> None:
        self._stop = stop
        self._mode = mode
        self._score = score
        self._curves: dict[str, _Curve] = defaultdict(_Curve)
        # By judged epoch: what each trial that has reached it is compared by there, ascending; see `_standing`.
        self._standings: dict[float, list[float]] = {}
        self._judged_epochs: list[float] = []  # those of `_standings`, ascending
        self._judged: set[tuple[str, int]] = set()  # for `asha`: trials and the rungs at which they were judged

    def verdict(self, trial: str, epoch: float) -> str:
        return self._judge_median(trial, epoch) if self._stop.method == "median" else self._judge_asha(trial, epoch)

    def awaits_verdict(self, trial: str, epoch: float) -> bool:
        if self._stop.method == "median":
            return epoch >= self._stop.grace_period
        return (rung := self._rung_at(epoch)) > 0 and (trial, rung) not in self._judged

    def end(self, trial: str, status: TrialStatus) -> None:
        """A trial that has diverged counts as the worst where it would have been judged next."""
        if status != TrialStatus.DIVERGED:
            return
        last = max(self._curves[trial].last, 0)
        if self._stop.method == "median":
            self._set_value(trial, last + 1, -math.inf)
            return
        rung = self._rung_at(last)
        next_rung = rung * self._stop.reduction_factor if rung else self._stop.grace_period
        self._set_value(trial, next_rung, -math.inf)

    def record(self, trial: str, epoch: float, value: float | None, *, is_judged: bool) -> bool:
        """Record the value of an epoch; what is no number is worst. Returns whether it is another one than before."""
        worth = -math.inf
        if value is not None and math.isfinite(value):
            worth = value if self._mode == "max" else -value
        is_new = self._curves[trial].values.get(epoch) != worth
        self._set_value(trial, epoch, worth)
        if is_judged:
            self._judged.add((trial, self._rung_at(epoch)))
        return is_new

    def _set_value(self, trial: str, epoch: float, value: float) -> None:
        """Set a trial's value at an epoch, where higher is better, and update the standings that it changes."""
        curve = self._curves[trial]
        if curve.values.get(epoch) == value:
            return
        if self._stop.method == "median":
            affected = self._median_epochs(curve, epoch)
        else:
            is_of_rung = self._score == "last"
            next_rung = self._rung_at(epoch) * self._stop.reduction_factor if is_of_rung else math.inf
            affected = [at for at in self._standings if epoch <= at < next_rung]
        before = {at: self._standing(curve, at) for at in affected}
        curve.record(epoch, value)
        for at in affected:
            if (old := before[at]) is not None:
                del self._standings[at][bisect_left(self._standings[at], old)]
            if (new := self._standing(curve, at)) is not None:
                insort(self._standings[at], new)

    def _median_epochs(self, curve: "_Curve", epoch: float) -> Sequence[float]:
        """The judged epochs at which the mean of a trial changes, or becomes known, with a value at an epoch."""
        epochs = self._judged_epochs
        start = bisect_left(epochs, epoch)
        if curve.values:
            start = min(start, bisect_right(epochs, curve.last))
        return epochs[start : bisect_right(epochs, max(epoch, curve.last))]

    def _standing(self, curve: "_Curve", epoch: float) -> float | None:
        """What a trial is compared by at an epoch: for `asha` its last score since the rung, for `median` a mean.

        None if it has not reached the epoch.
        """
        if self._stop.method == "median":
            return curve.mean(epoch) if curve.covers(epoch) else None
        rung = self._rung_at(epoch)
        latest = max((at for at in curve.values if rung <= at <= epoch), default=None)
        return None if latest is None else self._score_at(curve, latest)

    def _score_at(self, curve: "_Curve", epoch: float) -> float:
        """The score of a trial by its values up to an epoch, of which it has one."""
        value = curve.values[epoch]
        if self._score == "last" or value == -math.inf:  # a trial that has diverged is the worst
            return value
        return score_of([curve.values[at] for at in sorted(curve.values) if at <= epoch], self._score, "max")

    def _standings_at(self, epoch: float) -> list[float]:
        """The standings of all trials at an epoch."""
        if epoch not in self._standings:
            found = (self._standing(curve, epoch) for curve in self._curves.values())
            self._standings[epoch] = sorted(value for value in found if value is not None)
            insort(self._judged_epochs, epoch)
        return self._standings[epoch]

    def _judge_asha(self, trial: str, epoch: float) -> str:
        """Asynchronous successive halving: Li et al. 2020, "A system for massively parallel hyperparameter tuning".

        A trial that has reached a rung continues if it is among the best 1/reduction of those that have reached it so
        far, rounded down as in the paper, but at least one: trials do not wait for others. A trial that does not report
        the epoch of the rung is judged by its first report after it, and compared with the last values that others had
        reported since the rung by then.
        """
        rung = self._rung_at(epoch)
        values = self._curves[trial].values
        if not rung or self._stop.is_last(epoch, self._curves[trial].first):
            return ""
        first = min(at for at in values if rung <= at <= epoch)
        if first < epoch and (trial, rung) in self._judged:
            return ""
        self._judged.add((trial, rung))
        value = self._score_at(self._curves[trial], first)
        reached = self._standings_at(first)
        places = max(1, len(reached) // self._stop.reduction_factor)
        rank = len(reached) - bisect_right(reached, value) + 1
        if rank <= places:
            return ""
        reason = f"rank {rank} of the {len(reached)} that have reached epoch {first}; the best {places} continue"
        return f"{self._stop.method}: {reason}"

    def _rung_at(self, epoch: float) -> int:
        """The last rung at this epoch or before it; 0 before the first one."""
        rung = self._stop.grace_period
        while rung * self._stop.reduction_factor <= epoch:
            rung *= self._stop.reduction_factor
        return rung if rung <= epoch else 0

    def _judge_median(self, trial: str, epoch: float) -> str:
        """The median stopping rule: Golovin et al. 2017, "Google Vizier", section 3.2.2."""
        if epoch < self._stop.grace_period or self._stop.is_last(epoch, self._curves[trial].first):
            return ""
        curve = self._curves[trial]
        means = self._standings_at(epoch)
        others = len(means) - 1
        if others < MEDIAN_TRIALS:
            return ""
        best = max(curve.until(epoch))
        median = _median_without(means, curve.mean(epoch))
        if best >= median:
            return ""
        sign = 1 if self._mode == "max" else -1
        limit = f"{sign * median:.4g}, the median of the means of {others} other trials"
        return f"median: its best value by epoch {epoch}, {sign * best:.4g}, is worse than {limit}"


class _Curve:
    """The values that a trial has reported by epoch, higher is better."""

    def __init__(self) -> None:
        self.values: dict[float, float] = {}
        self.first: float = -1  # epoch; -1 without values
        self.last: float = -1

    def record(self, epoch: float, value: float) -> None:
        """Set the value of an epoch."""
        self.first = min(epoch, self.first) if self.values else epoch
        self.last = max(epoch, self.last)
        self.values[epoch] = value

    def covers(self, epoch: float) -> bool:
        """Whether the trial reached an epoch and had reported a value by then."""
        return bool(self.values) and self.first <= epoch <= self.last

    def until(self, epoch: float) -> Sequence[float]:
        """The values up to an epoch."""
        if epoch >= self.last:  # nearly always: of trials with thousands of epochs, this is called for each
            return list(self.values.values())
        return [value for at, value in self.values.items() if at <= epoch]

    def mean(self, epoch: float) -> float:
        """Mean of the values up to an epoch, rounded once: equal values have this mean."""
        values = self.until(epoch)
        try:
            return math.fsum(values) / len(values)
        except OverflowError:  # values near the largest float
            return math.fsum(value / len(values) for value in values)


def _median_without(ascending: Sequence[float], one: float) -> float:
    """The median of all values but `one`, which is one of them."""
    place = bisect_left(ascending, one)
    count = len(ascending) - 1
    low, high = ((middle + (middle >= place)) for middle in ((count - 1) // 2, count // 2))
    return ascending[low] / 2 + ascending[high] / 2  # without overflow
