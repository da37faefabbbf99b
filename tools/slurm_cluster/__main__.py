"""Start, use and stop the test cluster from the command line.

    export PYTHONPATH=tools
    python -m slurm_cluster up                     # takes a few seconds
    python -m slurm_cluster run -- sbatch job.sh   # on its login node, in the current folder
    python -m slurm_cluster shell                  # a shell on that login node
    python -m slurm_cluster status
    python -m slurm_cluster down                   # leaves no process, namespace, mount or file

All files are in one state folder: $TRAINYARD_CLUSTER, by default /tmp/trainyard-cluster, with "-<site>" added
for all sites but the first.
"""

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from slurm_cluster.cluster import Cluster, ClusterError
from slurm_cluster.hosts import job_environment
from slurm_cluster.namespaces import CommandFailed
from slurm_cluster.prerequisites import PrerequisiteMissing
from slurm_cluster.site import FIRST, SITES


def main() -> int:
    """Run one action; returns the exit status."""
    arguments = _parser().parse_args()
    cluster = Cluster(arguments.state, site=SITES[arguments.site])
    try:
        return {"up": _up, "down": _down, "run": _run, "shell": _shell, "status": _status}[arguments.action](
            cluster, arguments
        )
    except (ClusterError, CommandFailed, PrerequisiteMissing, TimeoutError) as error:
        print(error, file=sys.stderr)
        return 1


def _up(cluster: Cluster, _: argparse.Namespace) -> int:
    start = time.monotonic()
    with cluster.exclusive():
        started = cluster.up()
    took = f"up in {time.monotonic() - start:.1f} s" if started else "already up"
    print(f"cluster {took}: hosts {', '.join(cluster.hosts)}; state and logs in {cluster.state}")
    return 0


def _down(cluster: Cluster, _: argparse.Namespace) -> int:
    start = time.monotonic()
    with cluster.exclusive():
        was_up = cluster.down()
    print(f"cluster down in {time.monotonic() - start:.1f} s" if was_up else "no cluster was up")
    return 0


def _run(cluster: Cluster, arguments: argparse.Namespace) -> int:
    argv = arguments.argv[1:] if arguments.argv[:1] == ["--"] else arguments.argv
    return _become(cluster, argv)


def _shell(cluster: Cluster, _: argparse.Namespace) -> int:
    print("shell on the head node of the cluster: try sinfo, squeue, sbatch, sacct; leave with exit", flush=True)
    return _become(cluster, [os.environ.get("SHELL", "/bin/bash")])


def _status(cluster: Cluster, _: argparse.Namespace) -> int:
    return _become(cluster, ["sh", "-c", "sinfo --long --Node; echo; squeue"])


def _become(cluster: Cluster, argv: Sequence[str]) -> int:
    """Replace this process by the command, which gets the terminal and the signals."""
    cluster.attach()
    command = cluster.command(argv)
    os.execvpe(command[0], command, job_environment())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m slurm_cluster", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--state", type=Path, help="the state folder, instead of $TRAINYARD_CLUSTER")
    parser.add_argument("--site", choices=SITES, default=FIRST.name, help="which site it is (default: %(default)s)")
    actions = parser.add_subparsers(dest="action", required=True)
    actions.add_parser("up", help="start the cluster unless it is up")
    actions.add_parser("down", help="stop it and remove all its files")
    actions.add_parser("shell", help="open a shell on its login node")
    actions.add_parser("status", help="show its hosts and its queue")
    runner = actions.add_parser("run", help="run a command on its login node, in this folder and environment")
    runner.add_argument("argv", nargs=argparse.REMAINDER, metavar="-- COMMAND ...")
    return parser


if __name__ == "__main__":
    sys.exit(main())
