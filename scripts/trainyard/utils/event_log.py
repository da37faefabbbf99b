"""Files of JSON lines, one per event: appended by one process, repaired after a crash, read as they grow."""

import io
import json
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Generic, Self, TypeVar

from pydantic_core import from_json

from trainyard.utils.errors import storage_errors
from trainyard.utils.files import append_whole
from trainyard.utils.text import list_some

Event = dict[str, Any]
Decoded = TypeVar("Decoded")
LISTED_LINES: Final = 10  # of those that a message names
_CLOCK_OFFSET: Final = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
log = logging.getLogger(__name__)


def read_clock() -> float:
    """Unix seconds by a clock that nobody sets: it follows the time that has passed since this process started."""
    return _CLOCK_OFFSET + time.clock_gettime(time.CLOCK_BOOTTIME)


class EventLog:
    """Appends events to a file that no other process writes, see `opened`.

    A line is appended as a whole or not at all.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.is_incomplete = False  # whether an event may have been lost because the disk was full
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._unsynced: list[Callable[[], object]] = []  # what follows the sync of each durable event, in their order
        self._lock = threading.Lock()  # of these and the end of the file
        self._thread = ThreadPoolExecutor(1, "sync")
        self._syncs = deque[Future[None]]()  # that nobody waits for

    @classmethod
    @contextmanager
    def opened(cls, path: Path) -> Iterator[Self]:
        """The file at `path` for appending, its torn tail repaired.

        Raises:
            StorageError: it cannot be written.
        """
        with storage_errors(path):
            _repair_tail(path)
            events = cls(path)
        try:
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
        """Write one event as it is.

        A durable event is on the disk when this returns. With `then`, it is there soon: one sync in a thread serves all
        events that were written before it begins, and `then` is called there.

        Raises:
            StorageError: the disk is full. This is raised once: later events are written if there is room for them by
                then, and what runs can end. `is_synced` raises the error of a sync in the thread.
        """
        line = json.dumps(record, separators=(",", ":")).encode() + b"\n"
        with storage_errors(self.path), self._first_error():
            with self._lock:
                append_whole(self._fd, line)
                if durable:
                    self._unsynced.append(then or _do_nothing)
            if durable:
                self._syncs.append(self._thread.submit(self._sync))
        if durable and not then:
            wait(self._syncs)
            self.is_synced()  # an earlier sync that has failed may have lost this event, too

    def sync(self) -> None:
        """Make everything durable that was written.

        Raises:
            StorageError: as `write`.
        """
        with storage_errors(self.path), self._first_error():
            os.fsync(self._fd)

    @property
    def is_empty(self) -> bool:
        """Whether nothing was written, also if the file has been removed since."""
        return os.fstat(self._fd).st_size == 0

    def is_synced(self) -> bool:
        """Whether all durable events are on the disk.

        Raises:
            StorageError: as `write`, of a sync in the thread.
        """
        with storage_errors(self.path):
            while self._syncs and self._syncs[0].done():
                self._syncs.popleft().result()
        return not self._syncs

    @contextmanager
    def _first_error(self) -> Iterator[None]:
        """Suppress an error of the file system in the block unless it is the first one."""
        try:
            yield
        except OSError:
            was_incomplete = self.is_incomplete
            self.is_incomplete = True
            if not was_incomplete:
                raise

    def _sync(self) -> None:
        """Sync the file, unless an earlier call has synced all that is durable, and do what waits for that."""
        with self._lock:
            waiting = self._unsynced
            self._unsynced = []
        if not waiting:
            return
        with self._first_error():
            os.fsync(self._fd)  # a network file system reports a full disk here; then the lines may be lost
            for then in waiting:
                then()

    def close(self) -> None:
        """Make everything durable and close the file."""
        try:
            self._thread.shutdown()
            self.is_synced()
            self.sync()
        finally:
            os.close(self._fd)


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


class Reader(Generic[Decoded]):
    """Reads a growing file of JSON lines; `decode` returns None for events that are skipped."""

    def __init__(self, path: Path, decode: Callable[[Event], Decoded | None]) -> None:
        self._path = path
        self._decode = decode
        self._inode = 0  # of the file
        self._lines = 0  # that were read
        self.offset = 0  # bytes that were read

    def restarts(self) -> bool:
        """Whether `new` returns all events again, because the file is another one, was shortened, or has vanished."""
        try:
            with open(self._path, "rb") as file:  # a network file system asks its server, which it does not for `stat`
                state = os.fstat(file.fileno())
        except FileNotFoundError:
            inode = size = 0
        else:
            inode = state.st_ino
            size = state.st_size
        if inode == self._inode and size >= self.offset:
            return False
        self._inode = inode
        self.offset = 0
        self._lines = 0
        return True

    def new(self, *, limit: int | None = None) -> Iterator[Decoded]:
        """The events that were appended since the last call, in order; none if the file does not exist.

        With a `limit`, only this many bytes of the file count.

        Lines are skipped, and their numbers logged, if they are damaged or `decode` raises ValueError. A last line
        without a line break counts if it is valid; otherwise it is torn, or still being written.
        """
        damaged: list[str] = []
        for line in self._new_lines(limit):
            self._lines += 1
            try:
                if (event := parse_event(line)) is None:
                    raise ValueError("damaged")
                decoded = self._decode(event)
            except ValueError:
                if line:
                    damaged.append(str(self._lines))
                continue
            if decoded is not None:
                yield decoded
        if damaged:
            log.warning("%s: skipped damaged lines: %s", self._path, list_some(damaged, LISTED_LINES))

    def _new_lines(self, limit: int | None) -> Iterator[bytes]:
        try:
            with open(self._path, "rb") as file:
                file.seek(self.offset)
                content = file.read(-1 if limit is None else max(0, limit - self.offset))
        except FileNotFoundError:
            return
        for line in io.BytesIO(content):
            if not line.endswith(b"\n") and parse_event(line) is None:
                return
            self.offset += len(line)
            yield line.removesuffix(b"\n")


def read_events(path: Path) -> list[Event]:
    """All complete events of a file, in order; none if the file does not exist. Reading needs no lock."""
    return read_decoded(path, lambda event: event)


def read_decoded(path: Path, decode: Callable[[Event], Decoded | None]) -> list[Decoded]:
    """What `decode` makes of each event, without None; see `Reader.new`."""
    return list(Reader(path, decode).new())


def parse_event(line: bytes) -> Event | None:
    """The event in a line; None if it is damaged."""
    try:
        event = from_json(line)
    except ValueError:
        try:  # it takes four times as long, and alone reads the surrogates of bytes that are no text
            event = json.loads(line)
        except ValueError:
            return None
    return event if isinstance(event, dict) and "event" in event and "time" in event else None
