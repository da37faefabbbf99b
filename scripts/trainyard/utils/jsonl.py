"""Files of JSON lines, one per event: appended under a lock, repaired after a crash, read as they grow."""

import hashlib
import json
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from itertools import dropwhile
from pathlib import Path
from typing import Any, Final, Self, TypeVar

from trainyard.utils.errors import UserError, storage_errors
from trainyard.utils.files import append_whole, drop_last, hold_lock

Event = dict[str, Any]
Decoded = TypeVar("Decoded")
BLOCK_BYTES: Final = 1 << 22  # bytes per read
RESERVE_BYTES: Final = 1 << 18  # room for the last events of a thousand trials
_DIGITS: Final = 308  # of the largest float
_CLOCK_OFFSET: Final = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
log = logging.getLogger(__name__)


def read_clock() -> float:
    """Unix seconds by a clock that nobody sets: it follows the time that has passed since this process started."""
    return _CLOCK_OFFSET + time.clock_gettime(time.CLOCK_BOOTTIME)


class EventLog:
    """Appends events to a file; get one from `opened`, which holds the file's lock.

    A line is appended as a whole or not at all. A small reserve file beside it is removed when the disk is full, so
    that what has ended can still be recorded.
    """

    def __init__(self, path: Path) -> None:
        self.path, self._reserve = path, path.with_name(f".{path.name}.reserve")
        self._is_full = False  # whether an event could not be written
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        # The lines from the first durable one on that is not on the disk, and what follows the sync of durable ones.
        self._unsynced: list[tuple[bytes, Callable[[], object] | None]] = []
        self._lock = threading.Lock()  # of these lines and the end of the file
        self._thread = ThreadPoolExecutor(1, "sync")
        self._syncs = deque[Future[None]]()  # that nobody waits for

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

    def append(
        self, event: str, *, durable: bool = False, then: Callable[[], object] | None = None, **fields: Any
    ) -> Event:
        """Write one event with the time now, as `write` does."""
        record = {"event": event, "time": round(read_clock(), 4), **fields}
        self.write(record, durable=durable, then=then)
        return record

    def write(self, record: Event, *, durable: bool = False, then: Callable[[], object] | None = None) -> None:
        """Write one event as it is, unless the file has been lost to another process.

        A durable event is on the disk when this returns. With `then`, it is there soon: one sync in a thread serves all
        events that were written before it begins, and `then` is called there.

        Raises:
            StorageError: the disk is full; a durable event is recorded nevertheless, if the reserve has room for it.
                After the first such error, an event that could be recorded raises none, and one that is not durable is
                lost without another: the ends of what runs still follow. `is_synced` raises the errors of a sync in
                the thread.
            UserError: another process has taken the file over. This is raised once.
        """
        if not self._is_ours(asks=durable):
            return
        line, failure = json.dumps(record, separators=(",", ":")).encode() + b"\n", None
        with storage_errors(self.path):
            try:
                self._append(line, durable=durable, then=then)
            except OSError as error:
                if self._is_full and not durable:
                    return
                failure = self._free_reserve(error, durable=durable)
                self._append(line, durable=durable, then=then)
            if durable:
                self._syncs.append(self._thread.submit(self._sync))
                if not then:
                    wait(self._syncs)
            if failure:
                raise failure
            if durable and not then:
                self.is_synced()  # an earlier sync that has failed may have lost this event, too

    @property
    def is_incomplete(self) -> bool:
        """Whether an event may have been lost because the disk was full."""
        return self._is_full

    def is_synced(self) -> bool:
        """Whether all durable events are on the disk.

        Raises:
            StorageError, UserError: as `write`, of a sync in the thread.
        """
        with storage_errors(self.path):
            while self._syncs and self._syncs[0].done():
                self._syncs.popleft().result()
        return not self._syncs

    def _append(self, line: bytes, *, durable: bool, then: Callable[[], object] | None) -> None:
        with self._lock:
            append_whole(self._fd, line)
            if durable or self._unsynced:
                self._unsynced.append((line, (then or _do_nothing) if durable else None))

    def _is_ours(self, *, asks: bool) -> bool:
        """Whether this process may still write; with `asks`, it is looked up on the file system.

        Raises:
            UserError: another process has taken the file over. This is raised once.
        """
        return True

    def _sync(self) -> None:
        """Sync the file, unless an earlier call has synced all that is durable, and do what waits for that."""
        with self._lock:
            count, failure = len(self._unsynced), None
        if not count:
            return
        try:
            os.fsync(self._fd)
        except OSError as error:  # as a network file system reports a full disk; these lines may be lost
            failure = error
        if not self._is_ours(asks=True):
            return
        with self._lock:
            if failure:
                synced, self._unsynced = self._unsynced, []
                failure = self._write_again(b"".join(line for line, _ in synced), failure)
            else:
                synced, later = self._unsynced[:count], self._unsynced[count:]
                self._unsynced = list(dropwhile(lambda each: each[1] is None, later))
        for then in (then for _, then in synced if then):
            then()
        if failure:
            raise failure

    def _write_again(self, lines: bytes, failure: OSError) -> OSError | None:
        """Write and sync the last lines again, in the room of the reserve; returns and raises as `_free_reserve`."""
        drop_last(self._fd, len(lines))
        reported = self._free_reserve(failure, durable=True)
        append_whole(self._fd, lines)
        os.fsync(self._fd)
        return reported

    def _free_reserve(self, error: OSError, *, durable: bool) -> OSError | None:
        """Make room for a durable event; returns the error if it is the first, which is reported.

        Raises:
            OSError: the error, if there is no room.
        """
        was_full, self._is_full = self._is_full, True
        if not (durable and self._reserve.exists()):
            raise error
        self._reserve.unlink(missing_ok=True)  # the other thread may be faster
        return None if was_full else error

    def _fill_reserve(self) -> None:
        with storage_errors(self.path), open(self._reserve, "wb") as file:
            file.write(os.urandom(RESERVE_BYTES))  # some file systems store no zeros
            file.flush()
            os.fsync(file.fileno())

    def close(self) -> None:
        """Make everything durable and close the file."""
        try:
            self._thread.shutdown()
            self.is_synced()
            with storage_errors(self.path):
                os.fsync(self._fd)
        finally:
            os.close(self._fd)
            with suppress(UserError):  # nothing more is written
                if self._is_ours(asks=True):
                    self._reserve.unlink(missing_ok=True)


def _do_nothing() -> None:
    """What follows the sync of an event for which nothing waits."""


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

    def __init__(self, path: Path, *, offset: int = 0, lines: int = 0, digest: "hashlib._Hash | None" = None) -> None:
        """`digest` is updated with all that is read."""
        self.path, self.offset, self.lines = path, offset, lines  # bytes and lines that were read
        self._digest = digest
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
        if self._digest:
            self._digest.update(block)
        self.offset, self.lines = self.offset + len(block), self.lines + block.count(b"\n")
        return first, block.removesuffix(b"\n").split(b"\n")

    def parsed(self, line: bytes, number: int, decode: Callable[[Event], Decoded]) -> Decoded | None:
        """What `decode` makes of the event of a line; None if the line is damaged, or if `decode` raises ValueError."""
        if (event := parse_event(line)) is not None:
            with suppress(ValueError):
                return decode(event)
        if line:
            self._damaged.append(number)
        return None

    def warn(self) -> None:
        """Log the numbers of the damaged lines."""
        if self._damaged:
            log.warning("%s: skipped damaged lines: %s", self.path, ", ".join(map(str, self._damaged)))


def read_events(path: Path) -> list[Event]:
    """All complete events of a file, in order; none if the file does not exist. Reading needs no lock."""
    return read_decoded(path, lambda event: event)


def read_decoded(path: Path, decode: Callable[[Event], Decoded | None]) -> list[Decoded]:
    """What `decode` makes of each event, without None; see `Reader.parsed`."""
    if not path.exists():
        return []
    reader, events = Reader(path), list[Decoded]()
    for first, lines in reader.blocks():
        found = (reader.parsed(line, number, decode) for number, line in enumerate(lines, start=first))
        events += [event for event in found if event is not None]
    reader.warn()
    return events


def parse_event(line: bytes) -> Event | None:
    """The event in a line; None if it is damaged."""
    try:
        event = _DECODER.decode(line.decode(errors="replace"))
    except ValueError:
        return None
    return event if isinstance(event, dict) and "event" in event and "time" in event else None


def _parse_integer(text: str) -> float:
    return int(text) if len(text) <= _DIGITS else float(text)  # infinite, as in numbers with a point


_DECODER: Final = json.JSONDecoder(parse_int=_parse_integer)
