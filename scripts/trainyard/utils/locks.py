"""Who holds a file or a folder, since when, and whether that process is alive.

`hold` locks a file, which contains a record of the holder. The kernel releases the lock when its holder ends, so a
stale lock cannot remain. Network file systems coordinate both kinds of locks between nodes:

- by default, a lock of this process (`lockf`): no child that a killed holder leaves behind keeps it;
- `inherited`, a lock of the open file (`flock`): processes that get its descriptor hold it, too, until all have ended.

Some file systems grant the same lock on two nodes (NFS mounted with `local_lock`, Lustre with `localflock`). So what
must never happen twice, such as a trial of a sweep, relies on no lock but on the log of claims (`planning/claims.py`).
"""

import errno
import fcntl
import json
import logging
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, NamedTuple, Self

from trainyard.utils.errors import StorageError, UserError, storage_errors

LOCK_REMEDY: Final = (
    "mount this file system with locks (NFS: without `nolock`, and with a running lock service; Lustre: with `flock`), "
    "or keep the results on another one (Snakemake's option `--directory FOLDER`)"
)
# The longest wait for a process that Slurm has given up, because its node does not respond. Slurm kills it when the
# node returns; if that stays away, most network file systems release its locks within minutes.
GIVEN_UP_SECONDS: Final = 600.0
LOCK_POLL_SECONDS: Final = 0.1
RECORD_BYTES: Final = 2**16  # more than a record has
log = logging.getLogger(__name__)


class LockHeldError(UserError):
    """Another process holds the lock and did not release it in time."""

    def __init__(self, held: Path, holder: "Holder | None") -> None:
        who = str(holder or "another process")
        super().__init__(f"{held} is in use by {who}: wait until it ends, or end it, then run this again")


@dataclass(frozen=True)
class Holder:
    """A process that holds a lock."""

    process: int
    host: str
    since: str
    purpose: str = ""  # such as `trial t1`
    job: str = ""  # the ID of its Slurm job
    cluster: str = ""  # of the job
    restarts: int = 0  # how often Slurm had requeued the job
    namespace: str = ""  # where the PID is valid
    started: int = 0  # ticks since boot

    @classmethod
    def this_process(cls, purpose: str = "") -> Self:
        """The record of this process."""
        job = os.environ.get("SLURM_JOB_ID", "")
        return cls(
            process=os.getpid(),
            host=socket.gethostname(),
            since=time.strftime("%Y-%m-%d %H:%M:%S"),
            purpose=purpose,
            job=job,
            cluster=os.environ.get("SLURM_CLUSTER_NAME", "") if job else "",
            restarts=int(os.environ.get("SLURM_RESTART_COUNT", "0")) if job else 0,
            namespace=_pid_namespace(),
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
        """As in `process 7 on n1 in job 3, since 2026-01-31 10:00:00 (trial t1)`."""
        job = f" in job {self.job}" if self.job else ""
        purpose = f" ({self.purpose})" if self.purpose else ""
        return f"process {self.process} on {self.host}{job}, since {self.since}{purpose}"

    def is_here(self) -> bool:
        """Whether it runs, or ran, where its PIDs are valid: on this node, and in no other container."""
        return self.namespace == _pid_namespace()

    def has_ended(self) -> bool:
        """Whether the process is known to have ended, as it can be seen from here."""
        return self.is_here() and start_ticks(self.process) != self.started


def _pid_namespace() -> str:
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


class Hold(NamedTuple):
    """A lock that this process holds."""

    fd: int
    path: Path  # of the file, without symbolic links
    was_left: bool  # whether the file has the record of another holder, which was killed if the lock is `inherited`


@contextmanager
def hold(
    path: Path,
    *,
    held: Path | None = None,
    purpose: str = "",
    inherited: bool = False,
    wait_seconds: float = 0.0,
    is_given_up: Callable[[Holder], bool] = lambda other: False,
) -> Iterator[Hold]:
    """Hold the lock file `path` during the block; wait up to `wait_seconds` for another holder.

    Messages name what is `held`, by default the folder of the file. For a holder that Slurm has given up, by
    `is_given_up`, wait up to ten minutes.

    If the lock is `inherited`, processes hold it, too, that get its descriptor and outlive this one. The file is
    removed at the end of the block if nobody else holds it.

    Raises:
        LockHeldError: the lock was not released in time; the message names the holder.
        StorageError: the file system does not support locks, or does not store the file.
    """
    held = held or path.parent
    began = time.monotonic()
    seconds = wait_seconds
    seen = None
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        with storage_errors(path):
            fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            is_ours = _lock(fd, held, inherited=inherited)
            content = os.pread(fd, RECORD_BYTES, 0)
            if is_ours and is_at(fd, path):  # its previous holder may have removed it
                break
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)
        if is_ours:
            continue
        other = Holder.parse(content)
        if content != seen:  # the first look, or another process has taken it meanwhile
            seconds = max(wait_seconds, GIVEN_UP_SECONDS) if other and is_given_up(other) else wait_seconds
        if time.monotonic() >= began + seconds:
            raise LockHeldError(held, other)
        if content != seen:
            log.info("waiting for %s, in use by %s", held, other or "another process")
        seen = content
        time.sleep(LOCK_POLL_SECONDS)
    try:
        with suppress(OSError) if inherited else storage_errors(path):
            _write_record(fd, Holder.this_process(purpose).encode())
        yield Hold(fd, path.resolve(), was_left=bool(content))
    finally:
        os.close(fd)
        if inherited:
            _remove_if_unheld(path)


def _write_record(fd: int, record: bytes) -> None:
    os.pwrite(fd, record, 0)
    os.ftruncate(fd, len(record))


def _lock(fd: int, held: Path, *, inherited: bool) -> bool:
    """Take the lock of an open file; False if another process has it."""
    try:
        (fcntl.flock if inherited else fcntl.lockf)(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EAGAIN, errno.EACCES):
            raise StorageError(f"{held} cannot be locked ({error.strerror}): {LOCK_REMEDY}") from error
        return False
    return True


def _remove_if_unheld(path: Path) -> None:
    with suppress(OSError):
        fd = os.open(path, os.O_RDWR)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if is_at(fd, path):
                path.unlink()
        finally:
            os.close(fd)


def is_at(fd: int, path: Path) -> bool:
    """Whether an open file or folder is still the one at `path`."""
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False
