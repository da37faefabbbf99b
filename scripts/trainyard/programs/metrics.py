"""Metrics that a user's program reports while it runs: rows of numbers by name, from a file or from its output."""

import codecs
import csv
import json
import math
import os
import re
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any, BinaryIO, Final

from trainyard.config.user_programs import NUMBER, Metrics, find_mismatch
from trainyard.programs.output import LineSplitter

Row = dict[str, float | int | None]  # metrics by name; None for NaN and infinity
CHUNK_BYTES: Final = 2**20
MAX_INTEGER: Final = 2**62  # of a metric
KEPT_LINES: Final = 100  # the last ones, for the error that names the part of a pattern that matches,
KEPT_CHARACTERS: Final = 300  # and of each: the parts of a pattern with several `.*` take cubic time
SHOWN_CHARACTERS: Final = 80  # of an invalid row of a file, in an error
LINE_BYTES: Final = 2**20  # of a file; a longer line is an error
CHECKED_BYTES: Final = 4096  # at both ends of what was read of a file: if they change, it was rewritten
# Each row costs a line of the journal and time of the driver. After these bursts, one row per second is allowed:
# a program that reports more often reports steps, not epochs.
BURST_ROWS: Final = 300
RESUMED_BURST_ROWS: Final = 3000  # when the rows of an earlier attempt arrive all at once
ROWS_PER_SECOND: Final = 1.0
BEFORE: Final = ".before"  # suffix of a file of metrics of an earlier attempt
LOOK_SECONDS: Final = 2.0  # between two looks for new event files
UNREADABLE_REMEDY: Final = (
    "It is not run again: correct `metrics`, and the same command reads the saved output again, without running "
    "anything. If the program itself must be corrected, increase `retrain`"
)


class MetricsCollector:
    """Collects rows: call `add_line` for each line of output, `new_rows` regularly, and once more with `final`."""

    def __init__(
        self,
        metrics: Metrics | None,
        folder: Path,
        *,
        resumes: bool = False,
        hold_first_row: bool = True,
        burst: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """If the program `resumes` an earlier attempt, the rows that are in the file already count.

        With `hold_first_row`, the first row is held until it is known whether its epoch is reported again. Early
        stopping needs this: it must not judge the first values of an epoch that is still running.
        """
        self.section, self.folder = metrics, folder
        self._parser = PatternParser(metrics.compiled if metrics else [])
        self._row_count, self._hold_first_row = 0, hold_first_row
        self.latest: Row = {}  # the last value of each metric in all rows until the latest `new_rows`
        self.counts_epochs = True  # whether each row had a whole number as its epoch
        self._limiter = RowLimiter(burst or (RESUMED_BURST_ROWS if resumes else BURST_ROWS), clock)
        self._is_final, self._warned = False, False
        self._last_lines = deque[str](maxlen=KEPT_LINES)
        for path in metric_files(metrics, folder) if not resumes else ():  # these rows are of an earlier attempt
            if path.suffix != BEFORE:
                path.rename(path.with_name(f"{path.name}{BEFORE}"))
        self._file: MetricsFile | EventFiles | None = None
        if metrics and metrics.tensorboard:
            self._file = EventFiles(metrics, folder)
        elif metrics and metrics.file:
            kind = JsonMetricsFile if metrics.file.endswith(".json") else LineMetricsFile
            self._file = kind(folder / metrics.file)

    @property
    def error(self) -> str:
        """Why a part of the file cannot be read; "" if nothing is wrong. Only after the `final` call of `new_rows`."""
        return self._file.error if self._file else ""

    @property
    def missing(self) -> str:
        """Why no metrics were found; "" if some were. Only after the `final` call of `new_rows`."""
        if self.latest or self.section is None:
            return ""
        where = self.section.place or f"its output by {' and '.join(self.section.patterns)}"
        places = (find_mismatch(pattern, self._last_lines) for pattern in self.section.patterns)
        place = next(filter(None, places), "")
        return self.error or f"it succeeded, but reported no metrics: none were found in {where}{place}"

    def add_line(self, line: str) -> None:
        """Search a line of the output."""
        self._parser.add_line(line)
        self._last_lines.append(line.strip()[:KEPT_CHARACTERS])

    def new_rows(self, *, final: bool = False, torn: bool = False) -> list[Row]:
        """The rows since the last call; a row of a known epoch holds later values of it.

        Not every row is returned: see `RowLimiter`. The `final` call always returns the last row. `torn`: the program
        was killed or failed, so the end of its file may be only a part of a row.
        """
        self._is_final = final
        new = self._parser.take_rows(final=final)
        if self._file:
            new += self._file.new_rows(final=final and not torn)
        for row in new:
            numbers = numeric_row(row)
            self._row_count += 1
            reported = numbers.get("epoch")
            self.counts_epochs &= reported is not None and reported == int(reported)
            complete = reported is None or not self._hold_first_row  # without an epoch, each row is one
            epoch = take_epoch(numbers, self._row_count)
            self.latest |= numbers
            epoch_row: Row = {"epoch": epoch, **numbers}
            self._limiter.add(epoch_row, complete=complete)
        return self._limiter.take_rows(final=final)

    def take_warning(self) -> str:
        """A new warning about how metrics are read; "" if there is none."""
        warning = self._parser.warning or (self.error if self._is_final else "")
        if self._warned or not warning:
            return ""
        self._warned = True
        return warning


@dataclass(frozen=True)
class ParsedOutput:
    """The metrics in the saved output and metrics file of a program."""

    rows: list[Row] = field(default_factory=list)
    metrics: Row = field(default_factory=dict)  # the last value of each
    missing: str = ""  # why there are none
    warning: str = ""
    counts_epochs: bool = False  # as in `MetricsCollector`


def parse_saved_output(
    metrics: Metrics | None, folder: Path, output: Path, *, seconds: float, resumed: bool = False, torn: bool = False
) -> ParsedOutput:
    """The metrics of a program that ran for `seconds`, parsed again from its saved files.

    `resumed` is as in `merge_row`, and `torn` as in `MetricsCollector.new_rows`.
    """
    if metrics is None:
        return ParsedOutput()
    collector = MetricsCollector(metrics, folder, resumes=True, burst=math.inf)
    splitter = LineSplitter()
    with open(output if metrics.patterns else os.devnull, "rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            for line in splitter.feed(chunk):
                collector.add_line(line)
    for line in () if torn else splitter.feed(b"", final=True):
        collector.add_line(line)
    rows = list[Row]()
    for row in collector.new_rows(final=True, torn=torn):
        merge_row(rows, row, resumed=resumed)
    rows = thin_rows(rows, int(BURST_ROWS + seconds * ROWS_PER_SECOND))
    return ParsedOutput(rows, collector.latest, collector.missing, collector.take_warning(), collector.counts_epochs)


def latest_saved_metrics(metrics: Metrics | None, folder: Path, outputs: Iterable[Path]) -> Row:
    """The metrics in the first of these saved outputs that has any; {} if none has. Their programs were ended.

    An output may be missing: its program did not start, or the disk was full.
    """
    there = (output for output in outputs if output.exists())
    read = (parse_saved_output(metrics, folder, output, seconds=0.0, torn=True) for output in there)
    return next((each.metrics for each in read if each.metrics), {})


_NOT_A_NUMBER: Final = object()


def numeric_row(metrics: Mapping[str, Any]) -> Row:
    """The metrics that are numbers. NaN, infinity and what is too large for a float become None.

    Integers have at most 64 bits, as in tables; larger ones become floats.
    """
    return {name: number for name, value in metrics.items() if (number := _number(value)) is not _NOT_A_NUMBER}


def take_epoch(row: Row, counted: int) -> int:
    """Remove the epoch from a row and return it; `counted` if the row has none."""
    epoch = row.pop("epoch", None)
    return counted if epoch is None or abs(epoch) > MAX_INTEGER else int(epoch)


def _number(value: Any) -> Any:
    percent = isinstance(value, str) and value.rstrip().endswith("%")
    try:
        if hasattr(value, "item"):  # a scalar of NumPy or torch
            value = value.item()
        number = float(value.rstrip().removesuffix("%")) / 100 if percent else float(value)
    except OverflowError:
        return None
    except (TypeError, ValueError, RuntimeError):  # torch raises the last for a tensor of several elements
        return _NOT_A_NUMBER
    if not math.isfinite(number):
        return None
    is_integer = isinstance(value, int) or (isinstance(value, str) and re.fullmatch(r"[+-]?\d+", value.strip()))
    return int(value) if is_integer and abs(number) <= MAX_INTEGER else number


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


def shift_epoch(row: Row, by: int) -> Row:
    """The row as that of a later epoch."""
    return {**row, "epoch": int(row["epoch"] or 0) + by}


class RowLimiter:
    """Merges the rows of an epoch and limits the rate of rows.

    If a program reports an epoch more than once (a progress bar does, with each step), the merged row passes when the
    next epoch begins. The second row shows which kind of program it is: until then, the first row is held. Rows beyond
    the rate are merged into one, with the last value of each metric, which passes as soon as the rate allows.
    """

    def __init__(self, burst: float = BURST_ROWS, clock: Callable[[], float] = time.monotonic) -> None:
        self._burst, self._clock = burst, clock
        self._room, self._updated = burst, clock()
        self._repeats = False
        self._epoch: float | int | None = None  # the latest
        self._held: Row = {}  # of an epoch that may not be over
        self._excess: Row = {}  # rows beyond the rate, merged
        self._passed: list[Row] = []

    def add(self, row: Row, *, complete: bool) -> None:
        """Take a row; `complete` if no other row of its epoch is expected."""
        is_first = self._epoch is None
        same, self._epoch = row["epoch"] == self._epoch, row["epoch"]
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
            self._held, self._excess = {}, {}
        else:
            self._pass(self._excess)
        passed, self._passed = self._passed, []
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
    """At most `max_rows` rows, evenly spaced, including the last; each merged with the dropped rows before it."""
    step = max(1, -(-len(rows) // max(1, max_rows)))
    kept, merged = list[Row](), Row()
    for remaining, row in zip(reversed(range(len(rows))), rows, strict=True):
        merged = merged | row
        if remaining % step == 0:
            kept.append(merged)
            merged = {}
    return kept


class PatternParser:
    """Collects rows of metrics from lines of output. A row is complete once every named group has matched."""

    def __init__(self, patterns: Sequence[re.Pattern[str]]) -> None:
        self._patterns = patterns
        self._groups = {name for pattern in patterns for name in pattern.groupindex}
        self._open: dict[str, Any] = {}  # the incomplete row
        self._rows: list[dict[str, Any]] = []
        self.warning = ""  # about the first number that a pattern matches only partly

    def add_line(self, line: str) -> None:
        """Search a line with all patterns."""
        line = line.strip()
        for pattern in self._patterns:
            if match := pattern.search(line):
                self.warning = self.warning or _partial_number_warning(match)
                found = {name: value for name, value in match.groupdict().items() if value is not None}
                if found.keys() & self._open.keys():
                    self._close_row()
                self._open |= found
                if self._open.keys() >= self._groups:
                    self._close_row()

    def take_rows(self, *, final: bool) -> list[dict[str, Any]]:
        """The rows completed since the last call; with `final`, also the incomplete one."""
        if final and self._open:
            self._close_row()
        rows, self._rows = self._rows, []
        return rows

    def _close_row(self) -> None:
        self._rows.append(self._open)
        self._open = {}


_WHOLE_NUMBER: Final = re.compile(r"\d+(?:,\d{3}(?!\d)|_\d+)*(?:\.\d+)?(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?")
_IN_NUMBER: Final = "0123456789.,_eE+-"
_SIGN_BEFORE: Final = re.compile(r"(?:^|[\s=:,;(\[|])-$")
_QUANTIFIER: Final = re.compile(r"(?<!\\)[*+?]$")  # as in `.*`, which takes the first digits of a number


def _partial_number_warning(match: "re.Match[str]") -> str:
    """What is wrong with a pattern that matches only a part of a number, as `1.2` of `1.2e-05`; "" if nothing is."""
    line, starts = match.string, [match.start(name) for name in match.re.groupindex]
    for name in match.re.groupindex:
        start, end = match.span(name)
        if start == end:  # it has matched nothing
            continue
        first = _start_of_number(match, name)
        whole = _WHOLE_NUMBER.match(line, first + (line[first] in "+-"))
        if whole is None or any(end <= other < whole.end() for other in starts):
            continue
        sign = "-" if _SIGN_BEFORE.search(line, max(0, first - 2), first) else ""
        if whole.end() > end or sign or first < start:
            value, number = match[name], sign + line[first : max(end, whole.end())]
            remedy = f"write (?P<{name}>{{number}}), which matches signs, exponents and percent"
            if re.search("[,_]", whole[0]):
                remedy = "numbers must not contain `,` or `_`: have the program print them without"
            elif first < start:
                remedy = f"write the text that is before the number, as in `{name}=`, before (?P<{name}>"
            pattern = match.re.pattern.replace(NUMBER, "{number}")  # as the user wrote it
            return f"the pattern {pattern} matches only {value!r} of {number!r} for {name}: {remedy}"
    return ""


def _start_of_number(match: "re.Match[str]", name: str) -> int:
    """Where the number of a group begins: before the group, unless the pattern matches what is there."""
    line, start = match.string, match.start(name)
    if start == 0 or line[start - 1] not in _IN_NUMBER:
        return start
    before = match.re.pattern.partition(f"(?P<{name}>")[0]
    if match.start() < start and not _QUANTIFIER.search(before):
        return start
    numbers = _WHOLE_NUMBER.finditer(line)
    return next((number.start() for number in numbers if number.start() < start < number.end()), start)


class MetricsFile(ABC):
    """A file of metrics, read while a program still writes it. It does not have to exist yet."""

    def __init__(self, path: Path) -> None:
        self.error = ""  # why a part of the file cannot be read
        self._path, self._state = path, tuple[int, ...]()

    def new_rows(self, *, final: bool) -> list[dict[str, Any]]:
        """The rows since the last call; with `final`, also an incomplete one."""
        try:
            with open(self._path, "rb") as file:
                status = os.fstat(file.fileno())
                state = status.st_ino, status.st_size, status.st_mtime_ns  # changes when the file is written
                if state == self._state and not final:
                    return []
                self._state = state
                return self._read(file, final=final)
        except FileNotFoundError:
            return []
        except OSError as error:  # the next call may succeed
            self._state = ()
            if final:
                self._set_error(error)
            return []

    @abstractmethod
    def _read(self, file: BinaryIO, *, final: bool) -> list[dict[str, Any]]:
        """The rows since the last call, of a file that has been written since."""

    def _set_error(self, error: Exception) -> None:
        reason = error.strerror if isinstance(error, OSError) else error
        self.error = f"{self._path} cannot be read as {self._path.suffix[1:]}: {reason}"


class JsonMetricsFile(MetricsFile):
    """A `.json` file: one row, which the program overwrites, or a list of rows, which grows or is written anew."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._content, self._rows = b"", list[dict[str, Any]]()  # at the last call
        self._was_changed = False  # the list: from then on, its rows cannot be counted as they come

    def _read(self, file: BinaryIO, *, final: bool) -> list[dict[str, Any]]:
        """An invalid row may be incomplete: it is an error only in the `final` call."""
        content = file.read()
        if content == self._content:
            return []
        try:
            parsed = json.loads(content)  # one object for all NaN: rows that have it are equal
            rows = [_checked_row(row) for row in (parsed if isinstance(parsed, list) else [parsed])]
        except (ValueError, TypeError) as error:
            if final:
                self._set_error(error)
            return []
        self._content = content
        same = takewhile(lambda pair: pair[0] == pair[1], zip(self._rows, rows, strict=False))
        known = sum(1 for _ in same)
        is_list = isinstance(parsed, list)
        self._was_changed = self._was_changed or (is_list and known < len(self._rows))
        self._rows = rows
        numbered = is_list and self._was_changed
        return [({"epoch": place} if numbered else {}) | row for place, row in enumerate(rows[known:], known + 1)]


class LineMetricsFile(MetricsFile):
    """A `.csv` file or JSON lines: one row per line. Only new bytes are read, unless the file was rewritten."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._reset()

    def _reset(self) -> None:
        self._offset, self._head, self._tail, self._incomplete = 0, b"", b"", b""
        self._header: list[str] | None = None

    def _read(self, file: BinaryIO, *, final: bool) -> list[dict[str, Any]]:
        new = self._new_bytes(file)  # first: it discards the incomplete line of a rewritten file
        text = self._incomplete + new
        end = len(text) if final else text.rfind(b"\n") + 1
        self._incomplete = text[end:]
        if len(self._incomplete) > LINE_BYTES:
            self._incomplete = b""
            self._set_error(ValueError(f"a line is longer than {LINE_BYTES} bytes"))
        rows = []
        for line in re.split("[\r\n]+", text[:end].decode(errors="replace")):
            try:
                rows += self._parse(line) if line.strip() else []
            except (ValueError, TypeError, csv.Error) as error:
                self._set_error(error)
        return rows

    def _parse(self, line: str) -> list[dict[str, Any]]:
        if self._path.suffix != ".csv":
            return [_checked_row(json.loads(line))]
        (cells,) = csv.reader([line])
        if self._header is None:
            self._header = cells
        if cells == self._header:  # a program that resumes may write the header again
            return []
        return [dict(zip(self._header, cells, strict=False))]

    def _new_bytes(self, file: BinaryIO) -> bytes:
        if not self._head.startswith(file.read(len(self._head))):
            self._reset()
        elif os.fstat(file.fileno()).st_size < self._offset:  # it is being rewritten
            return b""
        file.seek(self._offset - len(self._tail))
        if file.read(len(self._tail)) != self._tail:
            self._reset()
        file.seek(self._offset)
        new = file.read()
        is_first = self._offset == 0
        self._head = (self._head + new[:CHECKED_BYTES])[:CHECKED_BYTES]
        self._tail = (self._tail + new[-CHECKED_BYTES:])[-CHECKED_BYTES:]
        self._offset += len(new)
        return new.removeprefix(codecs.BOM_UTF8) if is_first else new


def _checked_row(row: Any) -> dict[str, Any]:
    if not isinstance(row, dict):
        raise TypeError(f"a row must be a mapping of names to numbers, not {str(row)[:SHOWN_CHARACTERS]}")
    return row


def metric_files(metrics: Metrics | None, folder: Path) -> list[Path]:
    """The files in a program's folder with its metrics, also those of earlier attempts, with the suffix BEFORE."""
    if metrics is None or metrics.place is None:
        return []
    if metrics.file:
        found = {folder / metrics.file, folder / f"{metrics.file}{BEFORE}"}
    else:
        matching = set(folder.glob(metrics.place))
        found = matching.union(*(each.iterdir() for each in matching if each.is_dir()))
        found = {each for each in found if "tfevents" in each.name}
    return sorted(each for each in found if each.is_file())


class EventFiles:
    """The scalars in event files of TensorBoard, read while a program still writes them; they need not exist yet.

    The scalars of folders below the topmost one, as those of `add_scalars`, have the path to it before their names.
    """

    def __init__(self, metrics: Metrics, folder: Path) -> None:
        # TensorBoard's own reader, which waits for the rest of an incomplete event; it takes a second to import.
        from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

        self.error = ""
        self._metrics, self._folder, self._open = metrics, folder, LegacyEventFileLoader
        self._loaders, self._looked_at = dict[Path, Any](), -math.inf

    def new_rows(self, *, final: bool) -> list[dict[str, Any]]:
        """A row for each step with new scalars since the last call, in the order of the steps."""
        if final or time.monotonic() >= self._looked_at + LOOK_SECONDS:
            self._looked_at = time.monotonic()
            for path in metric_files(self._metrics, self._folder):
                if path not in self._loaders and path.suffix != BEFORE:
                    self._loaders[path] = self._open(str(path))
        places = {path: path.parent.relative_to(self._folder).parts for path in self._loaders}
        top = min(map(len, places.values()), default=0)
        steps: dict[int, dict[str, Any]] = {}
        for path, loader in self._loaders.items():
            for event in loader.Load():
                scalars = ((value.tag, _scalar(value)) for value in event.summary.value)
                row = {"/".join((*places[path][top:], tag)): number for tag, number in scalars if number is not None}
                if row:
                    steps[event.step] = steps.get(event.step, {}) | row
        return [{"epoch": step, **steps[step]} for step in sorted(steps)]


def _scalar(value: Any) -> float | None:
    """The number of a value in a summary, as old and new writers have it; None if it is an image, say."""
    if value.WhichOneof("value") == "simple_value":
        return float(value.simple_value)
    if value.WhichOneof("value") != "tensor":
        return None
    from tensorboard.util.tensor_util import make_ndarray

    array = make_ndarray(value.tensor)
    return float(array.item()) if array.size == 1 and array.dtype.kind in "fiu" else None
