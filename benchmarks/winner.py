"""The winners of simulated sweeps: how often the wrong configuration is named, and whether what is said of it is true.

python benchmarks/winner.py [--sweeps 1000] [--seed 0]

The standard deviation of the noise of a run is that of the true means; where seeds are common, so is that of a seed's
effect on all configurations. The answer is that of the report. "Difference" and "value" are the percentages of sweeps
whose interval holds the truth, "has best" of those whose set has the best configuration; an interval of 90 % should
hold it in 85 to 95 %. Regret is how much worse the named configuration is than the best one, in standard deviations.
"""

import argparse
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from common import print_table
from trainyard.config.trial_status import TrialStatus
from trainyard.planning.trial_value import TrialValue
from trainyard.results.ranking import RankedTrial, Ranking, rank_configurations

SEEDS = 40  # at most, of a configuration
Generator = np.random.Generator


@dataclass
class Simulated:
    """A sweep: the true means of its configurations, and the runs that were made so far."""

    means: np.ndarray
    values: np.ndarray  # of each configuration and seed
    runs: dict[tuple[int, int], bool] = field(default_factory=dict)  # by configuration and seed: is it a fresh one

    @classmethod
    def of(cls, means: np.ndarray, generator: Generator, *, effect: float = 0.0) -> "Simulated":
        """A sweep without runs; `effect` is the standard deviation of what a seed adds to all configurations."""
        noise = generator.normal(0, 1, (len(means), SEEDS)) + effect * generator.normal(0, 1, SEEDS)
        return cls(means, means[:, None] + noise)

    def run(self, configurations: Sequence[int], seeds: Sequence[int], *, is_fresh: bool = False) -> "Simulated":
        """The sweep, with these runs."""
        self.runs |= {(number, seed): is_fresh for number in configurations for seed in seeds}
        return self

    def rank(self) -> Ranking:
        """The answer from the runs so far."""
        trials = [
            RankedTrial(
                f"{number}-{seed}", {"n": number, "seed": seed}, TrialStatus.FINISHED, TrialValue(value), is_fresh
            )
            for (number, seed), is_fresh in sorted(self.runs.items())
            for value in [float(self.values[number, seed])]
        ]
        return Ranking("score", "max", is_guessed=False, configurations=rank_configurations(trials, "max"))

    def leaders(self, count: int) -> list[int]:
        """The configurations that are the best by the runs so far."""
        return [each.values["n"] for each in self.rank().best(count)]


def normal(generator: Generator, *, count: int = 20, spread: float = 1.0, effect: float = 0.0) -> Simulated:
    """A sweep without runs, whose true means are normal."""
    return Simulated.of(generator.normal(0, spread, count), generator, effect=effect)


def run_all(generator: Generator, *, repeats: int, count: int = 20, spread: float = 1.0) -> Simulated:
    """`repeats`, with common seeds."""
    made = normal(generator, count=count, spread=spread, effect=1.0)
    return made.run(range(count), range(repeats))


def run_unequal(generator: Generator) -> Simulated:
    """Seeds that were added by hand."""
    made = normal(generator)
    for number, count in enumerate(generator.integers(1, 7, len(made.means))):
        made.run([number], range(max(count, 2 - number)))
    return made


def run_best(generator: Generator, *, best: int, repeats: int, count: int = 20, effect: float = 0.0) -> Simulated:
    """`repeat_best`: the leaders of one run each, with the same further seeds."""
    made = normal(generator, count=count, effect=effect)
    made.run(range(count), [0])
    return made.run(made.leaders(best), range(1, repeats))


def search(generator: Generator, *, best: int = 5, repeats: int = 1) -> Simulated:
    """Ten random configurations, then thirty near the best so far; the leaders are judged by fresh seeds alone."""
    center, slope = generator.random(2), generator.uniform(2, 6, 2)
    points, found = list(generator.random((10, 2))), list[float]()

    def mean(point: np.ndarray) -> float:
        return float(-1.5 * (slope * (point - center) ** 2).sum())

    for number in range(40):
        if number >= len(points):
            points.append(np.clip(points[int(np.argmax(found))] + generator.normal(0, 0.15, 2), 0, 1))
        found.append(mean(points[number]) + generator.normal())
    made = Simulated.of(np.array([mean(point) for point in points]), generator)
    made.values[:, 0] = found
    made.run(range(40), [0])
    return made.run(made.leaders(best), range(1, repeats), is_fresh=True) if repeats > 1 else made


CASES: dict[str, Callable[[Generator], Simulated]] = {
    "one run each": partial(run_all, repeats=1),
    **{f"repeats: {count}": partial(run_all, repeats=count) for count in (2, 3, 5)},
    "repeats: 3, all equal": partial(run_all, repeats=3, spread=0.0),
    "1 to 6 runs each": run_unequal,
    "repeats: 3, repeat_best: 5": partial(run_best, best=5, repeats=3),
    "repeats: 4, repeat_best: 5": partial(run_best, best=5, repeats=4),
    "the same, seeds with an effect": partial(run_best, best=5, repeats=4, effect=1.0),
    "50, one run each": partial(run_all, repeats=1, count=50),
    "50, repeats: 4, repeat_best: 10": partial(run_best, best=10, repeats=4, count=50),
    "search, one run each": search,
    "search, repeats: 4, repeat_best: 5": partial(search, repeats=4),
}


@dataclass(frozen=True)
class Judged:
    """What was said of a sweep, and whether it is true."""

    runs: int
    is_wrong: bool
    regret: float
    has_difference: bool | None = None
    has_value: bool | None = None
    has_best: bool | None = None
    size: int | None = None


def judge(made: Simulated) -> Judged:
    """Compare the answer with the truth: in a set of compared configurations, with the best of these."""
    ranking, means = made.rank(), made.means
    ranked = [each.values["n"] for each in ranking.counting]
    first, best = ranked[0], float(means.max())
    named = len(made.runs), bool(means[first] < best), best - float(means[first])
    if (found := ranking.evidence) is None:
        return Judged(*named)
    compared = ranked[: len(found.expected)]
    lead, value = means[first] - means[compared[1]], means[first]
    return Judged(
        *named,
        has_difference=bool(found.lead_range[0] <= lead <= found.lead_range[1]),
        has_value=bool(found.value[0] <= value <= found.value[1]),
        has_best=any(means[each.values["n"]] == means[compared].max() for each in ranking.leaders),
        size=len(ranking.leaders),
    )


def simulate(case: str, sweeps: int, seed: int = 0) -> list[Judged]:
    """Simulated sweeps of a case; another case with the same seed has other ones."""
    return [judge(CASES[case](np.random.default_rng([seed, number]))) for number in range(sweeps)]


def _row(case: str, found: Sequence[Judged]) -> Iterator[str]:
    def percent(values: Sequence[bool | None]) -> str:
        return "" if None in values else f"{100 * statistics.fmean(map(bool, values)):.0f}"

    yield case
    yield f"{statistics.fmean(each.runs for each in found):.0f}"
    yield percent([each.is_wrong for each in found])
    yield f"{statistics.fmean(each.regret for each in found):.2f}"
    yield percent([each.has_difference for each in found])
    yield percent([each.has_value for each in found])
    yield percent([each.has_best for each in found])
    sizes = [each.size for each in found if each.size is not None]
    yield f"{statistics.fmean(sizes):.1f}" if sizes else ""


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sweeps", type=int, default=1000, help="simulated sweeps of each case")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    columns = ["case", "runs", "wrong (%)", "regret", "difference (%)", "value (%)", "has best (%)", "size"]
    print_table(columns, [list(_row(case, simulate(case, options.sweeps, options.seed))) for case in CASES])


if __name__ == "__main__":
    main()
