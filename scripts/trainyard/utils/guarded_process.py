"""The guard as its owner sees it: it starts users' programs, and ends whatever must not outlive its owner."""

import contextlib
import json
import os
import secrets
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import psutil

from trainyard.utils.errors import UserError
from trainyard.utils.guard import (
    KILL_SECONDS,
    SAVED,
    TREE_VARIABLE,
    find_tree,
    is_ready,
    kill_tree,
    mark,
    record_path,
)
from trainyard.utils.locks import Hold, LockHeldError, hold

GUARD_PROGRAM: Final = Path(__file__).with_name("guard.py")
CHUNK_BYTES: Final = 2**16  # of output: what a pipe holds,
PIPE_BYTES: Final = 2**20  # and what one can hold at most
# After the grace period of an earlier attempt, before its folder counts as in use. On a node that is cut off the
# network, Ray ends its workers once its head has not answered for a minute.
HOLD_SECONDS: Final = 100.0


class ProcessGuard:
    """Starts programs. None of their processes outlives them or this process, whichever dies first.

    `guard.py` explains how. The guard's keeper is started with the first program, and again if it was killed.
    """

    def __init__(self) -> None:
        self._control: socket.socket | None = None

    def start(
        self,
        command: Sequence[str],
        *,
        cwd: str,
        environment: Mapping[str, str],
        grace_seconds: float,
        stop_signal: str = "TERM",
        on_output: Callable[[bytes], None],
        folder_lock: Hold | None = None,
        log: Path | None = None,
        records_end: bool = False,
    ) -> "GuardedProcess":
        """Start a program in its own session. Its output goes to `on_output`, or to `log` after this process died.

        `stop_signal`, such as USR1, requests it to end. `on_output` is called in a thread, with b"" once none of its
        processes runs. If the guard `records_end`, it notes beside `log` that the program has ended by itself, as
        `completed_seconds` finds it.

        Raises:
            OSError: it cannot be started.
        """
        tree = str(folder_lock.path) if folder_lock else secrets.token_hex(8)
        environment = {**environment, **mark(tree)}
        request = {"command": list(command), "cwd": cwd, "environment": environment, "grace": grace_seconds}
        request["signal"] = signal.Signals[f"SIG{stop_signal}"]
        request |= {"log": str(log.absolute()), "records_end": records_end} if log else {}
        channel, guard_channel = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        reading, writing = os.pipe()
        with guard_channel, os.fdopen(writing, "wb"):
            lock = [folder_lock.fd] if folder_lock else []
            self.send(request, guard_channel.fileno(), writing, reading, *lock)
        return GuardedProcess(channel, reading, tree, on_output)

    def close(self) -> None:
        """Wait until the guard has done what it does after the end of this process."""
        if self._control is not None:
            self._control.shutdown(socket.SHUT_WR)
            with contextlib.suppress(ConnectionError):
                self._control.recv(1)  # nothing: it returns once the guard has ended
            self._control.close()
            self._control = None

    def send(self, request: Mapping[str, Any], *fds: int) -> None:
        """Send a request to the keeper. Starts one if there is none, or if it was killed."""
        with os.fdopen(os.memfd_create("request"), "wb+") as file:
            file.write(json.dumps(request).encode())
            file.seek(0)  # writes its buffer first
            if self._control is not None:
                with contextlib.suppress(OSError):
                    socket.send_fds(self._control, [b"1"], [file.fileno(), *fds])
                    return
                self._control.close()
            self._control = _start_keeper()
            socket.send_fds(self._control, [b"1"], [file.fileno(), *fds])


@contextlib.contextmanager
def processes_ended(*, folders: Sequence[str] = (), command: Sequence[str] = ()) -> Iterator[dict[str, str]]:
    """Yields environment variables: the processes that have them end with the block.

    They also end if this process is killed, and then folders that match the glob patterns are removed, too, as soon as
    no process holds them. `command` runs first in each case.
    """
    guard = ProcessGuard()
    tree = secrets.token_hex(8)
    at_exit = {"tree": tree, "folders": list(folders), "command": list(command)}
    guard.send(at_exit)
    try:
        yield mark(tree)
    finally:
        guard.send(at_exit | {"folders": []})
        guard.close()


def _start_keeper() -> socket.socket:
    """Start a keeper; returns the socket for requests."""
    control, keeper_control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        owner = os.pidfd_open(os.getpid())
    except OSError:  # kernels before 5.3 have none; the socket closes when the keeper ends
        owner = -1
    with keeper_control:
        fds = [keeper_control.fileno(), owner]
        subprocess.run(
            [sys.executable, "-I", "-S", str(GUARD_PROGRAM), *map(str, fds)],
            pass_fds=[fd for fd in fds if fd >= 0],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={name: value for name, value in os.environ.items() if name != TREE_VARIABLE},
            check=True,
        )
    if owner >= 0:
        os.close(owner)
    return control


class GuardedProcess:
    """A guarded program. `wait` is as that of `subprocess.Popen`, but includes its descendants."""

    def __init__(self, channel: socket.socket, output: int, tree: str, on_output: Callable[[bytes], None]) -> None:
        self._channel = channel
        self._output = output
        self._tree = tree
        self._on_output = on_output
        self._exit_code: int | None = None
        self._ended = threading.Event()
        self.ended_at: float | None = None  # on the monotonic clock, once none of its processes runs
        self.stop_was_requested = False  # of it, or of its whole job, before it ended
        first = self._receive()
        if "error" in first:
            os.close(output)
            raise OSError(first["error"], os.strerror(first["error"]))
        self.pid: int = first.get("started", -1)
        self.guards: list[int] = first.get("guards", [])
        threading.Thread(target=self._follow, daemon=True).start()

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, or minus the signal that ended it, once none of its processes runs and all output was read.

        Raises:
            subprocess.TimeoutExpired: one still runs.
        """
        if not self._ended.wait(timeout):
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
        assert self._exit_code is not None
        return self._exit_code

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to the program itself, and not to its descendants."""
        if not self.guards or self._ended.is_set():  # its PID is not known, or may be that of another process
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def request_end(self, grace_seconds: float) -> None:
        """Send its stop signal, and SIGKILL after the grace period; returns at once."""
        if not self._ended.is_set():
            with contextlib.suppress(OSError):  # the guard died: `_follow` handles that
                self._channel.send(str(grace_seconds).encode())

    def end(self, grace_seconds: float) -> int:
        """End all its processes as `request_end` does; returns as `wait` does.

        Raises:
            UserError: it cannot be killed.
        """
        self.request_end(grace_seconds)
        try:
            return self.wait(grace_seconds + KILL_SECONDS)
        except subprocess.TimeoutExpired:
            running = map(psutil.Process, find_tree(self._tree))
            named = ", ".join(f"{process.pid} ({process.name()})" for process in running) or str(self.pid)
            raise UserError(f"these processes do not end, even by SIGKILL: {named}") from None

    def _receive(self) -> dict[str, Any]:
        """The next message of the guard; empty if it died."""
        try:
            return dict(json.loads(self._channel.recv(4096) or b"{}"))
        except ConnectionError:
            return {}

    def _follow(self) -> None:
        """Read the output until the program has ended, then wait for the guard, which holds no resource of it then."""
        waiting = select.poll()
        fields = dict[str, Any]()
        for fd in (self._output, self._channel.fileno()):
            waiting.register(fd, select.POLLIN)
        is_open = True
        while is_open and "code" not in fields:
            for fd, _ in waiting.poll():
                if fd != self._output:
                    message = self._receive()
                    fields |= message
                    is_open = bool(message)
                elif chunk := os.read(self._output, CHUNK_BYTES):
                    self._on_output(chunk)
                else:
                    waiting.unregister(self._output)
        if "code" not in fields:  # keeper and watcher were killed at once
            kill_tree(self._tree)
        self.ended_at = time.monotonic()
        self._exit_code = int(fields.get("code", -signal.SIGKILL))
        self.stop_was_requested = bool(fields.get("requested"))
        # What is left in the pipe, which a process outside of the tree may still hold.
        if is_ready(self._output) and (chunk := os.read(self._output, PIPE_BYTES)):
            self._on_output(chunk)
        self._on_output(b"")
        os.close(self._output)
        with contextlib.suppress(OSError):  # the guard died
            self._channel.send(SAVED)
        while self._receive():
            pass
        self._channel.close()
        self._ended.set()


def completed_seconds(log: Path) -> float | None:
    """How long a program ran that ended by itself with exit code 0, as its guard has recorded; None otherwise.

    Also None if its output is not as it was then.
    """
    try:
        record = json.loads(Path(record_path(str(log))).read_text())
        return float(record["seconds"]) if record["bytes"] == log.stat().st_size else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def forget_completed(log: Path) -> None:
    """Remove the guard's record: the end is recorded elsewhere."""
    with contextlib.suppress(OSError):
        Path(record_path(str(log))).unlink()


@contextlib.contextmanager
def hold_folder(folder: Path, *, purpose: str, grace_seconds: float) -> Iterator[Hold]:
    """Hold a trial's folder during the block, and as long as a program that was started for it runs.

    Waits for an earlier attempt that is still ending. What an attempt has left whose guards were killed is killed.

    Raises:
        LockHeldError: the folder is in use; the message names the process that holds it.
        StorageError: the file system has no locks.
    """
    with hold(
        folder.with_name(f".{folder.name}.lock"),
        held=folder,
        purpose=purpose,
        inherited=True,
        wait_seconds=grace_seconds + HOLD_SECONDS,
    ) as folder_lock:
        if folder_lock.was_left:
            kill_tree(str(folder_lock.path))
        yield folder_lock


def wait_for_folder(folder: Path, *, timeout_seconds: float) -> None:
    """Wait until no process holds a trial's folder, at most `timeout_seconds`."""
    grace = timeout_seconds - HOLD_SECONDS
    with contextlib.suppress(LockHeldError), hold_folder(folder, purpose="waiting", grace_seconds=grace):
        pass
