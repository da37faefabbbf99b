"""The same trials as the tasks of a job array, in the order of the config, on the same simulated cluster."""

import math
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from trainyard.planning.order import lower_bound

from simulated_cluster.clock import Clock
from simulated_cluster.cluster import Account, Conditions
from simulated_cluster.sweep import Outcome, Work

DRAIN_SECONDS: Final = 300.0  # from the failure of a GPU until a health check of the site takes it out of service


@dataclass(eq=False)
class _Task:
    """A task of the array, in seconds of training."""

    seconds: float
    saved: float = 0.0  # progress in its last checkpoint
    began: float = math.nan


class _Array:
    """An array of which as many tasks run at a time as there are GPUs.

    Everything that is not measured is in its favor: a task starts as soon as a GPU is free, the scheduler replaces a
    failed node at once and a broken GPU after five minutes, and a person submits failed tasks again without delay.
    """

    def __init__(self, durations: Sequence[float], conditions: Conditions, *, seed: int) -> None:
        self.clock, self.account, self.by_hand = Clock(), Account(), 0
        self._at, self._random = conditions, random.Random(seed)
        self._waiting, self._failed = deque(map(_Task, durations)), deque[_Task]()
        self._running = dict[int, _Task]()  # by GPU
        self._broken = set[int]()

    def run(self) -> float:
        """Run all tasks; returns the seconds that it takes."""
        began = self.clock.now
        self._await_failure()
        while self._waiting or self._failed:
            if not self._waiting:  # a person submits those that failed again
                self.by_hand += len(self._failed)
                self._waiting, self._failed = self._failed, deque()
            for gpu in range(self._at.gpus):
                self._start(gpu)
            self.clock.run_until(math.inf, lambda: not self._running)
        return self.clock.now - began

    def _start(self, gpu: int) -> None:
        if gpu in self._running or not self._waiting:
            return
        task = self._running[gpu] = self._waiting.popleft()
        task.began = began = self.clock.now
        self.account.attempts += 1
        is_broken = gpu in self._broken
        seconds = self._at.program_seconds + task.seconds - task.saved
        end = began + (self._at.broken_seconds if is_broken else seconds)

        def at_end() -> None:
            if self._running.get(gpu) is task and task.began == began:
                self._end(gpu, self._failed if is_broken else None)
                self._start(gpu)

        self.clock.at(end, at_end)

    def _end(self, gpu: int, then: "deque[_Task] | None") -> None:
        """End the task on a GPU; if it has not finished, it goes to the end of a queue."""
        task = self._running.pop(gpu)
        made = max(0.0, self.clock.now - task.began - self._at.program_seconds)
        self.account.training += made
        self.account.starting += self.clock.now - task.began - made
        if then is not None:
            if interval := self._at.checkpoint_seconds:
                task.saved += made // interval * interval
            then.append(task)

    def _await_failure(self) -> None:
        self.clock.at(self.clock.now + self._at.seconds_to_failure(self._random), self._fail)

    def _fail(self) -> None:
        is_of_gpu = self._random.random() < self._at.gpu_share
        self._random.random()  # as for a sweep
        gpu = self._random.randrange(self._at.gpus)
        self._await_failure()
        if is_of_gpu and gpu not in self._broken:
            self.account.gpu_failures += 1
            self._broken.add(gpu)
            self.clock.at(self.clock.now + DRAIN_SECONDS, lambda: self._broken.discard(gpu))
            self._interrupt([gpu], self._failed)
        elif not is_of_gpu:
            self.account.node_failures += 1
            first = gpu - gpu % self._at.gpus_per_node
            self._interrupt(range(first, first + self._at.gpus_per_node), self._waiting)  # `--requeue`

    def _interrupt(self, gpus: Sequence[int], then: "deque[_Task]") -> None:
        for gpu in gpus:
            if gpu in self._running:
                self._end(gpu, then)
        for gpu in gpus:
            self._start(gpu)


def run_array(work: Work, conditions: Conditions, *, seed: int = 0) -> Outcome:
    """Run a sweep as an array; its GPU-seconds are those in which tasks ran, without any that no task used."""
    durations = list(work.durations(seed=seed).values())
    array, useful = _Array(durations, conditions, seed=seed), sum(durations)
    seconds, account = array.run(), array.account
    return Outcome(
        jobs=len(durations),
        seconds=seconds,
        gpu_seconds=account.training + account.starting,
        useful=useful,
        lost=account.training - useful,
        starting=account.starting,
        bound=lower_bound(durations, conditions.gpus),
        account=account,
        by_hand=array.by_hand,
    )
