"""Rows of metrics: numbers by name, their epochs, and how many of them are kept."""

import math
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from trainyard.config.user_programs import EPOCH_NAMES, MINUS, SEPARATORS

Row = dict[str, float | int | None]  # metrics by name; None for NaN and infinity
MAX_INTEGER: Final = 2**62  # of a metric
# Each row costs a line of the journal and time of the driver. After these bursts, one row per second is allowed:
# a program that reports more often reports steps, not epochs.
BURST_ROWS: Final = 300
RESUMED_BURST_ROWS: Final = 3000  # when the rows of an earlier attempt arrive all at once
ROWS_PER_SECOND: Final = 1.0
KEPT_LAST: Final = 30  # rows that a later reading keeps, for a mean of the last ones

_NOT_A_NUMBER: Final = object()


def numeric_row(metrics: Mapping[str, Any]) -> Row:
    """The metrics that are numbers. NaN, infinity and what is too large for a float become None.

    Integers have at most 64 bits, as in tables; larger ones become floats.
    """
    numbers = {name: _number(value) for name, value in metrics.items()}
    return {name: number for name, number in numbers.items() if number is not _NOT_A_NUMBER}


def take_epoch(row: Row) -> float | int | None:
    """Remove the epoch (or `Epoch`) from a row and return it, a whole one as an integer; None if the row has none.

    An epoch that no program reaches is none.
    """
    name = next((each for each in EPOCH_NAMES if each in row), "")
    epoch = row.pop(name, None)
    if epoch is None or abs(epoch) > MAX_INTEGER:
        return None
    return int(epoch) if epoch == int(epoch) else epoch


def _number(value: Any) -> Any:
    if isinstance(value, str):
        return _number_in(value)
    try:
        if hasattr(value, "item"):  # a scalar of NumPy or torch
            value = value.item()
        number = float(value)
    except OverflowError:
        return None
    except (TypeError, ValueError, RuntimeError):  # torch raises the last for a tensor of several elements
        return _NOT_A_NUMBER
    if not math.isfinite(number):
        return None
    return int(value) if isinstance(value, int) and abs(number) <= MAX_INTEGER else number


_GROUPED: Final = re.compile(
    rf"[+-]?[1-9]\d{{0,2}}(?P<separator>[{SEPARATORS}])\d{{3}}(?:(?P=separator)\d{{3}})*(?P<rest>[.eE].*)?"
)
_DECIMAL_COMMA: Final = re.compile(r"[+-]?\d+(?:\.\d{3})*,\d+(?:[eE][+-]?\d+)?")


def _number_in(text: str) -> Any:
    digits = _digits_in(text)
    if grouped := _GROUPED.fullmatch(digits):
        digits = digits.replace(grouped["separator"], "")
    try:
        number = float(digits)
    except ValueError:
        return _NOT_A_NUMBER
    if "_" in digits:  # which `float` takes anywhere
        return _NOT_A_NUMBER
    if not math.isfinite(number):
        return None
    if text.rstrip().endswith("%"):
        return number / 100
    is_integer = re.fullmatch(r"[+-]?\d+", digits) and abs(number) <= MAX_INTEGER
    return int(digits) if is_integer else number


def has_decimal_comma(text: str) -> bool:
    """Whether a text is a number with a decimal comma, as `3,2451`, which is not read."""
    digits = _digits_in(text)
    return _DECIMAL_COMMA.fullmatch(digits) is not None and _GROUPED.fullmatch(digits) is None


def may_have_decimal_comma(text: str) -> bool:
    """Whether a text such as `7,282`, which is read as 7282, may also mean 7.282."""
    return re.fullmatch(r"[+-]?[1-9]\d{0,2},\d{3}", _digits_in(text)) is not None


def _digits_in(text: str) -> str:
    """The number of a text without a percent sign, with a minus as Python has it."""
    return text.strip().replace(MINUS, "-").removesuffix("%").rstrip()


class ReadingNotes:
    """What the readers of a program's metrics note: units, and why a metric cannot be read."""

    def __init__(self) -> None:
        self._subjects: dict[str, str] = {}  # of each metric, what its first number is of, as in `find_subject`
        self.units: dict[str, str] = {}  # of each metric, that of its first number; "" if it has none
        self.unread: dict[str, str] = {}  # by metric: the first reason
        self.of_several_ranks = set[str]()  # metrics that more than one rank has printed
        self.warnings: dict[str, str] = {}  # by what they are about
        # Of runs of W&B:
        self.names_epochs = False
        self._steps = 0
        self._steps_before = 0
        self._early = set[str]()  # metrics that are logged before the first epoch

    def number_step(self, row: dict[str, Any]) -> dict[str, Any]:
        """A row of a run of W&B with its epoch: the one that it logs, or its step as long as no row has logged one.

        An offline run that resumes counts its steps from 0 again; they are those after the steps of the run before.
        """
        step = row.pop("_step", 0)
        if step == 0:
            self._steps_before = self._steps
        step += self._steps_before
        self._steps = step + 1
        logged = [value for name, value in row.items() if re.search(r"(?:^|[./])epoch$", name, re.IGNORECASE)]
        self.names_epochs = self.names_epochs or bool(logged)
        if self.names_epochs and not logged:
            if early := self._early & row.keys():
                when = "is logged before its epoch, and counts for the epoch before"
                self.warn("early", f"{min(early)} {when}: log it together with `epoch`")
            return row
        if not logged:
            self._early |= row.keys()
            if self._steps_before:
                before = "its steps are counted on from the last one before, not from the checkpoint"
                self.warn("steps", f"a run of W&B that resumes logs no `epoch`: {before}")
        return {"epoch": logged[0] if logged else step} | row

    def warn(self, topic: str, warning: str) -> None:
        """Note what is read in another way than may be meant; the first of each topic counts."""
        self.warnings.setdefault(topic, warning)

    def refuse(self, name: str, reason: str) -> None:
        """Note why a metric cannot be read."""
        self.unread.setdefault(name, reason)

    def note_subject(self, name: str, subject: str, problem: str, *, pattern: str = "") -> bool:
        """Whether a number is of the same data as the first one of its metric. If not, the metric cannot be read.

        They may differ in words that the `pattern` has before the group of the metric, but for alternatives, as
        `(?P<kind>Final|Best)`, of which each is another kind of numbers.
        """
        first = self._subjects.setdefault(name, subject)
        if subject == first:
            return True
        before = re.sub(r"\?P<\w+>", "", pattern.partition(f"(?P<{name}>")[0])
        before = re.sub(r"\([^()]*\|[^()]*\)(?!\?)", "", before)
        differ = {*first.split()} ^ {*subject.split()}
        is_same = all(re.search(rf"(?<![a-z]){word}", before, re.IGNORECASE) for word in differ)
        if not is_same:
            self.refuse(name, f"{name} is of {first or 'unnamed data'} and of {subject or 'unnamed data'}: {problem}")
        return is_same

    def note_unit(self, name: str, unit: str) -> bool:
        """Whether a number has the unit of the first number of its metric. If not, the metric cannot be read."""
        first = self.units.setdefault(name, unit)
        if unit == first:
            return True
        self.refuse(name, f"{name} has the unit {first or 'none'} and then {unit or 'none'}, {REMEDY_FOR_UNITS}")
        return False


REMEDY_FOR_UNITS: Final = (
    "which is not read: numbers with different units do not compare; have the program print the same unit always"
)


# What a number is of: the last kind of data and of weights that are named before it, and that it is the best of
# several, or their mean. Both search lower-case text: with re.IGNORECASE they take three times as long, and each
# printed number is looked at.
_ENDINGS: Final = r"(?:ing|uat(?:e|ed|ing|ion)|id(?:at(?:e|ed|ing|ion))?)?(?![a-z])"
HELD_OUT: Final = rf"(?:test|dev|eval|val){_ENDINGS}"
_KINDS: Final = re.compile(
    rf"(?<![a-z])(?=[tdevs])(?:(train|test|dev|eval|val){_ENDINGS}|(ema|student|teacher)(?![a-z]))"
)
_SUMMARY: Final = re.compile(
    r"(?<![a-z])(best|max|mean|average|avg|std|loaded|loading|restored|restoring)(?![a-z])"
    r"(?:\D|(?<=[@a-z])\d+|(?<=epoch[ :=#])\d+|(?<=epoch: )\d+){0,40}$"
)
_WITHIN_WORD: Final = re.compile(r"(?<=[a-z])(?=[A-Z])")  # as in `ValLoss`


def find_subject(text: str) -> str:
    """Which data the text before a number names, as `val`, `best val` or `val ema`; "" if it names none."""
    words = _WITHIN_WORD.sub(" ", text).lower()
    kinds = _KINDS.findall(words)
    data = [data for data, _ in kinds if data]
    weights = [weights for _, weights in kinds if weights]
    summary = _SUMMARY.findall(words)
    return " ".join([*summary, *data[-1:], *weights[-1:]])


def find_divergence(metrics: Mapping[str, Any], names: Iterable[str]) -> str:
    """Why a trial diverged: which of these metrics is NaN or infinite; "" if none is."""
    reported = {name: metrics[name] for name in names if name in metrics}
    bad = sorted(name for name, value in reported.items() if value is None or not math.isfinite(value))
    return f"{bad[0]} became NaN or infinite" if bad else ""


def merge_row(epochs: list[dict[str, Any]], row: dict[str, Any], *, resumed: bool = False) -> None:
    """Append a row; if it is of the last epoch, its values replace that epoch's.

    The file of a program that `resumed` may still have rows of the attempt before, beyond the checkpoint. Once the
    program repeats one of their epochs, they are dropped from there on.
    """
    epoch = row.get("epoch")
    while resumed and epoch is not None and epochs and epochs[-1].get("epoch", epoch) > epoch:
        del epochs[-1]
    if epochs and epoch is not None and epochs[-1].get("epoch") == epoch:
        epochs[-1] = epochs[-1] | row
    else:
        epochs.append(row)


def join_rows(parts: Iterable[Sequence[dict[str, Any]]]) -> list[dict[str, Any]]:
    """The rows of consecutive attempts; each repeats earlier epochs from its own first epoch on."""
    joined: list[dict[str, Any]] = []
    for rows in parts:
        first = rows[0].get("epoch", 1) if rows else math.inf
        joined = [row for row in joined if row.get("epoch", math.inf) < first] + list(rows)
    return joined


def shift_epoch(row: Row, by: float) -> Row:
    """The row as that of a later epoch."""
    return {**row, "epoch": (row["epoch"] or 0) + by}


def step_numbers(rows: Sequence[Mapping[str, Any]]) -> list[int]:
    """The epochs of rows where only whole numbers are allowed: the places of the rows, from 1, if one is a fraction."""
    places = range(1, len(rows) + 1)
    epochs = [row.get("epoch", place) for row, place in zip(rows, places, strict=True)]
    return [int(epoch) for epoch in epochs] if all(epoch == int(epoch) for epoch in epochs) else list(places)


class RowLimiter:
    """Merges the rows of an epoch and limits the rate of rows.

    If a program reports an epoch more than once (a progress bar does, with each step), the merged row passes when the
    next epoch begins. The second row shows which kind of program it is: until then, the first row is held. Rows beyond
    the rate are merged into one, with the last value of each metric, which passes as soon as the rate allows.
    """

    def __init__(self, burst: float = BURST_ROWS, clock: Callable[[], float] = time.monotonic) -> None:
        self._burst = burst
        self._clock = clock
        self._room = burst
        self._updated = clock()
        self._repeats = False
        self._epoch: float | int | None = None  # the latest
        self._held: Row = {}  # of an epoch that may not be over
        self._excess: Row = {}  # rows beyond the rate, merged
        self._passed: list[Row] = []

    def add(self, row: Row, *, complete: bool) -> None:
        """Take a row; `complete` if no other row of its epoch is expected."""
        is_first = self._epoch is None
        same = row["epoch"] == self._epoch
        self._epoch = row["epoch"]
        self._repeats = self._repeats or same
        if same:
            self._held |= row
            return
        self._pass(self._held)
        self._held = {}
        if self._repeats or (is_first and not complete):
            self._held = dict(row)
        else:
            self._pass(row)

    def take_rows(self, *, final: bool) -> list[Row]:
        """The rows that passed since the last call; with `final`, also what is held or beyond the rate."""
        if final:
            self._passed += [row for row in (self._excess, self._held) if row]
            self._held = {}
            self._excess = {}
        else:
            self._pass(self._excess)
        passed = self._passed
        self._passed = []
        return passed

    def _pass(self, row: Row) -> None:
        if not row:
            return
        now = self._clock()
        self._room = min(self._burst, self._room + ROWS_PER_SECOND * (now - self._updated))
        self._updated = now
        self._excess = self._excess | row
        if self._room < 1:
            return
        self._room -= 1
        self._passed.append(self._excess)
        self._excess = {}


def thin_rows(rows: list[Row], max_rows: int) -> list[Row]:
    """At most `max_rows` rows, each merged with the dropped rows before it.

    They are the last ones, those with the lowest and the highest value of each metric, unless these are many, and
    others, evenly spaced.
    """
    if len(rows) <= max_rows:
        return rows
    kept = {*range(len(rows) - KEPT_LAST, len(rows))}
    names = {name for row in rows for name in row} - {"epoch"}
    for name in names if 4 * len(names) < max_rows else ():
        column = enumerate(row.get(name) for row in rows)
        values = {number: value for number, value in column if value is not None}
        if values:
            kept |= {min(values, key=values.__getitem__), max(values, key=values.__getitem__)}
    step = -(-len(rows) // max(1, max_rows - len(kept)))
    kept |= {*range(0, len(rows), step)}
    thinned = list[Row]()
    merged = Row()
    for place, row in enumerate(rows):
        merged = merged | row
        if place in kept:
            thinned.append(merged)
            merged = {}
    return thinned
