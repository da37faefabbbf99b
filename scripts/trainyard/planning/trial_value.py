"""What a trial's value is, when the trial reported it, and how far the trial came: the one place that says so.

Ranking, answer, tables, plots, search and best.yaml take it from here.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trainyard.config.metric_names import DURATION, Mode
from trainyard.config.train import Train
from trainyard.config.trials import early_end
from trainyard.planning.attempts import Attempt
from trainyard.planning.sweep_state import SweepState
from trainyard.programs.progress import Progress


@dataclass(frozen=True)
class TrialWork:
    """How far a trial with a result came."""

    last_epoch: float | None = None  # that it reported; None without any
    epochs: float | None = None  # in all, by its config or by what it printed; without these, the last one
    progress: Progress | None = None  # the last that it printed
    ended_by_patience: bool = False  # of Trainyard's own loop


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
        of = "" if self.work.epochs is None else f" of {self.work.epochs:.6g}"
        report = "epoch," if self.epoch == self.work.last_epoch else "report, epoch"
        return f" at its last {report} {self.epoch:.6g}{of}"


def judged_metrics(state: SweepState, attempt: Attempt, attempts: Sequence[Attempt] | None = None) -> dict[str, float]:
    """The value of each metric by which trials are compared, None for NaN and infinity: the last one it reported.

    `attempts` are those at the trial, if more are known than in `state`.
    """
    return state.whole_metrics(attempt, attempts)


def value_of(
    state: SweepState, attempt: Attempt, values: Mapping[str, float], metric: str, mode: Mode
) -> TrialValue | None:
    """The value of a metric that a trial has by an attempt with a result; None if it has not reported the metric.

    `values` are the trial's `judged_metrics`, with NaN for None.
    """
    if metric not in values:
        return None
    value = values[metric]
    reports = [EpochValue(float(row[metric]), row["epoch"]) for row in _reports(state, attempt, metric)]
    work = work_of(state, attempt)
    if len(reports) < 2 or reports[-1].value != value:
        return TrialValue(value, work)
    best = (max if mode == "max" else min)(reports, key=lambda report: report.value)
    return TrialValue(value, work, reports[-1].epoch, best)


def _reports(state: SweepState, attempt: Attempt, metric: str) -> list[dict[str, float]]:
    """The rows of a trial that have a finite value of a metric; none of its duration, which is no epoch's."""
    rows = [] if metric == DURATION else state.epochs_of(attempt)
    return [row for row in rows if "epoch" in row and row.get(metric) is not None and math.isfinite(row[metric])]


def work_of(state: SweepState, attempt: Attempt) -> TrialWork:
    """How far a trial came by an attempt with a result."""
    spec, tries = state.trials[attempt.trial].spec, [attempt, *state.continued_by(attempt)]
    last_epoch = next((each.epochs[-1].get("epoch") for each in tries if each.epochs), None)
    progress = next((each.progress for each in tries if each.progress), None)
    epochs = last_epoch
    if isinstance(spec, Train):
        epochs = spec.epochs
    elif progress and progress.number == last_epoch:
        epochs = progress.total
    return TrialWork(last_epoch, epochs, progress, early_end(spec, attempt.metrics) is not None)
