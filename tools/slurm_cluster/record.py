"""State that processes share: a record of the cluster that is up, and a lock that ends with its process."""

import json
import socket
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from slurm_cluster.namespaces import Process
from slurm_cluster.waiting import wait_until


@dataclass(frozen=True)
class Record:
    """A cluster that is up."""

    site: str
    owner: Process | None  # takes the cluster down when it ends; None: stays up until `down`
    visible: tuple[str, ...]
    first: Mapping[str, Process]  # the first process of the head node and of each host with power

    def save(self, path: Path) -> None:
        """Write the record atomically."""
        temporary = path.with_suffix(".new")
        temporary.write_text(json.dumps(asdict(self), indent=1))
        temporary.replace(path)

    @classmethod
    def load(cls, path: Path) -> Self | None:
        """The record; None if no cluster is up."""
        if not path.exists():
            return None
        values = json.loads(path.read_text())
        owner = Process(**values["owner"]) if values["owner"] else None
        first = {name: Process(**process) for name, process in values["first"].items()}
        return cls(site=values["site"], owner=owner, visible=tuple(values["visible"]), first=first)


@contextmanager
def exclusive(name: str, *, timeout_seconds: float) -> Iterator[None]:
    """Hold the lock of this name on this machine; raises TimeoutError with the PID of the holder.

    The lock is an abstract Unix socket: it needs no file, and the kernel releases it when its process ends.
    """
    lock = socket.socket(socket.AF_UNIX)
    with lock:
        if not _bind(lock, name):
            what = f"process {_holder(name) or '(ended)'} to release {name}"
            print(f"waiting for {what} ...", flush=True)
            wait_until(lambda: _bind(lock, name), timeout_seconds=timeout_seconds, what=what)
        lock.listen()  # for _holder to connect to
        yield


def _bind(lock: socket.socket, name: str) -> bool:
    with suppress(OSError):
        lock.bind("\0" + name)
        return True
    return False


def _holder(name: str) -> int | None:
    """The PID of the process that holds the lock; None if it is free."""
    with socket.socket(socket.AF_UNIX) as client, suppress(OSError):
        client.settimeout(1)
        client.connect("\0" + name)
        size = struct.calcsize("3i")
        return int(struct.unpack("3i", client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))[0])
    return None
