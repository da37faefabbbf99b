"""Ray over all nodes of a Slurm job: the driver's node is the head, the others join it through one srun."""

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from trainyard import slurm
from trainyard.config import Slots
from trainyard.errors import UserError
from trainyard.raycluster import OBJECT_STORE_BYTES, LocalRay, Network, local_ray

JOIN_TIMEOUT_SECONDS = 120  # a cold shared file system may take a minute to give each node its Python


@contextlib.contextmanager
def ray_for(slots: Slots, *, folder: Path) -> Iterator[LocalRay]:
    """A private Ray with all slots: on this machine, or on as many nodes of this job.

    `folder` lies on the shared file system: what the nodes say goes there, and for as long as Ray runs the token.

    Raises:
        UserError: the job has another number of nodes, or one of them does not join.
    """
    gpus, cpus = slots.gpus_per_node, slots.per_node * slots.cpus_per_trial
    if slots.nodes == 1:
        with local_ray(gpus=gpus, cpus=cpus) as cluster:
            yield cluster
        return
    others = _other_nodes(slots.nodes)
    network = Network(address=slurm.address_towards(others[0]), shared=folder)
    with local_ray(gpus=gpus, cpus=cpus, network=network) as cluster, _joined(others, gpus, cpus, cluster, folder):
        yield cluster


def _other_nodes(wanted: int) -> list[str]:
    """The job's nodes but this one."""
    given = slurm.allocation()
    if given is None or len(given.nodes) != wanted:
        held = "this is not a Slurm job" if given is None else f"the job has {len(given.nodes)}"
        raise UserError(f"the sweep needs {wanted} nodes, but {held}: run it with `snakemake --profile profiles/slurm`")
    return [name for name in given.nodes if name.split(".")[0] != slurm.node_name()]


@contextlib.contextmanager
def _joined(nodes: list[str], gpus: int, cpus: int, cluster: LocalRay, folder: Path) -> Iterator[None]:
    """Have these nodes join for the length of the block; what they print is in `ray-nodes.log` of `folder`."""
    import ray

    began = time.perf_counter()
    log = folder / "ray-nodes.log"
    everywhere = _on_each(nodes)
    start = _start_command(gpus, cpus, address=ray.get_runtime_context().gcs_address)
    with open(log, "w") as output:
        srun = subprocess.Popen(
            [*everywhere, *start], stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        )
    try:
        _wait_for_nodes(nodes, srun, log)
        cluster.startup_seconds["join_nodes_seconds"] = time.perf_counter() - began
        yield
    finally:
        srun.terminate()  # which srun passes on to every node
        with contextlib.suppress(subprocess.TimeoutExpired):
            srun.wait(timeout=15)
            subprocess.run([*everywhere, "rm", "-rf", str(cluster.directory)], timeout=15, check=False)


def _on_each(nodes: list[str]) -> list[str]:
    """What runs a command once on each node. `--overlap`: the driver may be in a step that holds their resources."""
    count = str(len(nodes))
    return [
        "srun",
        "--overlap",
        "--nodes",
        count,
        "--ntasks",
        count,
        "--ntasks-per-node",
        "1",
        "--nodelist",
        ",".join(nodes),
    ]


def _start_command(gpus: int, cpus: int, *, address: str) -> list[str]:
    """Ray on one more node, in the foreground, with this share of it to hand out."""
    start = [str(Path(sys.executable).with_name("ray")), "start", "--block", "--address", address]
    shares = ["--num-gpus", str(gpus), "--num-cpus", str(cpus), "--object-store-memory", str(OBJECT_STORE_BYTES)]
    return [*start, *shares, "--include-log-monitor", "false", "--disable-usage-stats"]


def _wait_for_nodes(nodes: list[str], srun: "subprocess.Popen[bytes]", log: Path) -> None:
    import ray

    deadline = time.monotonic() + JOIN_TIMEOUT_SECONDS
    while True:
        known = ray.nodes()  # type: ignore[no-untyped-call]
        here = {node["NodeManagerHostname"].split(".")[0] for node in known if node["Alive"]}
        missing = [name for name in nodes if name.split(".")[0] not in here]
        if not missing:
            return
        if srun.poll() is not None or time.monotonic() > deadline:
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-5:])
            raise UserError(f"Ray did not start on {', '.join(missing)}; the end of {log}:\n{tail}")
        time.sleep(0.1)
