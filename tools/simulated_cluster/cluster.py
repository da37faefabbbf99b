"""Simulated nodes and GPUs, which fail at random, in place of the workers that Ray starts."""

import math
import random
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from simulated_cluster.clock import Clock
from simulated_cluster.workers import Answer, Gpu, Trial, Worker

DAY: Final = 86_400.0


@dataclass(frozen=True)
class Conditions:
    """What a sweep meets on a cluster. Times are in seconds; all but the failures are assumptions."""

    nodes: int = 64
    gpus_per_node: int = 8
    failures_per_node_day: float = 0.0
    gpu_share: float = 0.0  # of the failures: a single GPU is broken from then on; the others end the whole node
    found_share: float = 0.5  # of the broken GPUs: a check of the GPU finds the fault
    ray_seconds: float = 60.0  # from the start of a job to a running Ray
    worker_seconds: float = 30.0  # for the worker process of a slot to start
    program_seconds: float = 30.0  # from the start of a trial's process to its first step, in each attempt
    broken_seconds: float = 30.0  # after which a trial fails that starts on a broken GPU
    check_seconds: float = 20.0  # for a check of a GPU
    unnoticed_seconds: float = 30.0  # from the failure of a node until Ray says that its workers have died
    checkpoint_seconds: float | None = 1800.0  # between checkpoints; None: trials have none

    @property
    def gpus(self) -> int:
        """The GPUs of all nodes."""
        return self.nodes * self.gpus_per_node

    def seconds_to_failure(self, generator: random.Random) -> float:
        """Time from one failure to the next one, anywhere; infinite without failures."""
        rate = self.failures_per_node_day * self.nodes / DAY
        return generator.expovariate(rate) if rate else math.inf


@dataclass
class Account:
    """What failed, and what the GPUs did while they ran trials, in GPU-seconds."""

    node_failures: int = 0
    gpu_failures: int = 0
    attempts: int = 0
    training: float = 0.0  # from the first step of each attempt
    starting: float = 0.0  # before it


class Cluster:
    """The nodes of one job after another, with the interface of `trainyard.packing.workers.Workers`.

    A node that fails is away until the job ends, whose driver survives it; a real job has one node, and ends with it.
    The next job has healthy nodes only. Failures are drawn for all GPUs of the cluster, so that they do not depend on
    what runs there.
    """

    def __init__(self, conditions: Conditions, trials: dict[str, Trial], *, seed: int) -> None:
        self.conditions, self.trials, self.clock, self.account = conditions, trials, Clock(), Account()
        self.job, self.gpus = "", list[Gpu]()
        self._random = random.Random(seed)
        self._waiting = list[Worker]()  # for a GPU
        self._arrived = dict[Answer, None]()  # answers, in the order in which they have arrived
        self._await_failure()

    @property
    def node_names(self) -> tuple[str, ...]:
        """The nodes of a job."""
        return tuple(f"n{number:03}" for number in range(self.conditions.nodes))

    def begin_job(self, job: str) -> None:
        """Begin a job on healthy nodes."""
        self.job, self._waiting = job, []
        self._arrived.clear()
        self.gpus = [Gpu(name, number) for name in self.node_names for number in range(self.conditions.gpus_per_node)]

    def end_job(self) -> None:
        """End what still runs."""
        gpus, self.gpus, self._waiting = self.gpus, [], []
        for gpu in gpus:
            if gpu.worker:
                gpu.worker.die()

    # ---- failures

    def _await_failure(self) -> None:
        self.clock.at(self.clock.now + self.conditions.seconds_to_failure(self._random), self._fail)

    def _fail(self) -> None:
        is_of_gpu = self._random.random() < self.conditions.gpu_share
        is_found = self._random.random() < self.conditions.found_share
        place = self._random.randrange(self.conditions.gpus)
        self._await_failure()
        gpu = self.gpus[place] if self.gpus else None  # between two jobs, failures are somebody else's
        if gpu is None or not gpu.is_up or gpu.is_broken:
            return
        if is_of_gpu:
            self._break_gpu(gpu, is_found=is_found)
        else:
            self._end_node(gpu.node)

    def _break_gpu(self, gpu: Gpu, *, is_found: bool) -> None:
        self.account.gpu_failures += 1
        gpu.is_broken, gpu.is_found = True, is_found
        if gpu.worker:
            gpu.worker.fail_trial()

    def _end_node(self, node: str) -> None:
        self.account.node_failures += 1
        gone = [gpu for gpu in self.gpus if gpu.node == node]
        for gpu in gone:
            gpu.is_up = False
        for gpu in gone:
            if gpu.worker:
                gpu.worker.die(noticed_after=self.conditions.unnoticed_seconds)

    # ---- GPUs for workers

    def place(self, worker: Worker) -> None:
        """Give a worker the first free GPU; if there is none, it waits."""
        gpu = next((gpu for gpu in self.gpus if gpu.is_up and gpu.worker is None), None)
        if gpu:
            worker.take(gpu)
        else:
            self._waiting.append(worker)

    def release(self, gpu: Gpu) -> None:
        """Give a GPU to the next worker that waits."""
        gpu.worker = None
        if gpu.is_up and self._waiting:
            self._waiting.pop(0).take(gpu)

    def arrive(self, answer: Answer) -> None:
        """An answer arrives at the driver."""
        self._arrived[answer] = None

    # ---- the interface of `Workers`

    have_ended = False

    def create(self) -> Worker:
        """A new worker, which waits for a free GPU."""
        worker = Worker(self)
        self.place(worker)
        return worker

    def kill(self, worker: Worker) -> None:
        """End a worker."""
        if worker in self._waiting:
            self._waiting.remove(worker)
        worker.die()

    def wait(self, answers: Iterable[Answer], *, seconds: float, count: int = 1) -> list[Answer]:
        """The first answers of these that have arrived; none after some seconds."""
        assert count == 1 or seconds == 0
        asked = set(answers)
        self.clock.run_until(self.clock.now + seconds, lambda: not asked.isdisjoint(self._arrived))
        return list(islice((each for each in self._arrived if each in asked), count))

    def receive(self, answer: Answer) -> Any:
        """The value of an answer that has arrived."""
        self._arrived.pop(answer, None)
        if answer.error:
            raise answer.error
        return answer.value

    def has_node(self) -> bool:
        """Whether a node is alive."""
        return any(gpu.is_up for gpu in self.gpus)
