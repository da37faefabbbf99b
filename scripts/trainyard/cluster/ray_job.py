"""Ray over all nodes of a Slurm job: the driver's node is the head, the others join it through one srun.

On each of the others srun runs `ray_node`. Its standard input is the line to the driver: the token comes first,
so that Ray is being imported there while the head starts; then the head's address; and its end, whatever the end of
the driver was, takes the node's Ray down. The token is on no shared file system, in no command line, and in no
environment.
"""

import contextlib
import json
import logging
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trainyard.cluster import host, slurm_allocation
from trainyard.cluster.held_folders import copy_patterns
from trainyard.cluster.ray_local import LocalRay, local_ray, token
from trainyard.cluster.ray_node import ENDED
from trainyard.config.sweep import Slots
from trainyard.utils.errors import UserError
from trainyard.utils.import_path import helper_command

JOIN_TIMEOUT_SECONDS = 120  # a cold shared file system may take a minute to give each node its Python
LEAVE_TIMEOUT_SECONDS = 8  # then srun is told to end, and after as long again killed: a dead node never answers
log = logging.getLogger(__name__)


@contextlib.contextmanager
def ray_for(slots: Slots, *, folder: Path, local: str) -> Iterator[LocalRay]:
    """A private Ray with all slots: on this machine, or on as many nodes of this job.

    What the other nodes say goes to `ray-nodes.log` in `folder`; `local` is the config's `data.local`.

    Raises:
        UserError: the job has another number of nodes, or too few GPUs, or one of the nodes does not join.
    """
    gpus, cpus, litter = slots.gpus_per_node, slots.cpus_per_node, copy_patterns(local)
    if slots.nodes == 1:
        with local_ray(gpus=gpus, cpus=cpus, litter=litter) as cluster:
            yield cluster
        return
    others = _other_nodes(slots)
    address = host.source_address(others[0])
    with (
        _Joining(others, gpus=gpus, cpus=cpus, local=local, log=folder / "ray-nodes.log") as joining,
        local_ray(gpus=gpus, cpus=cpus, address=address, litter=litter) as cluster,
    ):
        try:
            began = time.perf_counter()
            joining.meet()
            cluster.startup_seconds["join_nodes_seconds"] = time.perf_counter() - began
            log.info("Ray is up on %d nodes after %.1f s", slots.nodes, sum(cluster.startup_seconds.values()))
            yield cluster
        finally:
            joining.dismiss()  # they end while this node's Ray does


def _other_nodes(slots: Slots) -> list[str]:
    """The job's nodes but this one."""
    given = slurm_allocation.current_allocation()
    if given is None or len(given.nodes) != slots.nodes:
        held = "this is not a Slurm job" if given is None else f"the job has {len(given.nodes)}"
        raise UserError(
            f"the sweep needs {slots.nodes} nodes, but {held}: run it with `snakemake --profile profiles/slurm`"
        )
    if 0 < given.gpus_per_node < slots.gpus_per_node:  # without GPUs they are only counted
        raise UserError(f"the sweep needs {slots.gpus_per_node} GPUs a node, but the job has {given.gpus_per_node}")
    return [name for name in given.nodes if name.split(".")[0] != host.node_name()]


class _Joining:
    """The srun that has the other nodes join, for the length of the block."""

    def __init__(self, nodes: list[str], *, gpus: int, cpus: int, local: str, log: Path) -> None:
        self._nodes, self._log = nodes, log
        with open(log, "w") as output:
            self._srun = subprocess.Popen(
                _srun_line(nodes, helper_command("cluster.ray_node")),
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
            )
        self._say({"token": token(), "gpus": gpus, "cpus": cpus, "local": local})

    def __enter__(self) -> "_Joining":
        return self

    def __exit__(self, *_: object) -> None:
        self.dismiss()
        for end in (self._srun.terminate, self._srun.kill):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._srun.wait(timeout=LEAVE_TIMEOUT_SECONDS)
                return
            end()

    def meet(self) -> None:
        """Tell the nodes where the head is, and wait until they are all there."""
        import ray

        self._say({"address": ray.get_runtime_context().gcs_address})
        deadline = time.monotonic() + JOIN_TIMEOUT_SECONDS
        while missing := self._missing():
            said = self._log.read_text(errors="replace")
            ended = [name for name in missing if f"{name.split('.')[0]}: {ENDED}" in said]
            if ended or self._srun.poll() is not None or time.monotonic() > deadline:
                tail = "\n".join(said.splitlines()[-10:])
                raise UserError(f"Ray did not start on {', '.join(ended or missing)}; the end of {self._log}:\n{tail}")
            time.sleep(0.05)

    def dismiss(self) -> None:
        """Have the nodes take their Ray down; does not wait for it."""
        assert self._srun.stdin is not None
        with contextlib.suppress(OSError):  # srun has ended already
            self._srun.stdin.close()

    def _missing(self) -> list[str]:
        import ray

        known: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
        here = {node["NodeManagerHostname"].split(".")[0] for node in known if node["Alive"]}
        return [name for name in self._nodes if name.split(".")[0] not in here]

    def _say(self, message: dict[str, Any]) -> None:
        assert self._srun.stdin is not None
        with contextlib.suppress(OSError):  # srun has ended: meet() tells what it said
            print(json.dumps(message), file=self._srun.stdin, flush=True)


def _srun_line(nodes: list[str], command: list[str]) -> list[str]:
    """What runs a command once on each of these nodes, with all that the job has there."""
    count = str(len(nodes))
    where = ["--nodes", count, "--ntasks", count, "--ntasks-per-node", "1", "--nodelist", ",".join(nodes)]
    return [
        "srun",
        "--overlap",  # the driver may be in a step that holds the nodes' resources
        *where,
        "--export=ALL",  # the job may have been submitted without its environment
        "--cpu-bind=none",  # one task would otherwise be bound to one CPU
        "--no-kill",  # a node that dies, or whose Ray does, must not take the others along
        "--kill-on-bad-exit=0",
        "--wait=0",
        "--label",
        *command,
    ]
