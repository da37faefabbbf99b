"""What a plan asks of Slurm and will cost, in figures and in the words of `snakemake -n`."""

import statistics

from trainyard.planning.plan import Plan
from trainyard.planning.strategies import Request, Strategy, job_array, separate_jobs, strategy
from trainyard.utils.progress_bar import duration


def strategies(plan: Plan) -> list[Strategy]:
    """The pending trials as separate jobs, as a job array, and packed as planned; none before there is evidence."""
    if not plan.seconds or plan.predicted_seconds is None:
        return []
    durations = [plan.seconds[name] for name in plan.pending]
    share, startup = plan.slots.share, statistics.median(plan.slot_startups or [0.0])
    others = [make(durations, gpus_per_trial=share, startup=startup, basis="predicted")
              for make in (separate_jobs, job_array)]  # fmt: skip
    packed = strategy(
        "packed",
        [Request(60.0 * plan.walltime_minutes, plan.slots.gpus)] * plan.jobs,
        durations,
        running_gpu_seconds=sum(durations) * share,
        gpus_total=plan.slots.gpus,
        slots=plan.slots.count,
        makespan=plan.predicted_seconds,
        startup_gpu_seconds=plan.slots.gpus * plan.startup_seconds * plan.jobs,
        basis="predicted",
    )
    return [*others, packed]


def summary(plan: Plan) -> str:
    """One line in words, for `snakemake -n`."""
    slots = plan.slots
    again = f" ({plan.failed_before} failed before)" if plan.failed_before else ""
    what = f"{len(plan.pending)} of {len(plan.trials)} trials pending{again}{_kept(plan)}"
    if not plan.pending:
        return f"sweep {plan.name}: {what}; only the tables will be written"
    share = "1 (for now)" if plan.shares_open else f"{slots.share:g}"
    count = f"{slots.count} slot{'s' if slots.count > 1 else ''}"
    asked = f"{count} of {share} GPU and {slots.cpus_per_trial} CPU"
    nodes = f" on {slots.nodes} nodes" if slots.nodes > 1 else ""
    chosen = f" ({plan.sweep.goal}, of at most {plan.sweep.slots.count})" if plan.sweep.slots.auto else ""
    predicted = plan.predicted_seconds
    when = "the time is unknown until a first trial has finished"
    if predicted is not None:
        low, high = map(duration, plan.predicted_range or (predicted, predicted))
        between = f" ({low} to {high})" if low != high else ""
        early = " if none is stopped early" if plan.sweep.stop else ""
        when = f"predicted {duration(predicted)}{between} of training after the start-up{early}"
    return f"sweep {plan.name}: {what}; asks for {asked}{nodes}{chosen}; {when}"


def _kept(plan: Plan) -> str:
    count = len(plan.to_reread)
    return f", {count} output{'s' if count > 1 else ''} to re-read without running anything" if count else ""


def costs(plan: Plan) -> str:
    """What asking a scheduler for it costs, in words: GPU-hours, jobs, and the same trials in other ways."""
    asked = f"{plan.asked_gpu_hours:.3g} GPU-hours asked for"
    used = "" if plan.gpu_hours is None else f"{plan.gpu_hours:.3g} of them predicted to be used"
    words = [", ".join(filter(None, [asked, used])) + _at_price(plan, plan.gpu_hours or plan.asked_gpu_hours)]
    if plan.too_long:
        count = f"{len(plan.too_long)} of {len(plan.pending)} pending trials can never end"
        words.append(f"{count}: {plan.too_long_words}")
    if plan.jobs > 1:
        limit = duration(60 * plan.limit_minutes)
        words.append(f"{plan.jobs} jobs one after another, for a job may take {limit} at most")
    for each in strategies(plan)[:-1]:
        name = "separate jobs" if each.strategy == "separate_jobs" else "tasks of an array"
        hours = f"{each.requested_gpu_seconds / 3600:.3g} GPU-hours asked for"
        starts = f"{each.startup_gpu_seconds / 3600:.3g} of them to start programs" if each.startup_gpu_seconds else ""
        words.append(f"as {each.jobs} {name}: {', '.join(filter(None, [hours, starts]))}")
    return "; ".join(words)


def _at_price(plan: Plan, gpu_hours: float) -> str:
    return "" if plan.price is None else f" (costs {gpu_hours * plan.price:.2f})"
