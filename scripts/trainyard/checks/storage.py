"""Checks of the folders for results and of the home folder: free space, files, quotas."""

import math
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from trainyard.checks.findings import Finding
from trainyard.cluster import host
from trainyard.utils.typed_commands import trainyard_call

MIN_FREE_GIB = 5  # of results: for checkpoints, tables and logs; datasets need more
MIN_FREE_HOME_GIB = 0.5  # for the caches of torch and its compilers
MIN_FREE_FILES = 1000
QUOTA_SECONDS = 20  # `quota` asks each file server, and one may not answer


@dataclass(frozen=True)
class Space:
    """What a user can still write into a folder."""

    gib: float
    files: float  # infinite where they are not counted
    has_quota: bool  # whether a quota was found; otherwise this is the free space of the file system

    def __str__(self) -> str:
        """The space and the files."""
        files = f" and {self.files:,.0f} files" if math.isfinite(self.files) else ""
        quota = "of your quota" if self.has_quota else "no quota found"
        return f"{self.gib:.1f} GiB{files} free ({quota})"


def check_results(results: Path) -> Iterator[Finding]:
    """There is space for results, on a file system that the nodes share."""
    folder = next(each for each in (results.absolute(), *results.absolute().parents) if each.exists())
    remedy = f"free at least {MIN_FREE_GIB} GiB and {MIN_FREE_FILES:,} files, or work on a larger file system"
    space = free_space(folder)
    is_full = space.gib < MIN_FREE_GIB or space.files < MIN_FREE_FILES
    yield Finding("free space", "fails" if is_full else "ok", f"{space} in {folder}", remedy if is_full else "")
    kind = host.file_system_type(folder)
    if host.is_network_file_system(kind):
        yield Finding("shared files", "ok", f"{folder} is on a network file system ({kind})")
    else:
        remedy = f"`{trainyard_call('doctor', '--job')}` runs a job that reads and writes there"
        yield Finding("shared files", "unknown", f"{folder} is on {kind}, which may be local to this machine", remedy)


def check_home() -> Iterator[Finding]:
    """There is space for caches in the home folder."""
    space = free_space(Path.home())
    is_full = space.gib < MIN_FREE_HOME_GIB or space.files < MIN_FREE_FILES
    remedy = "free some space, or set TORCH_HOME, TRITON_CACHE_DIR and XDG_CACHE_HOME to another file system"
    yield Finding("home", "warns" if is_full else "ok", f"{space} in {Path.home()}", remedy if is_full else "")


def free_space(folder: Path) -> Space:
    """The space that a user has in a folder, by its file system and the quota, if one is found."""
    space = shutil.disk_usage(folder)
    files = os.statvfs(folder)
    free_files = files.f_favail if files.f_files else math.inf
    if quota := parse_quota(_quota_output(folder), _device(folder)):
        return Space(min(space.free / 2**30, quota.gib), min(free_files, quota.files), has_quota=True)
    return Space(space.free / 2**30, free_files, has_quota=False)


def _device(folder: Path) -> str:
    """What is mounted there, such as `nas:/export/home`."""
    mount = host.innermost_mount(folder, psutil.disk_partitions(all=True))
    return str(mount.device) if mount else ""


def _quota_output(folder: Path) -> str:
    """What the file system's program prints about the user's quota; "" if there is no such program or no quota."""
    is_lustre = host.file_system_type(folder) == "lustre"
    user = str(os.getuid())
    line = ["lfs", "quota", "-q", "-u", user, str(folder)] if is_lustre else ["quota", "-w", "-p", "-u"]
    try:
        done = subprocess.run(line, text=True, capture_output=True, check=False, timeout=QUOTA_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    # `lfs` names the folder instead of a device, and may begin a new line after a long name.
    return " ".join([_device(folder), *done.stdout.split()[1:]]) if is_lustre else done.stdout


def parse_quota(output: str, device: str) -> Space | None:
    """What is left in the output of `quota -w -p`, or of `lfs quota -q`, for a device; None if it has no limit.

    The columns are device, KiB in use, soft and hard limit, grace period, and the same for files; 0 is no limit, and
    an asterisk marks what is above its limit.
    """
    lines = (line.split() for line in output.splitlines())
    columns = next((words[1:9] for words in lines if len(words) >= 9 and words[0] == device), None)
    if columns is None:
        return None
    kib, soft, hard, _, files, soft_files, hard_files, _ = (int(re.sub(r"\D", "", each) or 0) for each in columns)
    space = soft or hard
    count = soft_files or hard_files
    if not (space or count):
        return None
    free_gib = max(0, space - kib) / 2**20 if space else math.inf
    return Space(free_gib, max(0, count - files) if count else math.inf, has_quota=True)
