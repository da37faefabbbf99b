"""What this process was given: CPUs, node and job, from Slurm where there is one, else from the machine."""

import math
import os
import re
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path

from trainyard.errors import UserError

ACCOUNTING_SECONDS = 5
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


def node_name() -> str:
    """The short name of this host."""
    return socket.gethostname().split(".")[0]


@dataclass(frozen=True)
class Allocation:
    """What Slurm gave to the job that this process belongs to."""

    job: str
    nodes: tuple[str, ...]  # host names, in Slurm's order: the first is where the batch script runs
    end_time: float  # Unix seconds at which the walltime is over; infinite without a limit
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
    fields = parse_job(_answer("scontrol", "show", "job", "--details", "--oneliner", job))
    nodes = _answer("scontrol", "show", "hostnames", fields["NodeList"]).split()
    return read_allocation(job, fields, nodes)


def read_allocation(job: str, fields: Mapping[str, str], nodes: Sequence[str]) -> Allocation:
    """The allocation that these fields of `scontrol show job --details` describe; every node has as much as another."""
    gpus = _gpus(fields)
    return Allocation(
        job=job,
        nodes=tuple(nodes),
        end_time=parse_time(fields.get("EndTime", "Unknown")),
        cpus_per_node=int(fields["NumCPUs"]) // len(nodes),
        gpus_per_node=sum(count for _, count in gpus) // len(nodes),
        gpu_model=gpus[0][0] if gpus else "",
    )


def submit_line(job: str) -> str:
    """The sbatch line that submitted a job, as the accounting has it; "" where there is none.

    The accounting may hear of a job a moment after its start: it is given a few seconds.
    """
    command = ["sacct", "--jobs", job, "--allocations", "--noheader", "--parsable2", "--format", "SubmitLine"]
    end = time.monotonic() + ACCOUNTING_SECONDS
    try:
        while not (line := _answer(*command).strip()) and time.monotonic() < end:
            time.sleep(0.5)
    except UserError:
        return ""
    return line


def parse_job(line: str) -> dict[str, str]:
    """The fields of `scontrol show job --details --oneliner`; of a value with spaces, the part before the first."""
    return dict(field.split("=", 1) for field in line.split() if "=" in field)


def _gpus(fields: Mapping[str, str]) -> list[tuple[str, int]]:
    """Model and number of a job's GPUs, `gpu:a100:4`. Not from `TRES`: what that tells depends on the accounting."""
    found = re.findall(r"\bgpu(?::([^:,()]+))?:(\d+)", fields.get("JOB_GRES", ""))
    return [(model, int(count)) for model, count in found]


def parse_time(text: str) -> float:
    """A time as Slurm prints it, `2026-11-20T21:30:00` on this machine's clock, in Unix seconds."""
    if text in ("Unknown", "None", "N/A"):
        return math.inf
    return datetime.fromisoformat(text).timestamp()


def _answer(*command: str) -> str:
    """What one of Slurm's programs prints."""
    try:
        done = subprocess.run(command, text=True, capture_output=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", "") or error
        raise UserError(f"`{' '.join(command)}` failed inside a Slurm job: {str(said).strip()}") from None
    return done.stdout
