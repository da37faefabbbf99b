"""The Slurm jobs that a sweep requests: GPUs or CPUs, walltime, and number of parallel and of consecutive jobs."""

import math
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

from trainyard.cluster.slurm_allocation import DEADLINE_MARGIN_SECONDS
from trainyard.config.sweep import AUTO_JOBS, CommandSweep, Slots
from trainyard.planning.order import jobs_needed, makespan
from trainyard.utils.errors import UserError
from trainyard.utils.text import format_duration

if TYPE_CHECKING:
    from trainyard.planning.plan import Plan

FAST_TOLERANCE: Final = 0.05  # options at most this much longer than the fastest count as equally fast
CHEAP_TOLERANCE: Final = 0.02
TABLES_MINUTES: Final = 10  # walltime of a job that only writes tables
UNPROVEN_MINUTES: Final = 60  # walltime before the duration of any trial is known
UNPROVEN_MARGIN_SECONDS: Final = 60.0  # before the driver starts and after the last trial, before it was measured
END_SECONDS: Final = 15.0  # to shut down after the last trial
INTERVAL: Final = (0.05, 0.95)  # quantiles of the predicted range of the makespan
WALLTIME_QUANTILE: Final = 0.99  # of the makespan, covered by the walltime
SHARE_FACTOR: Final = 1.5  # of its share of the work, covered by the walltime of one of several jobs
STARTUP_FACTOR: Final = 10  # of its start-up: the work for which `jobs: auto` requests a job


@dataclass(frozen=True)
class GpuOption:
    """Jobs and their GPUs (or slots on CPUs) that can be requested, with their predicted time and cost."""

    slots: Slots  # of each of its `jobs`
    seconds: float  # from the start of the jobs to the end of the last trial

    @property
    def unit_seconds(self) -> float:
        """GPU-seconds, or CPU-seconds, of all jobs."""
        return self.seconds * self.slots.units * self.slots.most_jobs

    @property
    def gpus(self) -> int:
        """GPUs of all jobs."""
        return self.slots.gpus * self.slots.most_jobs

    @property
    def slot_count(self) -> int:
        """Slots of all jobs."""
        return self.slots.count * self.slots.most_jobs


def useful_jobs(slots: Slots, trials: int) -> int:
    """How many jobs with these slots find a trial to take: at least one, at most those of the config."""
    return max(1, min(slots.most_jobs, math.ceil(trials / slots.count)))


def list_options(durations: Sequence[float], limit: Slots, *, startup: float) -> list[GpuOption]:
    """All options up to a limit, fewest GPUs or CPUs first, for trials of these durations in this order.

    None has more slots than needed for all trials at once. The first trial starts after `startup` seconds.
    """
    found = list[GpuOption]()
    for slots in _sizes(limit):
        count = slots.count * slots.most_jobs
        found.append(GpuOption(slots, makespan(durations, count) + startup))
        if count >= len(durations):
            break
    return found


def per_node_option(slots: Slots) -> tuple[str, int]:
    """The option with the GPUs per node, or without GPUs the slots, and how many of them a trial has."""
    return "gpus_per_node" if slots.has_gpus else "slots_per_node", max(1, int(slots.node_share))


def _sizes(limit: Slots) -> Iterator[Slots]:
    """Jobs and GPUs or slots of each, by ascending product; of equal products, the one with the fewest jobs."""
    key, step = per_node_option(limit)
    per_node = range(step, getattr(limit, key) + 1, step)
    found: dict[int, tuple[int, int]] = {}
    for jobs in range(1, limit.most_jobs + 1):
        for count in per_node:
            found.setdefault(jobs * count, (jobs, count))
    for total in sorted(found):
        jobs, count = found[total]
        yield limit.model_copy(update={"jobs": jobs, key: count})


def choose_option(
    found: Sequence[GpuOption],
    goal: str,
    *,
    deadline: float | None = None,
    max_seconds: Callable[[GpuOption], float] = lambda option: option.seconds,
) -> GpuOption:
    """The best option for the goal.

    `fastest`: the fewest GPU-seconds (or CPU-seconds) among all that take at most 5 % longer than the fastest.
    `cheapest`: the fastest among all that cost at most 2 % more of these than the cheapest. With a `deadline` in
    seconds: the cheapest for which `max_seconds`, the longest that it may take, is within it; if there is none, as
    `fastest`.
    """
    if deadline is not None:
        for option in sorted(found, key=lambda option: (option.unit_seconds, option.seconds)):
            if option.seconds <= deadline and max_seconds(option) <= deadline:
                return option
    if goal == "cheapest":
        least = min(option.unit_seconds for option in found) * (1 + CHEAP_TOLERANCE) + 1e-9
        cheap = [option for option in found if option.unit_seconds <= least]
        return min(cheap, key=lambda option: (option.seconds, option.unit_seconds))
    quick = min(option.seconds for option in found) * (1 + FAST_TOLERANCE) + 1e-9
    fast = [option for option in found if option.seconds <= quick]
    return min(fast, key=lambda option: (option.unit_seconds, option.seconds))


class JobRequest:
    """What is requested from Slurm to run the pending trials, within the limits of the plan."""

    def __init__(self, plan: "Plan") -> None:
        self._plan, self._state, self._forecast = plan, plan.state, plan.forecast

    @cached_property
    def slots(self) -> Slots:
        """The slots of a job: the config's; with a goal, the number up to these that is best for the goal.

        A job that only writes tables has one CPU.
        """
        limit, sweep = self._state.max_slots, self._state.sweep
        if not self._forecast.pending:
            return Slots(gpus_per_node=0)
        if sweep.goal is None:
            return limit
        deadline = self._deadline_seconds if self._forecast.seconds else None
        return choose_option(self.options, sweep.goal, deadline=deadline, max_seconds=self._max_seconds).slots

    @property
    def parallel_jobs(self) -> int:
        """Jobs that share the pending trials, as many as can start at the same time."""
        return self._parallel_jobs[0]

    @property
    def jobs_basis(self) -> str:
        """What decides the number of jobs of `jobs: auto`, for messages; "" if the config does."""
        return self._parallel_jobs[1]

    @cached_property
    def _parallel_jobs(self) -> tuple[int, str]:
        """The number of parallel jobs, and its basis: for `jobs: auto`, the least of three."""
        useful = useful_jobs(self.slots, len(self._forecast.pending))
        if self.slots.jobs != "auto":
            return useful, ""
        limits = [
            (useful, "as many as find a trial" if useful < AUTO_JOBS else "its limit"),
            (self._plan.limit_jobs, "as many as may run at once"),
        ]
        if seconds := self._forecast.seconds:
            work = sum(seconds.values()) / self.slots.count
            startup = self._lead_seconds + self._state.startup_seconds
            limits.append((work / (STARTUP_FACTOR * startup), f"each has {STARTUP_FACTOR} times its start-up of work"))
        most, basis = min(limits)
        return max(1, math.floor(most)), basis

    @property
    def slot_count(self) -> int:
        """Slots of all parallel jobs."""
        return self.slots.count * self.parallel_jobs

    @property
    def misses_deadline(self) -> bool:
        """Whether the goal is a deadline that no number of GPUs or CPUs is sure to meet."""
        deadline = self._deadline_seconds
        if deadline is None or not self._samples:
            return False
        return self._state.startup_seconds + _quantile(self._samples, WALLTIME_QUANTILE) > deadline

    @property
    def _deadline_seconds(self) -> float | None:
        """The deadline of the goal; with `cheapest`, the end of the budget by the clock, if it has one."""
        spending = self._state.spending if self._state.sweep.goal == "cheapest" else None
        seconds = spending.end_time - time.time() if spending else math.inf
        return seconds if math.isfinite(seconds) else self._state.sweep.deadline_seconds

    @property
    def budget_seconds(self) -> float:
        """How long each parallel job may take by its share of the budget; infinite without one."""
        if (spending := self._state.spending) is None:
            return math.inf
        share = spending.left_unit_seconds / (self.slots.units * self.parallel_jobs)
        return max(0.0, min(share, spending.end_time - time.time()))

    @cached_property
    def trials_in_budget(self) -> int | None:
        """How many of the pending trials, in their order, are expected to fit the budget; None if that is unknown."""
        if math.isinf(self.budget_seconds) or not self._forecast.seconds:
            return None
        seconds = self._forecast.durations(self._forecast.order(self.slot_count))
        most = self.budget_seconds - self._lead_seconds - self._state.startup_seconds
        counts = range(1, len(seconds) + 1)
        return bisect_right(counts, most, key=lambda count: makespan(seconds[:count], self.slot_count))

    @cached_property
    def options(self) -> list[GpuOption]:
        """Numbers of GPUs or CPUs that can be requested; without evidence, with relative durations.

        They are compared with the longest trials first. A better order is searched only for the number that is chosen.
        """
        startup = self._state.startup_seconds if self._forecast.seconds else 0.0
        found = list_options(self._forecast.durations(self._forecast.pending), self._state.max_slots, startup=startup)
        return [option for option in found if option.gpus <= self._plan.limit_gpus] or found[:1]

    def _max_seconds(self, option: GpuOption) -> float:
        """Seconds from the start of the driver to the end of an option's last trial, exceeded with 1 % probability."""
        samples = self._forecast.makespan_samples(option.slot_count)
        return self._state.startup_seconds + (_quantile(samples, WALLTIME_QUANTILE) if samples else math.inf)

    @property
    def predicted_seconds(self) -> float | None:
        """Makespan of the pending trials, without the start-up; None without evidence."""
        return self._forecast.makespan(self.slot_count)

    @cached_property
    def predicted_range(self) -> tuple[float, float] | None:
        """The 90 % interval of the makespan; None without evidence."""
        expected, samples = self.predicted_seconds, self._samples
        if expected is None or not samples:
            return None
        low, high = (_quantile(samples, share) for share in INTERVAL)
        return min(low, expected), max(high, expected)

    @cached_property
    def sure_seconds(self) -> float | None:
        """The seconds of training that the walltime must cover, those of the makespan; None without evidence.

        It never exceeds the trials one after another: few trials are weak evidence for the others, and a job that waits
        long for an absurd walltime is worse than a second one. Short jobs start sooner in a crowded queue: one of
        several covers its share of the work and the longest trial, and does not wait for the others.
        """
        if self.predicted_range is None:
            return None
        likely = max(_quantile(self._samples, WALLTIME_QUANTILE), self.predicted_range[1])
        if self.parallel_jobs > 1:
            share = sum(self._forecast.seconds.values()) / self.slot_count
            likely = max(_quantile(self._forecast.longest_samples, WALLTIME_QUANTILE), SHARE_FACTOR * share)
        return min(likely, self._forecast.serial_seconds)

    @cached_property
    def _samples(self) -> list[float]:
        return self._forecast.makespan_samples(self.slot_count)

    @property
    def margin_seconds(self) -> float:
        """Seconds reserved for everything before the driver starts and after the last trial."""
        grace = self._state.sweep.trial_grace_seconds
        if not self._lead_seconds:
            return UNPROVEN_MARGIN_SECONDS + grace
        return self._lead_seconds + DEADLINE_MARGIN_SECONDS + grace + END_SECONDS

    @property
    def _lead_seconds(self) -> float:
        """From the start of a job to that of its driver, the longest measured; 0 if none is."""
        return max((run.info.lead_seconds or 0.0 for run in self._state.sessions), default=0.0)

    @property
    def needed_minutes(self) -> int:
        """The walltime to request without a limit."""
        if not self._forecast.pending:
            return TABLES_MINUTES
        training = self._state.longest_interrupted_seconds if self.sure_seconds is None else self.sure_seconds
        minutes = math.ceil((training + self._state.startup_seconds + self.margin_seconds) / 60)
        return max(UNPROVEN_MINUTES, minutes) if self.sure_seconds is None else minutes

    @property
    def least_minutes(self) -> int:
        """The shortest useful walltime: that of the longest trial, so that what is left continues in further jobs."""
        longest = self._forecast.longest_samples
        seconds = _quantile(longest, WALLTIME_QUANTILE) if longest else math.inf
        seconds += self._state.startup_seconds + self.margin_seconds
        return int(min(self.walltime_minutes, math.ceil(seconds / 60) if longest else math.inf))

    @property
    def walltime_minutes(self) -> int:
        """The walltime to request."""
        if self._plan.fixed_minutes is not None:
            return int(self._plan.fixed_minutes)
        return int(min(self.needed_minutes, max(1.0, min(self._plan.limit_minutes, self.budget_seconds // 60))))

    @property
    def jobs(self) -> int:
        """Jobs, one after another, that each parallel job takes: more than one if the walltime is limited.

        Each job has its own start-up and margins. It resumes the trials that the previous one interrupted; trials that
        cannot resume must end within one job, and start longest first.
        """
        expected, forecast = self.predicted_seconds, self._forecast
        if self.needed_minutes <= self._plan.limit_minutes or self.predicted_range is None or not expected:
            return 1
        useful = max(60.0, self._useful_seconds)
        if self._state.sweep.can_resume:
            return math.ceil(self.predicted_range[1] / useful)
        longer = self.predicted_range[1] / expected
        durations = [longer * seconds for seconds in forecast.durations(forecast.pending)]
        return jobs_needed(durations, self.slot_count, seconds=useful)

    @property
    def all_jobs(self) -> int:
        """All parallel and consecutive jobs."""
        return self.parallel_jobs * self.jobs

    @property
    def _useful_seconds(self) -> float:
        """Seconds of training in the longest job that can be requested."""
        return 60 * self._plan.limit_minutes - self._state.startup_seconds - self.margin_seconds

    def check_limit(self) -> None:
        """Raise a UserError if the longest job that can be requested has no time to train."""
        if self._useful_seconds <= 0:
            limit = format_duration(60 * self._plan.limit_minutes)
            taken = format_duration(self._state.startup_seconds + self.margin_seconds)
            raise UserError(
                f"sweeps.{self._state.name}: a job may take {limit} at most, but its start and its end, with the grace "
                f"period of trials, need {taken}: request a partition or QOS with a longer limit"
            )

    @cached_property
    def too_long(self) -> list[str]:
        """Pending trials that cannot resume and almost certainly exceed the longest job, longest first."""
        if self._state.sweep.can_resume:
            return []
        least = self._forecast.min_seconds
        return [name for name in self._forecast.pending if name in least and least[name] > self._useful_seconds]

    @property
    def too_long_message(self) -> str:
        """The error if a trial exceeds the longest job: which one, and what to do."""
        longest = self.too_long[0]
        least = format_duration(self._forecast.min_seconds[longest])
        limit = format_duration(60 * self._plan.limit_minutes)
        is_command = isinstance(self._state.sweep, CommandSweep)
        key = "`checkpoint`" if is_command else "`resumable: true` if the function can resume"
        remedy = f"request a partition with a longer limit, or give {key}"
        if self._state.interrupted_seconds(longest):  # so far only, by an attempt that did not end
            remedy += "; if something else held it up, increase `retrain`"
        return f"trial {longest} takes at least {least} and cannot resume, but a job may take at most {limit}: {remedy}"

    @property
    def used_hours(self) -> float | None:
        """GPU-hours (without GPUs, CPU-hours) that the pending trials use, with start-ups; None without evidence."""
        if self.predicted_seconds is None:
            return None
        seconds = min(self.predicted_seconds + self.jobs * self._state.startup_seconds, self.budget_seconds)
        return self.slots.units * self.parallel_jobs * seconds / 3600

    @property
    def requested_hours(self) -> float:
        """GPU-hours of all jobs by their requested walltimes; without GPUs, CPU-hours."""
        minutes = min(self.jobs * self.walltime_minutes, max(self.walltime_minutes, self.budget_seconds / 60))
        return self.slots.units * self.parallel_jobs * minutes / 60


def _quantile(ascending: Sequence[float], share: float) -> float:
    return ascending[round(share * (len(ascending) - 1))]
