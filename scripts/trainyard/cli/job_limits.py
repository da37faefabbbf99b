"""The limits of Slurm's accounting on the jobs that a profile describes, and their effect on a request, in words."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, partial

from trainyard.cluster import host
from trainyard.cluster.slurm_limits import Limits, first_limit, list_limits
from trainyard.utils.errors import UserError
from trainyard.utils.text import format_duration


@dataclass(frozen=True)
class JobLimits:
    """The limits on one job, in Slurm's order of precedence; the first level that has a limit counts."""

    levels: tuple[Limits, ...] = ()
    gpu_type: str = ""  # that the job requests; "" for any

    @property
    def minutes(self) -> float:
        """The longest walltime; infinite without a limit."""
        return first_limit(self.levels, _minutes)[0]

    @property
    def gpus(self) -> float:
        """The most GPUs on all nodes; infinite without a limit. A job with more would wait forever."""
        return self._find_gpus()[0]

    def _find_gpus(self) -> tuple[float, str]:
        """The most GPUs, by the limit on all types or by that on the requested type, and its origin."""
        names = ["gres/gpu", *([f"gres/gpu:{self.gpu_type}"] if self.gpu_type else [])]
        return min(first_limit(self.levels, partial(_amount, name=name)) for name in names)

    def describe(self, minutes: float, *, gpus: int, max_gpus: int) -> str:
        """How the limits affect a job that needs `minutes`, and requests `gpus` of at most `max_gpus`; "" for not."""
        return "".join(f"; {text}" for text in self._effects(minutes, gpus, max_gpus))

    def _effects(self, minutes: float, gpus: int, max_gpus: int) -> Iterator[str]:
        (longest, of_time), (most, of_gpus) = first_limit(self.levels, _minutes), self._find_gpus()
        if minutes > longest:
            yield f"limited by {of_time}: {format_duration(60 * longest)} of walltime"
        if gpus > most:
            yield f"above the limit of {of_gpus}: {most:g} GPUs, so that Slurm would never start it"
        elif max_gpus > most:
            yield f"limited by {of_gpus}: {most:g} GPUs"


def _minutes(limits: Limits) -> float:
    return limits.walltime_minutes


def _amount(limits: Limits, name: str) -> float:
    """The strictest limit on a resource: per job, or of all running jobs together."""
    return min(each.get(name, math.inf) for each in (limits.job_resources, limits.total_resources))


@cache
def find_limits(account: str, qos: str, partition: str, gpu_type: str = "") -> JobLimits:
    """The limits on this user's jobs; none away from a cluster, or without accounting."""
    try:
        levels = list_limits(host.user_name(), account=account, qos=qos, partition=partition)
        return JobLimits(tuple(levels), gpu_type)
    except (UserError, ValueError):
        return JobLimits()
