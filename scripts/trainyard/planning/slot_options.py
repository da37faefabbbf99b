"""How many jobs and GPUs or CPUs a sweep can request, and which of these is best for its goal."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from trainyard.config.sweep import Slots
from trainyard.planning.order import makespan

FAST_TOLERANCE: Final = 0.05  # options at most this much longer than the fastest count as equally fast
CHEAP_TOLERANCE: Final = 0.02


@dataclass(frozen=True)
class GpuOption:
    """Jobs and their GPUs (or slots on CPUs) that can be requested, with their predicted time and cost."""

    slots: Slots  # of each of its `jobs`
    seconds: float  # from the start of the jobs to the end of the last trial

    @property
    def unit_seconds(self) -> float:
        """GPU-seconds, or CPU-seconds, of all jobs."""
        return self.seconds * self.slots.units * self.slots.jobs

    @property
    def gpus(self) -> int:
        """GPUs of all jobs."""
        return self.slots.gpus * self.slots.jobs

    @property
    def slot_count(self) -> int:
        """Slots of all jobs."""
        return self.slots.count * self.slots.jobs


def useful_jobs(slots: Slots, trials: int) -> int:
    """How many jobs with these slots find a trial to take: at least one, at most those of the config."""
    return max(1, min(slots.jobs, math.ceil(trials / slots.count)))


def list_options(durations: Sequence[float], limit: Slots, *, startup: float) -> list[GpuOption]:
    """All options up to a limit, fewest GPUs or CPUs first, for trials of these durations in this order.

    None has more slots than needed for all trials at once. The first trial starts after `startup` seconds.
    """
    options = list[GpuOption]()
    for slots in _sizes(limit):
        count = slots.count * slots.jobs
        options.append(GpuOption(slots, makespan(durations, count) + startup))
        if count >= len(durations):
            break
    return options


def _sizes(limit: Slots) -> Iterator[Slots]:
    """Jobs and GPUs or CPUs of each, by ascending product; of equal products, the one with the fewest jobs."""
    key = "gpus_per_node"
    step = max(1, int(limit.node_share))  # of a trial
    if not limit.has_gpus:
        key = "cpus"
        step = limit.cpus_per_trial
    per_node = range(step, getattr(limit, key) + 1, step)
    by_total: dict[int, tuple[int, int]] = {}
    for jobs in range(1, limit.jobs + 1):
        for count in per_node:
            by_total.setdefault(jobs * count, (jobs, count))
    for total in sorted(by_total):
        jobs, count = by_total[total]
        yield limit.model_copy(update={"jobs": jobs, key: count})


def choose_option(
    options: Sequence[GpuOption],
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
        for option in sorted(options, key=lambda option: (option.unit_seconds, option.seconds)):
            if option.seconds <= deadline and max_seconds(option) <= deadline:
                return option
    if goal == "cheapest":
        least = min(option.unit_seconds for option in options) * (1 + CHEAP_TOLERANCE) + 1e-9
        cheap = [option for option in options if option.unit_seconds <= least]
        return min(cheap, key=lambda option: (option.seconds, option.unit_seconds))
    quick = min(option.seconds for option in options) * (1 + FAST_TOLERANCE) + 1e-9
    fast = [option for option in options if option.seconds <= quick]
    return min(fast, key=lambda option: (option.unit_seconds, option.seconds))
