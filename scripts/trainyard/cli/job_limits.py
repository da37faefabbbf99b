"""The limits of Slurm's accounting on the jobs that a profile describes, and their effect on a request, in words."""

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from trainyard.cluster import host
from trainyard.cluster.slurm_limits import Limits, first_limit, list_limits
from trainyard.utils.errors import UserError
from trainyard.utils.text import format_duration


@dataclass(frozen=True)
class JobLimits:
    """The limits on one job, in Slurm's order of precedence; the first level that has a limit counts."""

    levels: tuple[Limits, ...] = ()

    @property
    def minutes(self) -> float:
        """The longest walltime; infinite without a limit."""
        return first_limit(self.levels, _minutes)[0]

    @property
    def gpus(self) -> float:
        """The most GPUs on all nodes; infinite without a limit. A job with more would wait forever."""
        return first_limit(self.levels, _gpus)[0]

    def describe(self, minutes: float, *, gpus: int, max_gpus: int) -> str:
        """How the limits affect a job that needs `minutes`, and requests `gpus` of at most `max_gpus`; "" for not."""
        return "".join(f"; {text}" for text in self._effects(minutes, gpus, max_gpus))

    def _effects(self, minutes: float, gpus: int, max_gpus: int) -> Iterator[str]:
        (longest, of_time), (most, of_gpus) = (first_limit(self.levels, value) for value in (_minutes, _gpus))
        if minutes > longest:
            yield f"limited by {of_time}: {format_duration(60 * longest)} of walltime"
        if gpus > most:
            yield f"above the limit of {of_gpus}: {most:g} GPUs, so that Slurm would never start it"
        elif max_gpus > most:
            yield f"limited by {of_gpus}: {most:g} GPUs"


def _minutes(limits: Limits) -> float:
    return limits.walltime_minutes


def _gpus(limits: Limits) -> float:
    """The strictest limit on the GPUs of a job, of whichever type: per job, or of all running jobs together."""
    amounts = [*limits.job_resources.items(), *limits.total_resources.items()]
    return min((amount for name, amount in amounts if name == "gres/gpu"), default=math.inf)


@cache
def find_limits(account: str, qos: str, partition: str) -> JobLimits:
    """The limits on this user's jobs; none away from a cluster, without accounting, or in a job, which submits none."""
    if "SLURM_JOB_ID" in os.environ:
        return JobLimits()
    try:
        return JobLimits(tuple(list_limits(host.user_name(), account=account, qos=qos, partition=partition)))
    except (UserError, ValueError):
        return JobLimits()
