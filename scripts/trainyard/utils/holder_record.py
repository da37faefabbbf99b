"""A record of the process that holds a lock, for file systems that grant the same lock on two nodes.

NFS mounted with `local_lock` and Lustre with `localflock` do. So the holder also keeps a record of itself beside the
file, and a thread sets the record's time of modification every few seconds, which needs no space on the disk. A record
that does not change was left by a process that was killed. Nobody compares clocks.
"""

import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from trainyard.utils.errors import UserError, storage_errors
from trainyard.utils.files import Holder, held_error

BEAT_SECONDS: Final = 5.0  # between two signs of life
WATCH_SECONDS: Final = 30.0  # without a sign of life, after which a record counts as left behind
POLL_SECONDS: Final = 0.5


class HolderRecord:
    """The record of this process, while it holds the lock."""

    def __init__(self, path: Path, holder: Holder) -> None:
        self._path, self._holder = path, holder
        self._is_lost = self._is_reported = False

    def is_ours(self, *, asks: bool) -> bool:
        """Whether this process still holds the lock; with `asks`, the record is read again.

        Raises:
            UserError: it does not any more. This is raised once.
            StorageError: the record cannot be read.
        """
        with storage_errors(self._path):
            if asks and not self._touch():
                self._is_lost = True
            if self._is_lost and not self._is_reported:
                self._is_reported = True
                other = Holder.parse(_read(self._path)[0])
                who = f"{other} has taken over" if other else "it was moved or removed, or another run has taken over"
                raise UserError(f"{self._path.parent}: {who}; {self._holder} stops and writes nothing more there")
        return not self._is_lost

    def keep_alive(self, ended: threading.Event) -> None:
        """Give a sign of life every few seconds."""
        while not ended.wait(BEAT_SECONDS) and not self._is_lost:
            with suppress(OSError):
                if not self._touch():
                    self._is_lost = True  # never reset: the other thread may have found it lost meanwhile

    def _touch(self) -> bool:
        """Give a sign of life; returns False if the record is not this process's."""
        try:
            with open(self._path, "rb") as file:
                if Holder.parse(file.read()) != self._holder:
                    return False
                os.utime(file.fileno())
        except FileNotFoundError:
            return False
        return True


@contextmanager
def hold_record(
    path: Path,
    holder: Holder,
    *,
    is_given_up: Callable[[Holder], bool] = lambda other: False,
    wait_seconds: float = 0.0,
    notify: Callable[[str], None] = print,
) -> Iterator[HolderRecord]:
    """Keep the record of a holder at `path` during the block; wait up to `wait_seconds` for another one.

    A record that a killed process has left is replaced at once if its process is known to have ended, or if Slurm has
    given it up, otherwise after half a minute without a sign of life.

    Raises:
        LockHeldError: another process holds it; the message names it.
        StorageError: the record cannot be written.
    """
    record, ended = HolderRecord(path, holder), threading.Event()
    watch, deadline = _Watch(path, is_given_up, notify), time.monotonic() + wait_seconds
    with storage_errors(path):
        while not _create(path, holder):
            watch.look(is_last=time.monotonic() >= deadline)
    thread = threading.Thread(target=record.keep_alive, args=[ended], name="holder-record", daemon=True)
    thread.start()
    try:
        yield record
    finally:
        ended.set()
        thread.join()
        with suppress(OSError):
            if Holder.parse(_read(path)[0]) == holder:
                path.unlink()


class _Watch:
    """Watches the record of another process, and removes it if that process does not run any more."""

    def __init__(self, path: Path, is_given_up: Callable[[Holder], bool], notify: Callable[[str], None]) -> None:
        self._path, self._is_given_up, self._notify = path, is_given_up, notify
        self._content, self._modified, self._changed_at, self._is_alive = b"", 0, 0.0, False
        self._last_message = ""

    def look(self, *, is_last: bool) -> None:
        """Look once, then pause.

        Raises:
            LockHeldError: the other process runs, and `is_last`.
        """
        content, modified = _read(self._path)
        other = Holder.parse(content)
        if content != self._content:  # the first look, or another process has taken over
            has_ended = other is not None and (other.has_ended() or self._is_given_up(other))
            self._is_alive, self._changed_at = False, -math.inf if has_ended else time.monotonic()
        elif modified != self._modified:
            self._is_alive, self._changed_at = True, time.monotonic()
        self._content, self._modified = content, modified
        if not content:
            return
        if time.monotonic() - self._changed_at >= WATCH_SECONDS:
            self._say(f"{self._path.parent}: continuing after {other or 'a process'}, which does not run any more")
            if _read(self._path) == (content, modified):
                self._path.unlink(missing_ok=True)
            return
        if self._is_alive and is_last:
            raise held_error(self._path.parent, str(other))
        why = "" if self._is_alive else f" unless it shows no sign of life for {WATCH_SECONDS:g} s"
        self._say(f"waiting for {self._path.parent}, in use by {other or 'another process'}{why}")
        time.sleep(POLL_SECONDS)

    def _say(self, message: str) -> None:
        if message != self._last_message:
            self._last_message = message
            self._notify(message)


def _create(path: Path, holder: Holder) -> bool:
    """Create the record, unless there is one."""
    try:
        with open(path, "xb", buffering=0) as file:
            try:
                file.write(holder.encode())
            except OSError:
                path.unlink()
                raise
    except FileExistsError:
        return False
    return True


def _read(path: Path) -> tuple[bytes, int]:
    """The content and the time of modification, in nanoseconds; empty without a record.

    Opening the file makes a network file system ask its server, which `stat` does not.
    """
    try:
        with open(path, "rb") as file:
            return file.read(), os.fstat(file.fileno()).st_mtime_ns
    except FileNotFoundError:
        return b"", 0
