"""Users' programs under guard: started, told to end and ended together with all that they have started."""

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final

import psutil

from trainyard.utils.errors import UserError
from trainyard.utils.files import LockHeldError, hold_inheritable_lock

PROGRAM: Final = Path(__file__).with_name("guard.py")
TREE: Final = "TRAINYARD_TREE"  # in the environment of a program and of all that it starts
KILL_SECONDS: Final = 10.0  # after SIGKILL, before it is said that a program cannot be ended
CLAIM_SECONDS: Final = 10.0  # beyond the grace of an earlier attempt, until that is said to be in the way


class Claim:
    """A folder that this process, and the programs that it starts for it, have for themselves."""

    def __init__(self, record: Mapping[str, Any]) -> None:
        self.fd: int | None = None  # None: the file system knows no such locks
        self._record = dict(record)

    def note(self, **more: Any) -> None:
        """Write down who has it."""
        self._record |= more
        if self.fd is not None:
            content = json.dumps(self._record).encode()
            os.pwrite(self.fd, content, 0)
            os.ftruncate(self.fd, len(content))


class Guard:
    """Starts programs of which nothing is left at their end, nor at that of this process, whatever dies first.

    See guard.py for how. It has a keeper of its own, started with the first program and anew if it was killed.
    """

    def __init__(self) -> None:
        self._control: socket.socket | None = None

    def start(
        self,
        line: Sequence[str],
        *,
        cwd: str,
        environment: Mapping[str, str],
        grace_seconds: float,
        claim: "Claim | None" = None,
        log: Path | None = None,
    ) -> "Process":
        """Start a program in a session of its own, its output a pipe; what it says after this process goes to `log`.

        Raises:
            OSError: it cannot be started.
        """
        tree = secrets.token_hex(8)
        request = {"line": list(line), "cwd": cwd, "environment": {**environment, TREE: tree}, "grace": grace_seconds}
        request |= {"log": str(log.absolute())} if log else {}
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        reading, writing = os.pipe()
        with theirs, os.fdopen(os.memfd_create("request"), "w+") as file, os.fdopen(writing, "wb"):
            json.dump(request, file)
            file.flush()
            os.lseek(file.fileno(), 0, os.SEEK_SET)
            lock = [claim.fd] if claim and claim.fd is not None else []
            self._send([file.fileno(), theirs.fileno(), writing, reading, *lock])
        process = Process(mine, os.fdopen(reading, "rb"), tree)
        if claim:
            claim.note(tree=tree, guards=[_identity(pid) for pid in process.guards])
        return process

    def _send(self, fds: list[int]) -> None:
        """Ask the keeper, a new one if there is none or it was killed."""
        if self._control is not None:
            with contextlib.suppress(OSError):
                socket.send_fds(self._control, [b"1"], fds)
                return
            self._control.close()
        self._control = _keeper()
        socket.send_fds(self._control, [b"1"], fds)


def _keeper() -> socket.socket:
    """Start a keeper; what it is told through."""
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        me = os.pidfd_open(os.getpid())
    except OSError:  # a kernel before 5.3: the end of the socket tells the same, if nothing else holds it
        me = -1
    with theirs:
        fds = [theirs.fileno(), me]
        subprocess.run(
            [sys.executable, "-I", "-S", str(PROGRAM), *map(str, fds)],
            pass_fds=[fd for fd in fds if fd >= 0],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=True,
        )
    if me >= 0:
        os.close(me)
    return mine


class Process:
    """A program under guard, as `subprocess.Popen` has it: `poll` and `wait` tell of all that it has started, too."""

    def __init__(self, channel: socket.socket, output: IO[bytes], tree: str) -> None:
        self.stdout, self._channel, self._tree = output, channel, tree
        self._code: int | None = None
        self._ended = threading.Event()
        first = self._hear()
        if "error" in first:
            output.close()
            raise OSError(first["error"], os.strerror(first["error"]))
        self.pid: int = first.get("started", -1)
        self.guards: list[int] = first.get("guards", [])
        threading.Thread(target=self._await_end, daemon=True).start()

    def poll(self) -> int | None:
        """The exit code, or minus the signal that ended it; None while anything of it runs."""
        return self._code

    def wait(self, timeout: float | None = None) -> int:
        """The same, once nothing of it runs.

        Raises:
            subprocess.TimeoutExpired: something does.
        """
        if not self._ended.wait(timeout):
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
        assert self._code is not None
        return self._code

    def end(self, grace_seconds: float) -> int:
        """Have it end: SIGTERM, and after so many seconds SIGKILL, to all that runs of it.

        Raises:
            UserError: it cannot be killed.
        """
        if not self._ended.is_set():
            with contextlib.suppress(OSError):  # the guard has died: then this thread hears of the end, too
                self._channel.send(str(grace_seconds).encode())
        try:
            return self.wait(grace_seconds + KILL_SECONDS)
        except subprocess.TimeoutExpired:
            left = ", ".join(f"{each.pid} ({each.name()})" for each in _of(self._tree)) or str(self.pid)
            raise UserError(f"these processes do not end, even by SIGKILL: {left}") from None

    def _hear(self) -> dict[str, Any]:
        """What the guard says next; nothing if it has died."""
        try:
            return dict(json.loads(self._channel.recv(4096) or b"{}"))
        except ConnectionError:
            return {}

    def _await_end(self) -> None:
        """The end of the channel means that nothing of the guard holds anything of this program any more."""
        said: dict[str, Any] = {}
        while heard := self._hear():
            said |= heard
        if "code" not in said:  # all of the guard was killed at once
            _kill_tree(self._tree)
        self._code = int(said.get("code", -signal.SIGKILL))
        self._channel.close()
        self._ended.set()


@contextlib.contextmanager
def claim(folder: Path, *, what: str, grace_seconds: float) -> Iterator[Claim]:
    """Have a trial's folder for the length of the block, and for as long as a program that was started for it lives.

    An earlier attempt that is still ending is waited for. If its guard was killed, what is left of it is killed.

    Raises:
        LockHeldError: it is in use; the message says by whom.
    """
    since = time.strftime("%Y-%m-%d %H:%M:%S")
    made = Claim({"process": os.getpid(), "host": socket.gethostname(), "since": since, "what": what})
    with hold_inheritable_lock(
        _lock_of(folder), wait_seconds=grace_seconds + CLAIM_SECONDS, on_record=_end_orphans
    ) as made.fd:
        made.note()
        yield made


def wait_until_free(folder: Path, *, seconds: float) -> None:
    """Wait until nothing has a trial's folder any more, at most so long."""
    with (
        contextlib.suppress(LockHeldError),
        hold_inheritable_lock(_lock_of(folder), wait_seconds=seconds, on_record=_end_orphans),
    ):
        pass


def _lock_of(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.lock")


def _end_orphans(record: Mapping[str, Any], held: bool) -> None:
    """Kill what a program has left on this host whose guard was killed: a guard that lives holds the lock."""
    if record.get("host") != socket.gethostname() or "tree" not in record:
        return
    if not held or not any(each and _identity(each[0]) == each for each in record["guards"]):
        _kill_tree(record["tree"])


def _identity(pid: int) -> list[Any]:
    """A process and its beginning, as its number will be another's some day; empty if it has ended."""
    try:
        process = psutil.Process(pid)
        return [] if process.status() == psutil.STATUS_ZOMBIE else [pid, process.create_time()]
    except psutil.Error:
        return []


def _kill_tree(tree: str) -> None:
    """Kill the processes of a program by what is in their environment."""
    end = time.monotonic() + KILL_SECONDS
    while (left := _of(tree)) and time.monotonic() < end:
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(left, timeout=1.0)


def _of(tree: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(TREE) == tree and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found
