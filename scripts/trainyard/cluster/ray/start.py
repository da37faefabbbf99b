"""A private Ray on this machine for one driver program, removed completely when the driver ends."""

import contextlib
import logging
import os
import secrets
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psutil

from trainyard.cluster import host, node_folders
from trainyard.cluster.ray.environment import ENVIRONMENT
from trainyard.cluster.ray.patches import trimmed_ray_init
from trainyard.cluster.stop_request import ignore_signal, shielded_children
from trainyard.utils.environment_variables import environment_variables
from trainyard.utils.errors import UserError, storage_error
from trainyard.utils.guard import TREE_VARIABLE, kill_tree
from trainyard.utils.guarded_process import processes_ended

if TYPE_CHECKING:
    from trainyard.cluster.ray.worker_parent import WorkerParent

# A Unix socket path has at most 107 characters; "/r/session_<date>_<time>_<pid>/sockets/plasma_store" takes 66.
LONGEST_DIRECTORY: Final = 38
# Trials read their data from files: the object store only holds large messages. Ray requires at least 75 MiB.
OBJECT_STORE_BYTES: Final = 80 * 1024 * 1024

_TOKEN: Final = secrets.token_hex(32)  # for authentication in this process; Ray's C++ part reads it only once


class RayEndedError(UserError):
    """Ray has ended on this node, or did not start, and all workers have ended: only a new Ray can start others."""


@dataclass(frozen=True)
class RunningRay:
    """Ray, as the driver sees it."""

    seconds: dict[str, float]  # of each step of its start
    has_ended: threading.Event  # set once the raylet of this node has ended


@contextlib.contextmanager
def start_ray(
    *, gpus: int, cpus: int, cleanup: Sequence[str] = (), parent: "WorkerParent | None" = None
) -> Iterator[RunningRay]:
    """Run Ray on this machine with `gpus` and `cpus`; at the end of the block, its processes and files are removed.

    With the `parent` of the workers, they are forked from it.

    If the driver is killed with SIGKILL, a guard does that, and also removes folders that match a pattern in `cleanup`.
    `cpus` also limits how many workers start concurrently: it should be at least the number of actors.

    Do not import Ray before, except for a parent: its C++ part reads the environment on import. Call this from the
    main thread: Ray's daemons use PR_SET_PDEATHSIG, which is sent when the *thread* that started them ends.
    """
    has_ended = threading.Event()
    with contextlib.ExitStack() as stack:
        directory = stack.enter_context(
            node_folders.private_folder(node_folders.RAY_PREFIX, max_path_length=LONGEST_DIRECTORY)
        )
        # The kernel ends Ray's two daemons with the driver, and the workers exit within 1.6 s. But Ray's two agents,
        # where `patches` does not replace them, would stay for 62 s, trying to reach a server that is gone, and
        # workers that are still starting would create Ray's folders again.
        mark = stack.enter_context(processes_ended(folders=[str(directory), *cleanup]))
        token = directory / "token"
        with os.fdopen(os.open(token, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as file:
            file.write(_TOKEN)
        stack.enter_context(environment_variables({**mark, **ENVIRONMENT, "RAY_AUTH_TOKEN_PATH": str(token)}))
        began = time.perf_counter()
        import ray  # noqa: F401  (its seconds are measured)

        seconds = {"import_ray_seconds": time.perf_counter() - began}
        if parent:
            seconds["import_ray_seconds"] += parent.import_seconds
            parent.import_seconds = 0.0  # of a second Ray
            stack.callback(parent.await_workers)
        stack.callback(_shut_down, mark[TREE_VARIABLE])
        began = time.perf_counter()
        with trimmed_ray_init(parent.serve(directory) if parent else ()):
            _start(directory, gpus=gpus, cpus=cpus)
        seconds["ray_init_seconds"] = time.perf_counter() - began
        _reap_raylet(has_ended)
        yield RunningRay(seconds, has_ended)


def _start(directory: Path, *, gpus: int, cpus: int) -> None:
    """Start Ray, and keep the handler of SIGTERM, which Ray replaces by one that exits.

    The signal may come meanwhile although this thread blocks it, since other threads do not.

    Raises:
        RayEndedError: a daemon was killed, or crashed, for which Ray raises errors of all types. Errors of the file
            system stay as they are.
    """
    import ray

    with shielded_children():
        before = signal.getsignal(signal.SIGTERM)
        try:
            ray.init(
                address="local",  # otherwise it may connect to a cluster that an earlier job left behind
                num_gpus=gpus,
                num_cpus=cpus,
                object_store_memory=OBJECT_STORE_BYTES,
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
                # Ray makes its own directory readable for everyone; the parent has mode 0700.
                _temp_dir=str(directory / "r"),
            )
        except SystemExit:
            if callable(before):
                before(signal.SIGTERM, None)
            raise
        except Exception as error:
            if isinstance(error, OSError) and storage_error(error):
                raise
            raise RayEndedError(f"Ray did not start on {host.node_name()}: {error}") from error
        finally:
            if signal.getsignal(signal.SIGTERM) is not ignore_signal:  # as after a stop request
                signal.signal(signal.SIGTERM, before)


def _reap_raylet(has_ended: threading.Event) -> None:
    """Wait for the end of the raylet in a thread, and report it.

    Workers end within a second of their raylet, and guards then end users' programs. Until somebody waits for a raylet
    that was killed, its process remains (as a zombie), and the workers take it for alive.
    """

    def wait(pid: int) -> None:
        with contextlib.suppress(ChildProcessError):  # Ray was faster
            os.waitpid(pid, 0)
        has_ended.set()

    for child in psutil.Process().children():
        if child.name() == "raylet":
            threading.Thread(target=wait, args=(child.pid,), daemon=True).start()


def _shut_down(tree: str) -> None:
    """Kill the processes with this mark, and let Ray forget them.

    Ray's own shutdown would wait for a second for each of its two daemons, which do not react to SIGTERM.
    """
    import ray

    kill_tree(tree)
    ray.shutdown()
