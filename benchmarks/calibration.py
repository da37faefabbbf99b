"""Calibration of predictions: simulated sweeps are interrupted after a few trials, and the rest is predicted.

python benchmarks/calibration.py [--sweeps 100] [--seed 0]

A cell of the table has three numbers, over all simulated sweeps of its kind: the percentage whose true makespan is
inside the predicted interval / the median ratio of the interval's upper end to the true makespan / the percentage whose
requested job would be too short. The true makespan is that of the remaining trials on four slots, in the plan's order.
The last lines count the cells that meet the goals.
"""

import argparse
import os
import statistics
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from common import print_result, print_table
from trainyard.config.sweep import CommandSweep, Slots, Sweep, TrainSweep
from trainyard.config.trial_status import TrialStatus
from trainyard.config.trials import Trial, expand
from trainyard.planning.attempts import Attempt, Fold
from trainyard.planning.history import History
from trainyard.planning.order import makespan
from trainyard.planning.plan import Plan

SLOTS = 4
EVIDENCE = (2, 4, 8, 12)  # finished trials
# In which trials finish: the first wave is the plan's first trial on each slot
ORDERS = ("first wave, config order", "first wave, longest first", "random")
Generator = np.random.Generator


@dataclass(frozen=True)
class Kind:
    """A kind of sweep: its trials, their expected durations, and random noise."""

    sweep: Callable[[Generator], Sweep]
    law: Callable[[Generator, list[Trial]], list[float]]  # seconds without noise
    noise: float = 0.03  # standard deviation of the logarithm of the durations
    stragglers: tuple[float, float, float] = (0.0, 1.0, 1.0)  # share; range of the factor by which they take longer
    has_flops: bool = False  # relative costs are known


def _train(**grid: object) -> Callable[[Generator], Sweep]:
    return lambda _: TrainSweep(dataset="d", grid={key.replace("__", "."): values for key, values in grid.items()})


def _command(**grid: object) -> Callable[[Generator], Sweep]:
    options = " ".join(f"{{{key}}}" for key in grid)
    return lambda _: CommandSweep(command=f"program {options}", grid=grid)


def _sampled(generator: Generator) -> Sweep:
    draws = {"lr": {"low": 1e-5, "high": 1e-1, "log": True}, "dropout": {"low": 0.0, "high": 0.5}}
    return CommandSweep(
        command="program {lr} {dropout}", sample={"count": 40, "seed": int(generator.integers(2**31)), "values": draws}
    )


def _of(function: Callable[[dict[str, Any]], float]) -> Callable[[Generator, list[Trial]], list[float]]:
    return lambda _, trials: [function(trial.values) for trial in trials]


def _by_subject(generator: Generator, trials: list[Trial]) -> list[float]:
    """A random duration per subject, between 60 and 180 s."""
    own = {
        subject: generator.uniform(60, 180) for subject in dict.fromkeys(trial.values["subject"] for trial in trials)
    }
    return [own[trial.values["subject"]] for trial in trials]


def _by_each(generator: Generator, trials: list[Trial]) -> list[float]:
    """A random duration per trial: log-normal, median 60 s."""
    return [60 * float(np.exp(generator.normal(0, 0.7))) for _ in trials]


LR = [0.1, 0.03, 0.01, 0.003]
MODELS = {"resnet18": 1, "resnet50": 3, "vit": 6}
KINDS = {
    "blocks; FLOPs known": Kind(
        _train(model_args__blocks=list(range(4, 81, 4))),
        _of(lambda values: 0.2125 * values["model_args.blocks"]),
        has_flops=True,
    ),
    "blocks x epochs; FLOPs known": Kind(
        _train(model_args__blocks=[4, 8, 16, 32, 64], epochs=[1, 2, 4, 8, 16]),
        _of(lambda values: 0.2 * values["model_args.blocks"] * values["epochs"]),
        has_flops=True,
    ),
    "blocks x 3 seeds, 5 % stragglers; FLOPs known": Kind(
        _train(model_args__blocks=list(range(4, 81, 4)), seed=[1, 2, 3]),
        _of(lambda values: 0.2125 * values["model_args.blocks"]),
        stragglers=(0.05, 2, 3),
        has_flops=True,
    ),
    "square of a key": Kind(_command(size=list(range(16, 321, 16))), _of(lambda values: 0.001 * values["size"] ** 2)),
    "square of width x lr, 5 % noise": Kind(
        _command(width=[64, 128, 256, 512, 1024], lr=LR),
        _of(lambda values: 5 + (values["width"] / 64) ** 2),
        noise=0.05,
    ),
    "3 models x 3 batch sizes x 4 lr, 10 % noise": Kind(
        _command(model=list(MODELS), batch=[64, 128, 256], lr=[0.1, 0.01, 0.001, 0.0001]),
        _of(lambda values: 60 * MODELS[values["model"]] * (1 + 32 / values["batch"])),
        noise=0.1,
    ),
    "60 lr without effect, 5 % noise": Kind(
        _command(lr=[number / 100 for number in range(1, 61)]), _of(lambda _: 60.0), noise=0.05
    ),
    "lr and dropout sampled, without effect": Kind(_sampled, _of(lambda _: 100.0)),
    "4 lr x 15 seeds, 10 % stragglers x3, 5 % noise": Kind(
        _command(lr=LR, seed=list(range(15))), _of(lambda _: 60.0), noise=0.05, stragglers=(0.1, 3, 3)
    ),
    "100 subjects x 3 seeds": Kind(
        _command(subject=[f"s{number:03}" for number in range(100)], seed=[1, 2, 3]), _by_subject
    ),
    "100 subjects, log-normal, 5 % noise": Kind(
        _command(subject=[f"s{number:03}" for number in range(100)]), _by_each, noise=0.05
    ),
}


@dataclass(frozen=True)
class Outcome:
    """Predicted and true makespan of a sweep, in seconds."""

    low: float
    high: float
    requested: float  # walltime of the job
    true: float

    @property
    def inside(self) -> bool:
        """Whether the true makespan is in the predicted interval."""
        return self.low <= self.true <= self.high


def simulate(kind: str, order: str, finished: int, seed: int) -> Outcome:
    """Simulate a sweep that is interrupted after `finished` trials.

    Longest first means by the duration without noise; equal durations keep the order of the config.
    """
    parts, generator = KINDS[kind], np.random.default_rng([seed, finished, ORDERS.index(order), *kind.encode()])
    sweep = parts.sweep(generator).model_copy(update={"slots": Slots(gpus_per_node=SLOTS)})
    trials = {f"{number:04}": trial for number, trial in enumerate(expand(sweep).trials)}
    law = dict(zip(trials, parts.law(generator, list(trials.values())), strict=True))
    share, least, most = parts.stragglers
    longer = np.where(generator.random(len(law)) < share, generator.uniform(least, most, len(law)), 1.0)
    noise = np.exp(generator.normal(0, parts.noise, len(law)))
    seconds = dict(zip(trials, (np.array(list(law.values())) * longer * noise).tolist(), strict=True))
    history = History("s", sweep, "no dataset", Path(), Fold(Path("none")))
    history.space.trials = trials
    if parts.has_flops:
        history.flops = {name: 1e9 * s for name, s in law.items()}
    if order == "random":
        names = list(generator.permutation(list(trials)))
    else:
        wave = sorted(Plan(history).forecast.order(SLOTS)[:SLOTS], key=lambda name: seconds[name])
        rest = trials if "config" in order else sorted(trials, key=lambda name: -law[name])
        names = list(dict.fromkeys([*wave, *rest]))
    history.attempts = {
        name: [Attempt(name, 1, 0, seconds[name], outcome=TrialStatus.FINISHED, seconds=seconds[name])]
        for name in names[:finished]
    }
    plan = Plan(history)
    predicted, sure = plan.predicted_range, plan.sure_seconds
    assert predicted is not None
    assert sure is not None
    return Outcome(*predicted, sure, makespan([seconds[name] for name in plan.forecast.order(SLOTS)], SLOTS))


def cell(outcomes: Sequence[Outcome]) -> tuple[float, float, float]:
    """Percentage inside the interval, median ratio of its upper end to the true makespan, percentage too short."""
    share = 100 / len(outcomes)
    return (
        share * sum(each.inside for each in outcomes),
        statistics.median(each.high / each.true for each in outcomes),
        share * sum(each.true > each.requested for each in outcomes),
    )


def print_goals(cells: dict[tuple[str, str, int], tuple[float, float, float]]) -> None:
    """Count the cells of each order that meet the goals."""
    for order in ORDERS:
        found = {key: values for key, values in cells.items() if key[1] == order}
        later = [values for (_, _, finished), values in found.items() if finished >= 4]
        print_result(
            f"- {order}: of {len(found)} cells, {sum(inside >= 80 for inside, _, _ in found.values())} with 80 of 100 "
            f"inside, {sum(inside < 60 for inside, _, _ in found.values())} with less than 60; largest upper end "
            f"{max(upper for _, upper, _ in found.values()):.1f}; from four trials on, "
            f"{sum(upper <= 3 for _, upper, _ in later)} of {len(later)} with an upper end of at most 3, "
            f"{sum(short > 8 for _, _, short in later)} with more than 8 of 100 jobs too short"
        )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sweeps", type=int, default=100, help="simulated sweeps per cell (default: 100)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first sweep (default: 0)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes (default: one per CPU core)")
    arguments = parser.parse_args()
    seeds = range(arguments.seed, arguments.seed + arguments.sweeps)
    cells: dict[tuple[str, str, int], tuple[float, float, float]] = {}
    with ProcessPoolExecutor(arguments.jobs) as pool:
        for key in product(KINDS, ORDERS, EVIDENCE):
            cells[key] = cell(list(pool.map(partial(simulate, *key), seeds, chunksize=10)))
    rows = [
        [kind, order, *("{:.0f} / {:.2f} / {:.0f}".format(*cells[kind, order, finished]) for finished in EVIDENCE)]
        for kind, order in product(KINDS, ORDERS)
    ]
    print_table(["kind of sweep", "finished trials", *map(str, EVIDENCE)], rows)
    print_goals(cells)


if __name__ == "__main__":
    main()
