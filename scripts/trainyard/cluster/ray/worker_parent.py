"""A process that imports what workers need while Ray starts. Ray's workers are forked from it, in milliseconds.

    driver  >  parent of the workers  >  workers
            >  raylet  >  requests (worker_request.py), each of which ends once the parent has forked its worker

The driver imports Ray and forks the parent before it does anything else, so that this takes no time of its own. The
parent runs no code of trials, touches no GPU, and has one thread when it forks, so that a worker that replaces a
failed one is as clean as the first, also of a second Ray in the same driver. When the driver ends, however that
happens, the kernel kills the parent, and then the workers that are left. If the parent was killed or does not answer, a
request becomes the worker.
"""

import contextlib
import gc
import importlib
import json
import marshal
import os
import resource
import runpy
import select
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

import psutil

from trainyard.cluster.ray.environment import ENVIRONMENT
from trainyard.cluster.ray.patches import SWITCH
from trainyard.cluster.ray.worker_request import FORKED
from trainyard.utils.environment_variables import environment_variables
from trainyard.utils.guard import KILL_SECONDS, send_signal, signal_at_end_of_parent

# The program of a worker, and what Ray imports when it first sends a message.
RAY_MODULES: Final = ("ray", "ray._private.workers.default_worker", "pydantic.v1.fields")
TITLE: Final = "trainyard: parent of the workers"  # its command line, as `ps` shows it
REQUEST_PROGRAM: Final = Path(__file__).with_name("worker_request.py")
BACKLOG: Final = 1024  # requests that wait while the parent imports
# A request waits for so long: half of the time after which Ray kills a worker that has not registered
# (`worker_register_timeout_seconds`, 60). The other half is for the request to import Ray.
ANSWER_SECONDS: Final = 30.0
RECEIVE_SECONDS: Final = 5.0
MESSAGE_BYTES: Final = 1 << 16
# The kernel's OOM killer shall select a worker, not the driver or Ray. Ray sets this for the process that it started.
OOM_SCORE: Final = "1000"
FIRST_JOB: Final = "01000000"  # the ID of the first job of a new Ray, in which a driver is the only one
preload_seconds = 0.0  # in which the parent of a worker has imported the modules that the driver named


class WorkerParent:
    """The parent of the workers on this node, as seen by the process that forks it."""

    def __init__(self) -> None:
        """Import Ray, and fork the parent; in the parent, this ends with SystemExit.

        Call this first in a program, while it has one thread and no handler.
        """
        of_program = sys.path[0]  # as Python has set it; Ray adds folders before it
        # There is no raylet yet: workers end with this process, or with their parent, which ends with the raylet.
        of_workers = {"RAY_JOB_ID": FIRST_JOB, "RAY_RAYLET_PID": str(os.getpid())}
        with environment_variables(ENVIRONMENT | of_workers):  # which Ray's C++ part reads on import
            self.import_seconds = preload(RAY_MODULES)
        self._control, control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._is_prepared = False
        with control:
            # The signals that end a job are for the workers.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
            if not (pid := os.fork()):
                self._control.close()
                _run(control, of_program)
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self._process = psutil.Process(pid)

    def prepare(self, modules: Sequence[str], variables: Mapping[str, str]) -> None:
        """Let it import these modules with these environment variables; only the first call counts."""
        if not self._is_prepared:
            self._is_prepared = True
            self._send(json.dumps({"modules": list(modules), "variables": dict(variables)}).encode())

    def serve(self, directory: Path) -> list[str]:
        """Listen in this private directory; returns the program that Ray shall run to start a worker."""
        path = directory / "workers"
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
            listener.listen(BACKLOG)
            self._send(b"\0", listener.fileno())
        return [sys.executable, "-I", "-S", str(REQUEST_PROGRAM), str(path), str(ANSWER_SECONDS)]

    def await_workers(self) -> None:
        """Wait for the end of the workers, which the parent kills once their raylet has ended."""
        with contextlib.suppress(psutil.NoSuchProcess):  # the parent was killed, and they with it
            psutil.wait_procs(self._process.children(), KILL_SECONDS)

    def _send(self, message: bytes, *descriptors: int) -> None:
        with contextlib.suppress(OSError):  # the parent was killed
            socket.send_fds(self._control, [message], descriptors)


_parent: WorkerParent | None = None  # of this process


def fork_parent() -> None:
    """Fork the parent of the workers of this process, in which it ends with SystemExit; see `WorkerParent`.

    There is none if patches of Ray are turned off, one of which makes Ray use it.
    """
    global _parent
    if os.environ.get(SWITCH) != "0":
        _parent = WorkerParent()


def prepared_parent(modules: Sequence[str], variables: Mapping[str, str]) -> WorkerParent | None:
    """The parent of this process's workers, which now imports `modules`; None without one.

    `variables` are the numbers of threads that libraries read from the environment when they are imported.
    """
    if _parent:
        _parent.prepare(modules, variables)
    return _parent


def preload(modules: Sequence[str]) -> float:
    """Import modules; returns the time that this took."""
    began = time.perf_counter()
    for module in modules:
        with contextlib.suppress(Exception):  # whoever uses it reports why it cannot be imported
            importlib.import_module(module)
    return time.perf_counter() - began


def _run(control: socket.socket, of_program: str) -> NoReturn:
    """Import the modules that the driver names, and fork a worker for each request.

    `of_program`: the folder of the program in `sys.path`, in place of which a worker has that of its own.
    """
    signal_at_end_of_parent(signal.SIGKILL)
    _drop_files(control.fileno())
    with contextlib.suppress(Exception):
        import ray

        # Otherwise it overwrites /proc/PID/environ, by which the processes of a Slurm job are found.
        os.environ["SPT_NOENV"] = "1"
        ray._raylet.setproctitle(TITLE)  # type: ignore[attr-defined]  # a compiled module
    if not (message := control.recv(MESSAGE_BYTES)):
        sys.exit()
    request = json.loads(message)
    os.environ.update(request["variables"])
    global preload_seconds
    preload_seconds = preload(request["modules"])
    gc.freeze()  # a collection in a worker would write to all these objects, and the kernel would copy their pages
    gc.enable()
    if command := _fork_workers(control):
        sys.argv = command
        sys.orig_argv = [sys.executable, *command]
        sys.path[sys.path.index(of_program)] = str(Path(command[0]).resolve().parent)
        runpy.run_path(command[0], run_name="__main__")
    sys.exit()


def _drop_files(control: int) -> None:
    """Close all files that this process has inherited, such as a lock of the user's shell, except `control`."""
    null = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(null, number)
    for number in map(int, os.listdir("/proc/self/fd")):
        if number > 2 and number != control:
            with contextlib.suppress(OSError):  # that of the listing
                os.close(number)


def _fork_workers(control: socket.socket) -> list[str] | None:
    """Fork the workers of one Ray after another; returns a worker's command line in it, None at the driver's end."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps the workers
    while fds := socket.recv_fds(control, 1, 1)[1]:  # for each Ray
        with socket.socket(fileno=fds[0]) as listener:
            if command := _fork_workers_of(listener, control):
                return command
        for worker in psutil.Process().children():  # they take the driver for their raylet
            send_signal(worker.pid, signal.SIGKILL)
    return None


def _fork_workers_of(listener: socket.socket, control: socket.socket) -> list[str] | None:
    """Fork a worker for each request of one Ray; returns its command line in it, None once this Ray has ended."""
    parent = os.getpid()
    ends = [control.fileno()]
    try:
        while select.select([listener.fileno(), *ends], [], [])[0] == [listener.fileno()]:
            connection, _ = listener.accept()
            # Without an answer, the process that sent the request is the worker.
            with connection, contextlib.suppress(OSError, ValueError, EOFError):
                request, standard = _receive(connection)
                try:
                    if request["environment"].get("RAY_JOB_ID") != FIRST_JOB:
                        continue
                    if len(ends) == 1:
                        ends.append(os.pidfd_open(int(request["environment"]["RAY_RAYLET_PID"])))
                    if not os.fork():
                        return _become_worker(request, standard, parent, connection)
                finally:
                    for fd in standard:
                        os.close(fd)
    finally:
        for raylet in ends[1:]:
            os.close(raylet)
    return None


def _receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """A request, and descriptors for the worker's standard input, output and error."""
    connection.settimeout(RECEIVE_SECONDS)
    _, (content, *standard), _, _ = socket.recv_fds(connection, 1, 4)
    with os.fdopen(content, "rb") as file:
        return marshal.load(file), standard


def _become_worker(request: dict[str, Any], standard: list[int], parent: int, connection: socket.socket) -> list[str]:
    """Make this forked process what the one that sent the request would be as a worker; returns its command line."""
    try:
        signal_at_end_of_parent(signal.SIGKILL, parent)
        os.setpgid(0, request["group"])  # Ray kills the process group of a worker that has ended
        for number, fd in enumerate(standard):
            os.dup2(fd, number)
        Path("/proc/self/oom_score_adj").write_text(OOM_SCORE)
        resource.setrlimit(resource.RLIMIT_NOFILE, request["open_files"])
        os.environ.clear()
        os.environ.update(request["environment"])
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, request["blocked_signals"])
        # Otherwise, all workers would draw the same numbers.
        if torch := sys.modules.get("torch"):
            torch.default_generator.seed()
        if numpy_random := sys.modules.get("numpy.random"):
            numpy_random.seed()
        connection.send(FORKED)
        return list(request["command"])
    except BaseException:
        os._exit(1)  # without an answer, the process that sent the request becomes the worker
