"""What a failed attempt means: where its trial is tried again, whether its slot is to blame, or all trials are wrong.

It knows nothing of Ray: the packer tells it what happened, and asks.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from trainyard.config.user_programs import format_argument

# A GPU is checked after each so many different trials that fail there in a row. It is to blame if the check says so, or
# if so many of them finished elsewhere. A trial that fails on a second GPU says nothing about either.
SLOT_FAILURES: Final = 3
SAME_FAILURES: Final = 3  # different trials that fail in the same way, before it is taken for the fault of all
QUICK_SECONDS: Final = 60.0  # a mistake in a command line or in code shows this soon, also if torch is imported first
USAGE_EXIT_CODE: Final = 2  # of argparse, click and most programs
NOT_RUN_EXIT_CODES: Final = {126, 127}  # of a shell that cannot run a command, or does not find it
# These do not depend on a trial's values, as most other errors may.
NOT_RUN: Final = re.compile(
    r"\b(ModuleNotFoundError|ImportError|SyntaxError|IndentationError|command not found|No such file)\b"
)
# These depend on the machine: the next trial may do better.
OF_MACHINE: Final = re.compile(r"out of memory|killed|process ended|CUDA error|No space left|shared object", re.I)


@dataclass(frozen=True)
class Place:
    """Where a slot's process runs. A fresh process of the same slot may be given another GPU."""

    node: str
    gpu: str
    slot: int

    @property
    def device(self) -> tuple[str, str]:
        """Which several slots may share."""
        return self.node, self.gpu


@dataclass(frozen=True)
class Failure:
    """A failed attempt."""

    trial: str
    place: Place
    error: str  # in one line
    seconds: float
    exit_code: int | None = None  # of a program
    values: Mapping[str, Any] = field(default_factory=dict)  # of the varied keys

    @property
    def pattern(self) -> str:
        """The error with the trial's name and values left open, by which those of different trials are compared."""
        kind, colon, words = self.error.partition(": ")
        for text, key in sorted(_texts(self.trial, self.values).items(), key=lambda item: -len(item[0])):
            words = re.sub(rf"(?<![\w.]){re.escape(text)}(?![\w.])", key, words)
        return kind + colon + words

    @property
    def is_quick(self) -> bool:
        """Whether it can be a mistake in a command line."""
        return self.seconds <= QUICK_SECONDS

    @property
    def can_be_of_all(self) -> bool:
        """Whether all trials may well have it: a program complains of how it was called, or cannot even begin."""
        if not self.is_quick or OF_MACHINE.search(self.error):
            return False
        return self.exit_code in {USAGE_EXIT_CODE, *NOT_RUN_EXIT_CODES} or bool(NOT_RUN.search(self.error))


@dataclass
class _Streak:
    """Trials that have failed on a GPU, and on no other, since something last succeeded there."""

    trials: set[str] = field(default_factory=set)
    finished_elsewhere: set[str] = field(default_factory=set)  # some of them


class FailurePolicy:
    """Follows the ends of attempts, and judges failures by them.

    `retries` are the further attempts that a trial has. With `has_succeeded`, some trial has in an earlier run. With
    `patient`, no failure is taken for the fault of all trials.
    """

    def __init__(self, *, retries: int, has_succeeded: bool = False, patient: bool = False) -> None:
        self._retries, self._has_succeeded, self._patient = retries, has_succeeded, patient
        self._failures: dict[str, list[Failure]] = defaultdict(list)  # by trial
        self._streaks: dict[tuple[str, str], _Streak] = defaultdict(_Streak)  # by GPU

    def succeeded(self, trial: str, place: Place) -> None:
        """Take in that a trial has come to a result there."""
        self._has_succeeded = True
        self._streaks.pop(place.device, None)
        for streak in self._streaks.values():
            streak.finished_elsewhere |= {trial} & streak.trials

    def failed(self, failure: Failure) -> bool:
        """Take in a failure; whether its trial is to be tried again.

        A program that complained twice of how it was called will do so again.
        """
        before = self._failures[failure.trial]
        is_usage = failure.exit_code == USAGE_EXIT_CODE and failure.is_quick
        is_same = any((each.exit_code, each.error) == (failure.exit_code, failure.error) for each in before)
        before.append(failure)
        if len({each.place.device for each in before}) == 1:
            self._streaks[failure.place.device].trials.add(failure.trial)
        else:  # the trial seems to be at fault
            for streak in self._streaks.values():
                streak.trials.discard(failure.trial)
        return len(before) <= self._retries and not (is_usage and is_same)

    def suits(self, trial: str, place: Place, others: Iterable[Place]) -> bool:
        """Whether a trial may be tried here: not if it failed here, and there are others where it has not.

        Another node is best, then another GPU, then another slot.
        """
        failed = [failure.place for failure in self._failures.get(trial, ())]

        def times(at: Place) -> tuple[int, int, int]:
            return (
                sum(each.node == at.node for each in failed),
                sum(each.device == at.device for each in failed),
                sum(each.slot == at.slot for each in failed),
            )

        return not failed or times(place) <= min((times(other) for other in others), default=times(place))

    def is_suspect(self, place: Place) -> bool:
        """Whether the GPU of a slot should be checked before it runs another trial."""
        count = self.in_a_row(place)
        return self.is_to_blame(place) or (count > 0 and count % SLOT_FAILURES == 0)

    def is_to_blame(self, place: Place) -> bool:
        """Whether enough trials that failed on this GPU have finished elsewhere."""
        return self.finished_elsewhere(place) >= SLOT_FAILURES

    def finished_elsewhere(self, place: Place) -> int:
        """Different trials that have failed on this GPU since one succeeded, and then finished on another."""
        return len(self._streaks.get(place.device, _Streak()).finished_elsewhere)

    @property
    def witnesses(self) -> set[str]:
        """Trials that failed on a suspected GPU: whether they finish elsewhere tells if it is to blame."""
        return {
            trial for streak in self._streaks.values() if len(streak.trials) >= SLOT_FAILURES for trial in streak.trials
        }

    def in_a_row(self, place: Place) -> int:
        """Different trials that have failed on this GPU since one succeeded."""
        return len(self._streaks.get(place.device, _Streak()).trials)

    def fault_of_all(self, places: Sequence[Place], running_seconds: Iterable[float]) -> Failure | None:
        """The failure that trials so far have in common, if it must be taken for the fault of all; else None.

        Several trials were called wrongly or could not even begin, soon and in the same way, on several nodes or GPUs
        if the slots are in several `places`; none has ever succeeded, and none runs that has come further. It is
        not the fault of some values.
        """
        if self._patient or self._has_succeeded or any(seconds > QUICK_SECONDS for seconds in running_seconds):
            return None
        alike: dict[str, list[Failure]] = defaultdict(list)
        for failure in (each for tries in self._failures.values() for each in tries if each.can_be_of_all):
            alike[failure.pattern].append(failure)
        for same in alike.values():
            several = len({each.trial for each in same}) >= SAME_FAILURES and _blames_no_value(same)
            if several and _is_spread([each.place for each in same], places):
                return same[-1]
        return None


def _texts(trial: str, values: Mapping[str, Any]) -> dict[str, str]:
    """What a trial's name and its values look like in a program's output, and the words to put in their place."""
    found = {trial: "{trial}"}
    for key, value in values.items():
        if isinstance(value, (str, int, float)) and str(value):
            found |= {str(value): f"{{{key}}}", format_argument(value): f"{{{key}}}"}
    return found


def _blames_no_value(same: Sequence[Failure]) -> bool:
    """Whether failures with the same pattern are not the fault of some values that other trials may lack.

    A missing file or module that a value names is. A complaint about options often shows the values beside them: it
    must have come with several values of each key.
    """
    named = {key for key in same[0].values if f"{{{key}}}" in same[0].pattern}
    if any(each.exit_code != USAGE_EXIT_CODE for each in same):
        return not named
    return all(len({str(each.values.get(key)) for each in same}) > 1 for key in named)


def _is_spread(failed: Sequence[Place], places: Sequence[Place]) -> bool:
    """Whether failures cannot be the fault of one node or, where all is on one node, of one GPU."""
    if len({place.node for place in places}) > 1:
        return len({place.node for place in failed}) > 1
    several = len({place.device for place in places}) > 1
    return not several or len({place.device for place in failed}) > 1
