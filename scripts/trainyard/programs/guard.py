"""Ends all processes that a program started, even if their owner is killed. `ProcessGuard` runs this file as a program.

    keeper, one per slot  >  watcher, one per program  >  the program and its descendants

Keeper and watcher are not children of the process that they serve (the owner), because Ray kills the children of a dead
worker. Both are subreapers, so that every descendant stays below them, even a daemon. They watch each other and the
owner:

    the owner dies         the watcher sends SIGTERM to the process tree, and SIGKILL a few seconds later
    the watcher dies       the tree becomes the keeper's, which kills it
    the keeper dies        the watcher kills the tree
    watcher and keeper     the kernel kills the program and its process group; the owner, or the next attempt at the
    die at the same time   trial, finds processes that left that group by their environment

It runs as `python -I -S`, so that it starts in milliseconds: it imports a small part of the standard library only.
"""

import contextlib
import ctypes
import fcntl
import json
import os
import select
import signal
import socket
import sys
import time

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
ABRUPT_SECONDS = 5.0  # the longest grace period after the owner died
OUTPUT_SECONDS = 2.0  # for a filter of the output (`tee`) to write the rest after the program ended
KEEPER_DIED = signal.SIGUSR1
INT_BYTES = 4
REQUEST_FDS = 5  # the request, the channel for answers, standard output, its other end, and the lock, if there is one
RECORDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)  # a job's signals go to all its processes
RESET_IN_PROGRAM = (*RECORDED, signal.SIGCHLD, KEEPER_DIED, signal.SIGPIPE)

_prctl = ctypes.CDLL(None).prctl


class Signals:
    """The signals received so far, and a descriptor to poll for the next one."""

    def __init__(self) -> None:
        self.seen: set[int] = set()
        self.fd, written = os.pipe()
        for end in (self.fd, written):
            os.set_blocking(end, False)
        for number in (*RECORDED, signal.SIGCHLD, KEEPER_DIED):
            signal.signal(number, lambda number, frame: self.seen.add(number))
        signal.set_wakeup_fd(written, warn_on_full_buffer=False)

    def drain(self) -> None:
        """Empty the descriptor, so that a poll waits for the next signal."""
        with contextlib.suppress(BlockingIOError):
            while os.read(self.fd, 4096):
                pass


class Keeper:
    """Serves one owner: starts a watcher for each program, and takes over from a watcher that dies."""

    def __init__(self, control: socket.socket, owner: int) -> None:
        self._control, self._owner, self._signals = control, owner, Signals()
        self._watchers: dict[int, list[int]] = {}  # by PID: the descriptors to hold until it ends
        self._serving = True
        _prctl(PR_SET_CHILD_SUBREAPER, 1)

    def run(self) -> None:
        """Serve until the owner and all watchers have ended."""
        while self._serving or self._watchers:
            waiting = select.poll()
            for fd in (self._signals.fd, *((self._control.fileno(), self._owner) if self._serving else ())):
                if fd >= 0:
                    waiting.register(fd, select.POLLIN)
            waiting.poll()
            self._signals.drain()
            if self._serving:
                self._take_request()
            ended = reap_children()
            for process, status in ended:
                if process in self._watchers:
                    ended += self._take_over(self._watchers.pop(process), status)

    def _take_request(self) -> None:
        try:
            flags = socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC
            # Not `recv_fds`: before Python 3.12 it leaves out the flags.
            message, sent, _, _ = self._control.recvmsg(1, socket.CMSG_LEN(REQUEST_FDS * INT_BYTES), flags)
        except BlockingIOError:
            if not is_ready(self._owner):
                return
            message, sent = b"", []
        except ConnectionError:
            message, sent = b"", []
        if not message:  # the owner has ended
            self._serving = False
            return
        self._start_watcher([number for _, _, data in sent for number in memoryview(data).cast("i")])

    def _start_watcher(self, fds: list[int]) -> None:
        keeper = os.getpid()
        watcher = os.fork()
        if watcher:
            request, channel, writing, reading, *lock = fds
            for fd in (request, writing, reading):
                os.close(fd)
            self._watchers[watcher] = [channel, *lock]
            return
        status = 1
        try:
            self._control.close()
            for others in self._watchers.values():
                for fd in others:
                    os.close(fd)
            Watcher(fds, owner=self._owner, keeper=keeper).run()
            status = 0
        finally:
            os._exit(status)

    def _take_over(self, fds: list[int], status: int) -> list[tuple[int, int]]:
        """Handle the end of a watcher. If it was killed, kill its program; returns what else ended."""
        ended = []
        if status:
            ended = kill_descendants(spare=self._watchers)
            send_message(fds[0], {"code": -signal.SIGKILL})
        for fd in reversed(fds):  # the channel last: when it closes, the owner knows that everything is released
            os.close(fd)
        return ended


class Watcher:
    """Starts one program, ends all its processes, and reports the exit code to the owner."""

    def __init__(self, fds: list[int], *, owner: int, keeper: int) -> None:
        request, self._channel, self._output_writing, self._output_reading, *self._lock = fds
        self._owner, self._signals = owner, Signals()
        with open(request, "rb", closefd=False) as file:
            self._request = json.load(file)
        os.setsid()
        _prctl(PR_SET_CHILD_SUBREAPER, 1)
        _prctl(PR_SET_PDEATHSIG, KEEPER_DIED)
        if os.getppid() != keeper:
            self._signals.seen.add(KEEPER_DIED)
        self._ending = False
        self._kill_at = float("inf")  # on the monotonic clock
        self._leftovers_at = float("inf")  # when to end what the program left behind, on the monotonic clock

    def run(self) -> None:
        """Start the program and watch it until none of its processes is left."""
        program = self._start()
        if program is None:
            return
        send_message(self._channel, {"started": program, "guards": [os.getppid(), os.getpid()]})
        code = None
        while True:
            for process, status in reap_children():
                if process == program:
                    code = os.waitstatus_to_exitcode(status)
                    self._leftovers_at = time.monotonic() + OUTPUT_SECONDS
            if not has_children():
                break
            if code is not None and not self._ending:
                self._end_leftovers()
            if time.monotonic() >= self._kill_at:
                for process, status in kill_descendants():
                    code = os.waitstatus_to_exitcode(status) if process == program else code
                break
            self._wait()
        if self._owner_is_gone():
            while is_ready(self._output_reading):
                self._save_output()
        send_message(self._channel, {"code": -signal.SIGKILL if code is None else code})

    def _save_output(self) -> None:
        """Read the output in place of the owner: without a reader, the next write would end the program."""
        output = os.read(self._output_reading, 65536)
        if not output:  # no process can write any more
            os.close(self._output_reading)
            self._output_reading = -1
        elif "log" in self._request:
            with contextlib.suppress(OSError), open(self._request["log"], "ab", buffering=0) as log:
                log.write(output)

    def _end_leftovers(self) -> None:
        """End what the program left behind, once none of it holds the output, or after a timeout."""
        if self._job_is_ending:  # a shell dies at once; the program behind it may still write a checkpoint
            self._end(self._request["grace"])
        elif is_ready(self._output_reading, 0) or time.monotonic() >= self._leftovers_at:
            self._end(0.0)

    def _wait(self) -> None:
        """Wait for the next event, and act on it."""
        waiting = select.poll()
        gone = self._ending and self._owner_is_gone()
        for fd in (self._signals.fd, self._output_reading) if gone else self._sources:
            if fd >= 0:
                waiting.register(fd, select.POLLIN)
        until = self._kill_at
        if not self._ending and self._leftovers_at < float("inf"):
            waiting.register(self._output_reading, 0)  # poll reports its end in any case
            until = min(until, self._leftovers_at)
        left = until - time.monotonic()
        waiting.poll(None if left == float("inf") else max(0.0, 1000 * left))
        self._signals.drain()
        if gone and is_ready(self._output_reading):
            self._save_output()
        if KEEPER_DIED in self._signals.seen:
            self._kill_at = 0.0
        elif self._owner_is_gone():
            # If the whole job is ending (a preemption), the program has its full grace period to write a checkpoint.
            grace = self._request["grace"]
            self._end(grace if self._job_is_ending else min(grace, ABRUPT_SECONDS))

    @property
    def _job_is_ending(self) -> bool:
        """Whether the whole job is ending: the guard receives these signals only then."""
        return bool(self._signals.seen & {signal.SIGTERM, signal.SIGINT})

    @property
    def _sources(self) -> list[int]:
        return [self._signals.fd, self._channel, self._owner]

    def _owner_is_gone(self) -> bool:
        """Whether the owner has died. If it sent a grace period, the program is ended."""
        if is_ready(self._owner):
            return True
        if is_ready(self._channel):
            try:
                message = os.read(self._channel, 64)
            except ConnectionError:
                message = b""
            if not message:
                return True
            self._end(float(message))
        return False

    def _end(self, grace: float) -> None:
        """Send SIGTERM to all processes, once; SIGKILL follows after `grace` seconds."""
        self._kill_at = min(self._kill_at, time.monotonic() + grace)
        if grace > 0 and not self._ending:
            for process in find_descendants():
                send_signal(process, signal.SIGTERM)
                send_signal(process, signal.SIGCONT)  # it may have been stopped
        self._ending = True

    def _start(self) -> int | None:
        """Start the program; returns its PID, or None if it cannot be started, which is reported to the owner."""
        failed, fails = os.pipe()
        self._alarm = os.pipe()  # see `_exec`
        watcher, program = os.getpid(), os.fork()
        if not program:
            try:
                self._exec(watcher)
            except OSError as error:
                os.write(fails, str(error.errno).encode())
            finally:
                os._exit(127)
        os.close(fails)
        os.close(self._alarm[0])
        number = os.read(failed, 16)
        os.close(failed)
        os.close(self._output_writing)
        if number:
            os.waitpid(program, 0)
            send_message(self._channel, {"error": int(number)})
            return None
        return program

    def _exec(self, watcher: int) -> None:
        os.setsid()
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        # The watcher alone holds the other end of this pipe. When it dies, the kernel kills the process group.
        fcntl.fcntl(self._alarm[0], fcntl.F_SETOWN, -os.getpid())
        fcntl.fcntl(self._alarm[0], fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(self._alarm[0], fcntl.F_SETFL, os.O_ASYNC)
        if os.getppid() != watcher:
            os._exit(127)
        for fd in (self._alarm[0], *self._lock):
            os.set_inheritable(fd, True)
        for number in RESET_IN_PROGRAM:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.chdir(self._request["cwd"])
        nothing = os.open(os.devnull, os.O_RDONLY)
        for fd, standard in ((nothing, 0), (self._output_writing, 1), (self._output_writing, 2)):
            os.dup2(fd, standard)
        command = self._request["command"]
        os.execvpe(command[0], command, self._request["environment"])


def send_message(channel: int, message: dict[str, object]) -> None:
    """Send a message to the owner, if it still exists."""
    with contextlib.suppress(OSError):
        os.write(channel, json.dumps(message).encode())


def is_ready(fd: int, events: int = select.POLLIN) -> bool:
    """Whether there is something to read, or the process of a pidfd has ended; False for -1.

    With `events=0`, whether no process holds the other end of a pipe.
    """
    if fd < 0:
        return False
    waiting = select.poll()
    waiting.register(fd, events)
    return bool(waiting.poll(0))


def reap_children() -> list[tuple[int, int]]:
    """PID and wait status of the children that have ended."""
    ended: list[tuple[int, int]] = []
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            ended.append(found)
    return ended


def has_children() -> bool:
    """Whether there is a child, ended or not."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def kill_descendants(spare: "dict[int, list[int]] | None" = None) -> list[tuple[int, int]]:
    """Kill all descendants but these children and theirs; returns PID and wait status of the children that ended."""
    ended: list[tuple[int, int]] = []
    pause = 0.001
    while family := find_descendants(spare or {}):
        for process in family:
            send_signal(process, signal.SIGKILL)
        time.sleep(pause)
        pause = min(2 * pause, 0.25)  # a process that waits for a dead file server cannot be killed
        ended += reap_children()
    return ended


def find_descendants(spare: "dict[int, list[int]] | None" = None) -> list[int]:
    """The PIDs of all processes below this one, but the ones to `spare` and those below them."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    parent = int(file.read().rpartition(b")")[2].split()[1])
            except (OSError, IndexError):  # it has just ended
                continue
            children.setdefault(parent, []).append(int(name))
    found, below = list[int](), [os.getpid()]
    while below:
        new = [each for each in children.get(below.pop(), []) if each not in (spare or {})]
        found += new
        below += new
    return found


def send_signal(process: int, number: int) -> None:
    """Send a signal to a process that may have ended."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(process, number)


def main() -> None:
    """Detach from the process that started this one, and serve it."""
    if os.fork():
        os._exit(0)
    os.setsid()
    os.chdir("/")
    control, owner = (int(word) for word in sys.argv[1:])
    for fd in (control, owner):
        if fd >= 0:
            os.set_inheritable(fd, False)
    Keeper(socket.socket(fileno=control), owner).run()


if __name__ == "__main__":
    main()
