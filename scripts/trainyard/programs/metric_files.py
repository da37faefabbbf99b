"""Files of metrics that a program writes, read while it still writes them."""

import codecs
import csv
import json
import math
import os
import re
import struct
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, Final

from trainyard.config.placeholders import dotted_items
from trainyard.config.user_programs import EPOCH_NAMES, Metrics
from trainyard.programs.metric_rows import ReadingNotes, numeric_row
from trainyard.programs.wandb_runs import MAGIC, read_history

SHOWN_CHARACTERS: Final = 80  # of an invalid row of a file, in an error
MOST_STARTS: Final = 20  # of objects that are looked at in a damaged line
HEADER_BYTES: Final = 4096  # of a table, at most
REST: Final = 20  # times as long as a file was read
BEFORE: Final = ".before"  # suffix of a file of metrics of an earlier attempt
LOOK_SECONDS: Final = 2.0  # between two looks for new files
SHOWN_FILES: Final = 3  # that a program has left, in an error


class MetricsFile:
    """A file of metrics, read while a program still writes it. It does not have to exist yet.

    Whether it is a table, JSON, has a JSON object a line, or is a run of W&B is seen by its content. A file that has
    changed is read as a whole: the rows are new that were not read before at their places, however it was written.
    """

    def __init__(self, path: Path, notes: ReadingNotes) -> None:
        self._notes = notes
        self.error = ""  # why a part of the file cannot be read
        self.is_complete = True  # whether its end could be read
        self._path = path
        self._state = tuple[int, ...]()
        self._offset = 0  # of what was read of a run of W&B
        self._header: list[str] | None = None
        self._delimiter = ""  # of a table
        self._known: list[int] = []  # a digest of each row that was read
        self._was_changed = False  # a row of a table or list: from then on, rows cannot be counted as they come
        self._rests_until = -math.inf

    def new_rows(self, *, final: bool, torn: bool = False) -> list[dict[str, Any]]:
        """The rows since the last call; with `final`, also an incomplete one, unless the file's end is `torn`."""
        if not final and time.monotonic() < self._rests_until:
            return []
        began = time.thread_time()
        try:
            with open(self._path, "rb") as file:
                status = os.fstat(file.fileno())
                state = status.st_ino, status.st_size, status.st_mtime_ns  # changes when the file is written
                if state == self._state and not final:
                    return []
                self._state = state
                if status.st_size < self._offset:  # another run has the same path
                    self._offset = 0
                file.seek(self._offset)
                content = file.read()
        except FileNotFoundError:
            return []
        except OSError as error:  # the next call may succeed
            self._state = ()
            if final:
                self._set_error(error)
            return []
        rows = self._read(content, final=final and not torn)
        # A file of many rows takes longer to read: then it is read less often, with a twentieth of a CPU.
        self._rests_until = time.monotonic() + REST * max(0.0, time.thread_time() - began - 0.01)
        return rows

    def _read(self, content: bytes, *, final: bool) -> list[dict[str, Any]]:
        if self._offset or content.startswith(MAGIC):
            return self._read_run(content)
        content = content.removeprefix(codecs.BOM_UTF8)
        if self._path.suffix in (".csv", ".tsv") or _begins_table(content):
            self._header = None
            self._delimiter = ""
            rows = self._new_of(self._read_lines(content, self._parse_cells, final=final), is_numbered=True)
            return [{name: row[name] for name in row if name not in self._notes.unread} for row in rows]
        if _has_lines(content):
            return self._new_of(self._read_lines(content, _parse_object, final=final), is_numbered=False)
        return self._read_whole(content, final=final)

    def _read_whole(self, content: bytes, *, final: bool) -> list[dict[str, Any]]:
        """The rows of a JSON file: one, or a list. What is invalid may be incomplete: it is an error in the end."""
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
        self._was_changed = self._was_changed or (is_list and len(rows) < len(self._known))
        del self._known[len(rows) :]
        return self._new_of(rows, is_numbered=is_list)

    def _read_lines(
        self, content: bytes, parse: Callable[[str], dict[str, Any] | None], *, final: bool
    ) -> list[dict[str, Any]]:
        """The rows of the whole lines."""
        end = len(content) if final or _is_object(content.rpartition(b"\n")[2]) else content.rfind(b"\n") + 1
        rows = list[dict[str, Any]]()
        for line in re.findall(r"[^\r\n]+[\r\n]*", content[:end].decode(errors="replace")):
            if not line.strip():
                continue
            try:
                row = parse(line)
                self.is_complete = True
            except (ValueError, TypeError, csv.Error) as error:
                self._set_error(error)
                row = _object_at_end(line) if parse is _parse_object else None
                self.is_complete = row is not None
            if row is not None:
                rows.append(row)
        return rows

    def _read_run(self, content: bytes) -> list[dict[str, Any]]:
        """The rows of the records of W&B that are new and whole."""
        try:
            rows, size = read_history(content, self._offset)
        except (IndexError, ValueError, struct.error) as error:
            self._set_error(ValueError(f"a record is damaged: {error}"))
            return []
        self._offset += size
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
        return {name: cell for name, cell in zip(self._header, names, strict=False) if name and cell}

    def _new_of(self, rows: Sequence[dict[str, Any]], *, is_numbered: bool) -> list[dict[str, Any]]:
        """The rows that were not read before at their places; with these as epochs, if rows were changed."""
        new = list[dict[str, Any]]()
        for index, row in enumerate(rows):
            digest = hash(json.dumps(row, sort_keys=True, default=str))
            if index < len(self._known):
                if self._known[index] == digest:
                    continue
                del self._known[index:]
                self._was_changed = self._was_changed or is_numbered
            self._known.append(digest)
            has_epoch = not row.keys().isdisjoint(EPOCH_NAMES)
            new.append({"epoch": index + 1} | row if is_numbered and self._was_changed and not has_epoch else row)
        return new

    def _set_error(self, error: Exception) -> None:
        reason = error.strerror if isinstance(error, OSError) else error
        self.error = f"{self._path} cannot be read as {self._path.suffix[1:]}: {reason}"
        self.is_complete = False


_HEADER: Final = re.compile(r"(?:[\"']?[A-Za-z_][\w./@()%:+-]*[\"']? *(?:[,;\t] *|$)){2,}")


def _begins_table(content: bytes) -> bool:
    """Whether the first line is a header, as of the `training.log` in Keras's documentation."""
    first, newline, _ = content[:HEADER_BYTES].partition(b"\n")
    return bool(newline) and _HEADER.fullmatch(first.decode(errors="replace").strip()) is not None


def _has_lines(content: bytes) -> bool:
    """Whether a file has a JSON object a line, and is not one JSON value; False while its first line is incomplete."""
    first, newline, rest = content.lstrip().partition(b"\n")
    try:
        parsed = _parse_json(first.decode(errors="replace"))
    except ValueError:
        return bool(newline) and first.rstrip()[-1:] not in (b"{", b"[", b",", b":")
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

    def new_rows(self, *, final: bool, torn: bool = False) -> list[dict[str, Any]]:
        """The rows since the last call; with `final`, also an incomplete one of the newest file if it is not torn."""
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
        new = self._current.new_rows(final=final, torn=torn) if self._current else []
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

    def new_rows(self, *, final: bool, torn: bool = False) -> list[dict[str, Any]]:
        """A row for each step with new scalars since the last call, in the order of the steps; no event is `torn`."""
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
