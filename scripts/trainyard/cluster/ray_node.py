"""One more node of a sweep's Ray, for as long as the driver holds the line: the other end of `ray_job`.

srun starts it on the nodes of a sweep's job, as `python scripts/trainyard cluster.ray_node`.
"""

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import psutil

from trainyard.cluster import host
from trainyard.cluster.held_folders import remove_copies_at_exit
from trainyard.cluster.ray_local import OBJECT_STORE_BYTES, private_directory, ray_environment

POLL_SECONDS: Final = 0.2
LOG_LINES: Final = 8
ENDED: Final = "Ray ended; its logs, if any, end:"
PR_SET_CHILD_SUBREAPER: Final = 36

# Imports Ray while the head starts, then is `ray start` with the arguments that it reads.
RAY: Final = """
import json, sys
from ray.scripts.scripts import start
start.main(json.loads(sys.stdin.readline()), prog_name="ray start")
"""


def join() -> int:
    """Be a node of the Ray whose driver is on standard input, and leave nothing behind when that ends."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a request to end goes through the clean-up, too
    first = json.loads(sys.stdin.readline() or "null")
    if first is None:
        return 0
    with (
        contextlib.suppress(KeyboardInterrupt),
        remove_copies_at_exit(first["local"]),
        private_directory() as directory,
        ray_environment(directory, token=first["token"], networked=True),
        _no_orphans(),
        subprocess.Popen([sys.executable, "-c", RAY], stdin=subprocess.PIPE, bufsize=0) as ray,
    ):
        try:
            second = json.loads(sys.stdin.readline() or "null")
            if second is None:
                return 0
            arguments = _start_arguments(directory, gpus=first["gpus"], cpus=first["cpus"], address=second["address"])
            with contextlib.suppress(BrokenPipeError):  # it has ended already
                assert ray.stdin is not None
                ray.stdin.write(f"{json.dumps(arguments)}\n".encode())
            while ray.poll() is None:
                if select.select([sys.stdin], [], [], POLL_SECONDS)[0]:  # nothing more is said: this is the end of it
                    return 0
            print(f"{host.node_name()}: {ENDED}\n{_tails(directory)}")
            return 1
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            ray.kill()
    return 0


def _start_arguments(directory: Path, *, gpus: int, cpus: int, address: str) -> list[str]:
    """Options of `ray start`: in the foreground, on every port a free one that the kernel chooses."""
    here = ["--address", address, "--node-ip-address", host.source_address(address.rpartition(":")[0])]
    shares = ["--num-gpus", str(gpus), "--num-cpus", str(cpus), "--object-store-memory", str(OBJECT_STORE_BYTES)]
    # The default range of the workers' ports is the same for every Ray on a node.
    ports = ["--min-worker-port", "0", "--max-worker-port", "0", "--dashboard-agent-listen-port", "0"]
    trimmed = ["--include-log-monitor", "false", "--disable-usage-stats", "--temp-dir", str(directory / "r")]
    return ["--block", *here, *shares, *ports, *trimmed]


@contextlib.contextmanager
def _no_orphans() -> Iterator[None]:
    """Adopt whatever outlives its parent within, and kill all descendants at the end."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield
    finally:
        while family := psutil.Process().children(recursive=True):
            for process in family:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            with contextlib.suppress(ChildProcessError):
                os.waitpid(-1, 0)


def _tails(directory: Path) -> str:
    """The last lines of the logs that say why Ray ended."""
    logs = sorted(directory.glob("r/session_*/logs/*.err")) + sorted(directory.glob("r/session_*/logs/raylet.out"))
    return "\n".join(line for path in logs for line in path.read_text(errors="replace").splitlines()[-LOG_LINES:])


if __name__ == "__main__":
    sys.exit(join())
