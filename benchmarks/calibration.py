"""Calibration of predictions: simulated sweeps are interrupted after a few trials, and the rest is predicted.

python benchmarks/calibration.py [--sweeps 200] [--seed 0]

A cell of the table has three numbers, over all simulated sweeps of its kind: the percentage whose true makespan is
inside the predicted interval / the median ratio of the interval's upper end to the true makespan / the percentage whose
requested job would be too short. The true makespan is that of the remaining trials on four slots, in the plan's order.
"""

import argparse
import os
import statistics
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from common import print_table
from trainyard.config.sweep import Slots, Sweep
from trainyard.config.trial_status import TrialStatus
from trainyard.config.trials import Trial, expand
from trainyard.planning.attempts import Attempt
from trainyard.planning.plan import Plan
from trainyard.planning.schedule import makespan
from trainyard.planning.sweep_state import SweepState
from trainyard.planning.trial_space import TrialSpace

SLOTS = 4
EVIDENCE = (1, 2, 4, 8, 12)  # finished trials
NOISE = 0.03  # relative standard deviation of durations
ORDERS = ("longest first", "random")
Generator = np.random.Generator


@dataclass(frozen=True)
class Kind:
    """A kind of sweep: its trials, their expected durations, and random noise."""

    sweep: Callable[[Generator], Sweep]
    law: Callable[[Generator, list[Trial]], list[float]]  # seconds without noise
    noise: Callable[[Generator, int], np.ndarray] = lambda generator, count: generator.normal(
        0, NOISE, count
    )  # of the logarithm of the durations
    has_flops: bool = False  # relative costs are known


def _train(**grid: object) -> Callable[[Generator], Sweep]:
    return lambda _: Sweep(dataset="d", grid={key.replace("__", "."): values for key, values in grid.items()})


def _command(**grid: object) -> Callable[[Generator], Sweep]:
    options = " ".join(f"{{{key}}}" for key in grid)
    return lambda _: Sweep(command=f"program {options}", grid=grid)


def _sampled(generator: Generator) -> Sweep:
    draws = {"lr": {"low": 1e-5, "high": 1e-1, "log": True}, "dropout": {"low": 0.0, "high": 0.5}}
    return Sweep(
        command="program {lr} {dropout}", sample={"count": 40, "seed": int(generator.integers(2**31)), "values": draws}
    )


def _of(function: Callable[[dict[str, float]], float]) -> Callable[[Generator, list[Trial]], list[float]]:
    return lambda _, trials: [function(trial.values) for trial in trials]


def _by_subject(generator: Generator, trials: list[Trial]) -> list[float]:
    """A random duration per subject, between 60 and 180 s."""
    own = {
        subject: generator.uniform(60, 180) for subject in dict.fromkeys(trial.values["subject"] for trial in trials)
    }
    return [own[trial.values["subject"]] for trial in trials]


def _stragglers(generator: Generator, count: int) -> np.ndarray:
    """The usual noise; for 5 % of the trials, two to three times the duration."""
    longer = np.log(generator.uniform(2, 3, count)) * (generator.random(count) < 0.05)
    return np.asarray(generator.normal(0, NOISE, count) + longer)


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
    "square of a key": Kind(_command(size=list(range(16, 321, 16))), _of(lambda values: 0.001 * values["size"] ** 2)),
    "100 subjects x 3 seeds": Kind(
        _command(subject=[f"s{number:03}" for number in range(100)], seed=[1, 2, 3]), _by_subject
    ),
    "random lr and dropout without effect": Kind(_sampled, _of(lambda _: 100.0)),
    "blocks x 3 seeds, 5 % stragglers; FLOPs known": Kind(
        _train(model_args__blocks=list(range(4, 81, 4)), seed=[1, 2, 3]),
        _of(lambda values: 0.2125 * values["model_args.blocks"]),
        noise=_stragglers,
        has_flops=True,
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
    law = parts.law(generator, list(trials.values()))
    seconds = dict(zip(trials, np.array(law) * np.exp(parts.noise(generator, len(law))), strict=True))
    ranks = np.argsort(-np.array(law), kind="stable") if order == "longest first" else generator.permutation(len(law))
    names = list(trials)
    done = {names[rank]: float(seconds[names[rank]]) for rank in ranks[:finished]}
    space = TrialSpace(sweep, "no dataset")
    space.trials = trials
    state = SweepState(
        "s",
        sweep,
        space,
        Path(),
        attempts={
            name: [Attempt(name, 1, 0, took, outcome=TrialStatus.FINISHED, seconds=took)] for name, took in done.items()
        },
        work=dict(zip(trials, (1e9 * each for each in law), strict=True)) if parts.has_flops else {},
    )
    plan = Plan(state)
    predicted, sure = plan.request.predicted_range, plan.request.sure_seconds
    assert predicted is not None
    assert sure is not None
    return Outcome(
        *predicted,
        sure,
        makespan([float(seconds[name]) for name in plan.forecast.order(SLOTS)], SLOTS),
    )


def cell(outcomes: Sequence[Outcome]) -> tuple[float, float, float]:
    """Percentage inside the interval, median ratio of its upper end to the true makespan, percentage too short."""
    share = 100 / len(outcomes)
    return (
        share * sum(each.inside for each in outcomes),
        statistics.median(each.high / each.true for each in outcomes),
        share * sum(each.true > each.requested for each in outcomes),
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sweeps", type=int, default=200, help="simulated sweeps per cell (default: 200)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first sweep (default: 0)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes (default: one per CPU core)")
    arguments = parser.parse_args()
    seeds = range(arguments.seed, arguments.seed + arguments.sweeps)
    rows = []
    with ProcessPoolExecutor(arguments.jobs) as pool:
        for kind in KINDS:
            for order in ORDERS:
                row = [kind, order]
                for finished in EVIDENCE:
                    inside, upper, short = cell(
                        list(pool.map(partial(simulate, kind, order, finished), seeds, chunksize=10))
                    )
                    row.append(f"{inside:.0f} / {upper:.2f} / {short:.0f}")
                rows.append(row)
    print_table(["kind of sweep", "finished trials", *map(str, EVIDENCE)], rows)


if __name__ == "__main__":
    main()
