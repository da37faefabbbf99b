"""Durable files: atomic writes, locks and digests. Every file that must survive a crash is written here."""

import errno
import fcntl
import hashlib
import json
import logging
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any, Final, Self

from trainyard.utils.errors import StorageError, UserError, storage_errors

LOCK_REMEDY: Final = (
    "mount this file system with locks (NFS: without `nolock`, and with a running lock service; Lustre: with `flock`), "
    "or keep the results on another one (Snakemake's option `--directory FOLDER`)"
)
# The longest wait for a process that Slurm has given up, because its node does not respond. Slurm kills it when the
# node returns; if that stays away, most network file systems release its locks within minutes.
GIVEN_UP_SECONDS: Final = 600.0
log = logging.getLogger(__name__)


class LockHeldError(UserError):
    """Another process holds the lock and did not release it in time."""


@dataclass(frozen=True)
class Holder:
    """A process that holds a lock."""

    process: int
    host: str
    since: str
    job: str = ""  # the ID of its Slurm job
    cluster: str = ""  # of the job
    restarts: int = 0  # how often Slurm had requeued the job
    place: str = ""  # where the PID is valid
    started: int = 0  # ticks since boot
    token: str = field(default_factory=lambda: secrets.token_hex(8))

    @classmethod
    def this_process(cls) -> Self:
        """The record of this process."""
        job = os.environ.get("SLURM_JOB_ID", "")
        return cls(
            process=os.getpid(),
            host=socket.gethostname(),
            since=time.strftime("%Y-%m-%d %H:%M:%S"),
            job=job,
            cluster=os.environ.get("SLURM_CLUSTER_NAME", "") if job else "",
            restarts=int(os.environ.get("SLURM_RESTART_COUNT", "0")) if job else 0,
            place=_place(),
            started=start_ticks(os.getpid()),
        )

    @classmethod
    def parse(cls, content: bytes) -> Self | None:
        """The holder in a record; None if it is damaged, or not written completely."""
        try:
            return cls(**json.loads(content))
        except (ValueError, TypeError):
            return None

    def encode(self) -> bytes:
        """The record of a holder."""
        return json.dumps(asdict(self)).encode()

    def __str__(self) -> str:
        """As in `process 7 on n1 in job 3, since 2026-01-31 10:00:00`."""
        return f"process {self.process} on {self.host}{f' in job {self.job}' if self.job else ''}, since {self.since}"

    def has_ended(self) -> bool:
        """Whether the process is known to have ended, as it can be seen from here."""
        return self.place == _place() and start_ticks(self.process) != self.started


def _place() -> str:
    """The boot and the PID namespace of this process."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}/{Path('/proc/self/ns/pid').stat().st_ino}"


def start_ticks(process: int) -> int:
    """When a process started, in ticks since boot, as PIDs are reused; 0 if it has ended."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return 0 if fields[0] in "ZX" else int(fields[19])


@contextmanager
def atomic_write(path: Path, mode: str = "w", *, name: Callable[[], str] | None = None) -> Iterator[IO[Any]]:
    """A temporary file beside `path`; at the end of the block, it is fsynced and replaces `path`. Text is UTF-8.

    Readers see the complete old file or the complete new one, even after a power failure. If the block raises, the old
    file stays. `name`: called at the end of the block for the file's name, which replaces the name of `path`.

    Raises:
        StorageError: the file system does not store it.
    """
    temporary = path.with_name(f".{path.name}.{socket.gethostname()}.{os.getpid()}.tmp")
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            newline, encoding = (None, None) if "b" in mode else ("", "utf-8")
            with open(temporary, mode, newline=newline, encoding=encoding) as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path.with_name(name()) if name else path)
            _sync_folder(path.parent)
        finally:
            with suppress(OSError):  # the error that follows from it would hide the first
                temporary.unlink()


def append_whole(fd: int, content: bytes) -> None:
    """Append to an open file as a whole or not at all: if the disk is full, the part that was written is removed."""
    written = 0
    try:
        while written < len(content):
            written += os.write(fd, content[written:])
    except OSError:
        end = os.lseek(fd, 0, os.SEEK_CUR)
        if end == os.fstat(fd).st_size:  # nothing has been appended since
            os.ftruncate(fd, end - written)
        raise


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON, atomically."""
    with atomic_write(path) as file:
        json.dump(value, file, indent=2)
        file.write("\n")


def _sync_folder(folder: Path) -> None:
    """Make a rename in `folder` durable. Some network file systems cannot fsync a folder; they do not need it."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def expand_path(text: str) -> Path:
    """The path of the config with its environment variables and `~` replaced."""
    return Path(os.path.expandvars(text)).expanduser()


def digest_of(value: Any, length: int = 16) -> str:
    """The first `length` hex digits of the SHA-256 of `value` as canonical JSON."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:length]


def file_digest(path: Path, algorithm: str = "sha256") -> str:
    """The digest of a file's bytes, in hex."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()


@contextmanager
def hold_lock(
    path: Path,
    *,
    wait_seconds: float = 0.0,
    is_given_up: Callable[[Holder], bool] = lambda other: False,
    notify: Callable[[str], None] = print,
) -> Iterator[None]:
    """Hold the lock file `path` during the block; wait up to `wait_seconds` for another holder.

    The kernel releases the lock when the process ends, so a stale lock cannot remain. It is a POSIX record lock, which
    network file systems coordinate between hosts. `notify` gets a message if another process holds the lock. For one
    that Slurm has given up, as `is_given_up` tells, wait up to ten minutes.

    Raises:
        LockHeldError: the lock was not released in time; the message names the holder.
        StorageError: the file system does not support locks, or does not store the file.
    """
    with ExitStack() as stack:
        with storage_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context(open(path, "a+b", buffering=0))
        _wait_for_lock(file, path, wait_seconds, is_given_up, notify)
        with storage_errors(path):
            file.truncate(0)
            file.write(Holder.this_process().encode())
        yield


def _wait_for_lock(
    file: IO[bytes],
    path: Path,
    wait_seconds: float,
    is_given_up: Callable[[Holder], bool],
    notify: Callable[[str], None],
) -> None:
    began, known, seconds = time.monotonic(), None, wait_seconds
    while True:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise StorageError(f"{path.parent} cannot be locked ({error.strerror}): {LOCK_REMEDY}") from error
        file.seek(0)
        content = file.read()
        is_new, known = content != known, content
        holder = Holder.parse(content)
        if is_new:  # the first look, or another process has taken it meanwhile
            seconds = max(wait_seconds, GIVEN_UP_SECONDS) if holder and is_given_up(holder) else wait_seconds
        if time.monotonic() >= began + seconds:
            raise held_error(path.parent, str(holder or "another process"))
        if is_new:
            notify(f"waiting for {path.parent}, in use by {holder or 'another process'}")
        time.sleep(0.2)


def held_error(folder: Path, holder: str) -> LockHeldError:
    """The error if another process uses a folder."""
    return LockHeldError(f"{folder} is in use by {holder}: wait until it ends, or end it, then run this again")


@contextmanager
def hold_inheritable_lock(
    path: Path, *, wait_seconds: float, on_record: Callable[[dict[str, Any], bool], None]
) -> Iterator[int | None]:
    """Hold the lock file `path` during the block, and beyond it while processes run that inherited it.

    Yields the lock's file descriptor, into which the holder writes a JSON record of itself; None, after a warning, if
    the file system does not support locks. Whenever the file has the record of another holder, `on_record` gets that
    record and whether its lock is still held: a record without a lock is what a killed holder leaves. The file is
    removed at the end, unless a process still holds it.

    Raises:
        LockHeldError: the lock was not released in time; the message names the holder.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + wait_seconds
    while (fd := _try_lock(path, on_record, is_last=time.monotonic() >= deadline)) == _HELD:
        time.sleep(0.1)
    try:
        yield fd
    finally:
        if fd is not None:
            os.close(fd)
            _remove_if_unlocked(path)


_HELD: Final = -1


def _try_lock(path: Path, on_record: Callable[[dict[str, Any], bool], None], *, is_last: bool) -> int | None:
    """The descriptor of the lock; _HELD if another process has it, None if the file system does not support locks."""
    with storage_errors(path):
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_held = False
    except OSError as error:
        is_held = error.errno in (errno.EAGAIN, errno.EACCES)
        if not is_held:
            os.close(fd)
            log.warning("%s cannot be locked (%s): make sure that nothing else uses it", path.parent, error.strerror)
            return None
    record = _read_record(fd)
    on_record(record, is_held)
    if not is_held and _is_at(fd, path):
        os.ftruncate(fd, 0)
        return fd
    os.close(fd)
    if is_held and is_last:
        holder = "process {process} on {host} since {since} ({what})".format(**record) if record else "another process"
        raise LockHeldError(f"{path.parent / path.stem[1:]} is in use by {holder}: end it, then run this again")
    return _HELD


def _remove_if_unlocked(path: Path) -> None:
    with suppress(OSError):
        fd = os.open(path, os.O_RDWR)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(fd, path):
                path.unlink()
        finally:
            os.close(fd)


def _read_record(fd: int) -> dict[str, Any]:
    """The record of the current holder, or of one that was killed; empty if there is none."""
    try:
        record = json.loads(os.pread(fd, 2**16, 0) or b"{}")
    except ValueError:  # written only in part
        return {}
    return record if isinstance(record, dict) and {"process", "host", "since", "what"} <= record.keys() else {}


def _is_at(fd: int, path: Path) -> bool:
    """Whether an open file is still the one at `path`; its previous holder may have removed it."""
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False
