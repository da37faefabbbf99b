"""Checks of a site before anything is submitted: each one passes, warns, fails with a remedy, or is unknown."""

import math
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path

from trainyard.checks.config_checks import check_use
from trainyard.checks.findings import Finding, Verdict, catch_errors
from trainyard.checks.sbatch_requests import SbatchRequest, request_jobs
from trainyard.checks.storage import check_home, check_results
from trainyard.cluster import host, slurm_limits, slurm_queries
from trainyard.cluster.slurm_limits import QUEUED, RUNNING, Limits, combine_limits, find_excesses
from trainyard.cluster.slurm_queries import TEMPORARY, Partition, PartitionSettings
from trainyard.config.config import Config
from trainyard.planning.memory_request import data_mib
from trainyard.utils.errors import UserError

WRONG = ("warns", "fails")
PROGRAMS = ("sbatch", "srun", "squeue", "scancel", "scontrol", "sinfo")


@dataclass
class Site:
    """A cluster, a config and a Snakemake profile."""

    config: Config
    config_file: Path
    profile: Path
    results: Path
    user: str = field(default_factory=host.user_name)

    @cached_property
    def jobs(self) -> tuple[list[SbatchRequest], dict[str, list[str]]]:
        """The jobs of the config that would be submitted, and those that would not, by the error."""
        return request_jobs(self.config, self.config_file, self.profile)

    @property
    def requests(self) -> list[SbatchRequest]:
        """The jobs that would be submitted."""
        return self.jobs[0]

    @cached_property
    def partitions(self) -> list[Partition]:
        """The cluster's partitions."""
        return slurm_queries.list_partitions()

    @cached_property
    def partition_settings(self) -> dict[str, PartitionSettings]:
        """The settings of the partitions, by name."""
        return {each.name: each for each in slurm_queries.list_partition_settings()}

    @cached_property
    def controller(self) -> dict[str, str]:
        """The settings of Slurm's controller."""
        return slurm_queries.controller_settings()

    def partition_of(self, request: SbatchRequest) -> str:
        """The name of the partition that a job would run in; the first one, if it requests several."""
        default = next((each.name for each in self.partitions if each.default), "")
        return (request.options.partition or default).split(",")[0]


def check_files_and_code(site: Site) -> Iterator[Finding]:
    """The checks of `trainyard check`: of them, only what is wrong is shown."""
    found = check_use(site.config, site.results, has_scheduler=True, other_environment=True)
    wrong = [each for each in found if each.verdict in WRONG]
    yield from wrong
    if not wrong:
        yield Finding("config", "ok", "its files and code are right, as far as this machine can tell")


def check_slurm(site: Site) -> Iterator[Finding]:
    """Slurm's programs are on PATH, and its controller responds."""
    if missing := [name for name in PROGRAMS if shutil.which(name) is None]:
        remedy = "run this on a login node of the cluster; some sites need `module load slurm`"
        yield Finding("Slurm", "fails", f"not on PATH: {', '.join(missing)}", remedy)
    else:
        yield Finding("Slurm", "ok", slurm_queries.controller_status())


def check_accounting(site: Site) -> Iterator[Finding]:
    """Slurm keeps accounting, and the user has an account."""
    try:
        allowed = dict(slurm_queries.list_associations(site.user))
    except UserError as error:
        remedy = "jobs run without it, but accounts and ended jobs cannot be looked up"
        yield Finding("accounting", "unknown", str(error), remedy)
        return
    if allowed:
        accounts = ", ".join(f"{account} (QoS {', '.join(names)})" for account, names in sorted(allowed.items()))
        yield Finding("accounting", "ok", f"accounts of {site.user}: {accounts}")
    else:
        remedy = "ask the site's administrators for an account"
        yield Finding("accounting", "unknown", f"there is no account for {site.user}", remedy)


def check_jobs(site: Site) -> Iterator[Finding]:
    """Every job of the config reaches sbatch, and Slurm accepts it."""
    requests, refused = site.jobs
    remedy = f"correct the error in {site.profile} or {site.config_file}"
    for error, jobs in refused.items():
        yield Finding("jobs", "fails", f"Snakemake does not submit {', '.join(sorted(jobs))}: {error}", remedy)
    yield from (check_request(each, site.partitions) for each in requests)


def check_submission(site: Site) -> Iterator[Finding]:
    """Only what is wrong with the jobs of the config; nothing away from a cluster."""
    with suppress(UserError):
        if site.partitions:
            yield from [each for each in check_jobs(site) if each.verdict == "fails"]


def check_request(request: SbatchRequest, partitions: Sequence[Partition]) -> Finding:
    """Slurm accepts a job, and its walltime is within the limit of its partition."""
    names = request.options.partition or ""
    available = "; ".join(map(str, partitions))
    kinds = slurm_queries.named_partitions(partitions, names)
    if not kinds:
        where = f"there is no partition {names!r}"
        message = where if names else "no partition is requested, and Slurm has no default"
        return Finding(request.job, "fails", message, f"set slurm_partition in the profile; available: {available}")
    if not any(each.up for each in kinds):
        remedy = f"wait, or use another partition: {available}"
        return Finding(request.job, "fails", f"partition {kinds[0].name} is not up", remedy)
    if request.options.time and request.options.time > max(each.limit_minutes for each in kinds):
        remedy = "lower `walltime`, or `runtime` in the profile: trials that finish within it stay finished"
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
    _, _, estimate = request.response.partition("to start at ")  # a time, `2026-11-21T03:12:36`, and the nodes
    start = f"could start {estimate.split()[0].replace('T', ' ')}" if estimate else "Slurm accepts it"
    return Finding(request.job, "ok", f"{request}, partition {kinds[0].name}; {start}")


def check_limits(site: Site) -> Iterator[Finding]:
    """No job is above the limits of its quality of service and account: Slurm would accept it, but never start it."""
    if not site.requests:
        return
    list_limits = cache(slurm_limits.list_limits)  # of most jobs, they are the same
    named = [(each.options.account or "", each.options.qos or "", site.partition_of(each)) for each in site.requests]
    try:
        levels = [list_limits(site.user, account=account, qos=qos, partition=where) for account, qos, where in named]
    except UserError as error:
        yield Finding("limits", "unknown", str(error), "ask the site's administrators for the limits of your account")
    else:
        yield compare_limits(site.requests, levels)


def compare_limits(requests: Sequence[SbatchRequest], levels: Sequence[Sequence[Limits]]) -> Finding:
    """Compare each job with its limits, and the number of jobs with the strictest one."""
    pairs = list(zip(requests, levels, strict=True))
    above: dict[str, list[str]] = {}
    for job, limits in pairs:
        for text in find_excesses(job.options.time or 0, job.resources, limits):
            above.setdefault(text, []).append(job.job)
    if above:
        remedy = "request less, or set another `qos` or `slurm_account` in the profile: Slurm would never start them"
        return Finding(
            "limits", "fails", "; ".join(f"{', '.join(jobs)}: {text}" for text, jobs in above.items()), remedy
        )
    combined = [combine_limits(each) for each in levels]
    counts = {name: min(each.get(name, math.inf) for each in combined) for name in (QUEUED, RUNNING)}
    others = [(name, value) for each in combined for name, value in each.items() if name not in counts]
    applying = [*counts.items(), *others]
    texts = list(dict.fromkeys(f"at most {value:g} {name}" for name, value in applying if math.isfinite(value)))
    if len(requests) > counts[QUEUED]:
        texts.append(f"so that some of the {len(requests)} jobs are submitted later")
    return Finding("limits", "ok", ", ".join(texts) or "the site enforces none for these jobs")


# What happens to the jobs of a partition when others preempt them: a verdict, and what Trainyard does.
PREEMPTION: dict[str, tuple[Verdict, str]] = {
    "OFF": ("ok", "jobs are not preempted"),
    "REQUEUE": ("ok", "preempted jobs are requeued, and continue from their durable state"),
    "CANCEL": ("ok", "preempted jobs are cancelled; Snakemake submits them again, and they continue"),
    "SUSPEND": ("warns", "preempted jobs are suspended, and their walltime with them"),
    "GANG": ("warns", "jobs take turns on the same nodes, and their walltime goes on in their turns only"),
}


def check_preemption(site: Site) -> Iterator[Finding]:
    """What happens when other jobs preempt these."""
    kind = site.controller.get("PreemptType", "")
    for name in sorted({site.partition_of(each) for each in site.requests} & set(site.partition_settings)):
        if "qos" in kind:
            remedy = "`sacctmgr show qos format=name,preempt,preemptmode` lists which and how"
            yield Finding("preemption", "unknown", "jobs of one QOS may preempt jobs of another", remedy)
            return
        partition = site.partition_settings[name]
        mode = partition.preempt_mode if "partition_prio" in kind else "OFF"
        verdict, effect = next((PREEMPTION[each] for each in mode.split(",") if each in PREEMPTION), PREEMPTION["OFF"])
        grace = f" (grace period: {partition.grace_seconds:g} s)" if mode in ("REQUEUE", "CANCEL") else ""
        remedy = "use another partition: trials would time out, and trainings lose their connections"
        yield Finding("preemption", verdict, f"partition {name}: {effect}{grace}", remedy)


def check_memory(site: Site) -> Iterator[Finding]:
    """Every job requests enough for its dataset, and at most its GPUs' share of a node."""
    fitting = []
    for request in site.requests:
        kinds = [each for each in site.partitions if each.name == site.partition_of(request)]
        if finding := judge_memory(request, kinds, data_mb=data_mib(site.results, request.dataset)):
            yield finding
        else:
            fitting.append(request)
    if fitting:
        least, most = (choose(each.mem_mb for each in fitting) for choose in (min, max))
        amounts = f"{least:g} to {most:g}" if least < most else f"{least:g}"
        share = "at most the share of the jobs' GPUs, and " if any(each.gpu_count for each in fitting) else ""
        yield Finding("memory", "ok", f"{amounts} MB per node: {share}enough for their data")


def judge_memory(request: SbatchRequest, kinds: Sequence[Partition], *, data_mb: float) -> Finding | None:
    """A warning about the memory of a job on nodes of these kinds; None if there is none."""
    memory = request.mem_mb
    if 0 < memory < data_mb:
        message = f"{request.job}: {memory:g} MB per node, but its dataset has {data_mb:,.0f} MB"
        remedy = "request more with `--set-resources <rule>:mem_mb=...`: data that do not fit are read again and again"
        return Finding("memory", "warns", message, remedy)
    model = request.gpus.rpartition(":")[0]
    shares = list(filter(None, (each.memory_share_mb(request.gpu_count, model) for each in kinds)))
    if shares and memory > max(shares):
        message = f"{request.job}: {memory:g} MB per node, above the share of its {request.gpu_count} GPUs: "
        remedy = "request less, unless the job needs it: other jobs cannot use the GPUs that are left without memory"
        return Finding("memory", "warns", f"{message}{max(shares):g} MB", remedy)
    return None


CHECKS: tuple[tuple[str, Callable[[Site], Iterable[Finding]]], ...] = (
    ("Slurm", check_slurm),
    ("accounting", check_accounting),
    ("config", check_files_and_code),
    ("jobs", check_jobs),
    ("limits", check_limits),
    ("preemption", check_preemption),
    ("memory", check_memory),
    ("results", lambda site: check_results(site.results)),
    ("home", lambda _: check_home()),
)


def check_site(site: Site) -> Iterator[Finding]:
    """Yield the findings of all checks that need no job, each as soon as it is known."""
    for name, check in CHECKS:
        yield from catch_errors(name, lambda check=check: check(site))  # type: ignore[misc]
