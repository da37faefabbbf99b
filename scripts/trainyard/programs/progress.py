"""The progress that a program prints, as in `iteration 4/10`: whether it came to the end that it had planned."""

import re
from typing import Final, NamedTuple

# A bar of tqdm may be between the word and its number: `Epochs:  30%|###       | 3/10`.
_COUNTER: Final = re.compile(
    r"(?<![a-z])(?P<unit>epochs?|iterations?|iters?|steps?|timesteps?|updates?)(?:\((?P<phase>\w+)\))?[\s:=\[(#]*"
    r"(?:\d+%\|[^|]*\|\s*)?(?P<number>\d[\d,]{0,20})\s*(?:/|(?:out )?of\b)\s*(?P<total>\d[\d,]{0,20})",
    re.IGNORECASE,
)
_WORD_BEFORE: Final = re.compile(r"([a-z]+)[^a-z0-9]{0,4}$", re.IGNORECASE)
_HELD_OUT: Final = frozenset((
    "val", "valid", "validate", "validating", "validation", "eval", "evaluate", "evaluating", "evaluation", "test",
    "testing", "predict", "predicting", "prediction",
))  # fmt: skip


# As Keras, Lightning and most scripts say it. Before the last counter, it is a setting: `early_stopping: true`.
_STOPS_EARLY: Final = re.compile(r"early[ _-]?stop(?!\w* counter)|did not improve in the last", re.IGNORECASE)


class Progress(NamedTuple):
    """The last counter that a program printed together with its total."""

    unit: str  # as it is called, in lower case
    number: int
    total: int
    step: int  # from the counter before to this one; the number itself, or 1, if it is the only one
    stops_early: bool = False  # whether the program said afterwards that it stops early
    begins_at_0: bool = False  # the first such counter

    @property
    def may_be_complete(self) -> bool:
        """Whether nothing would follow: the next number would be the total or more, as in `step 990/1000` after 980.

        Programs that count from 0 end one before their total. One that stops early has decided that it is complete.
        """
        return self.stops_early or self.number + self.step >= self.total

    def __str__(self) -> str:
        return f"{self.unit} {self.number} of {self.total}"


class ProgressReader:
    """Finds the progress in lines of output. Epochs count before steps, which may begin again with each epoch."""

    def __init__(self) -> None:
        self.progress: Progress | None = None

    def add_line(self, line: str) -> None:
        """Search a line."""
        if self.progress and _STOPS_EARLY.search(line):
            self.progress = self.progress._replace(stops_early=True)
        if "/" not in line and " of " not in line:
            return
        for match in _COUNTER.finditer(line):
            before = _WORD_BEFORE.search(line, 0, match.start())
            phases = {(match["phase"] or "").lower(), before[1].lower() if before else ""}
            if phases.isdisjoint(_HELD_OUT):
                self._add(match["unit"].lower(), _number(match["number"]), _number(match["total"]))

    def _add(self, unit: str, number: int, total: int) -> None:
        last = self.progress
        if last and last.unit.startswith("epoch") and not unit.startswith("epoch"):
            return
        step = max(1, number)
        begins_at_0 = number == 0  # `epoch 0/1` is the only one
        if last and (last.unit, last.total) == (unit, total):
            step = number - last.number if number > last.number else last.step
            begins_at_0 = last.begins_at_0
        self.progress = Progress(unit, number, total, step, begins_at_0=begins_at_0)


def _number(text: str) -> int:
    return int(text.replace(",", ""))
