"""What the doctor's job has found, as it passes through files from the nodes to the login node."""

import contextlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from trainyard.utils.files import write_json

NONCE, LOCK, LOG = "nonce.json", "lock", "job.log"  # files of the job, besides the reports


@dataclass
class NodeReport:
    """What a step of the job found on one node."""

    node: str
    python: str  # version
    nonce: str = ""  # as the node reads it from the shared folder
    lock: str = ""  # the error of the lock that the login node holds; "" if the node could take it
    lock_held: bool = False  # whether that error is that another process holds the lock
    tmp: str = ""  # the temporary folder
    tmp_gib: float = 0.0  # free there
    tmp_executes: bool = False  # whether programs can be executed there
    cpus: int = 0  # that a step can use
    machine_cpus: int = 0
    driver: str = ""  # NVIDIA's
    torch: str = ""  # version
    cuda: str | None = None  # version that torch is built for
    ray: str = ""  # version
    devices: list[str] = field(default_factory=list)  # GPUs on which torch computes
    device_error: str = ""  # of the first GPU on which it does not
    import_error: str = ""

    def write(self, folder: Path) -> None:
        """Write it as one of the reports of a job."""
        write_json(folder / f"node-{self.node}.json", asdict(self))


@dataclass
class JobReport:
    """What the job's first node found out about the job as a whole, as far as it got."""

    allocation: str = ""  # the job, its nodes and its resources
    slurm_error: str = ""  # why `allocation` is empty
    nodes: list[str] = field(default_factory=list)
    cpus_per_node: int = 0
    gpus_per_node: int = 0
    step_error: str = ""  # the end of the output of a step that failed on a node
    meeting: dict[str, str] = field(default_factory=dict)  # the address, and the backends that reduced
    meeting_error: str = ""
    ray: str = ""  # where Ray ran, and how long its start took
    ray_error: str = ""
    has_ended: bool = False

    def write(self, folder: Path) -> None:
        """Write it, replacing an earlier version."""
        write_json(folder / "job.json", asdict(self))


def read_job(folder: Path) -> JobReport | None:
    """The report about the job; None if there is none."""
    with contextlib.suppress(OSError, ValueError):
        return JobReport(**json.loads((folder / "job.json").read_text()))
    return None


def read_nodes(folder: Path) -> Iterator[NodeReport]:
    """The reports about the nodes."""
    for path in sorted(folder.glob("node-*.json")):
        with contextlib.suppress(OSError, ValueError):
            yield NodeReport(**json.loads(path.read_text()))
