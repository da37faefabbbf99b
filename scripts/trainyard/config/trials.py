"""The trials of a sweep: their configurations from its grid, lists and samples, and what identifies each result."""

import ast
import itertools
import json
import math
import operator
import random
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any, Final

from pydantic import BaseModel

from trainyard.config.config import TREE_TRIAL, TreeModel, Trees
from trainyard.config.placeholders import dotted_items, insert_resume_option
from trainyard.config.scaling import Scaling, ScriptScaling, TrainScaling
from trainyard.config.sweep import (
    VARIED_KEY,
    Choice,
    CommandSweep,
    Draw,
    FunctionSweep,
    GridValues,
    ProgramSweep,
    Range,
    Sweep,
    TrainSweep,
    Uniform,
    condition_of,
    holds,
    options_of,
)
from trainyard.config.train import Train
from trainyard.config.user_programs import UserProgram
from trainyard.config.weights import WeightsError, identifying, is_published
from trainyard.utils.errors import UserError
from trainyard.utils.files import digest_of
from trainyard.utils.text import suggest

# Increment it when a change of the code changes the result of a configuration: then every trial is trained again.
RESULT_VERSION = 2


@dataclass(frozen=True)
class Trial:
    """One configuration of a sweep: its full spec, and the values of the keys that the sweep varies."""

    spec: Train | UserProgram
    values: dict[str, Any]

    @cached_property
    def content(self) -> str:
        """The spec as canonical JSON without defaults, so that new config keys do not change identities."""
        if isinstance(self.spec, Train):
            return json.dumps(training_content(self.spec), sort_keys=True)
        content = self.spec.model_dump(mode="json", exclude_defaults=True)
        if self.spec.command is not None:  # the place of `{resume}` in a command changes no result
            content["command"] = insert_resume_option(self.spec.command, None, self.spec.args)
        return json.dumps(content, sort_keys=True)

    @property
    def settings(self) -> dict[str, Any]:
        """The nested mapping that contains the varied keys."""
        return self.spec.args if isinstance(self.spec, UserProgram) else self.spec.model_dump(mode="json")

    @property
    def epochs(self) -> int | None:
        """The number of epochs, if it is known."""
        return self.spec.epochs if isinstance(self.spec, Train) else None

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
    keys = {"grid": list(sweep.grid), "search": list(sweep.search.values) if sweep.search else []}
    malformed = [(place, key) for place, varied in keys.items() for key in varied if not VARIED_KEY.match(key)]
    if malformed:
        expansion.errors = [(place, ValueError(_malformed(key, sweep))) for place, key in malformed]
        return expansion
    for place, count in _counts(sweep).items():
        if count > MAX_TRIALS:
            message = f"has {min(count, 10**300):.3g} configurations; {MAX_TRIALS:,} are the limit"
            expansion.errors.append((place, ValueError(message)))
    if expansion.errors:
        return expansion
    for repeat, (place, values) in itertools.product(range(sweep.repeats_of_all), _configurations(sweep)):
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


def training_content(train: Train) -> dict[str, Any]:
    """The settings that identify the result of a training: without defaults, so that new keys change no identity.

    The defaults of `lr` and `weight_decay` are those of version 0.1.0, and its `ema_decay` held from the first step on.
    So a training that is another one today has another identity, and all others keep theirs.
    """
    content = identifying(train.model_dump(mode="json", exclude_defaults=True, exclude={"lr", "weight_decay"}))
    if train.lr != 0.1:
        content["lr"] = train.lr
    if train.used_weight_decay != 0:
        content["weight_decay"] = train.used_weight_decay
    if train.ema_decay is not None:
        content["ema_ramp"] = True
    return content


def training_spec(study: TrainScaling, run: str, dataset: str) -> dict[str, Any]:
    """Everything that changes the result of a run such as `4x2`; `study.train` is that of this run (`train_at`)."""
    return {
        "train": training_content(study.train),
        "mode": study.mode,
        "retrain": study.retrain,
        "scale": run,
        "dataset": dataset,
        "version": RESULT_VERSION,
    }


def _script_digest(study: ScriptScaling, dataset: str) -> str:
    what = study.model_dump(mode="json", include={"python", "args", "retrain"})
    what |= {"launcher": study.launcher_name, "script": study.program} | ({"env": study.env} if study.env else {})
    script = digest_of(what | ({"workdir": study.workdir} if study.workdir != "keep" else {}), length=10)
    return digest_of([script, digest_of([study.launcher_options, study.mode, dataset])], length=10)


def result_digest(study: Scaling, run: str, dataset: str) -> str:
    """The digest of a run of a scaling study, which its summary has as `spec_digest`."""
    if isinstance(study, ScriptScaling):
        return _script_digest(study, dataset)
    assert isinstance(study, TrainScaling)
    study = study.model_copy(update={"train": study.train_at(run)})
    return digest_of(training_spec(study, run, dataset), length=10)


def fit_digest(study: Trees, model: TreeModel, dataset: str) -> str:
    """The digest of a fitted model of a tree study."""
    seed = retrain = 0  # keys of earlier versions
    further = study.model_dump(mode="json", include={"early_stopping", "folds", "class_weights"}, exclude_none=True)
    what = [model, study.rounds, seed, study.given(model), retrain, dataset, RESULT_VERSION]
    return digest_of([*what, further] if further else what)


# ---- what a study trains


def trainings(study: Sweep | Scaling) -> list[Train]:
    """The configurations of a study's trainings: of all trials, or of the examples of a search."""
    if not isinstance(study, TrainSweep):
        return [study.train] if isinstance(study, TrainScaling) else []
    trials = [*expand(study).trials, *expand(study).examples]
    return [trial.spec for trial in trials if isinstance(trial.spec, Train)] or [study.train]


def tree_trials(sweep: Sweep) -> list[Trial]:
    """The trials of a sweep over tree models, or the examples of a search; none of another sweep."""
    if not isinstance(sweep, FunctionSweep) or sweep.function != TREE_TRIAL:
        return []
    return [*expand(sweep).trials, *expand(sweep).examples]


def published_weights(*studies: Sweep | Scaling) -> list[tuple[str, str]]:
    """Model and name of the weights of torchvision that the trainings of some studies start from."""
    named = [(spec.model, spec.pretrained) for study in studies for spec in trainings(study) if spec.pretrained]
    return sorted({(model, weights) for model, weights in named if is_published(weights)})


def early_end(spec: Train | UserProgram, metrics: Mapping[str, Any]) -> float | None:
    """The number of epochs after which `patience` ended a finished training; None if it did not."""
    trained = metrics.get("epoch")
    if not isinstance(spec, Train) or spec.patience is None or not trained or trained >= spec.epochs:
        return None
    return float(trained)


def full_seconds(spec: Train | UserProgram, seconds: float, metrics: Mapping[str, Any]) -> float:
    """The duration of a finished trial if it had trained all epochs, which one with `patience` may not have done.

    Predictions are made from these: how many epochs another trial trains is unknown, and all of them is the most.
    """
    trained = early_end(spec, metrics)
    return seconds * spec.epochs / trained if isinstance(spec, Train) and trained else seconds


def varied_keys(trials: list[Trial]) -> list[str]:
    """The keys that trials set, in order of first appearance."""
    return list(dict.fromkeys(key for trial in trials for key in trial.values))


def value_at(spec: dict[str, Any], key: str) -> Any:
    """The value of a dotted key in a nested mapping, or None."""
    for part in key.split("."):
        spec = spec.get(part) if isinstance(spec, dict) else None  # type: ignore[assignment]
    return spec


def values_by_key(sweep: Sweep) -> dict[str, list[Any]]:
    """The different values that the arguments of a program have in any trial, by dotted key, without expanding trials.

    Of a range that a search draws from, they are its two ends.
    """
    drawn = [part.values for part in (sweep.sample, sweep.search) if part]
    parts: list[Mapping[str, Any]] = [*([sweep.grid] if sweep.grid else []), *drawn]
    parts += [{key: [value] for key, value in trial.items()} for trial in sweep.trials]
    values = dict[str, dict[str, Any]]()  # by key, then by the text of the value
    for key, value in dotted_items(sweep.base):
        if not parts or any(key not in part for part in parts):
            values[key] = {repr(value): value}
    for part in parts:
        for key, choice in part.items():
            options = [choice.low, choice.high] if isinstance(choice, Uniform) else options_of(choice)
            for option in options:
                for inner, value in dotted_items({key: option}):
                    values.setdefault(inner, {})[repr(value)] = value
    return {key: list(different.values()) for key, different in values.items()}


def constant_keys(sweep: Sweep) -> frozenset[str]:
    """The keys that the config gives the same value in all trials, so that they tell no trials apart.

    None if this is true of all keys, as with a single trial. Trials are not expanded.
    """
    listed = [{key: [value] for key, value in values.items()} for values in sweep.trials]
    drawn = [part.values for part in (sweep.sample, sweep.search) if part]
    parts: list[Mapping[str, Any]] = [*([sweep.grid] if sweep.grid else []), *listed, *drawn]
    seeds = {sweep.seed_key or "": list(range(sweep.repeats))} if sweep.repeats > 1 else {}
    parts, keys = [{**part, **seeds} for part in parts], sweep.varied_keys
    found = {key: {text for part in parts for text in (_distinct(part[key]) if key in part else {""})} for key in keys}
    constant = [key for key, texts in found.items() if len(texts) == 1]
    return frozenset(constant if len(constant) < len(keys) else ())


def _distinct(choice: list[Any] | Choice | Range | Uniform) -> set[str]:
    """The different values of a key as text, or the two ends of a range."""
    if isinstance(choice, Uniform):
        return {repr(choice.low), repr(choice.high)}
    if isinstance(choice, Range):
        return set(map(repr, [choice.start, choice.stop][: choice.count]))
    return set(map(repr, options_of(choice)))


def count_configured(sweep: Sweep) -> int:
    """The number of trials that the config has, without expanding them; equal ones are counted several times."""
    return sum(_counts(sweep).values())


def _counts(sweep: Sweep) -> dict[str, int]:
    """The number of configurations in each part of the sweep."""
    lengths = (each.count if isinstance(each, Range) else len(options_of(each)) for each in sweep.grid.values())
    counts = {"grid": math.prod(lengths) if sweep.grid else 0, "trials": len(sweep.trials)}
    counts |= {"sample": sweep.sample.count} if sweep.sample else {}
    counts |= {"search": sweep.search.trials} if sweep.search else {}
    return {place: count * sweep.repeats_of_all for place, count in counts.items()}


def _configurations(sweep: Sweep) -> Iterator[tuple[str, dict[str, Any]]]:
    """Place in the config and values of the varied keys of each configuration of the sweep."""
    if sweep.grid:
        choices, conditions = [options_of(values) for values in sweep.grid.values()], _conditions(sweep.grid)
        for combination in itertools.product(*choices):
            yield "grid", _applicable(conditions, dict(zip(sweep.grid, combination, strict=True)))
    for index, values in enumerate(sweep.trials):
        yield f"trials.{index}", values
    if sweep.sample:
        generator, conditions = random.Random(sweep.sample.seed), _conditions(sweep.sample.values)
        for _ in range(sweep.sample.count):
            drawn = {key: _draw(generator, choice) for key, choice in sweep.sample.values.items()}
            yield "sample", _applicable(conditions, drawn)
    if sweep.search:
        yield from (("search", values) for values in _examples(sweep.search.values))
    if isinstance(sweep, ProgramSweep) and not (sweep.grid or sweep.trials or sweep.sample or sweep.search):
        yield "args", {}  # a single call


Conditions = Mapping[str, Mapping[str, list[Any]]]  # by key: the values of other keys with which it is used


def _conditions(varied: Mapping[str, GridValues | Draw]) -> Conditions:
    """The conditions of keys that have one."""
    return {key: condition for key, values in varied.items() if (condition := condition_of(values))}


def _applicable(conditions: Conditions, values: dict[str, Any]) -> dict[str, Any]:
    """The values of the keys whose condition holds; each key comes after those that it depends on."""
    if not conditions:
        return values
    found = dict[str, Any]()
    for key, value in values.items():
        if holds(conditions.get(key, {}), found):
            found[key] = value
    return found


def _examples(draws: Mapping[str, Draw]) -> Iterator[dict[str, Any]]:
    """Configurations in which each choice and both ends of each range occur."""
    ends, conditions = {key: _ends(choice) for key, choice in draws.items()}, _conditions(draws)
    for index in range(max(map(len, ends.values()))):
        yield _applicable(conditions, {key: choice[index % len(choice)] for key, choice in ends.items()})
    for key in conditions:
        for value in ends[key]:
            first = {each: choice[0] for each, choice in ends.items()}
            yield _applicable(conditions, first | _needed(conditions, key) | {key: value})


def _needed(conditions: Conditions, key: str) -> dict[str, Any]:
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
    return in_table(value, choice)


def in_table(value: float, choice: Uniform) -> float | int:
    """A drawn number as trials use it: an integer in the range, or six digits, so that tables show the exact value."""
    low, high = choice.ends
    return min(max(round(value), low), high) if choice.integer else float(f"{value:.6g}")


def _ends(choice: Draw) -> list[Any]:
    if isinstance(choice, Uniform):
        return [in_table(choice.low, choice), in_table(choice.highest, choice)]
    return options_of(choice)


def with_seed(sweep: Sweep, values: dict[str, Any], repeat: int) -> dict[str, Any]:
    """The values of a repeat of a configuration, from 0 on; unchanged if there is only this one."""
    is_alone = sweep.repeats == 1 and repeat == 0
    return values if is_alone else {**values, sweep.seed_key or "": sweep.first_seed + repeat}


def make_trial(sweep: Sweep, values: dict[str, Any]) -> Trial:
    """The trial of a sweep with these values of the varied keys.

    Raises:
        ValueError: the configuration is invalid; this includes Pydantic's ValidationError.
    """
    merged = dict(sweep.base)
    for key, value in values.items():
        if not VARIED_KEY.match(key):
            raise ValueError(_malformed(key, sweep))
        set_at(merged, key.split("."), value)
    spec = sweep.spec_of(merged)
    varied = {key.partition(".")[0] for key in values}
    if isinstance(spec, UserProgram):
        return Trial(spec, {key: value_at(spec.args, key) for key in values})
    settings = spec.model_dump(mode="json", include=varied)
    found = {key: value_at(settings, key) for key in values}
    if any(isinstance(value, dict) for value in found.values()):  # a section: as given, without its defaults
        given = spec.model_dump(mode="json", include=varied, exclude_defaults=True)
        found |= {key: value_at(given, key) or {} for key, value in found.items() if isinstance(value, dict)}
    return Trial(spec, found)


def _malformed(key: str, sweep: Sweep) -> str:
    name = re.split("[/@]", key.lstrip("+"))[-1]
    if isinstance(sweep, CommandSweep) and name != key and VARIED_KEY.match(name):  # as Hydra has them
        return f"{key!r} is not a key: write {name} here, and {key}={{{name}}} in the command"
    return f"{key!r} is not a key: write names joined by dots, as in model_args.blocks"


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
        cost = float(_compiled(expression)(trial.spec))
        if not math.isfinite(cost):
            raise ValueError(f"it is {cost:g}")
        return cost
    except (SyntaxError, TypeError, ValueError, ArithmeticError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else error
        values = ", ".join(f"{key} = {value!r}" for key, value in trial.values.items())
        which = f" for {values}" if values else ""
        raise CostError(f"{expression!r} cannot be evaluated{which}: {reason}") from None


Spec = Train | UserProgram
_OPERATORS: Final[dict[type[ast.AST], Callable[..., Any]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
    ast.USub: operator.neg,
}


@cache
def _compiled(expression: str) -> Callable[[Spec], Any]:
    """A function that computes the cost from a trial's spec; cached, since it is called for thousands of trials."""
    return _term(ast.parse(expression.strip(), mode="eval").body)


def _term(node: ast.AST) -> Callable[[Spec], Any]:
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        number = float(node.value)
        return lambda spec: number
    if isinstance(node, (ast.Name, ast.Attribute)):
        key = ast.unparse(node)
        return lambda spec: _number_at(spec, key)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        left, right, apply = _term(node.left), _term(node.right), _OPERATORS[type(node.op)]
        return lambda spec: apply(left(spec), right(spec))
    if isinstance(node, ast.UnaryOp) and type(node.op) in _OPERATORS:
        operand, apply = _term(node.operand), _OPERATORS[type(node.op)]
        return lambda spec: apply(operand(spec))
    raise TypeError(f"{ast.unparse(node)} is neither a number, a key nor one of + - * / **")


def _number_at(spec: Spec, key: str) -> float:
    found: Any = spec.args if isinstance(spec, UserProgram) else spec
    for part in key.split("."):
        inner = found if isinstance(found, dict) else vars(found) if isinstance(found, BaseModel) else {}
        if part not in inner:
            settings = spec.args if isinstance(spec, UserProgram) else spec.model_dump()
            known = dotted_items(settings)
            numbers = (name for name, value in known if isinstance(value, (int, float)) and not isinstance(value, bool))
            raise ValueError(f"there is no key {key!r}; {suggest(key, numbers)}")
        found = inner[part]
    if not isinstance(found, (int, float)):
        raise TypeError(f"{key} is {found!r}, not a number")
    return float(found)
