"""The jobs of this user that Slurm has not ended yet, and how a job has ended."""

import math
import os
from dataclasses import dataclass
from pathlib import Path

from trainyard.cluster.slurm_allocation import parse_timestamp
from trainyard.cluster.slurm_queries import drop_cluster_lines, parse_fields, recorded_state, run_slurm_command
from trainyard.utils.errors import UserError


@dataclass(frozen=True)
class LiveJob:
    """A job that is pending, runs, or is being ended."""

    job: str  # Slurm's ID
    state: str  # "PENDING", "RUNNING", "COMPLETING", ...
    submitted: str  # "2026-11-20T21:30:00"
    comment: str
    folder: Path  # in which it runs


_LIVE_FORMAT = "%A|%T|%V|%k|%Z"


def list_live_jobs() -> list[LiveJob]:
    """The live jobs of this user.

    Raises:
        UserError: Slurm does not respond.
    """
    output = run_slurm_command("squeue", "--noheader", "--user", str(os.getuid()), "--format", _LIVE_FORMAT)
    lines = (line for line in drop_cluster_lines(output) if line.count("|") >= _LIVE_FORMAT.count("|"))
    return [parse_live_job(line) for line in lines]  # a comment may have several lines


def parse_live_job(line: str) -> LiveJob:
    """A line of `squeue --noheader --format '%A|%T|%V|%k|%Z'`."""
    job, state, submitted, comment, folder = line.split("|", 4)
    return LiveJob(job, state, submitted, comment, Path(folder))


def final_state(job: str) -> str:
    """The state in which a job ended, such as COMPLETED or PREEMPTED; "" if Slurm does not know it any more.

    A preempted job whose program ends within the grace period counts as preempted, though Slurm reports FAILED.
    """
    try:
        fields = parse_fields(run_slurm_command("scontrol", "show", "job", "--oneliner", job))
    except UserError:  # it ended longer than MinJobAge ago
        return recorded_state(job)
    preempted, started = (parse_timestamp(fields.get(name, "None")) for name in ("PreemptTime", "StartTime"))
    failed_in_grace = fields["JobState"] == "FAILED" and started <= preempted < math.inf
    return "PREEMPTED" if failed_in_grace else fields["JobState"]
