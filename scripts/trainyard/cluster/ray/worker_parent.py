"""A process that imports what workers need while Ray starts. Ray's workers are forked from it, in milliseconds.

    driver  >  parent of the workers  >  workers
            >  raylet  >  requests (worker_request.py), each of which ends once the parent has forked its worker

The parent runs no code of trials, touches no GPU, and has one thread when it forks, so that a worker that replaces a
failed one is as clean as the first. When the driver ends, however that happens, the socket between them closes, the
parent ends, and the kernel kills the workers that are left. If the parent was killed or does not answer, a request
becomes the worker.
"""

import contextlib
import gc
import importlib
import json
import os
import resource
import runpy
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import psutil

from trainyard.cluster.ray.patches import SWITCH
from trainyard.cluster.ray.start import ENVIRONMENT
from trainyard.cluster.ray.worker_request import FORKED
from trainyard.utils.guard import signal_at_end_of_parent
from trainyard.utils.import_path import SCRIPTS, helper_command

RAY_MODULES: Final = ("ray", "ray._private.workers.default_worker")  # the program of a worker
REQUEST_PROGRAM: Final = Path(__file__).with_name("worker_request.py")
BACKLOG: Final = 1024  # requests that wait while the parent imports
# A request waits for so long: half of the time after which Ray kills a worker that has not registered
# (`worker_register_timeout_seconds`, 60). The other half is for the request to import Ray.
ANSWER_SECONDS: Final = 30.0
RECEIVE_SECONDS: Final = 5.0
END_SECONDS: Final = 5.0  # after SIGKILL
# The kernel's OOM killer shall select a worker, not the driver or Ray. Ray sets this for the process that it started.
OOM_SCORE: Final = "1000"
FIRST_JOB: Final = "01000000"  # the ID of the first job of a new Ray, in which a driver is the only one
_seconds: dict[str, float] = {}  # in which each module was imported ahead of its use


class WorkerParent:
    """The parent of the workers on this node, as seen by the process that starts it."""

    def __init__(self, modules: Sequence[str], *, threads: int) -> None:
        """Start a parent that imports `modules` for trials of `threads` threads."""
        self._control, control = socket.socketpair()
        with control:
            self._process = subprocess.Popen(
                [*helper_command("cluster.ray.worker_parent"), str(control.fileno()), *RAY_MODULES, *modules],
                env=_environment(threads),
                pass_fds=[control.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )

    def serve(self, directory: Path) -> list[str]:
        """Listen in this private directory; returns the program that Ray shall run to start a worker."""
        path = directory / "workers"
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
            listener.listen(BACKLOG)
            with contextlib.suppress(OSError):  # the parent was killed
                socket.send_fds(self._control, [b"\0"], [listener.fileno()])
        return [sys.executable, "-I", "-S", str(REQUEST_PROGRAM), str(path), str(ANSWER_SECONDS)]

    def close(self) -> None:
        """End the parent, and with it the workers that are left."""
        with contextlib.suppress(psutil.NoSuchProcess):
            workers = psutil.Process(self._process.pid).children()
            self._process.kill()
            psutil.wait_procs(workers, timeout=END_SECONDS)
        self._process.wait()
        self._control.close()


@contextlib.contextmanager
def worker_parent(modules: Sequence[str], *, threads: int) -> Iterator[WorkerParent | None]:
    """A process that imports `modules`, from which Ray's workers can be forked; it ends with the block.

    None if patches of Ray are turned off, one of which makes Ray use it.
    """
    if os.environ.get(SWITCH) == "0":
        yield None
        return
    with contextlib.closing(WorkerParent(modules, threads=threads)) as parent:
        yield parent


def preload_seconds(modules: Sequence[str]) -> float:
    """The time in which these modules were preloaded in this process, or in the one that it was forked from."""
    return sum(_seconds.get(module, 0.0) for module in modules)


def _environment(threads: int) -> dict[str, str]:
    """The environment of the parent, which is read on import by Ray's C++ part and by OpenBLAS.

    There is no raylet yet: workers end with this process, or with their parent, which ends with the raylet.
    """
    known = {name: value for name, value in ENVIRONMENT.items() if value is not None}
    known |= {"RAY_JOB_ID": FIRST_JOB, "RAY_RAYLET_PID": str(os.getpid())}
    return {"OMP_NUM_THREADS": str(threads), **os.environ, **known}  # Ray sets the threads, too, if nobody did


def main() -> None:
    """Import the modules that the command line names, and fork a worker for each request."""
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # those that end a job are for the workers
    for module in sys.argv[2:]:
        began = time.perf_counter()
        with contextlib.suppress(Exception):  # whoever uses it reports why it cannot be imported
            importlib.import_module(module)
        _seconds[module] = time.perf_counter() - began
    gc.freeze()  # a collection in a worker would write to all these objects, and the kernel would copy their pages
    if command := _fork_workers(socket.socket(fileno=int(sys.argv[1]))):
        sys.argv, sys.orig_argv = command, [sys.executable, *command]
        sys.path[sys.path.index(str(SCRIPTS))] = str(Path(command[0]).resolve().parent)
        runpy.run_path(command[0], run_name="__main__")


def _fork_workers(control: socket.socket) -> list[str] | None:
    """In each worker, its command line; in this process None, once the process that started it or the raylet ends."""
    _, fds, _, _ = socket.recv_fds(control, 1, 1)
    if not fds:
        return None
    parent, listener, ends = os.getpid(), socket.socket(fileno=fds[0]), [control.fileno()]
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps the workers
    while True:
        if select.select([listener.fileno(), *ends], [], [])[0] != [listener.fileno()]:
            return None
        connection, _ = listener.accept()
        with connection, contextlib.suppress(OSError, ValueError):  # the process that sent the request is the worker
            request, standard = _receive(connection)
            try:
                if request["environment"].get("RAY_JOB_ID") != FIRST_JOB:
                    continue
                if len(ends) == 1:
                    ends.append(os.pidfd_open(int(request["environment"]["RAY_RAYLET_PID"])))
                if not os.fork():
                    listener.close()
                    return _become_worker(request, standard, parent, connection)
            finally:
                for fd in standard:
                    os.close(fd)


def _receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """A request, and descriptors for the worker's standard input, output and error."""
    connection.settimeout(RECEIVE_SECONDS)
    _, (content, *standard), _, _ = socket.recv_fds(connection, 1, 4)
    with os.fdopen(content) as file:
        return json.load(file), standard


def _become_worker(request: dict[str, Any], standard: list[int], parent: int, connection: socket.socket) -> list[str]:
    """Make this forked process what the one that sent the request would be as a worker; returns its command line."""
    try:
        signal_at_end_of_parent(signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
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


if __name__ == "__main__":
    main()
