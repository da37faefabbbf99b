"""The answer of a sweep in words: its ranking, the keys without effect, and what would decide between the best."""

import math
import statistics
from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Final

from trainyard.config.metric_names import DURATION
from trainyard.config.sweep import is_seed
from trainyard.config.trial_status import TrialStatus
from trainyard.planning.history import History
from trainyard.results.effects import describe_effects, find_identical
from trainyard.results.error_patterns import describe_out_of_memory
from trainyard.results.ranking import NAMED, Ranking, describe_ranking, rank_sweep
from trainyard.utils.text import count_of, list_some

MAX_LEADERS: Final = 10  # of which more seeds are advised
MORE_SEEDS: Final = 3  # with five leaders, the wrong winner in 46 instead of 65 % of simulated sweeps


@dataclass(frozen=True)
class Answer:
    """The ranking of a sweep, and the answer in words."""

    ranking: Ranking
    lines: list[str]  # of `describe_ranking`, the trials without a number to rank them by, and keys without effect
    deciding: str  # what would decide which of the configurations that may be the best is the best; "" if nothing


def answer_sweep(state: History) -> Answer:
    """The answer of a sweep, as far as it has run."""
    ranking = rank_sweep(state)
    identical = find_identical(state, ranking)
    effects = describe_effects(ranking, identical)
    lines = [*describe_ranking(ranking), *_describe_unranked(ranking), *describe_out_of_memory(state), *effects]
    alike = [{each.trial for each in trials} for report, trials in identical.items() if report.is_telling]
    return Answer(ranking, lines, _describe_deciding_trials(state, ranking, alike))


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


def _describe_deciding_trials(state: History, ranking: Ranking, alike: Sequence[Set[str]]) -> str:
    """What would decide which of the configurations that may be the best is the best; "" if it is one, or many.

    New seeds decide nothing if no seed reaches the program, if trees are fitted without drawing rows or columns, or if
    two of the configurations report the same. `alike` are groups of trials that do so, in more numbers than chance
    could have made equal.
    """
    sweep = state.sweep
    chosen = ranking.leaders if ranking.evidence else ranking.best(NAMED)
    if not 1 < len(chosen) <= MAX_LEADERS or ranking.metric == DURATION or ranking.objectives:
        return ""
    has_own = any(map(is_seed, sweep.varied_keys)) and sweep.repeats == 1
    if not (has_own or sweep.seed_key):
        return ""
    among = {trial.trial for each in chosen for trial in each.trials}
    specs = [state.trials[trial].spec for trial in among]
    if not all(spec.depends_on_seed for spec in specs):
        return ""
    if any(len(among & trials) > 1 for trials in alike):
        return ""
    which = f"the {len(chosen)} that may be the best" if ranking.evidence else f"the first {len(chosen)}"
    count = MORE_SEEDS * len(chosen) * len(sweep.averaged)
    records = [state.record(trial.trial) for each in chosen for trial in each.trials]
    results = list(filter(None, (record.result for record in records)))
    seconds = [record.seconds for record in records if record.result and record.seconds]
    minutes = count * statistics.mean(seconds or [0.0]) * state.sweep.slots.units_per_trial / 60
    on_cpus = sweep.slots.has_gpus and all(each.location.device == "cpu" for each in results)
    unit = "slot" if on_cpus else sweep.slots.unit
    trials = f"{count} trials, {minutes:.2g} {unit}-minutes" if seconds else f"{count} trials"
    can_repeat = sweep.repeats_of_all == 1 and sweep.seed_key and isinstance(sweep.first_seed, int) and not has_own
    options = f" (`repeats: {sweep.repeats + MORE_SEEDS}` and `repeat_best: {len(chosen)}`)" if can_repeat else ""
    return (
        f"To decide between {which}: run {MORE_SEEDS} new seeds of each, the same for all{options}, which is {trials}."
    )
