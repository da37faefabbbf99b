"""How processes agree on one cluster: a record on disk of what is up, and a lock that a killed process cannot keep."""

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
    """A cluster that came up."""

    owner: Process | None  # who takes the cluster down at its end; None: up until somebody takes it down
    visible: tuple[str, ...]
    first: Mapping[str, Process]  # the first process of the head and of each host that has power

    def save(self, path: Path) -> None:
        """Write the record in one step: a reader sees the old one or the new one."""
        temporary = path.with_suffix(".new")
        temporary.write_text(json.dumps(asdict(self), indent=1))
        temporary.replace(path)

    @classmethod
    def load(cls, path: Path) -> Self | None:
        """The record, or None where no cluster came up."""
        if not path.exists():
            return None
        known = json.loads(path.read_text())
        owner = Process(**known["owner"]) if known["owner"] else None
        first = {name: Process(**process) for name, process in known["first"].items()}
        return cls(owner=owner, visible=tuple(known["visible"]), first=first)


@contextmanager
def exclusive(name: str, *, timeout_seconds: float) -> Iterator[None]:
    """Hold the machine's lock of this name; TimeoutError, with the holder's pid, if it does not come free in time.

    An abstract Unix socket: it needs no file, and goes when the process that holds it goes, however that ends.
    """
    lock = socket.socket(socket.AF_UNIX)
    with lock:
        if not _bind(lock, name):
            what = f"process {_holder(name) or '(just gone)'} to be done with {name}"
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
    """The pid of the process that holds the lock."""
    with socket.socket(socket.AF_UNIX) as client, suppress(OSError):
        client.settimeout(1)
        client.connect("\0" + name)
        size = struct.calcsize("3i")
        return int(struct.unpack("3i", client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))[0])
    return None
