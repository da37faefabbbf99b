"""The limits that Slurm's accounting sets for a user's jobs, from `sacctmgr`, and how they affect a request."""

import math
import re
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial

from trainyard.cluster import host
from trainyard.cluster.slurm_queries import (
    controller_settings,
    list_associations,
    list_partition_settings,
    parse_resources,
    parse_time_limit,
    query_sacctmgr,
)
from trainyard.utils.errors import UserError
from trainyard.utils.text import format_duration


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What the accounting allows the jobs of a user; infinite, or no entry, where there is no limit.

    Resources are named as Slurm names them: `cpu`, `mem` (MB), `node`, `gres/gpu`, `gres/gpu:a100`.
    """

    origin: str = ""  # "QOS long", "account lab"
    walltime_minutes: float = math.inf  # of one job
    running_jobs: float = math.inf
    submitted_jobs: float = math.inf  # pending and running
    job_resources: Mapping[str, float] = field(default_factory=dict)  # of one job
    total_resources: Mapping[str, float] = field(default_factory=dict)  # of all running jobs together


def list_limits(user: str, *, account: str = "", qos: str = "", partition: str = "") -> list[Limits]:
    """The limits for a user's jobs in Slurm's order of precedence; empty if the site enforces none.

    That is: of the partition's QOS, of the job's QOS, of the user's association, of the account and those above it.
    Without an account, the user's default applies. Without a `qos`, the QOS of the association applies: its default, or
    the only one that it allows, or else `normal`.

    Raises:
        UserError: Slurm keeps no accounting, or does not respond.
    """
    controller = controller_settings()
    if not {"limits", "safe"} & set(re.split(r"[,\s]+", controller.get("AccountingStorageEnforce", ""))):
        return []
    accounts = _Accounts(user, account, cluster=controller.get("ClusterName", ""))
    own = accounts.association(partition)
    partition_qos = [each.qos for each in list_partition_settings() if each.name == partition]
    levels = {row["Name"]: row for row in query_sacctmgr("qos", columns=["Name", *_QOS_LIMITS])}
    named = [*partition_qos, qos or own.get("DefaultQOS") or _only_qos(user, accounts.name) or "normal"]
    found = [_parse_limits(levels[name], _QOS_LIMITS, f"QOS {name}") for name in named if name in levels]
    associations = [(f"{user} in account {accounts.name}", own)] if own else []
    associations += [(f"account {name}", row) for name, row in accounts.ancestry()]
    return [*found, *(_parse_limits(row, _ASSOCIATION_LIMITS, origin) for origin, row in associations)]


def _only_qos(user: str, account: str) -> str:
    allowed = next((each.qos for each in list_associations(user) if each.account == account), ())
    return allowed[0] if len(allowed) == 1 else ""


class _Accounts:
    """The rows of a user's account, and of the accounts above it, on one cluster."""

    def __init__(self, user: str, account: str, *, cluster: str) -> None:
        names = ["Cluster", "Account", "User", "Partition", "ParentName", "DefaultQOS", *_ASSOCIATION_LIMITS]
        self.name = account or next(
            (row["DefaultAccount"] for row in query_sacctmgr("user", user, columns=["DefaultAccount"])), ""
        )
        found = (query_sacctmgr("associations", whose, columns=names) for whose in (f"user={user}", "user="))
        self._users, self._accounts = ([row for row in rows if row["Cluster"] == cluster] for rows in found)

    def association(self, partition: str) -> dict[str, str]:
        """The user's association, preferably the one that is only for this partition; empty if there is none."""
        own = [row for row in self._users if row["Account"] == self.name and row["Partition"] in ("", partition)]
        return max(own, key=lambda row: row["Partition"], default={})

    def ancestry(self) -> list[tuple[str, dict[str, str]]]:
        """The account and those above it, by name."""
        rows, name, found = {row["Account"]: row for row in self._accounts}, self.name, []
        while name in rows:
            found.append((name, rows.pop(name)))
            name = found[-1][1]["ParentName"]
        return found


def first_limit(levels: Sequence[Limits], value: Callable[[Limits], float]) -> tuple[float, str]:
    """The limit that applies, and its origin: the first level that sets it, as in Slurm; infinite without."""
    found = ((value(each), each.origin) for each in levels)
    return next(((limit, origin) for limit, origin in found if math.isfinite(limit)), (math.inf, ""))


def combine_limits(levels: Sequence[Limits]) -> Limits:
    """The limits that apply: for each of them, the first level that sets it."""
    return Limits(
        walltime_minutes=first_limit(levels, lambda each: each.walltime_minutes)[0],
        running_jobs=first_limit(levels, lambda each: each.running_jobs)[0],
        submitted_jobs=first_limit(levels, lambda each: each.submitted_jobs)[0],
        job_resources=dict(ChainMap(*(dict(each.job_resources) for each in levels))),
        total_resources=dict(ChainMap(*(dict(each.total_resources) for each in levels))),
    )


def find_excesses(minutes: float, resources: Mapping[str, float], levels: Sequence[Limits]) -> Iterator[str]:
    """What a job of so many minutes, with these resources on all nodes, requests above its limits.

    Each text names the level that sets the limit: the first one that has it. Slurm would never start the job.
    """
    named = [(each.origin, limits_by_name(each)) for each in levels]
    wanted = Limits(walltime_minutes=minutes, job_resources=resources, total_resources=resources)
    for name, amount in limits_by_name(wanted).items():
        origin, limit = next(((origin, limits[name]) for origin, limits in named if name in limits), ("", math.inf))
        if amount > limit:
            yield f"{amount:g} {name}, but {origin} allows {limit:g}"


def limits_by_name(limits: Limits) -> dict[str, float]:
    """The limits on the size of jobs, by what they count."""
    minutes = {"minutes of walltime": limits.walltime_minutes} if math.isfinite(limits.walltime_minutes) else {}
    per_job = {f"{name} per job": amount for name, amount in limits.job_resources.items()}
    return minutes | per_job | {f"{name} in all jobs": amount for name, amount in limits.total_resources.items()}


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


# sacctmgr's columns, by field of Limits; the strictest counts where a level has several.
_COMMON_LIMITS = {"GrpTRES": "total_resources", "MaxTRES": "job_resources", "MaxWall": "walltime_minutes",
                  "GrpJobs": "running_jobs", "GrpSubmit": "submitted_jobs"}  # fmt: skip
_QOS_LIMITS = {**_COMMON_LIMITS, "MaxJobsPU": "running_jobs", "MaxSubmitPU": "submitted_jobs",
               "MaxTRESPU": "total_resources", "MaxJobsPA": "running_jobs", "MaxSubmitPA": "submitted_jobs",
               "MaxTRESPA": "total_resources"}  # fmt: skip
_ASSOCIATION_LIMITS = {**_COMMON_LIMITS, "MaxJobs": "running_jobs", "MaxSubmit": "submitted_jobs"}


def _parse_limits(row: Mapping[str, str], columns: Mapping[str, str], origin: str) -> Limits:
    def strictest(field: str) -> float:
        parse = parse_time_limit if field == "walltime_minutes" else float
        return min(
            (parse(row[column]) for column, name in columns.items() if name == field and row[column]), default=math.inf
        )

    def resources(field: str) -> dict[str, float]:
        amounts = [parse_resources(row[column]) for column, name in columns.items() if name == field]
        return {name: min(other.get(name, math.inf) for other in amounts) for each in amounts for name in each}

    return Limits(
        origin=origin,
        walltime_minutes=strictest("walltime_minutes"),
        running_jobs=strictest("running_jobs"),
        submitted_jobs=strictest("submitted_jobs"),
        job_resources=resources("job_resources"),
        total_resources=resources("total_resources"),
    )
