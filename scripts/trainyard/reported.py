"""The metrics that a user's program tells while it runs: rows of numbers by name, from a file or from its output."""

import csv
import io
import json
import math
import re
from pathlib import Path
from typing import Any, Final

from trainyard.errors import UserError
from trainyard.ownspec import Metrics

Row = dict[str, float | int | None]
SHOWN: Final = 80  # characters of what could not be read


class Reported:
    """Collects rows: `hear` each line of the output, `look` now and then, and once more at the `end`."""

    def __init__(self, metrics: Metrics | None, folder: Path, *, goes_on: bool = False) -> None:
        """With `goes_on`, rows that are in the file already count: an earlier attempt is being continued."""
        self._file = folder / metrics.file if metrics and metrics.file else None
        self._patterns = [re.compile(pattern) for pattern in metrics.patterns] if metrics else []
        self._groups = {name for pattern in self._patterns for name in pattern.groupindex}
        self._open: dict[str, Any] = {}  # a row that is not whole yet
        self._new: list[dict[str, Any]] = []
        self._seen = ""  # of the file
        self._file_rows = 0
        self._count = 0
        if self._file and self._file.exists() and not goes_on:  # an earlier attempt's rows are not this one's
            self._file.rename(self._file.with_name(f"{self._file.name}.before"))

    def hear(self, line: str) -> None:
        """Take in a line of the output."""
        for pattern in self._patterns:
            if match := pattern.search(line):
                found = {name: value for name, value in match.groupdict().items() if value is not None}
                if found.keys() & self._open.keys():
                    self._close_row()
                self._open |= found
                if self._open.keys() >= self._groups:
                    self._close_row()

    def look(self, *, last: bool = False) -> list[Row]:
        """The rows that have come since.

        Raises:
            UserError: the file holds something else than rows; only at the `last` look, as a file may be half written.
        """
        if last and self._open:
            self._close_row()
        if self._file:
            self._look_into(self._file, last=last)
        rows, self._new = self._new, []
        return [self._counted(row) for row in rows]

    def _close_row(self) -> None:
        self._new.append(self._open)
        self._open = {}

    def _counted(self, row: dict[str, Any]) -> Row:
        self._count += 1
        numbers = {name: number for name, value in row.items() if (number := _number(value)) is not _NO_NUMBER}
        epoch = numbers.pop("epoch", None)
        return {"epoch": self._count if epoch is None else int(epoch), **numbers}

    def _look_into(self, path: Path, *, last: bool) -> None:
        try:
            text = path.read_text()
        except FileNotFoundError:
            return
        if text == self._seen:
            return
        try:
            rows = _READERS[path.suffix](text, whole=last)
        except (ValueError, TypeError) as error:
            if last:
                raise UserError(f"{path} cannot be read as {path.suffix[1:]}: {error}") from None
            return
        single = path.suffix == ".json" and len(rows) == 1
        if single or (path.suffix != ".json" and not text.startswith(self._seen)):  # written anew
            self._file_rows = 0
        self._seen = text
        self._new += rows[self._file_rows :]
        self._file_rows = len(rows)


def _whole_lines(text: str, whole: bool) -> list[str]:
    """All lines, but a last one only if it has an end, or nothing will follow."""
    lines = text.splitlines(keepends=True)
    return lines if whole or not lines or lines[-1].endswith("\n") else lines[:-1]


def _jsonl(text: str, *, whole: bool) -> list[dict[str, Any]]:
    return [_mapping(json.loads(line)) for line in _whole_lines(text, whole) if line.strip()]


def _csv(text: str, *, whole: bool) -> list[dict[str, Any]]:
    return list(csv.DictReader(io.StringIO("".join(_whole_lines(text, whole)))))


def _json(text: str, *, whole: bool) -> list[dict[str, Any]]:
    content = json.loads(text)
    return [_mapping(row) for row in (content if isinstance(content, list) else [content])]


def _mapping(row: Any) -> dict[str, Any]:
    if not isinstance(row, dict):
        raise TypeError(f"a row must be a mapping of names to numbers, not {str(row)[:SHOWN]}")
    return row


_READERS: Final = {".jsonl": _jsonl, ".csv": _csv, ".json": _json}
_NO_NUMBER: Final = object()


def as_row(metrics: dict[str, Any]) -> Row:
    """The numbers among some metrics; what is not finite is None."""
    return {name: number for name, value in metrics.items() if (number := _number(value)) is not _NO_NUMBER}


def _number(value: Any) -> Any:
    if hasattr(value, "item"):  # of numpy or torch
        value = value.item()
    if isinstance(value, (bool, int)):
        return int(value)
    try:
        number = float(value)
    except (TypeError, ValueError):
        return _NO_NUMBER
    if not math.isfinite(number):
        return None
    return int(number) if isinstance(value, str) and re.fullmatch(r"[+-]?\d+", value.strip()) else number
