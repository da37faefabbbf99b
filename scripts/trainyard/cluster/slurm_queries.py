"""What Slurm answers: jobs, accounting, partitions, associations. All output of Slurm's commands is parsed here."""

import math
import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from trainyard.utils.errors import UserError

ACCOUNTING_SECONDS = 5


def submit_line(job: str) -> str:
    """The sbatch line that submitted a job, as the accounting has it; "" where there is none.

    The accounting may hear of a job a moment after its start: it is given a few seconds.
    """
    command = ["sacct", "--jobs", job, "--allocations", "--noheader", "--parsable2", "--format", "SubmitLine"]
    end = time.monotonic() + ACCOUNTING_SECONDS
    try:
        while not (line := answer(*command).strip()) and time.monotonic() < end:
            time.sleep(0.5)
    except UserError:
        return ""
    return line


@dataclass(frozen=True)
class JobRecord:
    """What the accounting has of a job."""

    requested_seconds: float | None  # of walltime; None without a limit
    elapsed_seconds: float
    allocated_tres: str  # "billing=8,cpu=8,gres/gpu=2,mem=8000M,node=2"


def job_records(jobs: Sequence[str]) -> dict[str, JobRecord]:
    """What the accounting has of jobs, by their numbers; of a job that was requeued, its last run.

    Raises:
        UserError: Slurm keeps no accounting, or does not answer.
    """
    command = ["sacct", "--jobs", ",".join(jobs), "--allocations", "--noheader", "--parsable2"]
    lines = answer(*command, "--format", "JobID,TimelimitRaw,ElapsedRaw,AllocTRES").splitlines()
    return dict(parse_record(line) for line in lines)


def parse_record(line: str) -> tuple[str, JobRecord]:
    """A line of `sacct --parsable2 --format JobID,TimelimitRaw,ElapsedRaw,AllocTRES`: job number, and what it says."""
    job, limit, elapsed, tres = line.split("|")
    return job, JobRecord(60.0 * int(limit) if limit.isdigit() else None, float(elapsed), tres)


def parse_job(line: str) -> dict[str, str]:
    """The fields of `scontrol show job --details --oneliner`; of a value with spaces, the part before the first."""
    return dict(field.split("=", 1) for field in line.split() if "=" in field)


def parse_gpus(fields: Mapping[str, str]) -> list[tuple[str, int]]:
    """Model and number of a job's GPUs, `gpu:a100:4`. Not from `TRES`: what that tells depends on the accounting."""
    found = re.findall(r"\bgpu(?::([^:,()]+))?:(\d+)", fields.get("JOB_GRES", ""))
    return [(model, int(count)) for model, count in found]


def parse_time(text: str) -> float:
    """A time as Slurm prints it, `2026-11-20T21:30:00` on this machine's clock, in Unix seconds."""
    if text in ("Unknown", "None", "N/A"):
        return math.inf
    return datetime.fromisoformat(text).timestamp()


@dataclass(frozen=True)
class Partition:
    """A partition, or of one with several kinds of nodes one kind."""

    name: str
    default: bool
    up: bool
    limit_minutes: float  # the longest walltime; infinite without a limit
    limit: str  # the same, as Slurm writes it
    nodes: int
    cpus: str  # of a node; "64+" if they differ
    memory_mb: str
    gpus: str  # "gpu:a100:4", or "(null)"
    features: str

    def __str__(self) -> str:
        """What a job can ask for here, in words."""
        parts = [f"{self.nodes} nodes of {self.cpus} CPUs and {self.memory_mb} MB", f"walltime at most {self.limit}"]
        parts += [self.gpus] if self.gpus != "(null)" else ["no GPUs"]
        parts += [f"features {self.features}"] if self.features != "(null)" else []
        return f"{self.name} ({', '.join(parts)})"


def partitions() -> list[Partition]:
    """What there is on this cluster.

    Raises:
        UserError: Slurm does not answer.
    """
    return [parse_partition(line) for line in answer("sinfo", "--noheader", "--format", _PARTITION).splitlines()]


_PARTITION = "%P|%a|%l|%D|%c|%m|%G|%f"


def parse_partition(line: str) -> Partition:
    """A line of `sinfo --noheader --format '%P|%a|%l|%D|%c|%m|%G|%f'`."""
    name, state, limit, nodes, cpus, memory, gpus, features = line.strip().split("|")
    return Partition(
        name=name.rstrip("*"),
        default=name.endswith("*"),
        up=state == "up",
        limit_minutes=parse_limit(limit),
        limit=limit,
        nodes=int(nodes),
        cpus=cpus,
        memory_mb=memory,
        gpus=re.sub(r"\(S:[^)]*\)", "", gpus),  # the sockets that a GPU is near to
        features=features,
    )


def limit_of(known: Sequence[Partition], names: str) -> float:
    """The longest walltime in minutes on the named partitions (`gpu` or `gpu,long`), or on the default one."""
    named = [each for each in known if (each.name in names.split(",") if names else each.default)]
    return max((each.limit_minutes for each in named), default=math.inf)


def parse_limit(text: str) -> float:
    """A time limit as Slurm prints it, `30:00`, `4:00:00`, `2-00:00:00` or `infinite`, in minutes."""
    if text in ("infinite", "UNLIMITED", "n/a"):
        return math.inf
    days, _, clock = text.rpartition("-")
    parts = [int(part) for part in clock.split(":")]
    hours, minutes, seconds = [0] * (3 - len(parts)) + parts
    return (int(days or 0) * 24 + hours) * 60 + minutes + seconds / 60


@dataclass(frozen=True)
class Association:
    """An account that a user may charge, and with which qualities of service."""

    account: str
    qos: tuple[str, ...]


def associations(user: str) -> list[Association]:
    """The accounts of a user.

    Raises:
        UserError: Slurm keeps no accounting, or does not answer.
    """
    show = ["show", "associations", f"user={user}", "format=Account,QOS"]
    lines = answer("sacctmgr", "--noheader", "--parsable2", *show).splitlines()
    return [
        Association(account=account, qos=tuple(qos.split(",")))
        for account, _, qos in (line.partition("|") for line in lines)
    ]


def controller() -> str:
    """Slurm's version, and which controllers are up, in Slurm's words.

    Raises:
        UserError: Slurm's programs are not there, or no controller answers.
    """
    version, ping = answer("sinfo", "--version"), answer("scontrol", "ping")
    return f"{version.strip()}; {'; '.join(ping.strip().splitlines())}"


def queue_state(job: str) -> str:
    """`PENDING: Resources`, `RUNNING: None`, ... while a job is in the queue, else ""."""
    try:
        return answer("squeue", "--noheader", "--jobs", job, "--format", "%T: %r").strip()
    except UserError:  # Slurm has forgotten it
        return ""


def answer(*command: str) -> str:
    """What one of Slurm's programs prints."""
    try:
        done = subprocess.run(command, text=True, capture_output=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", "") or error
        raise UserError(f"`{' '.join(command)}` failed: {str(said).strip()}") from None
    return done.stdout
