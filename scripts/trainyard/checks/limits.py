"""Checks of what Slurm does with jobs that it has accepted: limits of QOS and accounts, and preemption."""

import math
from collections.abc import Iterator, Sequence

from trainyard.checks.findings import Finding, Verdict
from trainyard.checks.sbatch_requests import SbatchRequest
from trainyard.checks.site import Site
from trainyard.cluster.slurm_limits import Limits, combine_limits, find_excesses, limits_by_name
from trainyard.utils.errors import UserError


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
        for text in find_excesses(job.options.time or 0, job.resources, limits):
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
    texts += dict.fromkeys(
        f"at most {value:g} {name}" for each in combined for name, value in limits_by_name(each).items()
    )
    if len(requests) > queued:
        texts.append(f"so that some of the {len(requests)} jobs are submitted later")
    return Finding("limits", "ok", ", ".join(texts) or "the site enforces none for these jobs")


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
