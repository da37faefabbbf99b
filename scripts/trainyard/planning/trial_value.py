"""What a trial's value is, when the trial reported it, and how far the trial came: the one place that says so.

Ranking, answer, tables, plots, search and best.yaml take it from here.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from trainyard.config.metric_names import DURATION, Mode
from trainyard.config.trials import early_end
from trainyard.planning.attempts import Attempt, whole_seconds
from trainyard.planning.history import History
from trainyard.programs.progress import Progress


@dataclass(frozen=True)
class TrialWork:
    """How far a trial with a result came."""

    last_epoch: float | None = None  # that it reported; None without any
    epochs: float | None = None  # in all, by its config or by what it printed; without these, the last one
    progress: Progress | None = None  # the last that it printed
    ended_by_patience: bool = False  # in Trainyard's own loop, or a fit of trees
    best_round: float | None = None  # of a fit of trees that ended so: the last round of the model that it kept
    units: Mapping[str, str] = field(default_factory=dict)  # of its metrics; "" for those without


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

    @property
    def was_better(self) -> bool:
        """Whether an earlier epoch had a better value."""
        return self.best is not None and self.best.value != self.value

    @property
    def when(self) -> str:
        """The epoch of the value, as in ` at its last epoch, 6 of 6`; "" if it has none."""
        if self.epoch is None:
            return ""
        of, progress = "", self.work.progress
        if self.work.epochs is not None:
            of = f" of {self.work.epochs:.6g}"
        if progress and progress.begins_at_0 and progress.number == self.epoch:
            of += " counted from 0"
        report = "last epoch," if self.epoch == self.work.last_epoch else "last report, epoch"
        if self.epoch == self.work.best_round:
            report = "best round,"
        return f" at its {report} {self.epoch:.6g}{of}"


def judged_metrics(state: History, attempt: Attempt) -> dict[str, float]:
    """The value of each metric by which trials are compared, None for NaN and infinity: the last one it reported.

    `seconds` is the duration of the trial, unless a program reports its own; Trainyard's loop reports that of an epoch.
    """
    seconds = whole_seconds(state.record(attempt.trial).attempts, attempt)
    found = {} if seconds is None else {DURATION: seconds}
    return attempt.metrics | found if state.sweep.trains else found | attempt.metrics


def value_of(
    state: History, attempt: Attempt, values: Mapping[str, float], metric: str, mode: Mode
) -> TrialValue | None:
    """The value of a metric that a trial has by an attempt with a result; None if it has not reported the metric.

    `values` are the trial's `judged_metrics`, with NaN for None.
    """
    if metric not in values:
        return None
    value = values[metric]
    work = work_of(state, attempt)
    rows = _reports(state, attempt, metric, until=work.best_round)
    reports = [EpochValue(float(row[metric]), row["epoch"]) for row in rows]
    if len(reports) < 2 or reports[-1].value != value:
        return TrialValue(value, work)
    best = (max if mode == "max" else min)(reports, key=lambda report: report.value)
    return TrialValue(value, work, reports[-1].epoch, best)


def _reports(state: History, attempt: Attempt, metric: str, *, until: float | None) -> list[dict[str, float]]:
    """The rows of a trial that have a finite value of a metric; none of its duration, which is no epoch's."""
    if metric == DURATION:
        return []
    rows = [row for row in state.record(attempt.trial).epochs_of(attempt) if "epoch" in row]
    if until is not None:
        rows = [row for row in rows if row["epoch"] <= until]
    return [row for row in rows if row.get(metric) is not None and math.isfinite(row[metric])]


def work_of(state: History, attempt: Attempt) -> TrialWork:
    """How far a trial came by an attempt with a result."""
    record = state.record(attempt.trial)
    spec, tries = record.trial.spec, [attempt, *record.continued_by(attempt)]
    last_epoch = next((each.epochs[-1].get("epoch") for each in tries if each.epochs), None)
    progress = next((each.progress for each in tries if each.progress), None)
    epochs = spec.epochs or last_epoch
    if spec.epochs is None and progress and progress.number == last_epoch:
        epochs = progress.total
    units = {name: attempt.units.get(name, "") for name in attempt.metrics}
    best_round = attempt.metrics.get(spec.best_epoch) if spec.best_epoch else None
    return TrialWork(last_epoch, epochs, progress, early_end(spec, attempt.metrics) is not None, best_round, units)
