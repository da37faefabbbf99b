"""Ends processes together with their owner, however that ends. `guarded_process` runs this file as a program.

    keeper, one per owner  >  watcher, one per program  >  the program and its descendants

Keeper and watcher are not children of the process that they serve (the owner), because Ray kills the children of a dead
worker. Both are subreapers, so that every descendant stays below them, even a daemon. They watch each other and the
owner:

    the owner dies         the watcher requests the process tree to end, and sends SIGKILL a few seconds later
    the watcher dies       the tree becomes the keeper's, which kills it
    the keeper dies        the watcher goes on; the owner starts another keeper for its next program
    both die               the owner kills all processes with the mark of the program; if it dies, too, whoever next
                           claims the trial's folder does
    one of them is         the other one lets it go on (SIGCONT)
    stopped (SIGSTOP)

A mark is a variable in the environment, which all descendants inherit. What the owner itself must start, such as Ray
and the daemon of MPS, has one, too: the keeper kills all processes with it once the owner has ended, and then removes
their folders.

Of a program that ends with exit code 0, unasked, the watcher leaves a record beside its output: the owner, or who gets
its messages, may be stopped or killed before it has noted the end.

It runs as `python -I -S`, so that it starts in milliseconds: it imports a small part of the standard library only.
"""

import contextlib
import ctypes
import errno
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
# After SIGKILL, until a process has released its locks: one that waits for a dead file server does not end.
KILL_SECONDS = 10.0
TREE_VARIABLE = "TRAINYARD_TREE"  # the mark
INT_BYTES = 4
SAVED = b"saved"  # from the owner: the log has the whole output
REQUEST_FDS = 5  # the request, the channel for answers, standard output, its other end, and the lock, if there is one
SHELLS = ("sh", "dash", "bash", "zsh", "busybox")
USER_SIGNALS = (signal.SIGUSR1, signal.SIGUSR2)
# A site may send the signals of a job to all its processes.
RECORDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, *USER_SIGNALS)

_prctl = ctypes.CDLL(None).prctl


# ---- for processes that end with their parent, or with all their descendants


def signal_at_end_of_parent(number: int, parent: int | None = None) -> None:
    """Receive this signal when the thread ends that started this process, even by SIGKILL.

    Also if this process `parent`, which has started it, has ended before this call.
    """
    _prctl(PR_SET_PDEATHSIG, number)
    if parent is not None and os.getppid() != parent:
        os.kill(os.getpid(), number)


def adopt_orphans() -> None:
    """Become the parent of each descendant whose own parent ends, also of a daemon."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def kill_descendants(spare: tuple[int, ...] = ()) -> list[tuple[int, int]]:
    """Kill all descendants but these children and theirs; returns PID and wait status of the children that ended."""
    ended: list[tuple[int, int]] = []
    pause = 0.001
    while family := find_descendants(spare):
        for process in family:
            send_signal(process, signal.SIGKILL)
        time.sleep(pause)
        pause = min(2 * pause, 0.25)  # a process that waits for a dead file server cannot be killed
        ended += reap_children()
    return ended


def find_descendants(spare: tuple[int, ...] = ()) -> list[int]:
    """The PIDs of all processes below this one, but the ones to `spare` and those below them."""
    children: dict[int, list[int]] = {}
    for process in _all_processes():
        with contextlib.suppress(OSError, IndexError), open(f"/proc/{process}/stat", "rb") as file:
            parent = int(file.read().rpartition(b")")[2].split()[1])
            children.setdefault(parent, []).append(process)
    descendants: list[int] = []
    parents = [os.getpid()]
    while parents:
        below = [child for child in children.get(parents.pop(), []) if child not in spare]
        descendants += below
        parents += below
    return descendants


def mark(tree: str) -> dict[str, str]:
    """Environment variables that mark a process, and all that it starts, as part of this tree."""
    # Without the second, `setproctitle`, which Ray and many programs use, writes the title over the environment.
    return {TREE_VARIABLE: tree, "SPT_NOENV": "1"}


def kill_tree(tree: str, variable: str = TREE_VARIABLE) -> None:
    """Kill the processes with this mark, wherever they are; returns once they have ended."""
    deadline = time.monotonic() + KILL_SECONDS
    while (marked := find_tree(tree, variable)) and time.monotonic() < deadline:
        for process in marked:
            send_signal(process, signal.SIGKILL)
        time.sleep(0.01)


def find_tree(tree: str, variable: str = TREE_VARIABLE) -> list[int]:
    """The PIDs of the processes with this mark."""
    marked: list[int] = []
    entry = os.fsencode(f"{variable}={tree}")
    for process in _all_processes():
        with contextlib.suppress(OSError), open(f"/proc/{process}/environ", "rb") as file:  # empty once it has ended
            if entry in file.read().split(b"\0"):
                marked.append(process)
    return marked


def _all_processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def send_signal(process: int, number: int) -> None:
    """Send a signal to a process that may have ended."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(process, number)


def request_end(number: int, processes: list[int]) -> list[int]:
    """Send a signal to these processes; returns the descendants that got it in their place.

    SIGUSR1 and SIGUSR2 would end a program that does not handle them, such as a shell before the training: in each
    branch, only the first process that handles them gets one, and shells before it. Without any, all get SIGTERM.
    """
    handlers = _find_handlers(number) if number in USER_SIGNALS else []
    if number in USER_SIGNALS and not handlers:
        number = signal.SIGTERM
    for process in handlers or processes:
        send_signal(process, number)
        send_signal(process, signal.SIGCONT)  # it may have been stopped
    return handlers


def _find_handlers(number: int) -> list[int]:
    """The first process of each branch of the descendants that has a handler for a signal, and shells before it."""
    handlers: list[int] = []
    while process := next(
        (each for each in find_descendants(tuple(handlers)) if _handles(each, number) and not _is_shell(each)), None
    ):
        handlers.append(process)
    shells = [each for each in find_descendants(tuple(handlers)) if _handles(each, number)]
    # With a trap of EXIT, bash handles all signals that would end it: it ends at once, without what it waits for.
    return handlers + [each for each in shells if not (handlers and _handles(each, signal.SIGVTALRM))]


def _is_shell(process: int) -> bool:
    with contextlib.suppress(OSError):
        # Not `comm`, which is the name of a script that is started by its own name.
        return os.path.basename(os.readlink(f"/proc/{process}/exe")) in SHELLS  # noqa: PTH119  (as above)
    return False


def _handles(process: int, number: int) -> bool:
    with contextlib.suppress(OSError), open(f"/proc/{process}/status", "rb") as file:
        caught = next((line for line in file if line.startswith(b"SigCgt:")), b"SigCgt: 0")
        return bool(int(caught.split()[1], 16) >> (number - 1) & 1)
    return False


def reap_children() -> list[tuple[int, int]]:
    """PID and wait status of the children that have ended."""
    ended: list[tuple[int, int]] = []
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            ended.append(found)
    return ended


# ---- keeper and watcher


class Signals:
    """The signals received so far, and a descriptor to poll for the next one."""

    def __init__(self) -> None:
        self.seen: set[int] = set()
        self.fd, written = os.pipe()
        for end in (self.fd, written):
            os.set_blocking(end, False)
        for number in (*RECORDED, signal.SIGCHLD):
            signal.signal(number, lambda number, frame: self.seen.add(number))
        signal.set_wakeup_fd(written, warn_on_full_buffer=False)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())  # a program inherits it; it does not inherit the handlers

    def drain(self) -> None:
        """Empty the descriptor, so that a poll waits for the next signal."""
        with contextlib.suppress(BlockingIOError):
            while os.read(self.fd, 4096):
                pass


class Keeper:
    """Serves one owner: starts a watcher for each program, and takes over from one that dies."""

    def __init__(self, control: socket.socket, owner: int) -> None:
        self._control = control
        self._owner = owner
        self._signals = Signals()
        self._held: dict[int, list[int]] = {}  # by the PID of a watcher: the channel of its program, and the lock
        self._serving = True
        self._last_request: dict[str, object] = {}  # what to do once the owner has ended
        adopt_orphans()

    def run(self) -> None:
        """Serve until the owner and all watchers have ended."""
        while self._serving or self._held:
            requests = (self._control.fileno(), self._owner) if self._serving else ()
            await_ready(self._signals.fd, *requests)
            self._signals.drain()
            ended = reap_children()
            for process, status in ended:
                if process in self._held:
                    ended += self._take_over(process, status)
            for watcher in self._held:  # a stopped one would neither see the end of the owner nor of its program
                send_signal(watcher, signal.SIGCONT)
            if self._serving:
                self._take_request()
        if self._last_request:
            clean_up(**self._last_request)  # type: ignore[arg-type]

    def _take_request(self) -> None:
        fds = receive_fds(self._control)
        if fds is None and not is_ready(self._owner):
            return
        if not fds:
            self._serving = False  # the owner has ended
        elif len(fds) == 1:
            with open(fds[0], "rb") as file:
                self._last_request = json.load(file)
        else:
            self._start_watcher(fds)

    def _start_watcher(self, fds: list[int]) -> None:
        watcher = os.fork()
        if watcher:
            request, channel, writing, reading, *lock = fds
            close_all([request, writing, reading])
            self._held[watcher] = [channel, *lock]
            return
        try:
            self._control.close()
            for held in self._held.values():
                close_all(held)
            Watcher(fds, owner=self._owner).run()
            os._exit(0)
        finally:
            os._exit(1)

    def _take_over(self, watcher: int, status: int) -> list[tuple[int, int]]:
        """Handle the end of a watcher. If it was killed, kill its program; returns what else ended."""
        ended = []
        held = self._held.pop(watcher)
        if status:
            ended = kill_descendants(spare=tuple(self._held))
        close_all(held)
        return ended


class Watcher:
    """Starts one program, ends all its processes, and reports the exit code to the owner."""

    def __init__(self, fds: list[int], *, owner: int) -> None:
        request, self._channel, self._output_writing, self._output_reading, *_ = fds
        self._owner = owner
        self._signals = Signals()
        with open(request, "rb") as file:
            self._request = json.load(file)
        self._ending = False
        self._asked: list[int] = []  # processes that got a user signal
        self._kill_at = float("inf")  # on the monotonic clock
        self._leftovers_at = float("inf")  # when to end what the program left behind, on the monotonic clock
        os.setsid()
        adopt_orphans()

    def run(self) -> None:
        """Start the program and watch it until none of its processes is left."""
        began = time.monotonic()
        program = self._start()
        if program is None:
            return
        self._send({"started": program, "guards": [os.getppid(), os.getpid()]})
        code = None
        was_requested = False
        while True:
            for process, status in reap_children():
                if process == program:
                    code = os.waitstatus_to_exitcode(status)
                    was_requested = self._ending or self._job_is_ending
                    self._leftovers_at = time.monotonic() + OUTPUT_SECONDS
            if not has_children():
                break
            if code is not None and not self._ending:
                self._end_leftovers()
            if self._asked and not set(self._asked).intersection(find_descendants()):
                self._asked = request_end(signal.SIGTERM, find_descendants())  # what a shell starts after them
            if time.monotonic() >= self._kill_at:
                for process, status in kill_descendants():
                    code = os.waitstatus_to_exitcode(status) if process == program else code
                break
            self._wait()
        if self._owner_is_gone():
            while is_ready(self._output_reading):
                self._save_output()
        send_signal(os.getppid(), signal.SIGCONT)  # a stopped one would keep the channel and the lock open
        self._send({"code": -signal.SIGKILL if code is None else code, "requested": was_requested})
        if code == 0 and not was_requested and self._request.get("records_end") and self._await_saved_output():
            leave_record(self._request["log"], time.monotonic() - began)

    def _await_saved_output(self) -> bool:
        """Wait until the owner has written the rest of the output to the log; False if it died before."""
        message = b"-"
        while message not in (b"", SAVED):  # or it asked for an end that was reached
            await_ready(self._channel, self._owner)
            message = self._read_message() if is_ready(self._channel) else b""
        return message == SAVED

    def _send(self, message: dict[str, object]) -> None:
        """Send a message to the owner, if it still exists."""
        with contextlib.suppress(OSError):
            os.write(self._channel, json.dumps(message).encode())

    def _read_message(self) -> bytes:
        """The message that the owner has sent; empty if it has died."""
        try:
            return os.read(self._channel, 64)
        except ConnectionError:
            return b""

    def _save_output(self) -> None:
        """Read the output in place of the owner: without a reader, the next write would end the program."""
        output = os.read(self._output_reading, 65536)
        if not output:  # no process can write any more
            os.close(self._output_reading)
            self._output_reading = -1
        elif "log" in self._request:
            # Not created anew: the owner renames it if it cannot keep a part, and what follows is not the whole output.
            with contextlib.suppress(OSError), open(self._request["log"], "r+b", buffering=0) as log:
                log.seek(0, os.SEEK_END)
                log.write(output)

    def _end_leftovers(self) -> None:
        """End what the program left behind, once none of it holds the output, or after a timeout."""
        if self._job_is_ending:  # a shell dies at once; the program behind it may still write a checkpoint
            self._end(self._request["grace"])
        elif is_ready(self._output_reading, 0) or time.monotonic() >= self._leftovers_at:
            self._end(0.0)

    def _wait(self) -> None:
        """Wait for the next event, and act on it."""
        gone = self._ending and self._owner_is_gone()
        others = [self._output_reading] if gone else [self._channel, self._owner]
        # The end of what got a user signal is no event: a shell before it may have reaped it.
        until = min(self._kill_at, time.monotonic() + 0.1) if self._asked else self._kill_at
        closing = -1
        if not self._ending and self._leftovers_at < float("inf"):
            closing = self._output_reading
            until = min(until, self._leftovers_at)
        await_ready(self._signals.fd, *others, closing=closing, seconds=until - time.monotonic())
        self._signals.drain()
        if gone and is_ready(self._output_reading):
            self._save_output()
        if self._owner_is_gone():
            # If the whole job is ending (a preemption), the program has its full grace period to write a checkpoint.
            grace = self._request["grace"]
            self._end(grace if self._job_is_ending else min(grace, ABRUPT_SECONDS))

    @property
    def _job_is_ending(self) -> bool:
        """Whether the whole job is ending: the guard receives these signals only then."""
        return bool(self._signals.seen & {signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2})

    def _owner_is_gone(self) -> bool:
        """Whether the owner has died. If it sent a grace period, the program is ended."""
        if is_ready(self._owner):
            return True
        if is_ready(self._channel):
            message = self._read_message()
            if not message:
                return True
            self._end(float(message))
        return False

    def _end(self, grace: float) -> None:
        """Request all processes to end, once; SIGKILL follows after `grace` seconds."""
        self._kill_at = min(self._kill_at, time.monotonic() + grace)
        if grace > 0 and not self._ending:
            self._asked = request_end(self._request["signal"], find_descendants())
        self._ending = True

    def _start(self) -> int | None:
        """Start the program; returns its PID, or None if it cannot be started, which is reported to the owner."""
        if self._request.get("records_end"):
            with contextlib.suppress(FileNotFoundError):  # of an attempt with this number that does not count
                os.unlink(record_path(self._request["log"]))  # noqa: PTH108  (as above)
        failed, fails = os.pipe()
        program = os.fork()
        if not program:
            try:
                self._exec()
            except (OSError, ValueError) as error:  # ValueError: a null byte, or text that cannot be encoded
                os.write(fails, str(getattr(error, "errno", errno.EINVAL)).encode())
            finally:
                os._exit(127)
        os.close(fails)
        number = os.read(failed, 16)
        os.close(failed)
        os.close(self._output_writing)
        if number:
            os.waitpid(program, 0)
            self._send({"error": int(number)})
            return None
        return program

    def _exec(self) -> None:
        """Become the program. Little is done here: what a forked Python touches must be copied, page by page."""
        os.setsid()
        os.chdir(self._request["cwd"])
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        os.dup2(self._output_writing, 1)  # standard input is /dev/null, as of the guard
        os.dup2(self._output_writing, 2)
        command = self._request["command"]
        os.execvpe(command[0], command, self._request["environment"])


def record_path(log: str) -> str:
    """The file beside a program's output in which the guard records that it has ended by itself with exit code 0."""
    return f"{log.removesuffix('.log')}.ended"


def leave_record(log: str, seconds: float) -> None:
    """Record that a program has ended, and how large its output is. The owner removes the record.

    The output is on the disk before the record. A record that a crash of the node spoils only repeats the program.
    """
    # Without the output, or if the disk is full, there is no record: the owner's word counts.
    with contextlib.suppress(OSError):
        with open(log, "rb") as output:
            os.fsync(output.fileno())
            size = os.fstat(output.fileno()).st_size
        with open(record_path(log), "w") as file:
            file.write(json.dumps({"bytes": size, "seconds": round(seconds, 4)}))


def clean_up(tree: str, folders: list[str], command: list[str]) -> None:
    """Run the command, if any, then kill the processes with this mark, and remove folders that match these patterns."""
    import glob  # these are slow to import
    import subprocess

    if command:
        with contextlib.suppress(OSError):
            subprocess.run(command, check=False)
    kill_tree(tree)
    deadline = time.monotonic() + KILL_SECONDS  # also for processes that have no mark
    for pattern in folders:
        for path in glob.glob(pattern):  # noqa: PTH207  (pathlib takes long to import)
            while not remove_unless_held(path) and time.monotonic() < deadline:
                time.sleep(0.1)


def remove_unless_held(path: str) -> bool:
    """Remove a folder; False if a process holds it by a lock on it, or if its file system locks no folders."""
    import shutil

    try:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:  # already removed, or not a folder
        return True
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(path, ignore_errors=True)
    except OSError:
        return False
    finally:
        os.close(folder)
    return True


def receive_fds(control: socket.socket) -> list[int] | None:
    """The descriptors that were sent; none if the other end is closed, None if nothing was sent."""
    try:
        flags = socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC
        # Not `recv_fds`: before Python 3.12 it leaves out the flags.
        _, sent, _, _ = control.recvmsg(1, socket.CMSG_LEN(REQUEST_FDS * INT_BYTES), flags)
    except BlockingIOError:
        return None
    except ConnectionError:
        return []
    return [number for _, _, data in sent for number in memoryview(data).cast("i")]


def close_all(fds: list[int]) -> None:
    """Close descriptors. The channel, which is first, is last: then the owner knows that all are closed."""
    for fd in reversed(fds):
        if fd >= 0:
            os.close(fd)


def await_ready(*fds: int, closing: int = -1, seconds: float = float("inf")) -> None:
    """Wait so long until one of these is ready, or no process holds the other end of the pipe `closing`.

    -1 stands for none.
    """
    waiting = select.poll()
    for fd in fds:
        if fd >= 0:
            waiting.register(fd, select.POLLIN)
    if closing >= 0:
        waiting.register(closing, 0)  # its end is reported in any case
    waiting.poll(None if seconds == float("inf") else max(0.0, 1000 * seconds))


def is_ready(fd: int, events: int = select.POLLIN) -> bool:
    """Whether there is something to read, or the process of a pidfd has ended; False for -1.

    With `events=0`, whether no process holds the other end of a pipe.
    """
    if fd < 0:
        return False
    waiting = select.poll()
    waiting.register(fd, events)
    return bool(waiting.poll(0))


def has_children() -> bool:
    """Whether there is a child, ended or not."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


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
