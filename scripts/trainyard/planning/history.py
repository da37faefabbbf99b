"""What is known about a sweep, and each of its trials: everything that follows from its config and its journals."""

import copy
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

from trainyard.config.scaling import Scaling
from trainyard.config.sweep import Slots, Stop, Sweep
from trainyard.config.train import value_at
from trainyard.config.trial_status import CONCLUSIVE, FINAL, WITH_RESULT, TrialStatus
from trainyard.config.trials import Trial, Values, constant_keys, result_digest
from trainyard.config.user_programs import metrics_digest
from trainyard.planning.attempts import (
    Attempt,
    Fold,
    attempts_before,
    group_by_trial,
    read_again,
    whole_epochs,
    whole_seconds,
)
from trainyard.planning.budget import Spending
from trainyard.planning.journal import Row
from trainyard.planning.requests import UserRequests
from trainyard.planning.task import Task, output_file
from trainyard.planning.trial_space import NOT_STAGED, TrialSpace
from trainyard.programs.metric_rows import find_divergence
from trainyard.utils.errors import MissingResultError
from trainyard.utils.files import digest_of

LOST: Final = (
    "its output, which was read with other `metrics`, is gone: restore them, or increase `retrain` to run it again"
)


class History:
    """All that is known about a sweep. It is mutable: `refresh` takes up what its journals and claims have gained."""

    def __init__(
        self,
        name: str,
        sweep: Sweep,
        dataset_digest: str,
        folder: Path,
        fold: Fold,
        *,
        gpu_models: Sequence[str] = (),
    ) -> None:
        """`folder`: of its results. `gpu_models`: of which a job gets one; empty if that is unknown."""
        self.name = name
        self.sweep = sweep
        self.folder = folder
        self.gpu_models = tuple(gpu_models)
        self.flops = dict[str, float]()  # FLOPs by trial, if counted
        self.fold = fold
        self.space = TrialSpace(sweep, dataset_digest, fold.claims.draws)
        self.refresh()
        self._drop_unused(self.space.optional)

    def grow(self, sweep: Sweep) -> list[str]:
        """Add the trials that another config of the sweep has more; returns their names, or placeholders of a search.

        There must be no other changes, see `added_trials.list_changes`.
        """
        before = self.trials
        self.space = TrialSpace(sweep, self.space.dataset_digest, self.fold.claims.draws)
        self._drop_unused(self.space.optional - before.keys())
        added = [name for name in self.trials if name not in before]
        self.space.trials = before | self.trials
        return added

    def _drop_unused(self, optional: Iterable[str]) -> None:
        """Leave out the optional trials without a result."""
        for name in optional:
            end = self.record(name).end
            if end is None or end.outcome not in WITH_RESULT:
                del self.trials[name]

    def refresh(self) -> None:
        """Take up what the fold of the journals has read since."""
        attempts = self.fold.attempts.values()
        self.attempts = group_by_trial(map(self.as_read, attempts) if self.fold.readings else attempts)
        self.sessions = self.fold.sessions  # runs of the driver
        self.flops |= self.fold.flops
        self.stop = self._find_stop()
        # As the journal records it.
        self.stop_rule = self.stop.rule(*self.sweep.compared_by, self.sweep.score) if self.stop else None

    def _find_stop(self) -> Stop | None:
        """The settings of early stopping, with the number of epochs if all trials have the same."""
        stop = self.sweep.stop
        if stop is None or stop.epochs is not None:
            return stop
        epochs = {trial.epochs for trial in self.trials.values()}
        return stop.model_copy(update={"epochs": epochs.pop()}) if len(epochs) == 1 else stop

    def with_slots(self, slots: Slots) -> "History":
        """The same history of a sweep with exactly these slots."""
        other = copy.copy(self)
        other.sweep = self.sweep.model_copy(update={"slots": slots, "goal": None})
        return other

    @property
    def trials(self) -> dict[str, Trial]:
        """All trials by identity."""
        return self.space.trials

    def record(self, name: str) -> "TrialRecord":
        """A trial with all that has happened to it, also one that the config no longer has."""
        return TrialRecord(self, name)

    @property
    def records(self) -> list["TrialRecord"]:
        """All trials."""
        return [TrialRecord(self, name) for name in self.trials]

    @property
    def earlier(self) -> list["TrialRecord"]:
        """The trials that have run and that the config no longer has."""
        return [TrialRecord(self, name) for name in self.attempts if name not in self.trials]

    @property
    def unfinished(self) -> list[str]:
        """Trials without a result, which must run, in the config's order; none once the budget is reached."""
        if self.has_reached_budget:
            return []
        spared = self.requests.cancelled | self.space.optional
        return [record.name for record in self.records if record.name not in spared and record.end is None]

    @property
    def ends(self) -> list[Attempt]:
        """The attempts after which trials are not run again, see `TrialRecord.end`."""
        return list(filter(None, (record.end for record in self.records)))

    @property
    def results(self) -> list[Attempt]:
        """The attempts that are the results of trials."""
        return list(filter(None, (record.result for record in self.records)))

    @property
    def failed(self) -> list[Attempt]:
        """The last attempts of unfinished trials, where they failed."""
        last_attempts = [self.record(name).last for name in self.unfinished]
        return [last for last in last_attempts if last and last.outcome is TrialStatus.FAILED]

    @property
    def cancelled(self) -> list["TrialRecord"]:
        """The trials that are not run because a user has cancelled them."""
        return [record for record in self.records if record.status is TrialStatus.CANCELLED]

    @property
    def counted_unit(self) -> str:
        """What its slots count in pictures: GPUs, CPUs, or slots, if trials for GPUs ran on CPUs."""
        devices = {attempt.location.device for attempts in self.attempts.values() for attempt in attempts}
        unit = self.sweep.slots.unit
        return "slot" if unit == "GPU" and devices == {"cpu"} else unit

    @property
    def varied_keys(self) -> list[str]:
        """The keys that trials set, in order of first appearance."""
        return list(dict.fromkeys(key for trial in self.trials.values() for key in trial.values))

    @property
    def keys_with_text(self) -> set[str]:
        """The keys that have text as a value, which a table does not tell from numbers."""
        return {key for trial in self.trials.values() for key, value in trial.values.items() if isinstance(value, str)}

    def task(self, name: str) -> Task:
        """A pending trial as a task of the queue, without predictions."""
        record = self.record(name)
        return Task(
            name,
            record.trial.spec,
            record.trial.values,
            self.sweep.retrain,
            tuple(record.attempts),
            has_failed=record.has_failed,
            takeover=self.fold.claims.takeovers.get(name),
        )

    @cached_property
    def constant_keys(self) -> frozenset[str]:
        """The keys with the same value in all trials; labels, plots and sentences leave them out, tables do not."""
        return constant_keys(self.sweep)

    # ---- users' requests, and the budget

    @property
    def requests(self) -> UserRequests:
        """What users have requested."""
        return self.fold.claims.requests

    @property
    def spending(self) -> Spending | None:
        """What was spent of the budget; None without one."""
        budget = self.sweep.budget
        return Spending(budget, self.sessions, self.sweep.slots) if budget else None

    @property
    def has_reached_budget(self) -> bool:
        """Whether the budget allows no further trial."""
        spending = self.spending
        if spending is None:
            return False
        return spending.is_spent or spending.budget.model_dump() in self.fold.budgets_reached

    def describe_budget(self) -> str:
        """That the budget is reached, how many trials have ended, and how to go on; "" if it does not matter."""
        if not self.has_reached_budget:
            return ""
        ended = len(self.ends)
        if ended + len(self.cancelled) >= len(self.trials):
            return ""
        return f"budget reached: {ended} of {len(self.trials)} trials ran; raise `budget` to go on"

    # ---- which attempts count

    def is_overruled(self, attempt: Attempt) -> bool:
        """Whether another rule of early stopping than the present one has stopped an attempt.

        What was stopped without a rule in the journal counts under any.
        """
        has_diverged = attempt.outcome is TrialStatus.DIVERGED and not self._is_unmonitored(attempt)
        if has_diverged or not attempt.why:
            return False
        return self.stop_rule is None or attempt.rule not in (None, self.stop_rule)

    # ---- saved outputs that must be read again

    @cached_property
    def first_epoch(self) -> float:
        """The lowest epoch with which a trial began; infinite without any."""
        return min((record.first_epoch for record in self.records), default=math.inf)

    @cached_property
    def metrics_digest(self) -> str:
        """The digest of the present `metrics` and `complete`."""
        return metrics_digest(self.sweep.program_metrics, self.sweep.completion)

    @cached_property
    def rules(self) -> str:
        """The digest of what a saved output is read and judged by."""
        return digest_of([self.metrics_digest, self.sweep.monitored_metrics], length=10)

    def as_read(self, attempt: Attempt) -> Attempt:
        """An attempt as its output was read by the present rules.

        Otherwise, if it must be read, as it was read by the present `metrics`, or else last.
        """
        readings = self.fold.readings.get((attempt.trial, attempt.number))
        if not readings:
            return attempt
        if self.rules in readings:
            return read_again(attempt, readings[self.rules])
        if not self.must_read(attempt):
            return attempt
        is_read = self.metrics_digest
        last = max(readings.values(), key=lambda reading: (reading.metrics_digest == is_read, reading.time))
        return read_again(attempt, last)

    def must_read(self, attempt: Attempt) -> bool:
        """Whether the output of an attempt must be read again before anything is planned.

        It had no metrics, or not all of it was read, or by other `metrics` than the present, or the attempt has
        diverged by a metric that is no longer monitored.
        """
        if not self.sweep.keeps_output or attempt.outcome is TrialStatus.RUNNING:
            return False
        is_read = attempt.metrics_digest == self.metrics_digest and attempt.outcome is not TrialStatus.UNREADABLE
        return not is_read or self._is_unmonitored(attempt)

    def can_read(self, attempt: Attempt) -> bool:
        """Whether the output of an attempt is kept. A file of metrics has the rows of a trial's last attempt."""
        metrics = self.sweep.program_metrics
        has_patterns = metrics is not None and bool(metrics.patterns)
        is_last = attempt is self.record(attempt.trial).last
        if not has_patterns and not (attempt.is_readable and (metrics is None or is_last)):
            return False
        return output_file(self.folder, attempt).exists()

    def is_misread(self, attempt: Attempt) -> bool:
        """Whether an attempt has a result by other `metrics` than the present."""
        is_read = attempt.metrics_digest in (None, self.metrics_digest)
        return self.sweep.keeps_output and attempt.outcome in CONCLUSIVE and not is_read

    def _is_unmonitored(self, attempt: Attempt) -> bool:
        """Whether an attempt has diverged by a metric that is no longer monitored."""
        if attempt.outcome is not TrialStatus.DIVERGED:
            return False
        return attempt.error not in {find_divergence({name: None}, [name]) for name in self.sweep.monitored_metrics}

    @property
    def unread(self) -> list[Attempt]:
        """The attempts whose output must be read again, oldest first; with a search, also of trials that may count."""
        records = [*self.records, *(self.earlier if self.sweep.search else ())]
        return [attempt for record in records for attempt in record.current if self.must_read(attempt)]

    @property
    def unread_count(self) -> int:
        """How many trials have ended by an output that must be read again, and is kept, or is lost with its metrics."""
        return sum(self.can_read(end) or self.is_misread(end) for end in filter(self.must_read, self.ends))


@dataclass(frozen=True)
class TrialRecord:
    """A trial with all that has happened to it. Every question about one trial is a property here."""

    history: History
    name: str  # its identity

    @property
    def trial(self) -> Trial:
        """Its configuration. The config must still have it."""
        return self.history.trials[self.name]

    def values_of(self, keys: Iterable[str]) -> Values:
        """Its values of some keys of the config, which need not be among its own."""
        settings = self.trial.settings
        return {key: value_at(settings, key) for key in keys}

    @property
    def attempts(self) -> list[Attempt]:
        """The attempts at it, oldest first."""
        return self.history.attempts.get(self.name, [])

    @property
    def current(self) -> list[Attempt]:
        """The attempts that `retrain` has not overruled."""
        retrain = self.history.sweep.retrain
        return [attempt for attempt in self.attempts if attempt.generation >= retrain]

    @property
    def last(self) -> Attempt | None:
        """The last attempt, if any."""
        return self.attempts[-1] if self.attempts else None

    @property
    def has_failed(self) -> bool:
        """Whether the last attempt failed."""
        return self.last is not None and self.last.outcome == TrialStatus.FAILED

    @property
    def out_of_memory(self) -> Attempt | None:
        """The last attempt if it ran out of GPU memory."""
        return self.last if self.last and self.last.ran_out_of_memory else None

    @property
    def end(self) -> Attempt | None:
        """The attempt after which the trial is not run again: its result, or one that diverged or is unreadable."""
        history = self.history
        for attempt in reversed(self.current):
            if attempt.outcome not in FINAL or history.is_overruled(attempt):
                continue
            if attempt.outcome is not TrialStatus.UNREADABLE or attempt.error == LOST:
                return attempt
            if output_file(history.folder, attempt).exists():  # otherwise, a user has removed it
                return attempt
        return None

    @property
    def result(self) -> Attempt | None:
        """The attempt whose metrics are the trial's result, by the present `metrics`, or None."""
        end = self.end
        return end if end and end.outcome in WITH_RESULT and not self.history.is_misread(end) else None

    @property
    def status(self) -> TrialStatus:
        """The state of the trial, as tables show it."""
        if end := self.end:
            return end.outcome
        if self.name in self.history.requests.cancelled:
            return TrialStatus.CANCELLED
        return self.last.outcome if self.last else TrialStatus.PENDING

    @property
    def seconds(self) -> float | None:
        """The duration of the trial without interruptions; None if it has not ended."""
        end = self.end
        return whole_seconds(self.attempts, end) if end else None

    def epochs_of(self, attempt: Attempt) -> list[Row]:
        """Metrics of each epoch of an attempt, after the epochs of the attempts that it continued."""
        return whole_epochs(self.attempts, attempt)

    @property
    def first_epoch(self) -> float:
        """The first epoch that the trial reported, in whichever attempt; infinite without any."""
        return min((row.get("epoch", math.inf) for each in self.attempts for row in each.epochs[:1]), default=math.inf)

    def continued_by(self, attempt: Attempt) -> list[Attempt]:
        """The attempts that an attempt has continued from a checkpoint, the latest first."""
        return attempts_before(self.attempts, attempt) if attempt.resumed else []


# ---- what the results say


def read_state(
    sweep: Sweep, name: str, results: Path, *, gpu_models: Sequence[str] = (), fold: Fold | None = None
) -> History:
    """The history of a sweep, from its dataset and journal in `results`. `gpu_models`: those that a job may get."""
    folder = results / "sweeps" / name
    fold = (fold or Fold(folder)).update()
    return History(name, sweep, dataset_digest(results, sweep), folder, fold, gpu_models=gpu_models)


def dataset_digest(results: Path, study: Sweep | Scaling) -> str:
    """The digest of a study's staged dataset; a constant if it has none or it is not staged."""
    if study.dataset is None:
        return "no dataset"
    from trainyard.data.staged import read_meta  # it imports numpy, which takes a tenth of a second

    try:
        return read_meta(results / "data" / study.dataset).digest
    except MissingResultError:
        return NOT_STAGED


def is_trained(study: Scaling, run: str, folder: Path, results: Path) -> bool:
    """Whether a run of a study, whose results are in `folder`, has results of this config."""
    try:
        digest = json.loads((folder / run / "summary.json").read_text()).get("spec_digest")
    except (FileNotFoundError, ValueError):
        return False
    return bool(digest == result_digest(study, run, dataset_digest(results, study)))
