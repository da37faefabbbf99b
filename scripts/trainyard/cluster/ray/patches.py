"""Patches of private parts of Ray that let it start sooner. No other file patches Ray.

A sweep needs neither an API server nor an autoscaler nor Ray's agents. `TRAINYARD_FAST_START=0` in the environment
turns all patches off. They apply only to the releases in `TESTED`: another Ray starts unpatched, which is slower. To
add a release, list it and run test_patches.py.

The gains in the docstrings were measured with Ray 2.60.0 on two CPU cores with a warm page cache.
"""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

SWITCH: Final = "TRAINYARD_FAST_START"
TESTED: Final = ("2.60",)  # releases of Ray, as major.minor
REGISTRATION_TIMEOUT_SECONDS: Final = 60.0
# A program that waits until the raylet that started it has ended. Then its parent is init, or a process that adopts.
WAITING: Final = """import os, time
while os.getppid() == int(os.environ["RAY_RAYLET_PID"]):
    time.sleep(0.5)
"""
CLOSED_PORT: Final = 1  # only root could listen there


def is_enabled() -> bool:
    """Whether the patches apply: not turned off, and written for this release of Ray."""
    import ray

    return os.environ.get(SWITCH) != "0" and ray.__version__.rpartition(".")[0] in TESTED


@contextlib.contextmanager
def trimmed_ray_init(worker_program: Sequence[str] = ()) -> Iterator[None]:
    """Within the block, Ray starts only the processes that a sweep uses. Ray has no public option for these.

    On an idle machine, `ray.init` took 4.2 s with none and 1.3 s with the first three, and takes 0.3 s with all of
    them; on a busy one 7 to 11 s, 3.2 s and 0.6 s:

    - No API server, which starts although the dashboard is off: 1.4 s less.
    - No monitor (autoscaler) and no log monitor: 0.6 s less.
    - The registration of the node is polled every 20 ms instead of every second: 0.5 s less on average.
    - No dashboard agent and no agent of runtime environments, for which the raylet waits before it registers the node.

    With a `worker_program`, the raylet runs it to start a worker, with the worker's command line as arguments, in place
    of Ray's own: that imports Ray, prepares a runtime environment, which sweeps do not have, and executes a program
    that imports Ray again.
    """
    from ray._private import node, services, worker

    if not is_enabled():
        yield
        return
    replacements: list[tuple[Any, str, Callable[..., Any]]] = [
        (node.Node, "start_api_server", _do_nothing),
        (node.Node, "start_monitor", _do_nothing),
        (node.Node, "start_log_monitor", _do_nothing),
        # Not for speed: it prints a paragraph to stdout for each dead worker; the exception carries the same text.
        (worker, "listen_error_messages", _do_nothing),
        (services, "get_node", _polling_faster(services.get_node)),
        (services, "start_ray_process", _trimmed(services.start_ray_process, worker_program)),
    ]
    originals = [(owner, name, vars(owner)[name]) for owner, name, _ in replacements]
    for owner, name, replacement in replacements:
        setattr(owner, name, replacement)
    try:
        yield
    finally:
        for owner, name, original in originals:
            setattr(owner, name, original)


def _do_nothing(*_args: object, **_options: object) -> None:
    pass


def _polling_faster(get_node: Callable[[str, str], Any]) -> Callable[[str, str], Any]:
    """Ray's `get_node`, called once the node is registered."""
    from ray._raylet import GcsClient  # type: ignore[attr-defined]  # a compiled module

    def get_registered_node(gcs_address: str, node_id: str) -> Any:
        with contextlib.suppress(Exception):  # the original polls on, and reports what is wrong
            client = GcsClient(address=gcs_address)
            deadline = time.monotonic() + REGISTRATION_TIMEOUT_SECONDS
            while time.monotonic() < deadline:
                if any(known.hex() == node_id for known in client.get_all_node_info(timeout=5)):
                    break
                time.sleep(0.02)
        return get_node(gcs_address, node_id)

    return get_registered_node


def _trimmed(start_process: Callable[..., Any], worker_program: Sequence[str]) -> Callable[..., Any]:
    """Ray's `start_ray_process`, whose raylet has agents that do nothing: it ends when one of them does.

    The agents serve the dashboard, metrics and jobs, and install runtime environments. They take 1.2 s of CPU time.
    """

    def start(command: list[str], process_type: str, *arguments: Any, **options: Any) -> Any:
        if process_type == "raylet":
            command = [*(_trimmed_option(word, worker_program) for word in command)]
            command.append(f"--dashboard_agent_listen_port={CLOSED_PORT}")
        return start_process(command, process_type, *arguments, **options)

    return start


def _trimmed_option(option: str, worker_program: Sequence[str]) -> str:
    """The same option of a raylet, but for its agents' commands and ports, and for the program that starts a worker."""
    import ray

    name, _, value = option.partition("=")
    if name in ("--dashboard_agent_command", "--runtime_env_agent_command"):
        value = subprocess.list2cmdline([sys.executable, "-I", "-S", "-c", WAITING, f"in place of {name[2:-8]}"])
    elif name in ("--metrics-agent-port", "--metrics_export_port", "--runtime_env_agent_port"):
        value = str(CLOSED_PORT)
    elif name == "--python_worker_command" and worker_program:
        of_ray = [sys.executable, str(Path(ray.__file__).with_name("_private") / "workers" / "setup_worker.py")]
        value = value.replace(subprocess.list2cmdline(of_ray), subprocess.list2cmdline(worker_program), 1)
    return f"{name}={value}" if value else option
