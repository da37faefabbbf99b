"""How many GPUs to ask for: every number up to a limit, by what the sweep will then take, leave idle, and cost."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from trainyard.config.sweep import Slots
from trainyard.planning.schedule import makespan

AS_FAST: Final = 0.05  # longer than the fastest, at most, to count as just as fast
AS_CHEAP: Final = 0.02


@dataclass(frozen=True)
class GpuOption:
    """Nodes and GPUs that can be asked for, and what they come to."""

    slots: Slots
    makespan_seconds: float
    idle_fraction: float  # of the slots' time, up to the makespan
    gpu_seconds: float  # from the start of the job to the end of the last trial

    @property
    def seconds(self) -> float:
        """From the start of the job to the end of the last trial."""
        return self.gpu_seconds / self.slots.gpus


def list_options(durations: Sequence[float], limit: Slots, *, startup: float) -> list[GpuOption]:
    """All that can be asked for up to a limit, fewest GPUs first, for trials of these durations in this order.

    More slots than trials are of no use. `startup` seconds pass before the first trial begins.
    """
    found = []
    for slots in _sizes(limit):
        span = makespan(durations, slots.count)
        idle = 1 - sum(durations) / (span * slots.count) if span else 0.0
        found.append(GpuOption(slots, span, idle, (span + startup) * slots.gpus))
        if slots.count >= len(durations):
            break
    return found


def _sizes(limit: Slots) -> Iterator[Slots]:
    """Nodes and GPUs per node, by their product; of equal ones, that with the fewest nodes."""
    unit = max(1, int(limit.share))
    per_node = range(unit, limit.gpus_per_node + 1, unit)
    found: dict[int, tuple[int, int]] = {}
    for nodes in range(1, limit.nodes + 1):
        for gpus in per_node:
            found.setdefault(nodes * gpus, (nodes, gpus))
    for total in sorted(found):
        nodes, gpus = found[total]
        yield limit.model_copy(update={"nodes": nodes, "gpus_per_node": gpus})


def choose_option(
    found: Sequence[GpuOption],
    goal: str,
    *,
    deadline: float | None = None,
    max_seconds: Callable[[GpuOption], float] = lambda option: option.seconds,
) -> GpuOption:
    """The option that suits the goal.

    `fastest`: the fewest GPU-seconds among all that take at most 5 % longer than the fastest. `cheapest`: the fastest
    among all that cost at most 2 % more GPU-seconds than the cheapest. With a `deadline` in seconds: the cheapest for
    which `max_seconds`, the longest that it may take, is within it; if there is none, as `fastest`.
    """
    if deadline is not None:
        for option in sorted(found, key=lambda option: (option.gpu_seconds, option.seconds)):
            if option.seconds <= deadline and max_seconds(option) <= deadline:
                return option
    if goal == "cheapest":
        least = min(option.gpu_seconds for option in found) * (1 + AS_CHEAP) + 1e-9
        cheap = [option for option in found if option.gpu_seconds <= least]
        return min(cheap, key=lambda option: (option.seconds, option.gpu_seconds))
    quick = min(option.seconds for option in found) * (1 + AS_FAST) + 1e-9
    fast = [option for option in found if option.seconds <= quick]
    return min(fast, key=lambda option: (option.gpu_seconds, option.seconds))
