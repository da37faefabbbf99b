"""A generated trace of the jobs of others."""

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from simulated_cluster.queue import Job, Queue

HOUR: Final = 3600.0
SIZES: Final = {1: 0.55, 2: 0.15, 4: 0.15, 8: 0.12, 16: 0.03}  # share of the jobs by their GPUs
MEDIAN_SECONDS, SPREAD = HOUR, 1.5  # of the log-normal durations; standard deviation of their logarithms
WALLTIMES: Final = tuple(hours * HOUR for hours in (1, 2, 4, 8, 12, 24))  # that people request
CAUTION: Final = 2.0  # they request the next walltime above one to so many times what a job takes


@dataclass(frozen=True)
class Arrival:
    """A job of others; times in seconds, the first from the beginning of the trace."""

    time: float
    gpus: int
    seconds: float
    walltime: float


def generate_trace(gpus: int, load: float, *, jobs: int, seed: int) -> list[Arrival]:
    """Jobs that need a share of so many GPUs, at random times; with another load, the same ones at other times."""
    generator = random.Random(seed)
    sizes = generator.choices(list(SIZES), list(SIZES.values()), k=jobs)
    seconds = [min(WALLTIMES[-1], generator.lognormvariate(0, SPREAD) * MEDIAN_SECONDS) for _ in sizes]
    requested = [each * generator.uniform(1, CAUTION) for each in seconds]
    walltimes = [next((each for each in WALLTIMES if each >= asked), WALLTIMES[-1]) for asked in requested]
    gaps = list(itertools.accumulate(generator.expovariate(1) for _ in sizes))
    end = sum(size * each for size, each in zip(sizes, seconds, strict=True)) / (gpus * load)
    times = [gap * end / gaps[-1] for gap in gaps]
    return [Arrival(*each) for each in zip(times, sizes, seconds, walltimes, strict=True)]


def submit_trace(queue: Queue, arrivals: Sequence[Arrival]) -> list[Job]:
    """Submit the jobs at their times; returns them, in the order of their times, as they are submitted."""
    jobs: list[Job] = []

    def submit(arrival: Arrival) -> None:
        clock = queue.clock
        job = Job(arrival.gpus, arrival.walltime, lambda: clock.at(clock.now + arrival.seconds, lambda: queue.end(job)))
        jobs.append(job)
        queue.submit(job)

    for arrival in sorted(arrivals, key=lambda each: each.time):
        queue.clock.at(queue.clock.now + arrival.time, partial(submit, arrival))
    return jobs
