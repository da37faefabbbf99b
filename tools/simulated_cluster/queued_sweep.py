"""A sweep in the queue of a busy cluster: the real driver in each of its jobs, or the tasks of an array."""

import math
import tempfile
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final
from unittest.mock import patch

from trainyard.config.trial_status import TrialStatus
from trainyard.packing import packer
from trainyard.planning.attempts import Fold
from trainyard.planning.job_marks import COMPLETE, JOBS, read_mark
from trainyard.planning.journal import Ended, Journal, SessionStarted, Started
from trainyard.planning.plan import plan_sweep
from trainyard.programs.user_environment import RECORD, record_environment
from trainyard.utils.environment_variables import environment_variables

from simulated_cluster.clock import BEGIN, Clock
from simulated_cluster.cluster import DAY, Cluster, Conditions
from simulated_cluster.queue import Job, Queue
from simulated_cluster.sweep import MEMORY, Work, run_driver, simulate_modules
from simulated_cluster.trace import Arrival, submit_trace
from simulated_cluster.workers import Trial

WARM_UP: Final = 5 * DAY  # of the trace, before the sweep is submitted
POLL_SECONDS: Final = 600.0  # between two looks of a job at the others, while its own trials run


@dataclass(frozen=True)
class Site:
    """A busy cluster."""

    gpus: int
    arrivals: Sequence[Arrival]

    def open(self) -> Queue:
        """Its queue, as a sweep finds it."""
        queue = Queue(Clock(), self.gpus)
        submit_trace(queue, self.arrivals)
        queue.clock.run_until(BEGIN + WARM_UP)
        return queue


@dataclass(frozen=True)
class Shape:
    """The jobs that a sweep asks for."""

    jobs: int
    gpus: int  # of each
    limit_minutes: float  # the longest walltime


@dataclass(frozen=True)
class QueuedOutcome:
    """What a sweep took; times in seconds from its submission."""

    first: float  # the start of the first trial
    last: float  # the end of the last one
    gpu_seconds: float  # allocated to its jobs
    idle: float  # of these, without training that results are made of: starts, ends, and what was made again
    jobs: int  # that have run


def pending_durations(work: Work, *, seed: int) -> dict[str, float]:
    """The seconds of training of the trials that have not run: all but the first seed of each size, which are known."""
    names = list(work.durations(seed=seed).items())
    return dict(each for number, each in enumerate(names) if number % (work.trials // work.sizes))


class _QueuedSweep:
    """A sweep whose jobs are submitted, and again while trials are left, as Snakemake does."""

    def __init__(
        self, work: Work, shape: Shape, queue: Queue, results: Path, conditions: Conditions, *, seed: int
    ) -> None:
        self._shape, self._queue, self._results, self._seed = shape, queue, results, seed
        self._conditions = replace(conditions, nodes=1, gpus_per_node=shape.gpus, failures_per_node_day=0.0)
        self._config = work.config(self._conditions, retries=1, jobs=shape.jobs)
        self._folder = results / "sweeps/s"
        self._trials = {name: Trial(each) for name, each in work.durations(seed=seed).items()}
        self.jobs, self._open = list[Job](), dict[Job, None]()

    def run(self) -> None:
        """Submit the jobs, and let time pass until none is left."""
        for number in range(plan_sweep(self._config, "s", self._results).request.parallel_jobs):
            self._submit(number)
        self._queue.clock.run_until(math.inf, lambda: not self._open)

    def record_known(self, names: Sequence[str]) -> None:
        """Record trials that have run elsewhere, whose durations predict the others."""
        with Journal.of_new_session(self._folder) as journal:
            journal.record(SessionStarted(job="0", node="n", slots=1, lead_seconds=0.0))
            for name in names:
                seconds = self._conditions.program_seconds + self._trials[name].seconds
                journal.record(Started(trial=name, attempt=1, job="0", node="n", slot=0))
                ended = Ended(trial=name, attempt=1, status=TrialStatus.FINISHED, seconds=seconds, metrics={})
                journal.record(ended)
            journal.leave()

    def _submit(self, number: int) -> None:
        plan = plan_sweep(self._config, "s", self._results, limit_minutes=self._shape.limit_minutes)
        job = Job(
            self._shape.gpus,
            60.0 * plan.request.walltime_minutes,
            start=lambda: self._queue.clock.begin(lambda: self._run(job, number)),
        )
        self.jobs.append(job)
        self._open[job] = None
        self._queue.submit(job)

    def _run(self, job: Job, number: int) -> None:
        """Run the driver in a job that has started."""
        cluster = Cluster(self._conditions, self._trials, seed=self._seed, clock=self._queue.clock)
        is_done = run_driver(
            self._config,
            self._results,
            cluster,
            job=str(self.jobs.index(job)),
            minutes=job.walltime / 60,
            order_job=number if self._shape.jobs > 1 else None,
        )
        self._queue.end(job)
        del self._open[job]
        if not is_done:
            self._submit(number)
        elif read_mark(self._folder / JOBS / COMPLETE):
            for each in [each for each in self._open if each in self._queue.waiting]:
                self._queue.cancel(each)
                del self._open[each]


def run_jobs(work: Work, shape: Shape, site: Site, conditions: Conditions, *, seed: int) -> QueuedOutcome:
    """Run a sweep in jobs of a shape. The durations of one seed of each size are known."""
    pending, queue = pending_durations(work, seed=seed), site.open()
    submitted, memory = queue.clock.now, MEMORY if MEMORY.is_dir() else None
    with (
        tempfile.TemporaryDirectory(dir=memory) as name,
        simulate_modules(queue.clock),
        # Each driver sets and restores it: what they find must be there from the first to the last of these threads.
        environment_variables({RECORD: record_environment()}),
        patch.object(packer, "RAY_POLL_SECONDS", POLL_SECONDS),
    ):
        sweep = _QueuedSweep(work, shape, queue, Path(name), conditions, seed=seed)
        sweep.record_known([trial for trial in work.durations(seed=seed) if trial not in pending])
        sweep.run()
        attempts = Fold(Path(name) / "sweeps/s").update().attempts.values()
    ran = [attempt for attempt in attempts if attempt.trial in pending]
    finished = [attempt.trial for attempt in ran if attempt.outcome is TrialStatus.FINISHED]
    assert sorted(finished) == sorted(pending), "each trial finishes once"
    first, last = min(attempt.start for attempt in ran), max(attempt.end for attempt in ran)
    return _outcome(sweep.jobs, pending, first=first - submitted, last=last - submitted)


def run_array(work: Work, at_most: int, site: Site, conditions: Conditions, *, seed: int) -> QueuedOutcome:
    """Run the same trials as an array, longest first, of which at most so many tasks wait or run at a time.

    A task that is held back keeps its place in the queue. All request the time of the longest that may occur.
    """
    pending, queue = pending_durations(work, seed=seed), site.open()
    clock, submitted = queue.clock, queue.clock.now
    held, jobs = deque(sorted(pending.values(), reverse=True)), list[Job]()

    def submit() -> None:
        if held:
            seconds, walltime = (each + conditions.program_seconds for each in (held.popleft(), 1.3 * work.max_seconds))
            job = Job(1, walltime, lambda: clock.at(clock.now + seconds, lambda: end(job)), submitted=submitted)
            jobs.append(job)
            queue.submit(job)

    def end(job: Job) -> None:
        queue.end(job)
        submit()

    for _ in range(at_most):
        submit()
    clock.run_until(math.inf, lambda: all(job.ended < math.inf for job in jobs))
    first, last = min(job.began for job in jobs), max(job.ended for job in jobs)
    return _outcome(jobs, pending, first=first - submitted, last=last - submitted)


def _outcome(jobs: Sequence[Job], pending: dict[str, float], *, first: float, last: float) -> QueuedOutcome:
    ran = [job for job in jobs if job.began < math.inf]
    gpu_seconds = sum(job.gpus * (job.ended - job.began) for job in ran)
    return QueuedOutcome(first, last, gpu_seconds, gpu_seconds - sum(pending.values()), len(ran))
