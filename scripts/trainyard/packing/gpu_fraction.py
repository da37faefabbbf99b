"""Measures how many trials should share a GPU: one, two, four, ..., as long as more of them end per hour.

The throughput of a GPU, relative to one trial at a time, is estimated from the attempts in the journal. The utilization
that NVML reports is no measure of it: a trial whose small kernels wait for the CPU counts as busy.
"""

import statistics
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Final

from trainyard.config.sweep import MAX_TRIALS_PER_GPU, Slots
from trainyard.config.trial_status import TrialStatus
from trainyard.config.trials import full_seconds
from trainyard.packing.worker_gpu import GpuUse, trials_that_fit
from trainyard.planning.attempts import Attempt, Fold
from trainyard.planning.duration_forecast import DurationForecast
from trainyard.planning.journal import GpuFraction
from trainyard.planning.sweep_state import SweepState, Task, TaskSource

MEASURED_SECONDS: Final = 60.0  # with each number of trials, at least: a few seconds of bad luck must not decide
MIN_GAIN: Final = 1.1  # in trials per hour, for which more of them share a GPU
NOT_MEASURED: Final = "NVML did not report their memory use"
RunTrials = Callable[[Slots, TaskSource], Sequence[GpuUse]]  # returns what trials used of their GPUs
CLOCK_SECONDS: Final = 0.5  # by which the seconds of a worker may exceed those between two events of the driver


class MeasuredTasks:
    """The waiting tasks as a `TaskSource`, which ends when each slot has had one and they have run long enough."""

    def __init__(self, waiting: deque[Task], slots: int) -> None:
        self._waiting, self._slots = waiting, slots
        self._began: float | None = None
        self._taken = 0

    @property
    def remaining(self) -> int:
        """The number of tasks that may still run."""
        return 0 if self._is_measured else len(self._waiting)

    @property
    def _is_measured(self) -> bool:
        if self._began is None or self._taken < self._slots:
            return False
        return time.monotonic() - self._began >= MEASURED_SECONDS

    def next_task(self, seconds: float = 0.0) -> Task | None:
        """The next waiting task; None if none is left."""
        if not self.remaining:
            return None
        self._began = self._began or time.monotonic()
        self._taken += 1
        return self._waiting.popleft()

    def draw_ahead(self, seconds: float) -> None:
        """Do nothing: its tasks are drawn."""


class GpuFractionMeasurement:
    """Runs trials with one, two, four, ... on each GPU, as long as that makes more of them end per hour and they fit.

    `run` takes trials from the tasks that it is given.
    """

    def __init__(self, state: SweepState, session: str, run: RunTrials) -> None:
        """`session`: this run of the driver."""
        self._state, self._session, self._run = state, session, run
        self._throughput: dict[int, float] = {}  # relative to one trial at a time, by trials per GPU
        self._uses: list[GpuUse] = []  # of trials that ran alone
        self._limit = MAX_TRIALS_PER_GPU
        self._remark = ""  # why there are not more trials per GPU, if the measured numbers do not explain it

    def measure(self, waiting: deque[Task]) -> GpuFraction | None:
        """The best share of a GPU; None if too few trials waited or ended to compare two of them."""
        best = count = 1
        while self._pays(count, best, waiting):
            best, count = count, min(2 * count, self._most)
            if count <= best:
                break
            if len(waiting) < self._slots(count).count:
                self._remark = f"too few were left to try {count}"
                break
        return self._share(best)

    def _slots(self, count: int) -> Slots:
        return self._state.sweep.slots.model_copy(update={"gpus_per_trial": 1 / count})

    def _pays(self, count: int, best: int, waiting: deque[Task]) -> bool:
        """Run trials with `count` per GPU; returns whether they end sooner than with the best number so far."""
        slots = self._slots(count)
        self._uses += self._run(slots, MeasuredTasks(waiting, slots.count))
        fold = Fold(self._state.folder).update()
        run = fold.run_of(self._session)
        attempts = [fold.attempts[key] for key in run.attempts] if run else []
        if count > 1 and any(each.is_halved and each.gpus_per_trial == slots.share for each in attempts):
            self._limit, self._remark = best, f"with {count}, a micro-batch did not fit"
            return False
        found = relative_throughput(self._state, attempts, count)
        if found is None:
            return False
        self._throughput[count] = round(found, 3)
        return count == 1 or found >= MIN_GAIN * self._throughput[best]

    @property
    def _largest(self) -> GpuUse | None:
        return max(self._uses, key=lambda use: use.peak_mib, default=None)

    @property
    def _most(self) -> int:
        """The limit of trials per GPU, by the config and by memory."""
        fitting = trials_that_fit(self._largest) if self._largest else 1
        return max(1, min(self._limit, fitting))

    def _share(self, best: int) -> GpuFraction | None:
        if not self._throughput or (len(self._throughput) == 1 and self._most > 1):
            return None
        slots, largest = self._slots(best), self._largest
        facts = [f"{value:.2f} with {count}" for count, value in self._throughput.items() if count > 1]
        rates = [f"trials per hour, relative to one at a time: {', '.join(facts)}"] if facts else []
        used = f"the largest used {largest.peak_mib:.0f} of {largest.total_mib:.0f} MiB" if largest else NOT_MEASURED
        chosen = f"{best} trials share a GPU" if best > 1 else "each trial has a GPU of its own"
        return GpuFraction(
            gpus_per_trial=slots.share,
            slots=slots.count,
            uses=[asdict(largest)] if largest else [],
            throughput={str(count): value for count, value in self._throughput.items()},
            mps=None if slots.mps == "off" else slots.mps,
            gpu_model=next(iter(self._state.gpu_models), None),
            why=f"{chosen} ({'; '.join([*rates, used, *([self._remark] if self._remark else [])])})",
        )


def relative_throughput(state: SweepState, attempts: Sequence[Attempt], count: int) -> float | None:
    """How many times as many trials a GPU ends per hour with `count` at a time as with one; None if that is unknown.

    Trials differ in cost: each is compared with the seconds that it would have taken alone, which the duration model
    predicts from the `attempts` that ran alone (and from `cost` or FLOPs). An attempt's estimate is

        mean number of trials on its GPU while it ran * predicted seconds alone / measured seconds

    and the median of the estimates counts, so that a trial with bad luck does not decide.
    """
    alone, together = (_measured(state, attempts, each) for each in (1, count))
    if count == 1:
        return 1.0 if alone else None
    forecast = DurationForecast(replace(state, attempts={}))
    finished = {each.trial: seconds for each, seconds in alone}
    prediction = forecast.predict([each.trial for each, _ in together], finished)
    if prediction is None:
        return None
    estimates = [
        _concurrency(each, attempts) * statistics.median(draws) / seconds  # a mean would count unlikely stragglers
        for (each, seconds), draws in zip(together, prediction.draws.T.tolist(), strict=True)
    ]
    return statistics.median(estimates) if estimates else None


def _measured(state: SweepState, attempts: Sequence[Attempt], count: int) -> list[tuple[Attempt, float]]:
    """The attempts that ended with `count` to a GPU, and their seconds as if none had been stopped early.

    An attempt that resumed from a checkpoint is not among them: a part of its seconds was measured in another job.
    """
    found = []
    for each in attempts:
        is_whole = each.seconds is not None and each.seconds <= each.end - each.start + CLOCK_SECONDS
        if each.gpus_per_trial != 1 / count or not each.seconds or not is_whole:
            continue
        epochs = state.trials[each.trial].epochs
        if each.outcome == TrialStatus.FINISHED:
            found.append((each, full_seconds(state.trials[each.trial].spec, each.seconds, each.metrics)))
        elif each.outcome == TrialStatus.STOPPED and epochs and each.epochs:
            found.append((each, each.seconds * epochs / len(each.epochs)))
    return found


def _concurrency(attempt: Attempt, attempts: Sequence[Attempt]) -> float:
    """The mean number of trials on the GPU of an attempt while it ran, including itself."""
    here = [each for each in attempts if each.location[1:3] == attempt.location[1:3]]  # node and GPU
    shared = sum(max(0.0, min(each.end, attempt.end) - max(each.start, attempt.start)) for each in here)
    return shared / max(attempt.end - attempt.start, attempt.seconds or 0.0)
