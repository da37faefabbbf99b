"""The configurations of a sweep, best first, and in words; trials that differ only in their seed are one of them."""

import json
import math
import operator
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from trainyard.config.metric_names import DURATION, Mode, guess_mode, is_timing
from trainyard.config.sweep import Mean, MetricLimits, Score, is_seed
from trainyard.config.trial_status import TrialStatus
from trainyard.config.trials import Values
from trainyard.planning.history import History
from trainyard.planning.trial_space import is_placeholder
from trainyard.planning.trial_value import TrialValue, describe_score, judged_metrics, value_of
from trainyard.results.comparability import describe_work, find_incomplete
from trainyard.results.evidence import SURE, Evidence, weigh
from trainyard.utils.text import count_of

NAMED: Final = 5  # configurations that may be the best, in words
EXTREMES: Final = {"min": "lowest", "max": "highest"}


@dataclass(frozen=True, eq=False)
class RankedTrial:
    """A trial and its value of the metric that ranks the sweep; None without a result that has the metric."""

    trial: str  # its identity
    values: Values  # of the varied keys
    status: TrialStatus
    value: TrialValue | None
    is_fresh: bool = False  # whether it is a further seed of what a search has found, whose own value is too good
    judged: Mapping[str, float] = field(default_factory=dict)  # by objectives and constraints; NaN without a value

    @property
    def score(self) -> float | None:
        """The value as a number, which may be NaN or infinite; None without one."""
        return self.value.value if self.value else None

    @property
    def when(self) -> str:
        """The epoch of its value, as the end of a sentence; "" if it has none."""
        return self.value.when if self.value else ""

    @property
    def counts(self) -> bool:
        """Whether its value is a finite number."""
        return self.score is not None and math.isfinite(self.score)

    @property
    def seed(self) -> str:
        """The values of its seed, as text."""
        return json.dumps([value for key, value in self.values.items() if is_seed(key)])

    def level(self, average: Iterable[str]) -> str:
        """Its values of the keys of `average`, as text."""
        return json.dumps([self.values[key] for key in average])


class Configuration:
    """The trials of a sweep, in the config's order, with the same `values` of all settings.

    They differ in the seed, and in the keys of `average`: a seed counts once trials at all `levels` of these have
    finished with the metric.
    """

    def __init__(
        self,
        values: Values,
        trials: list[RankedTrial],
        average: Sequence[str] = (),
        levels: int = 1,
    ) -> None:
        self.values = values
        self.trials = trials
        self.levels = levels
        # The trials that count finished, and their metric is a finite number.
        self.finished = [trial for trial in trials if trial.counts and trial.status == TrialStatus.FINISHED]
        fresh = [trial for trial in self.finished if trial.is_fresh]
        self.is_fresh = bool(fresh)
        reached = defaultdict[str, set[str]](set)  # by seed
        for trial in fresh or self.finished:
            reached[trial.seed].add(trial.level(average))
        self.counting = [trial for trial in fresh or self.finished if len(reached[trial.seed]) == levels]
        scores = [float(trial.score or 0.0) for trial in self.counting]
        self.n = len(scores)
        self.mean = statistics.mean(scores) if scores else None
        names = self.counting[0].judged if scores else ()
        self.means = {name: statistics.fmean(trial.judged[name] for trial in self.counting) for name in names}
        self.deviation = statistics.stdev(scores) if len(scores) > 1 else None  # between seeds, with n - 1
        # The mean leaves out a trial that did badly: it diverged or was stopped early.
        self.total = sum(trial.is_fresh for trial in trials) if fresh else len(trials)
        self.is_incomplete = any(
            trial.status in (TrialStatus.DIVERGED, TrialStatus.STOPPED) or (trial.value and not trial.counts)
            for trial in trials
        )

    @property
    def by_seed(self) -> dict[str, float]:
        """The values that count, by the values of all keys but the settings, as text."""
        by_seed = {}
        for each in self.counting:
            seed = [value for key, value in each.values.items() if key not in self.values]
            by_seed[json.dumps(seed)] = float(each.score or 0.0)
        return by_seed

    def best_trial(self, mode: Mode) -> RankedTrial | None:
        """The trial with the best value, the first one of several; None if no trial counts."""
        return min(self.counting, key=lambda trial: _cost(trial.score, mode), default=None)


@dataclass
class Ranking:
    """The configurations of a sweep, best first. Those without a trial that counts are last, in the config's order.

    If there are several seeds, what is expected of the true means decides: those of few runs are uncertain. With
    objectives, the Pareto front comes first, by the metric, and what lacks one of them comes after the others. What
    does not meet the constraints comes after these.
    """

    metric: str
    mode: Mode
    is_guessed: bool  # whether the mode is guessed from the metric's name
    configurations: list[Configuration]
    unreported: str = ""  # the metric that the config names, if no trial has reported it but others
    candidates: tuple[str, ...] = ()  # reported metrics, if the config names none of them: then none ranks trials
    constant_keys: frozenset[str] = frozenset()  # keys with the same value in all trials
    objectives: Mapping[str, Mode] = field(default_factory=dict)
    constraints: Mapping[str, MetricLimits] = field(default_factory=dict)
    score: Score = "last"
    average: Sequence[str] = ()

    def __post_init__(self) -> None:
        self.infeasible = [each for each in self.configurations if each.n and not self.meets_constraints(each.means)]
        beyond = set(self.infeasible)
        self.configurations.sort(key=lambda each: (not each.n, each in beyond, not self._has_objectives(each)))
        compared = [each for each in self.configurations if each.n and not each.is_incomplete and each not in beyond]
        compared = [each for each in compared if each.is_fresh] or compared  # the first ones
        self.front = self._find_front(compared)  # the best by the metric first
        runs = [] if self.objectives else [each.by_seed for each in compared]
        self.evidence = weigh(runs, is_better_higher=self.mode == "max")
        # Those that may be the best, as far as the data tell; of one run each, those with the best value.
        self.leaders = [each for each in compared if each.mean == compared[0].mean]
        if self.evidence:
            expected = self.evidence.expected
            ranked = sorted(range(len(compared)), key=lambda number: _cost(expected[number], self.mode))
            self.configurations[: len(ranked)] = [compared[number] for number in ranked]
            self.leaders = [compared[number] for number in self.evidence.best]
        if self.front:
            front = set(self.front)
            self.configurations = [*self.front, *(each for each in self.configurations if each not in front)]
            self.leaders = self.front
        # Those with a trial that counts, which meet the constraints.
        self.counting = [each for each in self.configurations if each.n and each not in beyond]
        self.best_trial = self.counting[0].best_trial(self.mode) if self.counting else None
        self.scores = {trial.trial: trial.score for trial in self.trials}
        # Whether a configuration has several trials, which differ in no setting, and in what they do.
        self.has_seeds = any(len(each.trials) > 1 for each in self.configurations)
        keys = self.trials[0].values if self.trials else {}
        over = list(self.average)
        if not over or any(map(is_seed, keys)):
            over.append("seeds")
        self.over = ", ".join(over)
        # The values of the trials that have finished with the metric, and what those printed last that are incomplete.
        finished = [each for each in self.trials if each.status is TrialStatus.FINISHED]
        self.finished = {trial: trial.value for trial in finished if trial.value}
        self.work = {trial.trial: value.work for trial, value in self.finished.items()}
        self.incomplete = find_incomplete(self.work)

    @property
    def trials(self) -> list[RankedTrial]:
        """The trials of all configurations."""
        return [trial for each in self.configurations for trial in each.trials]

    def is_setting(self, key: str) -> bool:
        """Whether configurations differ in a varied key; in the others, their trials do."""
        return not is_seed(key) and key not in self.average

    def meets_constraints(self, values: Mapping[str, float]) -> bool:
        """Whether the values of a trial or configuration are within the limits; NaN is not."""
        return all(limits.excess(values[name]) <= 0 for name, limits in self.constraints.items())

    def _has_objectives(self, configuration: Configuration) -> bool:
        """Whether the means of all objectives are finite."""
        return all(math.isfinite(configuration.means.get(name, math.nan)) for name in self.objectives)

    def _find_front(self, compared: Sequence[Configuration]) -> list[Configuration]:
        names = list(self.objectives)
        compared = [each for each in compared if self._has_objectives(each)]
        names.sort(key=lambda name: name != self.metric)
        costs = [(tuple(_cost(each.means[name], self.objectives[name]) for name in names), each) for each in compared]
        if not costs or not names:
            return []
        import numpy as np  # takes a tenth of a second

        remaining = np.unique([cost for cost, _ in costs], axis=0).T  # ascending columns
        front = set[tuple[float, ...]]()
        while remaining.size:  # no other one dominates the first
            front.add(tuple(remaining[:, 0]))
            remaining = remaining[:, (remaining < remaining[:, :1]).any(axis=0)]
        return [each for cost, each in sorted(costs, key=operator.itemgetter(0)) if cost in front]

    @property
    def spread_of_front(self) -> dict[int, Configuration]:
        """Some configurations from one end of the Pareto front to the other, by their place."""
        count = len(self.front)
        places = range(count) if count <= NAMED else (round(step * (count - 1) / (NAMED - 1)) for step in range(NAMED))
        return {place + 1: self.front[place] for place in places}

    def best(self, count: int | None) -> list[Configuration]:
        """The first configurations, without those of which a trial diverged or was stopped."""
        return [each for each in self.counting if not each.is_incomplete][:count]


def rank_sweep(state: History) -> Ranking:
    """The ranking of a sweep by its `metric` and `mode`; trials that report no metrics are ranked by their seconds.

    If trials report several, and the config names none to rank them by, they have no scores.
    """
    (metric, mode, candidates), sweep = _ranking_metric(state), state.sweep
    chosen = mode or guess_mode(metric)
    keys = state.varied_keys
    fresh = state.space.further if sweep.search and sweep.search.is_adaptive else ()
    trials = []
    for record in state.records:
        name = record.name
        if not is_placeholder(name):
            values = record.values_of(keys)
            result = record.result
            value = value_of(state, result, metric, chosen) if result and not candidates else None
            names = [*sweep.objectives, *sweep.constraints]
            found = judged_metrics(state, result, metric, chosen) if result and names else {}
            judged = {each: found.get(each, math.nan) for each in names}
            trials.append(RankedTrial(name, values, record.status, value, name in fresh, judged))
    wanted = sweep.target[0] or metric
    ranked = rank_configurations(trials, chosen, sweep.average, len(sweep.averaged))
    unreported = wanted if wanted != metric else ""
    judged_by = sweep.objectives, sweep.constraints, sweep.score, sweep.average
    return Ranking(metric, chosen, mode is None, ranked, unreported, candidates, state.constant_keys, *judged_by)


def rank_configurations(
    trials: Sequence[RankedTrial], mode: Mode, average: Sequence[str] = (), levels: int = 1
) -> list[Configuration]:
    """The configurations of some trials by their mean, best first; equal ones keep the order of the trials.

    A configuration of which a trial diverged or was stopped early comes after all others that have a mean: its own
    mean leaves out its worst trials. Those without a mean are last, those with trials that are fresh first.
    """
    grouped: dict[str, tuple[Values, list[RankedTrial]]] = {}
    for trial in trials:
        values = {key: value for key, value in trial.values.items() if not is_seed(key) and key not in average}
        grouped.setdefault(json.dumps(values, sort_keys=True), (values, []))[1].append(trial)
    return sorted(
        (Configuration(*each, average, levels) for each in grouped.values()),
        key=lambda each: (not each.n, each.n > 0 and each.is_incomplete, not each.is_fresh, _cost(each.mean, mode)),
    )


def _cost(score: float | None, mode: Mode) -> float:
    """A number that is smaller for better values."""
    if score is None:
        return 0.0
    return score if mode == "min" else -score


def _ranking_metric(state: History) -> tuple[str, Mode | None, tuple[str, ...]]:
    """The metric that ranks trials, its mode (None if it must be guessed), and the candidates if it is not known."""
    reported: Sequence[str] = list(dict.fromkeys(metric for result in state.results for metric in result.metrics))
    if not reported and state.sweep.target[0]:
        return state.sweep.target[0], state.sweep.target[1], ()
    if found := state.sweep.ranking_metric([*reported, DURATION]):
        return *found, ()
    candidates = tuple(state.sweep.ranking_candidates(reported))
    if state.sweep.metric:  # no trial has reported it
        candidates = candidates or tuple(reported)
        return candidates[0], None, candidates
    if not candidates:
        return DURATION, None, ()
    return candidates[0], None, candidates if len(state.trials) > 1 else ()


def describe_best(ranking: Ranking, *, metric: str = "") -> str:
    """The description of a best value, as `best rmse (lowest)`; `metric` replaces the name of the metric."""
    mean = "mean " if ranking.has_seeds else ""
    over = f" over {ranking.over}" if ranking.average else ""
    how = EXTREMES[ranking.mode]
    if ranking.is_guessed:
        how += ", guessed from its name"
    if ranking.has_seeds and ranking.score != "last":
        how += f"; of each trial the {describe_score(ranking.score)}"
    return f"best {mean}{metric or ranking.metric}{over} ({how})"


def describe_ranking(ranking: Ranking) -> list[str]:
    """The best configuration, what makes values hard to compare, how sure it is, and the runner-up: a line each."""
    if ranking.candidates:
        return [_describe_undecided(ranking)]
    constraints = "the constraints: " + ", ".join(f"{name} {limits}" for name, limits in ranking.constraints.items())
    count = len(ranking.infeasible)
    if count and not ranking.counting:
        return [f"no configuration meets {constraints}{_describe_closest(ranking)}"]
    if not ranking.counting:
        statuses = [trial.status for each in ranking.configurations for trial in each.trials]
        is_over = not {TrialStatus.PENDING, TrialStatus.RUNNING}.intersection(statuses)
        stopped = statuses.count(TrialStatus.STOPPED)
        why = f": {stopped} of {len(statuses)} stopped early; change or remove `stop`, and they run again"
        if any(each.finished for each in ranking.configurations):
            return [f"no configuration has finished at all values of {', '.join(ranking.average)}"]
        nothing = "no trial has finished"
        if ranking.metric != DURATION:
            nothing += f" with {ranking.metric}"
        return [nothing + why if is_over and stopped else nothing]
    beyond = [f"{count_of(count, 'configuration')} not within {constraints}"] if count else []
    first, *others = _describe_front(ranking) if ranking.front else _describe_first(ranking)
    settings = {trial.trial: trial.values for trial in ranking.finished}
    return [
        first,
        *describe_work(ranking.work, settings, ranking.score),
        *others,
        *_describe_values(ranking),
        *_describe_stopped(ranking),
        *_describe_average(ranking),
        *beyond,
    ]


def _describe_values(ranking: Ranking) -> list[str]:
    """What the answer would be by the best epochs, if some trials had a better one; or what their scores lack."""
    if is_timing(ranking.metric):
        return []
    if ranking.score != "last":
        return _describe_scores(ranking)
    better = {trial: value.best for trial, value in ranking.finished.items() if value.best and value.was_better}
    if not better:
        return []
    trial, best = min(better.items(), key=lambda item: _cost(item[1].value, ranking.mode))
    count = f"{len(better)} of {count_of(len(ranking.finished), 'trial')} had a better {ranking.metric} before"
    count += " its last epoch" if len(better) == 1 else " their last epoch"
    first = f"the best of them {best.value:.6g} at epoch {best.epoch:.6g}, by trial {trial.trial}"
    if ranking.objectives or ranking.constraints:  # whose values at other epochs are not known here
        return [f"{count}, {first}"]
    other = _rank_best_epochs(ranking)
    if other.counting[0].values == ranking.counting[0].values:
        return [f"with `score: best`, the answer would be the same; {count}, {first}"]
    return [f"with `score: best`, the answer would be {_describe(other.counting[0], other)}; {count}"]


def _rank_best_epochs(ranking: Ranking) -> Ranking:
    """The ranking if trials counted by their best epochs."""
    trials = list[RankedTrial]()
    for trial in ranking.trials:
        value = trial.value
        if value and value.best:
            value = replace(value, value=value.best.value, epoch=value.best.epoch, score="best")
        trials.append(replace(trial, value=value))
    levels = ranking.configurations[0].levels
    return replace(ranking, configurations=rank_configurations(trials, ranking.mode, ranking.average, levels))


def _describe_stopped(ranking: Ranking) -> list[str]:
    """How many trials were stopped early with a better value than the best one has, and the best of these."""
    best = ranking.best_trial
    if best is None or ranking.objectives or is_timing(ranking.metric):
        return []
    stopped = [each for each in ranking.trials if each.status is TrialStatus.STOPPED and each.counts]
    better = [each for each in stopped if _cost(each.score, ranking.mode) < _cost(best.score, ranking.mode)]
    better = [each for each in better if ranking.meets_constraints(each.judged)]
    if not better:
        return []
    first = min(better, key=lambda each: _cost(each.score, ranking.mode))
    count = f"{count_of(len(better), 'trial')} stopped early had a better {ranking.metric} than trial {best.trial}"
    return [
        f"{count}, the best of them {first.score:.6g}{first.when}, trial {first.trial}{_with_values(first, ranking)}"
    ]


def _describe_scores(ranking: Ranking) -> list[str]:
    """How many trials have too few values for a mean, and how many reported more than are kept."""
    values = ranking.finished.values()
    score = ranking.score
    total = count_of(len(values), "finished trial")
    lines = list[str]()
    if isinstance(score, Mean) and (few := sum(each.count < score.mean for each in values)):
        lines.append(f"{few} of {total} reported {ranking.metric} fewer than {score.mean} times: theirs is of these")
    if some := sum(each.is_of_some for each in values):
        fast = "reported faster than one epoch a second, of which not all are kept"
        lines.append(f"{some} of {total} {fast}: their {describe_score(score)} is of those")
    return lines


def _describe_average(ranking: Ranking) -> list[str]:
    """Which configurations lack values of `average`, and keys of it whose values differ more than configurations do."""
    lines = list[str]()
    means = [each.mean for each in ranking.counting if each.mean is not None]
    if lacking := sum(each.n == 0 and bool(each.finished) for each in ranking.configurations):
        configurations = count_of(lacking, "configuration")
        lines.append(f"not ranked, without a result at all values of {', '.join(ranking.average)}: {configurations}")
    for key in ranking.average if len(means) > 1 else ():
        trials = [trial for each in ranking.counting for trial in each.counting]
        by_value = sorted(means_by_value(trials, key).items(), key=lambda item: item[1])
        (lowest, low), (highest, high) = by_value[0], by_value[-1]
        if high - low > max(means) - min(means):
            scales = f"{low:.4g} at {lowest} to {high:.4g} at {highest}"
            differ = f"more than configurations, {min(means):.4g} to {max(means):.4g}"
            lines.append(f"values of `{key}` differ {differ}: {scales}; on different scales, the largest one decides")
    return lines


def means_by_value(trials: Iterable[RankedTrial], key: str) -> dict[str, float]:
    """The mean of the trials at each value of a key, as text."""
    by_value = defaultdict[str, list[float]](list)
    for trial in trials:
        by_value[str(trial.values[key])].append(float(trial.score or 0.0))
    return {value: statistics.fmean(scores) for value, scores in by_value.items()}


def _describe_closest(ranking: Ranking) -> str:
    """The value of each constrained metric that comes closest to its limits, as the end of a sentence."""
    parts = []
    for name, limits in ranking.constraints.items():
        values = [each.means.get(name, math.nan) for each in ranking.infeasible]
        if known := list(filter(math.isfinite, values)):
            parts.append(f"{name} {min(known, key=limits.excess):g}")
    return f"; the closest: {', '.join(parts)}" if parts else ""


def _describe_first(ranking: Ranking) -> list[str]:
    first, *others = ranking.counting
    instead = f"; no trial has reported {ranking.unreported}, the metric of the sweep" if ranking.unreported else ""
    lines = [f"{describe_best(ranking)}: {_describe(first, ranking)}{instead}"]
    if ranking.evidence:
        lines.append(_describe_evidence(ranking.evidence, ranking))
    elif len(ranking.leaders) > 1:
        return [*lines, f"equal to it: {_names(ranking.leaders[1:], ranking)}"]
    if others:
        doubt = "" if ranking.evidence or ranking.metric == DURATION else "; with one run each, chance may have decided"
        place = "equal to it" if others[0].mean == first.mean else "runner-up"
        lines.append(f"{place}: {_describe(others[0], ranking)}{doubt}")
    return lines


def _describe_front(ranking: Ranking) -> list[str]:
    """The objectives, then a line for each of the first configurations on their Pareto front."""
    *names, last = (f"{name} ({EXTREMES[mode]})" for name, mode in ranking.objectives.items())
    front = ranking.front
    of = f"{', '.join(names)} and {last}"
    if ranking.has_seeds:
        of = f"mean {of}"
    doubt = "" if ranking.has_seeds else "; with one run each, chance may have decided"
    count = f"{len(front)} of {count_of(len(ranking.counting), 'configuration')}"
    first = f"best.yaml has the first, with the {EXTREMES[ranking.mode]} {ranking.metric}"
    lines = [f"Pareto front of {of}: {count}; {first}{doubt}"]
    for rank, configuration in ranking.spread_of_front.items():
        trial = configuration.best_trial(ranking.mode)
        assert trial is not None
        values = _with_values(configuration if ranking.has_seeds else trial, ranking)
        means = _assignments({name: f"{configuration.means[name]:.6g}" for name in ranking.objectives})
        which = f"trial {trial.trial}{values}{_describe_incomplete(configuration, ranking)}"
        lines.append(f"{rank}. {means}{trial.when}: {which}")
    if len(front) > NAMED:
        lines.append(f"and {len(front) - NAMED} between them")
    return lines


def _describe_evidence(evidence: Evidence, ranking: Ranking) -> str:
    """Which configurations may be the best, and by how much."""
    low, high = evidence.value
    least, most = evidence.lead_range
    lead = f"the first leads the next by {evidence.lead:.2g} ({least:.2g} to {most:.2g})"
    over = ranking.over if ranking.average else f"all {ranking.over}"
    numbers = f"{lead}; its mean over {over} is {low:.4g} to {high:.4g}"
    count = len(ranking.leaders)
    total = len(evidence.expected)
    if count == 1:
        return f"the best of {total} configurations with {SURE:.0%} certainty: {numbers}"
    alike = _names(ranking.leaders, ranking)
    return f"{count} of {total} configurations may be the best, with {SURE:.0%} certainty: {alike}; {numbers}"


def _names(configurations: Sequence[Configuration], ranking: Ranking) -> str:
    """The first of these configurations by their values, and how many more there are."""
    names = [_values(each, ranking) for each in configurations[:NAMED]]
    if len(configurations) > NAMED:
        names.append(f"{len(configurations) - NAMED} more")
    return " | ".join(names)


def _describe_undecided(ranking: Ranking) -> str:
    """Why no metric ranks the trials."""
    names = " and ".join(filter(None, [", ".join(ranking.candidates[:-1]), ranking.candidates[-1]]))
    if ranking.unreported:
        missing = f"no trial has reported {ranking.unreported}, the metric of the sweep"
        which = "one of them" if len(ranking.candidates) > 1 else "it"
        return f"no ranking: {missing}, but {names}: set `metric` to {which}"
    return f"no ranking: trials report {names}, and the config names none to rank them by: set `metric`"


def _describe(configuration: Configuration, ranking: Ranking) -> str:
    """The value of a configuration that counts, its trial, and the values of its varied keys."""
    trial = configuration.best_trial(ranking.mode)
    assert trial is not None
    mean = f"{configuration.mean:.6g}"
    doubt = _describe_incomplete(configuration, ranking)
    if not ranking.has_seeds:
        return f"{mean}{trial.when}, by trial {trial.trial}{_with_values(trial, ranking)}{doubt}"
    if configuration.deviation is not None:
        mean += f" ± {configuration.deviation:.2g}"
    count = f"n = {configuration.n}"
    if configuration.n < configuration.total:
        count += f" of {configuration.total}"
    seed = _assignments({key: value for key, value in trial.values.items() if key not in configuration.values})
    best = f"its best trial is {trial.trial} ({seed}): {trial.score:.6g}{trial.when}"
    return f"{mean} ({count}){_with_values(configuration, ranking)}; {best}{doubt}"


def _describe_incomplete(configuration: Configuration, ranking: Ranking) -> str:
    """That trials of a configuration ended before their end, as the end of a sentence; "" if none did."""
    ends = list(filter(None, (ranking.incomplete.get(trial.trial) for trial in configuration.trials)))
    if not ends:
        return ""
    trials = "it" if len(configuration.trials) == 1 else count_of(len(ends), "trial")
    return f", which is NOT COMPLETE: {trials} ended early, at {ends[0]}"


def _values(item: Configuration | RankedTrial, ranking: Ranking) -> str:
    """The values of the keys that differ between trials."""
    return _assignments({key: value for key, value in item.values.items() if key not in ranking.constant_keys})


def _with_values(item: Configuration | RankedTrial, ranking: Ranking) -> str:
    values = _values(item, ranking)
    return f" with {values}" if values else ""


def _assignments(values: Values) -> str:
    return ", ".join(f"{key} = {value}" for key, value in values.items())
