"""What this process was given: CPUs, node and job, from Slurm where there is one, else from the machine."""

import math
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import psutil

from trainyard.cluster.slurm_queries import answer, parse_gpus, parse_job, parse_limit, parse_time

DEADLINE_MARGIN_SECONDS = 10  # to record what is in progress and to take everything down


def available_cpus() -> int:
    """CPUs that this process may use: the smallest of Slurm's allocation, the CPU set and the cgroup's quota.

    Never `os.cpu_count()`, which on a shared node counts other people's CPUs.
    """
    limits = [len(os.sched_getaffinity(0))]
    slurm = os.environ.get("SLURM_CPUS_PER_TASK")
    if slurm:
        limits.append(int(slurm))
    quota = _cgroup_cpu_quota()
    if quota:
        limits.append(quota)
    return max(1, min(limits))


def _cgroup_cpu_quota(path: Path = Path("/sys/fs/cgroup/cpu.max")) -> int | None:
    """Whole CPUs that the control group's quota pays for (`cpu.max` of cgroup v2), or None without a quota."""
    try:
        quota, period = path.read_text().split()
    except (OSError, ValueError):
        return None
    return None if quota == "max" else max(1, int(quota) // int(period))


def job_id() -> str:
    """The Slurm job that this process belongs to, or "local"."""
    return os.environ.get("SLURM_JOB_ID", "local")


def address_towards(host: str) -> str:
    """This host's address on the network that reaches another one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:  # no packet is sent: connecting chooses a route
        probe.connect((host, 9))
        return str(probe.getsockname()[0])


def interface_towards(host: str) -> str:
    """The name of this host's network interface on the way to another one, such as `ib0`; "" if none is found."""
    address = address_towards(host)
    interfaces = psutil.net_if_addrs().items()
    return next((name for name, addresses in interfaces if any(each.address == address for each in addresses)), "")


def node_name() -> str:
    """The short name of this host."""
    return socket.gethostname().split(".")[0]


@dataclass(frozen=True)
class Allocation:
    """What Slurm gave to the job that this process belongs to."""

    job: str
    nodes: tuple[str, ...]  # host names, in Slurm's order: the first is where the batch script runs
    end_time: float  # Unix seconds at which the walltime is over; infinite without a limit
    start_time: float = math.inf  # Unix seconds
    walltime_seconds: float | None = None  # as asked for; None without a limit
    cpus_per_node: int = 1
    gpus_per_node: int = 0
    gpu_model: str = ""  # as Slurm names it; "" for GPUs without a type, too

    @property
    def deadline(self) -> float:
        """When to have stopped, in Unix seconds: a little before the walltime is over."""
        return self.end_time - DEADLINE_MARGIN_SECONDS

    def __str__(self) -> str:
        """What was given, in the words in which `-n` says what is asked for."""
        gpus = f"{self.gpus_per_node} {self.gpu_model}".strip() if self.gpus_per_node else "none"
        names = ", ".join(self.nodes)
        return f"Slurm job {self.job} on {names}; GPUs per node: {gpus}, CPUs per node: {self.cpus_per_node}"


def allocation() -> Allocation | None:
    """The allocation, or None outside of Slurm; Slurm is asked once.

    Asked of Slurm and not of the environment: the executor plugin strips most of the `SLURM_*` variables.

    Raises:
        UserError: Slurm does not answer.
    """
    job = os.environ.get("SLURM_JOB_ID")
    return None if job is None else _allocation_of(job)


@cache
def _allocation_of(job: str) -> Allocation:
    fields = parse_job(answer("scontrol", "show", "job", "--details", "--oneliner", job))
    nodes = answer("scontrol", "show", "hostnames", fields["NodeList"]).split()
    return read_allocation(job, fields, nodes)


def read_allocation(job: str, fields: Mapping[str, str], nodes: Sequence[str]) -> Allocation:
    """The allocation that these fields of `scontrol show job --details` describe; every node has as much as another."""
    gpus = parse_gpus(fields)
    return Allocation(
        job=job,
        nodes=tuple(nodes),
        end_time=parse_time(fields.get("EndTime", "Unknown")),
        start_time=parse_time(fields.get("StartTime", "Unknown")),
        walltime_seconds=_finite(60 * parse_limit(fields.get("TimeLimit", "UNLIMITED"))),
        cpus_per_node=int(fields["NumCPUs"]) // len(nodes),
        gpus_per_node=sum(count for _, count in gpus) // len(nodes),
        gpu_model=gpus[0][0] if gpus else "",
    )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
