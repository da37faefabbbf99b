"""The number of GPUs, or CPUs, to request: all options up to a limit, with their makespan and cost."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from trainyard.config.sweep import Slots
from trainyard.planning.schedule import makespan

FAST_TOLERANCE: Final = 0.05  # options at most this much longer than the fastest count as equally fast
CHEAP_TOLERANCE: Final = 0.02


@dataclass(frozen=True)
class GpuOption:
    """Nodes and GPUs (or slots on CPUs) that can be requested, with their predicted time and cost."""

    slots: Slots
    unit_seconds: float  # GPU-seconds, or CPU-seconds, from the start of the job to the end of the last trial

    @property
    def seconds(self) -> float:
        """From the start of the job to the end of the last trial."""
        return self.unit_seconds / self.slots.units


def list_options(durations: Sequence[float], limit: Slots, *, startup: float) -> list[GpuOption]:
    """All options up to a limit, fewest GPUs or CPUs first, for trials of these durations in this order.

    None has more slots than needed for all trials at once. The first trial starts after `startup` seconds.
    """
    found = []
    for slots in _sizes(limit):
        found.append(GpuOption(slots, (makespan(durations, slots.count) + startup) * slots.units))
        if slots.count >= len(durations):
            break
    return found


def _sizes(limit: Slots) -> Iterator[Slots]:
    """Nodes and GPUs or slots per node, by ascending product; of equal products, the one with the fewest nodes."""
    key = "gpus_per_node" if limit.has_gpus else "slots_per_node"
    step = max(1, int(limit.share))
    per_node = range(step, getattr(limit, key) + 1, step)
    found: dict[int, tuple[int, int]] = {}
    for nodes in range(1, limit.nodes + 1):
        for count in per_node:
            found.setdefault(nodes * count, (nodes, count))
    for total in sorted(found):
        nodes, count = found[total]
        yield limit.model_copy(update={"nodes": nodes, key: count})


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
