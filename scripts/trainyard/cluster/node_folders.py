"""Folders on a node's own disk that last only as long as the processes that use them.

A process holds such a folder by a lock on it. The kernel releases the lock when the process ends, also after SIGKILL.
If a whole job is killed, its folders remain; the next one on the node, of whatever rule, removes folders that are not
held. NFS and Lustre grant such a lock, but it holds on one node only: where other nodes may see a folder, each node
removes only its own.
"""

import contextlib
import fcntl
import os
import random
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from trainyard.cluster import host, slurm_allocation
from trainyard.utils.files import expand_path
from trainyard.utils.guard import KILL_SECONDS, remove_unless_held
from trainyard.utils.locks import LOCK_POLL_SECONDS, is_at

_PLAIN_PATH: Final = re.compile(r"[\w/.+-]+", re.ASCII)
RAY_PREFIX: Final = "ty-ray-"  # of private folders with the files of Ray
HELD_MARK: Final = ".trainyard"  # in a temporary folder of Snakemake that is held, as those of other workflows are not
ORPHAN_SECONDS: Final = 60  # minimum age before removal: a new folder exists for a moment before it is locked


@contextlib.contextmanager
def private_folder(prefix: str, *, max_path_length: int) -> Iterator[Path]:
    """A new folder that only this user can enter, in the temporary folder or in /tmp.

    It is in /tmp if the temporary folder is on a network file system, or if its path is too long or not plain: the
    folder's path has at most `max_path_length` characters, of which each is safe in a command line and in ASCII.
    """
    parent = tempfile.gettempdir()
    is_short = len(parent) <= max_path_length - len(prefix) - 9
    if not is_short or not _PLAIN_PATH.fullmatch(parent) or _is_on_network(parent):
        parent = "/tmp"
    if not _is_on_network(parent):  # there, those of other nodes would seem unheld
        remove_unheld(Path(parent), f"{prefix}*", older_than_seconds=ORPHAN_SECONDS)
    path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    lock = os.open(path, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # the file system locks no folders, and then nobody removes it
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


def hold_until_end(path: Path) -> None:
    """Hold Snakemake's temporary folder until this process ends, and remove what killed jobs have left beside it."""
    with contextlib.suppress(OSError):  # on a full disk, or one without locks
        (path / HELD_MARK).touch()
        fcntl.flock(os.open(path, os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)
    for parent in {path.parent, Path("/tmp")}:
        if not _is_on_network(str(parent)):
            remove_unheld(parent, f"{RAY_PREFIX}*", older_than_seconds=ORPHAN_SECONDS)
            for mark in parent.glob(f"snakemake*/{HELD_MARK}"):
                remove_unheld(parent, mark.parent.name, older_than_seconds=ORPHAN_SECONDS)


def _is_on_network(folder: str) -> bool:
    """Whether other nodes may see this folder."""
    return host.is_network_file_system(host.file_system_type(Path(folder)))


@contextlib.contextmanager
def shared_folder(path: Path, *, is_complete: Callable[[Path], bool], fill: Callable[[Path], None]) -> Iterator[Path]:
    """A folder that concurrent processes share: the first one fills it, the last one removes it.

    If `fill` raises, the folder is removed and the exception is passed on.
    """
    lock = _lock_shared(path, is_complete, fill)
    try:
        yield path
    finally:
        if _lock_alone(lock):
            shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


def _lock_shared(path: Path, is_complete: Callable[[Path], bool], fill: Callable[[Path], None]) -> int:
    """A shared lock on the complete folder. While any process holds one, no other fills or removes the folder."""
    while True:
        path.mkdir(mode=0o700, exist_ok=True)
        lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            if os.fstat(lock).st_uid != os.getuid():
                raise PermissionError(f"{path} belongs to another user")
            fcntl.flock(lock, fcntl.LOCK_SH)
            if is_at(lock, path) and is_complete(path):
                return lock
            # It does not wait: the other may have filled the folder meanwhile, and hold it for as long as it runs.
            is_alone = _lock_alone(lock)
            if is_alone and is_at(lock, path) and not is_complete(path):
                try:
                    fill(path)
                except BaseException:
                    shutil.rmtree(path, ignore_errors=True)
                    raise
        except BaseException:
            os.close(lock)
            raise
        os.close(lock)  # and retry: between two locks, the last user may have removed the folder
        if not is_alone:
            time.sleep(random.uniform(0, LOCK_POLL_SECONDS))  # so that two that try do not keep each other from it


def _lock_alone(lock: int) -> bool:
    """Take an exclusive lock; False if another process has one."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def remove_unheld(parent: Path, pattern: str, *, older_than_seconds: float = 0.0, wait_seconds: float = 0.0) -> None:
    """Remove this user's folders in `parent` that no process holds; wait up to `wait_seconds` for their release."""
    end = time.monotonic() + wait_seconds
    while True:
        old = [path for path in parent.glob(pattern) if _is_ours(path, older_than_seconds)]
        held = [path for path in old if not remove_unless_held(str(path))]
        if not held or time.monotonic() >= end:
            return
        time.sleep(LOCK_POLL_SECONDS)


def _is_ours(path: Path, older_than_seconds: float) -> bool:
    """Whether a folder is this user's and so old."""
    try:
        info = path.lstat()
    except OSError:  # already removed
        return False
    return info.st_uid == os.getuid() and time.time() - info.st_mtime >= older_than_seconds


# ---- copies of datasets

PREFIX: Final = "ty-data-"


@contextlib.contextmanager
def remove_copies_at_exit(policy: str) -> Iterator[None]:
    """At the end of the block, remove the copies that killed processes of this job have left on this node."""
    for base in candidate_folders(policy):
        remove_unheld(base, f"{_node_prefix()}*", older_than_seconds=ORPHAN_SECONDS)
    try:
        yield
    finally:
        for base in candidate_folders(policy):
            remove_unheld(base, f"{copy_prefix()}*", wait_seconds=KILL_SECONDS)


def copy_patterns(policy: str) -> list[str]:
    """Glob patterns that match every copy of this job on this node."""
    return [f"{base}/{copy_prefix()}*" for base in candidate_folders(policy)]


def copy_prefix() -> str:
    """The prefix of the names of this job's copies on this node."""
    return f"{_node_prefix()}{slurm_allocation.job_id()}-"


def _node_prefix() -> str:
    """The prefix of the names of this user's copies on this node.

    `data.local` and `TMPDIR` may be folders that the nodes share. No host name contains "+", so that the names of other
    nodes do not begin with it.
    """
    return f"{PREFIX}{os.getuid()}-{host.node_name()}+"


def candidate_folders(policy: str) -> list[Path]:
    """Existing, writable folders for copies under the policy `data.local`, in order of preference."""
    if policy == "off":
        return []
    if policy != "auto":
        path = expand_path(policy)
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError:
            return []
        return [path] if os.access(path, os.W_OK) else []
    names = [os.environ.get("SLURM_TMPDIR"), os.environ.get("TMPDIR"), "/tmp", "/dev/shm"]
    folders = dict.fromkeys(Path(name) for name in names if name)
    return [folder for folder in folders if folder.is_dir() and os.access(folder, os.W_OK)]
