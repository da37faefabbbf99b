"""Run a command and record the telemetry of its node: wraps the launcher of a user's script, once per node.

With --rendezvous, it wraps the script itself, once per GPU, and sets the variables that torchrun would set.
`user_script` starts it as `python scripts/trainyard scaling.watch`.
"""

import argparse
import os
import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path

import psutil

from trainyard.cluster import host
from trainyard.packing import gpu_sharing
from trainyard.scaling.launchers import NODE_RANK
from trainyard.scaling.notices import forward_to_launched

# Variables that torchrun sets for a rank, and the suffixes of Slurm's names for them.
RANKS = {"RANK": "PROCID", "LOCAL_RANK": "LOCALID", "WORLD_SIZE": "NTASKS", "LOCAL_WORLD_SIZE": "NTASKS_PER_NODE"}


def main() -> int:
    """Run the command; returns its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, metavar="DIR", help="folder for the telemetry")
    parser.add_argument(
        "--seconds", type=float, default=5.0, metavar="S", help="interval of the telemetry (default: 5)"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace the telemetry of previous runs")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="CPU threads per process")
    parser.add_argument("--rendezvous", metavar="HOST:PORT", help="run once per GPU; the address of the rendezvous")
    parser.add_argument("command", nargs="+", help="command to run, after --")
    arguments = parser.parse_args()
    line = [word.replace(NODE_RANK, os.environ.get("SLURM_NODEID", "0")) for word in arguments.command]
    process = subprocess.Popen(line, env=os.environ | _environment(arguments))
    forward_to_launched(process, through_srun=False)
    if arguments.rendezvous and os.environ.get("SLURM_LOCALID", "0") != "0":
        return process.wait()  # local rank 0 records the telemetry of this node
    ended = threading.Event()
    sampler = threading.Thread(target=_sample, args=(arguments, ended))
    sampler.start()
    code = process.wait()
    ended.set()
    sampler.join()
    return code


def _sample(arguments: argparse.Namespace, ended: threading.Event) -> None:
    """Record telemetry until the command ends. The ranks of a node are its descendants, with srun its siblings."""
    from trainyard.training.telemetry import record_telemetry  # imports torch while the command starts

    me = psutil.Process()
    root = (me.parent() if arguments.rendezvous else None) or me
    with ExitStack() as stack:
        node = host.node_name()
        stack.enter_context(
            record_telemetry(
                arguments.folder, node, seconds=arguments.seconds, overwrite=arguments.overwrite, root=root
            )
        )
        ended.wait()


def _environment(arguments: argparse.Namespace) -> dict[str, str]:
    """Environment variables added for the command."""
    given = {"OMP_NUM_THREADS": str(arguments.threads)}
    if not gpu_sharing.has_gpu():
        given |= {"ACCELERATE_USE_CPU": "true", "DS_ACCELERATOR": "cpu"}
    if arguments.rendezvous:
        address, _, port = arguments.rendezvous.partition(":")
        given |= {name: os.environ[f"SLURM_{of_slurm}"] for name, of_slurm in RANKS.items()}
        given |= {"MASTER_ADDR": address, "MASTER_PORT": port}
    return given


if __name__ == "__main__":
    sys.exit(main())
