"""The limits that Slurm's accounting sets for a user's jobs, from `sacctmgr`, and how they affect a request."""

import math
import re
from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

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

WALLTIME = "minutes of walltime"
RUNNING = "jobs running"
QUEUED = "jobs in the queue"
PER_JOB = "per job"
IN_ALL_JOBS = "in all jobs"
# sacctmgr's columns, and what they limit; the strictest counts where a level has several.
_COMMON_LIMITS = {"GrpTRES": IN_ALL_JOBS, "MaxTRES": PER_JOB, "MaxWall": WALLTIME, "GrpJobs": RUNNING,
                  "GrpSubmit": QUEUED}  # fmt: skip
_QOS_LIMITS = {**_COMMON_LIMITS, "MaxJobsPU": RUNNING, "MaxSubmitPU": QUEUED, "MaxTRESPU": IN_ALL_JOBS,
               "MaxJobsPA": RUNNING, "MaxSubmitPA": QUEUED, "MaxTRESPA": IN_ALL_JOBS}  # fmt: skip
_ASSOCIATION_LIMITS = {**_COMMON_LIMITS, "MaxJobs": RUNNING, "MaxSubmit": QUEUED}


@dataclass(frozen=True)
class Limits:
    """What one level of the accounting allows the jobs of a user."""

    origin: str = ""  # "QOS long", "account lab"
    # The limits by what they count: WALLTIME of a job, RUNNING and QUEUED jobs, and resources as Slurm names them, with
    # `mem` in MB: `gres/gpu:a100 per job`, and `cpu in all jobs`, which are all running ones.
    amounts: Mapping[str, float] = field(default_factory=dict)


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
    if not account:
        rows = query_sacctmgr("user", user, columns=["DefaultAccount"])
        account = rows[0]["DefaultAccount"] if rows else ""
    columns = ["Cluster", "Account", "User", "Partition", "ParentName", "DefaultQOS", *_ASSOCIATION_LIMITS]

    def find_associations(whose: str) -> list[dict[str, str]]:
        rows = query_sacctmgr("associations", whose, columns=columns)
        return [row for row in rows if row["Cluster"] == controller.get("ClusterName", "")]

    of_user = find_associations(f"user={user}")
    fitting = (row for row in of_user if row["Account"] == account and row["Partition"] in ("", partition))
    own = max(fitting, key=lambda row: row["Partition"], default={})  # for this partition only, if there is one
    if not (qos := qos or own.get("DefaultQOS", "")):
        allowed = next((names for charged, names in list_associations(user) if charged == account), [])
        qos = (allowed[0] if len(allowed) == 1 else "") or "normal"
    associations = {f"{user} in account {account}": own} if own else {}
    accounts = {row["Account"]: row for row in find_associations("user=")}
    name = account
    while name in accounts:
        row = associations[f"account {name}"] = accounts.pop(name)
        name = row["ParentName"]
    levels = {row["Name"]: row for row in query_sacctmgr("qos", columns=["Name", *_QOS_LIMITS])}
    named = [*(each.qos for each in list_partition_settings() if each.name == partition), qos]
    found = [_parse_limits(levels[name], _QOS_LIMITS, f"QOS {name}") for name in named if name in levels]
    return [*found, *(_parse_limits(row, _ASSOCIATION_LIMITS, origin) for origin, row in associations.items())]


def _parse_limits(row: Mapping[str, str], columns: Mapping[str, str], origin: str) -> Limits:
    amounts: dict[str, float] = {}
    for column, what in columns.items():
        if what in (PER_JOB, IN_ALL_JOBS):
            limits = {f"{name} {what}": amount for name, amount in parse_resources(row[column]).items()}
        else:
            parse = parse_time_limit if what == WALLTIME else float
            limits = {what: parse(row[column])} if row[column] else {}
        amounts |= {name: min(amount, amounts.get(name, math.inf)) for name, amount in limits.items()}
    return Limits(origin, amounts)


def first_limit(levels: Sequence[Limits], *names: str) -> tuple[float, str]:
    """The strictest of these limits at the first level that sets one, as in Slurm, and its origin; infinite without."""
    for each in levels:
        if found := [each.amounts[name] for name in names if name in each.amounts]:
            return min(found), each.origin
    return math.inf, ""


def combine_limits(levels: Sequence[Limits]) -> dict[str, float]:
    """The limits that apply: each as the first level sets it that has it."""
    return dict(ChainMap(*(dict(each.amounts) for each in levels)))


def find_excesses(minutes: float, resources: Mapping[str, float], levels: Sequence[Limits]) -> Iterator[str]:
    """What a job of so many minutes, with these resources on all nodes, requests above its limits.

    Each text names the level that sets the limit: the first one that has it. Slurm would never start the job.
    """
    of_resources = {f"{name} {of}": amount for of in (PER_JOB, IN_ALL_JOBS) for name, amount in resources.items()}
    for name, amount in {WALLTIME: minutes, **of_resources}.items():
        limit, origin = first_limit(levels, name)
        if amount > limit:
            yield f"{amount:g} {name}, but {origin} allows {limit:g}"


@dataclass(frozen=True)
class JobLimits:
    """The limits on one job, in Slurm's order of precedence; the first level that has a limit counts."""

    levels: tuple[Limits, ...] = ()
    gpu_type: str = ""  # that the job requests; "" for any

    @property
    def minutes(self) -> float:
        """The longest walltime; infinite without a limit."""
        return first_limit(self.levels, WALLTIME)[0]

    @property
    def gpus(self) -> float:
        """The most GPUs on all nodes; infinite without a limit. A job with more would wait forever."""
        return self._find_gpus()[0]

    def _find_gpus(self) -> tuple[float, str]:
        """The most GPUs, by the limit on all types or by that on the requested type, and its origin."""
        names = ["gres/gpu", *([f"gres/gpu:{self.gpu_type}"] if self.gpu_type else [])]
        return min(first_limit(self.levels, f"{name} {PER_JOB}", f"{name} {IN_ALL_JOBS}") for name in names)

    def describe(self, minutes: float, *, gpus: int, max_gpus: int) -> str:
        """How the limits affect a job that needs `minutes`, and requests `gpus` of at most `max_gpus`; "" for not."""
        (longest, of_time), (most, of_gpus) = first_limit(self.levels, WALLTIME), self._find_gpus()
        text = f"; limited by {of_time}: {format_duration(60 * longest)} of walltime" if minutes > longest else ""
        if gpus > most:
            return f"{text}; above the limit of {of_gpus}: {most:g} GPUs, so that Slurm would never start it"
        return f"{text}; limited by {of_gpus}: {most:g} GPUs" if max_gpus > most else text


@cache
def find_limits(account: str, qos: str, partition: str, gpu_type: str = "") -> JobLimits:
    """The limits on this user's jobs; none away from a cluster, or without accounting."""
    try:
        levels = list_limits(host.user_name(), account=account, qos=qos, partition=partition)
        return JobLimits(tuple(levels), gpu_type)
    except (UserError, ValueError):
        return JobLimits()
