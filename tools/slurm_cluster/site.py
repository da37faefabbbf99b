"""The sites that the test cluster can be: names, GPUs, partitions, preemption, accounting, limits."""

from dataclasses import dataclass
from typing import Literal

from slurm_cluster import freezer


@dataclass(frozen=True)
class Site:
    """What differs between one site and another."""

    name: str
    hosts: tuple[str, ...]
    gpu_type: str
    gpu_types: tuple[str, ...] = ()  # of each host, if they differ; each type is also the name of a partition
    gpus_per_host: int = 2
    cpus_per_host: int = 8  # more than the machine has
    partition: str = "gpu"  # the default partition
    preempt_partition: str = "preempt"  # its jobs are preempted by those of the default partition
    preempt_mode: Literal["REQUEUE", "CANCEL"] = "REQUEUE"
    # Seconds from SIGTERM to SIGKILL on preemption: 0 for KillWait (5 s); others are only checked every 30 s.
    grace_seconds: int = 0
    accounting: bool = True  # slurmdbd and sacct
    limits: tuple[str, ...] = ()  # of the QOS `normal`, for sacctmgr: "MaxTRESPerUser=gres/gpu=2"; needs accounting
    proctrack: Literal["linuxproc", "cgroup"] = "linuxproc"  # cgroup: signals go to the first process of a step only
    lines: tuple[str, ...] = ()  # of slurm.conf, after all others, for example "TaskPlugin=task/affinity"

    def number(self, host: str) -> int:
        """The place of a host, from 1; part of its addresses."""
        return self.hosts.index(host) + 1

    def hosts_by_gpu(self) -> dict[str, list[str]]:
        """The hosts with each type of GPU."""
        found: dict[str, list[str]] = {}
        for host, gpu_type in zip(self.hosts, self.gpu_types or [self.gpu_type] * len(self.hosts), strict=True):
            found.setdefault(gpu_type, []).append(host)
        return found


FIRST = Site(name="first", hosts=("n1", "n2", "n3", "n4"), gpu_type="a100")
SECOND = Site(
    name="second",
    hosts=("g01", "g02", "g03"),
    gpu_type="l40s",
    partition="batch",
    preempt_partition="scavenger",
    preempt_mode="CANCEL",
    accounting=False,
    proctrack="cgroup" if freezer.is_available() else "linuxproc",
    lines=(
        "TaskPlugin=task/affinity",
        "TaskPluginParam=autobind=cores",  # a task has one CPU unless it asks for more
        "KillWait=60",  # programs on a busy machine can save their state
    ),
)
SITES = {site.name: site for site in (FIRST, SECOND)}
