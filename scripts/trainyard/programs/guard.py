"""Ends all that a program has started, whatever dies first. `processes.Guard` runs this file; nothing imports it there.

    keeper, one per slot  >  watcher, one per program  >  the program and its descendants

Keeper and watcher are no children of the process that they serve (its owner), as Ray kills a dead worker's children.
Both are subreapers, so that every descendant stays below them, also a daemon. Each watches the other and the owner:

    the owner dies         the watcher sends SIGTERM to the tree, and SIGKILL a few seconds later
    the watcher dies       the tree becomes the keeper's, which kills it
    the keeper dies        the watcher kills the tree
    watcher and keeper     the kernel kills the program and its process group; the owner, or else who runs the trial
    die at the same time   next, finds what has left that group by its environment

It runs as `python -I -S`, so that it starts in milliseconds: the standard library only, and little of it.
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
ABRUPT_SECONDS = 5.0  # at most, that a program has to end when its owner has died
OUTPUT_SECONDS = 2.0  # at most, that a filter of a program's output (`tee`) has to pass on the rest when that has ended
KEEPER_DIED = signal.SIGUSR1
INT_BYTES = 4
FDS = 5  # of a request: itself, the channel for answers, standard output and its other end, lock (may be missing)
IGNORED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)  # a job's signals go to all its processes
DEFAULT = (*IGNORED, signal.SIGCHLD, KEEPER_DIED, signal.SIGPIPE)

_prctl = ctypes.CDLL(None).prctl


class Signals:
    """Which signals have come; a descriptor to wait on for the next one."""

    def __init__(self) -> None:
        self.seen: set[int] = set()
        self.fd, written = os.pipe()
        for end in (self.fd, written):
            os.set_blocking(end, False)
        for number in (*IGNORED, signal.SIGCHLD, KEEPER_DIED):
            signal.signal(number, lambda number, frame: self.seen.add(number))
        signal.set_wakeup_fd(written, warn_on_full_buffer=False)

    def drain(self) -> None:
        """Wait for new ones from now on."""
        with contextlib.suppress(BlockingIOError):
            while os.read(self.fd, 4096):
                pass


class Keeper:
    """Serves one owner: starts a watcher for each program, and takes over from one that dies."""

    def __init__(self, control: socket.socket, owner: int) -> None:
        self._control, self._owner, self._signals = control, owner, Signals()
        self._watchers: dict[int, list[int]] = {}  # by process, what was sent with the request: held until its end
        self._serving = True
        _prctl(PR_SET_CHILD_SUBREAPER, 1)

    def run(self) -> None:
        """Serve until the owner has ended, and all that it had started."""
        while self._serving or self._watchers:
            waiting = select.poll()
            for fd in (self._signals.fd, *((self._control.fileno(), self._owner) if self._serving else ())):
                if fd >= 0:
                    waiting.register(fd, select.POLLIN)
            waiting.poll()
            self._signals.drain()
            if self._serving:
                self._take_request()
            ended = reaped()
            for process, status in ended:
                if process in self._watchers:
                    ended += self._take_over(self._watchers.pop(process), status)

    def _take_request(self) -> None:
        try:
            flags = socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC
            # Not `recv_fds`: before Python 3.12 it leaves out the flags.
            message, sent, _, _ = self._control.recvmsg(1, socket.CMSG_LEN(FDS * INT_BYTES), flags)
        except BlockingIOError:
            if not is_ready(self._owner):
                return
            message, sent = b"", []
        except ConnectionError:
            message, sent = b"", []
        if not message:  # the owner has ended
            self._serving = False
            return
        fds = [number for _, _, data in sent for number in memoryview(data).cast("i")]
        keeper = os.getpid()
        watcher = os.fork()
        if watcher:
            request, channel, output, hearing, *lock = fds
            for fd in (request, output, hearing):
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
        """A watcher has ended; if it was killed, what it watched is ended here. Returns what else has ended."""
        ended = []
        if status:
            ended = kill_all(spare=self._watchers)
            answer(fds[0], {"code": -signal.SIGKILL})
        for fd in reversed(fds):  # the channel last: its end tells the owner that nothing is held any more
            os.close(fd)
        return ended


class Watcher:
    """Starts one program, tells its owner how it ends, and has nothing of it left then."""

    def __init__(self, fds: list[int], *, owner: int, keeper: int) -> None:
        request, self._channel, self._output, self._hearing, *self._lock = fds
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
        self._leave_at = float("inf")  # when to wait no more for what the program has left behind, on the same

    def run(self) -> None:
        """From the start of the program until nothing of it is left."""
        program = self._start()
        if program is None:
            return
        answer(self._channel, {"started": program, "guards": [os.getppid(), os.getpid()]})
        code = None
        while True:
            for process, status in reaped():
                if process == program:
                    code = os.waitstatus_to_exitcode(status)
                    self._leave_at = time.monotonic() + OUTPUT_SECONDS
            if not has_children():
                break
            if code is not None and not self._ending:
                self._end_rest()
            if time.monotonic() >= self._kill_at:
                for process, status in kill_all():
                    code = os.waitstatus_to_exitcode(status) if process == program else code
                break
            self._listen()
        if self._owner_is_gone():
            while is_ready(self._hearing):
                self._keep_output()
        answer(self._channel, {"code": -signal.SIGKILL if code is None else code})

    def _keep_output(self) -> None:
        """Hear the program in place of its owner: with nobody to hear it, its next word would end it."""
        said = os.read(self._hearing, 65536)
        if not said:  # all that could say something has ended
            os.close(self._hearing)
            self._hearing = -1
        elif "log" in self._request:
            with contextlib.suppress(OSError), open(self._request["log"], "ab", buffering=0) as log:
                log.write(said)

    def _end_rest(self) -> None:
        """End what the program has left behind, as soon as nothing of it holds the output any more."""
        if self._job_is_told:  # a shell dies at once, and the program behind it may still be saving
            self._end(self._request["grace"])
        elif is_ready(self._hearing, 0) or time.monotonic() >= self._leave_at:
            self._end(0.0)

    def _listen(self) -> None:
        """Wait for what must be done next."""
        waiting = select.poll()
        gone = self._ending and self._owner_is_gone()
        for fd in (self._signals.fd, self._hearing) if gone else self._sources:
            if fd >= 0:
                waiting.register(fd, select.POLLIN)
        until = self._kill_at
        if not self._ending and self._leave_at < float("inf"):
            waiting.register(self._hearing, 0)  # its end is told all the same
            until = min(until, self._leave_at)
        left = until - time.monotonic()
        waiting.poll(None if left == float("inf") else max(0.0, 1000 * left))
        self._signals.drain()
        if gone and is_ready(self._hearing):
            self._keep_output()
        if KEEPER_DIED in self._signals.seen:
            self._kill_at = 0.0
        elif self._owner_is_gone():
            # If the whole job was told to end (a preemption), the program has all its time to keep where it is.
            grace = self._request["grace"]
            self._end(grace if self._job_is_told else min(grace, ABRUPT_SECONDS))

    @property
    def _job_is_told(self) -> bool:
        """Whether all processes of the job were told to end: the guard gets these signals only then."""
        return bool(self._signals.seen & {signal.SIGTERM, signal.SIGINT})

    @property
    def _sources(self) -> list[int]:
        return [self._signals.fd, self._channel, self._owner]

    def _owner_is_gone(self) -> bool:
        """Whether the owner has died; takes in what it says."""
        if is_ready(self._owner):
            return True
        if is_ready(self._channel):
            try:
                said = os.read(self._channel, 64)
            except ConnectionError:
                said = b""
            if not said:
                return True
            self._end(float(said))
        return False

    def _end(self, grace: float) -> None:
        """Tell all that runs to end, once, and give it so many seconds."""
        self._kill_at = min(self._kill_at, time.monotonic() + grace)
        if grace > 0 and not self._ending:
            for process in descendants():
                send(process, signal.SIGTERM)
                send(process, signal.SIGCONT)  # it may have been stopped
        self._ending = True

    def _start(self) -> int | None:
        """Start the program; None if it cannot be, which the owner is told."""
        failed, fails = os.pipe()
        self._alarm = os.pipe()  # what `_exec` says about it
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
        os.close(self._output)
        if number:
            os.waitpid(program, 0)
            answer(self._channel, {"error": int(number)})
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
        for number in DEFAULT:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.chdir(self._request["cwd"])
        nothing = os.open(os.devnull, os.O_RDONLY)
        for fd, standard in ((nothing, 0), (self._output, 1), (self._output, 2)):
            os.dup2(fd, standard)
        line = self._request["line"]
        os.execvpe(line[0], line, self._request["environment"])


def answer(channel: int, what: dict[str, object]) -> None:
    """Tell the owner something, if it is still there."""
    with contextlib.suppress(OSError):
        os.write(channel, json.dumps(what).encode())


def is_ready(fd: int, events: int = select.POLLIN) -> bool:
    """Whether there is something to read, or the process of a pidfd has ended; -1 never is.

    Without `events`, whether nobody holds the other end of a pipe any more.
    """
    if fd < 0:
        return False
    waiting = select.poll()
    waiting.register(fd, events)
    return bool(waiting.poll(0))


def reaped() -> list[tuple[int, int]]:
    """Children that have ended, and how."""
    ended: list[tuple[int, int]] = []
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            ended.append(found)
    return ended


def has_children() -> bool:
    """Whether there is any, ended or not."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def kill_all(spare: "dict[int, list[int]] | None" = None) -> list[tuple[int, int]]:
    """Kill until no descendant is left but these children and theirs; returns what has ended, and how."""
    ended: list[tuple[int, int]] = []
    pause = 0.001
    while family := descendants(spare or {}):
        for process in family:
            send(process, signal.SIGKILL)
        time.sleep(pause)
        pause = min(2 * pause, 0.25)  # one that waits for a dead file server cannot be killed
        ended += reaped()
    return ended


def descendants(spare: "dict[int, list[int]] | None" = None) -> list[int]:
    """All processes below this one, but those below, and with, the ones to `spare`."""
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


def send(process: int, number: int) -> None:
    """Send a signal to a process that may have ended."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(process, number)


def main() -> None:
    """Be nobody's child, and serve."""
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
