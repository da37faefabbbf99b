"""What a site must have before anything is submitted: a check passes, fails with a remedy, or says it cannot know."""

import getpass
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal

from trainyard.cluster import host, slurm_queries
from trainyard.config.config import Config
from trainyard.doctor.sbatch_rehearsal import Request, SnakemakeFailed, requests
from trainyard.utils.errors import UserError

PROGRAMS = ("sbatch", "srun", "squeue", "scancel", "scontrol", "sinfo")
LEAST_FREE_GIB = 5  # checkpoints, tables and logs; the data come on top
Verdict = Literal["ok", "fails", "unknown"]


@dataclass(frozen=True)
class Finding:
    """What one check came to."""

    name: str
    verdict: Verdict
    words: str
    remedy: str = ""  # of a failure what to do, of an unknown how to find out


@dataclass
class Site:
    """A cluster, as it is seen from here with a config and a profile."""

    config: Config
    config_file: Path
    profile: Path
    results: Path
    user: str = field(default_factory=getpass.getuser)

    @cached_property
    def requests(self) -> list[Request]:
        """The jobs that would be submitted."""
        return requests(self.config, self.config_file, profile=self.profile, results=self.results)

    @cached_property
    def partitions(self) -> list[slurm_queries.Partition]:
        """What there is."""
        return slurm_queries.list_partitions()

    def check(self) -> Iterator[Finding]:
        """All that can be found out from here, one finding after the other; ends early where Slurm does not answer."""
        yield from guarded("Slurm", lambda: [check_slurm()])
        yield from guarded("accounting", lambda: [check_accounting(self.user)])
        yield from guarded("jobs", self._check_jobs)
        yield from guarded("results", lambda: check_results(self.results))

    def _check_jobs(self) -> Iterator[Finding]:
        try:
            asked = self.requests
        except SnakemakeFailed as error:
            yield Finding("jobs", "fails", f"Snakemake stopped before it submitted anything:\n{error}",
                          f"correct what it says, in {self.profile} or {self.config_file}")  # fmt: skip
            return
        yield check_account(asked, lambda: slurm_queries.list_associations(self.user), self.user)
        for request in asked:
            yield check_request(request, self.partitions)


def guarded(name: str, check: Callable[[], Sequence[Finding] | Iterator[Finding]]) -> Iterator[Finding]:
    """The findings of a check; what goes wrong within it is a finding, too."""
    try:
        yield from check()
    except UserError as error:
        yield Finding(name, "fails", str(error), "is this a login node of the cluster, with Slurm's programs on PATH?")
    except Exception as error:
        yield Finding(name, "unknown", f"the check itself went wrong: {type(error).__name__}: {error}")


def check_slurm() -> Finding:
    """Slurm's programs are here, and its controller answers."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        return Finding("Slurm", "fails", f"not on PATH: {', '.join(missing)}",
                       "run this on a login node of the cluster; some sites need `module load slurm`")  # fmt: skip
    return Finding("Slurm", "ok", slurm_queries.controller_status())


def check_accounting(user: str) -> Finding:
    """Slurm keeps accounts: who may use which, and what became of jobs."""
    try:
        names = sorted({each.account for each in slurm_queries.list_associations(user)})
    except UserError as error:
        return Finding("accounting", "unknown", str(error), "without it, accounts and ended jobs cannot be looked up")
    if not names:
        return Finding(
            "accounting", "unknown", f"it has no account for {user}", "ask the site's administrators for one"
        )
    return Finding("accounting", "ok", f"accounts of {user}: {', '.join(names)}")


def check_account(
    asked: Sequence[Request], associations: Callable[[], list[slurm_queries.Association]], user: str
) -> Finding:
    """The accounts and qualities of service that jobs name are this user's."""
    accounts = {each.options.account for each in asked} - {None}
    wanted_qos = {each.options.qos for each in asked} - {None}
    try:
        known = associations()
    except UserError as error:
        return Finding("account", "unknown", str(error))
    wrong = accounts - {each.account for each in known}
    if wrong:
        return Finding("account", "fails", f"{', '.join(sorted(wrong))}: no account of {user}",
                       f"set slurm_account in the profile to one of: {_names(known)}")  # fmt: skip
    allowed = {qos for each in known if not accounts or each.account in accounts for qos in each.qos}
    if wanted_qos - allowed:
        return Finding("account", "fails", f"QoS {', '.join(sorted(wanted_qos - allowed))} is not allowed here",
                       f"set qos in the profile to one of: {', '.join(sorted(allowed))}")  # fmt: skip
    words = ", ".join(sorted(accounts)) or "none asked for: Slurm takes the user's default"
    return Finding("account", "ok", words + (f"; QoS {', '.join(sorted(wanted_qos))}" if wanted_qos else ""))


def _names(known: Sequence[slurm_queries.Association]) -> str:
    return ", ".join(sorted({each.account for each in known})) or "(none)"


def check_request(request: Request, partitions: Sequence[slurm_queries.Partition]) -> Finding:
    """Slurm would take a job and could start it one day, within the longest walltime of its partition."""
    name = request.options.partition
    here = [each for each in partitions if (each.name == name if name else each.default)]
    there = "; ".join(map(str, partitions))
    if not here:
        words = f"there is no partition {name!r}" if name else "no partition is named, and Slurm has no default"
        return Finding(request.job, "fails", words, f"set slurm_partition in the profile; there are: {there}")
    if not any(each.up for each in here):
        return Finding(request.job, "fails", f"partition {here[0].name} is not up", f"wait, or take another: {there}")
    limit = max(each.limit_minutes for each in here)
    if request.options.time and request.options.time > limit:
        return Finding(request.job, "fails", f"{request}: longer than {here[0].name} allows, {here[0].limit}",
                       "lower `runtime` in the profile: what has finished by then stays finished")  # fmt: skip
    if not request.accepted:
        asked = f"{request}, constraint {request.options.constraint}" if request.options.constraint else str(request)
        return Finding(request.job, "fails", f"{asked}: {request.answer}", f"ask for what there is: {there}")
    return Finding(request.job, "ok", f"{request}, partition {here[0].name}; {_start(request.answer)}")


def _start(answer: str) -> str:
    """Slurm's guess of `sbatch: Job 12 to start at 2026-11-21T03:12:36 using 1 processors on nodes n1 in ...`."""
    _, _, guess = answer.partition("to start at ")
    return f"could start {guess.split()[0].replace('T', ' ')}" if guess else "Slurm takes it"


def check_results(results: Path) -> Iterator[Finding]:
    """There is room for results, on a file system that the nodes see, too."""
    folder = next(each for each in (results.absolute(), *results.absolute().parents) if each.exists())
    space, files = shutil.disk_usage(folder), os.statvfs(folder)
    free = f"{space.free / 2**30:.1f} GiB and {files.f_favail:,} files free at {folder}"
    if space.free < LEAST_FREE_GIB * 2**30 or (files.f_files and files.f_favail < 1000):
        yield Finding("free space", "fails", free, f"make room for at least {LEAST_FREE_GIB} GiB and 1,000 files; "
                      "a quota that you have may be smaller still")  # fmt: skip
    else:
        yield Finding("free space", "ok", f"{free} (a quota of yours is not seen here)")
    kind = host.file_system_type(folder)
    if host.is_network_file_system(kind):
        yield Finding("shared files", "ok", f"{folder} is on a network file system ({kind})")
    else:
        yield Finding("shared files", "unknown", f"{folder} is on {kind}, which may be of this machine only",
                      "`make doctor JOB=1` has a node read and write there")  # fmt: skip
