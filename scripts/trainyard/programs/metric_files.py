"""Files of metrics, read while a program still writes them."""

import codecs
import csv
import json
import os
import re
from itertools import takewhile
from pathlib import Path
from typing import Any, Final

SHOWN_CHARACTERS: Final = 80  # of an invalid row, in an error
LINE_BYTES: Final = 2**20  # a longer line is an error
CHECKED_BYTES: Final = 4096  # at both ends of what was read: if they change, the file was rewritten


class JsonMetricsFile:
    """A `.json` file: one row, which the program overwrites, or a list of rows, which grows or is written anew."""

    def __init__(self, path: Path) -> None:
        self.error = ""  # why a part of the file cannot be read
        self._path, self._content = path, b""
        self._rows: list[dict[str, Any]] = []  # at the last call
        self._was_changed = False  # the list: from then on, its rows cannot be counted as they come
        self._state: tuple[int, ...] = ()

    def new_rows(self, *, final: bool) -> list[dict[str, Any]]:
        """The rows since the last call. An invalid row may be incomplete: it is an error only in the `final` call."""
        try:
            state = _file_state(self._path.stat())
            content = self._content if state == self._state and not final else self._path.read_bytes()
        except FileNotFoundError:
            return []
        except OSError as error:  # the next call may succeed
            self.error = _read_error(self._path, error) if final else ""
            return []
        self._state = state
        if content == self._content:
            return []
        try:
            parsed = json.loads(content)  # one object for all NaN: rows that have it are equal
            rows = [_checked_row(row) for row in (parsed if isinstance(parsed, list) else [parsed])]
        except (ValueError, TypeError) as error:
            if final:
                self.error = _read_error(self._path, error)
            return []
        self._content = content
        same = takewhile(lambda pair: pair[0] == pair[1], zip(self._rows, rows, strict=False))
        known = sum(1 for _ in same)
        is_list = isinstance(parsed, list)
        self._was_changed = self._was_changed or (is_list and known < len(self._rows))
        self._rows = rows
        numbered = is_list and self._was_changed
        return [({"epoch": place} if numbered else {}) | row for place, row in enumerate(rows[known:], known + 1)]


class LineMetricsFile:
    """A `.jsonl` or `.csv` file: one row per line. Only new bytes are read, unless the file was rewritten."""

    def __init__(self, path: Path) -> None:
        self.error = ""  # why a part of the file cannot be read
        self._path, self._state = path, tuple[int, ...]()
        self._reset()

    def _reset(self) -> None:
        self._offset, self._head, self._tail, self._incomplete = 0, b"", b"", b""
        self._header: list[str] | None = None

    def new_rows(self, *, final: bool) -> list[dict[str, Any]]:
        """The rows since the last call."""
        new = self._new_bytes(final=final)  # first: it discards the incomplete line of a rewritten file
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
        if self._path.suffix == ".jsonl":
            return [_checked_row(json.loads(line))]
        (cells,) = csv.reader([line])
        if self._header is None:
            self._header = cells
        if cells == self._header:  # a program that resumes may write the header again
            return []
        return [dict(zip(self._header, cells, strict=False))]

    def _set_error(self, error: Exception) -> None:
        self.error = _read_error(self._path, error)

    def _new_bytes(self, *, final: bool) -> bytes:
        try:
            return self._read_new(final=final)
        except FileNotFoundError:
            return b""
        except OSError as error:  # the next call may succeed
            self._state = ()
            if final:
                self._set_error(error)
            return b""

    def _read_new(self, *, final: bool) -> bytes:
        with open(self._path, "rb") as file:
            state = _file_state(os.fstat(file.fileno()))
            if state == self._state and not final:
                return b""
            self._state = state
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


def open_metrics_file(path: Path) -> JsonMetricsFile | LineMetricsFile:
    """The reader for a file with this suffix. The file does not have to exist yet."""
    return JsonMetricsFile(path) if path.suffix == ".json" else LineMetricsFile(path)


def _read_error(path: Path, error: Exception) -> str:
    reason = error.strerror if isinstance(error, OSError) else error
    return f"{path} cannot be read as {path.suffix[1:]}: {reason}"


def _file_state(stat: os.stat_result) -> tuple[int, ...]:
    """Changes when the file is written."""
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


def _checked_row(row: Any) -> dict[str, Any]:
    if not isinstance(row, dict):
        raise TypeError(f"a row must be a mapping of names to numbers, not {str(row)[:SHOWN_CHARACTERS]}")
    return row
