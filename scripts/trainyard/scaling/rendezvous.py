"""Where the launchers of a training meet: an address and a port of its first node, agreed upon through files.

A program on each node signs in with a file. When all have, the first node listens where the others reach it, at a
random port, and writes both to a file. Each of the others connects once, and reports how that went. A launcher that
cannot take over the socket starts once it is closed, on all nodes: no rank may connect to it. The files are in a folder
of the shared file system that only the user can enter. Nothing that arrives through the network is read.

This imports no torch: a node signs in before it loads what takes long.
"""

import errno
import ipaddress
import json
import math
import os
import secrets
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, NoReturn

from trainyard.cluster import host
from trainyard.cluster.host import PORTS
from trainyard.cluster.job_script import SRUN_SECONDS
from trainyard.cluster.stop_request import POLL_SECONDS
from trainyard.utils.errors import UserError
from trainyard.utils.files import atomic_write, write_json

SECONDS: Final = "TRAINYARD_RENDEZVOUS_SECONDS"  # environment variable: how long the nodes may take to connect
DEFAULT_SECONDS: Final = 60.0
START_FACTOR: Final = 5  # starting Python on all nodes may take this many times as long, from a slow file system
GRACE_SECONDS: Final = 15.0  # until a file is visible on the first node; its error is the one that counts
LOOPBACK: Final = "127.0.0.1"
KILL_SECONDS: Final = 120.0  # until srun has ended the other tasks after one has failed
LOOK_SECONDS: Final = 5.0  # between looks for tasks that have ended
_ENDPOINT: Final = "endpoint.json"
_PROBLEM: Final = "problem.json"
_RELEASED: Final = "released"
_ENDED: Final = "ended-"


@dataclass(frozen=True)
class Endpoint:
    """Where the first node listens."""

    address: str
    port: int


class RendezvousError(UserError):
    """The nodes did not meet; the message names the missing ones."""


def problem(folder: Path) -> str:
    """Why the training was not started on the nodes that meet in this folder; "" if it was."""
    path = folder / _PROBLEM
    return str(json.loads(path.read_text())["message"]) if path.exists() else ""


def report_problem(folder: Path, message: str) -> None:
    """Record why the training is not started: `problem` returns the message, and the launcher raises it."""
    write_json(folder / _PROBLEM, {"message": message})


def seconds_to_connect() -> float:
    """How long the nodes may take to connect.

    Raises:
        UserError: the environment variable is not a positive number.
    """
    text = os.environ.get(SECONDS) or str(DEFAULT_SECONDS)
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not seconds > 0:
        raise UserError(f"the environment variable {SECONDS} is {text!r}, but must be a positive number")
    return seconds


def find_node_rank(nodes: Sequence[str]) -> int:
    """The position of this node in the list of the nodes of a job, which is sorted by name.

    A step may number its nodes in another order: SLURM_NODEID counts only if the list lacks the name of this host.
    """
    if len(nodes) == 1:
        return 0  # it may be in a step of a larger job
    names = [host.short_name(name) for name in nodes]
    own = host.node_name()
    return names.index(own) if own in names else int(os.environ["SLURM_NODEID"])


def end_together(folder: Path, *, task: int, tasks: int, code: int, seconds: float = 0.0) -> None:
    """Record that the command of a task has ended, and wait up to `seconds` for the commands of all tasks."""
    with suppress(OSError):  # the disk is full, or the launcher has ended and removed the folder
        with atomic_write(folder / f"{_ENDED}{task}") as file:
            file.write(str(code))
        _await(folder, [f"{_ENDED}{each}" for each in range(tasks)], seconds)


class StepEnd:
    """Detects that the tasks of a step have ended, which srun does not report if the step's slurmstepd was killed."""

    def __init__(self, folder: Path, *, tasks: int, grace_seconds: float = 0.0) -> None:
        """The tasks record their end in `folder`, and wait up to `grace_seconds` for others after a stop request."""
        self._folder = folder
        self._tasks = tasks
        self._kill_seconds = KILL_SECONDS + grace_seconds
        self._looked_at = -math.inf  # on the monotonic clock
        self._ended_at = -math.inf
        self._codes: list[int] = []

    def overdue_code(self) -> int | None:
        """The exit code of the step, once all tasks or a failed one ended so long ago that srun will not."""
        now = time.monotonic()
        if now - self._looked_at > LOOK_SECONDS:
            self._looked_at = now
            with suppress(OSError):
                names = [name for name in os.listdir(self._folder) if name.startswith(_ENDED)]
                codes = [int((self._folder / name).read_text()) for name in names]
                if len(codes) > len(self._codes):
                    self._codes = codes
                    self._ended_at = now
        has_ended = len(self._codes) == self._tasks
        limit = SRUN_SECONDS if has_ended else self._kill_seconds
        if not (has_ended or any(self._codes)) or now - self._ended_at < limit:
            return None
        return max(self._codes, key=abs)


class Rendezvous:
    """The rendezvous of the nodes of a training, listed in the order of Slurm; `rank` is the position of this one.

    Args:
        folder: a private folder on the shared file system, empty at first.
        nodes: one name, or all nodes of the job.
        rank: the position of this node.
        everywhere: the launcher listens on all interfaces: the port must be free on each of them.
    """

    def __init__(self, folder: Path, nodes: Sequence[str], *, rank: int, everywhere: bool = False) -> None:
        self._folder = folder
        self._nodes = nodes
        self._rank = rank
        self._everywhere = everywhere
        self._name = nodes[rank]
        self._seconds = seconds_to_connect()

    def meet(self) -> tuple[Endpoint, socket.socket | None]:
        """Meet the other nodes; returns the endpoint and, on the first node, the socket that listens there.

        Raises:
            RendezvousError: some nodes did not sign in, or cannot connect.
        """
        return (self._follow(), None) if self._rank else self._lead()

    def meet_and_release(self) -> Endpoint:
        """Meet the other nodes; returns the endpoint once its port is free again, for a launcher that listens there.

        Raises:
            RendezvousError: some nodes did not sign in, or cannot connect.
        """
        endpoint, listener = self.meet()
        if listener is None:
            return self.await_release()
        listener.close()
        (self._folder / _RELEASED).touch()
        return endpoint

    def await_release(self) -> Endpoint:
        """The endpoint, once the first node has released it.

        Raises:
            RendezvousError: it did not in the time that the nodes may take.
        """
        return self._await_first(_RELEASED, "has not met the other nodes", (START_FACTOR + 1) * self._seconds)

    def _lead(self) -> tuple[Endpoint, socket.socket]:
        address = LOOPBACK
        if len(self._nodes) > 1:
            seconds = START_FACTOR * self._seconds
            others = self._collect("signed-in", seconds, f"did not start within {seconds:g} s")
            # Their address, not this node's name, which may be on a loopback line of its /etc/hosts.
            address = host.source_address(others[0]["address"])
        listener = _listen(address, everywhere=self._everywhere)
        endpoint = Endpoint(address, listener.getsockname()[1])
        write_json(self._folder / _ENDPOINT, asdict(endpoint))
        where = f"{self._name} at {address}, port {endpoint.port}, within {self._seconds:g} s ({SECONDS})"
        self._collect("connected", self._seconds + GRACE_SECONDS, f"could not connect to {where}")
        return endpoint, listener

    def _follow(self) -> Endpoint:
        first = self._nodes[0]
        try:
            mine = host.source_address(first)
        except OSError as error:
            self._give_up("signed-in", f"cannot resolve or reach the name {first}: {error}")
        if ipaddress.ip_address(mine).is_loopback:
            self._give_up("signed-in", f"takes {first} for a loopback address: correct its /etc/hosts")
        self._report("signed-in", address=mine)
        endpoint = self._await_first(_ENDPOINT, "announced no address", START_FACTOR * self._seconds)
        if failure := _connection_error(endpoint, self._seconds):
            where = f"{first} at {endpoint.address}, port {endpoint.port}"
            self._give_up(
                "connected", f"could not connect to {where}, within {self._seconds:g} s ({SECONDS}): {failure}"
            )
        self._report("connected")
        return endpoint

    def _await_first(self, name: str, failure: str, seconds: float) -> Endpoint:
        """The endpoint, once this file of the first node exists; `failure` is what that has failed to do."""
        seconds += 2 * GRACE_SECONDS
        if _await(self._folder, [name], seconds):
            self._fail(f"{self._nodes[0]} {failure} within {seconds:g} s, as {self._name} reports")
        return Endpoint(**json.loads((self._folder / _ENDPOINT).read_text()))

    def _report(self, event: str, **facts: str) -> None:
        write_json(self._folder / f"{event}-{self._rank}.json", facts)

    def _give_up(self, event: str, error: str) -> NoReturn:
        """Report to the first node, which raises the error. srun then ends this program."""
        self._report(event, error=error)
        time.sleep(2 * GRACE_SECONDS)
        self._fail(f"{self._name} {error}")

    def _collect(self, event: str, seconds: float, failure: str) -> list[dict[str, str]]:
        """The reports of the other nodes; `failure` is what those that do not report have failed to do."""
        names = {f"{event}-{rank}.json": node for rank, node in enumerate(self._nodes) if rank}
        missing = _await(self._folder, list(names), seconds)
        reports = {name: json.loads((self._folder / name).read_text()) for name in names if name not in missing}
        problems = [f"{names[name]} {report['error']}" for name, report in reports.items() if "error" in report]
        if missing:
            problems.insert(0, f"{', '.join(names[name] for name in missing)} {failure}")
        if problems:
            self._fail("; ".join(problems))
        return list(reports.values())

    def _fail(self, what: str) -> NoReturn:
        message = f"the nodes of the training did not meet: {what}"
        report_problem(self._folder, message)
        raise RendezvousError(message)


def _await(folder: Path, names: Sequence[str], seconds: float) -> list[str]:
    """Wait until all these files exist; returns those that do not, at the end of the time."""
    end = time.monotonic() + seconds
    while True:
        is_last = time.monotonic() > end  # before the look: this process may be suspended between both
        there = os.listdir(folder)  # unlike a path, a folder that is opened is not cached by NFS
        missing = [name for name in names if name not in there]
        if not missing or is_last:
            return missing
        time.sleep(POLL_SECONDS)


def _listen(address: str, *, everywhere: bool) -> socket.socket:
    """A socket that listens at a random port of the address, or of all addresses."""
    family = socket.AF_INET6 if ":" in address or (everywhere and socket.has_dualstack_ipv6()) else socket.AF_INET
    while True:
        where = ("" if everywhere else address, secrets.choice(PORTS))
        try:
            return socket.create_server(where, family=family, dualstack_ipv6=everywhere and family == socket.AF_INET6)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise


def _connection_error(endpoint: Endpoint, seconds: float) -> str:
    """Connect once; returns why that failed for so long, or ""."""
    end = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection(
                (endpoint.address, endpoint.port), timeout=max(0.1, end - time.monotonic())
            ).close()
        except OSError as error:
            if time.monotonic() + POLL_SECONDS > end:
                return str(error)
            time.sleep(POLL_SECONDS)
        else:
            return ""
