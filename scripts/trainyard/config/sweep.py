"""The section `sweeps` of the config: the trials of a sweep, their slots, search and early stopping."""

import itertools
import math
import re
import warnings
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from functools import cached_property
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Discriminator,
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    StringConstraints,
    Tag,
    TypeAdapter,
    model_validator,
)

from trainyard.config.command_lines import COMMAND, LINE, make_trials
from trainyard.config.metric_names import (
    DEFAULT_METRIC,
    DURATION,
    EPOCH_METRICS,
    MINIMIZED_IN_WORDS,
    TRAINING_METRICS,
    Mode,
    guess_mode,
    is_counter,
)
from trainyard.config.placeholders import (
    GPUS,
    PORT,
    TRIAL_PLACEHOLDERS,
    Command,
    check_quoting,
    dotted_items,
    insert_resume_option,
)
from trainyard.config.settings import SETTINGS, read_text
from trainyard.config.train import (
    PROFILE,
    FunctionPath,
    Name,
    ProfiledSteps,
    Section,
    Train,
    Training,
    hint,
    invalid,
    refuse,
)
from trainyard.config.trees import FIT_METRICS, ROUND_METRICS, Trees
from trainyard.config.user_programs import (
    GRACE_SECONDS,
    TIME_SPAN,
    CommandOptions,
    ProgramOptions,
    Study,
    UserProgram,
    code_digest,
    digest_of_code,
    seconds_of,
)
from trainyard.config.weights import identifying
from trainyard.utils.text import suggest

if TYPE_CHECKING:
    from optuna import samplers

Unit = Literal["GPU", "CPU"]

VariedKey = Annotated[
    str,
    StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z0-9_]+)*$"),  # a number is the index of a list
    hint(
        "write names joined by dots, as in model_args.blocks; of an option such as `--batch-size`, write `batch_size` "
        "here, and {args:dashes} in the command; of a key of Hydra such as `+net.k` or `db/opt`, write `net.k` here, "
        "and `+net.k={net.k}` in the command"
    ),
]

RESERVED_COLUMNS: Final = {"trial", "status", "attempts", "attempt", "seconds", "epoch"}  # of a sweep's tables


When = Annotated[
    dict[str, Any],
    Field(
        description="Use the key only in configurations with these values of other varied keys, each a value or a list "
        "of values, as in `{optimizer: sgd}`. Elsewhere it is left out.",
    ),
]


class Range(Section):
    """Evenly spaced numbers from `start` to `stop`, inclusive."""

    start: int | float = Field(description="First value.")
    stop: int | float = Field(description="Upper bound, inclusive.")
    step: int | float = Field(1, description="Distance between values.", gt=0)
    when: When = {}

    def _problems(self) -> Iterator[str]:
        if self.stop < self.start:
            yield f"stop ({self.stop}) is below start ({self.start})"

    @property
    def count(self) -> int:
        """The number of values."""
        start, stop, step = self._decimals
        return int((stop - start) / step + Decimal("1e-9")) + 1

    @property
    def _decimals(self) -> tuple[Decimal, Decimal, Decimal]:
        return Decimal(repr(self.start)), Decimal(repr(self.stop)), Decimal(repr(self.step))

    def values(self) -> list[int | float]:
        """All values in ascending order; integers stay integers, and 0.1 + 0.2 is 0.3."""
        start, _, step = self._decimals
        kind = int if isinstance(self.start, int) and isinstance(self.step, int) else float
        return [kind(start + index * step) for index in range(self.count)]


class Uniform(Section):
    """A uniform distribution over a range of numbers."""

    low: float = Field(description="Lower bound.")
    high: float = Field(description="Upper bound.")
    log: bool = Field(False, description="Draw on a logarithmic scale, as for learning rates.")
    integer: bool = Field(False, description="Round to integers.")
    step: PositiveFloat | None = Field(
        None, description="Distance between the values that can be drawn, from `low` on."
    )
    when: When = {}
    guess: float | None = Field(None, description="For `search`: the value of the first configuration.")

    def _problems(self) -> Iterator[str]:
        if self.step and self.log:
            yield "with log there is no step: give one of the two"
        if self.step and self.integer and (self.step % 1 or self.low % 1):
            yield "with integer, low and step must be integers"
        if self.guess is not None and not self.low <= self.guess <= self.high:
            yield f"guess ({self.guess}) is not from {self.low} to {self.high}"
        if self.high < self.low:
            yield f"high ({self.high}) is below low ({self.low})"
        if self.log and self.low <= 0:
            yield f"with log, low must be above 0, not {self.low}"
        if self.integer and math.floor(self.high) < math.ceil(self.low):
            yield f"there is no integer from {self.low} to {self.high}"
        if self.step and self.guess is not None:
            steps = (self.guess - self.low) / self.step
            if abs(steps - round(steps)) > 0.001:
                yield f"guess ({self.guess}) is not a step of {self.step} from {self.low}"

    @property
    def steps(self) -> int:
        """The number of steps from the lowest to the highest value; 0 without `step`."""
        return int((self.high - self.low) / self.step + 1e-9) if self.step else 0

    @property
    def highest(self) -> float:
        """The highest value that can be drawn."""
        return self.low + self.steps * self.step if self.step else self.high

    @property
    def ends(self) -> tuple[float, float]:
        """The lowest and the highest value that can be drawn."""
        return (math.ceil(self.low), math.floor(self.highest)) if self.integer else (self.low, self.highest)

    def in_table(self, value: float) -> float | int:
        """A drawn number as trials use it: an integer in the range, or six digits, so that tables show it exactly."""
        low, high = self.ends
        return min(max(round(value), low), high) if self.integer else float(f"{value:.6g}")

    @property
    def count(self) -> float:
        """How many values can be drawn; infinite for a range of real numbers."""
        if self.step:
            return self.steps + 1
        return self.ends[1] - self.ends[0] + 1 if self.integer else math.inf


_SEED: Final = re.compile(r"(?:(?:manual|random|rng|global)_?)?seed|random_state|seed_everything", re.IGNORECASE)


def is_seed(key: str) -> bool:
    """Whether a key is the random seed: `seed`, `manual_seed`, or a nested one such as `trainer.seed`."""
    return _SEED.fullmatch(key.rpartition(".")[2]) is not None


def _kind_of_values(value: Any) -> str:
    if isinstance(value, Choice) or (isinstance(value, dict) and "choices" in value):
        return "choices"
    return "mapping" if isinstance(value, (dict, BaseModel)) else "list"


# A number with a misplaced exponent, sign or space, such as 1-e4 or 1e--4: but not 10-20, 1.2.3, 2024-01-01 or 5e.
_MISTYPED: Final = re.compile(r"(?=.*[-+ ])[-+]?[0-9.]+[-+ ]*[eE][-+ ]*[0-9.]*")


def _check_numbers(values: list[Any]) -> list[Any]:
    """The values of a key; raises a PydanticCustomError if a mistyped number, which is text, is among numbers."""
    if any(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values):
        for text in values:
            if isinstance(text, str) and _MISTYPED.fullmatch(text):
                raise invalid(f"{text!r} is among numbers, but is text: correct it, or write all of them in quotes")
    return values


def _check_numbers_of_trials(trials: list[dict[str, Any]]) -> list[dict[str, Any]]:
    for key in dict.fromkeys(key for values in trials for key in values):
        _check_numbers([values[key] for values in trials if key in values])
    return trials


Choices = Annotated[list[Any], Field(min_length=1), AfterValidator(_check_numbers)]


class Choice(Section):
    """A list of values, with more to say about them than a plain list has room for."""

    choices: Choices = Field(description="The values, which can be mappings: whole sections of a configuration.")
    when: When = {}
    guess: Any = Field(None, description="For `search`: the value of the first configuration.")

    def _problems(self) -> Iterator[str]:
        if self.guess is not None and self.guess not in self.choices:
            yield f"guess ({self.guess}) is not among the choices"


def _is_flat(value: Any) -> bool:
    """Whether a value is a mapping whose values can be columns."""
    is_flat = isinstance(value, dict) and not any(isinstance(inner, dict) for inner in value.values())
    return is_flat and bool(value) and all(isinstance(key, str) and key.isidentifier() for key in value)


GridValues = Annotated[
    Annotated[Choices, Tag("list")] | Annotated[Choice, Tag("choices")] | Annotated[Range, Tag("mapping")],
    Discriminator(_kind_of_values),
]
Draw = Annotated[
    Annotated[Choices, Tag("list")] | Annotated[Choice, Tag("choices")] | Annotated[Uniform, Tag("mapping")],
    Discriminator(_kind_of_values),
]


def options_of(values: list[Any] | Choice | Range) -> list[Any]:
    """The values that a key can have."""
    if isinstance(values, list):
        return values
    return values.choices if isinstance(values, Choice) else values.values()


def ends_of(values: list[Any] | Choice | Range | Uniform) -> list[Any]:
    """The two ends of a range that is drawn from, as trials have them; else, all values that the key can have."""
    return [*map(values.in_table, values.ends)] if isinstance(values, Uniform) else options_of(values)


def condition_of(values: list[Any] | Choice | Range | Uniform) -> dict[str, list[Any]]:
    """The values of other keys with which a key is used, by key; empty if it always is."""
    when = {} if isinstance(values, list) else values.when
    return {key: allowed if isinstance(allowed, list) else [allowed] for key, allowed in when.items()}


def holds(condition: Mapping[str, list[Any]], values: Mapping[str, Any]) -> bool:
    """Whether a key with this condition is used beside these values, which lack what is not used."""
    return all(key in values and values[key] in allowed for key, allowed in condition.items())


def _order_by_conditions(varied: dict[str, Any]) -> dict[str, Any]:
    """The keys of a sweep, each after those that its condition names; checks the conditions."""
    ordered = dict[str, Any]()
    conditions = {key: condition_of(values) for key, values in varied.items()}
    for key, condition in conditions.items():
        for other, allowed in condition.items():
            if other not in varied:
                known = ", ".join(each for each in varied if each != key)
                raise invalid(f"{key} depends on {other}, which is not one of the keys here: {known}")
            of_other = varied[other]
            options = [] if isinstance(of_other, Uniform) else options_of(of_other)
            wrong = [value for value in allowed if value not in options]
            if wrong:
                raise invalid(f"{key} depends on {other}: {wrong[0]}, but {other} is never {wrong[0]}")
    while len(ordered) < len(varied):
        ready = [key for key in varied if key not in ordered and conditions[key].keys() <= ordered.keys()]
        if not ready:
            key = next(key for key in varied if key not in ordered)
            raise invalid(f"{key} depends on itself")
        ordered |= {key: varied[key] for key in ready}
    return ordered


Grid = Annotated[dict[VariedKey, GridValues], AfterValidator(_order_by_conditions)]
Draws = Annotated[dict[VariedKey, Draw], Field(min_length=1), AfterValidator(_order_by_conditions)]

_DRAWS: Final = (
    "For each key, a list of choices, a range `{low: , high: , log: , integer: , step: }`, or one of these with a "
    "condition: `{low: 0, high: 0.99, when: {optimizer: sgd}}`, `{choices: [], when: {}}`."
)


class Sample(Section):
    """Random configurations, drawn from a seed."""

    count: PositiveInt = Field(description="Number of configurations.")
    values: Draws = Field(description=_DRAWS)
    seed: int = Field(0, description="Random seed.")


class Search(Section):
    """Search with Optuna: each configuration is drawn from the results of the previous ones."""

    method: Literal["tpe", "gp", "cmaes", "nsgaii", "nsgaiii", "qmc", "random", "brute_force"] = Field(
        "tpe",
        description="[Optuna's sampler](https://optuna.readthedocs.io/en/stable/reference/samplers/). `tpe`: for all "
        "kinds of values and many trials; `gp`: a Gaussian process, for few expensive trials; `cmaes`: for correlated "
        "numbers; `nsgaii`, `nsgaiii`: genetic; `qmc`: evenly spread; `random`; `brute_force`: every configuration.",
    )
    options: dict[str, bool | int | float | str] = Field(
        {},
        description="Arguments of the sampler, such as `{n_startup_trials: 20}` for `tpe`, as Optuna has them.",
    )
    trials: PositiveInt = Field(description="Number of configurations that it draws.")
    values: Draws = Field(description=_DRAWS)
    seed: int = Field(0, description="Random seed.")

    def _problems(self) -> Iterator[str]:
        for key, values in self.values.items():
            if self.method == "brute_force" and isinstance(values, Uniform) and not (values.step or values.integer):
                yield f"brute_force cannot run every value of {key}: give a list, step or integer"
        if self.options:
            yield from self._problems_of_options()

    def _problems_of_options(self) -> Iterator[str]:
        """The options must be arguments of Optuna's sampler."""
        parameters = signature(self._sampler_class()).parameters.values()
        options = {each.name: each for each in parameters if _SCALAR.fullmatch(str(each.annotation))}
        options.pop("seed", None)
        for name in self.options.keys() - options.keys():
            yield f"{self.method} has no option {name}; {suggest(name, options)}"
        for name, value in self.options.items():
            kind = options[name].annotation
            if not TypeAdapter(kind).validator.isinstance_python(value, strict=True):
                yield f"{name}: {value!r} is of another type: give {kind}"
        try:
            self.sampler(0)
        except (TypeError, ValueError) as error:
            yield str(error)

    @property
    def learns(self) -> bool:
        """Whether it learns from trials that it has not drawn."""
        return self.method in ("tpe", "gp")

    @property
    def is_adaptive(self) -> bool:
        """Whether it draws near the best results, which are too good by chance."""
        return self.method not in ("qmc", "random", "brute_force")

    def sampler(self, seed: int) -> "samplers.BaseSampler":
        """Optuna's sampler; what its versions set differently by default is set here."""
        defaults: dict[str, dict[str, Any]] = {
            # Trials run side by side; keys with a condition have a joint distribution of their own.
            "tpe": {"constant_liar": True, "multivariate": True, "group": any(map(condition_of, self.values.values()))},
            "gp": {"warn_independent_sampling": False},
            "cmaes": {"warn_independent_sampling": False},
            "qmc": {"warn_independent_sampling": False, "scramble": True},
        }
        options = {"seed": seed, **defaults.get(self.method, {}), **self.options}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # which of them are experimental
            return self._sampler_class()(**options)  # type: ignore[no-any-return]

    def _sampler_class(self) -> type[Any]:
        from optuna import samplers  # takes a third of a second

        return getattr(samplers, _SAMPLERS[self.method])  # type: ignore[no-any-return]


_SAMPLERS: Final = {  # Optuna's
    "tpe": "TPESampler",
    "gp": "GPSampler",
    "cmaes": "CmaEsSampler",
    "nsgaii": "NSGAIISampler",
    "nsgaiii": "NSGAIIISampler",
    "qmc": "QMCSampler",
    "random": "RandomSampler",
    "brute_force": "BruteForceSampler",
}
_SCALAR: Final = re.compile(r"(bool|int|float|str)( \| None)?")  # the type of what YAML can give


class Mean(Section):
    """The mean over the last epochs of a trial."""

    mean: PositiveInt = Field(description="Their number.")


def _check_score(value: Any) -> Any:
    count = value.get("mean") if isinstance(value, dict) and len(value) == 1 else None
    if value in ("last", "best") or isinstance(value, Mean) or (type(count) is int and count > 0):
        return value
    raise invalid(f"{value!r} is not valid; use last, best or, say, {{mean: 3}}")


Score = Literal["last", "best"] | Mean


class Stop(Section):
    """Early stopping: ends trials whose metric is worse than in other trials at the same epoch."""

    method: Literal["asha", "hyperband", "median"] = Field(
        description="`asha`: at epochs `grace_period`, `grace_period` x `reduction_factor`, ... a trial continues only "
        "if it is in the best 1/`reduction_factor` of the trials that have reached this epoch, or the best of them if "
        "that is less than one trial (Li et al. 2020); one that does not report this epoch is judged at its first "
        "report after it. `hyperband`: `asha` in brackets, in each of which trials are first compared one such epoch "
        "later than in the one before; it needs `epochs`. `median`: from `grace_period` on, a trial ends if its best "
        "value is worse than the median of the other trials' running means at this epoch (Golovin et al. 2017), of at "
        "least five."
    )
    grace_period: PositiveInt = Field(1, description="Epochs before a trial can be stopped.")
    reduction_factor: int = Field(
        3, ge=2, description="For `asha` and `hyperband`: inverse of the fraction of trials that continue."
    )
    epochs: PositiveInt | None = Field(None, description="Epochs of a complete trial, for savings; known for `train`.")

    def is_last(self, epoch: float, first: float) -> bool:
        """Whether a trial is complete after this epoch, if it began with the `first`. Many programs count from 0."""
        return self.epochs in (epoch, epoch + (first == 0))

    def rule(self, metric: str, mode: Mode, score: Score = "last") -> dict[str, Any]:
        """What decides whether a trial is stopped before its last epoch, as the journal records it."""
        rule = self.model_dump(include={"method", *_OF_RULE[self.method]}) | {"metric": metric, "mode": mode}
        return rule if score == "last" or self.method == "median" else rule | {"score": str(score)}


_OF_RULE: Final = {  # the keys that decide
    "asha": ("grace_period", "reduction_factor"),
    "hyperband": ("grace_period", "reduction_factor", "epochs"),
    "median": ("grace_period",),
}


MAX_JOBS: Final = 100
MAX_SLOTS: Final = 100_000  # of a job


_NO_AUTO: Final = "auto is no longer a value: give the most jobs, and a goal, which chooses their number"


def _problem_of_share(value: Any) -> str:
    if value == 0:
        return "must be above 0: for trials without GPUs, give the cpus of the job instead"
    if value == "auto":
        return "is no longer measured: give a number, such as 0.5"
    if isinstance(value, float) and value > 1 and value % 1:
        return "above one GPU, gpus_per_trial must be a whole number of GPUs"
    return ""


class Slots(Section):
    """The resources of a sweep's jobs, and how trials share them."""

    jobs: Annotated[int, refuse(lambda value: _NO_AUTO if value == "auto" else "")] = Field(
        1,
        ge=1,
        le=MAX_JOBS,
        description="Jobs of the sweep, at most: each takes the next trial. The sweep begins with the first that "
        "starts, and a job that finds nothing to take ends at once. With a `goal`, their number is chosen.",
    )
    gpus_per_node: int = Field(
        1,
        ge=0,
        le=MAX_SLOTS,
        description="GPUs per node; on a machine without GPUs, slots on CPUs. `0`: the job requests no GPU, and trials "
        "see none.",
    )
    cpus: int = Field(
        1,
        ge=1,
        le=MAX_SLOTS,
        description="CPUs of a job without GPUs (`gpus_per_node: 0`, which need not be given then), of which each "
        "trial has `cpus_per_trial`. With GPUs, their number follows from that of the trials that run at a time.",
    )
    gpus_per_trial: Annotated[float, refuse(_problem_of_share)] = Field(
        1.0,
        ge=0.01,
        description="GPUs per trial: a fraction (0.25: four trials share a GPU), or a whole number, at most "
        "`gpus_per_node`: the GPUs of a training by `train` share its batch, with DDP.",
    )
    nodes_per_trial: int = Field(
        1,
        ge=1,
        le=MAX_SLOTS,
        description="Nodes per trial, for `train`: a training has a rank on each GPU of all of them, as at scale `2x4` "
        "of a study. A job has the nodes of one trial, with `gpus_per_node` each.",
    )
    cpus_per_trial: PositiveInt = Field(1, description="CPUs, and therefore threads, per trial, on each of its nodes.")
    mps: Annotated[Literal["off", "auto"], BeforeValidator(lambda value: "off" if value is False else value)] = Field(
        "off",
        description="NVIDIA's Multi-Process Service, with which kernels of trials that share a GPU run at the same "
        "time: `off`, or `auto`: it is started with the job and ended with it, where a node has "
        "`nvidia-cuda-mps-control`.",
    )

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, content: Any) -> Any:
        """Without GPUs, a job has the CPUs of one trial or more. `nodes: 1`, as in earlier configs, changes nothing."""
        if not isinstance(content, dict):
            return content
        if content.get("nodes") == 1:
            content = {key: value for key, value in content.items() if key != "nodes"}
        if "cpus" in content:
            return {"gpus_per_node": 0, **content}
        return {"cpus": content.get("cpus_per_trial", 1), **content} if content.get("gpus_per_node") == 0 else content

    def _problems(self) -> Iterator[str]:
        """Check that no key divides GPUs that are not requested, or gives the number of slots a second time."""
        keys = self.model_fields_set - ({"mps"} if self.mps == "off" else set())
        of_gpus = [key for key in ("gpus_per_trial", "mps") if key in keys]
        if not self.has_gpus and of_gpus:
            yield f"{of_gpus[0]} is about GPUs, but gpus_per_node is 0: remove it, and give cpus"
        if self.has_gpus and "cpus" in self.model_fields_set:
            yield "cpus is for jobs without GPUs; with GPUs, give gpus_per_node and cpus_per_trial"
        if not self.has_gpus and self.cpus % self.cpus_per_trial:
            yield f"trials of {self.cpus_per_trial} CPUs cannot share {self.cpus} evenly: give a multiple"
        if self.nodes_per_trial > 1 and (not self.has_gpus or "gpus_per_trial" in keys):
            remedy = "give gpus_per_node, not gpus_per_trial"
            yield f"a trial takes all GPUs of its {self.nodes_per_trial} nodes: {remedy}"
        if self.node_share > self.gpus_per_node:
            yield f"a trial of {self.gpus_per_trial} GPUs does not fit a node of {self.gpus_per_node}"

    @property
    def has_gpus(self) -> bool:
        """Whether trials run on GPUs; without a GPU on the machine, on CPUs that stand for them."""
        return self.gpus_per_node > 0

    @property
    def node_share(self) -> float:
        """GPUs per trial on each of its nodes."""
        if not self.has_gpus:
            return 0.0
        if self.nodes_per_trial > 1:
            return float(self.gpus_per_node)
        return self.gpus_per_trial

    @property
    def share(self) -> float:
        """GPUs per trial, on all of its nodes."""
        return self.nodes_per_trial * self.node_share

    @property
    def ranks(self) -> int:
        """The ranks of a training by `train`: one per GPU of a trial."""
        return max(1, int(self.share))

    @property
    def scale(self) -> str:
        """The scale of a study, such as `2x4`, at which `train` trains a trial."""
        return f"{self.nodes_per_trial}x{self.ranks // self.nodes_per_trial}"

    @property
    def uses_mps(self) -> bool:
        """Whether trials share a GPU through MPS, where a node has it."""
        return self.has_gpus and self.mps == "auto" and self.share < 1

    @property
    def count(self) -> int:
        """Slots of a job; with several nodes per trial, all nodes together are one."""
        if not self.has_gpus:
            return self.cpus // self.cpus_per_trial
        if self.node_share >= 1:
            return self.gpus_per_node // int(self.node_share)
        return self.gpus_per_node * int(1 / self.node_share + 1e-9)

    @property
    def cpus_per_node(self) -> int:
        """CPUs per node, for as many trials as can run at the same time."""
        return self.count * self.cpus_per_trial

    @property
    def gpus(self) -> int:
        """GPUs of a job, on all of its nodes."""
        return self.nodes_per_trial * self.gpus_per_node

    @property
    def unit(self) -> Unit:
        """What the job is charged for: GPUs, whose price includes their CPUs, or without GPUs, CPUs."""
        return "GPU" if self.has_gpus else "CPU"

    @property
    def units(self) -> int:
        """The number of GPUs of the job; without GPUs, of CPUs."""
        return self.gpus if self.has_gpus else self.cpus

    @property
    def units_per_trial(self) -> float:
        """GPUs per trial; without GPUs, CPUs."""
        return self.share if self.has_gpus else float(self.cpus_per_trial)


def _auto_slots(value: Any) -> Any:
    return {"gpus_per_node": AUTO_GPUS} if value == "auto" else value


AUTO_GPUS = 8  # limit of `slots: auto`: the usual number of GPUs of a node
AUTO_CPUS = 8  # the same for trees
Goal = Annotated[
    str,
    StringConstraints(pattern=rf"^(fastest|cheapest|deadline {TIME_SPAN})$"),
    hint("use fastest, cheapest or, say, deadline 2h"),
]


def _check_time(until: str) -> str:
    try:
        datetime.fromisoformat(until)
    except ValueError:
        raise invalid(f"{until!r} is no date and time: write it as 2026-12-01 08:00") from None
    return until


class Budget(Section):
    """What a sweep may use: a trial starts only if it is predicted to end within it.

    Trials that still run when it is reached save a checkpoint and end, and the sweep ends with the results that it has.
    With a larger budget, the same command goes on.
    """

    gpu_hours: PositiveFloat | None = Field(
        None,
        description="GPU-hours of all jobs of the sweep, from the start of each to its end, as Slurm charges them: "
        "start-up, idle GPUs, failed trials and earlier runs count. In a sweep without GPUs, CPU-hours.",
    )
    hours: PositiveFloat | None = Field(None, description="Hours from the start of the first job.")
    until: Annotated[str, BeforeValidator(str), AfterValidator(_check_time)] | None = Field(
        None, description="Date and time, such as `2026-12-01 08:00`; without an offset, in the time zone of the nodes."
    )

    def _problems(self) -> Iterator[str]:
        if not (self.gpu_hours or self.hours or self.until):
            yield "has no limit: give gpu_hours, hours or until"

    @property
    def unit_seconds(self) -> float:
        """GPU-seconds (in a sweep without GPUs, CPU-seconds) of all jobs; infinite without a limit."""
        return math.inf if self.gpu_hours is None else 3600 * self.gpu_hours

    def end_time(self, first_start: float) -> float:
        """When all jobs must end, in Unix seconds, if the first has started at this time; infinite without a limit."""
        hours = math.inf if self.hours is None else first_start + 3600 * self.hours
        return min(hours, math.inf if self.until is None else datetime.fromisoformat(self.until).timestamp())


class MetricLimits(Section):
    """The values that a metric may have."""

    min: float | None = Field(None, description="Least value.")
    max: float | None = Field(None, description="Largest value.")

    def _problems(self) -> Iterator[str]:
        if self.min is None and self.max is None:
            yield "has no limit: give min or max"
        if self.min is not None and self.max is not None and self.max < self.min:
            yield f"max ({self.max}) is below min ({self.min})"

    def excess(self, value: float) -> float:
        """By how much a value is outside of the limits: at most 0 within them, infinite for NaN."""
        if math.isnan(value):
            return math.inf
        above = -math.inf if self.max is None else value - self.max
        return max(above, -math.inf if self.min is None else self.min - value)

    def __str__(self) -> str:
        """In words, as `at most 40000`."""
        limits = {"at least": self.min, "at most": self.max}
        return " and ".join(f"{words} {limit:g}" for words, limit in limits.items() if limit is not None)


Keep = Annotated[
    str, StringConstraints(pattern=r"^(all|metrics|best [1-9][0-9]*)$"), hint("use all, metrics or, say, best 5")
]


_NO_METRICS: Final = "names the metric that ranks trials; a mapping with pattern or file is `metrics`"
_NO_MAPPING: Final = "is one number, for all trials of the sweep, not a mapping"


class Sweep(Study):
    """A named set of trials: the union of `grid`, `trials`, `sample` and `search`, without duplicates.

    A trial runs Trainyard's training loop (`train`), fits trees (`trees`), or runs a `command` or a Python `function`.
    """

    kind: ClassVar[str]  # the key of the config that a sweep of this kind has
    resumption: ClassVar[str] = ""  # what an interrupted trial does next; "" if its program decides
    saves_by_itself: ClassVar[bool] = True  # not only if its program does
    resume_remedy: ClassVar[str] = ""  # for trials that are too long for a job
    report_remedy: ClassVar[str] = ""  # for a metric that they do not report

    dataset: Name | None = Field(None, description="One of `datasets`. Optional for your own program.")
    grid: Grid = Field(
        {},
        description="All combinations: for each key of `train`, `trees` or `args` (dots for nested keys), a list or a "
        "range `{start: , stop: , step: }`; with a condition `{choices: [], when: {optimizer: sgd}}`. Values that "
        "belong together are a list of mappings, `model: [{name: vit, lr: 0.001}, ...]`.",
    )
    trials: Annotated[list[dict[VariedKey, Any]], AfterValidator(_check_numbers_of_trials)] = Field(
        [], description="List of configurations, each a mapping of such keys."
    )
    sample: Sample | None = Field(None, description="Random configurations.")
    search: Search | None = Field(
        None, description="Hyperparameter search, after the trials of `grid`, `trials` and `sample`."
    )
    stop: Stop | None = Field(None, description="Early stopping.")
    metric: Annotated[str | None, refuse(lambda value: _NO_METRICS if isinstance(value, dict) else "")] = Field(
        None,
        description="The metric by which `search`, `stop`, plots and tables compare trials, and `patience` epochs. By "
        "default `val_accuracy`; for a program without `search` and `stop`, also the only metric that it reports "
        "beside counters such as `step` and `lr`. If it reports several, set this.",
    )
    mode: Mode | None = Field(
        None,
        description="Whether a larger or a smaller `metric` is better. By default `min` for "
        f"{MINIMIZED_IN_WORDS}, and `max` for all others.",
    )
    score: Annotated[Score, BeforeValidator(_check_score, json_schema_input_type=Score)] = Field(
        "last",
        description="Which of its epochs a trial counts by, in all tables, `search` and `stop`: the `last` one; the "
        "`best` one by `metric`, which also gives the values of `objectives` and `constraints`; or, as `{mean: 3}`, "
        "the mean of the last three values.",
    )
    objectives: dict[str, Mode] = Field(
        {},
        description="Several metrics to optimize, each with its mode, as in `{val_accuracy: max, latency_ms: min}`: "
        "the answer is their Pareto front. `seconds` is the duration of a trial. The first one is the default of "
        "`metric`, by which `stop` compares trials.",
    )
    constraints: dict[str, MetricLimits] = Field(
        {},
        description="Limits of metrics, as in `{peak_mib: {max: 40000}}`. A configuration beyond them is never the "
        "best. `tpe`, `gp`, `nsgaii` and `nsgaiii` search within them.",
    )
    slots: Annotated[Slots, BeforeValidator(_auto_slots, json_schema_input_type=Slots | Literal["auto"])] = Field(
        Slots(),
        description="Resources of the job, or `auto`: 1 to 8 GPUs of a node (for `trees`, CPUs), "
        "with the `goal` `fastest`.",
    )
    goal: Goal | None = Field(
        None,
        description="Chooses the number of jobs and of their GPUs, up to those of `slots`. `fastest`: the fewest "
        "GPU-hours among all that take at most 5 % longer than the fastest; `cheapest`: the fastest among all that "
        "need at most 2 % more GPU-hours than the cheapest; `deadline 2h` (`min`, `h`, `d`): the cheapest that meets "
        "the deadline. It decides only what is requested; `budget` ends the sweep. With `cheapest`, its end is such a "
        "deadline.",
    )
    average: list[str] = Field(
        [],
        description="Varied keys that are no settings, such as `[env_id, fold]`: a configuration runs at all of their "
        "values and counts by the mean over them, as over seeds. Beside `trials`, `sample` or `search`, a `grid` of "
        "these keys alone gives their values.",
    )
    repeats: Annotated[int, Field(ge=1, le=10_000)] = Field(
        1,
        description="Trials of each configuration, with the seeds `seed`, `seed` + 1, ...: first all configurations "
        "once, then again. A search draws each configuration from the means of the others.",
    )
    repeat_best: PositiveInt | None = Field(
        None,
        description="Run each configuration once, and only as many of the best, once all have ended, with the other "
        "seeds of `repeats`. In a search by `tpe` or another method that draws near the best, the first run of a "
        "repeated configuration, which chance may have selected, does not count.",
    )
    budget: Budget | None = Field(None, description="What the sweep may use.")
    retries: NonNegativeInt = Field(1, description="Maximum number of further attempts for a failed trial.")
    max_failed_fraction: float = Field(
        0.5,
        description="Maximum fraction of trials that fail after all retries, above which the sweep ends with an error. "
        "`0`: a single failed trial is an error; `1`: run all trials, regardless of failures. Trials that run out of "
        "GPU memory do not count.",
        ge=0,
        le=1,
    )
    cost: str | None = Field(
        None,
        max_length=1000,
        description="Relative cost of a trial: an arithmetic expression on keys, e.g. `epochs * model_args.blocks`. "
        "Trials start in descending order of cost, and all durations are predicted once the first trial has finished.",
    )
    retrain: Annotated[NonNegativeInt, refuse(lambda value: _NO_MAPPING if isinstance(value, dict) else "")] = Field(
        0, description="Increase to train all trials again."
    )

    @model_validator(mode="before")
    @classmethod
    def _set_goal_and_metric(cls, content: Any) -> Any:
        if isinstance(content, dict) and content.get("slots") == "auto":
            content = {"goal": "fastest", **content}
        objectives = content.get("objectives") if isinstance(content, dict) else None
        if not isinstance(objectives, dict) or not objectives:
            return content
        metric = content.get("metric") or next(iter(objectives))
        mode = objectives.get(metric) if isinstance(metric, str) else None
        return {**({"mode": mode} if mode in ("min", "max") else {}), **content, "metric": metric}

    def _problems(self) -> Iterator[str]:
        yield from self._problems_of_objectives()
        stop = self.stop
        if stop and stop.method == "hyperband" and stop.grace_period > (stop.epochs or self.epochs_of_all):
            yield "hyperband needs the `epochs` of a complete trial, which are not fewer than grace_period"
        yield from self._problems_of_repeats()
        yield from self._problems_of_average()
        if twice := self.paired.keys() & self.grid.keys():
            column = min(twice)
            yield f"grid has {column}, which the mappings of {self.paired[column]} have: give one of the two"

    def _problems_of_objectives(self) -> Iterator[str]:
        if self.objectives:
            names = ", ".join(f"{name}: {mode}" for name, mode in self.objectives.items())
            if len(self.objectives) == 1:
                yield f"{names} is only one: give metric and mode"
            if (self.metric, self.mode) not in self.objectives.items():
                metric = f"{self.metric}: {self.mode}" if self.mode else self.metric
                yield f"metric is {metric}, which is not among the objectives: {names}"
        unable = "several objectives" if self.objectives else "constraints"
        if self.search and self.search.method == "cmaes" and (self.objectives or self.constraints):
            yield f"cmaes cannot search with {unable}; tpe, gp, nsgaii and nsgaiii can"

    def _problems_of_repeats(self) -> Iterator[str]:
        if self.repeat_best and self.repeats == 1:
            yield f"repeat_best: {self.repeat_best} needs the number of seeds, such as repeats: 3"
        if self.repeats > 1:
            if varied := [key for key in self._keys_of_parts if is_seed(key)]:
                yield f"repeats varies the seed, as {varied[0]} does: give one of the two"
            if self.seed_key is None:
                remedy = "give args: {seed: 0}, and {seed} or {args} in a command"
                yield f"repeats needs your program's seed: {remedy}"
            if not isinstance(self.first_seed, int):
                counted = f"counts the seeds from {self.seed_key}, which is {self.first_seed!r}"
                yield f"repeats {counted}: give a whole number"

    def _problems_of_average(self) -> Iterator[str]:
        drawn = [part.values for part in (self.sample, self.search) if part]
        in_grid = (self.grid.keys() | self.paired.keys()).intersection(self.average)
        for key in self.average:
            if is_seed(key):
                yield f"average: trials that differ in {key} are one configuration anyway: remove it"
            if key not in self._keys_of_parts:
                yield f"average: {key} is no varied key; {suggest(key, self._keys_of_parts)}"
            is_listed = key in self.grid or not (drawn or in_grid)
            if (
                not (is_listed and self.averaged)
                or condition_of(self.grid.get(key, []))
                or any(key in of for of in drawn)
            ):
                yield f"average: each configuration needs all values of {key}: give them as a list in `grid`"
        for number, values in enumerate(self.trials):
            level = {key: values[key] for key in self.average if key in values}
            if level and level not in self.averaged:
                which = ", ".join(f"{key} = {values[key]}" for key in level)
                keys = ", ".join(self.average)
                remedy = f"give a value that all configurations have of each of {keys}, or of none"
                yield f"average: trials.{number} has {which}: {remedy}"
        if self.average and self.stop:
            yield "average: stop compares each trial with all others, also at other values: give one of the two"

    @cached_property
    def averaged(self) -> list[dict[str, Any]]:
        """The values of the keys of `average` at which each configuration runs; a single {} without such keys."""
        if self.grid.keys() >= set(self.average):
            options = itertools.product(*(options_of(self.grid[key]) for key in self.average))
            levels = [dict(zip(self.average, values, strict=True)) for values in options]
        else:
            whole = [values for values in self.trials if values.keys() >= set(self.average)]
            levels = [{key: values[key] for key in self.average} for values in whole]
        return list({str(level): level for level in levels}.values())

    def is_setting(self, key: str) -> bool:
        """Whether configurations differ in a varied key; in the others, their trials do."""
        return not is_seed(key) and key not in self.average

    @property
    def runs_grid(self) -> bool:
        """Whether the grid makes trials, and not only gives the values of `average`."""
        has_others = self.trials or self.sample or self.search
        return bool(self.grid) and not (has_others and self.grid.keys() <= set(self.average))

    @property
    def seed_key(self) -> str | None:
        """The key of the random seed."""
        return "seed"

    @property
    def first_seed(self) -> Any:
        """The seed of the first trial of each configuration."""
        return dict(dotted_items(self.base)).get(self.seed_key or "", 0)

    @property
    def repeats_of_all(self) -> int:
        """Trials of each configuration, whatever its result."""
        return 1 if self.repeat_best else self.repeats

    @property
    def trials_of_each(self) -> int:
        """Trials of each configuration that a search draws."""
        return self.repeats_of_all * len(self.averaged)

    @property
    def draw_count(self) -> int:
        """The trials that a search draws; 0 without a search."""
        return self.search.trials * self.trials_of_each if self.search else 0

    @property
    def distinct_draw_count(self) -> int:
        """How many of them are different, at most."""
        draws = self.search.values.values() if self.search else ()
        counts = (each.count if isinstance(each, Uniform) else len(options_of(each)) for each in draws)
        return int(min(self.draw_count, math.prod(counts, start=1.0) * self.trials_of_each))

    def _problems_of_metrics(self, *, final: Sequence[str], epoch: Sequence[str]) -> Iterator[str]:
        """What judges trials must be among the metrics of a whole trial, or with `stop` of an epoch."""
        judged = [self.target[0], *self.objectives, *self.constraints]
        wanted: list[tuple[str | None, Sequence[str], str]]
        wanted = [(metric, (*final, DURATION), "trial") for metric in judged]
        wanted += [(self.target[0], epoch, "epoch")] if self.stop else []
        for metric, known, what in wanted:
            if metric and metric not in known:
                yield f"metric is {metric}, which no {what} reports; known: {', '.join(known)}"

    @property
    @abstractmethod
    def base(self) -> dict[str, Any]:
        """The settings that all trials have in common, before keys are varied."""

    @abstractmethod
    def spec_of(self, settings: dict[str, Any]) -> Training | Trees | UserProgram:
        """What a trial with these settings runs; a ValueError (such as Pydantic's) if they are not valid."""

    @property
    @abstractmethod
    def spec_content(self) -> dict[str, Any]:
        """Everything that all trials have in common and that changes their results."""

    @property
    def can_resume(self) -> bool:
        """Whether an interrupted trial resumes from a checkpoint instead of starting again."""
        return True

    @property
    def trial_kind(self) -> str:
        """The module in `kinds/` that runs the trials."""
        return self.kind

    @property
    def epochs_of_all(self) -> int:
        """The epochs of each trial; 0 if they are not known, or the sweep varies them."""
        train = self.base_training
        return 0 if train is None or "epochs" in self._keys_of_parts else train.epochs

    @property
    def kept_files(self) -> str:
        """Which files of ended trials stay, as in `keep`."""
        return "all"

    @property
    def has_workdirs(self) -> bool:
        """Whether each trial runs in its own folder."""
        return False

    @property
    def timeout_seconds(self) -> float | None:
        """The time limit of an attempt."""
        return None

    @property
    def code_digest(self) -> str:
        """The digest of the files of `code`; "" without any."""
        return ""

    def has_changed_code(self) -> bool:
        """Whether the files of `code` have changed since this process read them."""
        return False

    @property
    def end_seconds(self) -> float:
        """Seconds that a trial has to save its state when it is interrupted."""
        return GRACE_SECONDS

    @property
    def trial_grace_seconds(self) -> float:
        """Seconds that a command has to end; 0 for trials that end by themselves in time."""
        return 0.0

    @property
    def required_metrics(self) -> list[str]:
        """The metrics of `search` and `stop`, which every trial must report."""
        searched = [name for name in (*self.goals, *self.constraints) if name != DURATION] if self.search else []
        return list(dict.fromkeys([*([self.compared_by[0]] if self.stop else []), *searched]))

    @property
    def monitored_metrics(self) -> list[str]:
        """Those that judge trials: a trial has diverged if the last value of one is NaN or infinite.

        If the config names no metric, the only one that its patterns find ranks trials.
        """
        groups = [name for name in self.program_metrics.groups if name != "epoch"] if self.program_metrics else []
        ranking = self.ranking_metric(groups)
        judged = [self.metric, ranking[0] if ranking else None, *self.objectives, *self.constraints]
        return list(dict.fromkeys(filter(None, [*self.required_metrics, *judged])))

    @property
    def compared_by(self) -> tuple[str, Mode]:
        """The metric and mode by which `search` and `stop` compare trials."""
        metric = self.metric or DEFAULT_METRIC
        return metric, self.mode or guess_mode(metric)

    @property
    def scored(self) -> dict[str, Any]:
        """The `score` and what is averaged, where they are part of a digest; {} by default."""
        score = {} if self.score == "last" else {"score": str(self.score)}
        return score | ({"average": self.averaged} if self.average else {})

    @property
    def goals(self) -> dict[str, Mode]:
        """The metrics that a search optimizes, with their modes."""
        return self.objectives or dict([self.compared_by])

    @property
    def target(self) -> tuple[str | None, Mode | None]:
        """The metric and mode that rank trials; None for each that the config does not determine."""
        is_known = self.trains or self.search or self.stop
        return self.compared_by if is_known else (self.metric, self.mode)

    @staticmethod
    def ranking_candidates(reported: Iterable[str]) -> list[str]:
        """The metrics that may rank trials if the config names none: `val_accuracy`, or else all but counters."""
        names = list(reported)
        return [DEFAULT_METRIC] if DEFAULT_METRIC in names else [name for name in names if not is_counter(name)]

    def ranking_metric(self, reported: Sequence[str]) -> tuple[str, Mode | None] | None:
        """The reported metric that ranks trials, and its mode; None if none does.

        If the config determines no metric, it is the only candidate; so it is if no trial has reported the one by
        which `search` or `stop` compare without `metric`. The mode is None if it must be guessed from the name.
        """
        metric, mode = self.target
        if metric is not None and metric in reported:
            return metric, mode
        if self.metric is not None:
            return None
        open_mode = mode if metric is None else None
        candidates = self.ranking_candidates(reported)
        if candidates == [DEFAULT_METRIC]:
            return DEFAULT_METRIC, open_mode or "max"
        return (candidates[0], open_mode) if len(candidates) == 1 else None

    @property
    def varied_keys(self) -> list[str]:
        """The keys that the config varies, without expanding its trials."""
        return [*self._keys_of_parts, *([self.seed_key] if self.repeats > 1 and self.seed_key else [])]

    @property
    def parts(self) -> list[Mapping[str, list[Any] | Choice | Range | Uniform]]:
        """What makes the trials, by part of the config: the values of each key."""
        listed = [{key: [value] for key, value in values.items()} for values in self.trials]
        drawn = [part.values for part in (self.sample, self.search) if part]
        by_column = {column: values for columns in self.grid_columns.values() for column, values in columns.items()}
        return [*([by_column] if by_column else []), *listed, *drawn]

    @cached_property
    def grid_columns(self) -> dict[str, dict[str, GridValues]]:
        """The columns of each key of the grid, with their values: of a list of mappings, `model.lr` and so on.

        Mappings that replace a section of all trials, or have sections themselves, stay whole.
        """
        columns_of: dict[str, dict[str, GridValues]] = {}
        for key, values in self.grid.items():
            is_paired = isinstance(values, list) and key not in self.base and all(map(_is_flat, values))
            options: list[dict[str, Any]] = options_of(values) if is_paired else []
            names = dict.fromkeys(name for option in options for name in option)
            columns: dict[str, GridValues] = {f"{key}.{name}": [each.get(name) for each in options] for name in names}
            columns_of[key] = columns or {key: values}
        return columns_of

    @property
    def paired(self) -> dict[str, str]:
        """The key of the grid whose mappings have a column, by column. Those of a key vary only together."""
        return {column: key for key, columns in self.grid_columns.items() for column in columns if column != key}

    @property
    def _keys_of_parts(self) -> list[str]:
        return list(dict.fromkeys(key for part in self.parts for key in part))

    def choice(self, key: str) -> Draw:
        """The range or list from which the values of a key are drawn; [] if it has none."""
        draws = {**(self.sample.values if self.sample else {}), **(self.search.values if self.search else {})}
        return draws.get(key, [])

    def is_log(self, key: str) -> bool | None:
        """Whether a key is drawn on a logarithmic scale; None if it has no range."""
        choice = self.choice(key)
        return choice.log if isinstance(choice, Uniform) else None

    @property
    def deadline_seconds(self) -> float | None:
        """The deadline of the sweep, in seconds from the start of its job; None without one."""
        if self.goal is None or not self.goal.startswith("deadline"):
            return None
        return seconds_of(self.goal.removeprefix("deadline "))


class TrainSweep(Sweep):
    """A sweep whose trials run Trainyard's training loop."""

    kind: ClassVar[str] = "train"
    resumption: ClassVar[str] = "Trainyard's own training loop continues after the step at which it was stopped"

    dataset: Name = Field(description="One of `datasets`.")
    train: Train = Field(Train(), description="The training configuration.")
    profile: ProfiledSteps | None = Field(None, description=PROFILE)

    def _problems(self) -> Iterator[str]:
        yield from super()._problems()
        if self.search and self.slots.ranks > 1 and isinstance(self.search.values.get("batch_size"), Uniform):
            problem = f"{self.slots.ranks} GPUs cannot share each size evenly"
            yield f"search draws batch_size from a range, and {problem}: give a list"
        own = self.train.further_metrics
        metric = self.epoch_metric(self.train)
        best = [f"best_{metric}"] if metric else []
        yield from self._problems_of_metrics(final=(*TRAINING_METRICS, *own, *best), epoch=(*EPOCH_METRICS, *own))

    @property
    def base_training(self) -> Train:
        """The section `train`."""
        return self.train

    @cached_property
    def base(self) -> dict[str, Any]:
        """What the config sets of `train`."""
        return self.train.model_dump(exclude_unset=True)

    @property
    def trial_kind(self) -> str:
        """The module in `kinds/` that runs the trials."""
        return "train" if self.slots.ranks == 1 else "train_on_gpus"

    def largest_step(self, train: Train) -> tuple[int, str]:
        """The images of the largest step of a training, and at which scale it has them."""
        return train.images_per_step(), ""

    def epoch_metric(self, train: Train) -> str | None:
        """The first metric by which trials are compared that an epoch has, without `best_`; None without one."""
        names = [name.removeprefix("best_") for name in (self.compared_by[0], *self.objectives)]
        return next((name for name in names if name in train.epoch_metrics), None)

    def spec_of(self, settings: dict[str, Any]) -> Training:
        """The training with these settings, whose batches its GPUs share evenly.

        Its metric is the default unless its result depends on it, so that another metric trains nothing again.
        """
        spec = Train.model_validate(settings)
        gpus = self.slots.ranks
        if spec.batch_size % gpus:
            message = f"batch_size {spec.batch_size} cannot be shared evenly by the {gpus} GPUs of a trial"
            option = "nodes_per_trial" if self.slots.nodes_per_trial > 1 else "gpus_per_trial"
            raise ValueError(f"{message} ({option})")
        metric = self.epoch_metric(spec)
        modes = dict([self.compared_by]) | self.objectives
        if not (spec.patience or f"best_{metric}" in [*modes, *self.constraints]):
            return spec.judged_by(DEFAULT_METRIC)
        if metric is None:
            raise ValueError(f"patience is about the metric of an epoch, and metric is {self.metric}")
        if modes.get(metric, modes.get(f"best_{metric}")) != guess_mode(metric):
            best = "smallest" if guess_mode(metric) == "min" else "largest"
            problem = f"the best epoch is that with the {best} {metric}, by its name"
            raise ValueError(f"mode is {self.mode}, but {problem}: rename it in `metrics`")
        return spec.judged_by(metric)

    @property
    def spec_content(self) -> dict[str, Any]:
        """What the config sets of `train`, with a file of weights by its content."""
        return {"base": identifying(self.base)}


class TreeSweep(Sweep):
    """A sweep whose trials fit gradient-boosted trees. Its jobs request no GPU, unless `slots` does."""

    kind: ClassVar[str] = "trees"
    resumption: ClassVar[str] = "a fit of trees starts again"
    packages: ClassVar[tuple[str, ...]] = ("xgboost", "xgboost-cpu", "lightgbm")

    dataset: Name = Field(description="One of `datasets`.")
    trees: Trees = Field(description="What all trials have in common.")

    @model_validator(mode="before")
    @classmethod
    def _use_cpus(cls, content: Any) -> Any:
        slots = content.get("slots", {}) if isinstance(content, dict) else None
        if slots == "auto":
            return {"goal": "fastest", **content, "slots": {"cpus": AUTO_CPUS}}
        return {**content, "slots": {"gpus_per_node": 0, **slots}} if isinstance(slots, dict) else content

    def _problems(self) -> Iterator[str]:
        yield from super()._problems()
        yield from self._problems_of_metrics(final=FIT_METRICS, epoch=ROUND_METRICS)

    @property
    def base(self) -> dict[str, Any]:
        """What the config sets of `trees`."""
        return self.trees.model_dump(exclude_unset=True)

    def spec_of(self, settings: dict[str, Any]) -> Trees:
        """The fit with these settings."""
        return Trees.model_validate(settings)

    @property
    def spec_content(self) -> dict[str, Any]:
        """What the config sets of `trees`."""
        return {"trees": self.base}

    @property
    def can_resume(self) -> bool:
        """A fit starts again."""
        return False


def _check_code(paths: list[str]) -> list[str]:
    try:
        code_digest(tuple(paths))
    except OSError as error:
        raise invalid(f"{error.filename} cannot be read ({error.strerror})") from None
    return paths


class ProgramSweep(ProgramOptions, Sweep):
    """A sweep whose trials run a user's own program."""

    timeout_minutes: PositiveFloat | None = Field(None, description="Time limit of an attempt, for your own program.")
    code: Annotated[list[str], Field(min_length=1), AfterValidator(_check_code)] | None = Field(
        None,
        description="Files and folders of your code, e.g. `[train.py, src/]`, whose content is part of what identifies "
        "a trial: once one has changed, all trials are pending, and what ran before stays in the journal. Paths are "
        "relative to the folder in which you start Snakemake; each job reads the files once, when it starts.",
    )
    keep: Keep = Field(
        "all",
        description="Files of ended trials that stay in `{trial_dir}`. `all`; `metrics`: the output and the file of "
        "`metrics`; `best 5`: these, and all files of the five best configurations. The others are removed while the "
        "sweep runs, the checkpoints among them.",
    )

    @property
    def kept_files(self) -> str:
        """Which files of ended trials stay."""
        return self.keep

    @property
    def has_workdirs(self) -> bool:
        """Whether each trial runs in its own folder."""
        return self.workdir == "trial"

    @property
    def timeout_seconds(self) -> float | None:
        """The time limit of an attempt."""
        return None if self.timeout_minutes is None else 60 * self.timeout_minutes

    @property
    def code_digest(self) -> str:
        """The digest of the files of `code`, read once in this process; "" without any."""
        return code_digest(tuple(self.code)) if self.code else ""

    def has_changed_code(self) -> bool:
        """Reads the files again."""
        try:
            return bool(self.code) and digest_of_code(self.code or ()) != self.code_digest
        except OSError:
            return True

    def _problems(self) -> Iterator[str]:
        yield from super()._problems()
        if self.slots.nodes_per_trial > 1:
            yield "nodes_per_trial is for `train`; a trial with your own program has one node"

    @property
    def base(self) -> dict[str, Any]:
        """The arguments in the config."""
        return dict(self.args)

    @property
    def spec_content(self) -> dict[str, Any]:
        """The arguments in the config, and the files of `code`."""
        return {"base": self.base, "code": self.code_digest}

    @property
    def seed_key(self) -> str | None:
        """The only argument, or else placeholder, called `seed`; without one, the only one with another name of it."""
        arguments = [key for key, _ in dotted_items(self.args) if is_seed(key)]
        placeholders = list(filter(is_seed, self.used_names))
        for is_named in (True, False):
            for keys in (arguments, placeholders):
                found = [key for key in keys if (key.rpartition(".")[2] == "seed") is is_named]
                if len(found) == 1:
                    return found[0]
        return None

    @property
    def used_names(self) -> set[str]:
        """The names of the arguments that the program is known to use."""
        return set()

    def _check_columns(self, settings: dict[str, Any]) -> None:
        """Raise a ValueError if an argument has the name of a column of the tables."""
        if taken := sorted(settings.keys() & RESERVED_COLUMNS):
            raise ValueError(f"{taken[0]} is a column of the tables: give the argument another name")


class CommandSweep(CommandOptions, ProgramSweep):
    """A sweep whose trials run a command line."""

    kind: ClassVar[str] = "command"
    resume_remedy: ClassVar[str] = ", or give `checkpoint`"
    report_remedy: ClassVar[str] = "let `metrics` find it, or "

    command: Annotated[Command, AfterValidator(check_quoting)] = Field(
        description="Your own program: a command line for bash, with `pipefail`, or a list of words. Placeholders such "
        "as `{lr}` stand for arguments, `{args}` for all others as `--lr 0.1` (`{args:dashes}`, `{args:hydra}`: in "
        "other styles); `{settings}`, `{trial_dir}`, `{trial}`, `{attempt}`, `{resume_from}`, `{dataset}`, `{cpus}`, "
        "`{gpus}` and `{port}` are predefined. `{64 * gpus}` is arithmetic. Trainyard quotes values, so write no "
        "quotes around a placeholder.",
    )

    commands: str | None = Field(
        None,
        exclude=True,  # whoever gets this config gets its trials
        description="Instead of `command`: a file, each line of which is a trial, run by bash as it is written. "
        "`$TRAINYARD_TRIAL_DIR` is the trial's folder. Empty lines, and those that begin with #, are none.",
    )

    @model_validator(mode="before")
    @classmethod
    def _read_commands(cls, given: Any) -> Any:
        return make_trials(given)

    def _problems(self) -> Iterator[str]:
        yield from super()._problems()
        if self.metrics is None and (self.search or self.stop):
            yield "search and stop need the metrics of a command: give `metrics`"
        if self.metrics is None and self.keep.startswith("best "):
            remedy = "give `metrics`, or `keep: metrics` for the output alone"
            yield f"{self.keep} needs the metrics of a command: {remedy}"
        if groups := self.metrics.groups if self.metrics else []:
            yield from self._problems_of_metrics(final=groups, epoch=groups)
        self.check_resume(self.command, self._argument_names)
        varied = [item for part in self.parts for item in part.items()]
        conditional = {key.split(".")[0] for key, values in varied if condition_of(values)}
        if used := sorted(conditional & self.find_names(self.command)):
            remedy = f"write {{args}} instead of {{{used[0]}}}"
            yield f"{used[0]} has no value where its `when` does not hold: {remedy}"

    @property
    def command_line(self) -> Command:
        """The command."""
        return self.command

    @property
    def started_command(self) -> Command:
        """The command, or the first lines of the file of commands."""
        if self.command != COMMAND:
            return self.command
        lines = [str(values.get(LINE)) for values in self.trials]
        if self.commands and Path(self.commands).exists():
            lines = read_text(self.commands).split("\n")
        return "\n".join(lines[:100])

    @property
    def command_file(self) -> str | None:
        """The file of commands."""
        return self.commands

    @property
    def argument_values(self) -> dict[str, list[Any]]:
        """The different values that the arguments have in any trial, by dotted key, without expanding trials.

        Of a range that a search draws from, they are its two ends.
        """
        parts = self.parts
        values = dict[str, dict[str, Any]]()  # by key, then by the text of the value
        for key, value in dotted_items(self.base):
            if not parts or any(key not in part for part in parts):
                values[key] = {repr(value): value}
        for part in parts:
            for key, choice in part.items():
                for option in ends_of(choice):
                    for inner, value in dotted_items({key: option}):
                        values.setdefault(inner, {})[repr(value)] = value
        return {key: list(different.values()) for key, different in values.items()}

    @property
    def _argument_names(self) -> set[str]:
        return {key.split(".")[0] for key in (*self.args, *self.varied_keys)}

    def spec_of(self, settings: dict[str, Any]) -> UserProgram:
        """The command with these arguments; it must use all of them, and nothing else."""
        self._check_columns(settings)
        predefined = {**TRIAL_PLACEHOLDERS, PORT: 1, GPUS: math.ceil(self.slots.share)}
        self.check_arguments(self.command, settings, predefined, program="the command")
        reserved = settings.keys() & set(TRIAL_PLACEHOLDERS)
        if self.settings:  # which has names of its own
            reserved &= self.find_names(self.command)
        if reserved:
            raise ValueError(f"{min(reserved)} is predefined: give the argument another name")
        digest = self.settings.digest if self.settings else ""
        return UserProgram(command=self.command, args=settings, code=self.code_digest, settings_digest=digest)

    @property
    def spec_content(self) -> dict[str, Any]:
        """The same, `settings`, and the command without the option to resume, which changes no result."""
        command = insert_resume_option(self.command, None, self._argument_names)
        settings = {SETTINGS: self.settings.digest} if self.settings else {}
        return super().spec_content | {"command": command} | settings

    @property
    def can_resume(self) -> bool:
        """A command resumes from a file."""
        return self.checkpoint is not None

    @property
    def end_seconds(self) -> float:
        """The time to write a checkpoint."""
        return self.grace_seconds

    @property
    def trial_grace_seconds(self) -> float:
        """The time to write a checkpoint."""
        return self.grace_seconds


class FunctionSweep(ProgramSweep):
    """A sweep whose trials call a Python function."""

    kind: ClassVar[str] = "function"
    saves_by_itself: ClassVar[bool] = False
    resume_remedy: ClassVar[str] = ", or let the function save to `context.checkpoint_dir`"
    report_remedy: ClassVar[str] = "let the function report or return it, or "

    function: FunctionPath = Field(
        description="Your own Python function, `package.module:function`, called as `function(config, context)`."
    )

    def spec_of(self, settings: dict[str, Any]) -> UserProgram:
        """The function with these arguments."""
        self._check_columns(settings)
        return UserProgram(function=self.function, args=settings, code=self.code_digest)

    @property
    def spec_content(self) -> dict[str, Any]:
        """The same, and the function."""
        return super().spec_content | {"function": self.function}


def _kind_of_sweep(content: Any) -> str:
    if isinstance(content, Sweep):
        return content.kind
    kinds = ("command", "function", "trees")
    return next((kind for kind in kinds if isinstance(content, dict) and {kind, f"{kind}s"} & content.keys()), "train")


AnySweep = Annotated[
    Annotated[TrainSweep, Tag("train")]
    | Annotated[TreeSweep, Tag("trees")]
    | Annotated[CommandSweep, Tag("command")]
    | Annotated[FunctionSweep, Tag("function")],
    Discriminator(_kind_of_sweep),
]
