"""Control groups for ProctrackType=proctrack/cgroup: each host has a part of this machine's freezer (version 1)."""

import os
from contextlib import suppress
from pathlib import Path

FREEZER = Path("/sys/fs/cgroup/freezer")


def is_available() -> bool:
    """Whether this machine has the freezer of version 1, and lets us make groups there."""
    return (FREEZER / "cgroup.procs").exists() and os.access(FREEZER, os.W_OK)


def mount_commands(state: Path, host: str) -> list[str]:
    """The shell commands that give a host a freezer of its own, in its mount namespace."""
    part = _part(state) / host
    return [f"mkdir -p {part}", f"mount --bind {part} {FREEZER}"]


def remove(state: Path) -> None:
    """Remove the groups of a cluster, whose processes have ended."""
    for folder, _, _ in os.walk(_part(state), topdown=False):
        with suppress(OSError):  # a process is still ending
            Path(folder).rmdir()


def _part(state: Path) -> Path:
    return FREEZER / f"trainyard{str(state).replace('/', '-')}"
