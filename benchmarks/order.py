"""Simulated sweeps: their makespan over its lower bound.

python benchmarks/order.py [--sweeps 20] [--seed 0]

Each sweep begins without evidence, but with relative costs. The real queue predicts and sorts the waiting trials as
others finish, longest first; only the time is simulated. A cell of the table has the mean and the maximum over all
sweeps of its kind.
"""

import argparse
import heapq
import math
import os
import statistics
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import numpy as np
from common import print_table, queue_beside
from trainyard.config.sweep import Slots, TrainSweep
from trainyard.config.trials import expand
from trainyard.packing import trial_queue
from trainyard.packing.session_watch import SessionWatch
from trainyard.packing.trial_claims import TrialClaims
from trainyard.packing.trial_queue import TrialQueue
from trainyard.planning.attempts import Fold
from trainyard.planning.duration_forecast import DurationForecast
from trainyard.planning.history import History
from trainyard.planning.journal import Journal, Location
from trainyard.planning.order import lower_bound
from trainyard.planning.task import Task

SLOTS = (4, 5, 8, 10)
NOISE = (0.0, 0.03, 0.1)  # standard deviation of the logarithm of a duration
STRAGGLERS = 0.05  # share of trials that take two to three times as long
Generator = np.random.Generator


def _sizes_of_heavy_tail(generator: Generator) -> list[float]:
    return sorted({round(float(size), 3) for size in 20 * generator.lognormal(0.0, 1.0, 40)})


# The blocks of each sweep and its number of seeds
KINDS: dict[str, Callable[[Generator], tuple[list[float], int]]] = {
    "depth sweep: 20 trials": lambda _: (list(range(4, 81, 4)), 1),
    "10 depths x 3 seeds": lambda _: (list(range(8, 81, 8)), 3),
    "40 trials, log-normal": lambda generator: (_sizes_of_heavy_tail(generator), 1),
    "20 depths x 2 seeds, 5 % stragglers": lambda _: (list(range(4, 81, 4)), 2),
}


def simulate(kind: str, slots: int, noise: float, seed: int) -> float:
    """The makespan of a sweep over its lower bound."""
    generator = np.random.default_rng([seed, *kind.encode()])
    blocks, seeds = KINDS[kind](generator)
    grid = {"model_args.blocks": blocks, "seed": list(range(seeds))}
    sweep = TrainSweep(dataset="d", grid=grid, slots=Slots(gpus_per_node=slots))
    trials = {f"{number:04}": trial for number, trial in enumerate(expand(sweep).trials)}
    costs = {name: 0.2125 * trial.values["model_args.blocks"] for name, trial in trials.items()}
    logs = generator.normal(0, noise, len(costs))
    if "stragglers" in kind:
        logs += np.log(generator.uniform(2, 3, len(costs))) * (generator.random(len(costs)) < STRAGGLERS)
    seconds = {name: cost * float(np.exp(log)) for (name, cost), log in zip(costs.items(), logs, strict=True)}
    with (
        TemporaryDirectory() as name,
        patch.object(trial_queue, "PREDICT_FRACTION", math.inf),  # predictions take real time, trials do not
    ):
        history = History("s", sweep, "no dataset", Path(name), Fold(Path(name)))
        history.space.trials = trials
        history.flops = costs
        end = _run(history, seconds)
    return end / lower_bound(list(seconds.values()), slots)


@contextmanager
def _queue(state: History) -> Iterator[TrialQueue]:
    """The queue of a sweep with one job."""
    with Journal.of_new_session(state.folder) as journal:
        watch = SessionWatch(state.folder, journal.session)
        yield queue_beside(journal, TrialClaims(state, journal, watch))


def _run(state: History, seconds: dict[str, float]) -> float:
    """The makespan of all trials in the order of the queue."""
    with _queue(state) as queue:
        return _run_queue(state, queue, seconds)


def _run_queue(state: History, queue: TrialQueue, seconds: dict[str, float]) -> float:
    forecast, slots, trials = DurationForecast(state), state.sweep.slots.count, state.trials
    queue.add(Task(name, trials[name].spec, trials[name].values, 0) for name in forecast.order(slots))
    running: list[tuple[float, str]] = []  # end and trial
    now, place = 0.0, Location("", "", "", 0)
    while True:
        while len(running) < slots and (task := queue.take(place, [place])):
            heapq.heappush(running, (now + seconds[task.trial], task.trial))
        if not running:
            return now
        now, ended = heapq.heappop(running)
        queue.note_finished(ended, seconds[ended])
        queue.update_order()


def _cell(pool: ProcessPoolExecutor, kind: str, slots: int, noise: float, seeds: range) -> str:
    found = list(pool.map(partial(simulate, kind, slots, noise), seeds))
    return f"{statistics.fmean(found):.3f} ({max(found):.3f})"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sweeps", type=int, default=20, help="simulated sweeps per cell (default: 20)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first sweep (default: 0)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes (default: one per CPU core)")
    arguments = parser.parse_args()
    seeds = range(arguments.seed, arguments.seed + arguments.sweeps)
    with ProcessPoolExecutor(arguments.jobs) as pool:
        rows = [
            [kind, str(slots), *(_cell(pool, kind, slots, noise, seeds) for noise in NOISE)]
            for kind, slots in product(KINDS, SLOTS)
        ]
    print_table(["kind of sweep", "slots", *(f"noise {noise:.0%}" for noise in NOISE)], rows)


if __name__ == "__main__":
    main()
