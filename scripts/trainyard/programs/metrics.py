"""The metrics that a user's program tells while it runs: rows of numbers by name, from a file or from its output."""

import codecs
import csv
import json
import math
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from trainyard.config.user_programs import NUMBER, Metrics

Row = dict[str, float | int | None]
SHOWN: Final = 80  # characters of what could not be read
# Of a line of output, so many characters are looked at: a pattern may take time that grows with their square.
LINE_CHARACTERS: Final = 16_384
LINE_BYTES: Final = 2**20  # of a file of metrics; a longer one is none
CHECKED_BYTES: Final = 4096  # at both ends of what was read of a file, by which it is seen whether it was written anew
# Each row costs a line of the journal, and the program's driver a moment: so many may come at once, and then one a
# second. Whoever tells more tells of steps, not of epochs.
BURST_ROWS: Final = 300
RESUMED_ROWS: Final = 3000  # the same, where the rows of an earlier attempt come all at once
ROWS_PER_SECOND: Final = 1.0
CHUNK_BYTES: Final = 2**20
UNREADABLE_REMEDY: Final = (
    "It is not run again: correct `metrics`, and the same command reads what is kept of it, without running anything. "
    "If it is the program that must be corrected, raise `retrain`"
)
_LINE_END: Final = re.compile(r"[\r\n]+")
# Colours, movements of the cursor, titles of windows: ECMA-48, sections 5.3 to 5.6.
_ESCAPE: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-~])")


class Lines:
    """Cuts output into lines as it comes, without escape codes. It takes linear time, also where no line ends."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._parts: list[str] = []  # of the line that is not whole yet
        self._room = LINE_CHARACTERS

    def feed(self, chunk: bytes, *, last: bool = False) -> list[str]:
        """The lines that are whole now, but empty ones; with `last`, what is left is one."""
        parts = _LINE_END.split(self._decoder.decode(chunk, last))
        lines = []
        for part in parts[:-1]:
            self._extend(part)
            lines.append(self._end_line())
        self._extend(parts[-1])
        if last:
            lines.append(self._end_line())
        return [line for line in lines if line]

    def _extend(self, part: str) -> None:
        if part and self._room:
            self._parts.append(part[: self._room])
            self._room -= len(self._parts[-1])

    def _end_line(self) -> str:
        line = _ESCAPE.sub("", "".join(self._parts)).rstrip()
        self._parts, self._room = [], LINE_CHARACTERS
        return line


class Reported:
    """Collects rows: `hear` each line of the output, `look` now and then, and once more at the `last`."""

    def __init__(
        self,
        metrics: Metrics | None,
        folder: Path,
        *,
        goes_on: bool = False,
        judged: bool = True,
        burst: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """With `goes_on`, rows that are in the file already count: an earlier attempt is being continued.

        Where rows are `judged`, none of them may hold the first values of an epoch that is told again.
        """
        path = folder / metrics.file if metrics and metrics.file else None
        self._patterns = metrics.compiled if metrics else []
        self._groups = {name for pattern in self._patterns for name in pattern.groupindex}
        self._open: dict[str, Any] = {}  # a row that is not whole yet
        self._new: list[dict[str, Any]] = []
        self._count, self._judged = 0, judged
        self.latest: Row = {}  # the last value of each metric, of all rows until the latest look
        self._sieve = Sieve(burst or (RESUMED_ROWS if goes_on else BURST_ROWS), clock)
        self._warning, self._warns = "", True
        if path and path.exists() and not goes_on:  # an earlier attempt's rows are not this one's
            path.rename(path.with_name(f"{path.name}.before"))
        self._file: _File | None = None
        if path:
            self._file = _JsonFile(path) if path.suffix == ".json" else _GrowingFile(path)

    @property
    def problem(self) -> str:
        """What cannot be read of the file; "" if nothing is wrong with it. Only after the `last` look."""
        return self._file.problem if self._file else ""

    def hear(self, line: str) -> None:
        """Take in a line of the output."""
        line = line.strip()
        for pattern in self._patterns:
            if match := pattern.search(line):
                if self._warns and (warning := _cut_number(match)):
                    self._warning, self._warns = warning, False
                found = {name: value for name, value in match.groupdict().items() if value is not None}
                if found.keys() & self._open.keys():
                    self._close_row()
                self._open |= found
                if self._open.keys() >= self._groups:
                    self._close_row()

    def look(self, *, last: bool = False) -> list[Row]:
        """The rows that have come since. One of an epoch that was told before holds later values of it.

        Not all are given: see `Sieve`. What the `last` look gives ends with the last of all.
        """
        if last and self._open:
            self._close_row()
        if self._file:
            self._new += self._file.look(last=last)
        if last and self.problem:
            self._warning = self.problem
        new, self._new = self._new, []
        for row in new:
            numbers = as_row(row)
            self._count += 1
            epoch = numbers.pop("epoch", None)
            self.latest |= numbers
            whole = epoch is None or not self._judged  # a row that is counted is all that there is of its epoch
            self._sieve.put({"epoch": int(self._count if epoch is None else epoch), **numbers}, whole=whole)
        return self._sieve.passed(last=last)

    def warning(self) -> dict[str, str]:
        """A `warning` of what the user should know of how metrics are told, if there is a new one."""
        said, self._warning = self._warning, ""
        return {"warning": said} if said else {}

    def _close_row(self) -> None:
        self._new.append(self._open)
        self._open = {}


class Sieve:
    """Which rows are told on: the last of each epoch, and not more than the journal can take.

    A program that tells an epoch more than once (a progress bar does, with each step) has it told on when the next one
    begins. It is known with its second row: until then, the first row waits. A program that tells more rows than the
    rate allows has the latest of them told on whenever there is room again, with the last value of each metric.
    """

    def __init__(self, burst: float = BURST_ROWS, clock: Callable[[], float] = time.monotonic) -> None:
        self._burst, self._clock = burst, clock
        self._room, self._at = burst, clock()
        self._repeats = False
        self._epoch: float | int | None = None  # the latest
        self._held: Row = {}  # of an epoch that is still being told
        self._late: Row = {}  # rows for which there is no room yet, in one
        self._passed: list[Row] = []

    def put(self, row: Row, *, whole: bool) -> None:
        """Take in a row; `whole` if, as far as is known, it is all of its epoch."""
        is_first = self._epoch is None
        same, self._epoch = row["epoch"] == self._epoch, row["epoch"]
        self._repeats = self._repeats or same
        if same:
            self._held |= row
            return
        self._pass(self._held)
        self._held = {}
        if self._repeats or (is_first and not whole):
            self._held = dict(row)
        else:
            self._pass(row)

    def passed(self, *, last: bool) -> list[Row]:
        """The rows to tell on since the last call; with `last`, the latest whatever the rate."""
        if last:
            self._passed += [row for row in (self._late, self._held) if row]
            self._held, self._late = {}, {}
        else:
            self._pass(self._late)
        passed, self._passed = self._passed, []
        return passed

    def _pass(self, row: Row) -> None:
        if not row:
            return
        now = self._clock()
        self._room = min(self._burst, self._room + ROWS_PER_SECOND * (now - self._at))
        self._at = now
        self._late = self._late | row
        if self._room < 1:
            return
        self._room -= 1
        self._passed.append(self._late)
        self._late = {}


def thinned(rows: list[Row], most: int) -> list[Row]:
    """At most so many of the rows, evenly, the last one among them; each with what those left out before it told."""
    step = max(1, -(-len(rows) // max(1, most)))
    kept, merged = list[Row](), Row()
    for left, row in zip(reversed(range(len(rows))), rows, strict=True):
        merged = merged | row
        if left % step == 0:
            kept.append(merged)
            merged = {}
    return kept


@dataclass(frozen=True)
class Reading:
    """What was found in what is kept of a program."""

    rows: list[Row] = field(default_factory=list)
    metrics: Row = field(default_factory=dict)  # the last value of each
    untold: str = ""  # why there is none
    warning: str = ""


def read_again(metrics: Metrics | None, folder: Path, output: Path, *, seconds: float) -> Reading:
    """What a program that ran for so many seconds told, from what is kept of it."""
    if metrics is None:
        return Reading()
    reported = Reported(metrics, folder, goes_on=True, burst=math.inf)
    lines = Lines()
    with open(output if metrics.patterns else os.devnull, "rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            for line in lines.feed(chunk):
                reported.hear(line)
    for line in lines.feed(b"", last=True):
        reported.hear(line)
    rows = list[Row]()
    for row in reported.look(last=True):
        add_row(rows, row)
    few = thinned(rows, int(BURST_ROWS + seconds * ROWS_PER_SECOND))
    why = "" if reported.latest else reported.problem or untold(metrics)
    return Reading(few, reported.latest, why, reported.warning().get("warning", ""))


def untold(metrics: Metrics | None) -> str:
    """What to say of a program that ended well, but told nothing."""
    if metrics is None:
        return ""
    where = metrics.file or f"its output by {' and '.join(metrics.patterns)}"
    return f"it ended well, but told no metrics: none were found in {where}"


# ---- files


class _File(Protocol):
    problem: str

    def look(self, *, last: bool) -> list[dict[str, Any]]:
        """The rows that are new. What cannot be read may be half written: only at the `last` look it is a problem."""


class _JsonFile:
    """A row each time that it is written, or a list of rows that grows."""

    def __init__(self, path: Path) -> None:
        self.problem = ""
        self._path, self._content, self._told = path, b"", 0
        self._state: tuple[int, ...] = ()

    def look(self, *, last: bool) -> list[dict[str, Any]]:
        try:
            state = _state(self._path.stat())
            content = self._content if state == self._state and not last else self._path.read_bytes()
        except FileNotFoundError:
            return []
        self._state = state
        if content == self._content:
            return []
        try:
            parsed = json.loads(content)
            rows = [_mapping(row) for row in (parsed if isinstance(parsed, list) else [parsed])]
        except (ValueError, TypeError) as error:
            if last:
                self.problem = f"{self._path} cannot be read as json: {error}"
            return []
        self._content = content
        new = rows if isinstance(parsed, dict) else rows[self._told :]
        self._told = len(rows)
        return new


class _GrowingFile:
    """A row a line, as JSON or below a heading of CSV. Only what is new is read, until it is written anew."""

    def __init__(self, path: Path) -> None:
        self.problem = ""
        self._path, self._state = path, tuple[int, ...]()
        self._begin()

    def _begin(self) -> None:
        self._read, self._head, self._foot, self._rest = 0, b"", b"", b""
        self._heading: list[str] | None = None

    def look(self, *, last: bool) -> list[dict[str, Any]]:
        text = self._rest + self._new_bytes(last=last)
        end = len(text) if last else text.rfind(b"\n") + 1
        self._rest = text[end:]
        if len(self._rest) > LINE_BYTES:
            self._rest, self.problem = b"", self._cannot(f"a line is longer than {LINE_BYTES} bytes")
        rows = []
        for line in text[:end].decode(errors="replace").splitlines():
            try:
                rows += self._row(line) if line.strip() else []
            except (ValueError, TypeError, csv.Error) as error:
                self.problem = self._cannot(str(error))
        return rows

    def _row(self, line: str) -> list[dict[str, Any]]:
        if self._path.suffix == ".jsonl":
            return [_mapping(json.loads(line))]
        (cells,) = csv.reader([line])
        if self._heading is None:
            self._heading = cells
        if cells == self._heading:  # again, where a program that goes on writes it again
            return []
        return [dict(zip(self._heading, cells, strict=False))]

    def _cannot(self, why: str) -> str:
        return f"{self._path} cannot be read as {self._path.suffix[1:]}: {why}"

    def _new_bytes(self, *, last: bool) -> bytes:
        try:
            file = open(self._path, "rb")  # noqa: SIM115  (closed below)
        except FileNotFoundError:
            return b""
        with file:
            state = _state(os.fstat(file.fileno()))
            if state == self._state and not last:
                return b""
            self._state = state
            if not self._head.startswith(file.read(len(self._head))):
                self._begin()
            elif os.fstat(file.fileno()).st_size < self._read:  # it is being written anew
                return b""
            file.seek(self._read - len(self._foot))
            if file.read(len(self._foot)) != self._foot:
                self._begin()
            file.seek(self._read)
            new = file.read()
        self._head = (self._head + new[:CHECKED_BYTES])[:CHECKED_BYTES]
        self._foot = (self._foot + new[-CHECKED_BYTES:])[-CHECKED_BYTES:]
        self._read += len(new)
        return new


def _state(stat: os.stat_result) -> tuple[int, ...]:
    """Changes when a file is written."""
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


def _mapping(row: Any) -> dict[str, Any]:
    if not isinstance(row, dict):
        raise TypeError(f"a row must be a mapping of names to numbers, not {str(row)[:SHOWN]}")
    return row


# ---- numbers


_NO_NUMBER: Final = object()
_WHOLE_NUMBER: Final = re.compile(r"\d+(?:,\d{3}(?!\d)|_\d+)*(?:\.\d+)?(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?")
_SIGN_BEFORE: Final = re.compile(r"(?:^|[\s=:,;(\[|])-$")


def as_row(metrics: dict[str, Any]) -> Row:
    """The numbers among some metrics; what is not finite is None."""
    return {name: number for name, value in metrics.items() if (number := _number(value)) is not _NO_NUMBER}


def _number(value: Any) -> Any:
    if hasattr(value, "item"):  # of numpy or torch
        value = value.item()
    if isinstance(value, (bool, int)):
        return int(value)
    percent = isinstance(value, str) and value.rstrip().endswith("%")
    try:
        number = float(value.rstrip().removesuffix("%")) / 100 if percent else float(value)
    except (TypeError, ValueError):
        return _NO_NUMBER
    if not math.isfinite(number):
        return None
    return int(number) if isinstance(value, str) and re.fullmatch(r"[+-]?\d+", value.strip()) else number


def divergence(metrics: Mapping[str, Any], names: Iterable[str]) -> str:
    """Why a trial that ended by itself has diverged, by the metrics of these names; "" if it has not."""
    told = {name: metrics[name] for name in names if name in metrics}
    bad = sorted(name for name, value in told.items() if value is None or not math.isfinite(value))
    return f"{bad[0]} became NaN or infinite" if bad else ""


def _cut_number(match: "re.Match[str]") -> str | None:
    """What is wrong with a pattern that takes only a part of a number, as `1.2` of `1.2e-05`."""
    line, taken = match.string, [match.start(name) for name in match.re.groupindex]
    for name in match.re.groupindex:
        start, end = match.span(name)
        whole = _WHOLE_NUMBER.match(line, start + (line[start : start + 1] in ("+", "-"))) if start < end else None
        if whole is None or any(end <= other < whole.end() for other in taken):
            continue
        sign = "-" if _SIGN_BEFORE.search(line, max(0, start - 2), start) else ""
        if whole.end() > end or sign:
            value, number = match[name], sign + line[start : max(end, whole.end())]
            remedy = f"write (?P<{name}>{{number}}), which takes signs, exponents and percent"
            if re.search("[,_]", whole[0]):
                remedy = "no number may hold `,` or `_`, have the program print it without them"
            return f"the pattern {_shown(match.re.pattern)} takes {value!r} out of {number!r} for {name}: {remedy}"
    return None


def _shown(pattern: str) -> str:
    """A pattern as the user has written it."""
    return pattern.replace(NUMBER, "{number}")


def add_row(epochs: list[dict[str, Any]], row: dict[str, Any]) -> None:
    """Add what was told of an epoch; told again, the last value of each metric counts."""
    if epochs and "epoch" in row and epochs[-1].get("epoch") == row["epoch"]:
        epochs[-1] = epochs[-1] | row
    else:
        epochs.append(row)
