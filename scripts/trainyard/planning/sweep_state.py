"""The state of a sweep: its trials, also those of a search, their attempts, and the tasks of unfinished trials."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal, Protocol, TypeGuard

from trainyard.config.metric_names import DURATION
from trainyard.config.sweep import CommandSweep, Slots, Stop, Sweep, TrainSweep
from trainyard.config.train import Train
from trainyard.config.trial_status import CONCLUSIVE, WITH_RESULT, TrialStatus
from trainyard.config.trials import (
    RESULT_VERSION,
    Trial,
    constant_keys,
    expand,
    full_seconds,
    make_trial,
    relative_cost,
)
from trainyard.config.user_programs import UserProgram, metrics_digest
from trainyard.planning.attempts import (
    Attempt,
    Session,
    attempts_before,
    epochs_before,
    find_parts,
    find_result,
    reported_epochs,
    whole_epochs,
    whole_seconds,
)
from trainyard.planning.budget import Spending
from trainyard.planning.early_stopping import EarlyStoppingRule
from trainyard.planning.journal import GpuFraction, JobsSubmitted, SessionStarted, Suggested
from trainyard.planning.requests import UserRequests
from trainyard.programs.metric_rows import find_divergence
from trainyard.programs.runner import CheckpointFile, failed_by_itself
from trainyard.utils.files import digest_of

NOT_STAGED: Final = "not staged"  # in place of a dataset's digest
_PLACEHOLDER: Final = "draw-"
_LOST: Final = (
    "its output, which was read with other `metrics`, is gone: restore them, or increase `retrain` to run it again"
)
UNFINISHED: Final = (1.05, 2.0)  # assumed range of the duration of an interrupted trial, relative to what it ran
UNPROVEN_STARTUP_SECONDS: Final = 60.0  # assumed from the start of the driver to the first trial


@dataclass(frozen=True)
class Suggestion:
    """A configuration that a search has drawn."""

    trial: Trial
    name: str  # the trial's identity
    params: dict[str, Any]  # as Optuna drew them: of lists, the index
    attrs: dict[str, Any]  # state of Optuna's sampler


class TrialSpace:
    """The trials of a sweep by identity. Identities are provisional until the dataset is staged.

    `trials` holds those of the config in its order, then those that were drawn by a search or as further seeds of the
    best, then a placeholder for each one that may still be drawn, so that forecasts count them.
    """

    def __init__(self, sweep: Sweep, dataset_digest: str, suggested: Sequence[Suggested] = ()) -> None:
        self.sweep, self.dataset_digest = sweep, dataset_digest
        self.suggestions: list[Suggestion] = []  # of the search
        self.further = set[str]()  # trials with further seeds of the best configurations
        self.optional = set[str]()  # those of them that count if they have a result, but need not run
        self._chosen = list[str]()  # of their draws: of `selections`; `digest` if none was best; "" in an idle slot
        self.trials: dict[str, Trial] = expand(sweep).by_name(dataset_digest)
        self.extend(suggested)
        self.trials |= self._placeholders(after=len(self.suggestions))

    def _placeholders(self, *, after: int) -> dict[str, Trial]:
        again = len(self.suggestions) - len({each.name for each in self.suggestions})
        last = min(self.sweep.draw_count, self.sweep.distinct_draw_count + again)
        numbers = [*range(after + 1, last + 1), *(f"seed-{each + 1}" for each in range(self.unchosen))]
        known = expand(self.sweep)
        example = Trial((known.examples or known.trials)[0].spec, {}) if numbers else None
        return {f"{_PLACEHOLDER}{number}": example for number in numbers if example}

    def grow(self, sweep: Sweep) -> list[str]:
        """Add the trials that another config of the sweep has more; returns their names, or placeholders of a search.

        There must be no other changes, see `added_trials.list_changes`.
        """
        before, self.sweep = self.sweep, sweep
        for cached in ("selections", "digest"):
            self.__dict__.pop(cached, None)
        found = expand(sweep).by_name(self.dataset_digest) | self._placeholders(after=before.draw_count)
        added = {name: trial for name, trial in found.items() if name not in self.trials}
        self.trials |= added
        return list(added)

    @cached_property
    def search_key(self) -> str:
        """Identifies the search: it changes with everything but the number of trials. Empty without a search."""
        if self.sweep.search is None:
            return ""
        search = self.sweep.search.model_dump(mode="json", exclude={"trials"}) | self._compared_by
        content = [search, self.sweep.spec_content, self.dataset_digest, RESULT_VERSION, self.sweep.retrain]
        content += [self.sweep.repeats_of_all] if self.sweep.repeats_of_all > 1 else []
        return digest_of(content, length=10)

    @cached_property
    def seeds_key(self) -> str:
        """Identifies further seeds of configurations, as `search_key` what a search draws."""
        sweep = self.sweep
        return digest_of(["seeds", sweep.spec_content, self.dataset_digest, RESULT_VERSION, sweep.retrain], length=10)

    @cached_property
    def selections(self) -> list[str]:
        """Identify what the best are selected from, and how many, for 1, 2, ... repeats, up to those of the config."""
        sweep = self.sweep
        among: list[Any] = list(expand(sweep).by_name(self.dataset_digest))
        among += [self.search_key, sweep.draw_count] if sweep.search else []
        options = [sweep.repeat_best, sweep.target, *self._judged_by]
        return [digest_of([among, repeats, *options], length=10) for repeats in range(1, sweep.repeats + 1)]

    @property
    def unchosen(self) -> int:
        """Further seeds of the best configurations that are not drawn yet, if those with fewer repeats are the same."""
        sweep = self.sweep
        if not sweep.repeat_best or self.digest in self._chosen:
            return 0
        count = sweep.distinct_draw_count + len(expand(sweep).trials)
        chosen = [repeats for repeats, each in enumerate(self.selections, 1) if each in self._chosen]
        return min(sweep.repeat_best, count) * (sweep.repeats - max(chosen, default=1))

    @property
    def _compared_by(self) -> dict[str, Any]:
        return dict(zip(("metric", "mode"), self.sweep.compared_by, strict=True))

    @property
    def _judged_by(self) -> list[dict[str, Any]]:
        judged = self.sweep.model_dump(mode="json", include={"objectives", "constraints"})
        return [judged] if judged else []

    @property
    def undrawn_count(self) -> int:
        """Configurations that the search will still draw."""
        return self.sweep.draw_count - len(self.suggestions)

    def suggestion(self, event: Suggested) -> Suggestion:
        """A configuration that the search has drawn."""
        trial = make_trial(self.sweep, event.values)
        return Suggestion(trial, trial.identity(self.dataset_digest), event.params, event.attrs)

    def extend(self, suggested: Sequence[Suggested]) -> set[str]:
        """Add what was drawn since; returns the new trials that must run. `suggested` are all draws, of any search."""
        new = set[str]()
        of_this = [event for event in suggested if event.search == self.search_key]
        for event in of_this[len(self.suggestions) :]:
            if self.undrawn_count:
                found = self.suggestion(event)
                self.suggestions.append(found)
                new |= {found.name} - self.trials.keys()
                self.trials[found.name] = found.trial
        for event in [event for event in suggested if event.search == self.seeds_key][len(self._chosen) :]:
            self._chosen.append(selection := event.attrs["selection"])
            if not event.values:  # there was none to choose
                continue
            found = self.suggestion(event)
            if found.name not in self.trials or found.name in self.optional:
                self.trials[found.name] = found.trial
                self.further.add(found.name)
                (new if selection == self.selections[-1] else self.optional).add(found.name)
        self.optional -= new
        return new

    @cached_property
    def digest(self) -> str:
        """Changes when the set of results that the sweep must have changes, and only then: the rule's parameter."""
        sweep = self.sweep
        content: list[object] = [trial.content for trial in expand(sweep).trials]
        if isinstance(sweep, TrainSweep):  # the defaults of `train` are in no other part of a search
            content += [trial.content for trial in expand(sweep).examples]
        if sweep.search:
            content += [sweep.search.model_dump() | self._compared_by, sweep.spec_content]
        stop = [sweep.stop.model_dump() | self._compared_by] if sweep.stop else []
        # A change of these causes the saved output to be parsed again; no trial runs.
        metrics = [sweep.program_metrics.digest] if sweep.program_metrics else []
        monitored = [sweep.metric] if isinstance(sweep, CommandSweep) and sweep.metric else []
        best = [[sweep.repeats, sweep.repeat_best, sweep.target]] if sweep.repeat_best else []
        budget = [sweep.budget.model_dump()] if sweep.budget else []
        options = [*stop, *metrics, *monitored, *best, *budget, *self._judged_by]
        return digest_of([content, RESULT_VERSION, sweep.retrain, *options])


def is_placeholder(name: str) -> bool:
    """Whether a name stands for a configuration that a search has not drawn yet."""
    return name.startswith(_PLACEHOLDER)


@dataclass(frozen=True)
class Task:
    """A pending trial with everything that the packer needs to run it."""

    trial: str
    spec: Train | UserProgram
    values: dict[str, Any]
    generation: int
    earlier: tuple[Attempt, ...] = ()  # all attempts so far, oldest first
    expected_seconds: float | None = None  # None without evidence
    min_seconds: float | None = None  # exceeded with 95 % probability
    max_seconds: float | None = None  # exceeded with 5 % probability
    has_failed: bool = False  # at the last attempt of an earlier run
    takeover: int | None = None  # as in `Started`

    @property
    def bad_checkpoints(self) -> tuple[CheckpointFile, ...]:
        """The checkpoints from which attempts resumed that failed."""
        failed = (each for each in self.earlier if each.outcome == TrialStatus.FAILED)
        return tuple(each.resumed for each in failed if each.resumed and failed_by_itself(each.error))

    def epochs_before(self, checkpoint: CheckpointFile) -> float:
        """The number of epochs up to a checkpoint of an earlier attempt, if the program does not number them."""
        same = [each for each in self.earlier if each.generation == self.generation]
        return epochs_before(reported_epochs(same), checkpoint)

    @property
    def is_command(self) -> bool:
        """Whether it runs a user's command."""
        return isinstance(self.spec, UserProgram) and self.spec.command is not None

    @property
    def is_function(self) -> bool:
        """Whether it calls a user's function."""
        return isinstance(self.spec, UserProgram) and self.spec.function is not None

    @property
    def folder_name(self) -> str:
        """The folder of a user's program."""
        return folder_name(self.trial, self.generation, self.takeover)


def folder_name(trial: str, generation: int, takeover: int | None) -> str:
    """The name of the folder of a user's program; `retrain` starts a new one.

    So does a takeover from a job that may still write into the old one.
    """
    return (f"{trial}-{generation}" if generation else trial) + (f"~{takeover}" if takeover else "")


def output_name(attempt: int | Literal["*"]) -> str:
    """The name of the file in that folder with the output of an attempt, or the pattern of all of them."""
    return f"output-{attempt}.log"


class TaskSource(Protocol):
    """A source of tasks that are not known beforehand."""

    @property
    def remaining(self) -> int:
        """The number of tasks that it can still return."""

    def next_task(self, seconds: float) -> Task | None:
        """The next task, which may take so many seconds; None if none is left, or fits the budget."""

    def draw_ahead(self, seconds: float) -> None:
        """Make a task known before a slot is free; any job may claim it."""


@dataclass(frozen=True)
class SweepState:
    """The current state of a sweep."""

    name: str
    sweep: Sweep
    space: TrialSpace
    folder: Path  # of its results
    attempts: dict[str, list[Attempt]] = field(default_factory=dict)  # by trial, oldest first
    sessions: list[Session] = field(default_factory=list)  # runs of the driver
    flops: dict[str, float] = field(default_factory=dict)  # FLOPs by trial, if counted
    submissions: list[JobsSubmitted] = field(default_factory=list)  # of jobs to Slurm
    measured: GpuFraction | None = None  # GPUs per trial, as measured for `gpus_per_trial: auto`
    takeovers: dict[str, int] = field(default_factory=dict)  # as in `ClaimLog`
    requests: UserRequests = field(default_factory=UserRequests)  # of users
    gpu_models: tuple[str, ...] = ()  # of which a job gets one; empty if that is unknown
    budgets_reached: list[dict[str, Any]] = field(default_factory=list)  # as in `BudgetReached`

    @property
    def spending(self) -> Spending | None:
        """What was spent of the budget; None without one."""
        budget = self.sweep.budget
        return Spending(budget, self.sessions, self.sweep.slots) if budget else None

    @cached_property
    def has_reached_budget(self) -> bool:
        """Whether the budget allows no further trial."""
        spending = self.spending
        if spending is None:
            return False
        return spending.is_spent or spending.budget.model_dump() in self.budgets_reached

    def describe_budget(self) -> str:
        """That the budget is reached, how many trials have ended, and how to go on; "" if it does not matter."""
        ended = sum(self.end(name) is not None for name in self.trials)
        if not self.has_reached_budget or ended + len(self.cancelled) >= len(self.trials):
            return ""
        return f"budget reached: {ended} of {len(self.trials)} trials ran; raise `budget` to go on"

    @property
    def trials(self) -> dict[str, Trial]:
        """All trials by identity."""
        return self.space.trials

    @cached_property
    def constant_keys(self) -> frozenset[str]:
        """The keys with the same value in all trials; labels, plots and sentences leave them out, tables do not."""
        return constant_keys(self.sweep)

    @property
    def earlier_trials(self) -> dict[str, dict[str, Any]]:
        """The values of trials that have run and that the config no longer has, by identity."""
        return {name: tries[-1].values for name, tries in self.attempts.items() if name not in self.trials}

    def attempts_at(self, trial: str) -> Sequence[Attempt]:
        """The attempts at a trial, oldest first."""
        return self.attempts.get(trial, ())

    def result(self, trial: str) -> Attempt | None:
        """The attempt whose metrics are the trial's result; None if the trial is pending or has diverged."""
        return find_result(self._counting(trial), self.sweep.retrain, of=WITH_RESULT)

    @cached_property
    def sessions_of_results(self) -> dict[str, SessionStarted | None]:
        """By trial with a result, the session in which it ran; None if the journal has none."""
        sessions = {attempt: run.info for run in self.sessions for attempt in run.attempts}
        results = {name: result for name in self.trials if (result := self.result(name))}
        return {name: sessions.get((name, result.number)) for name, result in results.items()}

    @property
    def code_changed_since(self) -> float | None:
        """When the last job started, in Unix seconds, if the files of `code` have changed since."""
        last = self.sessions[-1].info if self.sessions else None
        now = self.sweep.code_digest
        return last.time if last and now and last.code_digest != now else None

    def end(self, trial: str) -> Attempt | None:
        """The attempt after which a trial is not run again: its result, or one that diverged or is unreadable."""
        end = find_result(self._counting(trial), self.sweep.retrain, of=CONCLUSIVE)
        return end or self.unreadable(trial)

    def _counting(self, trial: str) -> list[Attempt]:
        """The attempts at a trial without those that another rule of early stopping has stopped, and lost ones.

        What was stopped without a rule in the journal counts under any.
        """
        attempts = (each for each in self.attempts_at(trial) if not self._is_stopped_by_another(each))
        return [each for each in attempts if not self._is_lost(each)]

    def _is_stopped_by_another(self, attempt: Attempt) -> bool:
        has_diverged = attempt.outcome == TrialStatus.DIVERGED and not self._is_unmonitored(attempt)
        if has_diverged or not (attempt.early or attempt.outcome == TrialStatus.STOPPED):
            return False
        return self.stop_rule is None or attempt.rule not in (None, self.stop_rule)

    @cached_property
    def stop_rule(self) -> dict[str, Any] | None:
        """What decides whether a trial is stopped early, as the journal records it."""
        return self.stop.rule(*self.sweep.compared_by) if self.stop else None

    @cached_property
    def _metrics_digest(self) -> str:
        return metrics_digest(self.sweep.program_metrics)

    @property
    def stopped_before(self) -> list[Attempt]:
        """The last attempts at unfinished trials that another rule of early stopping has stopped."""
        last = filter(None, map(self.last_attempt, self.unfinished))
        wanted = (each for each in last if each.generation >= self.sweep.retrain)
        return [each for each in wanted if self._is_stopped_by_another(each)]

    def unreadable(self, trial: str) -> Attempt | None:
        """The last attempt at a trial if its output holds no metrics and is still kept, or if it is lost."""
        last = self.last_attempt(trial)
        if last is None or last.generation < self.sweep.retrain or self._is_stopped_by_another(last):
            return None
        if self._is_lost(last):
            return replace(last, outcome=TrialStatus.UNREADABLE, error=_LOST, metrics={}, epochs=[], epoch_times={})
        return last if last.outcome == TrialStatus.UNREADABLE and self.output_of(last).exists() else None

    def _is_lost(self, attempt: Attempt) -> bool:
        """Whether the metrics of a program that has ended were read by other rules, and its output is not kept."""
        return attempt.outcome in CONCLUSIVE and self._is_misread(attempt) and not self.output_of(attempt).exists()

    def _is_misread(self, attempt: Attempt) -> bool:
        """Whether the output of an attempt is known to have been read by other `metrics` rules than the present."""
        return isinstance(self.sweep, CommandSweep) and attempt.metrics_digest not in (None, self._metrics_digest)

    def last_attempt(self, trial: str) -> Attempt | None:
        """The last attempt at a trial, if any."""
        return next(reversed(self.attempts_at(trial)), None)

    def has_failed(self, trial: str) -> bool:
        """Whether the last attempt at a trial failed."""
        last = self.last_attempt(trial)
        return last is not None and last.outcome == TrialStatus.FAILED

    def status(self, trial: str) -> TrialStatus:
        """The state of a trial, as tables show it."""
        if end := self.end(trial):
            return end.outcome
        if trial in self.requests.cancelled:
            return TrialStatus.CANCELLED
        last = self.last_attempt(trial)
        return last.outcome if last else TrialStatus.PENDING

    @cached_property
    def unfinished(self) -> list[str]:
        """Trials without a result, which must run, in the config's order; none once the budget is reached."""
        if self.has_reached_budget:
            return []
        cancelled = self.requests.cancelled
        spared = cancelled | self.space.optional
        return [name for name in self.trials if name not in spared and self.end(name) is None]

    @property
    def cancelled(self) -> list[str]:
        """Trials that are not run because a user has cancelled them."""
        return [name for name in self.trials if self.status(name) is TrialStatus.CANCELLED]

    @property
    def failed_before(self) -> int:
        """Unfinished trials whose last attempt failed."""
        return sum(map(self.has_failed, self.unfinished))

    def task(self, name: str) -> Task:
        """A pending trial as a task of the queue, without predictions."""
        trial, earlier = self.trials[name], tuple(self.attempts_at(name))
        failed, takeover = self.has_failed(name), self.takeovers.get(name)
        return Task(name, trial.spec, trial.values, self.sweep.retrain, earlier, has_failed=failed, takeover=takeover)

    def seconds_of(self, attempt: Attempt) -> float | None:
        """Duration of an attempt and of the parts of earlier ones that it continued."""
        return whole_seconds(self.attempts[attempt.trial], attempt)

    def whole_metrics(self, attempt: Attempt, attempts: Sequence[Attempt] | None = None) -> dict[str, float]:
        """The metrics of an attempt, with the duration of its trial as `seconds`, unless a program reports its own.

        Trainyard's loop reports those of an epoch. `attempts` are those at the trial, if more are known by now.
        """
        seconds = whole_seconds(self.attempts_at(attempt.trial) if attempts is None else attempts, attempt)
        found = {} if seconds is None else {DURATION: seconds}
        return attempt.metrics | found if isinstance(self.sweep, TrainSweep) else found | attempt.metrics

    def kept_seconds(self, ends: Iterable[Attempt] | None = None) -> dict[tuple[str, int], float]:
        """Seconds of each attempt that count in the duration of one of `ends`, by trial and number of the attempt.

        By default, `ends` are the attempts that count now.
        """
        if ends is None:
            ends = [end for name in self.trials if (end := self.end(name)) and end.outcome in CONCLUSIVE]
        kept: dict[tuple[str, int], float] = {}
        for end in ends:
            for number, seconds in find_parts(self.attempts[end.trial], end).items():
                kept[end.trial, number] = max(seconds, kept.get((end.trial, number), 0.0))
        return kept

    def present_seconds_of(self, attempt: Attempt) -> float | None:
        """`full_seconds_of` an attempt at the present share of a GPU, if the slowdown by sharing was measured."""
        seconds, shares = self.full_seconds_of(attempt), (attempt.gpus_per_trial, self.gpus_per_trial)
        then, now = map(self.measured.slowdown, shares) if self.measured else (None, None)
        return seconds * now / then if seconds and then and now else seconds

    def full_seconds_of(self, attempt: Attempt) -> float | None:
        """Duration of a finished attempt as if it had trained all epochs."""
        seconds = self.seconds_of(attempt)
        return None if seconds is None else full_seconds(self.trials[attempt.trial].spec, seconds, attempt.metrics)

    @cached_property
    def has_patience(self) -> bool:
        """Whether a trial may end before its last epoch without a rule that compares trials."""
        specs = (trial.spec for trial in self.trials.values())
        return any(isinstance(spec, Train) and spec.patience for spec in specs)

    @property
    def may_end_early(self) -> bool:
        """Whether trials may end long before their predicted durations."""
        return self.sweep.stop is not None or self.has_patience

    def epochs_of(self, attempt: Attempt) -> list[dict[str, Any]]:
        """Metrics of each epoch of an attempt, after the epochs of the attempts that it continued."""
        return whole_epochs([each for each in self.attempts[attempt.trial] if not self._is_misread(each)], attempt)

    def output_of(self, attempt: Attempt) -> Path:
        """The file with the output of a user's program."""
        name = folder_name(attempt.trial, attempt.generation, attempt.takeover)
        return self.folder / "trials" / name / output_name(attempt.number)

    def continued_by(self, attempt: Attempt) -> list[Attempt]:
        """The attempts that an attempt has continued from a checkpoint, the latest first."""
        return attempts_before(self.attempts_at(attempt.trial), attempt) if attempt.resumed else []

    @cached_property
    def to_reparse(self) -> list[Attempt]:
        """Ended attempts whose kept output must be read again: it had no metrics, or the `metrics` rules have changed.

        This includes attempts that diverged at their end by a metric that is no longer monitored. A file of metrics is
        that of the last attempt.
        """
        return [end for name in self.trials if self.must_reparse(end := self.end(name))]

    def must_reparse(self, end: Attempt | None) -> TypeGuard[Attempt]:
        """Whether this end of a trial is one of them, also of a trial that a search has just drawn again."""
        if not isinstance(self.sweep, CommandSweep) or not end or not self.output_of(end).exists():
            return False
        is_current = end.outcome != TrialStatus.UNREADABLE and end.metrics_digest == self._metrics_digest
        if is_current and not (end.outcome == TrialStatus.DIVERGED and self._is_unmonitored(end)):
            return False
        metrics = self.sweep.program_metrics
        has_file = metrics is not None and metrics.place is not None
        return not has_file or end is self.last_attempt(end.trial)

    @cached_property
    def to_reparse_first(self) -> list[Attempt]:
        """Attempts that others have continued or may continue, whose kept output must be read before a trial runs.

        Their driver or worker was killed before it had read all, or the `metrics` rules have changed. Rows in a file of
        metrics are those of the last attempt.
        """
        metrics = self.sweep.program_metrics
        if metrics is None or not metrics.patterns:
            return []
        numbers = {name: end.number for name in self.trials if (end := self.end(name))}
        return [
            each
            for name in self.trials
            for each in self.attempts_at(name)
            if each.generation >= self.sweep.retrain
            and each.outcome is not TrialStatus.RUNNING  # in another job
            and each.number != numbers.get(name)
            and each.metrics_digest != self._metrics_digest
            and self.output_of(each).exists()
        ]

    def _is_unmonitored(self, diverged: Attempt) -> bool:
        """Whether an attempt has diverged by a metric that is no longer monitored."""
        return diverged.error not in {find_divergence({name: None}, [name]) for name in self.sweep.monitored_metrics}

    @cached_property
    def stop(self) -> Stop | None:
        """The settings of early stopping, with the number of epochs if all trials have the same."""
        stop, epochs = self.sweep.stop, {trial.epochs for trial in self.trials.values()}
        if stop and stop.epochs is None and len(epochs) == 1:
            return stop.model_copy(update={"epochs": epochs.pop()})
        return stop

    def early_stopping_rule(self) -> EarlyStoppingRule | None:
        """The rule that stops trials early, with the epochs of all attempts that `retrain` has not overruled.

        Further seeds of the best are neither stopped nor compared with others.
        """
        if self.stop is None:
            return None
        names = (name for name in self.trials if name not in self.space.further)
        attempts = [each for name in names for each in self.attempts_at(name)]
        known = [each for each in attempts if each.generation >= self.sweep.retrain and not self._is_misread(each)]
        return EarlyStoppingRule(self.stop, *self.sweep.compared_by, known)

    @property
    def is_gpu_fraction_open(self) -> bool:
        """Whether the number of trials that share a GPU must still be measured."""
        return self.sweep.slots.gpus_per_trial == "auto" and self.measured is None

    @cached_property
    def max_slots(self) -> Slots:
        """The config's slots, with the measured share for `gpus_per_trial: auto`."""
        slots = self.sweep.slots
        if slots.gpus_per_trial != "auto" or self.measured is None:
            return slots
        return slots.model_copy(update={"gpus_per_trial": self.measured.gpus_per_trial})

    @property
    def gpus_per_trial(self) -> float:
        """GPUs per trial."""
        return self.max_slots.share

    @property
    def startup_seconds(self) -> float:
        """From the start of the driver to its first trial: the longest measured."""
        seconds = [run.startup_seconds for run in self.sessions if run.startup_seconds is not None]
        return max(seconds, default=UNPROVEN_STARTUP_SECONDS)

    def interrupted_seconds(self, trial: str) -> float:
        """The longest that an attempt at a trial ran until it was interrupted; 0 if the trial can resume or has ended.

        From the beginning and on the same share of such a GPU, the trial takes longer. `retrain` overrules an attempt
        that something else held up: otherwise, a trial that hung once for the longest walltime would never start again.
        """
        if self.sweep.can_resume or self.evidence(trial):
            return 0.0
        tries = (each for each in self.attempts_at(trial) if each.generation >= self.sweep.retrain)
        cut = (each for each in tries if each.outcome == TrialStatus.INTERRUPTED)
        cut = (each for each in cut if each.gpus_per_trial == self.gpus_per_trial)
        cut = (each for each in cut if not self.gpu_models or each.gpu_model in ("", *self.gpu_models))
        return max((each.end - each.start for each in cut), default=0.0)

    @property
    def longest_interrupted_seconds(self) -> float:
        """What a job must have for the trials that were interrupted and cannot resume, if nothing else is known."""
        return UNFINISHED[1] * max(map(self.interrupted_seconds, self.unfinished), default=0.0)

    def evidence(self, trial: str) -> Attempt | None:
        """A finished attempt with a duration, including one that `retrain` has overruled.

        Attempts on the present share of a GPU take precedence over others, and of these, those on a model that a job
        gets.
        """
        attempts = self.attempts_at(trial)
        comparable = [each for each in attempts if each.gpus_per_trial == self.gpus_per_trial]
        best = [each for each in comparable if each.gpu_model in self.gpu_models]
        result = find_result(best) or find_result(comparable) or find_result(attempts)
        return result if result and result.seconds else None

    @cached_property
    def measured_seconds(self) -> dict[str, float]:
        """Seconds of the trials that are `evidence`, at the present share of a GPU; the shortest ones round to 0."""
        return {name: self.present_seconds_of(end) or 0.0 for name, end in self._evidence.items()}

    @cached_property
    def longest_measured(self) -> float:
        """The longest of them; 0 without any."""
        return max(self.measured_seconds.values(), default=0.0)

    @cached_property
    def measured_models(self) -> dict[str, str]:
        """The GPU models on which these seconds were measured, by trial, as `Attempt.gpu_model`."""
        return {name: end.gpu_model for name, end in self._evidence.items()}

    @cached_property
    def _evidence(self) -> dict[str, Attempt]:
        return {name: end for name in self.trials if (end := self.evidence(name))}

    @property
    def unmeasured_models(self) -> list[str]:
        """The GPU models that a job may get on which no trial was measured, although some were on others."""
        known = set(self.measured_models.values())
        return [each for each in self.gpu_models if each not in known] if known and "" not in known else []

    def relative_costs(self, names: Sequence[str]) -> dict[str, float]:
        """Relative costs of trials by the sweep's `cost`, or else FLOPs; empty unless all are known."""
        if self.sweep.cost is None:
            return {name: self.flops[name] for name in names} if self.flops.keys() >= set(names) else {}
        return {name: relative_cost(self.sweep.cost, self.trials[name]) for name in names}
