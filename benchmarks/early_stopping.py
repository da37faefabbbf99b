"""Early stopping: what is found at the same budget beside Ray Tune's schedulers, and the time that a verdict takes.

python benchmarks/early_stopping.py [--seeds 50]

Simulated: eight slots train random configurations one after another for up to 81 epochs each, until they have trained
as many epochs as 30 complete trials have. All rules get the same configurations in the same order. The regret is the
error that the chosen trial, the one with the least error at its last report, has after 81 epochs, without noise, less
the least error that any of 1,000 configurations has: the median over the seeds, and the quartiles.
"""

import argparse
import heapq
import itertools
import math
import random
import statistics
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
from common import print_table
from trainyard.config.sweep import Stop
from trainyard.config.trial_status import TrialStatus
from trainyard.planning.attempts import Attempt
from trainyard.planning.early_stopping import EarlyStoppingRule
from trainyard.planning.journal import Ended

EPOCHS, SLOTS, COMPLETE = 81, 8, 30
LEAST, NOISE = 0.05, 0.005  # the least error that there can be, and the standard deviation of a report
Judge = Callable[[str, int, float], bool]  # whether a trial stops at an epoch, with this error
STOPS: dict[str, dict[str, Any]] = {
    "asha": {"method": "asha"},
    "hyperband": {"method": "hyperband"},
    "median": {"method": "median"},
}
PRUNERS: dict[str, Callable[[Any], Any]] = {
    "Optuna, successive halving": lambda pruners: pruners.SuccessiveHalvingPruner(1, reduction_factor=3),
    "Optuna, Hyperband": lambda pruners: pruners.HyperbandPruner(1, 100, 3),
    "Optuna, median": lambda pruners: pruners.MedianPruner(),
}


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=50)
    seeds = range(parser.parse_args().seeds)
    warnings.simplefilter("ignore")
    judges: dict[str, Callable[[], Judge]] = {"none": lambda: lambda trial, epoch, error: False}
    judges |= {f"Trainyard, {name}": partial(_of_trainyard, name) for name in STOPS}
    judges |= {"Ray Tune, ASHA": partial(_of_ray, 1), "Ray Tune, asynchronous Hyperband": partial(_of_ray, 5)}
    rows = []
    for name, make in judges.items():
        row = [name]
        for is_slow in (False, True):
            found = [_simulate(make, seed, is_slow=is_slow) for seed in seeds]
            low, middle, high = statistics.quantiles([regret for regret, _ in found], n=4)
            row += [f"{middle:.4f} ({low:.4f} to {high:.4f})", f"{statistics.median(count for _, count in found):.0f}"]
        rows.append(row)
    print_table(["rule", "regret", "trials", "regret, the better the slower", "trials"], rows)
    sizes = (10, 1000, 10_000)
    header = ["rule", *(f"{size:,} trials" for size in sizes), "resumed with the last"]
    print_table(header, [_time_of_verdicts(name, sizes) for name in (*STOPS, *PRUNERS)])


def _curve(generator: random.Random, *, is_slow: bool) -> list[float]:
    """The error after each epoch, without noise. If `is_slow`, the better it becomes, the longer it takes."""
    badness, start = generator.random(), generator.uniform(0.9, 1)
    floor, pace = LEAST + 0.4 * badness, 2 + 18 * (1 - badness if is_slow else generator.random())
    return [floor + (start - floor) * math.exp(-epoch / pace) for epoch in range(1, EPOCHS + 1)]


def _simulate(make: Callable[[], Judge], seed: int, *, is_slow: bool) -> tuple[float, int]:
    """The regret, and the number of trials that were started."""
    np.random.seed(seed)  # by which Ray Tune finds a bracket
    judge, curves = make(), dict[str, list[float]]()
    last, clocks = dict[str, float](), random.Random(f"clock {seed}")
    running = [(0.0, slot, "", 0, 1.0) for slot in range(SLOTS)]  # when the next epoch ends, and its duration
    for _ in range(EPOCHS * COMPLETE + SLOTS):
        now, slot, trial, epoch, seconds = heapq.heappop(running)
        if trial:
            noise = random.Random(f"{seed} {trial} {epoch}").gauss(0, NOISE)
            last[trial] = curves[trial][epoch - 1] + noise
        if not trial or judge(trial, epoch, last[trial]) or epoch == EPOCHS:
            trial, epoch, seconds = f"trial {seed} {len(curves)}", 0, clocks.uniform(0.5, 2)
            curves[trial] = _curve(random.Random(trial), is_slow=is_slow)
        heapq.heappush(running, (now + seconds, slot, trial, epoch + 1, seconds))
    best = curves[min(last, key=lambda trial: last[trial])][-1]
    return best - min(curve[-1] for curve in _every_curve(seed, is_slow=is_slow)), len(curves)


def _every_curve(seed: int, *, is_slow: bool) -> Iterator[list[float]]:
    return (_curve(random.Random(f"trial {seed} {number}"), is_slow=is_slow) for number in range(1000))


def _of_trainyard(name: str, known: Iterable[Attempt] = ()) -> Judge:
    rule = EarlyStoppingRule(Stop(epochs=100 if known else EPOCHS, **STOPS[name]), "loss", "min", known)

    def judge(trial: str, epoch: int, error: float) -> bool:
        has_finished = not (stops := bool(rule.verdict(trial, {"epoch": epoch, "loss": error}))) and epoch == EPOCHS
        if has_finished:
            rule.on_event(Ended(trial=trial, attempt=1, status=TrialStatus.FINISHED), is_own=True)
        return stops

    return judge


def _of_ray(brackets: int) -> Judge:
    """Ray Tune's asynchronous Hyperband, which is its ASHA with one bracket; its `HyperBandScheduler` pauses trials."""
    from ray.tune.schedulers import AsyncHyperBandScheduler, TrialScheduler

    of: dict[str, Any] = {"time_attr": "epoch", "metric": "loss", "mode": "min"}
    scheduler = AsyncHyperBandScheduler(**of, max_t=EPOCHS, reduction_factor=3, brackets=brackets)
    trials = dict[str, Any]()
    controller: Any = None  # which it does not use

    def judge(trial: str, epoch: int, error: float) -> bool:
        if trial not in trials:
            trials[trial] = SimpleNamespace(trial_id=trial)
            scheduler.on_trial_add(controller, trials[trial])
        result = {"epoch": epoch, "loss": error}
        return bool(scheduler.on_trial_result(controller, trials[trial], result) == TrialScheduler.STOP)

    return judge


def _time_of_verdicts(name: str, sizes: tuple[int, ...]) -> list[str]:
    """The processor time of a verdict, when as many trials of 100 epochs have finished: the mean, and the longest."""
    generator, cells, resumed = random.Random(0), [name], 0.0
    for size in sizes:
        known = [_finished(f"t{number}", generator) for number in range(size)]
        begin = time.process_time()
        judge = _of_optuna(name, known) if name in PRUNERS else _of_trainyard(name, known)
        resumed, times = time.process_time() - begin, []
        for trial, epoch in itertools.product(range(10), range(1, 100)):
            begin = time.process_time()
            judge(f"n{trial}", epoch, generator.random())
            times.append(time.process_time() - begin)
        times = sorted(times[100:])  # after the first trial, which each epoch is new to
        cells.append(f"{statistics.fmean(times) * 1000:.2f} ms (at most {times[-1] * 1000:.1f} ms)")
    return [*cells, f"{resumed:.1f} s"]


def _of_optuna(name: str, known: Iterable[Attempt]) -> Judge:
    """A pruner in a study that has these trials, as far as they matter for the time that it takes."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study, trials = optuna.create_study(pruner=PRUNERS[name](optuna.pruners)), dict[str, optuna.Trial]()
    for each in known:
        curve = {row["epoch"]: row["loss"] for row in each.epochs}
        study.add_trial(optuna.trial.create_trial(value=curve[100], intermediate_values=curve))

    def judge(trial: str, epoch: int, error: float) -> bool:
        if trial not in trials:
            trials[trial] = study.ask()
        trials[trial].report(error, epoch)
        return trials[trial].should_prune()

    return judge


def _finished(trial: str, generator: random.Random) -> Attempt:
    rows = [{"epoch": epoch, "loss": generator.random()} for epoch in range(1, 101)]
    return Attempt(trial, 1, 0, 1, outcome=TrialStatus.FINISHED, epochs=rows)


if __name__ == "__main__":
    main()
