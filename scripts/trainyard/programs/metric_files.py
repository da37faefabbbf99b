"""Files of metrics that a program writes, read while it still writes them."""

import codecs
import csv
import json
import math
import os
import re
import time
from abc import ABC, abstractmethod
from itertools import takewhile
from pathlib import Path
from typing import Any, BinaryIO, Final

from trainyard.config.user_programs import Metrics

SHOWN_CHARACTERS: Final = 80  # of an invalid row of a file, in an error
LINE_BYTES: Final = 2**20  # of a file; a longer line is an error
CHECKED_BYTES: Final = 4096  # at both ends of what was read of a file: if they change, it was rewritten
BEFORE: Final = ".before"  # suffix of a file of metrics of an earlier attempt
LOOK_SECONDS: Final = 2.0  # between two looks for new event files


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
