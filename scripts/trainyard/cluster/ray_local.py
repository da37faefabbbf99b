"""A private Ray instance on this machine for one driver program, removed completely when the driver ends."""

import contextlib
import dataclasses
import functools
import logging
import os
import secrets
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from trainyard.cluster import held_folders
from trainyard.utils.fast_start import trimmed_ray_init

# A Unix socket path holds 107 characters, and "/r/session_<date>_<time>_<pid>/sockets/plasma_store" has 66 of them.
LONGEST_DIRECTORY: Final = 38
# Trials get their data by path: the object store carries only what is too big for a message. Ray's minimum is 75 MiB.
OBJECT_STORE_BYTES: Final = 80 * 1024 * 1024

ENVIRONMENT: Final[Mapping[str, str | None]] = {  # None: must not be set
    "RAY_ADDRESS": None,
    "RAY_TMPDIR": None,
    "RAY_AUTH_TOKEN": None,
    "RAY_AUTH_MODE": "token",  # without a token anyone who reaches the port runs code as this user
    "RAY_USAGE_STATS_ENABLED": "0",
    # The monitor judges the whole machine and kills the newest worker; the job's memory limit is Slurm's business.
    "RAY_memory_monitor_refresh_ms": "0",
    # Otherwise the driver's connection waits for `cpus` idle workers, and for ever if one of them dies at birth.
    "RAY_prestart_worker_first_driver": "0",
    # Loopback only: unset, every Ray process listens on all interfaces (`_node_ip_address="127.0.0.1"` is ignored).
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    # It would kill the guards of users' programs, which are nobody's children.
    "RAY_kill_child_processes_on_worker_exit_with_raylet_subreaper": "0",
    # Ray's coming default; unset, it warns about it on stderr.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class LocalRay:
    """A running local Ray, as its driver sees it."""

    directory: Path
    startup_seconds: dict[str, float]


@contextlib.contextmanager
def local_ray(*, gpus: int, cpus: int, address: str | None = None, litter: Sequence[str] = ()) -> Iterator[LocalRay]:
    """Run Ray on this machine with so many GPU and CPU slots; on leaving, no process and no file of it remains.

    With an `address` of this host, it listens there instead of on loopback only, and nodes with the token can join.
    Call it from the main thread: Ray's daemons carry PR_SET_PDEATHSIG, which fires when the *thread* that started them
    ends. That signal and a watchdog take everything down when the driver is killed with SIGKILL, also the folders
    that match the patterns of `litter`.
    `cpus` also bounds how many workers start at once: make it at least the number of actors.
    Import Ray nowhere before this: its C++ part reads the environment while it is imported.
    """
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError("start the local Ray from the main thread, or it ends with the thread that started it")
    seconds: dict[str, float] = {}
    with contextlib.ExitStack() as stack:
        directory = stack.enter_context(private_directory())
        protect = stack.enter_context(_watchdog(directory=directory, litter=litter))
        stack.enter_context(ray_environment(directory, token=token(), networked=address is not None))
        with _timed(into=seconds, name="import_ray_seconds"):
            import ray
        stack.callback(ray.shutdown)
        with _timed(into=seconds, name="ray_init_seconds"), trimmed_ray_init():
            ray.init(
                address="local",  # anything else may join a cluster that an earlier job left behind
                num_gpus=gpus,
                num_cpus=cpus,
                object_store_memory=OBJECT_STORE_BYTES,
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
                _node_ip_address=address,
                _temp_dir=str(directory / "r"),  # Ray opens its own directory to everybody; its parent stays 0700
            )
        protect()
        yield LocalRay(directory=directory, startup_seconds=seconds)


@contextlib.contextmanager
def _timed(*, into: dict[str, float], name: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    into[name] = time.perf_counter() - start


def private_directory() -> contextlib.AbstractContextManager[Path]:
    """A short directory on this node for Ray's files, that only this user can enter."""
    return held_folders.private_folder("ty-ray-", max_path_length=LONGEST_DIRECTORY)


@contextlib.contextmanager
def _watchdog(*, directory: Path, litter: Sequence[str]) -> Iterator[Callable[[], None]]:
    """Have a shell clean up when this program dies without doing so: it notices the end of the pipe to it.

    The kernel takes Ray's two daemons down with the driver, and the workers follow in 1.6 s, but Ray's two agents
    stay for 62 s, trying to report the death to the server that died with it. Yields what tells it of these processes:
    of those that were started since, as the srun that has other nodes join must live to tell them of the end.
    """
    import psutil  # a requirement or a part of every Ray

    others = psutil.Process().children()
    script = """trap "" TERM
        while read -r pid; do daemons="$daemons $pid"; done
        kill -9 $daemons 2>/dev/null; sleep 1
        rm -rf "$0"; IFS=""; for pattern in "$@"; do rm -rf $pattern; done"""
    with subprocess.Popen(
        ["/bin/sh", "-c", script, str(directory), *litter], stdin=subprocess.PIPE, start_new_session=True, text=True
    ) as watchdog:
        pipe = watchdog.stdin
        assert pipe is not None

        def protect() -> None:
            new = [child for child in psutil.Process().children() if child not in others and child.pid != watchdog.pid]
            family = [*new, *(grandchild for child in new for grandchild in child.children(recursive=True))]
            print(*(process.pid for process in family), sep="\n", file=pipe, flush=True)

        try:
            yield protect
        finally:
            watchdog.kill()


@functools.cache
def token() -> str:
    """One token for the life of this process: Ray's C++ part reads the file once, and never again."""
    return secrets.token_hex(32)


@contextlib.contextmanager
def ray_environment(directory: Path, *, token: str, networked: bool) -> Iterator[None]:
    """What Ray, imported within, reads from the environment; the token is in a file that only this user can read."""
    path = directory / "token"
    with os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as file:
        file.write(token)
    wanted = {**ENVIRONMENT, "RAY_AUTH_TOKEN_PATH": str(path)}
    if networked:  # this one would shut the other nodes out
        wanted["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = None
    before = {name: os.environ.get(name) for name in wanted}
    _set_environment(wanted)
    try:
        yield
    finally:
        _set_environment(before)


def _set_environment(variables: Mapping[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
