"""Checks of a site before anything is submitted: each one passes, warns, fails with a remedy, or is unknown."""

import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence

from trainyard.checks.config_checks import check_use
from trainyard.checks.findings import Finding, catch_errors
from trainyard.checks.limits import check_limits, check_preemption
from trainyard.checks.memory import check_memory
from trainyard.checks.sbatch_requests import Refusal, SbatchRequest
from trainyard.checks.site import Site
from trainyard.checks.storage import check_home, check_results
from trainyard.cluster import slurm_queries
from trainyard.cluster.slurm_queries import TEMPORARY, Association, Partition
from trainyard.utils.errors import UserError

WRONG = ("warns", "fails")
PROGRAMS = ("sbatch", "srun", "squeue", "scancel", "scontrol", "sinfo")


def check_site(site: Site) -> Iterator[Finding]:
    """Yield the findings of all checks that need no job, each as soon as it is known."""
    for name, check in CHECKS:
        yield from catch_errors(name, lambda check=check: check(site))  # type: ignore[misc]


def check_files_and_code(site: Site) -> Iterator[Finding]:
    """The checks of `make check`: of them, only what is wrong is shown."""
    wrong = [each for each in check_use(site.config, site.results, has_scheduler=True) if each.verdict in WRONG]
    yield from wrong
    if not wrong:
        yield Finding("config", "ok", "its files and code are right, as far as this machine can tell")


def check_slurm(site: Site) -> Iterator[Finding]:
    """Slurm's programs are on PATH, and its controller responds."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        remedy = "run this on a login node of the cluster; some sites need `module load slurm`"
        yield Finding("Slurm", "fails", f"not on PATH: {', '.join(missing)}", remedy)
    else:
        yield Finding("Slurm", "ok", slurm_queries.controller_status())


def check_accounting(site: Site) -> Iterator[Finding]:
    """Slurm keeps accounting, and the user has an account."""
    try:
        names = sorted({each.account for each in slurm_queries.list_associations(site.user)})
    except UserError as error:
        remedy = "jobs run without it, but accounts and ended jobs cannot be looked up"
        yield Finding("accounting", "unknown", str(error), remedy)
        return
    if names:
        yield Finding("accounting", "ok", f"accounts of {site.user}: {', '.join(names)}")
    else:
        remedy = "ask the site's administrators for an account"
        yield Finding("accounting", "unknown", f"there is no account for {site.user}", remedy)


def check_jobs(site: Site) -> Iterator[Finding]:
    """Every job of the config reaches sbatch, and Slurm accepts it."""
    yield from (describe_refusal(site, each) for each in site.jobs[1])
    yield from (check_request(each, site.partitions) for each in site.requests)


def describe_refusal(site: Site, refusal: Refusal) -> Finding:
    """Jobs that Snakemake or its plugin refuses, in their own words."""
    remedy = f"correct the error in {site.profile} or {site.config_file}"
    return Finding("jobs", "fails", f"Snakemake does not submit {', '.join(refusal.jobs)}: {refusal.message}", remedy)


def check_request(request: SbatchRequest, partitions: Sequence[Partition]) -> Finding:
    """Slurm accepts a job, and its walltime is within the limit of its partition."""
    names = (request.options.partition or "").split(",")
    kinds = [each for each in partitions if (each.name in names if any(names) else each.default)]
    available = "; ".join(map(str, partitions))
    if not kinds:
        where = f"there is no partition {request.options.partition!r}"
        message = where if any(names) else "no partition is requested, and Slurm has no default"
        return Finding(request.job, "fails", message, f"set slurm_partition in the profile; available: {available}")
    if not any(each.up for each in kinds):
        remedy = f"wait, or use another partition: {available}"
        return Finding(request.job, "fails", f"partition {kinds[0].name} is not up", remedy)
    if request.options.time and request.options.time > max(each.limit_minutes for each in kinds):
        remedy = "lower `runtime` in the profile: trials that finish within it stay finished"
        message = f"{request}: above the limit of {kinds[0].name}, {kinds[0].limit}"
        return Finding(request.job, "fails", message, remedy)
    if refusal := not request.accepted and TEMPORARY.search(request.response):
        message = f"{request}: sbatch refuses it for now ({refusal[0]})"
        remedy = "Snakemake submits it when others have ended; if nothing of yours is in the queue, ask for the limit"
        return Finding(request.job, "warns", message, remedy)
    if not request.accepted:
        constraint = f", constraint {request.options.constraint}" if request.options.constraint else ""
        message = f"{request}{constraint}: {request.response}"
        return Finding(request.job, "fails", message, f"request what is available: {available}")
    return Finding(request.job, "ok", f"{request}, partition {kinds[0].name}; {_estimated_start(request.response)}")


def _estimated_start(response: str) -> str:
    """Slurm's estimate in `sbatch: Job 12 to start at 2026-11-21T03:12:36 using 1 processors on nodes n1 in ...`."""
    _, _, estimate = response.partition("to start at ")
    return f"could start {estimate.split()[0].replace('T', ' ')}" if estimate else "Slurm accepts it"


def check_account(site: Site) -> Iterator[Finding]:
    """The user may charge the accounts and use the qualities of service that the jobs name."""
    if not any(each.options.account or each.options.qos for each in site.requests):
        yield Finding("account", "ok", "none requested: Slurm uses the user's default")
        return
    try:
        yield compare_accounts(site.requests, slurm_queries.list_associations(site.user), site.user)
    except UserError as error:
        yield Finding("account", "unknown", str(error), "ask the site's administrators which accounts you may use")


def compare_accounts(requests: Sequence[SbatchRequest], associations: Sequence[Association], user: str) -> Finding:
    """Whether a user's associations allow the accounts and qualities of service that the jobs name."""
    accounts = {each.options.account for each in requests} - {None}
    wanted_qos = {each.options.qos for each in requests} - {None}
    if wrong := accounts - {each.account for each in associations}:
        known = ", ".join(sorted({each.account for each in associations})) or "(none)"
        remedy = f"set slurm_account in the profile to one of: {known}"
        return Finding("account", "fails", f"{', '.join(sorted(wrong))}: no account of {user}", remedy)
    allowed = {qos for each in associations if not accounts or each.account in accounts for qos in each.qos}
    if wanted_qos - allowed:
        remedy = f"set qos in the profile to one of: {', '.join(sorted(allowed))}"
        return Finding("account", "fails", f"QoS {', '.join(sorted(wanted_qos - allowed))} is not allowed", remedy)
    message = ", ".join(sorted(accounts)) or "the user's default"
    return Finding("account", "ok", message + (f"; QoS {', '.join(sorted(wanted_qos))}" if wanted_qos else ""))


CHECKS: tuple[tuple[str, Callable[[Site], Iterable[Finding]]], ...] = (
    ("Slurm", check_slurm),
    ("accounting", check_accounting),
    ("config", check_files_and_code),
    ("jobs", check_jobs),
    ("account", check_account),
    ("limits", check_limits),
    ("preemption", check_preemption),
    ("memory", check_memory),
    ("results", lambda site: check_results(site.results)),
    ("home", lambda _: check_home()),
)
