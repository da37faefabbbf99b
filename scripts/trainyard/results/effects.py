"""Keys without effect: trials that differ in them report the same."""

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final

from trainyard.config.metric_names import is_counter, is_timing
from trainyard.planning.history import History
from trainyard.planning.trial_value import reported_metrics
from trainyard.results.ranking import RankedTrial, Ranking
from trainyard.utils.text import count_of

NAMED: Final = 3  # lines
# From so many digits on, in all different numbers of a trial, chance does not make another one report the same: three
# losses of four decimals have 6. One number may be a constant, such as the number of parameters.
ENOUGH_DIGITS: Final = 5.0
MOST_DIGITS: Final = 4.0  # of a number
FEW_ROWS: Final = 2  # the only one, and the final values: in more, what never changes is a constant
SINGLE_PRECISION: Final = Fraction(1, 10**7)  # relative: what torch reports has no more digits


@dataclass(frozen=True)
class ReportedResults:
    """What a trial has reported, without times and counters, which say nothing about its result."""

    rows: tuple[frozenset[tuple[str, Any]], ...]

    @property
    def numbers(self) -> set[tuple[str, Any]]:
        """The different numbers, with their metrics."""
        return {number for row in self.rows for number in row}

    @property
    def is_telling(self) -> bool:
        """Whether another trial hardly reports the same by chance."""
        varied = [name for name, count in Counter(name for name, _ in self.numbers).items() if count > 1]
        known = [(name, value) for name, value in self.numbers if value is not None]
        telling = [value for name, value in known if name in varied or len(self.rows) <= FEW_ROWS]
        return sum(min(MOST_DIGITS, _digits(value)) for value in telling) >= ENOUGH_DIGITS


def find_identical(state: History, ranking: Ranking) -> dict[ReportedResults, list[RankedTrial]]:
    """The finished trials that report the same as another one, by what they report; {} if only times are compared."""
    if is_timing(ranking.metric):
        return {}
    by_final_values: dict[ReportedResults, list[RankedTrial]] = {}
    settings = _find_settings(state, ranking)
    for trial in ranking.finished:
        by_final_values.setdefault(_report_of(state, trial.trial, settings, with_epochs=False), []).append(trial)
    groups: dict[ReportedResults, list[RankedTrial]] = {}
    for trials in by_final_values.values():
        for trial in trials if len(trials) > 1 else ():  # the epochs of all trials of a large sweep take long
            groups.setdefault(_report_of(state, trial.trial, settings), []).append(trial)
    return {report: trials for report, trials in groups.items() if len(trials) > 1}


def describe_effects(ranking: Ranking, identical: Mapping[ReportedResults, Sequence[RankedTrial]]) -> list[str]:
    """The keys without effect, and other trials that are identical although they differ in keys: a line each."""
    report_of = {trial.trial: report for report, trials in identical.items() for trial in trials}
    lines = list[str]()
    without_effect = set[str]()
    for key in dict.fromkeys(key for trial in ranking.finished for key in trial.values):
        alike: dict[str, list[RankedTrial]] = {}  # trials that differ only in the key
        for trial in ranking.finished:
            others = {name: value for name, value in trial.values.items() if name != key}
            alike.setdefault(json.dumps(others, sort_keys=True, default=str), []).append(trial)
        pairs = [(first, other) for first, *rest in alike.values() for other in rest]
        known = [(report_of.get(first.trial), report_of.get(second.trial)) for first, second in pairs]
        if not pairs or not all(first and first == second for first, second in known):
            continue
        without_effect.add(key)
        first, second = pairs[0]
        if all(report_of[each.trial].is_telling for each, _ in pairs):
            lines.append(f"`{key}` has no effect: {_describe_identical(first, second)}")
        else:
            count = count_of(len(report_of[first.trial].numbers), "number")
            same = f"trials {first.trial} and {second.trial} report the same {count}"
            lines.append(f"`{key}` may have no effect: {same}, which may be chance: report more digits, or more epochs")
    for report, (first, second, *_) in identical.items():
        keys = [key for key in first.values if first.values[key] != second.values.get(key)]
        if report.is_telling and without_effect.isdisjoint(keys):
            lines.append(f"{_describe_identical(first, second)}, although they differ in {', '.join(keys)}")
    more = len(lines) - NAMED
    return lines[:NAMED] + ([f"and {more} more groups of identical trials"] if more > 0 else [])


def _describe_identical(first: RankedTrial, second: RankedTrial) -> str:
    return f"trials {first.trial} and {second.trial} are identical in all that they report, times aside"


def _find_settings(state: History, ranking: Ranking) -> frozenset[str]:
    """The reported numbers that are no results: they have the name of a varied key, or repeat its value in all trials.

    What ranks the trials is a result.
    """
    reports = [(trial.values, _last_values(state, trial.trial)) for trial in ranking.finished]
    names = {name for _, report in reports for name in report} - {ranking.metric, *ranking.objectives}
    keys = {key for values, _ in reports for key in values}

    def repeats(name: str, key: str) -> bool:
        return all(name in report and report[name] == values.get(key) for values, report in reports)

    return frozenset(name for name in names if any(name == key or repeats(name, key) for key in keys))


def _last_values(state: History, trial: str) -> dict[str, Any]:
    result = state.record(trial).result
    return reported_metrics(state, result) if result else {}


def _report_of(state: History, trial: str, settings: Set[str], *, with_epochs: bool = True) -> ReportedResults:
    record = state.record(trial)
    result = record.result
    assert result is not None
    rows = [*(record.epochs_of(result) if with_epochs else []), reported_metrics(state, result)]
    return ReportedResults(tuple(frozenset(_results_in(row, settings)) for row in rows))


def _results_in(row: Mapping[str, Any], settings: Set[str]) -> list[tuple[str, Any]]:
    names = [name for name in row if not (is_counter(name) or is_timing(name) or name in settings)]
    return [(name, row[name]) for name in names]


def _digits(value: float) -> float:
    """How many digits of a number say something: of 0.9667, what tells 29/30 from fractions of smaller denominators.

    An accuracy is a fraction of few images: 44/45 has 16 digits as a float, but one and a half here.
    """
    exact = abs(Fraction(repr(float(value))))
    decimals = max(0, -int(Decimal(repr(float(value))).as_tuple().exponent))
    rounding = max(Fraction(1, 2 * 10**decimals), SINGLE_PRECISION * exact)
    part = exact % 1
    return math.log10(1 + int(exact)) + math.log10(_simplest_between(part - rounding, part + rounding).denominator)


def _simplest_between(low: Fraction, high: Fraction) -> Fraction:
    """The fraction with the smallest denominator between two others, by their continued fractions."""
    whole = math.floor(low)
    if whole == low or whole + 1 <= high:
        return Fraction(math.ceil(low))
    return whole + 1 / _simplest_between(1 / (high - whole), 1 / (low - whole))
