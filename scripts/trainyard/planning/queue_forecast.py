"""How Slurm's queue would treat the pending trials of a sweep as jobs of several shapes: starts, end, and idle GPUs.

Slurm says when a job would start by `sbatch --test-only`. For the jobs of a shape, it is asked when as many as 1, 2, 3,
... could run at the same time: one job more starts at that time at the latest, and sooner if another job ends before
its walltime. What follows from it is pessimistic in the same way.
"""

import heapq
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from trainyard.cluster.slurm_queries import (
    Partition,
    list_gpu_models,
    list_partitions,
    named_partitions,
    predict_start,
)
from trainyard.config.config import Config
from trainyard.config.sweep import Slots
from trainyard.planning.job_request import STARTUP_FACTOR, per_node_option
from trainyard.planning.memory_request import node_memory, sweep_memory
from trainyard.planning.plan import Plan
from trainyard.utils.errors import UserError

RULE: Final = (
    "recommended: the jobs of `jobs: auto`, each with the GPUs of one trial: as many as find a trial, may run at once, "
    f"and have {STARTUP_FACTOR} times their start-up of work, on no more GPUs than are requested"
)


@dataclass(frozen=True)
class Queue:
    """Slurm's queue, and what the jobs of a sweep are submitted to it with."""

    partition: str = ""  # its name, or several as in `gpu,long`; "" for the default one
    gpu_type: str = ""
    options: tuple[str, ...] = ()  # further ones of sbatch

    @cached_property
    def partitions(self) -> list[Partition]:
        """The partitions in which jobs may start; a UserError if Slurm does not respond."""
        return named_partitions(list_partitions(), self.partition)

    def gpu_models(self, gpus: int) -> tuple[str, ...]:
        """The GPU models that a job with so many per node may get; empty if that is unknown."""
        try:
            return list_gpu_models(self.partitions, gpus, self.gpu_type)
        except UserError:  # Slurm does not respond
            return ()

    def starts(self, slots: Slots, jobs: int, minutes: int, memory_mb: int) -> list[float]:
        """The seconds from now until each of some jobs starts at the latest; infinite for one that finds no place.

        The jobs have these slots, this walltime and this memory per node.
        """
        model, cpus = f"{self.gpu_type}:" if self.gpu_type else "", slots.cpus_per_node
        of_all = [f"--cpus-per-task={cpus}", f"--mem-per-cpu={math.ceil(memory_mb / cpus)}", f"--time={minutes}"]
        of_all += [f"--gpus-per-task={model}{slots.gpus_per_node}"] if slots.has_gpus else []
        of_all += [f"--nodes={slots.nodes_per_trial}", "--ntasks-per-node=1"] if jobs == 1 else []
        of_all += [f"--partition={self.partition}"] if self.partition else []

        def ask(count: int) -> float:
            tasks = f"--ntasks={count * slots.nodes_per_trial}"
            return max(0.0, predict_start([tasks, *of_all, *self.options]) - time.time())

        found = {count: ask(count) for count in sorted({1, jobs})}

        def fill(low: int, high: int) -> None:
            """Find what is between two numbers of jobs, which is the same if both start at the same time."""
            if high - low > 1 and found[high] - found[low] > 1:
                middle = (low + high) // 2
                found[middle] = ask(middle)
                fill(low, middle)
                fill(middle, high)
            else:
                found.update(dict.fromkeys(range(low + 1, high), found[high]))

        fill(1, jobs)
        return [found[count] for count in range(1, jobs + 1)]


@dataclass(frozen=True, kw_only=True)
class QueuedJobs:
    """Jobs of one shape that share the pending trials of a sweep. Seconds count from now; None without evidence."""

    sweep: str
    jobs: int
    nodes: int  # of a job
    gpus: int  # of a job, on all nodes
    cpus: int
    walltime_minutes: int
    first_start_seconds: float  # at the latest, as the other times; infinite if Slurm would never start it
    last_start_seconds: float  # of those that start
    end_seconds: float | None  # of the last trial
    idle_hours: float | None  # GPU-hours, or in a sweep without GPUs, CPU-hours; with the start-ups
    is_requested: bool = False
    is_recommended: bool = False


def forecast_shapes(plan: Plan, queue: Queue, config: Config, results: Path) -> list[QueuedJobs]:
    """What becomes of the pending trials in jobs of several shapes, the requested one first.

    The recommended one is that of `RULE`, unless Slurm would never start it.

    Raises:
        UserError: Slurm does not respond.
    """
    found, small = list[QueuedJobs](), _small_jobs(plan)
    for shape in _shapes(plan, small, queue):
        request = shape.request
        minutes = {request.walltime_minutes, request.walltime_minutes if plan.fixed_minutes else request.least_minutes}
        for each in sorted(minutes, reverse=True):
            jobs = forecast_jobs(shape, queue, config, results, each)
            is_small = _size(request.slots) == _size(small.request.slots) and each == request.walltime_minutes
            is_recommended = is_small and jobs.first_start_seconds < math.inf
            found.append(replace(jobs, is_requested=not found, is_recommended=is_recommended))
    return found


def _small_jobs(plan: Plan) -> Plan:
    """The plan with the jobs of `RULE`; with the requested one while the number of trials per GPU must be measured."""
    own, jobs = plan.request.slots, plan.request.parallel_jobs
    key, step = per_node_option(own)
    if plan.state.sweep.slots.gpus_per_trial == "auto":
        return plan.with_slots(own.model_copy(update={"jobs": jobs}))
    auto = own.model_copy(update={"jobs": "auto", key: step})
    units = jobs * own.units // auto.units  # jobs like these for the requested GPUs
    found = replace(plan, limit_jobs=plan.limit_jobs * own.units / auto.units).with_slots(auto).request.parallel_jobs
    return plan.with_slots(auto.model_copy(update={"jobs": min(found, units)}))


def _size(slots: Slots) -> tuple[Any, ...]:
    return slots.jobs, slots.gpus_per_node, slots.slots_per_node


def forecast_jobs(plan: Plan, queue: Queue, config: Config, results: Path, minutes: int) -> QueuedJobs:
    """What becomes of the pending trials in the jobs that a plan requests, with this walltime."""
    request, state = plan.request, plan.state
    slots, jobs = request.slots, request.parallel_jobs
    node = node_memory(queue.partitions, slots.gpus_per_node, queue.gpu_type)
    starts = queue.starts(slots, jobs, minutes, sweep_memory(config, plan, results, node).mb)
    starting = [each for each in starts if each < math.inf]
    end = idle = None
    if plan.forecast.seconds:
        end, idle = run_queued(
            plan.forecast.durations(plan.forecast.order(request.slot_count)),
            starting,
            slots=slots.count,
            startup=state.startup_seconds,
            window=60 * minutes - state.startup_seconds - request.margin_seconds,
            can_resume=state.sweep.can_resume,
        )
    return QueuedJobs(
        sweep=state.name,
        jobs=jobs,
        nodes=slots.nodes_per_trial,
        gpus=slots.gpus,
        cpus=slots.cpus,
        walltime_minutes=minutes,
        first_start_seconds=starts[0],
        last_start_seconds=max(starting, default=math.inf),
        end_seconds=end,
        idle_hours=None if idle is None else idle * slots.units / slots.count / 3600,
    )


def _shapes(plan: Plan, small: Plan, queue: Queue) -> Iterator[Plan]:
    """The plan with the jobs that it requests, then one job and two on as many GPUs, and then the small jobs."""
    own, jobs = plan.request.slots, plan.request.parallel_jobs
    yield (first := plan.with_slots(own.model_copy(update={"jobs": jobs})))
    key, step = per_node_option(own)
    total = jobs * getattr(own, key)
    if own.has_gpus:
        most = max((each.gpu_count(queue.gpu_type) for each in queue.partitions), default=0)
    else:
        most = max((int(each.cpus.rstrip("+")) for each in queue.partitions), default=0) // own.cpus_per_trial
    seen = {_size(first.request.slots), _size(small.request.slots)}
    for count in (1, 2):
        if plan.state.sweep.slots.gpus_per_trial == "auto" and count > 1:
            return  # it is measured in a single job
        if own.nodes_per_trial > 1:
            break  # a job has the nodes of a trial
        size = total // count // step * step  # of a job
        slots = own.model_copy(update={"jobs": count, key: size})
        if 0 < size <= most and _size(slots) not in seen:
            seen.add(_size(slots))
            yield first.with_slots(slots)
    if _size(small.request.slots) != _size(first.request.slots):
        yield small


def run_queued(
    durations: Sequence[float],
    starts: Sequence[float],
    *,
    slots: int,
    startup: float,
    window: float,
    can_resume: bool,
) -> tuple[float, float]:
    """The seconds until the last trial ends, and the slot-seconds in which the slots of the jobs are idle.

    The trials start in this order, each on the slot that is free first. Each job has `slots` slots, which can run
    trials for `window` seconds after its `startup`; then the rest runs in a job like it, which waits as long again.
    Jobs for which no trial is left cost nothing. Both are infinite if a trial never ends in this way.
    """
    if not starts or window <= 0 or (not can_resume and max(durations) > window):
        return math.inf, math.inf
    free = [(start + startup, job, start + startup + window) for job, start in enumerate(starts) for _ in range(slots)]
    heapq.heapify(free)
    used, idle = set[int](), 0.0
    for seconds in durations:
        now, job, until = free[0]
        used.add(job)
        while seconds > until - now:
            seconds, lost = (seconds - (until - now), 0.0) if can_resume else (seconds, until - now)
            now = until + starts[job] + startup
            until = now + window
            idle += lost + startup
        heapq.heapreplace(free, (now + seconds, job, until))
    ends = {job: max(end for end, other, _ in free if other == job) for job in used}
    idle += sum(startup + ends[job] - end for end, job, _ in free if job in used)
    return max(ends.values()), idle
