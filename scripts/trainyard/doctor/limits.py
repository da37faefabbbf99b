"""Checks of what Slurm does with jobs that it has accepted: limits of QOS and accounts, and preemption."""

import math
from collections.abc import Iterator, Mapping, Sequence

from trainyard.cluster.slurm_limits import Limits, combine_limits, first_limit
from trainyard.doctor.findings import Finding, Verdict
from trainyard.doctor.sbatch_request import SbatchRequest
from trainyard.doctor.site import Site
from trainyard.utils.errors import UserError

MINUTES = "minutes of walltime"


def check_limits(site: Site) -> Iterator[Finding]:
    """No job is above the limits of its quality of service and account: Slurm would accept it, but never start it."""
    if not site.requests:
        return
    try:
        levels = [site.limits_of(each) for each in site.requests]
    except UserError as error:
        yield Finding("limits", "unknown", str(error), "ask the site's administrators for the limits of your account")
    else:
        yield compare_limits(site.requests, levels)


def compare_limits(requests: Sequence[SbatchRequest], levels: Sequence[Sequence[Limits]]) -> Finding:
    """Compare each job with its limits, and the number of jobs with the strictest one."""
    pairs = list(zip(requests, levels, strict=True))
    above: dict[str, list[str]] = {}
    for job, limits in pairs:
        for text in _excesses(job, limits):
            above.setdefault(text, []).append(job.job)
    if above:
        remedy = "request less, or set another `qos` or `slurm_account` in the profile: Slurm would never start them"
        return Finding(
            "limits", "fails", "; ".join(f"{', '.join(jobs)}: {text}" for text, jobs in above.items()), remedy
        )
    combined = [combine_limits(each) for each in levels]
    queued, running = (min(getattr(each, name) for each in combined) for name in ("submitted_jobs", "running_jobs"))
    counts = {"in the queue": queued, "running": running}
    texts = [f"at most {value:g} jobs {what}" for what, value in counts.items() if math.isfinite(value)]
    texts += dict.fromkeys(f"at most {value:g} {name}" for each in combined for name, value in _values(each).items())
    if len(requests) > queued:
        texts.append(f"so that some of the {len(requests)} jobs are submitted later")
    return Finding("limits", "ok", ", ".join(texts) or "the site enforces none for these jobs")


def _excesses(request: SbatchRequest, levels: Sequence[Limits]) -> Iterator[str]:
    """What a job requests above its limits, with the level that sets each limit: the first one that has it."""
    wanted = {MINUTES: request.options.time or 0, **_per_job(request.resources), **_in_all(request.resources)}
    for name, amount in wanted.items():
        limit, origin = _limit_on(name, levels)
        if amount > limit:
            yield f"{amount:g} {name}, but {origin} allows {limit:g}"


def _limit_on(name: str, levels: Sequence[Limits]) -> tuple[float, str]:
    return first_limit(levels, lambda each: _values(each).get(name, math.inf))


def _values(limits: Limits) -> dict[str, float]:
    """The limits of a job, by what they count."""
    minutes = {MINUTES: limits.walltime_minutes} if math.isfinite(limits.walltime_minutes) else {}
    return {**minutes, **_per_job(limits.job_resources), **_in_all(limits.total_resources)}


def _per_job(resources: Mapping[str, float]) -> dict[str, float]:
    return {f"{name} per job": amount for name, amount in resources.items()}


def _in_all(resources: Mapping[str, float]) -> dict[str, float]:
    return {f"{name} in all jobs": amount for name, amount in resources.items()}


# What happens to the jobs of a partition when others preempt them: a verdict, and what Trainyard does.
PREEMPTION: dict[str, tuple[Verdict, str]] = {
    "OFF": ("ok", "jobs are not preempted"),
    "REQUEUE": ("ok", "preempted jobs are requeued, and continue from their durable state"),
    "CANCEL": ("ok", "preempted jobs are cancelled; Snakemake submits them again, and they continue"),
    "SUSPEND": ("warns", "preempted jobs are suspended while their walltime goes on"),
    "GANG": ("warns", "jobs take turns on the same nodes while their walltime goes on"),
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
