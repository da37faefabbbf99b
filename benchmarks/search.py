"""Search: what is found after some trials, beside plain Optuna with the same sampler, and the time that a draw takes.

python benchmarks/search.py [--seeds 20] [--trials 60] [--samplers tpe gp cmaes nsgaii random]
python benchmarks/search.py --slots

The regret is the distance of the best trial, without its noise, to the optimum: the median over the seeds, and the
quartiles. With the two objectives of ZDT1, it is the hypervolume of the Pareto front, 9.67, that the trials do not
reach. They run one after another, as on one slot. Optuna has the same sampler with the same options. The probability of
Mann and Whitney is that of regrets so different if there is no difference. Each search is repeated in jobs that are
killed ten times, and must draw the same. `--slots`: the processor time of the driver from the moment at which one of
four slots is free until it has a trial, and of a draw.
"""

import argparse
import math
import random
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from common import print_table, queue_beside
from scipy.stats import mannwhitneyu  # type: ignore[import-untyped]
from trainyard.config.load import check_config
from trainyard.config.sweep import CommandSweep, Uniform
from trainyard.config.trial_status import TrialStatus
from trainyard.config.trials import make_trial
from trainyard.packing.session_watch import SessionWatch
from trainyard.packing.trial_claims import TrialClaims
from trainyard.planning.attempts import Attempt, Fold
from trainyard.planning.claims import ClaimLog
from trainyard.planning.journal import SESSIONS, Ended, Journal, Location, Started, Suggested
from trainyard.planning.plan import plan_sweep
from trainyard.planning.search import OptunaStudy, SuggestionSource
from trainyard.planning.trial_space import Suggestion

Values = dict[str, Any]
KILLS = 10
SIZES, NEW = (10, 1000, 4000, 10_000), 40
SLOTS, PLACE = 4, Location("", "here", "", 0)
HARTMANN: tuple[list[float], list[list[float]], list[list[float]]] = (
    [1.0, 1.2, 3.0, 3.2],
    [[10, 3, 17, 3.5, 1.7, 8], [0.05, 10, 17, 0.1, 8, 14], [3, 3.5, 1.7, 10, 17, 8], [17, 8, 0.05, 10, 0.1, 14]],
    [
        [0.1312, 0.1696, 0.5569, 0.0124, 0.8283, 0.5886],
        [0.2329, 0.4135, 0.8307, 0.3736, 0.1004, 0.9991],
        [0.2348, 0.1451, 0.3522, 0.2883, 0.3047, 0.6650],
        [0.4047, 0.8828, 0.8732, 0.5743, 0.1091, 0.0381],
    ],
)


def branin(at: Values) -> float:
    """Branin's function less its minimum; see Dixon and Szegö 1978."""
    x, y = float(at["x"]), float(at["y"])
    bowl: float = (y - 5.1 / (4 * math.pi**2) * x**2 + 5 / math.pi * x - 6) ** 2
    return bowl + 10 * (1 - 1 / (8 * math.pi)) * math.cos(x) + 10 - 0.397887


def hartmann(at: Values) -> float:
    """The function of Hartmann in six dimensions less its minimum; see Dixon and Szegö 1978."""
    point = [at[f"x{index}"] for index in range(6)]
    terms = (
        weight * math.exp(-sum(a * (x - p) ** 2 for a, x, p in zip(factors, point, center, strict=True)))
        for weight, factors, center in zip(*HARTMANN, strict=True)
    )
    return 3.32237 - sum(terms)


def conditional(at: Values) -> float:
    """Two optimizers with their own keys: with `sgd` and its best momentum and rate, 0."""
    rate: float = abs(math.log10(at["lr"]) + 1)
    return rate + float(abs(at["momentum"] - 0.9) if at["optimizer"] == "sgd" else 0.5 + abs(at["beta"] - 0.5))


def zdt1(at: Values) -> tuple[float, float]:
    """ZDT1 in six dimensions; see Zitzler, Deb and Thiele 2000."""
    first, *others = (float(at[f"x{index}"]) for index in range(6))
    distance = 1 + 9 * statistics.fmean(others)
    return first, distance * (1 - math.sqrt(first / distance))


def _lacking_volume(points: Sequence[tuple[float, ...]]) -> float:
    """The hypervolume up to (1, 10) that some points of ZDT1 do not dominate, but its Pareto front does."""
    dominated, height = 0.0, 10.0
    for x, y in sorted(points):
        dominated += (1 - x) * max(0.0, height - y)
        height = min(height, y)
    return 10 - 1 / 3 - dominated


UNIT = {f"x{index}": {"low": 0, "high": 1} for index in range(6)}
PLANE = {"x": {"low": -5, "high": 10}, "y": {"low": 0, "high": 15}}
CONDITIONAL = {
    "lr": {"low": 1e-4, "high": 1, "log": True},
    "optimizer": ["adam", "sgd"],
    "momentum": {"low": 0, "high": 1, "when": {"optimizer": "sgd"}},
    "beta": {"low": 0, "high": 1, "when": {"optimizer": "adam"}},
}
PROBLEMS: dict[
    str, tuple[Values, Callable[[Values], float | tuple[float, ...]], float]
] = {  # ranges, function, sd of the noise
    "Branin": (PLANE, branin, 0.0),
    "Branin, noisy": (PLANE, branin, 10.0),
    "Hartmann 6": (UNIT, hartmann, 0.0),
    "with conditions": (CONDITIONAL, conditional, 0.0),
    "ZDT1": (UNIT, zdt1, 0.0),
}


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--trials", type=int, default=60)
    parser.add_argument("--samplers", nargs="+", default=["tpe", "gp", "cmaes", "nsgaii", "random"])
    parser.add_argument("--slots", action="store_true")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    if arguments.slots:
        header = ["trials before it", "without a draw ahead (ms)", "with it (ms)", "the draw itself (ms)"]
        rows = [[_times_of_slot(trials, ahead=False)[0], *_times_of_slot(trials)] for trials in SIZES]
        print_table(header, [[f"{trials:,}", *row] for trials, row in zip(SIZES, rows, strict=True)])
        return
    print_table(
        ["", "sampler", "Trainyard", "Optuna", "p", "the same if killed ten times"],
        [
            [problem, method, *_compare(problem, method, arguments.seeds, arguments.trials)]
            for problem in PROBLEMS
            for method in arguments.samplers
            if method != ("cmaes" if problem == "ZDT1" else "nsgaii")
        ],
    )


def _compare(problem: str, method: str, seeds: int, trials: int) -> list[str]:
    """The regret of a search after some trials, that of Optuna, and how many searches that are killed draw the same."""
    values, function, noise = PROBLEMS[problem]
    exact = partial(_losses, function, 0.0, random.Random(0))
    ours, of_optuna, same = list[float](), list[float](), 0
    for seed in range(seeds):
        noisy = [partial(_losses, function, noise, random.Random(seed)) for _ in range(3)]
        sweep = _sweep(method, seed, trials, values, two=function is zdt1)
        tried = _search(sweep, trials, noisy[0])
        same += tried == _search(sweep, trials, noisy[1], kills=KILLS)
        ours.append(_regret(list(map(exact, tried))))
        of_optuna.append(_regret(list(map(exact, _plain(sweep, trials, noisy[2])))))
    probability = mannwhitneyu(ours, of_optuna).pvalue
    return [_quartiles(ours), _quartiles(of_optuna), f"{probability:.2f}", f"{same} of {seeds}"]


def _quartiles(regrets: list[float]) -> str:
    low, middle, high = statistics.quantiles(regrets, n=4)
    return f"{middle:.3g} ({low:.2g} to {high:.2g})"


def _losses(
    function: Callable[[Values], float | tuple[float, ...]], noise: float, generator: random.Random, at: Values
) -> tuple[float, ...]:
    found = function(at)
    return tuple(value + generator.gauss(0, noise) for value in (found if isinstance(found, tuple) else (found,)))


def _regret(points: Sequence[tuple[float, ...]]) -> float:
    return _lacking_volume(points) if len(points[0]) > 1 else min(points)[0]


def _sweep(method: str, seed: int, trials: int, values: Values, *, two: bool) -> CommandSweep:
    options = {"population_size": 15} if method == "nsgaii" else {}  # the default, 50, are nearly all trials
    search = {"method": method, "seed": seed, "trials": trials, "values": values, "options": options}
    goals = {"objectives": {"loss": "min", "second_loss": "min"}} if two else {"metric": "loss", "mode": "min"}
    return CommandSweep(command="run {args}", metrics={"file": "m.json"}, search=search, **goals)


def _search(
    sweep: CommandSweep, trials: int, run: Callable[[Values], tuple[float, ...]], kills: int = 0
) -> list[Values]:
    """The configurations that a search of Trainyard tries."""
    drawn, ends, study = list[Suggestion](), dict[str, Attempt](), OptunaStudy(sweep)
    for number in range(trials):
        if kills and number % (trials // kills) == 0:
            study = OptunaStudy(sweep)
        found, params, attrs = study.draw(drawn, ends)
        name = f"t{number}"
        drawn.append(Suggestion(make_trial(sweep, found), name, params, attrs))
        ends[name] = Attempt(
            name, 1, 0, 1, outcome=TrialStatus.FINISHED, metrics=dict(zip(sweep.goals, run(found), strict=True))
        )
    return [each.trial.values for each in drawn]


def _plain(sweep: CommandSweep, trials: int, run: Callable[[Values], tuple[float, ...]]) -> list[Values]:
    """The configurations that Optuna tries, as its documentation has it."""
    import optuna

    assert sweep.search is not None
    search, directions = sweep.search, [optuna.study.StudyDirection.MINIMIZE] * len(sweep.goals)
    study = optuna.create_study(sampler=search.sampler(search.seed), directions=directions)

    def objective(trial: optuna.Trial) -> tuple[float, ...]:
        at: Values = {}
        for key, of in search.values.items():
            if isinstance(of, list):
                at[key] = trial.suggest_categorical(key, of)
            elif isinstance(of, Uniform) and all(at[name] == value for name, value in of.when.items()):
                at[key] = trial.suggest_float(key, of.low, of.high, log=of.log)
        return run(at)

    study.optimize(objective, n_trials=trials)
    return [trial.params for trial in study.trials]


def _times_of_slot(trials: int, *, ahead: bool = True) -> list[str]:
    """Milliseconds of the driver's processor time until a free slot has its trial, and of a draw."""
    search = {"trials": trials + NEW, "values": UNIT}
    own = {"command": "true {args}", "metrics": {"file": "m.json"}, "metric": "loss", "search": search}
    config, generator = check_config({"sweeps": {"s": own}}), random.Random(0)
    with TemporaryDirectory() as name:
        results, folder = Path(name), Path(name) / "sweeps/s"
        with Journal.of_new_session(folder) as journal, SessionWatch(folder / SESSIONS, journal.session) as watch:
            space = plan_sweep(config, "s", results).state.space
            points = [{key: generator.random() for key in UNIT} for _ in range(trials)]
            draws = [Suggested(search=space.search_key, values=at, params=at, attrs={}) for at in points]
            names = [space.suggestion(each).name for each in draws]
            ClaimLog(folder).append(journal.session, draws=draws, take=dict.fromkeys(names, 1))
            for name in names:
                journal.record(Started(trial=name, attempt=1))
                journal.record(_ended(name, generator.random()), then=lambda: None)
            fold = Fold(folder).update()
            state = plan_sweep(config, "s", results, fold=fold).state
            claims = TrialClaims(state, journal, watch)
            source = SuggestionSource(state, claims)
            claims.listener = partial(source.on_event, is_own=False)
            queue = queue_beside(journal, claims, search=source)
            spent: dict[str, list[float]] = {"take": [], "draw": []}
            running = list[str]()
            for _ in range(NEW):
                if len(running) == SLOTS:
                    began = time.process_time()
                    if ahead and queue.lacks_draw(SLOTS):
                        queue.draw_ahead()
                    spent["draw"].append(time.process_time() - began)
                    event = _ended(running.pop(0), generator.random())
                    journal.record(event, then=lambda: None)
                    attempt = Attempt(event.trial, 1, 0, 1, outcome=event.status, metrics=event.metrics or {})
                    source.on_event(event, attempt, is_own=True)
                began = time.process_time()
                task = queue.take(PLACE, [PLACE] * SLOTS)
                spent["take"].append(time.process_time() - began)
                assert task is not None
                journal.record(Started(trial=task.trial, attempt=1))
                running.append(task.trial)
            journal.leave()
    return [f"{1000 * statistics.fmean(each[-NEW // 2 :]):.1f}" for each in spent.values()]


def _ended(trial: str, loss: float) -> Ended:
    return Ended(trial=trial, attempt=1, status=TrialStatus.FINISHED, seconds=1.0, metrics={"loss": loss})


if __name__ == "__main__":
    main()
