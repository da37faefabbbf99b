"""Ray on all nodes of a Slurm job: the node of the driver is the head, and one srun starts Ray on the others.

On each of the others, srun runs `ray_node` and connects its standard input to the driver. The token comes first, so
that the node imports Ray while the head starts, then the address of the head. When the input closes, which happens
however the driver ends, the node stops its Ray. The token is on no shared file system, in no command line, and in no
environment variable.
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
from trainyard.cluster.ray_local import RunningRay, local_ray, token
from trainyard.cluster.ray_node import RAY_ENDED
from trainyard.cluster.srun import srun_options
from trainyard.cluster.worker_parent import WorkerParent
from trainyard.config.sweep import Slots
from trainyard.utils.errors import UserError
from trainyard.utils.import_path import helper_command

JOIN_TIMEOUT_SECONDS = 120  # loading Python from a cold shared file system may take a minute
LEAVE_TIMEOUT_SECONDS = 8  # then srun gets SIGTERM, and later SIGKILL: a dead node never answers
log = logging.getLogger(__name__)


@contextlib.contextmanager
def start_ray(
    slots: Slots, *, folder: Path, local: str, processes: int = 1, parent: WorkerParent | None = None
) -> Iterator[RunningRay]:
    """Run a private Ray with all slots, on this machine or on several nodes of this job.

    Workers are forked from `parent`, and on the other nodes from a similar process.

    The output of the other nodes is written to `ray-nodes.log` in `folder`, and their memory is recorded there, by
    `processes` per node; `local` is `data.local` of the config.

    Raises:
        UserError: the job has a different number of nodes or too few GPUs, or a node is not reached or does not join.
    """
    gpus, cpus, cleanup = slots.gpus_per_node, slots.cpus_per_node, copy_patterns(local)
    if slots.nodes == 1:
        with local_ray(gpus=gpus, cpus=cpus, cleanup=cleanup, parent=parent) as running:
            yield running
        return
    given = _check_allocation(slots)
    others = [name for name in given.nodes if host.short_name(name) != host.node_name()]
    srun = _srun_line(others, helper_command("cluster.ray_node"), cpus=given.cpus_per_node)
    try:
        address = host.source_address(others[0])
    except OSError as error:
        remedy = f"`getent hosts {others[0]}` must print an address on all nodes: ask the site's administrators"
        raise UserError(f"{host.node_name()} does not reach {others[0]}: {error}; {remedy}") from None
    with (
        _OtherNodes(others, srun, folder, slots=slots, local=local, processes=processes, parent=parent) as nodes,
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


def _check_allocation(slots: Slots) -> slurm_allocation.Allocation:
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


class _OtherNodes:
    """The srun that runs Ray on the other nodes during the block."""

    def __init__(
        self,
        nodes: list[str],
        srun: list[str],
        folder: Path,
        *,
        slots: Slots,
        local: str,
        processes: int,
        parent: WorkerParent | None,
    ) -> None:
        self._nodes, self._log = nodes, folder / "ray-nodes.log"
        with open(self._log, "w") as output:
            self._srun = subprocess.Popen(
                srun, stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT, text=True
            )
        memory = {"folder": str(folder.absolute()), "processes": processes}
        resources = {"gpus": slots.gpus_per_node, "cpus": slots.cpus_per_node, "mps": slots.uses_mps}
        workers = {"modules": parent.modules, "threads": parent.threads} if parent else None
        self._send({"token": token(), **resources, "local": local, "memory": memory, "workers": workers})

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
        while missing := self._missing():
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

    def _missing(self) -> list[str]:
        import ray

        known: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
        joined = {node["NodeName"] for node in known if node["Alive"]}  # as `ray_node` names them
        return [name for name in self._nodes if host.short_name(name) not in joined]

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
