"""A private Ray for one driver program, removed completely when the driver ends: on this machine, or on several nodes.

On several nodes, the node of the driver is the head. One srun runs `node` on each of the others and connects its
standard input to the driver. The token comes first, so that the node imports Ray while the head starts, then the
address of the head. When the input closes, which happens however the driver ends, the node stops its Ray. The token is
on no shared file system, in no command line, and in no environment variable.
"""

import contextlib
import functools
import importlib
import json
import logging
import os
import secrets
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psutil

from trainyard.cluster import host, node_folders, slurm_allocation
from trainyard.cluster.job_step import srun_options
from trainyard.cluster.ray.patches import trimmed_ray_init, trimmed_ray_shutdown
from trainyard.cluster.stop_request import ignore_signal, shielded_children
from trainyard.utils.environment_variables import environment_variables
from trainyard.utils.errors import UserError, storage_error
from trainyard.utils.guarded_process import processes_ended
from trainyard.utils.import_path import helper_command

if TYPE_CHECKING:
    from trainyard.cluster.ray.worker_parent import WorkerParent
    from trainyard.config.sweep import Slots

# A Unix socket path has at most 107 characters; "/r/session_<date>_<time>_<pid>/sockets/plasma_store" takes 66.
LONGEST_DIRECTORY: Final = 38
NEVER: Final = str(10**9)  # failed health checks, which take seconds each
# Trials read their data from files: the object store only holds large messages. Ray requires at least 75 MiB.
OBJECT_STORE_BYTES: Final = 80 * 1024 * 1024
JOIN_TIMEOUT_SECONDS: Final = 120  # loading Python from a cold shared file system may take a minute
LEAVE_TIMEOUT_SECONDS: Final = 8  # then srun gets SIGTERM, and later SIGKILL: a dead node never answers
RAY_ENDED: Final = "Ray ended; its logs, if any, end:"  # as `node` prints it

ENVIRONMENT: Final[Mapping[str, str | None]] = {  # None: must not be set
    "RAY_ADDRESS": None,
    "RAY_TMPDIR": None,
    "RAY_AUTH_TOKEN": None,
    "RAY_AUTH_MODE": "token",  # without a token anyone who reaches the port runs code as this user
    "RAY_USAGE_STATS_ENABLED": "0",
    # It watches the memory of the whole machine and kills the newest worker. Slurm enforces the limit of the job.
    "RAY_memory_monitor_refresh_ms": "0",
    # Otherwise the driver waits for `cpus` idle workers when it connects, and hangs if one of them fails to start.
    "RAY_prestart_worker_first_driver": "0",
    # Listen on loopback only, which `_node_ip_address="127.0.0.1"` does not achieve.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    # Otherwise Ray kills the guards of users' programs, whose parents have ended.
    "RAY_kill_child_processes_on_worker_exit_with_raylet_subreaper": "0",
    # While Ray starts, its handler of SIGTERM would wait for the raylet to end by itself.
    "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
    # The default, 15, makes trials give way to everything else that computes on the node.
    "RAY_worker_niceness": "0",
    # Records of each call, for a dashboard and for logs that nobody reads.
    "RAY_task_events_report_interval_ms": "0",
    "RAY_event_stats": "0",
    # The future default of Ray, which warns on stderr when it is unset.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
log = logging.getLogger(__name__)


class RayEndedError(UserError):
    """Ray has ended on this node, or did not start, and all workers have ended: only a new Ray can start others."""


@dataclass(frozen=True)
class RunningRay:
    """Ray, as the driver sees it."""

    seconds: dict[str, float]  # of each step of its start
    has_ended: threading.Event  # set once the raylet of this node has ended


@contextlib.contextmanager
def start_ray(
    slots: "Slots", *, folder: Path, local: str, processes: int = 1, parent: "WorkerParent | None" = None
) -> Iterator[RunningRay]:
    """Run a private Ray with all slots, on this machine or on several nodes of this job.

    Workers are forked from `parent`, and on the other nodes from a similar process.

    The output of the other nodes is written to `ray-nodes.log` in `folder`, and their memory is recorded there, by
    `processes` per node; `local` is `data.local` of the config.

    Raises:
        UserError: the job has a different number of nodes or too few GPUs, or a node is not reached or does not join.
    """
    gpus, cpus, cleanup = slots.gpus_per_node, slots.cpus_per_node, node_folders.copy_patterns(local)
    if slots.nodes == 1:
        with local_ray(gpus=gpus, cpus=cpus, cleanup=cleanup, parent=parent) as running:
            yield running
        return
    given = _check_allocation(slots)
    others = [name for name in given.nodes if host.short_name(name) != host.node_name()]
    srun = _srun_line(others, helper_command("cluster.ray.node"), cpus=given.cpus_per_node)
    try:
        address = host.source_address(others[0])
    except OSError as error:
        remedy = f"`getent hosts {others[0]}` must print an address on all nodes: ask the site's administrators"
        raise UserError(f"{host.node_name()} does not reach {others[0]}: {error}; {remedy}") from None
    of_nodes = {
        "token": token(),
        "gpus": gpus,
        "cpus": cpus,
        "mps": slots.uses_mps,
        "local": local,
        "memory": {"folder": str(folder.absolute()), "processes": processes},
        "workers": {"modules": parent.modules, "threads": parent.threads} if parent else None,
    }
    with (
        _OtherNodes(others, srun, of_nodes, log_file=folder / "ray-nodes.log") as nodes,
        local_ray(gpus=gpus, cpus=cpus, address=address, cleanup=cleanup, parent=parent) as running,
    ):
        try:
            began = time.perf_counter()
            nodes.join()
            running.seconds["join_nodes_seconds"] = time.perf_counter() - began
            log.info("Ray is up on %d nodes after %.1f s", slots.nodes, sum(running.seconds.values()))
            yield running
        finally:
            nodes.leave()  # concurrently with Ray on this node


def _check_allocation(slots: "Slots") -> slurm_allocation.Allocation:
    """The allocation of this job, which has the nodes and GPUs of the slots."""
    given = slurm_allocation.current_allocation()
    if given is None or len(given.nodes) != slots.nodes:
        held = "this is not a Slurm job" if given is None else f"the job has {len(given.nodes)}"
        raise UserError(
            f"the sweep needs {slots.nodes} nodes, but {held}: run Snakemake with `--profile profiles/slurm`"
        )
    if 0 < given.gpus_per_node < slots.gpus_per_node:  # in a job without GPUs, they are logical resources
        raise UserError(f"the sweep needs {slots.gpus_per_node} GPUs a node, but the job has {given.gpus_per_node}")
    return given


@contextlib.contextmanager
def local_ray(
    *,
    gpus: int,
    cpus: int,
    address: str | None = None,
    cleanup: Sequence[str] = (),
    parent: "WorkerParent | None" = None,
) -> Iterator[RunningRay]:
    """Run Ray on this machine with `gpus` and `cpus`; at the end of the block, its processes and files are removed.

    With the `parent` of the workers, they are forked from it, and it ends with Ray.

    With an `address` of this host, Ray listens there instead of on loopback, and nodes with the token can join.
    If the driver is killed with SIGKILL, a guard does that, and also removes folders that match a pattern in `cleanup`.
    `cpus` also limits how many workers start concurrently: it should be at least the number of actors.

    Do not import Ray before: its C++ part reads the environment on import. Call this from the main thread: Ray's
    daemons use PR_SET_PDEATHSIG, which is sent when the *thread* that started them ends.
    """
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError("start the local Ray from the main thread, or it ends with the thread that started it")
    seconds: dict[str, float] = {}
    has_ended = threading.Event()
    with contextlib.ExitStack() as stack:
        directory = stack.enter_context(private_directory())
        # The kernel ends Ray's two daemons with the driver, and the workers exit within 1.6 s. But Ray's two agents,
        # where `patches` does not replace them, would stay for 62 s, trying to reach a server that is gone, and
        # workers that are still starting would create Ray's folders again.
        mark = stack.enter_context(processes_ended(folders=[str(directory), *cleanup]))
        stack.enter_context(environment_variables(mark))
        stack.enter_context(ray_environment(directory, token=token(), networked=address is not None))
        with _timed(into=seconds, name="import_ray_seconds"):
            importlib.import_module("ray")
        if parent:
            stack.callback(parent.close)
        stack.callback(_shut_down)
        with _timed(into=seconds, name="ray_init_seconds"), trimmed_ray_init(parent.serve(directory) if parent else ()):
            _start(directory, gpus=gpus, cpus=cpus, address=address)
        _reap_raylet(has_ended)
        yield RunningRay(seconds, has_ended)


def _start(directory: Path, *, gpus: int, cpus: int, address: str | None) -> None:
    import ray

    with shielded_children(), _handler_of_sigterm_kept(), _failures_named():
        ray.init(
            address="local",  # otherwise it may connect to a cluster that an earlier job left behind
            num_gpus=gpus,
            num_cpus=cpus,
            object_store_memory=OBJECT_STORE_BYTES,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            _node_ip_address=address,
            # Ray makes its own directory readable for everyone; the parent has mode 0700.
            _temp_dir=str(directory / "r"),
        )


@contextlib.contextmanager
def _failures_named() -> Iterator[None]:
    """Raise a RayEndedError if Ray, which raises errors of all types, does not start: a daemon was killed, or crashed.

    Errors of the file system stay as they are.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, OSError) and storage_error(error):
            raise
        raise RayEndedError(f"Ray did not start on {host.node_name()}: {error}") from error


@contextlib.contextmanager
def _handler_of_sigterm_kept() -> Iterator[None]:
    """Keep the handler of SIGTERM while Ray starts, which replaces it by one that exits.

    The signal may come meanwhile although this thread blocks it, since other threads do not.
    """
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    except SystemExit:
        if callable(before):
            before(signal.SIGTERM, None)
        raise
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


def _shut_down() -> None:
    import ray

    with trimmed_ray_shutdown():
        ray.shutdown()


@contextlib.contextmanager
def _timed(*, into: dict[str, float], name: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    into[name] = time.perf_counter() - start


def private_directory() -> contextlib.AbstractContextManager[Path]:
    """A directory on this node for the files of Ray, with a short path and mode 0700."""
    return node_folders.private_folder(node_folders.RAY_PREFIX, max_path_length=LONGEST_DIRECTORY)


@functools.cache
def token() -> str:
    """The authentication token of this process; Ray's C++ part reads it only once."""
    return secrets.token_hex(32)


@contextlib.contextmanager
def ray_environment(directory: Path, *, token: str, networked: bool) -> Iterator[None]:
    """Set the environment variables of Ray within the block; the token is in a file with mode 0600."""
    path = directory / "token"
    with os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as file:
        file.write(token)
    variables = {**ENVIRONMENT, "RAY_AUTH_TOKEN_PATH": str(path)}
    if networked:  # otherwise other nodes cannot connect
        variables["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = None
    else:  # on one node, the end of the raylet is seen at once, and one that was suspended has not failed
        variables["RAY_health_check_failure_threshold"] = NEVER
    with environment_variables(variables):
        yield


def missing_nodes(nodes: Sequence[str]) -> list[str]:
    """The nodes, by their names in Slurm, on which Ray has not joined yet."""
    import ray

    known: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    joined = {node["NodeName"] for node in known if node["Alive"]}  # as `node` names them
    return [name for name in nodes if host.short_name(name) not in joined]


class _OtherNodes:
    """The srun that runs Ray on the other nodes during the block."""

    def __init__(self, nodes: list[str], srun: list[str], message: dict[str, Any], *, log_file: Path) -> None:
        """Start srun, and send the first message to `node` on all nodes."""
        self._nodes, self._log = nodes, log_file
        with open(self._log, "w") as output:
            self._srun = subprocess.Popen(
                srun, stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT, text=True
            )
        self._send(message)

    def __enter__(self) -> "_OtherNodes":
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()
        for end in (self._srun.terminate, self._srun.kill):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._srun.wait(timeout=LEAVE_TIMEOUT_SECONDS)
                return
            end()

    def join(self) -> None:
        """Send the address of the head, and wait until all nodes have joined."""
        import ray

        self._send({"address": ray.get_runtime_context().gcs_address})
        deadline = time.monotonic() + JOIN_TIMEOUT_SECONDS
        while missing := missing_nodes(self._nodes):
            output = self._log.read_text(errors="replace")
            ended = [name for name in missing if f"{host.short_name(name)}: {RAY_ENDED}" in output]
            if ended or self._srun.poll() is not None or time.monotonic() > deadline:
                tail = "\n".join(output.splitlines()[-10:])
                raise UserError(f"Ray did not start on {', '.join(ended or missing)}; the end of {self._log}:\n{tail}")
            time.sleep(0.05)

    def leave(self) -> None:
        """Make the nodes stop their Ray, without waiting for it."""
        assert self._srun.stdin is not None
        with contextlib.suppress(OSError):  # srun has ended
            self._srun.stdin.close()

    def _send(self, message: dict[str, Any]) -> None:
        assert self._srun.stdin is not None
        with contextlib.suppress(OSError):  # srun has ended: join() reports its output
            print(json.dumps(message), file=self._srun.stdin, flush=True)


def _srun_line(nodes: list[str], command: list[str], *, cpus: int) -> list[str]:
    """The srun command that runs `command` once on each of these nodes, on this many CPUs."""
    return [
        "srun",
        *srun_options(nodes, cpus_per_task=cpus),
        "--no-kill",  # the failure of one node must not end the others
        "--kill-on-bad-exit=0",
        "--wait=0",
        "--label",
        *command,
    ]
