"""The plan of a sweep: its Slurm jobs, with GPUs or CPUs, walltime, and the number in parallel and in sequence."""

import math
import time
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Final

from trainyard.cluster.slurm_allocation import DEADLINE_MARGIN_SECONDS
from trainyard.config.config import Config
from trainyard.config.sweep import Slots
from trainyard.planning.attempts import Fold
from trainyard.planning.duration_forecast import DurationForecast
from trainyard.planning.history import History, read_state
from trainyard.planning.order import jobs_needed, makespan
from trainyard.planning.slot_options import GpuOption, choose_option, list_options, useful_jobs
from trainyard.utils.errors import UserError
from trainyard.utils.text import format_duration

TABLES_MINUTES: Final = 10  # walltime of a job that only writes tables
UNPROVEN_MINUTES: Final = 60  # walltime before the duration of any trial is known
UNPROVEN_MARGIN_SECONDS: Final = 60.0  # before the driver starts and after the last trial, before it was measured
END_SECONDS: Final = 15.0  # to shut down after the last trial
INTERVAL: Final = (0.05, 0.95)  # quantiles of the predicted range of the makespan
WALLTIME_QUANTILE: Final = 0.99  # of the makespan, covered by the walltime
SHARE_FACTOR: Final = 1.5  # of its share of the work, covered by the walltime of one of several jobs


@dataclass(frozen=True)
class Plan:
    """The plan of a sweep as of now: what is requested from Slurm to run the pending trials, within the limits."""

    state: History
    limit_minutes: float = math.inf  # the longest walltime that can be requested
    limit_gpus: float = math.inf  # the most GPUs, of all jobs
    fixed_minutes: float | None = None  # the walltime that is requested in any case
    price: float | None = None  # of a GPU-hour; without GPUs, of a CPU-hour

    @cached_property
    def forecast(self) -> DurationForecast:
        """How long the pending trials take."""
        return DurationForecast(self.state)

    def with_slots(self, slots: Slots) -> "Plan":
        """The plan of jobs with exactly these slots."""
        return replace(self, state=self.state.with_slots(slots))

    @cached_property
    def slots(self) -> Slots:
        """The slots of a job: the config's; with a goal, the number up to these that is best for the goal.

        A job that only writes tables has one CPU.
        """
        limit = self.state.sweep.slots
        sweep = self.state.sweep
        if not self.forecast.pending:
            return Slots(gpus_per_node=0)
        if sweep.goal is None:
            return limit
        deadline = self._deadline_seconds if self.forecast.seconds else None
        return choose_option(self.options, sweep.goal, deadline=deadline, max_seconds=self._max_seconds).slots

    @property
    def parallel_jobs(self) -> int:
        """Jobs that share the pending trials, as many as find one to take."""
        return useful_jobs(self.slots, len(self.forecast.pending))

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
        return self._startup_seconds + _quantile(self._samples, WALLTIME_QUANTILE) > deadline

    @property
    def _startup_seconds(self) -> float:
        """From the start of a job to its first trial."""
        return self.forecast.startup_seconds

    @property
    def _deadline_seconds(self) -> float | None:
        """The deadline of the goal; with `cheapest`, the end of the budget by the clock, if it has one."""
        spending = self.state.spending if self.state.sweep.goal == "cheapest" else None
        seconds = spending.end_time - time.time() if spending else math.inf
        return seconds if math.isfinite(seconds) else self.state.sweep.deadline_seconds

    @property
    def budget_seconds(self) -> float:
        """How long each parallel job may take by its share of the budget; infinite without one."""
        if (spending := self.state.spending) is None:
            return math.inf
        share = spending.left_unit_seconds / (self.slots.units * self.parallel_jobs)
        return max(0.0, min(share, spending.end_time - time.time()))

    @cached_property
    def trials_in_budget(self) -> int | None:
        """How many of the pending trials, in their order, are expected to fit the budget; None if that is unknown."""
        if math.isinf(self.budget_seconds) or not self.forecast.seconds:
            return None
        seconds = self.forecast.durations(self.forecast.pending)
        most = self.budget_seconds - self._lead_seconds - self._startup_seconds
        counts = range(1, len(seconds) + 1)
        return bisect_right(counts, most, key=lambda count: makespan(seconds[:count], self.slot_count))

    @cached_property
    def options(self) -> list[GpuOption]:
        """Numbers of GPUs or CPUs that can be requested; without evidence, with relative durations."""
        startup = self._startup_seconds if self.forecast.seconds else 0.0
        found = list_options(self.forecast.durations(self.forecast.pending), self.state.sweep.slots, startup=startup)
        return [option for option in found if option.gpus <= self.limit_gpus] or found[:1]

    def _max_seconds(self, option: GpuOption) -> float:
        """Seconds from the start of the driver to the end of an option's last trial, exceeded with 1 % probability."""
        samples = self.forecast.makespan_samples(option.slot_count)
        return self._startup_seconds + (_quantile(samples, WALLTIME_QUANTILE) if samples else math.inf)

    @property
    def predicted_seconds(self) -> float | None:
        """Makespan of the pending trials, without the start-up; None without evidence."""
        return self.forecast.makespan(self.slot_count)

    @cached_property
    def predicted_range(self) -> tuple[float, float] | None:
        """The 90 % interval of the makespan; None without evidence."""
        expected = self.predicted_seconds
        samples = self._samples
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
            share = sum(self.forecast.seconds.values()) / self.slot_count
            likely = max(_quantile(self.forecast.longest_samples, WALLTIME_QUANTILE), SHARE_FACTOR * share)
        return min(likely, self.forecast.serial_seconds)

    @cached_property
    def _samples(self) -> list[float]:
        return self.forecast.makespan_samples(self.slot_count)

    @property
    def margin_seconds(self) -> float:
        """Seconds reserved for everything before the driver starts and after the last trial."""
        grace = self.state.sweep.trial_grace_seconds
        if not self._lead_seconds:
            return UNPROVEN_MARGIN_SECONDS + grace
        return self._lead_seconds + DEADLINE_MARGIN_SECONDS + grace + END_SECONDS

    @property
    def _lead_seconds(self) -> float:
        """From the start of a job to that of its driver, the longest measured; 0 if none is."""
        return max((run.info.lead_seconds or 0.0 for run in self.state.sessions), default=0.0)

    @property
    def needed_minutes(self) -> int:
        """The walltime to request without a limit."""
        if not self.forecast.pending:
            return TABLES_MINUTES
        training = self.sure_seconds
        if training is None:
            training = self.forecast.likely_seconds(self.forecast.pending)
        minutes = math.ceil((training + self._startup_seconds + self.margin_seconds) / 60)
        return max(UNPROVEN_MINUTES, minutes) if self.sure_seconds is None else minutes

    @property
    def walltime_minutes(self) -> int:
        """The walltime to request."""
        if self.fixed_minutes is not None:
            return int(self.fixed_minutes)
        return int(min(self.needed_minutes, max(1.0, min(self.limit_minutes, self.budget_seconds // 60))))

    @property
    def jobs(self) -> int:
        """Jobs, one after another, that each parallel job takes: more than one if the walltime is limited.

        Each job has its own start-up and margins. It resumes the trials that the previous one interrupted; trials that
        cannot resume must end within one job, and start longest first.
        """
        expected = self.predicted_seconds
        forecast = self.forecast
        if self.needed_minutes <= self.limit_minutes or self.predicted_range is None or not expected:
            return 1
        useful = max(60.0, self._useful_seconds)
        if self.state.sweep.can_resume:
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
        return 60 * self.limit_minutes - self._startup_seconds - self.margin_seconds

    def check_limit(self) -> None:
        """Raise a UserError if the longest job that can be requested has no time to train."""
        if self._useful_seconds <= 0:
            raise UserError(f"sweeps.{self.state.name}: {self._limit}: {self._limit_remedy}")

    @property
    def _limit(self) -> str:
        """What the longest job that can be requested has for trials."""
        limit = format_duration(60 * self.limit_minutes)
        taken = format_duration(self._startup_seconds + self.margin_seconds)
        time_left = format_duration(max(0.0, self._useful_seconds))
        return (
            f"a job may take {limit} at most, but its start and its end, with the grace period of trials, need {taken} "
            f"({time_left} left for trials)"
        )

    @property
    def _limit_remedy(self) -> str:
        """What to raise for longer jobs."""
        if self.fixed_minutes is None:
            return "request a partition or QOS with a longer limit"
        if self.fixed_minutes == self.state.sweep.walltime_minutes:
            return f"raise `walltime: {self.state.sweep.walltime}` of the sweep"
        return f"raise `runtime: {self.fixed_minutes:g}` in `set-resources` of the profile"

    @cached_property
    def too_long(self) -> list[str]:
        """Pending trials that cannot resume and almost certainly exceed the longest job, longest first.

        A function cannot if its trial has lost what it did when it was interrupted.
        """
        least = self.forecast.min_seconds
        return [
            name
            for name in self.forecast.pending
            if name in least
            and least[name] > self._useful_seconds
            and (self.forecast.interrupted_seconds(name) or not self.state.sweep.can_resume)
        ]

    @property
    def too_long_message(self) -> str:
        """The error if a trial exceeds the longest job: which one, and what to do."""
        longest = self.too_long[0]
        least = format_duration(self.forecast.min_seconds[longest])
        remedy = f"{self._limit_remedy}{self.state.sweep.resume_remedy}"
        if self.forecast.interrupted_seconds(longest):  # so far only, by an attempt that did not end
            remedy += "; if something else held it up, increase `retrain`"
        return f"trial {longest} takes at least {least} and cannot resume; {self._limit}: {remedy}"

    @property
    def used_hours(self) -> float | None:
        """GPU-hours (without GPUs, CPU-hours) that the pending trials use, with start-ups; None without evidence."""
        if self.predicted_seconds is None:
            return None
        seconds = min(self.predicted_seconds + self.jobs * self._startup_seconds, self.budget_seconds)
        return self.slots.units * self.parallel_jobs * seconds / 3600

    @property
    def wasted_fraction(self) -> float | None:
        """Of the used hours: the part in which no trial runs that the budget allows; None without evidence."""
        used = 3600 * (self.used_hours or 0.0)
        if not used:
            return None
        running = sum(self.forecast.durations(self.forecast.pending)[: self.trials_in_budget])
        return 1 - running * self.slots.units_per_trial / used

    @property
    def requested_hours(self) -> float:
        """GPU-hours of all jobs by their requested walltimes; without GPUs, CPU-hours."""
        minutes = min(self.jobs * self.walltime_minutes, max(self.walltime_minutes, self.budget_seconds / 60))
        return self.slots.units * self.parallel_jobs * minutes / 60


def _quantile(ascending: Sequence[float], share: float) -> float:
    return ascending[round(share * (len(ascending) - 1))]


def plan_sweep(
    config: Config,
    name: str,
    results: Path,
    *,
    limit_minutes: float = math.inf,
    limit_gpus: float = math.inf,
    fixed_minutes: float | None = None,
    gpu_models: Sequence[str] = (),
    fold: Fold | None = None,
) -> Plan:
    """The plan of a sweep, from the config and from its dataset and journal in `results`.

    No job may take longer than `limit_minutes`; with a goal, all together request at most `limit_gpus`. With
    `fixed_minutes`, or a `walltime` in the config, each requests this walltime. Durations are those on `gpu_models`, of
    which a job gets one; empty if that is unknown. A caller that plans repeatedly passes the `fold` of the journal,
    which then reads new lines only.
    """
    sweep = config.sweeps[name]
    fixed_minutes = sweep.walltime_minutes if fixed_minutes is None else fixed_minutes
    state = read_state(sweep, name, results, gpu_models=gpu_models, fold=fold)
    return Plan(
        state,
        limit_minutes=limit_minutes if fixed_minutes is None else fixed_minutes,
        limit_gpus=limit_gpus,
        fixed_minutes=fixed_minutes,
        price=config.pricing.per_hour(sweep.slots.unit),
    )
