"""Files of metrics that a program writes, read while it still writes them."""

import codecs
import csv
import json
import math
import os
import re
import struct
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Final

from trainyard.config.placeholders import dotted_items
from trainyard.config.user_programs import EPOCH_NAMES, Metrics
from trainyard.programs.metric_rows import ReadingNotes, numeric_row
from trainyard.programs.wandb_runs import MAGIC, read_history

SHOWN_CHARACTERS: Final = 80  # of an invalid row of a file, in an error
LINE_BYTES: Final = 2**20  # of a file; a longer line is an error
MOST_STARTS: Final = 20  # of objects that are looked at in a damaged line
CHECKED_BYTES: Final = 4096  # at both ends of what was read of a file: if they change, it was rewritten
BEFORE: Final = ".before"  # suffix of a file of metrics of an earlier attempt
LOOK_SECONDS: Final = 2.0  # between two looks for new files
SHOWN_FILES: Final = 3  # that a program has left, in an error


class MetricsFile:
    """A file of metrics, read while a program still writes it. It does not have to exist yet.

    Whether it is a table, JSON, has a JSON object a line, or is a run of W&B is seen by its content. Of a file that is
    written anew, as for a new column, the rows that have changed are new.
    """

    def __init__(self, path: Path, notes: ReadingNotes) -> None:
        self._notes = notes
        self.error = ""  # why a part of the file cannot be read
        self.is_complete = True  # whether its end could be read
        self._path = path
        self._state = tuple[int, ...]()
        self._known: list[int] = []  # a digest of each row that was read
        self._was_changed = False  # a row of a table or list: from then on, rows cannot be counted as they come
        self._reset()

    def _reset(self) -> None:
        self._offset = 0
        self._head = b""
        self._tail = b""
        self._incomplete = b""
        self._has_lines: bool | None = None  # None: unknown
        self._header: list[str] | None = None
        self._delimiter = ""  # of a table
        self._place = 0  # of the next row in the file

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

    def _read(self, file: BinaryIO, *, final: bool) -> list[dict[str, Any]]:
        if not self._head.startswith(file.read(len(self._head))):
            self._reset()
        if self._path.suffix == ".csv" or self._delimiter or (not self._head and self._begins_table(file)):
            return self._read_lines(file, self._parse_cells, final=final)
        if (self._head or file.read(len(MAGIC))).startswith(MAGIC):
            return self._read_run(file)
        if not self._has_lines:
            file.seek(0)
            self._has_lines = _has_lines(file)
        if self._has_lines:
            return self._read_lines(file, _parse_object, final=final)
        file.seek(0)
        return self._read_whole(file, final=final)

    def _begins_table(self, file: BinaryIO) -> bool:
        """Whether the first line is a header, as of the `training.log` in Keras's documentation."""
        file.seek(0)
        line = file.readline(CHECKED_BYTES).decode(errors="replace")
        file.seek(0)
        return line.endswith("\n") and _HEADER.fullmatch(line.removeprefix("\ufeff").strip()) is not None

    def _read_whole(self, file: BinaryIO, *, final: bool) -> list[dict[str, Any]]:
        """The rows of a JSON file: one, or a list. What is invalid may be incomplete: it is an error in the end."""
        content = file.read()
        if not content.strip():
            return []
        try:
            parsed = _parse_json(content.decode(errors="replace"))
            rows = [_checked_row(row) for row in (parsed if isinstance(parsed, list) else [parsed])]
        except (ValueError, TypeError) as error:
            if final:
                self._set_error(error)
            return []
        is_list = isinstance(parsed, list)
        self._place = 0
        self._was_changed = self._was_changed or (is_list and len(rows) < len(self._known))
        del self._known[len(rows) :]
        changed = [self._changed(row, is_numbered=is_list) for row in rows]
        return [row for row in changed if row is not None]

    def _read_lines(
        self, file: BinaryIO, parse: Callable[[str], dict[str, Any] | None], *, final: bool
    ) -> list[dict[str, Any]]:
        """The rows of the new lines. Only new bytes are read, unless the file was written anew."""
        new = self._new_bytes(file)  # first: it discards the incomplete line of a rewritten file
        text = self._incomplete + new
        is_whole = final or (bool(self._has_lines) and _is_object(text.rpartition(b"\n")[2]))
        end = len(text) if is_whole else text.rfind(b"\n") + 1
        self._incomplete = text[end:]
        if len(self._incomplete) > LINE_BYTES:
            self._incomplete = b""
            self._set_error(ValueError(f"a line is longer than {LINE_BYTES} bytes"))
        rows = list[dict[str, Any]]()
        for line in re.findall(r"[^\r\n]+[\r\n]*", text[:end].decode(errors="replace")):
            if not line.strip():
                continue
            try:
                row = parse(line)
                self.is_complete = True
            except (ValueError, TypeError, csv.Error) as error:
                self._set_error(error)
                row = _object_at_end(line) if self._has_lines else None
                self.is_complete = row is not None
            changed = None if row is None else self._changed(row, is_numbered=bool(self._delimiter))
            if changed is not None:
                rows.append(changed)
        return rows

    def _read_run(self, file: BinaryIO) -> list[dict[str, Any]]:
        """The rows of the records of W&B that are new and whole."""
        new = self._new_bytes(file)
        content = self._incomplete + new
        try:
            rows, size = read_history(content, self._offset - len(content))
        except (IndexError, ValueError, struct.error) as error:
            self._set_error(ValueError(f"a record is damaged: {error}"))
            return []
        self._incomplete = content[size:]
        return list(map(self._notes.number_step, rows))

    def _parse_cells(self, line: str) -> dict[str, Any] | None:
        """The row of a line; None if it is the header, which a program that resumes may write again."""
        self._delimiter = self._delimiter or max(",;\t", key=line.count)
        (cells,) = csv.reader([line], delimiter=self._delimiter)
        names = [cell.strip() for cell in cells]
        known = {*filter(None, names)}.intersection(self._header or ())
        is_again = 2 <= len(known) > sum(map(bool, names)) / 2 and not numeric_row(dict(zip(names, names, strict=True)))
        if self._header is None or set(self._header) <= set(names) or is_again:
            self._header = names
            for name in names:
                if name and names.count(name) > 1:
                    self._notes.refuse(name, f"{self._path.name} has several columns named {name}")
            return None
        is_cut = len(cells) < len(self._header) and not line.endswith(("\r", "\n"))  # the rest is not written yet
        if is_cut or any(names[len(self._header) :]):
            raise ValueError(
                f"a row has {len(cells)} cells, but the header {len(self._header)}: {line[:SHOWN_CHARACTERS]}"
            )
        named = zip(self._header, names, strict=False)
        return {name: cell for name, cell in named if name and cell and name not in self._notes.unread}

    def _changed(self, row: dict[str, Any], *, is_numbered: bool) -> dict[str, Any] | None:
        """The row, unless it was read before at this place; with its place as the epoch, if rows were changed."""
        index = self._place
        self._place = self._place + 1
        digest = hash(json.dumps(row, sort_keys=True, default=str))
        if index < len(self._known) and self._known[index] == digest:
            return None
        if index < len(self._known):
            del self._known[index:]
            self._was_changed = self._was_changed or is_numbered
        self._known.append(digest)
        has_epoch = not row.keys().isdisjoint(EPOCH_NAMES)
        return {"epoch": index + 1} | row if is_numbered and self._was_changed and not has_epoch else row

    def _new_bytes(self, file: BinaryIO) -> bytes:
        if os.fstat(file.fileno()).st_size < self._offset:  # it is being rewritten
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

    def _set_error(self, error: Exception) -> None:
        reason = error.strerror if isinstance(error, OSError) else error
        self.error = f"{self._path} cannot be read as {self._path.suffix[1:]}: {reason}"
        self.is_complete = False


_HEADER: Final = re.compile(r"(?:[\"']?[A-Za-z_][\w./@()%:+-]*[\"']? *(?:[,;\t] *|$)){2,}")


def _has_lines(file: BinaryIO) -> bool | None:
    """Whether a file has a JSON object a line, and is not one JSON value; None while its first line is incomplete."""
    text = file.read(LINE_BYTES).removeprefix(codecs.BOM_UTF8).lstrip()
    first, newline, rest = text.partition(b"\n")
    try:
        parsed = _parse_json(first.decode(errors="replace"))
    except ValueError:
        return None if not newline else first.rstrip()[-1:] not in (b"{", b"[", b",", b":")
    return bool(rest.strip()) if isinstance(parsed, list) else True


def _is_object(line: bytes) -> bool:
    """Whether a line without its end is a whole JSON object."""
    try:
        return line.rstrip().endswith(b"}") and isinstance(_parse_json(line.decode()), dict)
    except ValueError:
        return False


def _parse_object(line: str) -> dict[str, Any]:
    return _checked_row(_parse_json(line))


def _object_at_end(line: str) -> dict[str, Any] | None:
    """The object after a part of another one, which a program that was killed has left; None for one that is in it."""
    for start in islice(re.finditer(r"(?<=[^:,\[\s])\{", line), MOST_STARTS):
        with suppress(ValueError, TypeError):
            return _parse_object(line[start.start() :])
    return None


def _parse_json(text: str) -> Any:
    """The value of a JSON text, in which NaN and infinity may be written as other languages do: `-nan`, `inf`."""
    try:
        return json.loads(text)
    except ValueError:
        if not _NO_NUMBER.search(text):
            raise
        return json.loads(_NO_NUMBER.sub("NaN", text))


_NO_NUMBER: Final = re.compile(r"(?<=[:\[,\s])[+-]?(?:nan|inf(?:inity)?)(?=\s*[,}\]])", re.IGNORECASE)


def _checked_row(row: Any) -> dict[str, Any]:
    """The row, with dotted names for what is within objects, as `train.loss`."""
    if not isinstance(row, dict):
        raise TypeError(f"a row must be a mapping of names to numbers, not {str(row)[:SHOWN_CHARACTERS]}")
    return dict(dotted_items(row))


State = tuple[int, int]  # size and time of a file: they change when it is written


def file_states(folder: Path, others: Iterable[Path] = (), *, until: float = math.inf) -> dict[Path, State]:
    """The files in the folder of a program, without its output, and `others`, if last written before a Unix time."""
    walked = [Path(root, name) for root, _, names in os.walk(folder) for name in names if not _OWN_FILE.fullmatch(name)]
    states = {path: file_state(path) for path in (*walked, *others)}
    return {path: state for path, state in states.items() if state and state[1] < until * 1e9}


def has_changed(paths: Iterable[Path], before: Mapping[Path, State]) -> bool:
    """Whether one of these files is new, or was written, since the files were as they were before."""
    return any(file_state(path) != before.get(path) for path in paths)


def file_state(path: Path) -> State | None:
    """The state of a file; None if it was removed."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns


_OWN_FILE: Final = re.compile(
    r"\..*|settings\.(?:json|ya?ml|toml)|rows\.jsonl|output(?:-\d+)?\.ended"
    r"|(?:output(?:-\d+)?|setup|teardown)\.log(?:\.incomplete)?"
)


def metric_files(metrics: Metrics | None, folder: Path, *, earlier: bool = False) -> list[Path]:
    """The files in a program's folder with its metrics, or the renamed ones of `earlier` attempts."""
    if metrics is None or metrics.file is None:
        return []
    if metrics.has_event_files:
        matching = set(folder.glob(metrics.file))
        files = matching.union(*(each.iterdir() for each in matching if each.is_dir()))
        files = {each for each in files if "tfevents" in each.name}
    else:
        files = {*folder.glob(metrics.file), *folder.glob(f"{metrics.file}{BEFORE}")}
        files = {each for each in files if not _OWN_FILE.fullmatch(each.name)}
    return sorted(each for each in files if each.is_file() and (each.suffix == BEFORE) == earlier)


def find_shared_file(metrics: Metrics, folder: Path, began: float) -> str:
    """What to do about a file of metrics that a program has written since `began` where all trials run.

    "" if there is none, or one in the program's own `folder`.
    """
    start = Path.cwd()
    if (metrics.file or "").startswith("**") or metric_files(metrics, folder):  # `**` may look through all data
        return ""
    for path in metric_files(metrics, start):
        state = file_state(path)
        is_of_other = start in Path(os.path.commonpath((path, folder.absolute()))).parents  # of another trial
        if state and state[1] >= began * 1e9 and not is_of_other:
            remedy = "set `workdir: trial`, and increase `retrain` to run them again"
            return f"; {path.relative_to(start)} is in {start}, where all trials run: {remedy}"
    return ""


class MatchingFiles:
    """The files that match a pattern: those of earlier attempts, the oldest first, then the newest of this one."""

    def __init__(self, metrics: Metrics, folder: Path, before: Mapping[Path, State], notes: ReadingNotes) -> None:
        """`before`: the files in the folder before this attempt."""
        assert metrics.file is not None
        self._notes = notes
        self._metrics = metrics
        self._folder = folder
        self._pattern = metrics.file
        self._before = before
        self._files: dict[Path, MetricsFile] = {}  # in the order in which they were found
        self._current: MetricsFile | None = None  # of this attempt
        self._own: list[str] = []  # the names of those of this attempt
        self._looked_at = -math.inf
        self._has_new_rows = False
        if not has_wildcards(self._pattern):
            path = folder / self._pattern
            self._files[path] = self._current = MetricsFile(path, notes)

    @property
    def has_reported(self) -> bool:
        """Whether this attempt has written rows."""
        return self._has_new_rows and has_changed(metric_files(self._metrics, self._folder), self._before)

    @property
    def error(self) -> str:
        """Why a part of the newest file cannot be read; "" if nothing is wrong."""
        return self._current.error if self._current else ""

    @property
    def is_complete(self) -> bool:
        """Whether the end of the newest file could be read."""
        return self._current is None or self._current.is_complete

    def new_rows(self, *, final: bool) -> list[dict[str, Any]]:
        """The rows since the last call; with `final`, also an incomplete one of the newest file."""
        rows = list[dict[str, Any]]()
        for path in self._look(final=final):
            self._files[path] = file = MetricsFile(path, self._notes)
            if path in self._before:
                rows += file.new_rows(final=False)
            else:
                self._current = file
                self._own.append(str(path.relative_to(self._folder)))
        if len(self._own) > 1:
            which = f"{self._pattern} matches {', '.join(self._own)}"
            self._notes.warn(f"{len(self._own)} files", f"{which}: the newest counts, {self._own[-1]}")
        for path, file in self._files.items() if self._current is None else ():  # to which this attempt may append
            if has_changed([path], self._before):
                self._current = file
        new = self._current.new_rows(final=final) if self._current else []
        self._has_new_rows = self._has_new_rows or bool(new)
        return rows + new

    def _look(self, *, final: bool) -> list[Path]:
        """New files, the oldest first."""
        if not has_wildcards(self._pattern) or (not final and time.monotonic() < self._looked_at + LOOK_SECONDS):
            return []
        self._looked_at = time.monotonic()
        there = metric_files(self._metrics, self._folder)
        states = {path: file_state(path) for path in there if path not in self._files}
        changed = {path: state[1] for path, state in states.items() if state}
        return sorted(changed, key=lambda path: (path not in self._before, changed[path], path.name))


def has_wildcards(pattern: str) -> bool:
    """Whether a pattern may match several files."""
    return any(character in pattern for character in "*?[")


def suggest_pattern(pattern: str, files: Iterable[Path], folder: Path) -> str:
    """A question about the file with metrics among those that a program has left, which `pattern` does not match.

    "" if there is none.
    """
    matching = set(folder.glob(pattern)) if pattern else set()
    others = [path for path in files if path.suffix in _SUFFIXES and path not in matching]
    names = [str(path.relative_to(folder)) for path in others]
    if not names:
        return ""
    general = {name: re.sub(r"\d+", "*", name) for name in names}
    same = [name for name in names if general[name] == re.sub(r"\d+", "*", pattern)]
    same = same or [name for name in names if Path(name).suffix == Path(pattern).suffix]
    chosen = (same or names)[0]
    return f"; did you mean `file: {general[chosen]}`? It left {', '.join(names[:SHOWN_FILES])}"


_SUFFIXES: Final = (".csv", ".tsv", ".json", ".jsonl", ".log", ".txt")


class EventFiles:
    """The scalars in event files of TensorBoard, read while a program still writes them; they need not exist yet.

    The scalars of folders below the topmost one, as those of `add_scalars`, have the path to it before their names.
    """

    def __init__(self, metrics: Metrics, folder: Path, before: Mapping[Path, State]) -> None:
        # TensorBoard's own reader, which waits for the rest of an incomplete event; it takes a second to import.
        from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

        self.error = ""
        self.is_complete = True
        self._before = before
        self._metrics = metrics
        self._folder = folder
        self._open = LegacyEventFileLoader
        self._loaders = dict[Path, Any]()
        self._looked_at = -math.inf

    @property
    def has_reported(self) -> bool:
        """Whether this attempt has written events."""
        return has_changed(self._loaders, self._before)

    def new_rows(self, *, final: bool) -> list[dict[str, Any]]:
        """A row for each step with new scalars since the last call, in the order of the steps."""
        if final or time.monotonic() >= self._looked_at + LOOK_SECONDS:
            self._looked_at = time.monotonic()
            for path in metric_files(self._metrics, self._folder):
                if path not in self._loaders:
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
