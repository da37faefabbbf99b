"""What a trial's value is, when the trial reported it, and how far the trial came: the one place that says so.

Ranking, answer, tables, plots, search and best.yaml take it from here.
"""

import math
import operator
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from trainyard.config.metric_names import DURATION, Mode
from trainyard.config.sweep import Mean, Score
from trainyard.config.trials import early_end
from trainyard.planning.attempts import Attempt, whole_seconds
from trainyard.planning.history import History
from trainyard.programs.metric_rows import BURST_ROWS, Row
from trainyard.programs.progress import Progress
from trainyard.utils.text import count_of


@dataclass(frozen=True)
class TrialWork:
    """How far a trial with a result came."""

    last_epoch: float | None = None  # that it reported; None without any
    epochs: float | None = None  # in all, by its config or by what it printed; without these, the last one
    progress: Progress | None = None  # the last that it printed
    ended_by_patience: bool = False  # in Trainyard's own loop, or a fit of trees
    best_round: float | None = None  # of a fit of trees that ended so: the last round of the model that it kept
    units: Mapping[str, str] = field(default_factory=dict)  # of its metrics; "" for those without
    began_late_at: float | None = None  # its first epoch, if others began with an earlier one
    hidden_error: str = ""  # at the end of its output, although it succeeded
    began_again_after: float | None = None  # the epoch before it reported an earlier one again, as a further training


@dataclass(frozen=True)
class EpochValue:
    """A value of a metric, and the epoch that it was reported with."""

    value: float
    epoch: float


@dataclass(frozen=True)
class TrialValue:
    """The value of a metric by which a trial counts."""

    value: float  # NaN if it is no finite number
    work: TrialWork = TrialWork()
    epoch: float | None = None  # that it was reported with; None if the trial did not report the metric by epochs
    best: EpochValue | None = None  # of all epochs, the first one of several; None likewise
    score: Score = "last"
    count: int = 1  # of the values of which it is the mean
    is_of_some: bool = False  # whether the program reported more epochs than are kept, so that others may be better

    @property
    def was_better(self) -> bool:
        """Whether an earlier epoch had a better value."""
        return self.best is not None and self.best.value != self.value

    @property
    def when(self) -> str:
        """The epoch of the value, as in ` at its last epoch, 6 of 6`; "" if it has none."""
        if self.epoch is None:
            return ""
        of = ""
        progress = self.work.progress
        if self.work.epochs is not None:
            of = f" of {self.work.epochs:.6g}"
        if progress and progress.begins_at_0 and progress.number == self.work.last_epoch:
            of += " counted from 0"
        at = f"{self.epoch:.6g}{of}"
        if self.score == "best":
            return f", its best, at epoch {at}"
        if self.score != "last":
            return f", the mean of its last {count_of(self.count, 'value')}, up to epoch {at}"
        report = "last epoch," if self.epoch == self.work.last_epoch else "last report, epoch"
        if self.epoch == self.work.best_round:
            report = "best round,"
        return f" at its {report} {at}"


def describe_score(score: Score) -> str:
    """Of which epoch values are, as in `last epoch`."""
    return f"mean of the last {score.mean} epochs" if isinstance(score, Mean) else f"{score} epoch"


def score_of(values: Sequence[float], score: Score, mode: Mode) -> float:
    """What a trial counts by, of the values of its epochs, in their order."""
    if isinstance(score, Mean):
        return statistics.fmean(values[-score.mean :])
    if score == "last":
        return values[-1]
    return max(values) if mode == "max" else min(values)


def reported_metrics(state: History, attempt: Attempt) -> dict[str, float]:
    """The last value of each metric that a trial reported, None for NaN and infinity.

    `seconds` is the duration of the trial, unless a program reports its own; Trainyard's loop reports that of an epoch.
    """
    seconds = whole_seconds(state.record(attempt.trial).attempts, attempt)
    values = {} if seconds is None else {DURATION: seconds}
    return attempt.metrics | values if state.sweep.trains else values | attempt.metrics


def judged_metrics(state: History, attempt: Attempt, metric: str, mode: Mode) -> dict[str, float]:
    """The value of each metric by which trials are compared, by the `score` of the sweep; NaN for no finite number.

    The best epoch is that of the `metric` which ranks trials.
    """
    reported = reported_metrics(state, attempt)
    values = {name: math.nan if value is None else float(value) for name, value in reported.items()}
    if isinstance(state.sweep.score, Mean):
        return {name: _score(state, attempt, values, name, mode).value for name in values}
    if state.sweep.score == "best" and metric in values:
        best = _score(state, attempt, values, metric, mode)
        rows = [
            row
            for row in _epochs_of(state, attempt, metric)
            if (row["epoch"], row.get(metric)) == (best.epoch, best.value)
        ]
        values |= {name: _number(row[name]) for row in rows for name in row.keys() & values.keys() - {DURATION}}
    return values


def value_of(state: History, attempt: Attempt, metric: str, mode: Mode) -> TrialValue | None:
    """The value of a metric that a trial has by an attempt with a result; None if it has not reported the metric."""
    reported = reported_metrics(state, attempt)
    if metric not in reported:
        return None
    return replace(_score(state, attempt, reported, metric, mode), work=work_of(state, attempt))


def _score(state: History, attempt: Attempt, reported: Mapping[str, float], metric: str, mode: Mode) -> TrialValue:
    """The value of a metric by the `score` of the sweep; `reported` has the last one."""
    score = state.sweep.score
    value = _number(reported[metric])
    rows = _epochs_of(state, attempt, metric)
    reports = [EpochValue(_number(row[metric]), row["epoch"] or 0) for row in rows if metric in row]
    finite = [report for report in reports if math.isfinite(report.value)]
    if not finite:
        return TrialValue(value)
    best = (max if mode == "max" else min)(finite, key=lambda report: report.value)
    if isinstance(score, Mean):
        values = [report.value for report in reports[-score.mean :]]
        mean = score_of(values, score, mode)
        return TrialValue(
            mean, epoch=reports[-1].epoch, best=best, score=score, count=len(values), is_of_some=_has_gaps(rows)
        )
    if score == "best":
        # A program may report a further value at its end.
        if math.isfinite(value) and score_of([best.value, value], score, mode) != best.value:
            return TrialValue(value)
        return TrialValue(best.value, epoch=best.epoch, best=best, score=score, is_of_some=_has_gaps(rows))
    if len(finite) < 2 or finite[-1].value != value:
        return TrialValue(value)
    return TrialValue(value, epoch=finite[-1].epoch, best=best)


def _number(value: float | None) -> float:
    return math.nan if value is None or not math.isfinite(value) else float(value)


def _has_gaps(rows: Sequence[Row]) -> bool:
    """Whether some epochs are left out, as of a program that reports many a second: not of the first or last ones."""
    if len(rows) < BURST_ROWS:
        return False
    epochs = [row["epoch"] or 0 for row in rows]
    steps = list(map(operator.sub, epochs[1:], epochs))
    return bool(max(steps) > min(steps[0], steps[-2]))  # the last epoch may come sooner


def _epochs_of(state: History, attempt: Attempt, metric: str) -> list[Row]:
    """The epochs of a trial, up to the last one of a model that is not kept whole; none for its duration."""
    if metric == DURATION:
        return []
    rows = [row for row in state.record(attempt.trial).epochs_of(attempt) if "epoch" in row]
    any_spec = next(iter(state.trials.values())).spec  # the config may not have this trial any more
    best_round = attempt.metrics.get(any_spec.best_epoch)
    return rows if best_round is None else [row for row in rows if row["epoch"] <= best_round]


def work_of(state: History, attempt: Attempt) -> TrialWork:
    """How far a trial came by an attempt with a result."""
    record = state.record(attempt.trial)
    spec = record.trial.spec
    tries = [attempt, *record.continued_by(attempt)]
    last_epoch = next((each.epochs[-1].get("epoch") for each in tries if each.epochs), None)
    progress = next((each.progress for each in tries if each.progress), None)
    epochs = spec.epochs or last_epoch
    if spec.epochs is None and progress and progress.number == last_epoch:
        epochs = progress.total
    units = {name: attempt.units.get(name, "") for name in attempt.metrics}
    hidden_error = attempt.hidden_error
    if state.sweep.completion:  # which says what complete is
        progress, hidden_error = None, ""
    best_round = attempt.metrics.get(spec.best_epoch) if spec.best_epoch else None
    has_order = state.sweep.program_metrics is None or not state.sweep.program_metrics.has_event_files
    return TrialWork(
        last_epoch,
        epochs,
        progress,
        ended_by_patience=early_end(spec, attempt.metrics) is not None,
        best_round=best_round,
        units=units,
        began_late_at=record.first_epoch if state.first_epoch < record.first_epoch < math.inf else None,
        hidden_error=hidden_error,
        began_again_after=next(filter(None, map(_find_new_beginning, tries)), None) if has_order else None,
    )


def _find_new_beginning(attempt: Attempt) -> float | None:
    """The epoch after which an attempt reported its first one again, or at its end another; None if it did not."""
    epochs: list[float] = [row["epoch"] for row in attempt.epochs if "epoch" in row]
    if len(epochs) > 1 and epochs[-1] < epochs[-2]:  # of the best one, say
        return epochs[-2]
    return next((before for before, after in pairwise(epochs) if after <= epochs[0]), None)
