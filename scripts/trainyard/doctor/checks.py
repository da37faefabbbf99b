"""Checks of a site before anything is submitted: each one passes, fails with a remedy, or is unknown."""

import getpass
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal

from trainyard.cluster import host, slurm_queries
from trainyard.cluster.slurm_queries import Association, Partition
from trainyard.config.config import Config
from trainyard.doctor.sbatch_rehearsal import Refusal, Rehearsal, SbatchRequest, rehearse
from trainyard.utils.errors import UserError

PROGRAMS = ("sbatch", "srun", "squeue", "scancel", "scontrol", "sinfo")
MIN_FREE_GIB = 5  # for checkpoints, tables and logs; datasets need more
MIN_FREE_FILES = 1000
Verdict = Literal["ok", "fails", "unknown"]


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    name: str
    verdict: Verdict
    message: str
    remedy: str = ""  # for a failure, what to do; for an unknown, how to find out


@dataclass
class Site:
    """A cluster, a config and a Snakemake profile, which are checked together."""

    config: Config
    config_file: Path
    profile: Path
    results: Path
    user: str = field(default_factory=getpass.getuser)

    @cached_property
    def rehearsal(self) -> Rehearsal:
        """The jobs that would be submitted."""
        return rehearse(self.config, self.config_file, profile=self.profile, results=self.results)

    @cached_property
    def partitions(self) -> list[Partition]:
        """The cluster's partitions."""
        return slurm_queries.list_partitions()

    def check(self) -> Iterator[Finding]:
        """Yield the findings of all checks that need no job, each as soon as it is known."""
        yield from catch_errors("Slurm", lambda: [check_slurm()])
        yield from catch_errors("accounting", lambda: [check_accounting(self.user)])
        yield from catch_errors("jobs", self._check_jobs)
        yield from catch_errors("results", lambda: check_results(self.results))

    def _check_jobs(self) -> Iterator[Finding]:
        requests = self.rehearsal.requests
        yield from map(self._describe_refusal, self.rehearsal.refusals)
        if requests:
            yield check_account(requests, lambda: slurm_queries.list_associations(self.user), self.user)
        for request in requests:
            yield check_request(request, self.partitions)

    def _describe_refusal(self, refusal: Refusal) -> Finding:
        remedy = f"correct the error in {self.profile} or {self.config_file}"
        message = f"Snakemake does not submit {', '.join(refusal.jobs)}: {refusal.words}"
        return Finding("jobs", "fails", message, remedy)


def catch_errors(name: str, check: Callable[[], Sequence[Finding] | Iterator[Finding]]) -> Iterator[Finding]:
    """Yield the findings of a check; an exception becomes one more finding."""
    try:
        yield from check()
    except UserError as error:
        remedy = "run this on a login node of the cluster, with Slurm's programs on PATH"
        yield Finding(name, "fails", str(error), remedy)
    except Exception as error:
        remedy = "this is an error in the doctor, not in your site: please report it"
        yield Finding(name, "unknown", f"the check itself failed: {type(error).__name__}: {error}", remedy)


def check_slurm() -> Finding:
    """Slurm's programs are on PATH, and its controller responds."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        remedy = "run this on a login node of the cluster; some sites need `module load slurm`"
        return Finding("Slurm", "fails", f"not on PATH: {', '.join(missing)}", remedy)
    return Finding("Slurm", "ok", slurm_queries.controller_status())


def check_accounting(user: str) -> Finding:
    """Slurm keeps accounting, and the user has an account."""
    try:
        names = sorted({each.account for each in slurm_queries.list_associations(user)})
    except UserError as error:
        remedy = "jobs run without it, but accounts and ended jobs cannot be looked up"
        return Finding("accounting", "unknown", str(error), remedy)
    if not names:
        remedy = "ask the site's administrators for an account"
        return Finding("accounting", "unknown", f"there is no account for {user}", remedy)
    return Finding("accounting", "ok", f"accounts of {user}: {', '.join(names)}")


def check_account(
    requests: Sequence[SbatchRequest], get_associations: Callable[[], list[Association]], user: str
) -> Finding:
    """The user may charge the accounts and use the qualities of service that the jobs name."""
    accounts = {each.options.account for each in requests} - {None}
    wanted_qos = {each.options.qos for each in requests} - {None}
    try:
        associations = get_associations()
    except UserError as error:
        return Finding("account", "unknown", str(error), "ask the site's administrators which accounts you may use")
    if wrong := accounts - {each.account for each in associations}:
        known = ", ".join(sorted({each.account for each in associations})) or "(none)"
        remedy = f"set slurm_account in the profile to one of: {known}"
        return Finding("account", "fails", f"{', '.join(sorted(wrong))}: no account of {user}", remedy)
    allowed = {qos for each in associations if not accounts or each.account in accounts for qos in each.qos}
    if wanted_qos - allowed:
        remedy = f"set qos in the profile to one of: {', '.join(sorted(allowed))}"
        return Finding("account", "fails", f"QoS {', '.join(sorted(wanted_qos - allowed))} is not allowed", remedy)
    message = ", ".join(sorted(accounts)) or "none requested: Slurm uses the user's default"
    return Finding("account", "ok", message + (f"; QoS {', '.join(sorted(wanted_qos))}" if wanted_qos else ""))


def check_request(request: SbatchRequest, partitions: Sequence[Partition]) -> Finding:
    """Slurm accepts a job, and its walltime is within the limit of its partition."""
    name = request.options.partition
    kinds = [each for each in partitions if (each.name == name if name else each.default)]
    available = "; ".join(map(str, partitions))
    if not kinds:
        message = f"there is no partition {name!r}" if name else "no partition is requested, and Slurm has no default"
        return Finding(request.job, "fails", message, f"set slurm_partition in the profile; available: {available}")
    if not any(each.up for each in kinds):
        remedy = f"wait, or use another partition: {available}"
        return Finding(request.job, "fails", f"partition {kinds[0].name} is not up", remedy)
    if request.options.time and request.options.time > max(each.limit_minutes for each in kinds):
        remedy = "lower `runtime` in the profile: trials that finish within it stay finished"
        message = f"{request}: above the limit of {kinds[0].name}, {kinds[0].limit}"
        return Finding(request.job, "fails", message, remedy)
    if not request.accepted:
        constraint = f", constraint {request.options.constraint}" if request.options.constraint else ""
        message = f"{request}{constraint}: {request.response}"
        return Finding(request.job, "fails", message, f"request what is available: {available}")
    return Finding(request.job, "ok", f"{request}, partition {kinds[0].name}; {_estimated_start(request.response)}")


def _estimated_start(response: str) -> str:
    """Slurm's estimate in `sbatch: Job 12 to start at 2026-11-21T03:12:36 using 1 processors on nodes n1 in ...`."""
    _, _, estimate = response.partition("to start at ")
    return f"could start {estimate.split()[0].replace('T', ' ')}" if estimate else "Slurm accepts it"


def check_results(results: Path) -> Iterator[Finding]:
    """There is space for results, on a file system that the nodes share."""
    folder = next(each for each in (results.absolute(), *results.absolute().parents) if each.exists())
    space, files = shutil.disk_usage(folder), os.statvfs(folder)
    message = f"{space.free / 2**30:.1f} GiB and {files.f_favail:,} files free in {folder}"
    if space.free < MIN_FREE_GIB * 2**30 or (files.f_files and files.f_favail < MIN_FREE_FILES):
        remedy = f"free at least {MIN_FREE_GIB} GiB and {MIN_FREE_FILES:,} files; your quota may be smaller still"
        yield Finding("free space", "fails", message, remedy)
    else:
        yield Finding("free space", "ok", f"{message} (quotas are not checked)")
    kind = host.file_system_type(folder)
    if host.is_network_file_system(kind):
        yield Finding("shared files", "ok", f"{folder} is on a network file system ({kind})")
    else:
        remedy = "`make doctor JOB=1` runs a job that reads and writes there"
        yield Finding("shared files", "unknown", f"{folder} is on {kind}, which may be local to this machine", remedy)
