"""A simulated queue of jobs with EASY backfill, on GPUs of which any are as good as others.

The first waiting job has a reservation: the time at which, by the walltimes of the running jobs, its GPUs are free. Any
other may start before it if it does not delay this: if it ends before by its walltime, or uses GPUs that the first one
leaves. (Lifka, The ANL/IBM SP Scheduling System, 1995.)
"""

import bisect
import math
from collections.abc import Callable
from dataclasses import dataclass

from simulated_cluster.clock import Clock


@dataclass(eq=False)
class Job:
    """A job; times in seconds."""

    gpus: int
    walltime: float  # at which it is ended
    start: Callable[[], None]  # called when it starts; `Queue.end` ends it
    submitted: float = math.inf
    reserved: float = math.inf  # while it is the first in the queue: by when it starts
    began: float = math.inf
    ended: float = math.inf
    places: tuple[int, ...] = ()  # the numbers of its GPUs


class Queue:
    """The jobs that wait and run, by the time of their submission."""

    def __init__(self, clock: Clock, gpus: int) -> None:
        self.clock, self.free = clock, list(range(gpus))
        self.waiting, self.running = list[Job](), list[Job]()
        self.is_due = False  # whether jobs may start now, at the end of all that happens at this time

    def submit(self, job: Job) -> None:
        """Submit a job. One that was to be submitted earlier keeps its place."""
        job.submitted = min(job.submitted, self.clock.now)
        bisect.insort(self.waiting, job, key=lambda each: each.submitted)
        self._note_change()

    def cancel(self, job: Job) -> None:
        """Remove a job that waits."""
        self.waiting.remove(job)
        self._note_change()

    def end(self, job: Job) -> None:
        """End a job, unless it has ended."""
        if job in self.running:
            self.running.remove(job)
            self.free += job.places
            job.ended = self.clock.now
            self._note_change()

    def _note_change(self) -> None:
        if not self.is_due:
            self.is_due = True
            self.clock.at(self.clock.now, self._schedule)

    def _schedule(self) -> None:
        """Start what may start."""
        self.is_due = False
        while self.waiting and self.waiting[0].gpus <= len(self.free):
            self._start(self.waiting[0])
        if not self.waiting:
            return
        first, *others = self.waiting
        first.reserved, spare = self._reservation(first)
        for job in others:
            ends_before = self.clock.now + job.walltime <= first.reserved
            if job.gpus <= len(self.free) and (ends_before or job.gpus <= spare):
                spare -= 0 if ends_before else job.gpus
                self._start(job)

    def _reservation(self, first: Job) -> tuple[float, int]:
        """When a job can start at the latest, and how many GPUs it leaves then."""
        free = len(self.free)
        for job in sorted(self.running, key=lambda each: each.began + each.walltime):
            free += job.gpus
            if free >= first.gpus:
                return job.began + job.walltime, free - first.gpus
        raise ValueError(f"no job can have {first.gpus} GPUs")

    def _start(self, job: Job) -> None:
        self.waiting.remove(job)
        self.running.append(job)
        job.places, self.free = tuple(self.free[: job.gpus]), self.free[job.gpus :]
        job.began = self.clock.now
        self.clock.at(job.began + job.walltime, lambda: self.end(job))
        job.start()
