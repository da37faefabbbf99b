"""The trials of a sweep: their configurations from its grid, lists and samples, and what identifies each result."""

import itertools
import json
import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Final

from trainyard.config.arithmetic import evaluate
from trainyard.config.placeholders import dotted_items
from trainyard.config.scaling import Scaling
from trainyard.config.sweep import (
    Draw,
    GridValues,
    Range,
    Sweep,
    Uniform,
    condition_of,
    ends_of,
    holds,
    options_of,
)
from trainyard.config.train import ABSENT, RESULT_VERSION, Train, Training, value_at
from trainyard.config.trees import Trees
from trainyard.config.user_programs import Study, UserProgram
from trainyard.config.weights import WeightsError, is_published
from trainyard.utils.errors import UserError
from trainyard.utils.files import digest_of
from trainyard.utils.text import suggest

Spec = Training | Trees | UserProgram  # what a trial runs
Values = dict[str, Any]  # by key of the config


@dataclass(frozen=True)
class Trial:
    """One configuration of a sweep: its full spec, and the values of the keys that the sweep varies."""

    spec: Spec
    values: Values

    @cached_property
    def content(self) -> str:
        """The spec as canonical JSON without defaults, so that new config keys do not change identities."""
        return json.dumps(self.spec.content, sort_keys=True)

    @property
    def settings(self) -> Values:
        """The nested mapping that contains the varied keys."""
        return self.spec.settings

    @property
    def epochs(self) -> int | None:
        """The number of epochs, if it is known."""
        return self.spec.epochs

    def identity(self, dataset_digest: str) -> str:
        """Ten hex digits of a hash of everything that changes the trial's result."""
        return digest_of([self.content, dataset_digest, RESULT_VERSION], length=10)


@dataclass
class Expansion:
    """A sweep's trials in the order of the config, and the errors of its invalid configurations."""

    trials: list[Trial] = field(default_factory=list)
    errors: list[tuple[str, Exception]] = field(default_factory=list)  # (place in the sweep, reason)
    examples: list[Trial] = field(default_factory=list)  # of a search: every choice and both bounds of every range
    _by_name: dict[str, dict[str, Trial]] = field(default_factory=dict)  # by the dataset's digest, then by identity

    def by_name(self, dataset_digest: str) -> dict[str, Trial]:
        """The trials by identity; a change of the dataset changes all identities."""
        if dataset_digest not in self._by_name:
            self._by_name[dataset_digest] = {trial.identity(dataset_digest): trial for trial in self.trials}
        return dict(self._by_name[dataset_digest])


MAX_TRIALS: Final = 1_000_000
MAX_EXPANDED: Final = 64  # sweeps whose trials stay in memory, since checks and plans need them repeatedly
_expanded: dict[int, tuple[Sweep, Expansion]] = {}  # by the `id` of the sweep, which is immutable


def expand(sweep: Sweep) -> Expansion:
    """All trials of a sweep without duplicates: from `grid`, then `trials`, then `sample`.

    Those of a search are not known beforehand: there are only examples. The result is cached: do not modify it.
    """
    if id(sweep) not in _expanded:
        _expanded[id(sweep)] = sweep, _expand(sweep)
        if len(_expanded) > MAX_EXPANDED:
            del _expanded[next(iter(_expanded))]
    return _expanded[id(sweep)][1]


def _expand(sweep: Sweep) -> Expansion:
    expansion = Expansion()
    seen: set[str] = set()
    for place, count in _counts(sweep).items():
        if count > MAX_TRIALS:
            message = f"has {min(count, 10**300):.3g} configurations; {MAX_TRIALS:,} are the limit"
            expansion.errors.append((place, ValueError(message)))
    if expansion.errors:
        return expansion
    average = set(sweep.average)
    configurations = list[tuple[str, Values]]()
    for place, values in _settings(sweep):
        levels = [{}] if values.keys() >= average else sweep.averaged
        configurations += [(place, values | level) for level in levels]
    for repeat, (place, values) in itertools.product(range(sweep.repeats_of_all), configurations):
        try:
            trial = make_trial(sweep, with_seed(sweep, values, repeat))
            content = trial.content
        except (WeightsError, ValueError) as error:
            is_of_all = isinstance(error, WeightsError) and "pretrained" not in values
            expansion.errors.append(("train.pretrained" if is_of_all else place, error))
            continue
        if place == "search":
            expansion.examples.append(trial)
        elif content not in seen:
            seen.add(content)
            expansion.trials.append(trial)
    return expansion


# ---- what identifies other results; `dataset` is the digest of the staged dataset


def result_digest(study: Scaling, run: str, dataset: str) -> str:
    """The digest of a run of a scaling study, which its summary has as `spec_digest`."""
    return digest_of(study.result_content(run, dataset), length=10)


# ---- what a study trains


def trials_to_check(study: Study) -> list[Trial]:
    """The trials of a sweep, with the examples of a search."""
    return [*expand(study).trials, *expand(study).examples] if isinstance(study, Sweep) else []


def trainings(study: Study) -> list[Train]:
    """The configurations of a study's trainings: of all trials, or of the examples of a search."""
    if study.base_training is None:
        return []
    return [trial.spec for trial in trials_to_check(study) if isinstance(trial.spec, Train)] or [study.base_training]


def published_weights(*studies: Study) -> list[tuple[str, str]]:
    """Model and name of the weights of torchvision that the trainings of some studies start from."""
    named = [(spec.model, spec.pretrained) for study in studies for spec in trainings(study) if spec.pretrained]
    return sorted({(model, weights) for model, weights in named if is_published(weights)})


def early_end(spec: Spec, metrics: Mapping[str, Any]) -> float | None:
    """The number of epochs after which `patience` ended a finished training or fit; None if it did not."""
    trained = metrics.get(spec.counter)
    if spec.epochs is None or spec.patience is None or not trained or trained >= spec.epochs:
        return None
    return float(trained)


def full_seconds(spec: Spec, seconds: float, metrics: Mapping[str, Any]) -> float:
    """The duration of a finished trial if it had trained all epochs, which one with `patience` may not have done.

    Predictions are made from these: how many epochs another trial trains is unknown, and all of them is the most.
    """
    trained = early_end(spec, metrics)
    return seconds * spec.epochs / trained if trained and spec.epochs else seconds


def constant_keys(sweep: Sweep) -> frozenset[str]:
    """The keys that the config gives the same value in all trials, so that they tell no trials apart.

    None if this is true of all keys, as with a single trial. Trials are not expanded.
    """
    seeds = {sweep.seed_key or "": list(range(sweep.repeats))} if sweep.repeats > 1 else {}
    texts = {key: set[str]() for key in sweep.varied_keys}
    for part in sweep.parts:
        for key in texts:
            choice = seeds.get(key) or part.get(key)
            texts[key] |= {""} if choice is None else set(map(repr, ends_of(choice)))
    constant = [key for key, different in texts.items() if len(different) == 1]
    return frozenset(constant if len(constant) < len(texts) else ())


def count_configured(sweep: Sweep) -> int:
    """The number of trials that the config has, without expanding them; equal ones are counted several times."""
    return sum(_counts(sweep).values())


def _counts(sweep: Sweep) -> dict[str, int]:
    """The number of configurations in each part of the sweep."""
    lengths = (each.count if isinstance(each, Range) else len(options_of(each)) for each in sweep.grid.values())
    levels = len(sweep.averaged)
    average = set(sweep.average)
    listed = sum(1 if values.keys() >= average else levels for values in sweep.trials)
    counts = {"grid": math.prod(lengths) if sweep.runs_grid else 0, "trials": listed}
    counts |= {"sample": levels * sweep.sample.count} if sweep.sample else {}
    counts |= {"search": levels * sweep.search.trials} if sweep.search else {}
    return {place: count * sweep.repeats_of_all for place, count in counts.items()}


def _settings(sweep: Sweep) -> Iterator[tuple[str, Values]]:
    """Place in the config and values of the varied keys of each configuration."""
    if sweep.runs_grid:
        choices = [options_of(values) for values in sweep.grid.values()]
        conditions = _conditions(sweep.grid)
        for combination in itertools.product(*choices):
            settings = Values()
            for key, value in _applicable(conditions, dict(zip(sweep.grid, combination, strict=True))).items():
                settings |= {key: value} if key in sweep.grid_columns[key] else dotted_items({key: value})
            yield "grid", settings
    for index, values in enumerate(sweep.trials):
        yield f"trials.{index}", values
    if sweep.sample:
        generator = random.Random(sweep.sample.seed)
        conditions = _conditions(sweep.sample.values)
        for _ in range(sweep.sample.count):
            drawn = {key: _draw(generator, choice) for key, choice in sweep.sample.values.items()}
            yield "sample", _applicable(conditions, drawn)
    if sweep.search:
        # Configurations in which each choice and both ends of each range occur.
        ends = {key: ends_of(choice) for key, choice in sweep.search.values.items()}
        conditions = _conditions(sweep.search.values)
        for index in range(max(map(len, ends.values()))):
            yield "search", _applicable(conditions, {key: each[index % len(each)] for key, each in ends.items()})
        firsts = {key: each[0] for key, each in ends.items()}
        for key in conditions:
            for value in ends[key]:
                yield "search", _applicable(conditions, firsts | _needed(conditions, key) | {key: value})
    if not sweep.trains and not (sweep.grid or sweep.trials or sweep.sample or sweep.search):
        yield "args", {}  # a single call


Conditions = Mapping[str, Mapping[str, list[Any]]]  # by key: the values of other keys with which it is used


def _conditions(varied: Mapping[str, GridValues | Draw]) -> Conditions:
    """The conditions of keys that have one."""
    conditions = {key: condition_of(values) for key, values in varied.items()}
    return {key: condition for key, condition in conditions.items() if condition}


def _applicable(conditions: Conditions, values: Values) -> Values:
    """The values of the keys whose condition holds; each key comes after those that it depends on."""
    if not conditions:
        return values
    used = Values()
    for key, value in values.items():
        if holds(conditions.get(key, {}), used):
            used[key] = value
    return used


def _needed(conditions: Conditions, key: str) -> Values:
    """Values of other keys with which a key is used."""
    needed = {other: allowed[0] for other, allowed in conditions.get(key, {}).items()}
    return {name: value for other in needed for name, value in _needed(conditions, other).items()} | needed


def _draw(generator: random.Random, choice: Draw) -> Any:
    if not isinstance(choice, Uniform):
        return generator.choice(options_of(choice))
    if choice.step:
        value = choice.low + choice.step * generator.randint(0, choice.steps)
    elif choice.log:
        value = math.exp(generator.uniform(math.log(choice.low), math.log(choice.high)))
    else:
        value = generator.uniform(choice.low, choice.high)
    return choice.in_table(value)


def with_seed(sweep: Sweep, values: Values, repeat: int) -> Values:
    """The values of a repeat of a configuration, from 0 on; unchanged if there is only this one."""
    is_alone = sweep.repeats == 1 and repeat == 0
    return values if is_alone else {**values, sweep.seed_key or "": sweep.first_seed + repeat}


def run_of(sweep: Sweep, values: Values, number: int) -> Values:
    """The values of the n-th trial of a configuration, from 0 on: at all values of `average`, then of the next seed."""
    repeat, level = divmod(number, len(sweep.averaged))
    return with_seed(sweep, values, repeat) | sweep.averaged[level]


def make_trial(sweep: Sweep, values: Values) -> Trial:
    """The trial of a sweep with these values of the varied keys.

    Raises:
        ValueError: the configuration is invalid; this includes Pydantic's ValidationError.
    """
    merged = dict(sweep.base)
    for key, value in values.items():
        set_at(merged, key.split("."), value)
    spec = sweep.spec_of(merged)
    return Trial(spec, spec.values_of(values))


def set_at(mapping: dict[str, Any], parts: list[str], value: Any) -> None:
    """Set a nested key. Each mapping on its path is copied, since all trials share the base."""
    for part in parts[:-1]:
        inner = mapping.get(part)
        if inner is not None and not isinstance(inner, dict):
            raise ValueError(f"{'.'.join(parts)}: {part} is not a mapping")
        copy = dict(inner or {})
        mapping[part] = copy
        mapping = copy
    mapping[parts[-1]] = value


class CostError(UserError):
    """A cost expression cannot be evaluated."""


def relative_cost(expression: str, trial: Trial) -> float:
    """The value of a sweep's `cost:` for a trial: arithmetic on numbers and keys, as in `epochs * model_args.blocks`.

    Raises:
        CostError: it is not arithmetic, a key is unknown or not a number, or the result is not finite.
    """
    try:
        cost = evaluate(expression, partial(_find_value, trial.spec.settings))
        if not math.isfinite(cost):
            raise ValueError(f"it is {cost:g}")
        return cost
    except (SyntaxError, TypeError, ValueError, ArithmeticError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else error
        values = ", ".join(f"{key} = {value!r}" for key, value in trial.values.items())
        which = f" for {values}" if values else ""
        raise CostError(f"{expression!r} cannot be evaluated{which}: {reason}") from None


def _find_value(settings: Mapping[str, Any], key: str) -> Any:
    value = value_at(settings, key, ABSENT)
    if value is ABSENT:
        values = dotted_items(settings)
        numbers = (name for name, each in values if isinstance(each, (int, float)) and not isinstance(each, bool))
        raise ValueError(f"there is no key {key!r}; {suggest(key, numbers)}")
    return value
