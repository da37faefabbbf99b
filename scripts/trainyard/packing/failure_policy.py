"""Decisions after failed attempts: where to retry a trial, whether its GPU is broken, and whether all trials fail.

This module is independent of Ray: the loop reports outcomes and requests decisions.
"""

import re
import signal
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, takewhile
from typing import Final, Self

from trainyard.config.trial_status import FINAL, TrialStatus
from trainyard.planning.attempts import Attempt
from trainyard.planning.history import History
from trainyard.planning.journal import Ended, Location, Row, TrialEvent
from trainyard.programs.runner import MOST_DAMAGED, QUICK_SECONDS, may_be_of_checkpoint
from trainyard.results.error_patterns import error_pattern
from trainyard.utils.errors import mentions_gpu_memory
from trainyard.utils.text import SHELL_SIGNAL

# A GPU is checked each time this many different trials in a row have failed on it. Its slot is retired if the check
# finds a fault, or if this many of these trials finished elsewhere, or survived there. A trial that fails on two GPUs
# counts for neither GPU.
SLOT_FAILURES: Final = 3
SURVIVED: Final = 2.0  # a trial survives if it runs this many times as long as on the GPU where it failed,
SURVIVED_SECONDS: Final = 60.0  # and at least this much longer
# Without retries, no trial that failed on a GPU can finish elsewhere. Such a GPU gets no trial while other GPUs do, if
# so many failures in a row are less probable than this, at the rate at which trials fail on the others.
IMPROBABLE: Final = 1e-4
# Different trials with the same failure, after which all trials are expected to fail: if their programs did not start,
# and if they failed with any other error, which may depend on the values of these trials.
SAME_FAILURES: Final = 3
SAME_ERRORS: Final = 10
USAGE_EXIT_CODE: Final = 2  # of argparse, click and most programs
NOT_RUN_EXIT_CODES: Final = {126, 127}  # of a shell that cannot run a command, or does not find it
# Unlike most errors, these do not depend on a trial's values.
NOT_RUN: Final = re.compile(
    r"\b(ModuleNotFoundError|ImportError|SyntaxError|IndentationError|command not found|No such file)\b"
)
# These depend on the machine: the next trial may succeed.
MACHINE_ERROR: Final = re.compile(
    r"out of memory|killed|process ended|CUDA error|shared object"
    r"|No space left|Disk quota exceeded|Stale file handle|Input/output error",
    re.I,
)


@dataclass(frozen=True)
class TrialFailure:
    """A failed attempt."""

    trial: str
    place: Location
    error: str  # one line
    seconds: float
    exit_code: int | None = None  # of a program
    values: Row = field(default_factory=dict)  # of the varied keys
    resumed: bool = False  # from a checkpoint, without reporting a later epoch than before

    @cached_property
    def pattern(self) -> str:
        """The error with placeholders for the trial's name and values."""
        return error_pattern(self.error, self.trial, self.values)

    @property
    def is_quick(self) -> bool:
        """Whether the attempt was short enough for a wrong command line."""
        return self.seconds <= QUICK_SECONDS

    @property
    def may_be_of_checkpoint(self) -> bool:
        """Whether the checkpoint from which it resumed may be damaged."""
        return self.resumed and may_be_of_checkpoint(self.error, self.seconds)

    @property
    def may_affect_all(self) -> bool:
        """Whether all trials may fail in this way: it is not the machine that ended it."""
        by_signal = (self.exit_code or 0) - SHELL_SIGNAL in signal.valid_signals()
        is_of_machine = MACHINE_ERROR.search(self.error) or mentions_gpu_memory(self.error)
        return self.is_quick and not by_signal and not is_of_machine

    @property
    def is_of_start(self) -> bool:
        """Whether the program rejected its command line or could not start."""
        return self.exit_code in {USAGE_EXIT_CODE, *NOT_RUN_EXIT_CODES} or bool(NOT_RUN.search(self.error))


@dataclass
class _Streak:
    """Trials that failed on one GPU only, since a trial last succeeded there."""

    trials: dict[str, float] = field(default_factory=dict)  # seconds after which each failed
    finished_elsewhere: set[str] = field(default_factory=set)  # some of them, or survived there
    outlasted_by: set[str] = field(default_factory=set)  # other trials that run on other GPUs and survived there


class FailurePolicy:
    """Decides on retries and broken GPUs from the outcomes of all attempts.

    `retries` is the number of further attempts after a failure. `has_succeeded`: whether a trial succeeded in an
    earlier run. With `ignores_common_failures`, `common_failure` is always None. `constant_keys` have the same value in
    all trials. `is_of_sweep`: whether the sweep of this job has a trial.
    """

    def __init__(
        self,
        *,
        retries: int,
        has_succeeded: bool = False,
        ignores_common_failures: bool = False,
        constant_keys: frozenset[str] = frozenset(),
        is_of_sweep: Callable[[str], bool] = lambda trial: True,
    ) -> None:
        self._retries = retries
        self._has_succeeded = has_succeeded
        self._ignores_common_failures = ignores_common_failures
        self._constant_keys = constant_keys
        self._is_of_sweep = is_of_sweep
        self._failures: dict[str, list[TrialFailure]] = defaultdict(list)  # by trial
        self._damaged = Counter[str]()  # failures on a checkpoint that used up no retry, by trial
        self._streaks: dict[tuple[str, str, str], _Streak] = defaultdict(_Streak)  # by GPU
        self._ends: dict[tuple[str, str, str], list[bool]] = defaultdict(list)  # whether trials succeeded, by GPU

    @classmethod
    def of_sweep(cls, state: History) -> Self:
        """The policy of a sweep, with the attempts before this run. A trial has its retries once, in whichever jobs."""
        attempts = [attempt for record in state.records for attempt in record.attempts]
        policy = cls(
            retries=state.sweep.retries,
            has_succeeded=any(attempt.outcome in FINAL for attempt in attempts),
            ignores_common_failures=state.sweep.max_failed_fraction == 1,
            constant_keys=state.constant_keys,
            is_of_sweep=lambda trial: trial in state.trials,
        )
        if state.sweep.slots.jobs > 1:
            for name in state.unfinished:
                for attempt in takewhile(lambda each: each.is_retried, reversed(state.record(name).attempts)):
                    policy._record_attempt(attempt)
        return policy

    def on_event(self, event: TrialEvent, attempt: Attempt, *, is_own: bool) -> None:
        """Take up the end of an attempt. Its failure in this job was recorded before, to decide on the retry."""
        was_recorded = is_own and attempt.outcome is TrialStatus.FAILED
        if isinstance(event, Ended) and self._is_of_sweep(event.trial) and not was_recorded:
            self._record_attempt(attempt)

    def record_success(self, trial: str, place: Location) -> None:
        """Record that a trial succeeded."""
        self._has_succeeded = True
        self._record_end(trial, place, succeeded=True)
        self._streaks.pop(place.gpu_key, None)
        for streak in self._streaks.values():
            streak.finished_elsewhere |= {trial} & streak.trials.keys()

    def _record_end(self, trial: str, place: Location, *, succeeded: bool) -> None:
        self._ends[place.gpu_key].append(succeeded)
        for streak in self._streaks.values():
            streak.outlasted_by.discard(trial)

    def _record_attempt(self, attempt: Attempt) -> None:
        """Record the end of an attempt. That a trial has diverged tells nothing about its GPU."""
        place = attempt.location
        if attempt.outcome in FINAL - {TrialStatus.DIVERGED}:
            self.record_success(attempt.trial, place)
        elif attempt.outcome is TrialStatus.FAILED:
            seconds = attempt.end - attempt.start
            self.record_failure(
                TrialFailure(
                    attempt.trial,
                    place,
                    attempt.error,
                    seconds,
                    attempt.exit_code,
                    attempt.values,
                    resumed=attempt.resumed is not None and not attempt.epochs,
                )
            )

    def record_running(self, trial: str, place: Location, seconds: float) -> None:
        """Record for how long a trial runs by now. If it has failed sooner on another GPU, this counts as a success.

        Otherwise, a broken GPU would get trial after trial for as long as one takes to finish elsewhere.
        """
        for device, streak in self._streaks.items():
            if device == place.gpu_key or not streak.trials:
                continue
            failed_after = streak.trials.get(trial, max(streak.trials.values()))
            if seconds >= max(SURVIVED * failed_after, failed_after + SURVIVED_SECONDS):
                (streak.finished_elsewhere if trial in streak.trials else streak.outlasted_by).add(trial)

    def record_failure(self, failure: TrialFailure) -> bool:
        """Record a failure; returns whether the trial is retried.

        A trial is not retried if its program has rejected the command line twice in the same way, or has run out of GPU
        memory twice. One that fails at once on a checkpoint, and then on the one before, uses up no retry.
        """
        if failure.may_be_of_checkpoint and self._damaged[failure.trial] < MOST_DAMAGED:
            self._damaged[failure.trial] += 1
            return True
        before = self._failures[failure.trial]
        is_usage = failure.exit_code == USAGE_EXIT_CODE and failure.is_quick
        is_same = any((each.exit_code, each.error) == (failure.exit_code, failure.error) for each in before)
        is_out_of_memory = all(mentions_gpu_memory(each.error) for each in (failure, *before[-1:])) and bool(before)
        before.append(failure)
        self._record_end(failure.trial, failure.place, succeeded=False)
        if len({each.place.gpu_key for each in before}) == 1:
            self._streaks[failure.place.gpu_key].trials[failure.trial] = failure.seconds
        else:  # the cause seems to be the trial
            for streak in self._streaks.values():
                streak.trials.pop(failure.trial, None)
                streak.finished_elsewhere.discard(failure.trial)
        return len(before) <= self._retries and not (is_usage and is_same) and not is_out_of_memory

    def allows(self, trial: str, place: Location, others: Iterable[Location]) -> bool:
        """Whether a trial may run in this place. It may not if it failed here and there are better places.

        The best place is another node, then another GPU, then another slot.
        """
        failed = [failure.place for failure in self._failures.get(trial, ())]
        if not failed:
            return True

        def failure_counts(at: Location) -> tuple[int, int, int]:
            return (
                sum(each.node == at.node for each in failed),
                sum(each.gpu_key == at.gpu_key for each in failed),
                sum(each.slot == at.slot for each in failed),
            )

        own = failure_counts(place)
        return not any(own) or all(own <= failure_counts(other) for other in others)  # ends at the first better place

    def is_suspect(self, place: Location) -> bool:
        """Whether the GPU of a slot must be checked before it runs another trial."""
        count = self.failures_in_a_row(place)
        return self.is_likely_broken(place) or (count > 0 and count % SLOT_FAILURES == 0)

    def avoids(self, place: Location, others: Iterable[Location]) -> bool:
        """Whether a GPU gets no trial for now, since trials fail there but not on others. Only without retries.

        GPUs on which the last trials have failed, too, are no comparison. If there is no other GPU, none is avoided.
        """
        count = self.failures_in_a_row(place)
        if self._retries or count < SLOT_FAILURES:
            return False
        suspects = {device for device, streak in self._streaks.items() if len(streak.trials) >= SLOT_FAILURES}
        if all(other.gpu_key in suspects for other in others):
            return False
        ends = [True] * len(self._streaks[place.gpu_key].outlasted_by)
        for device, of_device in self._ends.items():
            if device not in suspects:
                ends += of_device
        failure_rate = (ends.count(False) + 1) / (len(ends) + 2)  # Laplace's rule of succession
        return failure_rate**count < IMPROBABLE

    def is_likely_broken(self, place: Location) -> bool:
        """Whether enough trials that failed on this GPU finished elsewhere."""
        return self.finished_elsewhere(place) >= SLOT_FAILURES

    def finished_elsewhere(self, place: Location) -> int:
        """The number of trials that failed on this GPU since one succeeded there, and then finished on another.

        This includes those that survived there and still run.
        """
        return len(self._streaks.get(place.gpu_key, _Streak()).finished_elsewhere)

    @property
    def suspect_trials(self) -> set[str]:
        """Trials that failed on a suspect GPU. If they finish elsewhere, the GPU is the likely cause."""
        trials = set[str]()
        for streak in self._streaks.values():
            if len(streak.trials) >= SLOT_FAILURES:
                trials.update(streak.trials)
        return trials

    def failures_in_a_row(self, place: Location) -> int:
        """The number of trials that failed on this GPU since one succeeded there."""
        return len(self._streaks.get(place.gpu_key, _Streak()).trials)

    def common_failure(self, places: Sequence[Location], running_seconds: Iterable[float]) -> TrialFailure | None:
        """The failure that all trials seem to share; None if there is none.

        Several trials failed soon and in the same way, on several nodes or GPUs, if the slots are in several `places`:
        a few whose program rejected its command line or could not start, or more with another error. No trial has
        succeeded, and none has run longer (`running_seconds`). No value of the trials explains it.
        """
        is_long = any(seconds > QUICK_SECONDS for seconds in running_seconds)
        if self._ignores_common_failures or self._has_succeeded or is_long:
            return None
        by_pattern: dict[str, list[TrialFailure]] = defaultdict(list)
        for failure in chain(*self._failures.values()):
            if failure.may_affect_all:
                by_pattern[failure.pattern].append(failure)
        for same in by_pattern.values():
            needed = SAME_FAILURES if same[0].is_of_start else SAME_ERRORS
            if len({each.trial for each in same}) < needed or not _is_independent_of_values(same, self._constant_keys):
                continue
            if _is_spread([each.place for each in same], places):
                return same[-1]
        return None


def _is_independent_of_values(same: Sequence[TrialFailure], constant_keys: frozenset[str]) -> bool:
    """Whether failures with the same pattern are not caused by values that other trials may not have.

    A missing file or module may be named by a value. A usage error often shows the values beside the wrong option:
    then it must have occurred with several values of each key. Another error must have occurred with several values of
    all keys. A key with the same value in all trials explains no difference between them.
    """
    first = same[0]
    varied = first.values.keys() - constant_keys
    keys = {key for key in varied if f"{{{key}}}" in first.pattern}
    if any(each.exit_code != USAGE_EXIT_CODE for each in same):
        if keys or first.is_of_start:
            return not keys
        keys = varied
    return all(len({str(each.values.get(key)) for each in same}) > 1 for key in keys)


def _is_spread(failed: Sequence[Location], places: Sequence[Location]) -> bool:
    """Whether one node or, if there is only one, one GPU cannot be the cause of all failures."""
    if len({place.node for place in places}) > 1:
        return len({place.node for place in failed}) > 1
    several = len({place.gpu_key for place in places}) > 1
    return not several or len({place.gpu_key for place in failed}) > 1
