"""Ray on one more node of a sweep's job, until the driver closes the connection: the counterpart of `start`.

srun starts it on the nodes of the job, as `python scripts/trainyard cluster.ray.node`.
"""

import contextlib
import json
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

from trainyard.cluster import host
from trainyard.cluster.gpus import run_mps
from trainyard.cluster.job_memory import record_memory
from trainyard.cluster.node_folders import copy_patterns, remove_copies_at_exit
from trainyard.cluster.ray.start import OBJECT_STORE_BYTES, RAY_ENDED, private_directory, ray_environment
from trainyard.cluster.ray.worker_parent import worker_parent
from trainyard.cluster.stop_request import STOP_SIGNALS
from trainyard.utils.environment_variables import environment_variables
from trainyard.utils.guarded_process import processes_ended
from trainyard.utils.import_path import SCRIPTS

STDIN_POLL_SECONDS: Final = 0.2
LOG_LINES: Final = 8

# Imports Ray while the head starts, then runs `ray start` with the arguments from standard input. Words that follow in
# its command line are the program that starts a worker.
RAY: Final = """
import json, sys
sys.path.insert(0, sys.argv[1])
from ray.scripts.scripts import start
from trainyard.cluster.ray.patches import trimmed_ray_init
with trimmed_ray_init(sys.argv[2:]):
    start.main(json.loads(sys.stdin.readline()), prog_name="ray start")
"""


def run_node() -> int:
    """Run Ray for the driver at standard input until that closes, then remove all processes and files."""
    # The driver, which has got the same signal, ends this when the trials have saved their state.
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    first = json.loads(sys.stdin.readline() or "null")
    if first is None:
        return 0
    with (
        contextlib.suppress(KeyboardInterrupt),
        remove_copies_at_exit(first["local"]),
        record_memory(Path(first["memory"]["folder"]), processes=first["memory"]["processes"]),
        private_directory() as directory,
        ray_environment(directory, token=first["token"], networked=True),
        processes_ended(folders=[str(directory), *copy_patterns(first["local"])]) as mark,
        environment_variables(mark),
        run_mps(first["mps"]),
        worker_parent(**first["workers"]) if first["workers"] else contextlib.nullcontext() as parent,
        subprocess.Popen(
            [sys.executable, "-c", RAY, str(SCRIPTS), *(parent.serve(directory) if parent else ())],
            stdin=subprocess.PIPE,
            bufsize=0,
        ) as ray,
    ):
        try:
            second = json.loads(sys.stdin.readline() or "null")
            if second is None:
                return 0
            arguments = start_arguments(directory, gpus=first["gpus"], cpus=first["cpus"], address=second["address"])
            with contextlib.suppress(BrokenPipeError):  # Ray has ended
                assert ray.stdin is not None
                ray.stdin.write(f"{json.dumps(arguments)}\n".encode())
            while ray.poll() is None:
                if select.select([sys.stdin], [], [], STDIN_POLL_SECONDS)[0]:  # readable: standard input is closed
                    return 0
            print(f"{host.node_name()}: {RAY_ENDED}\n{_tails(directory)}")
            return 1
        finally:
            ray.kill()
    return 0


def start_arguments(directory: Path, *, gpus: int, cpus: int, address: str) -> list[str]:
    """Options of `ray start`: in the foreground, with free ports that the kernel chooses."""
    head = address.rpartition(":")[0].strip("[]")  # an address of IPv6 is in brackets
    options = ["--node-name", host.node_name(), "--address", address, "--node-ip-address", host.source_address(head)]
    resources = ["--num-gpus", str(gpus), "--num-cpus", str(cpus), "--object-store-memory", str(OBJECT_STORE_BYTES)]
    # By default, every Ray instance on a node has the same range of worker ports.
    ports = ["--min-worker-port", "0", "--max-worker-port", "0", "--dashboard-agent-listen-port", "0"]
    trimmed = ["--include-log-monitor", "false", "--disable-usage-stats", "--temp-dir", str(directory / "r")]
    return ["--block", *options, *resources, *ports, *trimmed]


def _tails(directory: Path) -> str:
    """The last lines of the logs that explain why Ray ended."""
    logs = sorted(directory.glob("r/session_*/logs/*.err")) + sorted(directory.glob("r/session_*/logs/raylet.out"))
    return "\n".join(line for path in logs for line in path.read_text(errors="replace").splitlines()[-LOG_LINES:])


if __name__ == "__main__":
    sys.exit(run_node())
