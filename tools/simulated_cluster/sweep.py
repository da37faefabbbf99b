"""A whole sweep on the simulated cluster, run by Trainyard's driver, one job after another."""

import math
import random
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from trainyard.cluster import slurm_allocation
from trainyard.cluster.slurm_allocation import Allocation
from trainyard.config.config import Config
from trainyard.config.load import check_config
from trainyard.packing import driver, live_view, trial_claims
from trainyard.planning import journal
from trainyard.planning.order import lower_bound
from trainyard.planning.plan import plan_sweep
from trainyard.planning.trial_space import TrialSpace
from trainyard.utils.errors import UserError

from simulated_cluster.cluster import Account, Cluster, Conditions
from simulated_cluster.workers import Trial

WITH_CLOCK: Final = (journal, live_view)
END_SECONDS: Final = 15.0  # to shut a job down
MAX_JOBS: Final = 100
MEMORY: Final = Path("/dev/shm")  # a journal there costs no time to sync


@dataclass(frozen=True)
class Work:
    """A sweep over sizes and seeds, with log-normal durations."""

    trials: int = 10_000
    sizes: int = 100
    median_seconds: float = 3 * 3600.0
    known: float = 1.0  # standard deviation of the log durations, by size
    noise: float = 0.1  # the same, of what no key explains
    max_seconds: float = 16 * 3600.0  # of the largest size; what no key explains adds at most 30 %

    def config(self, conditions: Conditions, *, retries: int) -> Config:
        """The config of the sweep."""
        seeds = self.trials // self.sizes
        sizes = {"size": list(self._sizes())} if self.known else {}
        sweep: dict[str, Any] = {
            "command": "train {size} {seed}" if sizes else "train {seed}",
            "grid": {**sizes, "seed": {"start": 1, "stop": seeds if sizes else self.trials}},
            "slots": {"gpus_per_node": conditions.gpus},
            "retries": retries,
        }
        if conditions.checkpoint_seconds is not None:
            sweep |= {"checkpoint": "*.pt", "resume": "--resume {resume_from}"}
        return check_config({"sweeps": {"s": sweep}})

    def _sizes(self) -> Iterator[float]:
        """Quantiles of the log-normal distribution up to the largest size."""
        normal, largest = statistics.NormalDist(), math.log(self.max_seconds / self.median_seconds) / self.known
        for number in range(self.sizes):
            quantile = (number + 0.5) / self.sizes * normal.cdf(largest)
            yield round(math.exp(self.known * normal.inv_cdf(quantile)), 6)

    def durations(self, *, seed: int) -> dict[str, float]:
        """The seconds of training of each trial, in the config's order."""
        sweep, generator = self.config(Conditions(), retries=0).sweeps["s"], random.Random(seed)
        trials = TrialSpace(sweep, "no dataset").trials
        return {
            name: min(
                self.median_seconds * trial.values.get("size", 1.0) * math.exp(generator.gauss(0, self.noise)),
                1.3 * self.max_seconds,
            )
            for name, trial in trials.items()
        }


@dataclass(frozen=True)
class Outcome:
    """What a sweep took. GPU-seconds of its jobs are the sum of useful, lost, starting and idle ones."""

    jobs: int
    seconds: float  # of all jobs, from their start to their end
    gpu_seconds: float  # of all jobs
    useful: float  # GPU-seconds of training that results are made of
    lost: float  # of training that was made again
    starting: float  # of processes of trials, before their first step
    bound: float  # lower bound of the makespan without failures, in seconds
    account: Account
    by_hand: int = 0  # trials that a person had to submit again
    slots_retired: int = 0

    @property
    def idle(self) -> float:
        """GPU-seconds in which no trial ran."""
        return self.gpu_seconds - self.useful - self.lost - self.starting

    @property
    def idle_fraction(self) -> float:
        """Of the GPU-seconds."""
        return self.idle / self.gpu_seconds


def run_sweep(
    work: Work, conditions: Conditions, *, retries: int = 1, seed: int = 0, limit_minutes: float = 24 * 60
) -> Outcome:
    """Run a sweep with `driver.run_sweep`: jobs of the walltime that its plan requests, until all trials have a result.

    Nobody waits for a job in the queue, and the driver's own computations take no time.
    """
    config, memory = work.config(conditions, retries=retries), MEMORY if MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(dir=memory) as name:
        results = Path(name)
        durations = work.durations(seed=seed)
        cluster = Cluster(conditions, {trial: Trial(each) for trial, each in durations.items()}, seed=seed)
        jobs, seconds = 0, 0.0
        while (plan := plan_sweep(config, "s", results, limit_minutes=limit_minutes)).forecast.pending:
            jobs += 1
            if jobs > MAX_JOBS:
                raise RuntimeError(f"{len(plan.forecast.pending)} trials are left after {MAX_JOBS} jobs")
            seconds += _run_job(config, results, cluster, job=str(jobs), minutes=plan.walltime_minutes)
        journals = journal.journal_files(results / "sweeps/s")
        retired = sum(path.read_text().count('"event":"slot_down"') for path in journals)
    account, useful = cluster.account, sum(durations.values())
    return Outcome(
        jobs=jobs,
        seconds=seconds,
        gpu_seconds=seconds * conditions.gpus,
        useful=useful,
        lost=account.training - useful,
        starting=account.starting,
        bound=lower_bound(list(durations.values()), conditions.gpus),
        account=account,
        slots_retired=retired,
    )


def _run_job(config: Config, results: Path, cluster: Cluster, *, job: str, minutes: float) -> float:
    """One job of a sweep; returns the seconds that it took."""
    began = cluster.clock.now
    cluster.begin_job(job)
    allocation = Allocation(
        job=job,
        nodes=cluster.node_names,
        end_time=began + 60 * minutes,
        start_time=began,
        walltime_seconds=60 * minutes,
        gpus_per_node=cluster.conditions.gpus_per_node,
    )

    @contextmanager
    def start(*_: object, **__: object) -> Iterator[tuple[Cluster, dict[str, float]]]:
        cluster.clock.sleep(cluster.conditions.ray_seconds)
        yield cluster, {"ray_seconds": cluster.conditions.ray_seconds}

    with _simulate_modules(cluster, allocation), suppress(UserError):  # trials are left
        driver.run_sweep(config, "s", results, start=start)
    cluster.end_job()
    cluster.clock.sleep(END_SECONDS)
    return cluster.clock.now - began


@contextmanager
def _simulate_modules(cluster: Cluster, allocation: Allocation) -> Iterator[None]:
    """Let a driver run on a simulated cluster."""
    clock = cluster.clock

    with ExitStack() as stack:
        stack.enter_context(patch.object(trial_claims, "time", clock))
        for module in WITH_CLOCK:
            stack.enter_context(patch.object(module, "read_clock", clock.time))
        # Syncing takes no time: how often the driver looks for the end of a sync would depend on the machine.
        stack.enter_context(patch.object(journal.Journal, "is_synced", lambda _: True))
        stack.enter_context(patch.object(slurm_allocation, "current_allocation", lambda: allocation))
        stack.enter_context(patch.object(slurm_allocation, "job_id", lambda: cluster.job))
        yield
