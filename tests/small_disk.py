"""A file system of a few MiB, in a mount namespace of its own, for tests that fill a disk."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

HOLD = 'mount -t tmpfs -o "size=$1" tmpfs "$2" && echo mounted && exec sleep infinity'


@dataclass(frozen=True)
class SmallDisk:
    """A mounted file system."""

    mount: Path  # its path in the namespace
    process: int  # the PID of the process that holds the namespace

    @property
    def folder(self) -> Path:
        """Its path for this process, which is outside of the namespace."""
        return Path(f"/proc/{self.process}/root{self.mount}")

    def inside(self, *command: str) -> list[str]:
        """The command line that runs a command in the namespace."""
        return ["nsenter", f"--mount=/proc/{self.process}/ns/mnt", f"--wd={Path.cwd()}", *command]

    def fill(self, *, leave: int = 0) -> Path:
        """Fill it up to the last `leave` bytes (in pages); returns the file that fills it."""
        filler = self.folder / "filler"
        with open(filler, "ab", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(b"x" * 4096)
        if leave:
            os.truncate(filler, filler.stat().st_size - leave)
        return filler

    def remount(self, options: str) -> None:
        """Change its mount options, such as `ro` or `size=8m`."""
        subprocess.run(self.inside("mount", "-o", f"remount,{options}", str(self.mount)), check=True)


@contextlib.contextmanager
def mount_small_disk(folder: Path, size: str) -> Iterator[SmallDisk]:
    """A file system of this size at `folder`, for processes in its namespace. Without permission, skips the test."""
    give_up = pytest.fail if os.environ.get("CI") else pytest.skip
    if os.geteuid():
        give_up("only root can mount a small disk")
    folder.mkdir(exist_ok=True)
    hold = ["unshare", "--mount", "--propagation=private", "sh", "-c", HOLD, "sh", size, str(folder)]
    with subprocess.Popen(hold, stdout=subprocess.PIPE, text=True) as holder:
        try:
            if holder.stdout is None or holder.stdout.readline() != "mounted\n":
                give_up("this machine does not allow mounts")
            yield SmallDisk(folder, holder.pid)
        finally:
            holder.kill()
