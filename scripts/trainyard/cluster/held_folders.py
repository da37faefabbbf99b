"""The disks of a node: which are its own, and folders there that last as long as the processes that use them.

A folder is held by a lock on it, which ends with its process, however that ends. So what nobody holds can be removed,
and is, by the next who comes: when a whole job gets SIGKILL, nobody of it is left to do so.
"""

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from trainyard.cluster import slurm_allocation

ORPHAN_SECONDS: Final = 60  # a folder that is younger may be about to be locked by the one who made it
NETWORK: Final = ("nfs", "lustre", "gpfs", "beegfs", "ceph", "wekafs", "panfs", "afs", "orangefs", "gluster", "smb",
                  "cifs", "9p", "fuse")  # fmt: skip


def file_system(path: Path, mounts: Sequence[Any] | None = None) -> str:
    """The type of the file system that holds a path, such as `ext4`: that of the innermost mount around it."""
    import psutil

    mounts = psutil.disk_partitions(all=True) if mounts is None else mounts
    held = [mount for mount in mounts if path.absolute().is_relative_to(mount.mountpoint)]
    return str(max(held, key=lambda mount: len(mount.mountpoint)).fstype) if held else "an unknown file system"


def is_network(kind: str) -> bool:
    """Whether file systems of this type are seen by other nodes, too."""
    return kind.startswith(NETWORK)


@contextlib.contextmanager
def private_folder(prefix: str, *, longest: int) -> Iterator[Path]:
    """A folder in the temporary one, or in /tmp if its path would be too long, that only this user can enter."""
    parent = tempfile.gettempdir()
    parent = parent if len(parent) <= longest - len(prefix) - 9 else "/tmp"
    remove_unheld(Path(parent), f"{prefix}*", older_than_seconds=ORPHAN_SECONDS)
    path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    lock = os.open(path, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


@contextlib.contextmanager
def common_folder(path: Path, *, complete: Callable[[Path], bool], fill: Callable[[Path], None]) -> Iterator[Path]:
    """A folder that all who use it at the same time share: the first fills it, the last removes it.

    Whatever `fill` raises is passed on, and nothing of the folder is left.
    """
    lock = _common_lock(path, complete, fill)
    try:
        yield path
    finally:
        with contextlib.suppress(BlockingIOError):  # somebody else still uses it
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


def _common_lock(path: Path, complete: Callable[[Path], bool], fill: Callable[[Path], None]) -> int:
    """A shared lock on the complete folder: whoever has any lock on it knows that nobody fills or removes it."""
    while True:
        path.mkdir(mode=0o700, exist_ok=True)
        lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            fcntl.flock(lock, fcntl.LOCK_SH)
            if _is_at(lock, path) and complete(path):
                return lock
            fcntl.flock(lock, fcntl.LOCK_EX)
            if _is_at(lock, path) and not complete(path):
                _filled(path, fill)
        except BaseException:
            os.close(lock)
            raise
        os.close(lock)  # and once more: the last user may have removed it between two locks


def _filled(path: Path, fill: Callable[[Path], None]) -> None:
    try:
        fill(path)
    except BaseException:
        shutil.rmtree(path, ignore_errors=True)
        raise


def _is_at(lock: int, path: Path) -> bool:
    """Whether the open folder is still the one at this path, and this user's."""
    try:
        there = path.lstat()
    except FileNotFoundError:
        return False
    here = os.fstat(lock)
    if here.st_uid != os.getuid():
        raise PermissionError(f"{path} belongs to somebody else")
    return (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)


def remove_unheld(parent: Path, pattern: str, *, older_than_seconds: float = 0.0, wait_seconds: float = 0.0) -> None:
    """Remove this user's folders in `parent` that nobody holds, or nobody any more within the wait."""
    end = time.monotonic() + wait_seconds
    while True:
        held = [path for path in parent.glob(pattern) if not _removed(path, older_than_seconds)]
        if not held or time.monotonic() >= end:
            return
        time.sleep(0.1)


def _removed(path: Path, older_than_seconds: float) -> bool:
    """Remove a folder if nobody holds it; False if somebody does."""
    try:
        info = path.lstat()
        if info.st_uid != os.getuid() or time.time() - info.st_mtime < older_than_seconds:
            return True  # not ours to remove
        lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:  # gone meanwhile, or not a folder
        return True
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(path, ignore_errors=True)
    except BlockingIOError:
        return False
    finally:
        os.close(lock)
    return True


PREFIX: Final = "ty-data-"
ENDING_SECONDS: Final = 5  # Ray's workers end a moment after Ray


@contextmanager
def removed_at_the_end(policy: str) -> Iterator[None]:
    """After the block, remove what processes of this job that were ended by force have left on this node."""
    for base in candidates(policy, os.environ):
        remove_unheld(base, f"{PREFIX}{os.getuid()}-*", older_than_seconds=ORPHAN_SECONDS)
    try:
        yield
    finally:
        for base in candidates(policy, os.environ):
            remove_unheld(base, f"{job_prefix()}*", wait_seconds=ENDING_SECONDS)


def patterns(policy: str) -> list[str]:
    """What matches all copies of this job on this node."""
    return [f"{base}/{job_prefix()}*" for base in candidates(policy, os.environ)]


def job_prefix() -> str:
    """What the names of this job's folders begin with."""
    return f"{PREFIX}{os.getuid()}-{slurm_allocation.job_id()}-"


def candidates(policy: str, environment: Mapping[str, str]) -> list[Path]:
    """Existing folders that this process can write to, the best one first."""
    if policy == "off":
        return []
    if policy != "auto":
        path = Path(os.path.expandvars(policy)).expanduser()
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError:
            return []
        return [path] if os.access(path, os.W_OK) else []
    names = [environment.get("SLURM_TMPDIR"), environment.get("TMPDIR"), "/tmp", "/dev/shm"]
    folders = dict.fromkeys(Path(name) for name in names if name)
    return [folder for folder in folders if folder.is_dir() and os.access(folder, os.W_OK)]
