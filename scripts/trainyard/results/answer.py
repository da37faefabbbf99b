"""The answer of a sweep in words: its ranking, the keys without effect, and what would decide between the best."""

import math
import statistics
from collections.abc import Sequence
from typing import Final

from trainyard.config.metric_names import DURATION
from trainyard.config.sweep import is_seed
from trainyard.config.trial_status import TrialStatus
from trainyard.planning.sweep_state import SweepState
from trainyard.results.effects import describe_effects, find_identical
from trainyard.results.ranking import NAMED, Configuration, Ranking, describe_ranking
from trainyard.utils.text import count_of, list_some

MAX_LEADERS: Final = 10  # of which more seeds are advised
MORE_SEEDS: Final = 3  # with five leaders, the wrong winner in 46 instead of 65 % of simulated sweeps


def describe_answer(state: SweepState, ranking: Ranking) -> list[str]:
    """The lines of `describe_ranking`, the trials without a number to rank them by, and the keys without effect."""
    effects = describe_effects(ranking, find_identical(state, ranking))
    return [*describe_ranking(ranking), *_describe_unranked(ranking), *effects]


def _describe_unranked(ranking: Ranking) -> list[str]:
    """The finished trials whose metric is NaN or infinite, or that do not report it: a line for each of both."""
    if ranking.candidates or ranking.unreported:
        return []
    finished = [trial for trial in ranking.trials if trial.status is TrialStatus.FINISHED]
    reasons = {
        f"their {ranking.metric} is NaN or infinite": [
            trial.trial for trial in finished if trial.score is not None and not math.isfinite(trial.score)
        ],
        f"they do not report {ranking.metric}": [trial.trial for trial in finished if trial.score is None],
    }
    return [
        f"not ranked, since {reason}: {count_of(len(names), 'finished trial')}, {list_some(names)}"
        for reason, names in reasons.items()
        if names
    ]


def describe_deciding_trials(state: SweepState, ranking: Ranking) -> str:
    """What would decide which of the configurations that may be the best is the best; "" if it is one, or many.

    New seeds decide nothing if no seed reaches the program, or if two of the configurations report the same.
    """
    sweep, chosen = state.sweep, ranking.leaders if ranking.evidence else ranking.best(NAMED)
    if not 1 < len(chosen) <= MAX_LEADERS or ranking.metric == DURATION or ranking.objectives:
        return ""
    has_own = any(map(is_seed, sweep.varied_keys)) and sweep.repeats == 1
    if not (has_own or sweep.seed_key) or _has_identical(state, ranking, chosen):
        return ""
    which = f"the {len(chosen)} that may be the best" if ranking.evidence else f"the first {len(chosen)}"
    found, count = [state.result(trial.trial) for each in chosen for trial in each.trials], MORE_SEEDS * len(chosen)
    results = [each for each in found if each]
    seconds = [spent for each in results if (spent := state.seconds_of(each))]
    minutes = count * statistics.mean(seconds or [0.0]) * state.max_slots.units_per_trial / 60
    on_cpus = sweep.slots.has_gpus and all(each.location.device == "cpu" for each in results)
    trials = f"{count} trials" + f", {minutes:.2g} {'slot' if on_cpus else sweep.slots.unit}-minutes" * bool(seconds)
    can_repeat = sweep.repeats_of_all == 1 and sweep.seed_key and isinstance(sweep.first_seed, int) and not has_own
    options = f" (`repeats: {sweep.repeats + MORE_SEEDS}` and `repeat_best: {len(chosen)}`)" if can_repeat else ""
    return (
        f"To decide between {which}: run {MORE_SEEDS} new seeds of each, the same for all{options}, which is {trials}."
    )


def _has_identical(state: SweepState, ranking: Ranking, chosen: Sequence[Configuration]) -> bool:
    """Whether two trials of these configurations report the same, and more than chance could have made equal."""
    groups = [trials for report, trials in find_identical(state, ranking).items() if report.is_telling]
    among = {trial for each in chosen for trial in each.trials}
    return any(len(among.intersection(trials)) > 1 for trials in groups)
