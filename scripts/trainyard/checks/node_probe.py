"""The programs of the doctor's job: one for the job, one for each node, and one for each rank that meets the others.

They run as `python scripts/trainyard checks.node_probe job|node|rank FOLDER`, and write reports into the folder.
"""

import argparse
import contextlib
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from trainyard.cluster import host, slurm_allocation
from trainyard.cluster.job_step import srun_options
from trainyard.cluster.slurm_allocation import Allocation
from trainyard.planning.claims import ClaimLog
from trainyard.utils.errors import UserError
from trainyard.utils.files import write_json
from trainyard.utils.import_path import SCRIPTS, helper_command
from trainyard.utils.locks import LockHeldError, hold
from trainyard.utils.text import describe_exit

NONCE, LOCK, LOG = "nonce.json", "lock", "job.log"  # files of the job, besides the reports
STEP_SECONDS = 150  # for a step; Python, torch and Ray may come from a slow file system
LAST_CHARACTERS = 600  # of the output of a step that fails
NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")
MEETING = "meeting.json"


@dataclass
class NodeReport:
    """What a step of the job found on one node."""

    node: str
    python: str  # version
    nonce: str = ""  # as the node reads it from the shared folder
    lock: str = ""  # the error of the lock that the login node holds; "" if the node could take it
    lock_held: bool = False  # whether that error is that another process holds the lock
    claims: str = ""  # what is wrong with claims on the shared file system, as jobs of a sweep make them; "" if nothing
    tmp: str = ""  # the temporary folder
    tmp_gib: float = 0.0  # free there
    tmp_executes: bool = False  # whether programs can be executed there
    cpus: int = 0  # that a step can use
    machine_cpus: int = 0
    driver: str = ""  # NVIDIA's
    torch: str = ""  # version; "" without the extra `train`
    cuda: str | None = None  # version that torch is built for
    ray: str = ""  # version
    devices: list[str] = field(default_factory=list)  # GPUs on which torch computes
    device_error: str = ""  # of the first GPU on which it does not
    import_error: str = ""

    @property
    def lacks_torch(self) -> bool:
        """Whether torch is not installed, which only Trainyard's own trainings need."""
        return not self.torch and not self.import_error


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


# ---- the programs


def main() -> None:
    """Run one of the programs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program", choices=["job", "node", "rank"])
    parser.add_argument("folder", type=Path)
    arguments, _ = parser.parse_known_args()
    {"job": probe_job, "node": probe_node, "rank": meet_others}[arguments.program](arguments.folder)


# ---- the job


def probe_job(folder: Path) -> None:
    """Check the nodes, make them meet, and start Ray; the report is written after each of these."""
    report = JobReport()
    try:
        allocation = slurm_allocation.current_allocation()
        assert allocation is not None, "SLURM_JOB_ID is not set"
    except (UserError, AssertionError) as error:
        report.slurm_error = str(error)
        report.write(folder)
        return
    report.allocation, report.nodes = str(allocation), list(allocation.nodes)
    report.cpus_per_node, report.gpus_per_node = allocation.cpus_per_node, allocation.gpus_per_node
    report.write(folder)
    for stage in (_probe_nodes, _let_nodes_meet, _start_ray):
        try:
            stage(allocation, report, folder)
        finally:
            report.write(folder)
    report.has_ended = True
    report.write(folder)


def _probe_nodes(allocation: Allocation, report: JobReport, folder: Path) -> None:
    """Run a step on every node: as Snakemake's plugin starts jobs on one node, and as Trainyard starts ranks."""
    cpus = allocation.cpus_per_node
    several = [*srun_options(allocation.nodes, cpus_per_task=cpus), "--kill-on-bad-exit=0"]
    options = several if len(allocation.nodes) > 1 else ["-n1", "--cpu-bind=q", f"--cpus-per-task={cpus}"]
    report.step_error = _run_step(["srun", *options, *helper_command("checks.node_probe"), "node", str(folder)])


def _let_nodes_meet(allocation: Allocation, report: JobReport, folder: Path) -> None:
    """Start one rank on each node with the launcher of trainings."""
    if len(allocation.nodes) == 1 or importlib.util.find_spec("torch") is None:
        return
    from trainyard.scaling import launchers, rank_failures, rendezvous

    private = folder / "ranks"
    private.mkdir(mode=0o700)
    config = folder / "config.json"  # an empty one, as the launcher needs a config
    write_json(config, {})
    options = ["checks.node_probe", "rank", str(folder), "--config", str(config)]
    scale = f"{len(allocation.nodes)}x1"
    line = launchers.training_command(
        scale, options, folder=str(private), allocation=allocation, program=SCRIPTS / "trainyard"
    )
    error = _run_step(line)
    with contextlib.suppress(OSError, ValueError):
        report.meeting = json.loads((folder / MEETING).read_text())
        return
    first = rank_failures.first_failure(private)
    report.meeting_error = rendezvous.problem(private) or (f"{first.node}: {first.message}" if first else error)


def _start_ray(allocation: Allocation, report: JobReport, folder: Path) -> None:
    """Start Ray on this node as a sweep does, and run a task."""
    from trainyard.cluster.ray.start import start_ray

    began = time.monotonic()
    try:
        with start_ray(gpus=allocation.gpus_per_node, cpus=allocation.cpus_per_node):
            import ray

            answer = ray.remote(num_cpus=1)(platform.node).remote()
            ray.get(answer, timeout=STEP_SECONDS)
        report.ray = f"started on {host.node_name()}, ran a task and ended in {time.monotonic() - began:.0f} s"
    except Exception as error:
        report.ray_error = f"{type(error).__name__}: {error}"[-LAST_CHARACTERS:]


def _run_step(line: list[str]) -> str:
    """Run a step; returns the end of its output if it failed."""
    try:
        done = subprocess.run(
            line, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, timeout=STEP_SECONDS
        )
    except subprocess.TimeoutExpired:
        return f"`{' '.join(line[:1])}` had not ended after {STEP_SECONDS} s"
    return done.stdout.strip()[-LAST_CHARACTERS:] or describe_exit(done.returncode) if done.returncode else ""


# ---- a node


def probe_node(folder: Path) -> None:
    """Write the report about this node."""
    report = NodeReport(node=host.node_name(), python=platform.python_version())
    with contextlib.suppress(OSError, ValueError):
        report.nonce = json.loads((folder / NONCE).read_text())
    try:
        with hold(folder / LOCK):  # as the login node does
            pass
    except LockHeldError as error:
        report.lock, report.lock_held = str(error), True
    except (UserError, OSError) as error:
        report.lock = str(error)
    report.claims = _try_claims(folder, report.node)
    report.tmp = tempfile.gettempdir()
    report.tmp_gib = shutil.disk_usage(report.tmp).free / 2**30
    with tempfile.TemporaryDirectory() as name, contextlib.suppress(OSError):
        program = Path(name, "program")
        program.write_text("#!/bin/sh\nexit 0\n")
        program.chmod(0o700)
        report.tmp_executes = subprocess.run([program], check=False).returncode == 0
    report.cpus, report.machine_cpus = slurm_allocation.available_cpus(), os.cpu_count() or 1
    _import_libraries(report)
    write_json(folder / f"node-{report.node}.json", asdict(report))


def _try_claims(folder: Path, node: str) -> str:
    """What is wrong with the log of claims that the login node has begun in a folder; "" if nothing."""
    claims = ClaimLog(folder)
    try:
        if claims.append(node):
            return "an entry that the login node had written was written a second time"
        while not claims.append(node):
            if not claims.read():  # it was refused because of an entry that must be there
                return "an entry that another node has written is not there"
    except (UserError, OSError) as error:
        return str(error)
    return ""


def _import_libraries(report: NodeReport) -> None:
    """Import Ray and, if it is installed, torch, and compute on each GPU."""
    report.driver = NVIDIA_DRIVER.read_text().splitlines()[0] if NVIDIA_DRIVER.exists() else ""
    try:
        import ray

        report.ray = ray.__version__
        if importlib.util.find_spec("torch") is None:
            return
        import torch

        report.torch, report.cuda = torch.__version__, torch.version.cuda
        count = torch.cuda.device_count()
    except Exception as error:
        report.import_error = f"{type(error).__name__}: {error}"
        return
    for index in range(count):
        try:
            assert torch.ones(8, device=f"cuda:{index}").sum().item() == 8
            report.devices.append(torch.cuda.get_device_name(index))
        except Exception as error:
            report.device_error = report.device_error or f"GPU {index}: {type(error).__name__}: {error}"


# ---- a rank


def meet_others(folder: Path) -> None:
    """Reduce a value over all ranks, with NCCL if there are GPUs, and with gloo."""
    import torch
    import torch.distributed as dist

    from trainyard.training.process_group import process_group

    with process_group() as group:
        groups: dict[str, tuple[Any, torch.device]] = {dist.get_backend(): (None, group.device)}
        if "gloo" not in groups:
            groups["gloo"] = (dist.new_group(backend="gloo"), torch.device("cpu"))
        for name, (members, device) in groups.items():
            total = torch.ones(1, device=device)
            dist.all_reduce(total, group=members)
            if total.item() != group.world_size:
                raise UserError(f"an all-reduce with {name} over {group.world_size} ranks is wrong: {total.item():g}")
        if group.is_main:
            address = os.environ["MASTER_ADDR"]
            interface = os.environ.get("GLOO_SOCKET_IFNAME", "")
            write_json(folder / MEETING, {"address": address, "interface": interface, "backends": " and ".join(groups)})


if __name__ == "__main__":
    main()
    sys.exit(0)
