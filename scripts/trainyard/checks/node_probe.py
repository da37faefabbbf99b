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
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from trainyard.checks.findings import Finding
from trainyard.cluster import host, slurm_allocation
from trainyard.cluster.job_step import srun_options
from trainyard.cluster.slurm_allocation import Allocation
from trainyard.planning.claims import ClaimLog
from trainyard.utils.errors import UserError
from trainyard.utils.files import write_json
from trainyard.utils.import_path import SCRIPTS, helper_command
from trainyard.utils.locks import LockHeldError, hold
from trainyard.utils.text import describe_exit

# Files of the job, besides the reports of the nodes.
JOB = "job.json"
LOCK = "lock"
LOG = "job.log"
STEP_SECONDS = 150  # for a step; Python, torch and Ray may come from a slow file system
LAST_CHARACTERS = 600  # of the output of a step that fails
MIN_TMP_GIB = 1  # for Ray's files
NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")
MEETING = "meeting.json"
LOCK_REMEDY = "keep the results on a file system with locks"
TORCH = "install trainyard[train] to check this; only `train` in sweeps and scaling studies needs it"


@dataclass
class JobReport:
    """What the job's first node found out about the job as a whole, as far as it got."""

    allocation: str = ""  # the job, its nodes and its resources
    nodes: list[str] = field(default_factory=list)
    cpus_per_node: int = 0
    gpus_per_node: int = 0
    step_error: str = ""  # the end of the output of a step that failed on a node
    findings: list[Finding] = field(default_factory=list)
    has_ended: bool = False

    def write(self, folder: Path) -> None:
        """Write it, replacing an earlier version."""
        write_json(folder / JOB, asdict(self))


def read_job(folder: Path) -> JobReport | None:
    """The report about the job; None if there is none."""
    with contextlib.suppress(OSError, ValueError):
        report = JobReport(**json.loads((folder / JOB).read_text()))
        return replace(report, findings=[Finding(**each) for each in report.findings])  # type: ignore[arg-type]
    return None


def read_nodes(folder: Path) -> dict[str, list[Finding]]:
    """The findings of each node that has reported."""
    nodes = dict[str, list[Finding]]()
    for path in sorted(folder.glob("node-*.json")):
        with contextlib.suppress(OSError, ValueError):
            nodes[path.stem.removeprefix("node-")] = [Finding(**each) for each in json.loads(path.read_text())]
    return nodes


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
        report.findings = [Finding("node", "fails", str(error), "Slurm's programs must be on PATH on the nodes, too")]
        report.has_ended = True
        report.write(folder)
        return
    report.allocation = str(allocation)
    report.nodes = list(allocation.nodes)
    report.cpus_per_node = allocation.cpus_per_node
    report.gpus_per_node = allocation.gpus_per_node
    report.write(folder)
    _probe_nodes(allocation, report, folder)
    for check in (_let_nodes_meet, _start_ray):
        report.write(folder)
        report.findings.append(check(allocation, folder))
    report.has_ended = True
    report.write(folder)


def _probe_nodes(allocation: Allocation, report: JobReport, folder: Path) -> None:
    """Run a step on every node: as Snakemake's plugin starts jobs on one node, and as Trainyard starts ranks."""
    cpus = allocation.cpus_per_node
    several = [*srun_options(allocation.nodes, cpus_per_task=cpus), "--kill-on-bad-exit=0"]
    options = several if len(allocation.nodes) > 1 else ["-n1", "--cpu-bind=q", f"--cpus-per-task={cpus}"]
    report.step_error = _run_step(["srun", *options, *helper_command("checks.node_probe"), "node", str(folder)])


def _let_nodes_meet(allocation: Allocation, folder: Path) -> Finding:
    """Ranks on two nodes, started by the launcher of trainings, meet at its address and reduce a value."""
    if len(allocation.nodes) == 1:
        return Finding("network", "ok", "not needed: no job of the config has several nodes")
    if importlib.util.find_spec("torch") is None:
        return Finding("network", "unknown", "the nodes did not meet: torch is not installed", TORCH)
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
        how = json.loads((folder / MEETING).read_text())
        return Finding("network", "ok", f"{allocation.nodes[1]} reached {allocation.nodes[0]} at {how}")
    first = rank_failures.first_failure(private)
    message = rendezvous.problem(private) or (f"{first.node}: {first.message}" if first else error)
    remedy = "the names and addresses of nodes must be right on all nodes, and no firewall between them"
    return Finding("network", "fails", message, remedy)


def _start_ray(allocation: Allocation, folder: Path) -> Finding:
    """Ray starts on this node as for a sweep, and runs a task."""
    from trainyard.cluster.ray.start import start_ray

    began = time.monotonic()
    try:
        with start_ray(gpus=allocation.gpus_per_node, cpus=allocation.cpus_per_node):
            import ray

            answer = ray.remote(num_cpus=1)(platform.node).remote()
            ray.get(answer, timeout=STEP_SECONDS)
        seconds = time.monotonic() - began
        return Finding("Ray", "ok", f"started on {host.node_name()}, ran a task and ended in {seconds:.0f} s")
    except Exception as error:
        message = f"{type(error).__name__}: {error}"[-LAST_CHARACTERS:]
        return Finding("Ray", "fails", message, "see the message; Ray needs free ports and memory on the nodes")


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
    """Write what is found on this node."""
    job = read_job(folder)
    assert job is not None, f"another folder than on the login node is at {folder}: work on a shared file system"
    node = host.node_name()
    findings = [
        check_lock(folder),
        check_claims(folder, node),
        check_temporary_folder(),
        check_cpus(job.cpus_per_node),
        *check_libraries(job.gpus_per_node),
    ]
    write_json(folder / f"node-{node}.json", [asdict(each) for each in findings])


def check_lock(folder: Path) -> Finding:
    """A lock of the login node holds here: two programs do not train the same study at the same time."""
    try:
        with hold(folder / LOCK):  # as the login node does
            pass
    except LockHeldError:
        return Finding("locks", "ok", "a lock of the login node holds here")
    except (UserError, OSError) as error:
        return Finding("locks", "fails", str(error), LOCK_REMEDY)
    message = "a file that the login node has locked can be locked here: locks are local to a node"
    remedy = "do not start the same study twice; ask for NFS without `nolock`, or Lustre with `-o flock`"
    return Finding("locks", "warns", message, remedy)


def check_claims(folder: Path, node: str) -> Finding:
    """A link to a name that exists fails, as in the log of claims: no two jobs of a sweep claim the same trial."""
    claims = ClaimLog(folder)
    message = ""
    try:
        if claims.append(node):
            message = "an entry that the login node had written was written a second time"
        while not message and not claims.append(node):
            if not claims.read():  # it was refused because of an entry that must be there
                message = "an entry that another node has written is not there"
    except (UserError, OSError) as error:
        message = str(error)
    if message:
        remedy = "keep the results on a file system with hard links that nodes share"
        return Finding("shared files", "fails", message, remedy)
    return Finding("shared files", "ok", "files and hard links of others are there: sweeps may have several jobs")


def check_temporary_folder() -> Finding:
    """The temporary folder has space, and programs can be executed there."""
    folder = tempfile.gettempdir()
    gib = shutil.disk_usage(folder).free / 2**30
    message = f"{gib:.1f} GiB free in {folder}"
    if gib < MIN_TMP_GIB:
        remedy = f"Ray needs {MIN_TMP_GIB} GiB there: set TMPDIR to a folder of the nodes with more space"
        return Finding("temporary files", "fails", message, remedy)
    with tempfile.TemporaryDirectory() as name, contextlib.suppress(OSError):
        program = Path(name, "program")
        program.write_text("#!/bin/sh\nexit 0\n")
        program.chmod(0o700)
        if subprocess.run([program], check=False).returncode == 0:
            return Finding("temporary files", "ok", message)
    remedy = "torch.compile needs it: set TMPDIR to a folder of the nodes that permits it"
    return Finding("temporary files", "warns", f"{message}, which forbids execution (noexec)", remedy)


def check_cpus(count: int) -> Finding:
    """A step can use the CPUs that the job has: it is not bound to fewer."""
    wanted = min(count, os.cpu_count() or 1)
    available = slurm_allocation.available_cpus()
    if available >= wanted:
        return Finding("CPUs", "ok", f"a step can use its {wanted}")
    remedy = "ask the site's administrators about TaskPluginParam and the cgroups of steps"
    return Finding("CPUs", "fails", f"a step is bound to {available} of its {wanted}", remedy)


def check_libraries(gpus: int) -> Iterator[Finding]:
    """Ray can be imported, and torch if it is installed, which computes on each of the node's GPUs."""
    python = platform.python_version()
    has_torch = importlib.util.find_spec("torch") is not None
    try:
        import ray

        version = "(not installed)"
        if has_torch:
            import torch

            version = torch.__version__
    except Exception as error:
        yield Finding("Python", "fails", f"{python}: {type(error).__name__}: {error}", "install Trainyard again")
        return
    yield Finding("Python", "ok", f"Python {python}, torch {version}, Ray {ray.__version__}")
    if not gpus:
        yield Finding("GPU", "ok", "not needed: no job of the config requests one")
    elif has_torch:
        yield _check_gpus(gpus)
    elif _driver():
        yield Finding("GPU", "unknown", f"{gpus} allocated, and not tried: torch is not installed", TORCH)
    else:
        yield _no_driver(gpus)


def _check_gpus(wanted: int) -> Finding:
    """Torch computes on each GPU of the job."""
    import torch

    names = list[str]()
    problem = ""
    for index in range(torch.cuda.device_count()):
        try:
            assert torch.ones(8, device=f"cuda:{index}").sum().item() == 8
            names.append(torch.cuda.get_device_name(index))
        except Exception as error:
            problem = problem or f"GPU {index}: {type(error).__name__}: {error}"
    if len(names) == wanted:
        listed = ", ".join(f"{names.count(name)} {name}" for name in dict.fromkeys(names))
        return Finding("GPU", "ok", f"torch computes on {listed}; CUDA {torch.version.cuda}")
    if names or problem:
        message = f"torch computes on {len(names)} of {wanted}; {problem or 'it finds no others'}"
        remedy = "check the node with `nvidia-smi`, and report it to its administrators"
        return Finding("GPU", "fails", message, remedy)
    driver = _driver()
    if not driver:
        return _no_driver(wanted)
    build = f"is built for CUDA {torch.version.cuda}" if torch.version.cuda else "is built without CUDA"
    message = f"torch finds none of {wanted}; it {build}, and the node has {driver}"
    return Finding("GPU", "fails", message, "install a torch for this driver: see https://pytorch.org/get-started")


def _driver() -> str:
    """NVIDIA's driver; "" without one."""
    return NVIDIA_DRIVER.read_text().splitlines()[0] if NVIDIA_DRIVER.exists() else ""


def _no_driver(gpus: int) -> Finding:
    message = f"Slurm allocated {gpus}, but there is no NVIDIA driver: training would run on the CPU"
    return Finding("GPU", "fails", message, "ask the site's administrators whether these GPUs are real")


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
            through = f" through {interface}" if interface else ""
            write_json(folder / MEETING, f"{address}{through}; all-reduce with {' and '.join(groups)}")


if __name__ == "__main__":
    main()
    sys.exit(0)
