"""Durable files: atomic writes, locks and digests. Every write that must survive a crash goes through here."""

import errno
import fcntl
import hashlib
import json
import logging
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from trainyard.utils.errors import UserError

log = logging.getLogger(__name__)


class Locked(UserError):
    """Somebody else holds the lock and it did not come free in time."""


@contextmanager
def atomic_write(path: Path, mode: str = "w") -> Iterator[IO[Any]]:
    """Open a temporary file beside `path`; at the end of the block it is fsynced and takes `path`'s place.

    Readers see the old file or the new one, whole, also after a power cut. If the block raises, nothing changes.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{socket.gethostname()}.{os.getpid()}.tmp")
    try:
        with open(temporary, mode, newline="" if "b" not in mode else None) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        _sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON, atomically."""
    with atomic_write(path) as file:
        json.dump(value, file, indent=2)
        file.write("\n")


def _sync_folder(folder: Path) -> None:
    """Make a rename in `folder` durable; some network file systems cannot fsync a folder, and need not."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def digest_of(value: Any, length: int = 16) -> str:
    """The first `length` hex digits of the SHA-256 of `value` as canonical JSON."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:length]


def file_digest(path: Path, algorithm: str = "sha256") -> str:
    """The digest of a file's bytes, as hex."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()


@contextmanager
def lock(path: Path, *, wait_seconds: float = 0.0, say: Callable[[str], None] = print) -> Iterator[None]:
    """Hold the lock file `path` for the length of the block.

    A lock ends with the process that holds it, however that ends, so a stale one cannot be left behind. It is an
    fcntl lock, which network file systems pass between hosts. Another holder is waited for up to `wait_seconds`.

    Raises:
        Locked: it did not come free in time; the message names the holder.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a+") as file:
        _acquire(file, path, wait_seconds, say)
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}, since {time.strftime('%Y-%m-%d %H:%M:%S')}")
        file.flush()
        yield


@contextmanager
def claimed(path: Path, *, wait_seconds: float, look: Callable[[dict[str, Any], bool], None]) -> Iterator[int | None]:
    """Hold the lock file `path` for the length of the block, and for as long as processes live that inherit it.

    Yields its descriptor, for the holder to write down as JSON who it is. Another holder's record goes to `look`, with
    whether that one holds the lock still: its record may be all that is left of it. At the end the file is removed,
    unless something else holds it. Where the file system knows no such locks, that is said, and None is yielded.

    Raises:
        Locked: it did not come free in time; the message names the holder.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + wait_seconds
    while (fd := _claim(path, look, last=time.monotonic() >= deadline)) == _HELD:
        time.sleep(0.1)
    try:
        yield fd
    finally:
        if fd is not None:
            os.close(fd)
            _remove_if_free(path)


_HELD = -1


def _claim(path: Path, look: Callable[[dict[str, Any], bool], None], *, last: bool) -> int | None:
    """Take a lock if it is free: its descriptor, _HELD, or None if there cannot be one."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        held = False
    except OSError as error:
        held = error.errno in (errno.EAGAIN, errno.EACCES)
        if not held:
            os.close(fd)
            log.warning("%s cannot be locked (%s): see that nothing else works in it", path.parent, error.strerror)
            return None
    record = _record_in(fd)
    look(record, held)
    if not held and _is_at(fd, path):
        os.ftruncate(fd, 0)
        return fd
    os.close(fd)
    if held and last:
        who = "process {process} on {host} since {since} ({what})".format(**record) if record else "another process"
        raise Locked(f"{path.parent / path.stem[1:]} is in use by {who}: end that, then run this again")
    return _HELD


def _remove_if_free(path: Path) -> None:
    """Remove a lock file that nothing holds any more."""
    with suppress(OSError):
        fd = os.open(path, os.O_RDWR)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(fd, path):
                path.unlink()
        finally:
            os.close(fd)


def _record_in(fd: int) -> dict[str, Any]:
    """Who holds a lock, or did when its machine went down; empty if nobody has written that down."""
    try:
        record = json.loads(os.pread(fd, 2**16, 0) or b"{}")
    except ValueError:  # half written
        return {}
    return record if isinstance(record, dict) and {"process", "host", "since", "what"} <= record.keys() else {}


def _is_at(fd: int, path: Path) -> bool:
    """Whether an open file is still the one at its path: whoever held it may have removed it."""
    try:
        there = path.stat()
    except FileNotFoundError:
        return False
    here = os.fstat(fd)
    return (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)


def _acquire(file: IO[str], path: Path, wait_seconds: float, say: Callable[[str], None]) -> None:
    deadline = time.monotonic() + wait_seconds
    told = False
    while True:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise
        file.seek(0)
        holder = file.read() or "another process"
        if time.monotonic() >= deadline:
            raise Locked(f"{path.parent} is in use by {holder}: wait until it ends, or end it, then run this again")
        if not told:
            say(f"waiting for {path.parent}, in use by {holder}")
            told = True
        time.sleep(0.2)
