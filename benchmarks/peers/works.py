"""The works that all participants do, and the shape of what they are given for it."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainyard.planning.order import lower_bound

SECONDS_PER_BLOCK = 0.2125
BLOCKS = range(4, 81, 4)
SHORT_SECONDS = 0.05
GPUS_PER_NODE = 2
HOSTS = 4


@dataclass(frozen=True)
class Work:
    """Trials to run, and the part of the cluster to run them on."""

    name: str
    title: str
    seconds: tuple[float, ...]  # of each trial, in the order in which people write them; trial i has the index i + 1
    nodes: int
    limit_seconds: float  # a run that takes longer is ended
    scale: float = 1.0  # of the durations
    is_real: bool = False  # `seconds` are the numbers of blocks of trainings
    has_trouble: bool = False  # one trial crashes; all is killed at half time, and resumed
    is_crowded: bool = False  # half of the cluster is taken

    @property
    def slots(self) -> int:
        """GPUs, one per trial."""
        return self.nodes * GPUS_PER_NODE

    @property
    def workers(self) -> int:
        """GPUs that a participant with a job for each requests: in the crowded queue, all that there are."""
        return HOSTS * GPUS_PER_NODE if self.is_crowded else self.slots

    @property
    def gpus_per_job(self) -> int:
        """GPUs of each job where a participant may choose: those of a host, or one if others hold half of each."""
        return 1 if self.is_crowded else GPUS_PER_NODE

    @property
    def bound_seconds(self) -> float:
        """The lower bound of the makespan on the slots; for `is_real` and `is_crowded`, without a meaning."""
        return lower_bound(self.seconds, self.slots)

    @property
    def crashing_trial(self) -> int:
        """The index of the trial that crashes: the longest one."""
        return 1 + max(range(len(self.seconds)), key=lambda i: self.seconds[i])

    def table(self) -> str:
        """trials.txt: one line per trial, `SECONDS INDEX`."""
        return "".join(f"{seconds:.4f} {index}\n" for index, seconds in enumerate(self.seconds, start=1))


def works(*, scale: float, short_trials: int) -> dict[str, Work]:
    """All works by name; `scale` multiplies the durations of the depth sweep, `short_trials` counts the short ones."""
    depth = tuple(round(SECONDS_PER_BLOCK * scale * blocks, 4) for blocks in BLOCKS)
    half = tuple(seconds / 2 for seconds in depth)
    rng = random.Random(20)
    tail = tuple(min(3.0, rng.lognormvariate(-2.3, 1.0)) for _ in range(200))  # median 0.1 s
    bound = lower_bound(depth, 4)
    every = [
        Work("depth", "Depth sweep", depth, nodes=2, limit_seconds=45 + 3 * bound, scale=scale),
        Work("short", "Many short", (SHORT_SECONDS,) * short_trials, nodes=4, limit_seconds=60),
        Work("tail", "Heavy tail", tail, nodes=4, limit_seconds=45),
        Work("real", "Real", tuple(map(float, range(1, 21))), nodes=2, limit_seconds=150, is_real=True),
        Work("trouble", "Trouble", half, nodes=2, limit_seconds=75 + 3 * bound, scale=scale, has_trouble=True),
        Work("crowded", "A crowded queue", depth, nodes=2, limit_seconds=45 + 3 * bound, scale=scale, is_crowded=True),
    ]
    return {work.name: work for work in every}


def measured_works(runs: Sequence[Mapping[str, Any]], *, short_trials: int) -> dict[str, Work]:
    """The works that were measured, by name and in their order, each at its largest scale."""
    scales = {work: scale for scale, work in sorted((run["scale"], run["work"]) for run in runs)}
    every = works(scale=1.0, short_trials=short_trials)
    return {name: works(scale=scales[name], short_trials=short_trials)[name] for name in every if name in scales}
