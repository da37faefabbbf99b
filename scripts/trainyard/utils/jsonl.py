"""Files of JSON lines, one per event: appended under a lock, repaired after a crash, read as they grow."""

import json
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Self

from trainyard.utils.errors import storage_errors
from trainyard.utils.files import append_whole, drop_last, hold_lock

Event = dict[str, Any]
BLOCK_BYTES: Final = 1 << 22  # bytes per read
RESERVE_BYTES: Final = 1 << 18  # room for the last events of a thousand trials
log = logging.getLogger(__name__)


class EventLog:
    """Appends events to a file; get one from `opened`, which holds the file's lock.

    A line is appended as a whole or not at all. A small reserve file beside it is removed when the disk is full, so
    that what has ended can still be recorded.
    """

    def __init__(self, path: Path) -> None:
        self.path, self._reserve = path, path.with_name(f".{path.name}.reserve")
        self._is_full = False  # whether an event could not be written
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    @classmethod
    @contextmanager
    def opened(cls, path: Path, *, wait_seconds: float = 0.0) -> Iterator[Self]:
        """The file at `path` for appending, its torn tail repaired and its lock held.

        Raises:
            files.LockHeldError: another process has it.
            StorageError: it cannot be written.
        """
        lock = hold_lock(path.with_name(f".{path.name}.lock"), wait_seconds=wait_seconds, notify=log.info)
        with lock, cls.repaired(path) as events:
            yield events

    @classmethod
    @contextmanager
    def repaired(cls, path: Path) -> Iterator[Self]:
        """The file at `path`, whose lock is held, for appending, with its torn tail repaired."""
        with storage_errors(path):
            _repair_tail(path)
            events = cls(path)
        try:
            events._fill_reserve()
            yield events
        finally:
            events.close()

    def append(self, event: str, *, durable: bool = False, **fields: Any) -> Event:
        """Write one event with the time now; with `durable` it is on the disk when this returns."""
        record = {"event": event, "time": round(time.time(), 4), **fields}
        self.write(record, durable=durable)
        return record

    def write(self, record: Event, *, durable: bool = False) -> None:
        """Write one event as it is; with `durable` it is on the disk when this returns.

        Raises:
            StorageError: the disk is full; a durable event is recorded nevertheless, if the reserve has room for it.
                After the first such error, an event that could be recorded raises none.
        """
        line = json.dumps(record, separators=(",", ":")).encode() + b"\n"
        with storage_errors(self.path):
            try:
                self._append(line, durable=durable)
            except OSError:
                was_full, self._is_full = self._is_full, True
                if not (durable and self._reserve.exists()):
                    raise
                self._reserve.unlink()
                self._append(line, durable=True)
                if not was_full:
                    raise

    def _append(self, line: bytes, *, durable: bool) -> None:
        append_whole(self._fd, line)
        try:
            if durable:
                os.fsync(self._fd)
        except OSError:  # as a network file system reports a full disk
            drop_last(self._fd, len(line))
            raise

    def _fill_reserve(self) -> None:
        with storage_errors(self.path), open(self._reserve, "wb") as file:
            file.write(os.urandom(RESERVE_BYTES))  # some file systems store no zeros
            file.flush()
            os.fsync(file.fileno())

    def close(self) -> None:
        """Make everything durable and close the file."""
        try:
            with storage_errors(self.path):
                os.fsync(self._fd)
        finally:
            os.close(self._fd)
            self._reserve.unlink(missing_ok=True)


def _repair_tail(path: Path) -> None:
    """Complete or drop a last line that was cut off in the middle of a write."""
    if not path.exists():
        return
    content = path.read_bytes()
    keep = content.rfind(b"\n") + 1
    tail = content[keep:]
    if not tail:
        return
    with open(path, "r+b") as file:
        if parse_event(tail) is not None:
            file.seek(0, os.SEEK_END)
            file.write(b"\n")
        else:
            log.warning("%s: dropped a last line that was written only in part (%d bytes)", path, len(tail))
            file.truncate(keep)
        os.fsync(file.fileno())


class Reader:
    """Reads a growing file of JSON lines: each call of `blocks` yields the lines that were added since the last."""

    def __init__(self, path: Path, *, offset: int = 0, lines: int = 0) -> None:
        self.path, self.offset, self.lines = path, offset, lines  # bytes and lines that were read
        self._damaged: list[int] = []

    def blocks(self, *, until: int | None = None) -> Iterator[tuple[int, list[bytes]]]:
        """The whole lines that are new, some at a time, with the number of the first; at most up to byte `until`.

        A last line without a line break counts if it is valid; otherwise it is torn, or still being written.
        """
        with open(self.path, "rb") as file:
            file.seek(self.offset)
            rest = b""
            while block := file.read(BLOCK_BYTES if until is None else min(BLOCK_BYTES, until - file.tell())):
                whole, end, rest = (rest + block).rpartition(b"\n")
                if end:
                    yield self._taken(whole + end)
            if rest and parse_event(rest) is not None:
                yield self._taken(rest)

    def _taken(self, block: bytes) -> tuple[int, list[bytes]]:
        first = self.lines + 1
        self.offset, self.lines = self.offset + len(block), self.lines + block.count(b"\n")
        return first, block.removesuffix(b"\n").split(b"\n")

    def parsed(self, line: bytes, number: int) -> Event | None:
        """The event of a line, or None if it is damaged."""
        event = parse_event(line)
        if event is None and line:
            self._damaged.append(number)
        return event

    def warn(self) -> None:
        """Log the numbers of the damaged lines."""
        if self._damaged:
            log.warning("%s: skipped damaged lines: %s", self.path, ", ".join(map(str, self._damaged)))


def read_events(path: Path, *, until: int | None = None) -> list[Event]:
    """All complete events of a file, in order; none if the file does not exist. Reading needs no lock.

    With `until`, only of the first `until` bytes.
    """
    if not path.exists():
        return []
    reader, events = Reader(path), list[Event]()
    for first, lines in reader.blocks(until=until):
        found = (reader.parsed(line, number) for number, line in enumerate(lines, start=first))
        events += [event for event in found if event is not None]
    reader.warn()
    return events


def parse_event(line: bytes) -> Event | None:
    """The event in a line; None if it is damaged."""
    try:
        event = json.loads(line.decode(errors="replace"))
    except ValueError:
        return None
    return event if isinstance(event, dict) and "event" in event and "time" in event else None
