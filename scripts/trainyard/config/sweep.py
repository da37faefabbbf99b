"""What the section `sweeps` of the config may say: which trials there are, and what they run on."""

import re
from collections.abc import Sequence
from decimal import Decimal
from functools import cached_property
from typing import Annotated, Any, Final, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    Discriminator,
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    StringConstraints,
    Tag,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from trainyard.config.train import Section, Train
from trainyard.config.user_programs import (
    GRACE_DESCRIPTION,
    GRACE_SECONDS,
    TRIAL_PLACEHOLDERS,
    Command,
    DottedPath,
    GraceSeconds,
    Metrics,
    Stop,
    UserProgram,
    check_arithmetic,
    check_quoting,
    check_resume,
    find_placeholders,
    insert_resume_option,
    make_lookup,
)

NAME_PATTERN = r"[A-Za-z0-9][A-Za-z0-9_-]*"
Name = Annotated[str, StringConstraints(pattern=f"^{NAME_PATTERN}$", max_length=64)]
VARIED_KEY = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*$")

EPOCH_METRICS: Final = (
    "epoch", "lr", "train_loss", "train_accuracy", "val_loss", "val_accuracy", "images_per_second", "seconds",
    "step_ms_p50", "step_ms_p95", "data_wait_fraction",
)  # fmt: skip
TRAINING_METRICS: Final = (*EPOCH_METRICS, "best_val_accuracy", "micro_batch", "accumulation")
COLUMNS: Final = {"trial", "status", "attempts", "attempt", "seconds", "epoch"}  # of a sweep's tables
Mode = Literal["max", "min"]
DEFAULT_METRIC: Final = "val_accuracy"
LOW_IS_GOOD: Final = ("loss", "error", "rmse", "mse", "mae", "perplexity", "seconds")  # ends of metrics' names


def guess_mode(metric: str) -> Mode:
    """What is better of a metric, by the end of its name."""
    return "min" if metric.lower().endswith(LOW_IS_GOOD) else "max"


class Range(Section):
    """Evenly spaced numbers; `stop` is the last one (if a step lands on it)."""

    start: int | float = Field(description="The first value.")
    stop: int | float = Field(description="No value is larger.")
    step: int | float = Field(1, description="The distance of two values.", gt=0)

    @model_validator(mode="after")
    def _ascends(self) -> "Range":
        if self.stop < self.start:
            raise PydanticCustomError("range", "stop ({stop}) is below start ({start})", self.model_dump())
        return self

    def values(self) -> list[int | float]:
        """All values, in order; whole numbers stay whole, and decimal fractions what one would write: 0.3 after 0.2."""
        start, stop, step = (Decimal(repr(number)) for number in (self.start, self.stop, self.step))
        count = int((stop - start) / step + Decimal("1e-9")) + 1
        kind = int if isinstance(self.start, int) and isinstance(self.step, int) else float
        return [kind(start + index * step) for index in range(count)]


class Uniform(Section):
    """Draws from a range of numbers."""

    low: float = Field(description="The smallest value.")
    high: float = Field(description="The largest value.")
    log: bool = Field(False, description="Draw the logarithm evenly: for learning rates and the like.")
    integer: bool = Field(False, description="Round to whole numbers.")

    @model_validator(mode="after")
    def _is_range(self) -> "Uniform":
        if self.high < self.low:
            raise PydanticCustomError("range", "high ({high}) is below low ({low})", self.model_dump())
        if self.log and self.low <= 0:
            raise PydanticCustomError("range", "a logarithmic range starts above 0, not at {low}", {"low": self.low})
        return self


def _list_or_mapping(value: Any) -> str:
    return "mapping" if isinstance(value, (dict, BaseModel)) else "list"


Choices = Annotated[list[Any], Field(min_length=1)]
GridValues = Annotated[
    Annotated[Choices, Tag("list")] | Annotated[Range, Tag("mapping")], Discriminator(_list_or_mapping)
]
Draw = Annotated[Annotated[Choices, Tag("list")] | Annotated[Uniform, Tag("mapping")], Discriminator(_list_or_mapping)]


class Sample(Section):
    """Random configurations, the same ones for the same seed."""

    count: PositiveInt = Field(description="How many.")
    values: dict[str, Draw] = Field(
        description="Per key a list to choose from, or `{low: , high: , log: , integer: }`.", min_length=1
    )
    seed: int = Field(0, description="Seed of the draws.")


class Search(Section):
    """Configurations that are drawn one by one, each from what the ones before it have come to (Optuna)."""

    method: Literal["tpe", "cmaes", "random"] = Field(
        "tpe", description="`tpe`: any kinds of values; `cmaes`: for numbers that hang together; `random`."
    )
    trials: PositiveInt = Field(description="How many.")
    values: dict[str, Draw] = Field(
        description="Per key a list to choose from, or `{low: , high: , log: , integer: }`.", min_length=1
    )
    metric: str = Field(
        "val_accuracy", description="What is to become best; if it is left out, the sweep's `metric`, if that is given."
    )
    mode: Mode = Field(
        "max",
        description="What is better: more or less of it. If it is left out, the sweep's `mode`, or else `min` for a "
        "metric whose name ends in loss, error, rmse, mse, mae, perplexity or seconds.",
    )
    seed: int = Field(0, description="Seed of the draws.")


class Slots(Section):
    """What the sweep's job asks for, and how it is shared out."""

    auto: bool = Field(False, description="Ask for as many nodes and GPUs as suit `goal`, at most those given here.")
    nodes: PositiveInt = Field(1, description="Nodes of the job.")
    gpus_per_node: PositiveInt = Field(1, description="GPUs of a node. Without GPUs they are only counted.")
    gpus_per_trial: PositiveFloat | Literal["auto"] = Field(
        1.0,
        description="Share of a GPU per trial (0.25: four trials on one), or GPUs (more than one for a `command` or "
        "`function` only). `auto`: the first trials have a GPU each, and from the memory and time that they take of "
        "it, it is worked out how many share one from then on.",
    )
    trials_per_gpu: PositiveInt = Field(
        4, description="With `gpus_per_trial: auto`, at most so many trials on a GPU: CPUs are asked for as many."
    )
    cpus_per_trial: PositiveInt = Field(1, description="CPUs, and so threads, per trial.")

    @field_validator("gpus_per_trial")
    @classmethod
    def _whole_above_one(cls, value: float | str) -> float | str:
        if not isinstance(value, str) and value > 1 and value != int(value):
            raise PydanticCustomError("slots", "a share above one GPU must be a whole number of GPUs")
        return value

    @model_validator(mode="after")
    def _fits(self) -> "Slots":
        if self.share > self.gpus_per_node:
            message = "a trial of {gpus_per_trial} GPUs does not fit a node of {gpus_per_node}"
            raise PydanticCustomError("slots", message, self.model_dump())
        return self

    @property
    def share(self) -> float:
        """GPUs per trial; while it is open how many trials can share one, 1."""
        return 1.0 if isinstance(self.gpus_per_trial, str) else self.gpus_per_trial

    @property
    def per_node(self) -> int:
        """Trials that run side by side on one node."""
        if self.share >= 1:
            return self.gpus_per_node // int(self.share)
        return self.gpus_per_node * int(1 / self.share + 1e-9)

    @property
    def cpus_per_node(self) -> int:
        """CPUs for the trials that run side by side on one node, or may."""
        more = self.trials_per_gpu if self.gpus_per_trial == "auto" else 1
        return self.per_node * more * self.cpus_per_trial

    @property
    def count(self) -> int:
        """Trials that run side by side in the whole job."""
        return self.nodes * self.per_node

    @property
    def gpus(self) -> int:
        """GPUs of the whole job."""
        return self.nodes * self.gpus_per_node


def _auto_slots(value: Any) -> Any:
    return {"auto": True, "gpus_per_node": AUTO_GPUS} if value == "auto" else value


AUTO_GPUS = 8  # at most, for `slots: auto`: a node of the usual size
Goal = Annotated[str, StringConstraints(pattern=r"^(fastest|cheapest|deadline [0-9]+(\.[0-9]+)? ?(min|h|d))$")]
Retrain = int | dict[str, int]


def _with_target(part: dict[str, Any], sweep: dict[str, Any]) -> dict[str, Any]:
    """`search` or `stop` as given, with the metric and mode that it goes by."""
    metric = part.get("metric") or sweep.get("metric")
    mode = part.get("mode") or sweep.get("mode") or (guess_mode(metric) if isinstance(metric, str) else None)
    return part | {name: value for name, value in (("metric", metric), ("mode", mode)) if value is not None}


class Sweep(Section):
    """A named set of trials: `grid`, `trials` and `sample` each add theirs; what comes out twice is trained once.

    A trial is a training by Trainyard's own loop (`train`), a `command`, or a call of a Python `function`.
    """

    dataset: Name | None = Field(None, description="One of `datasets`; what is your own can do without.")
    train: Train = Field(Train(), description="What all trainings have in common.")
    command: Command | None = Field(
        None,
        description="A program of yours: a line for the shell, or a list of words. `{lr}` stands for the argument "
        "`lr`, and so do `{trial_dir}`, `{trial}`, `{attempt}`, `{resume_from}`, `{dataset}` and `{cpus}` for theirs. "
        "Values are quoted: write no quotes around a placeholder.",
    )
    function: DottedPath | None = Field(
        None, description="A function of yours, `package.module:function`, called with `(config, context)`."
    )
    args: dict[str, Any] = Field({}, description="Arguments that all calls of a `command` or `function` have.")
    metrics: Metrics | None = Field(None, description="Where a `command` tells its metrics.")
    checkpoint: str | None = Field(
        None,
        description="Files in a command's folder that it can go on from, as in `*.pt`: `{resume_from}` is the newest "
        "that an earlier attempt has left, or nothing. After an attempt that resumed from it and failed, it is the one "
        "before, then nothing.",
    )
    resume: str | None = Field(
        None,
        description="What a `command` is given that has something to go on from, as in `--resume {resume_from}`: in "
        "the place of `{resume}`, or else at its end.",
    )
    timeout_minutes: PositiveFloat | None = Field(
        None, description="An attempt at a `command` or `function` that takes longer has failed."
    )
    resumable: bool = Field(
        True,
        description="Whether a `function` continues from its `checkpoint_dir` when it is called again. With `false`, "
        "and for a `command` without `checkpoint`, a trial starts only if it can end before the walltime does.",
    )
    grace_seconds: GraceSeconds = Field(GRACE_SECONDS, description=GRACE_DESCRIPTION.format(what="`command`"))
    grid: dict[str, GridValues] = Field(
        {},
        description="Per key of `train` or `args` (dots reach inside) a list or `{start: , stop: , step: }`; all "
        "combinations.",
    )
    trials: list[dict[str, Any]] = Field([], description="Configurations written out, each as such keys.")
    sample: Sample | None = Field(None, description="Random configurations.")
    search: Search | None = Field(None, description="Instead of these, configurations found as results come in.")
    stop: Stop | None = Field(None, description="When to end trials early.")
    metric: str | None = Field(
        None,
        description="The metric that counts in pictures and tables, and for `search` and `stop`, if they name none. By "
        "default what these say, or else `val_accuracy`, and where programs tell none, the first metric that they do.",
    )
    mode: Mode | None = Field(
        None,
        description="What is better: more or less of `metric`. By default what `search` or `stop` say, or else `min` "
        "for names that end in loss, error, rmse, mse, mae, perplexity or seconds, and `max` for all others.",
    )
    slots: Annotated[Slots, BeforeValidator(_auto_slots, json_schema_input_type=Slots | Literal["auto"])] = Field(
        Slots(), description="What to run on, or `auto`: up to 8 GPUs of a node, as suits `goal`."
    )
    goal: Goal = Field(
        "fastest",
        description="What `auto` chooses GPUs for. `fastest`: the fewest GPU-hours among all that take at most 5 % "
        "longer than the fastest; `cheapest`: the fastest among all that cost at most 2 % more GPU-hours than the "
        "cheapest; `deadline 2h` (`min`, `h`, `d`): the cheapest that will be done by then.",
    )
    retries: NonNegativeInt = Field(1, description="Further attempts for a trial that fails.")
    on_failed_trial: Literal["report", "stop"] = Field(
        "report", description="With trials that failed for good: `report` them in the tables, or `stop` the workflow."
    )
    max_failed_fraction: float = Field(
        0.5,
        description="If more of the trials than this fail for good, the sweep ends in an error. With `1`, it runs all "
        "trials, however many fail.",
        ge=0,
        le=1,
    )
    cost: str | None = Field(
        None,
        description="Relative cost of a trial: arithmetic on keys, e.g. `epochs * model_args.blocks`. It puts the "
        "longest first, and predicts all durations from the first finished trial on.",
    )
    retrain: Retrain = Field(0, description="Raise to train again: a number for all trials, or `{trial: number}`.")

    @model_validator(mode="before")
    @classmethod
    def _hands_on_its_target(cls, given: Any) -> Any:
        """What `search` and `stop` leave out of metric and mode is what the sweep says, or follows from the name."""
        if not isinstance(given, dict):
            return given
        parts = {name: given[name] for name in ("search", "stop") if isinstance(given.get(name), dict)}
        return given | {name: _with_target(part, given) for name, part in parts.items()}

    @model_validator(mode="after")
    def _has_one_target(self) -> "Sweep":
        for name, part in (("search", self.search), ("stop", self.stop)):
            for key in ("metric", "mode"):
                own, told = getattr(self, key), getattr(part, key, None)
                if part and own is not None and own != told:
                    message = "the sweep's {key} is {own}, but that of {name} is {told}: give it once"
                    raise PydanticCustomError("target", message, {"key": key, "own": own, "name": name, "told": told})
        return self

    @field_validator("command")
    @classmethod
    def _can_be_quoted(cls, command: Command | None) -> Command | None:
        return command and check_quoting(command)

    @model_validator(mode="after")
    def _is_one_kind(self) -> "Sweep":
        given = [name for name in ("train", "command", "function") if name in self.model_fields_set]
        if len(given) > 1:
            raise PydanticCustomError("kind", "give {kinds}, not both", {"kinds": " or ".join(given)})
        if self.is_training and self.dataset is None:
            raise PydanticCustomError("kind", "a training needs a `dataset`; or give a `command` or a `function`")
        if not self.is_training and self.slots.gpus_per_trial == "auto":
            raise PydanticCustomError("slots", "gpus_per_trial: auto is for `train`; say how many share a GPU")
        if self.is_training and self.slots.share > 1:
            message = (
                "gpus_per_trial: {share}, but a training by `train` uses one GPU; set gpus_per_trial: 1, or give a "
                "`command` that uses several"
            )
            raise PydanticCustomError("slots", message, {"share": int(self.slots.share)})
        allowed = {"metrics": ["command"], "checkpoint": ["command"], "resume": ["command"]}
        allowed["grace_seconds"] = ["command"]
        allowed |= {"args": ["command", "function"], "timeout_minutes": ["command", "function"]}
        allowed |= {"resumable": ["function"]}
        for name, kinds in allowed.items():
            if name in self.model_fields_set and not set(kinds) & set(given):
                raise PydanticCustomError(
                    "kind", "{name} is for a {kinds}", {"name": name, "kinds": " or ".join(kinds)}
                )
        if self.search and self.slots.gpus_per_trial == "auto":
            raise PydanticCustomError("slots", "gpus_per_trial: auto is for trials known beforehand, not for a search")
        if self.search and (self.grid or self.trials or self.sample):
            raise PydanticCustomError("search", "give search, or grid, trials and sample")
        if self.command is not None and self.metrics is None and (self.search or self.stop):
            raise PydanticCustomError(
                "metrics", "search and stop need to know the metrics of a command: give `metrics`"
            )
        return self

    @model_validator(mode="after")
    def _tells_what_counts(self) -> "Sweep":
        """What a search or a stop goes by is told, as far as that is known before anything has run."""
        patterns = self.metrics.compiled if self.metrics else []
        groups = tuple(name for pattern in patterns for name in pattern.groupindex)
        told = {
            "search": TRAINING_METRICS if self.is_training else groups,
            "stop": EPOCH_METRICS if self.is_training else groups,
        }
        for name, known in told.items():
            section = getattr(self, name)
            if section and known and section.metric not in known:
                message = "{name}.metric is {metric}, which no trial tells; known: {known}"
                content = {"name": name, "metric": section.metric, "known": ", ".join(known)}
                raise PydanticCustomError("metric", message, content)
        if self.metric and told["search"] and self.metric not in told["search"]:
            content = {"metric": self.metric, "known": ", ".join(told["search"])}
            raise PydanticCustomError("metric", "metric is {metric}, which no trial tells; known: {known}", content)
        return self

    @model_validator(mode="after")
    def _resumes_from_something(self) -> "Sweep":
        used = find_placeholders(self.command or "") | find_placeholders(self.resume or "")
        if "resume_from" in used and self.checkpoint is None:
            message = "`resume_from` needs `checkpoint`: the files that it may stand for, as in *.pt"
            raise PydanticCustomError("resume", message)
        if self.command is not None:
            check_resume(self.command, self.resume, self._keys)
            if self.resume is not None and isinstance(self.command, str):
                check_quoting(self.resume)
        return self

    @property
    def is_training(self) -> bool:
        """Whether its trials are trainings by Trainyard's own loop."""
        return self.command is None and self.function is None

    @property
    def can_resume(self) -> bool:
        """Whether a trial that was interrupted continues where it was, instead of starting again."""
        return self.is_training or (self.resumable if self.function is not None else self.checkpoint is not None)

    @property
    def trial_grace_seconds(self) -> float:
        """Seconds that a trial that is told to end may take for that, beyond what Trainyard's own trainings do."""
        return 0.0 if self.command is None else self.grace_seconds

    @property
    def is_single_call(self) -> bool:
        """Whether it is a single call of a program or function: a training that varies nothing is a mistake."""
        return not (self.is_training or self.grid or self.trials or self.sample or self.search)

    @cached_property
    def base(self) -> dict[str, Any]:
        """What all trials have in common, as the keys that they vary."""
        return self.train.model_dump(exclude_unset=True) if self.is_training else dict(self.args)

    @property
    def _keys(self) -> set[str]:
        """What the arguments of its trials are called."""
        drawn = [section.values for section in (self.sample, self.search) if section]
        return {key.split(".")[0] for keys in (self.args, self.grid, *self.trials, *drawn) for key in keys}

    @property
    def spec_content(self) -> dict[str, Any]:
        """All that its trials have in common and that changes their results."""
        command = self.command and insert_resume_option(self.command, None, self._keys)
        kind = {"command": command, "function": self.function}
        return {"base": self.base, **{name: value for name, value in kind.items() if value is not None}}

    def spec_of(self, settings: dict[str, Any]) -> Train | UserProgram:
        """What a trial with these settings runs.

        Raises:
            ValueError: it cannot be; pydantic's are ValueErrors.
        """
        if self.is_training:
            return Train.model_validate(settings)
        if taken := sorted(set(settings) & COLUMNS):
            raise ValueError(f"{taken[0]} is a column of the tables: give the argument another name")
        if self.command is not None:
            known = {*settings, *TRIAL_PLACEHOLDERS, *(["resume"] if self.resume is not None else [])}
            used = {
                name.split(".")[0] for name in find_placeholders(self.command) | find_placeholders(self.resume or "")
            }
            if unknown := sorted(used - known):
                hint = "; or give `resume`, the option in its place" if unknown[0] == "resume" else ""
                raise ValueError(f"the command has {{{unknown[0]}}}, which is neither varied nor in `args`{hint}")
            if unused := sorted(set(settings) - used):
                raise ValueError(f"{unused[0]} is not in the command: write {{{unused[0]}}} where it is to stand")
            if reserved := sorted(set(settings) & set(TRIAL_PLACEHOLDERS)):
                raise ValueError(f"{reserved[0]} is Trainyard's own word: give the argument another name")
            texts = dict.fromkeys([*TRIAL_PLACEHOLDERS, "resume"], "") | {"attempt": 1, "cpus": 1}
            check_arithmetic(self.command, make_lookup(settings, texts))
        return UserProgram(command=self.command, function=self.function, args=settings)

    @property
    def required_metrics(self) -> list[str]:
        """The metrics by which a search draws and trials are stopped: each must tell them."""
        return list(dict.fromkeys(section.metric for section in (self.search, self.stop) if section))

    @property
    def monitored_metrics(self) -> list[str]:
        """These, and the `metric` that counts: a trial that ends with one that is NaN or infinite has diverged."""
        return list(dict.fromkeys(filter(None, [*self.required_metrics, self.metric])))

    @property
    def target(self) -> tuple[str | None, Mode | None]:
        """The metric that counts, and what is better: more or less of it. None is what the config leaves open."""
        by = self.search or self.stop
        if by:
            return by.metric, by.mode
        metric = self.metric or (DEFAULT_METRIC if self.is_training else None)
        known = guess_mode(metric) if metric and self.is_training else None  # Trainyard's own metrics
        return metric, self.mode or known

    def ranking_metric(self, told: Sequence[str]) -> tuple[str, Mode | None] | None:
        """The metric that counts among those that trials have told, and what is better.

        Of what the config leaves open, or nobody has told: `val_accuracy`, or else the first. None for what is better:
        it is to be guessed from the name. None at all: nothing was told.
        """
        metric, mode = self.target
        if metric is not None and metric in told:
            return metric, mode
        open_mode = mode if metric is None else None
        if DEFAULT_METRIC in told:
            return DEFAULT_METRIC, open_mode or "max"
        return (told[0], open_mode) if told else None

    def is_log(self, key: str) -> bool | None:
        """Whether a key is drawn on a logarithmic scale; None if no range of it is given."""
        draws = {**(self.sample.values if self.sample else {}), **(self.search.values if self.search else {})}
        choice = draws.get(key)
        return choice.log if isinstance(choice, Uniform) else None

    @property
    def deadline_seconds(self) -> float | None:
        """Within which the sweep is to be done, if its goal is a deadline."""
        if not self.goal.startswith("deadline"):
            return None
        number, unit = re.findall(r"[0-9.]+|[a-z]+", self.goal)[1:]
        return float(number) * {"min": 60, "h": 3600, "d": 86400}[unit]
