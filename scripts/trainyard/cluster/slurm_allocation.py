"""The Slurm job that this process belongs to: its nodes, CPUs, GPUs and walltime limit."""

import logging
import math
import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from trainyard.cluster.slurm_queries import (
    TEMPORARY,
    parse_fields,
    parse_gpus,
    parse_time_limit,
    parse_timestamp,
    run_slurm_command,
)
from trainyard.utils.errors import UserError

DEADLINE_MARGIN_SECONDS = 10  # to record what is in progress and to shut everything down
RETRY_SECONDS = (2, 10, 30)  # waits between queries while the controller is slow or restarts
JOB_OF_TRIAL: Final = "TRAINYARD_JOB_ID"  # for a trial's command, whose SLURM_JOB_ID is its own: the job that runs it
# CPUs and MiB of a node, for each group of nodes with the same allocation. Slurm cuts off longer lists of CPUs.
_CPU_IDS = re.compile(r"\bCPU_IDs=([\d,-]{1,110}) ")
_MEMORY = re.compile(r"\bMem=(\d+)")
PROC: Final = Path("/proc")
CGROUPS: Final = Path("/sys/fs/cgroup")
_known: Final[dict[str, "Allocation"]] = {}  # by job
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Allocation:
    """The resources that Slurm allocated to a job. Of nodes that differ, the CPUs and memory of the smallest count."""

    job: str
    nodes: tuple[str, ...]  # host names in Slurm's order; the batch script runs on the first
    end_time: float  # Unix seconds at which the walltime limit is reached; infinite without a limit
    start_time: float = math.inf  # Unix seconds
    walltime_seconds: float | None = None  # as requested; None without a limit
    cpus_per_node: int = 1
    gpus_per_node: int = 0
    gpu_model: str = ""  # as Slurm names it; also "" for GPUs without a type
    memory_mib_per_node: int | None = None  # None if Slurm does not limit it
    is_of_workflow: bool = False  # whether Snakemake has submitted the job, by its comment

    @property
    def deadline(self) -> float:
        """The time by which work must have stopped, in Unix seconds: shortly before the walltime limit."""
        return self.end_time - DEADLINE_MARGIN_SECONDS

    def __str__(self) -> str:
        """Job number, nodes, and the resources per node."""
        gpus = f"{self.gpus_per_node} {self.gpu_model}".strip() if self.gpus_per_node else "none"
        names = ", ".join(self.nodes)
        return f"Slurm job {self.job} on {names}; GPUs per node: {gpus}, CPUs per node: {self.cpus_per_node}"


def job_id() -> str:
    """The ID of the Slurm job that this process belongs to, or "local"."""
    return os.environ.get("SLURM_JOB_ID", "local")


def current_allocation() -> Allocation | None:
    """The allocation of this process's Slurm job, or None outside of a job. The result is cached.

    It comes from `scontrol`, because the Slurm executor plugin removes most `SLURM_*` environment variables.

    Raises:
        UserError: Slurm does not respond.
    """
    job = os.environ.get("SLURM_JOB_ID")
    if job is not None and job not in _known:
        _known[job] = _query_allocation(job)
    return None if job is None else _known[job]


def refresh_allocation() -> Allocation | None:
    """The same, as Slurm has it now, if it responds. When it resumes a suspended job, it moves the job's end on."""
    if (job := os.environ.get("SLURM_JOB_ID")) is not None:
        with suppress(UserError):
            _known[job] = _query_allocation(job)
    return current_allocation()


def _query_allocation(job: str) -> Allocation:
    for seconds in (*RETRY_SECONDS, None):
        try:
            output = run_slurm_command("scontrol", "show", "job", "--details", "--oneliner", job)
            break
        except UserError as error:
            if seconds is None or not TEMPORARY.search(str(error)):
                raise
            log.warning("%s; trying again in %d s", error, seconds)
            time.sleep(seconds)
    # One task of an array has the ID of the array, for which Slurm prints all tasks.
    line = next((line for line in output.splitlines() if line.startswith(f"JobId={job} ")), None)
    if line is None:
        raise UserError(f"`scontrol show job {job}` printed no line about this job: {output[:200]!r}")
    nodes = run_slurm_command("scontrol", "show", "hostnames", parse_fields(line)["NodeList"]).split()
    return parse_allocation(job, line, nodes)


def cpus_per_gpu(gpus: int, *, most: int) -> int:
    """The CPUs for each of so many GPUs of this node, at most `most`: those of the job, or outside of one, all.

    Raises:
        UserError: Slurm does not respond.
    """
    given = current_allocation()
    return max(1, min(most, (given.cpus_per_node if given else len(os.sched_getaffinity(0))) // gpus))


def parse_allocation(job: str, line: str, nodes: Sequence[str]) -> Allocation:
    """The allocation that a line of `scontrol show job --details --oneliner` describes."""
    fields = parse_fields(line)
    gpus = parse_gpus(fields.get("JOB_GRES", ""))
    # The GPUs that the steps of a job see: of a node that is allocated whole, only those requested.
    factors = {"JOB_GRES": 1, "TresPerJob": 1, "TresPerNode": len(nodes)}  # `TRES` has what the site accounts for
    asked = [(parse_gpus(fields.get(name, "")), factor) for name, factor in factors.items()]
    gpu_counts = [factor * sum(count for _, count in each) for each, factor in asked if each]
    limit_seconds = 60 * parse_time_limit(fields.get("TimeLimit", "UNLIMITED"))
    return Allocation(
        job=job,
        nodes=tuple(nodes),
        end_time=parse_timestamp(fields.get("EndTime", "Unknown")),
        start_time=parse_timestamp(fields.get("StartTime", "Unknown")),
        walltime_seconds=limit_seconds if math.isfinite(limit_seconds) else None,
        cpus_per_node=min([int(fields["NumCPUs"]) // len(nodes), *map(_count_ids, _CPU_IDS.findall(line))]),
        gpus_per_node=min(gpu_counts, default=0) // len(nodes),
        gpu_model=gpus[0][0] if gpus else "",
        memory_mib_per_node=min(map(int, _MEMORY.findall(line)), default=0) or None,
        is_of_workflow=fields.get("Comment", "").startswith("rule_"),
    )


def _count_ids(ids: str) -> int:
    """How many IDs there are in a list such as `0-63,128`."""
    ends = (each.partition("-") for each in ids.split(","))
    return sum(int(last or first) - int(first) + 1 for first, _, last in ends)


def available_cpus() -> int:
    """The number of CPUs that this process may use: the minimum of Slurm's allocation, CPU affinity and cgroup quota.

    `os.cpu_count()` would count CPUs that belong to other jobs on a shared node.
    """
    limits = [len(os.sched_getaffinity(0)), int(os.environ.get("SLURM_CPUS_PER_TASK") or 0)]
    with suppress(OSError, ValueError):  # cgroup v1, or a quota of `max`
        quota, period = map(int, (CGROUPS / "cpu.max").read_text().split())
        limits.append(max(1, quota // period))
    return min(filter(None, limits))


def available_memory_bytes() -> int:
    """The host memory that this process's job may use on this node, including files that it writes to a tmpfs.

    It is the minimum of the node's memory, Slurm's allocation and the limits of the control groups.
    """
    limits = [psutil.virtual_memory().total]
    for group in memory_groups((PROC / "self/cgroup").read_text()):
        for name in ("memory.max", "memory.limit_in_bytes"):  # cgroup v2, v1
            with suppress(OSError, ValueError):  # not in this container's view, or `max`
                limits.append(int((group / name).read_text()))
    try:
        allocation = current_allocation()
    except UserError:  # Slurm does not respond; code that needs the allocation reports it
        allocation = None
    if allocation and allocation.memory_mib_per_node:
        limits.append(allocation.memory_mib_per_node * 2**20)
    return min(limits)


def memory_groups(membership: str) -> Iterator[Path]:
    """The folders of the control groups that count a process's memory (v2, or v1), each before those above it.

    `membership` is the content of the process's `/proc/<pid>/cgroup`.
    """
    for line in membership.splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers in ("", "memory"):
            mount = CGROUPS / controllers
            group = mount / path.lstrip("/")
            yield from (folder for folder in (group, *group.parents) if folder.is_relative_to(mount))
