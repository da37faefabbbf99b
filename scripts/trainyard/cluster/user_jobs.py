"""The jobs of this user, how a job has ended, and why one will never start."""

import math
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from trainyard.cluster.slurm_allocation import parse_timestamp
from trainyard.cluster.slurm_limits import parse_resources
from trainyard.cluster.slurm_queries import (
    drop_cluster_lines,
    parse_fields,
    parse_time_limit,
    recorded_state,
    run_slurm_command,
)
from trainyard.utils.errors import UserError

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
    r"ReqNodeNotAvail, ?UnavailableNodes:.+": "nodes that it requires are down, drained or do not respond",
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


_FORMAT: Final = "%i|%T|%V|%r|%k|%Z"


def list_user_jobs() -> list[UserJob]:
    """The jobs of this user that are in the queue, and those that ended less than Slurm's MinJobAge ago.

    Raises:
        UserError: Slurm does not respond.
    """
    # `all` includes those that have ended, as long as the controller knows them.
    whose = ["--user", str(os.getuid()), "--states", "all", "--array"]
    output = run_slurm_command("squeue", "--noheader", *whose, "--format", _FORMAT)
    lines = (line for line in drop_cluster_lines(output) if line.count("|") >= _FORMAT.count("|"))
    return [parse_user_job(line) for line in lines]  # a comment may have several lines


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
