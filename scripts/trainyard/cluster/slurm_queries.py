"""What Slurm's commands answer: accounting records, the queue, partitions and associations.

A function raises a UserError if Slurm's command is missing, fails or does not respond, unless it says what it returns
then. `sacct` and `sacctmgr` fail if Slurm keeps no accounting.
"""

import math
import os
import re
import subprocess
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from trainyard.utils.errors import UserError
from trainyard.utils.locks import Holder
from trainyard.utils.text import count_of

ACCOUNTING_DELAY_SECONDS = 5
# What a Slurm command prints if it may succeed later; the first is the name of a limit on jobs in the queue.
TEMPORARY: Final = re.compile(
    r"\b\w+Submit\w*Limit\b|Unable to contact slurm controller|Socket timed out|Zero Bytes were transmitted"
    r"|Resource temporarily unavailable|backup controller in standby mode|Protocol authentication error"
)
# Variables with which users change the format and the filters of what these commands print.
_OUTPUT_VARIABLES: Final = re.compile(r"SLURM_TIME_FORMAT|(SQUEUE|SINFO|SACCT|SCONTROL)_\w+")


def run_slurm_command(*command: str) -> str:
    """The standard output of a Slurm command, in the format that Slurm has by default.

    Raises:
        UserError: the command is missing, fails, or takes longer than a minute.
    """
    environment = {name: value for name, value in os.environ.items() if not _OUTPUT_VARIABLES.fullmatch(name)}
    try:
        done = subprocess.run(
            command,
            env=environment,
            text=True,
            errors="replace",  # Slurm may cut the name of a job within a character
            capture_output=True,
            check=True,
            timeout=60,
        )
    except (OSError, subprocess.SubprocessError) as error:
        reason = getattr(error, "stderr", "") or error
        raise UserError(f"`{' '.join(command)}` failed: {str(reason).strip()}") from None
    return done.stdout


def find_submit_line(job: str) -> str:
    """The command line that submitted a job, from Slurm's accounting; "" if the accounting has none.

    The accounting records a job a moment after it starts, so the query is repeated for a few seconds.
    """
    end = time.monotonic() + ACCOUNTING_DELAY_SECONDS
    try:
        while not (line := _query_accounting([job], "SubmitLine").strip()) and time.monotonic() < end:
            time.sleep(0.5)
    except UserError:
        return ""
    return line


@dataclass(frozen=True)
class JobRecord:
    """A job in Slurm's accounting."""

    requested_seconds: float | None  # walltime limit; None without a limit
    elapsed_seconds: float
    allocated_tres: str  # "billing=8,cpu=8,gres/gpu=2,mem=8000M,node=2"
    submit_time: float  # Unix seconds


def fetch_job_records(jobs: Sequence[str]) -> dict[str, JobRecord]:
    """The accounting records of jobs, by job ID; for a requeued job, the record of its last run."""
    lines = _query_accounting(jobs, "JobID,TimelimitRaw,ElapsedRaw,AllocTRES,Submit").splitlines()
    return dict(parse_job_record(line) for line in lines)


def _query_accounting(jobs: Sequence[str], columns: str, *further: str) -> str:
    """A line per job, with these columns of sacct, separated by `|`."""
    options = ["--allocations", "--noheader", "--parsable2", "--format", columns, *further]
    return run_slurm_command("sacct", "--jobs", ",".join(jobs), *options)


def parse_job_record(line: str) -> tuple[str, JobRecord]:
    """Job ID and record from a line of `sacct --parsable2 --format JobID,TimelimitRaw,ElapsedRaw,AllocTRES,Submit`."""
    job, limit, elapsed, tres, submitted = line.split("|")
    seconds = 60.0 * int(limit) if limit.isdigit() else None
    return job, JobRecord(seconds, float(elapsed), tres, parse_timestamp(submitted))


def keeps_accounting() -> bool:
    """Whether Slurm's accounting answers."""
    try:
        run_slurm_command("sacct", "--allocations", "--noheader", "--starttime", "now")
    except UserError:
        return False
    return True


def recorded_state(job: str) -> str:
    """The state of a job in Slurm's accounting, such as COMPLETED or CANCELLED; "" if the accounting has none."""
    try:
        words = _query_accounting([job], "State").split()  # "CANCELLED by 1234"
    except UserError:
        return ""
    return words[0] if words else ""


def state_before_requeue(job: str) -> str:
    """The state in which a job ended before it was requeued; "" if the accounting does not have it."""
    try:
        runs = _query_accounting([job], "State", "--duplicates").splitlines()
    except UserError:
        return ""
    return "".join(runs[-2:-1])


def ran_out_of_memory(job: str) -> bool:
    """Whether Slurm ended a job that was killed for its memory; if accounting does not know the job, assume so."""
    return recorded_state(job) in ("", "OUT_OF_MEMORY")


def job_state(job: str) -> str:
    """State and reason of a job in the queue, such as `PENDING: Resources`; "" once it has left the queue."""
    return "".join(_query_queue(job, "%T: %r"))


def has_ended(job: str) -> bool:
    """Whether Slurm knows that a job does not run: it has left the queue, or it waits there to run again."""
    try:
        return all(state == "PENDING" for state in _query_queue(job, "%T"))
    except UserError:  # Slurm does not respond
        return False


def is_given_up(other: Holder) -> bool:
    """Whether Slurm has ended the job of a process, or runs that job again here: it kills the process if it can."""
    mine = Holder.this_process()
    if not (other.job and mine.job) or other.cluster != mine.cluster:
        return False
    return other.restarts < mine.restarts if other.job == mine.job else has_ended(other.job)


def _query_queue(job: str, columns: str) -> list[str]:
    """A line with these columns of squeue for a job; none once it has left the queue."""
    try:
        return drop_cluster_lines(run_slurm_command("squeue", "--noheader", "--jobs", job, "--format", columns))
    except UserError as error:
        if "Invalid job id" in str(error):  # the controller has forgotten the job
            return []
        raise


def parse_fields(line: str) -> dict[str, str]:
    """The fields of a line that `scontrol show --oneliner` prints; a value that contains spaces is truncated there."""
    return dict(field.split("=", 1) for field in line.split() if "=" in field)


def drop_cluster_lines(output: str) -> list[str]:
    """The lines of sinfo's or squeue's output; with several clusters, a line names each: `CLUSTER: alpha`."""
    lines = (line.strip() for line in output.splitlines())
    return [line for line in lines if line and not line.startswith("CLUSTER: ")]


@dataclass(frozen=True)
class Partition:
    """The nodes of one kind in a partition; a partition with several kinds of nodes has one entry for each."""

    name: str
    default: bool
    up: bool
    limit_minutes: float  # maximum walltime; infinite without a limit
    limit: str  # the same, as Slurm prints it
    nodes: int
    cpus: str  # per node; "64+" if they differ
    memory_mb: str
    gpus: str  # "gpu:a100:4", or "(null)"
    features: str

    def gpu_count(self, model: str = "") -> int:
        """GPUs of a node, of this model or of any."""
        return sum(count for name, count in parse_gpus(self.gpus) if model in ("", name))

    def memory_share_mb(self, gpus: int, model: str = "") -> float:
        """The share of a node's memory that belongs to some of its GPUs; 0 if the node has fewer, or for none."""
        count = self.gpu_count(model)
        return self.node_memory_mb * gpus / count if 0 < gpus <= count else 0.0

    @property
    def node_memory_mb(self) -> int:
        """The memory of the smallest node."""
        return int(self.memory_mb.rstrip("+"))

    def __str__(self) -> str:
        """Name, and what a job can request in this partition."""
        nodes = count_of(self.nodes, "node")
        parts = [f"{nodes} of {self.cpus} CPUs and {self.memory_mb} MB", f"walltime at most {self.limit}"]
        parts += [self.gpus] if self.gpus != "(null)" else ["no GPUs"]
        parts += [f"features {self.features}"] if self.features != "(null)" else []
        return f"{self.name} ({', '.join(parts)})"


_PARTITION_FORMAT = "%P|%a|%l|%D|%c|%m|%G|%f"


def list_partitions() -> list[Partition]:
    """The partitions of this cluster.

    Raises:
        UserError: Slurm does not respond, or its output cannot be read.
    """
    lines = drop_cluster_lines(run_slurm_command("sinfo", "--noheader", "--format", _PARTITION_FORMAT))
    return [parse_partition(line) for line in lines]


def parse_partition(line: str) -> Partition:
    """A line of `sinfo --noheader --format '%P|%a|%l|%D|%c|%m|%G|%f'`.

    Raises:
        UserError: the line has another format.
    """
    try:
        name, state, limit, nodes, cpus, memory, gpus, features = line.strip().split("|")
        return Partition(
            name=name.rstrip("*"),
            default=name.endswith("*"),
            up=state == "up",
            limit_minutes=parse_time_limit(limit),
            limit=limit,
            nodes=int(nodes),
            cpus=cpus,
            memory_mb=memory,
            gpus=re.sub(r"\(S:[^)]*\)", "", gpus),  # without the sockets that a GPU is bound to
            features=features,
        )
    except ValueError:
        raise UserError(f"sinfo printed a line that cannot be read as a partition: {line!r}") from None


def parse_gpus(gres: str) -> list[tuple[str, int]]:
    """Model and count of the GPUs in `gpu:a100:4,gpu:2`; a model may be ""."""
    return [(model, int(count)) for model, count in re.findall(r"\bgpu(?::([^:,()]+))?:(\d+)", gres)]


def named_partitions(partitions: Sequence[Partition], names: str) -> list[Partition]:
    """The partitions with these names, as in `gpu,long`; the default one without a name."""
    return [each for each in partitions if (each.name in names.split(",") if names else each.default)]


def list_gpu_models(partitions: Sequence[Partition], gpus: int, model: str = "") -> tuple[str, ...]:
    """The models of GPUs that a job with so many per node may get in partitions; none if one of them has no name.

    If it requests a `model`, it gets that one. A job without GPUs gets "cpu".
    """
    if model or not gpus:
        return (model if gpus else "cpu",)
    found = {name for each in partitions for name, count in parse_gpus(each.gpus) if count >= gpus}
    return () if "" in found else tuple(sorted(found))


def max_walltime_minutes(partitions: Sequence[Partition], names: str) -> float:
    """The maximum walltime of `named_partitions`; infinite if there is none."""
    return max((each.limit_minutes for each in named_partitions(partitions, names)), default=math.inf)


def parse_time_limit(text: str) -> float:
    """A time limit as Slurm prints it or sbatch takes it, in minutes.

    Examples are `30` and `30:00` (minutes), `4:00:00`, `2-0` and `2-00:00:00` (days), and `infinite`.
    """
    if text in ("infinite", "UNLIMITED", "n/a"):
        return math.inf
    days, _, clock = text.rpartition("-")
    parts = [int(part) for part in clock.split(":")]
    begins_with_hours = days or len(parts) == 3
    hours, minutes, seconds = [*([] if begins_with_hours else [0]), *parts, 0, 0][:3]
    return (int(days or 0) * 24 + hours) * 60 + minutes + seconds / 60


def parse_timestamp(text: str) -> float:
    """A time as Slurm prints it, `2026-11-20T21:30:00` in local time, in Unix seconds; infinite if Slurm has none."""
    if text in ("Unknown", "None", "N/A"):
        return math.inf
    return datetime.fromisoformat(text).timestamp()


def parse_resources(text: str) -> dict[str, float]:
    """Amounts by name from `cpu=8,gres/gpu:a100=2,mem=500G`; memory is in MB."""
    units = {"K": 2**-10, "M": 1, "G": 2**10, "T": 2**20, "P": 2**30}
    items = (item.partition("=") for item in text.split(",") if item)
    return {
        name: float(amount.rstrip("KMGTP")) * (units.get(amount[-1], 1) if name == "mem" else 1)
        for name, _, amount in items
    }


def list_associations(user: str) -> list[tuple[str, list[str]]]:
    """The associations of a user: accounts to charge, each with the qualities of service that it allows."""
    rows = query_sacctmgr("associations", f"user={user}", columns=["Account", "QOS"])
    return [(row["Account"], row["QOS"].split(",")) for row in rows]


def query_sacctmgr(*query: str, columns: Sequence[str]) -> list[dict[str, str]]:
    """The rows that `sacctmgr show` prints, by column."""
    command = ["sacctmgr", "--noheader", "--parsable2", "show", *query, f"format={','.join(columns)}"]
    return [dict(zip(columns, line.split("|"), strict=True)) for line in run_slurm_command(*command).splitlines()]


@dataclass(frozen=True)
class PartitionSettings:
    """The settings of a partition that `sinfo` does not show."""

    name: str
    qos: str  # its own quality of service, whose limits apply to all jobs; "" for none
    preempt_mode: str  # what happens to its jobs when others preempt them: "OFF", "REQUEUE", "CANCEL", ...
    grace_seconds: float  # from SIGTERM to SIGKILL on preemption


def list_partition_settings() -> list[PartitionSettings]:
    """The settings of each partition."""
    partitions = []
    for fields in map(parse_fields, run_slurm_command("scontrol", "show", "partitions", "--oneliner").splitlines()):
        if "PartitionName" not in fields:
            continue
        qos = fields.get("QoS", "N/A")
        grace = fields.get("GraceTime", "0")
        settings = PartitionSettings(
            name=fields["PartitionName"],
            qos="" if qos == "N/A" else qos,
            preempt_mode=fields.get("PreemptMode", "OFF"),
            grace_seconds=float(grace) if grace.isdigit() else 60 * parse_time_limit(grace),
        )
        partitions.append(settings)
    return partitions


def controller_settings() -> dict[str, str]:
    """The settings of the controller, such as `PreemptMode`, as `scontrol show config` prints them."""
    lines = run_slurm_command("scontrol", "show", "config").splitlines()
    return {name.strip(): value.strip() for name, sign, value in (line.partition("=") for line in lines) if sign}


def controller_status() -> str:
    """Slurm's version, and the state of its controllers as `scontrol ping` prints it."""
    version = run_slurm_command("sinfo", "--version")
    ping = run_slurm_command("scontrol", "ping")
    return f"{version.strip()}; {'; '.join(ping.strip().splitlines())}"


# The states of a job that has ended, and of one that Slurm is ending.
ENDED: Final = {"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED",
                "REVOKED", "TIMEOUT"}  # fmt: skip
COMPLETING: Final = "COMPLETING"
# Reasons for which Slurm never starts a pending job as it is, according to its documentation of reason codes.
_HOPELESS: Final = {
    r"PartitionTimeLimit": "its walltime is above the limit of its partition",
    r"PartitionNodeLimit": "its number of nodes is outside the limits of its partition",
    r"(Assoc|QOS)Max\w+Per(Job|Node)\w*": "it requests more than this limit allows a job",
    r"QOSMin\w+": "it requests less than its QOS requires",
    r"QOSTimeLimit": "its QOS has used up its time",
    r"BadConstraints": "no node can satisfy its constraints",
    r"(Account|QOS)NotAllowed": "its partition does not accept its account or QOS",
    r"Invalid(Account|QOS)": "its account or QOS is invalid",
    r"DependencyNeverSatisfied": "a job on which it depends has failed",
    r"JobHeld(User|Admin)|JobHoldMaxRequeue|.*requeued.*held.*": "it is held until it is released (`scontrol release`)",
    r"Partition(Down|Inactive)": "its partition starts no jobs",
}


@dataclass(frozen=True)
class UserJob:
    """A job in the queue, or that has ended a short time ago."""

    job: str  # Slurm's ID
    state: str  # "PENDING", "RUNNING", "COMPLETING", "COMPLETED", ...
    submitted: str  # "2026-11-20T21:30:00"
    reason: str  # for which it is pending: "Priority"
    comment: str
    folder: Path  # in which it runs

    @property
    def is_live(self) -> bool:
        """Whether it is pending or runs, and Slurm is not ending it."""
        return self.state not in ENDED and self.state != COMPLETING

    def shares_sweep_with(self, comment: str) -> bool:
        """Whether this and the job with this comment belong to the same sweep: comments end with the job's number."""
        return self.comment.rpartition("_")[0] == comment.rpartition("_")[0]

    def is_of(self, sweep: str) -> bool:
        """Whether this is a job of a sweep, by the comment that the executor gives it."""
        own = f"_wildcards_{sweep}"
        return re.fullmatch(rf"rule_\w*sweep\w*?({own}|_job\w*?{own}_\d+)", self.comment) is not None

    @property
    def why_hopeless(self) -> str:
        """Why Slurm will never start it as it is; "" if Slurm may."""
        if self.state != "PENDING":
            return ""
        return next((text for reason, text in _HOPELESS.items() if re.fullmatch(reason, self.reason)), "")

    @property
    def waits_for_limit(self) -> bool:
        """Whether it is pending because of a limit of the accounting on several jobs together."""
        return self.state == "PENDING" and re.match(r"(Assoc|QOS)(Grp|Max)", self.reason) is not None


def describe_jobs(jobs: Iterable[UserJob]) -> str:
    """How many of the jobs run or wait, and for what: `2 jobs running, 1 job pending: Priority`."""
    states = Counter[str]()
    for job in jobs:
        if job.state == "PENDING":
            states[f"pending: {job.why_hopeless or job.reason}"] += 1
        elif job.state not in ENDED:
            states[job.state.lower()] += 1
    return ", ".join(f"{count_of(count, 'job')} {state}" for state, count in states.items())


_FORMAT: Final = "%i|%T|%V|%r|%k|%Z"


def list_user_jobs() -> list[UserJob]:
    """The jobs of this user that are in the queue, and those that ended less than Slurm's MinJobAge ago."""
    # `all` includes those that have ended, as long as the controller knows them.
    whose = ["--user", str(os.getuid()), "--states", "all", "--array"]
    output = run_slurm_command("squeue", "--noheader", *whose, "--format", _FORMAT)
    lines = (line for line in drop_cluster_lines(output) if line.count("|") >= _FORMAT.count("|"))
    return [parse_user_job(line) for line in lines]  # a comment may have several lines


def list_jobs_in(folder: Path) -> list[UserJob]:
    """The jobs of this user that run in a folder; none if Slurm is not there, or does not respond."""
    try:
        return [job for job in list_user_jobs() if job.folder == folder.resolve()]
    except UserError:
        return []


def parse_user_job(line: str) -> UserJob:
    """A line of `squeue --noheader --format '%i|%T|%V|%r|%k|%Z'`."""
    job, state, submitted, reason, comment, folder = line.split("|", 5)
    return UserJob(job, state, submitted, reason, comment, Path(folder))


def final_state(job: str) -> str:
    """The state in which a job ended or is being ended, such as PREEMPTED; "" if Slurm does not know it any more.

    A preempted job whose program ends within the grace period counts as preempted, though Slurm reports FAILED.
    """
    try:
        fields = parse_fields(run_slurm_command("scontrol", "show", "job", "--oneliner", job))
    except UserError:  # it ended longer than MinJobAge ago
        return recorded_state(job)
    preempted, started = (parse_timestamp(fields.get(name, "None")) for name in ("PreemptTime", "StartTime"))
    state = recorded_state(job) if fields["JobState"] == COMPLETING else fields["JobState"]
    return "PREEMPTED" if state == "FAILED" and started <= preempted < math.inf else state


@dataclass(frozen=True)
class Request:
    """What a job in the queue has requested."""

    account: str
    qos: str
    partition: str
    minutes: float
    resources: dict[str, float]  # on all nodes together, as Slurm names them; memory is in MB


def describe_request(job: str) -> Request:
    """The request of a job in the queue.

    Raises:
        UserError: Slurm does not know the job, or does not respond.
    """
    fields = parse_fields(run_slurm_command("scontrol", "show", "job", "--oneliner", job))
    return Request(
        account=fields.get("Account", "").replace("(null)", ""),
        qos=fields.get("QOS", "").replace("(null)", ""),
        partition=fields.get("Partition", "").split(",")[0],
        minutes=parse_time_limit(fields.get("TimeLimit", "UNLIMITED")),
        resources=parse_resources(fields.get("ReqTRES") or fields.get("TRES", "")),
    )
