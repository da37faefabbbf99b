"""Early stopping of trials that are worse than others: ASHA, Hyperband and the median rule."""

import math
import zlib
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import Final

from trainyard.config.metric_names import Mode
from trainyard.config.sweep import Score, Stop
from trainyard.config.trial_status import TrialStatus
from trainyard.planning.attempts import Attempt
from trainyard.planning.history import History
from trainyard.planning.journal import Ended, Epoch, Row, TrialEvent
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
        self._elsewhere: dict[str, Row] = {}  # the last row of each trial that another job runs
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

    def _record(self, trial: str, row: Row, *, is_judged: bool = False) -> bool:
        """Record the value of an epoch; returns whether there is one."""
        if self._metric not in row:
            return False
        epoch = row["epoch"]
        if self._judge(trial).record(trial, epoch, row[self._metric], is_judged=is_judged):
            self._unjudged[trial].add(epoch)
        if is_judged:
            self._unjudged[trial] = {at for at in self._unjudged[trial] if at > epoch}
        return True

    def verdict(self, trial: str, row: Row) -> str:
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

    def awaits_verdict(self, trial: str, row: Row) -> bool:
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
    """ASHA and the median rule. A verdict looks at what each trial is compared by at the epoch."""

    def __init__(self, stop: Stop, mode: Mode, score: Score) -> None:
        self._stop = stop
        self._mode = mode
        self._score = score
        self._curves: dict[str, _Curve] = defaultdict(lambda: _Curve(self._score_of))
        self._judged: set[tuple[str, int]] = set()  # for `asha`: trials and the rungs at which they were judged

    def verdict(self, trial: str, epoch: float) -> str:
        if self._stop.is_last(epoch, self._curves[trial].epochs[0]):
            return ""
        return self._judge_median(trial, epoch) if self._stop.method == "median" else self._judge_asha(trial, epoch)

    def awaits_verdict(self, trial: str, epoch: float) -> bool:
        if self._stop.method == "median":
            return epoch >= self._stop.grace_period
        return (rung := self._rung_at(epoch)) > 0 and (trial, rung) not in self._judged

    def end(self, trial: str, status: TrialStatus) -> None:
        """A trial that has diverged counts as the worst where it would have been judged next."""
        if status != TrialStatus.DIVERGED:
            return
        curve = self._curves[trial]
        last = curve.epochs[-1] if curve.epochs else 0
        if self._stop.method == "median":
            curve.record(last + 1, -math.inf)
            return
        rung = self._rung_at(last)
        next_rung = rung * self._stop.reduction_factor if rung else self._stop.grace_period
        curve.record(next_rung, -math.inf)

    def record(self, trial: str, epoch: float, value: float | None, *, is_judged: bool) -> bool:
        """Record the value of an epoch; what is no number is worst. Returns whether it is another one than before."""
        worth = -math.inf
        if value is not None and math.isfinite(value):
            worth = value if self._mode == "max" else -value
        if is_judged:
            self._judged.add((trial, self._rung_at(epoch)))
        return self._curves[trial].record(epoch, worth)

    def _score_of(self, values: Sequence[float]) -> float:
        """What a trial with these values is compared by: for `median` their mean, for `asha` the score of the sweep."""
        if self._stop.method == "median":
            return _mean(values)
        if values[-1] == -math.inf:  # a trial that has diverged is the worst
            return -math.inf
        return score_of(values, self._score, "max")

    def _judge_asha(self, trial: str, epoch: float) -> str:
        """Asynchronous successive halving: Li et al. 2020, "A system for massively parallel hyperparameter tuning".

        A trial that has reached a rung continues if it is among the best 1/reduction of those that have reached it so
        far, rounded down as in the paper, but at least one: trials do not wait for others. A trial that does not report
        the epoch of the rung is judged by its first report after it, and compared with the last values that others had
        reported since the rung by then.
        """
        rung = self._rung_at(epoch)
        curve = self._curves[trial]
        if not rung:
            return ""
        first = curve.epochs[curve.before(rung)]
        if first < epoch and (trial, rung) in self._judged:
            return ""
        self._judged.add((trial, rung))
        scores = [other.score(first) for other in self._curves.values() if other.up_to(first) > other.before(rung)]
        places = max(1, len(scores) // self._stop.reduction_factor)
        own = curve.score(first)
        rank = sum(score > own for score in scores) + 1
        if rank <= places:
            return ""
        reason = f"rank {rank} of the {len(scores)} that have reached epoch {first}; the best {places} continue"
        return f"{self._stop.method}: {reason}"

    def _rung_at(self, epoch: float) -> int:
        """The last rung at this epoch or before it; 0 before the first one."""
        rung = self._stop.grace_period
        while rung * self._stop.reduction_factor <= epoch:
            rung *= self._stop.reduction_factor
        return rung if rung <= epoch else 0

    def _judge_median(self, trial: str, epoch: float) -> str:
        """The median stopping rule: Golovin et al. 2017, "Google Vizier", section 3.2.2."""
        curve = self._curves[trial]
        if epoch < self._stop.grace_period:
            return ""
        others = [other for other in self._curves.values() if other is not curve]
        reached = [other for other in others if other.epochs and other.epochs[0] <= epoch <= other.epochs[-1]]
        count = len(reached)
        if count < MEDIAN_TRIALS:
            return ""
        means = sorted(other.score(epoch) for other in reached)
        median = means[(count - 1) // 2] / 2 + means[count // 2] / 2  # without overflow
        best = max(curve.values[: curve.up_to(epoch)])
        if best >= median:
            return ""
        sign = 1 if self._mode == "max" else -1
        limit = f"{sign * median:.4g}, the median of the means of {count} other trials"
        return f"median: its best value by epoch {epoch}, {sign * best:.4g}, is worse than {limit}"


class _Curve:
    """The values that a trial has reported, by ascending epochs; higher is better."""

    def __init__(self, score_of: Callable[[Sequence[float]], float]) -> None:
        self.epochs: list[float] = []
        self.values: list[float] = []
        self._score_of = score_of
        self._scores: list[float | None] = []  # of the values up to each epoch, once asked for

    def record(self, epoch: float, value: float) -> bool:
        """Set the value of an epoch; returns whether it is another one than before."""
        index = self.before(epoch)
        end = self.up_to(epoch)
        if self.values[index:end] == [value]:
            return False
        self.epochs[index:end] = [epoch]
        self.values[index:end] = [value]
        self._scores[index:] = [None] * (len(self.values) - index)
        return True

    def score(self, epoch: float) -> float:
        """What the trial is compared by at an epoch: the score of its values up to there, of which it has one."""
        last = self.up_to(epoch) - 1
        score = self._scores[last]
        if score is None:
            score = self._scores[last] = self._score_of(self.values[: last + 1])
        return score

    def before(self, epoch: float) -> int:
        """How many values it has before an epoch."""
        return bisect_left(self.epochs, epoch)

    def up_to(self, epoch: float) -> int:
        """How many values it has up to an epoch."""
        return bisect_right(self.epochs, epoch)


def _mean(values: Sequence[float]) -> float:
    """The mean, rounded once: that of equal values is this value."""
    try:
        return math.fsum(values) / len(values)
    except OverflowError:  # values near the largest float
        return math.fsum(value / len(values) for value in values)
