"""What this process was given: CPUs, node and job, from Slurm where there is one, else from the machine."""

import os
import socket
from pathlib import Path


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


def node_name() -> str:
    """The short name of this host."""
    return socket.gethostname().split(".")[0]
