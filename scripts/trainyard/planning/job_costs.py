"""The missing jobs of all studies, with their requests and predicted cost: the table and the lines of a plan."""

import json
import math
import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from pydantic_core import to_json

from trainyard.config.config import Config
from trainyard.config.scaling import EFFICIENT, split_scale
from trainyard.config.trial_status import WITH_RESULT
from trainyard.config.user_programs import ProgramOptions
from trainyard.planning.added_trials import changed_options, recorded_sweep
from trainyard.planning.history import is_trained
from trainyard.planning.plan import Plan
from trainyard.planning.search import describe_new_search
from trainyard.planning.strategies import Strategy, estimate_others
from trainyard.utils.text import count_of, format_duration, format_time


@dataclass(frozen=True, kw_only=True)
class PlannedJob:
    """A missing job, or another strategy for a sweep, for comparison. Seconds are without start-up."""

    job: str  # "sweep depth", "train width 1x2"
    strategy: str = ""  # of a sweep: "packed" is submitted; "job_array" and "separate_jobs" are alternatives
    basis: str = ""  # of the prediction
    pending: int | None = None
    total: int | None = None
    jobs: int = 1
    nodes: int = 1
    gpus: int = 0  # of a job
    walltime_minutes: float | None = None  # of a job; None without a scheduler
    predicted_seconds: float | None = None
    predicted_low_seconds: float | None = None
    predicted_high_seconds: float | None = None
    asked_gpu_hours: float | None = None
    predicted_gpu_hours: float | None = None
    predicted_cost: float | None = None
    wasted_fraction: float | None = None  # of the predicted GPU-hours or CPU-hours
    cpus: int = 0  # of a job of a sweep without GPUs, which is charged for them
    asked_cpu_hours: float | None = None
    predicted_cpu_hours: float | None = None
    asked_cost: float | None = None  # of all requested GPU-hours or CPU-hours
    trials_in_budget: int | None = None  # of the pending ones, as expected; None without a budget

    @property
    def is_submitted(self) -> bool:
        """Whether this job is submitted, and not only for comparison."""
        return self.strategy in ("", "packed")


def plan_jobs(
    config: Config,
    results: Path,
    plan_of: Callable[[str], Plan],
    *,
    runtime_minutes: float | None = None,
    set_minutes: Mapping[str, float | None] = {},
) -> Iterator[PlannedJob]:
    """The jobs whose results are missing in `results` or of another config, and for each sweep two other strategies.

    `plan_of` makes the plan of a sweep. `runtime_minutes` is the default walltime; None without a scheduler.
    `set_minutes` are those of the jobs of some rules, without sweeps.
    """
    for name in config.datasets:
        if not (results / "data" / name / "meta.json").exists():
            yield PlannedJob(job=f"stage {name}", walltime_minutes=set_minutes.get("stage") or runtime_minutes)
    for name in config.sweeps:
        plan = plan_of(name)
        if plan.forecast.pending:
            yield _plan_packed(plan, has_scheduler=runtime_minutes is not None)
            yield from (_plan_alternative(plan, each) for each in planned_alternatives(plan))
    for name, study in config.scaling.items():
        runtime = runtime_minutes and (set_minutes.get("train") or study.walltime_minutes or runtime_minutes)
        for scale in study.scales:
            for run in study.runs(scale):
                if not is_trained(study, run, results / "scaling" / name, results):
                    yield plan_scale(config, name, run, results, runtime_minutes=runtime)


def _plan_packed(plan: Plan, *, has_scheduler: bool) -> PlannedJob:
    """The jobs of a sweep that are submitted."""
    low, high = plan.predicted_range or (None, None)
    asked = plan.requested_hours if has_scheduler else None
    return PlannedJob(
        strategy="packed",
        jobs=plan.all_jobs,
        nodes=plan.slots.nodes_per_trial,
        walltime_minutes=plan.walltime_minutes if has_scheduler else None,
        predicted_seconds=plan.predicted_seconds,
        predicted_low_seconds=low,
        predicted_high_seconds=high,
        predicted_cost=_cost(plan.used_hours, plan.price),
        trials_in_budget=plan.trials_in_budget,
        wasted_fraction=plan.wasted_fraction if has_scheduler else None,
        **_trials_of(plan),
        **_charged(plan, plan.slots.units, asked=asked, predicted=plan.used_hours),
    )


def _plan_alternative(plan: Plan, strategy: Strategy) -> PlannedJob:
    """The jobs of another strategy for a sweep."""
    used = strategy.used_unit_seconds / 3600
    asked = strategy.requested_unit_seconds / 3600
    return PlannedJob(
        strategy=strategy.strategy,
        jobs=strategy.jobs,
        nodes=plan.slots.nodes_per_trial,
        walltime_minutes=strategy.requested_seconds_per_job / 60,
        predicted_seconds=strategy.makespan_seconds,
        predicted_cost=_cost(used, plan.price),
        wasted_fraction=strategy.wasted_fraction,
        **_trials_of(plan),
        **_charged(plan, round(strategy.units_per_job), asked=asked, predicted=used),
    )


def _trials_of(plan: Plan) -> dict[str, Any]:
    """The fields of a planned job that are about the trials of its sweep, and the same for every strategy."""
    state = plan.state
    counts = {"pending": len(plan.forecast.pending), "total": len(state.trials)}
    return {"job": f"sweep {state.name}", "basis": _basis(plan), **counts}


def _charged(plan: Plan, units: int, *, asked: float | None, predicted: float | None) -> dict[str, Any]:
    """The fields of a planned job that are about GPUs, or in a sweep without GPUs, about CPUs."""
    unit = plan.state.sweep.slots.unit.lower()
    hours = {f"asked_{unit}_hours": asked, f"predicted_{unit}_hours": predicted}
    return {f"{unit}s": units, **hours, "asked_cost": _cost(asked, plan.price)}


def _basis(plan: Plan) -> str:
    if plan.forecast.seconds:
        return f"{len(plan.forecast.measured_seconds)} measured trials{_describe_gpu_models(plan)}"
    if plan.state.sweep.cost is not None:
        return "no evidence; ordered by `cost`"
    return "no evidence; ordered by FLOPs" if plan.state.flops.keys() >= set(plan.forecast.pending) else "no evidence"


def _cost(hours: float | None, price: float | None) -> float | None:
    return None if hours is None or price is None else hours * price


def plan_scale(config: Config, name: str, run: str, results: Path, *, runtime_minutes: float | None) -> PlannedJob:
    """The job of a scale, predicted between ideal scaling from the nearest measured scale and the efficiency limit."""
    study, (nodes, per_node) = config.scaling[name], split_scale(run)
    gpus = nodes * per_node
    paths = chain(*study.summaries(results / "scaling" / name).values())
    # A script is no evidence for a training that has taken its place, nor the reverse; only scripts have a launcher.
    found = [json.loads(path.read_text()) for path in paths if path.exists()]
    known = sorted((each for each in found if ("launcher" in each) != study.trains), key=lambda each: each["gpus"])
    # The largest measured scale that is no larger, or else the smallest.
    summary = next((each for each in reversed(known) if each["gpus"] <= gpus), known[0] if known else None)
    ideal = high = None
    if summary:
        # A training has the same images at each scale.
        train = study.base_training
        is_same_work = train is not None or study.mode == "strong"
        ideal = summary["train_seconds"] * (summary["gpus"] / gpus if is_same_work else 1.0)
        if train:  # `patience` may have ended it, and a quick test may have had fewer epochs
            ideal *= train.epochs / summary.get("epochs", train.epochs)
        high = ideal if gpus <= summary["gpus"] else ideal / EFFICIENT
    hours = None if ideal is None else gpus * ideal / 3600
    basis = "no evidence"
    if summary:
        where = ", which ran on CPUs" if summary["device"] == "cpu" else ""
        basis = f"ideal scaling from {summary['scale']}{where}"
    asked = None if runtime_minutes is None else gpus * runtime_minutes / 60
    return PlannedJob(
        job=f"train {name} {run}",
        basis=basis,
        pending=1,
        total=1,
        nodes=nodes,
        gpus=gpus,
        walltime_minutes=runtime_minutes,
        predicted_seconds=ideal,
        predicted_low_seconds=ideal,
        predicted_high_seconds=high,
        asked_gpu_hours=asked,
        asked_cost=_cost(asked, config.pricing.gpu_hour),
        predicted_gpu_hours=hours,
        predicted_cost=_cost(hours, config.pricing.gpu_hour),
    )


def describe_scale(row: PlannedJob) -> str:
    """The prediction for a training, for `snakemake -n`."""
    if row.predicted_seconds is None or row.predicted_gpu_hours is None:
        return "the time is unknown until a scale has been trained"
    most = row.predicted_high_seconds or row.predicted_seconds
    between = f" (to {format_duration(most)}, if it pays)" if most > row.predicted_seconds else ""
    cost = "" if row.predicted_cost is None else f" (costs {row.predicted_cost:.2f})"
    hours = f"{row.predicted_gpu_hours:.3g} GPU-hours{cost}"
    return f"predicted {format_duration(row.predicted_seconds)}{between} of training, by {row.basis}; {hours}"


def planned_alternatives(plan: Plan) -> list[Strategy]:
    """The pending trials as separate jobs, and as a job array; empty without evidence."""
    forecast = plan.forecast
    if plan.predicted_seconds is None:
        return []
    startups = [seconds for run in plan.state.sessions for seconds in run.slot_startups] or [0.0]
    return estimate_others(
        forecast.durations(forecast.pending),
        units_per_trial=plan.slots.units_per_trial,
        startup=statistics.median(startups),
        basis="predicted",
    )


def summarize_plan(plan: Plan, *, on_cpus: bool = False) -> str:
    """The work, the request and the predicted time of a sweep's jobs: one line for messages and logs.

    With `on_cpus`, the sweep runs on a machine without a GPU, and its slots have none.
    """
    state = plan.state
    what = _describe_pending(plan, on_cpus=on_cpus)
    if not plan.forecast.pending:
        return what
    first = "; a job begins with `setup`" if isinstance(state.sweep, ProgramOptions) and state.sweep.setup else ""
    return f"{what}; {_describe_prediction(plan)}{_describe_budget(plan)}{first}"


def brief_plan(plan: Plan, *, on_cpus: bool = False) -> str:
    """The same without what the table of a plan shows."""
    text = _describe_pending(plan, on_cpus=on_cpus)
    return f"{text}{_describe_gpu_models(plan)}{_describe_budget(plan)}" if plan.forecast.pending else text


def _describe_pending(plan: Plan, *, on_cpus: bool = False) -> str:
    """How many trials of a sweep are left to run, on which slots, and why trials run again."""
    state = plan.state
    slots = plan.slots
    pending = plan.forecast.pending
    again = ", ".join(filter(None, [*_describe_again(plan), describe_new_search(plan.state)]))
    what = f"sweep {state.name}: {len(pending)} of {len(state.trials)} trials pending"
    if again:
        what += f" ({again})"
    if reread := state.unread_count:
        what += f", {count_of(reread, 'output')} to re-read without running anything"
    if not pending:
        what += f"; {reached}" if (reached := state.describe_budget()) else ""
        return f"{what}; only the tables will be written"
    requested = f"{count_of(slots.count, 'slot')} of {_describe_slot(plan, on_cpus=on_cpus)}"
    if slots.jobs > 1:
        requested = f"{count_of(plan.parallel_jobs, 'job')} with {requested}"
    limit = state.sweep.slots
    most = f"of at most {limit.count * limit.jobs}"
    among = f"which none {most} is sure to meet" if plan.misses_deadline else most
    chosen = f" ({state.sweep.goal}, {among})" if state.sweep.goal else ""
    return f"{what}; requests {requested}{chosen}"


def _describe_budget(plan: Plan) -> str:
    """What is left of the budget, and how many trials are expected to fit it; "" without one."""
    if (spending := plan.state.spending) is None:
        return ""
    parts = []
    count = plan.trials_in_budget
    if math.isfinite(most := spending.budget.unit_seconds):
        left = f"{spending.left_unit_seconds / 3600:.3g} of {most / 3600:g}"
        unit = plan.state.sweep.slots.unit
        parts.append(f"{left} {unit}-hours left")
    if math.isfinite(spending.end_time):
        parts.append(f"until {format_time(spending.end_time)}")
    fitting = ""
    if count is not None:
        fitting = ": about 1 of these trials fits" if count == 1 else f": about {count} of these trials fit"
    return f"; budget: {', '.join(parts)}{fitting}"


def _describe_again(plan: Plan) -> Iterator[str]:
    """Why trials run again, how many of the pending ones have run before, and which results do not count any more."""
    state = plan.state
    last = state.sessions[-1].info if state.sessions else None
    code = state.sweep.code_digest
    if last and code and last.code_digest != code:
        yield f"`code` has changed since the job of {format_time(last.time)}"
    if last and (lost := _count_lost(plan)):
        before = recorded_sweep(state, last.config)
        changed = [f"`{option}`" for option in changed_options(before, state.sweep)] if before else []
        why = f"{' and '.join(changed) or 'more than the values of its trials'} changed"
        do = "do" if lost > 1 else "does"
        yield f"{why}: {count_of(lost, 'trial')} that finished before {do} not count"
    if failed := plan.forecast.failed:
        yield f"{len(failed)} failed before"
    records = [state.record(name) for name in plan.forecast.unfinished]
    attempts = [record.current[-1] for record in records if record.current]
    stopped = [attempt for attempt in attempts if state.is_overruled(attempt)]
    if not stopped:
        return
    by = "by a rule that is no longer in the config"
    if (now := state.stop_rule) and (then := stopped[0].rule):
        changed = [f"{name}: {value}" for name, value in then.items() if value != now.get(name, value)]
        by = f"by another rule, with {', '.join(changed)}"
    yield f"{len(stopped)} stopped early {by}"


def _count_lost(plan: Plan) -> int:
    """How many trials with the values of a pending one have a result under another identity."""
    state = plan.state
    ends = [record.end for record in state.earlier]
    finished = [to_json(end.values) for end in ends if end and end.outcome in WITH_RESULT]
    if not finished:  # as in most plans, whose many pending trials need not be written as text
        return 0
    values = {to_json(state.trials[name].values) for name in plan.forecast.pending if name in state.trials}
    return sum(each in values for each in finished)


def _describe_slot(plan: Plan, *, on_cpus: bool) -> str:
    """What a slot has, as in `0.5 GPU and 4 CPUs`."""
    slots = plan.slots
    cpus = count_of(plan.slots.cpus_per_trial, "CPU")
    if on_cpus or not slots.has_gpus:
        return cpus
    if slots.nodes_per_trial > 1:
        return f"{slots.nodes_per_trial} nodes with {count_of(slots.gpus_per_node, 'GPU')} and {cpus} each"
    return f"{count_of(slots.share, 'GPU')} and {cpus}"


def _describe_prediction(plan: Plan) -> str:
    predicted = plan.predicted_seconds
    if predicted is None:
        return "the time is unknown until a first trial has finished"
    low, high = map(format_duration, plan.predicted_range or (predicted, predicted))
    between = f" ({low} to {high})" if low != high else ""
    early = " if none is stopped early" if plan.state.sweep.stop or plan.state.space.has_patience else ""
    on = _describe_gpu_models(plan)
    return f"predicted {format_duration(predicted)}{between} of training after the start-up{early}{on}"


def _describe_gpu_models(plan: Plan) -> str:
    """The GPU models for which a prediction holds, if trials were measured on others; "" otherwise."""
    models = plan.state.gpu_models
    forecast = plan.forecast
    measured_on = set(forecast.measured_gpu_models.values()) - {""}
    missing = forecast.unmeasured_models
    if not models or (len(models) == 1 and measured_on <= set(models)):
        return ""
    measured = f"predicted as on {' and '.join(sorted(measured_on))}: none was measured on {' or '.join(missing)}"
    unknown = f" ({measured})" if missing else ""
    return f" on {' or '.join(models)}{unknown}"


def summarize_cost(plan: Plan) -> str:
    """The GPU-hours or CPU-hours that a sweep requests, in one line; the table of a plan has other strategies."""
    hours = plan.requested_hours
    used = "" if plan.used_hours is None else f", {plan.used_hours:.3g} of them predicted to be used"
    cost = "" if plan.price is None else f" (costs {(plan.used_hours or hours) * plan.price:.2f})"
    units = count_of(plan.slots.units, plan.slots.unit)
    size = f" ({plan.parallel_jobs} x {units} x {plan.walltime_minutes} min)" if plan.slots.jobs > 1 else ""
    return f"{hours:.3g} {plan.state.sweep.slots.unit}-hours requested{size}{used}{cost}"


def describe_limits(plan: Plan) -> str:
    """What a limit of the walltime means for the trials of a sweep, each after `; `; "" for nothing."""
    text = ""
    if plan.too_long:
        count = f"{len(plan.too_long)} of {len(plan.forecast.pending)} pending trials can never end"
        text += f"; {count}: {plan.too_long_message}"
    if plan.jobs > 1:
        limit = format_duration(60 * plan.limit_minutes)
        of_each = " for each of these" if plan.parallel_jobs > 1 else ""
        text += f"; {plan.jobs} jobs one after another{of_each}, because a job may take at most {limit}"
    return text
