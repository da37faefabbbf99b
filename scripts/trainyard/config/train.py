"""The section `train` of the config: the training configuration of a trial, or of a scale of a study.

A trial's identity is a hash of this section, so a key that does not change results does not belong here.
"""

import re
import types
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cache
from typing import Annotated, Any, ClassVar, Final, Literal, Self, Union, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    StringConstraints,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

from trainyard.config.metric_names import DEFAULT_METRIC, EPOCH_METRICS, MONITORED, TABLE_METRICS
from trainyard.config.model_sizes import count_parameters
from trainyard.config.weights import identifying, is_published
from trainyard.utils.text import is_number


def invalid(message: str) -> PydanticCustomError:
    """The error with which a validator rejects a value."""
    return PydanticCustomError("invalid", "{message}", {"message": message})


def hint(text: str) -> WrapValidator:
    """In an annotation, after a pattern: what is valid, for the error about a value that does not match it."""

    def validate(value: Any, inner: ValidatorFunctionWrapHandler) -> Any:
        try:
            return inner(value)
        except ValidationError as error:
            if error.errors(include_url=False)[0]["type"] != "string_pattern_mismatch":
                raise
            message = {"value": repr(value), "hint": text}
            raise PydanticCustomError("pattern", "{value} is not valid; {hint}", message) from None

    return WrapValidator(validate)


def refuse(find_problem: Callable[[Any], str]) -> BeforeValidator:
    """In an annotation: refuses a value, as it is in the file, of which the function says what is wrong."""

    def validate(value: Any) -> Any:
        if problem := find_problem(value):
            raise invalid(problem)
        return value

    return BeforeValidator(validate)


IMPORT_PATH = r"^[\w.]+:[\w.]+$"
FunctionPath = Annotated[str, StringConstraints(pattern=r"^[\w.]+:\w+$"), hint("a function is package.module:name")]
NAME_PATTERN = r"[A-Za-z0-9][A-Za-z0-9_-]*"
Name = Annotated[
    str,
    StringConstraints(pattern=f"^{NAME_PATTERN}$", max_length=64),
    hint("a name is used for a folder: letters, digits, `_` and `-`, no leading `_` or `-`"),
]
NamePattern = Annotated[str, StringConstraints(min_length=1, max_length=200)]  # of parameters, as of `fnmatch`
BUILT_IN_MODEL_ARGS = {"resnet": ("blocks", "width"), "cnn": ("width",)}  # positive integers
BUILT_IN_MODELS = tuple(BUILT_IN_MODEL_ARGS)
ADAMW_DECAY: Final = 0.01  # torch's default
TIMM: Final = "timm:"  # before the name of a model of timm


class Section(BaseModel):
    """A section of the config: unknown keys are errors, and instances are immutable."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        allow_inf_nan=False,
        ser_json_inf_nan="constants",
        defer_build=True,  # a section that contains others builds what it needs of them
    )

    @model_validator(mode="before")
    @classmethod
    def _check_numbers(cls, content: Any) -> Any:
        """Reject text, and true, where a number is expected: Pydantic would convert them. False is 0, as in `off`."""
        if not isinstance(content, dict):
            return content
        details = list[InitErrorDetails]()
        fields = cls._number_fields()
        for name, value in content.items():
            kind = _find_mistake(value) if name in fields else None
            if kind:
                details.append(InitErrorDetails(type=kind, loc=(name,), input=value))
        if details:
            raise ValidationError.from_exception_data(cls.__name__, details)
        return content

    @model_validator(mode="after")
    def _check(self) -> Self:
        for problem in self._problems():
            raise invalid(problem)
        return self

    def _problems(self) -> Iterator[str]:
        """What is wrong with its values together, in sentences of which the first is the error."""
        yield from ()

    @classmethod
    @cache
    def _number_fields(cls) -> list[str]:
        """The fields whose values are numbers, or mappings to numbers, and never text."""
        members = {name: set(_value_types(field.annotation)) for name, field in cls.model_fields.items()}
        return [name for name, types in members.items() if types & {int, float} and str not in types]


# Increment it when a change of the code changes the result of a configuration: then every trial is trained again.
RESULT_VERSION = 3


class TrialSpec(Section):
    """What a trial runs: the settings of its kind, with its values of the varied keys."""

    counter: ClassVar[str] = "epoch"  # the metric that counts the epochs which it has run
    best_epoch: ClassVar[str] = ""  # the metric that is the last epoch of a model which is not kept whole; "" for none
    data_copies: ClassVar[float] = 0  # bytes of its host memory per byte of the staged dataset

    @property
    @abstractmethod
    def content(self) -> dict[str, Any]:
        """What identifies its result, without defaults, so that new config keys do not change identities."""

    @property
    def packages(self) -> list[str]:
        """The packages of extras that it needs."""
        return []

    @property
    def depends_on_seed(self) -> bool:
        """Whether its result does."""
        return True

    @property
    def known_metrics(self) -> list[str]:
        """The columns of its metrics, whether it has reported them or not; [] for those that it has reported."""
        return []

    @property
    def monitored(self) -> str:
        """The metric of `patience`, where the config names it."""
        return ""

    @property
    def process_mib(self) -> float:
        """The host memory of a process that runs it, without its dataset, if none was measured."""
        return 5800

    @property
    def settings(self) -> dict[str, Any]:
        """The nested mapping that contains the varied keys."""
        return self.model_dump(mode="json")

    def values_of(self, keys: Collection[str]) -> dict[str, Any]:
        """The values of dotted keys. Of a section, it is what was set, without its defaults."""
        varied = {key.partition(".")[0] for key in keys}
        settings = self.model_dump(mode="json", include=varied)
        values = {key: value_at(settings, key) for key in keys}
        sections = [key for key, value in values.items() if isinstance(value, dict)]
        if sections:
            settings = self.model_dump(mode="json", include=varied, exclude_defaults=True)
            values |= {key: value_at(settings, key) or {} for key in sections}
        return values


ABSENT: Final = object()


def value_at(settings: Mapping[str, Any], key: str, otherwise: Any = None) -> Any:
    """The value of a dotted key in a nested mapping, or else another one, such as ABSENT."""
    value: Any = settings
    for part in key.split("."):
        value = value.get(part, otherwise) if isinstance(value, Mapping) else otherwise
    return value


def union_members(annotation: Any) -> list[Any]:
    """The members of a union, flattened; any other type as the only member."""
    if get_origin(annotation) is Annotated:
        return union_members(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return [each for member in get_args(annotation) for each in union_members(member)]
    return [annotation]


def _value_types(annotation: Any) -> Iterator[Any]:
    """The types that a value, or the values of a mapping, may have."""
    for member in union_members(annotation):
        if get_origin(member) is dict:
            yield from _value_types(get_args(member)[1])
        else:
            yield member


def _find_mistake(value: Any) -> PydanticCustomError | None:
    """The error if a value is a number written as text, or true, or if it is a mapping that contains such a value."""
    if isinstance(value, dict):
        return next(filter(None, map(_find_mistake, value.values())), None)
    if isinstance(value, str):
        return invalid("text instead of a number: write it without quotes") if is_number(value) else None
    return invalid("true instead of a number") if value is True else None


MetricName = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z_]\w*$", max_length=64), hint("a name has letters, digits and _")
]
MetricPath = Annotated[
    str,
    StringConstraints(pattern=rf"^top5_accuracy$|{IMPORT_PATH}"),
    hint("a metric is top5_accuracy or package.module:name"),
]
LossPath = Annotated[
    str,
    StringConstraints(pattern=rf"^cross_entropy$|{IMPORT_PATH}"),
    hint("a loss is cross_entropy or package.module:name"),
]
Metrics = list[MetricPath] | dict[MetricName, MetricPath]


def _by_name(paths: Any) -> Any:
    """A list of metrics as a mapping; a path is named by its last part."""
    if isinstance(paths, str):
        raise invalid(f"write a list, [{paths}], or a mapping of names")
    if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
        return paths
    names = [re.split(r"[.:]", path)[-1] for path in paths]
    if twice := [name for name in names if names.count(name) > 1]:
        raise invalid(f"two metrics are called {twice[0]}: give a mapping of names to paths")
    return dict(zip(names, paths, strict=True))


class TorchSection(Section):
    """A section that has arguments of a class of torch beside its own keys."""

    model_config = ConfigDict(extra="allow")

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of torch's class."""
        return self.model_extra or {}


class Schedule(TorchSection):
    """The learning-rate schedule. All other keys are arguments of torch's class, by their own names."""

    name: Literal["constant", "step", "cosine", "polynomial", "onecycle"] = Field(
        "constant",
        description="`step`: torch's StepLR, whose `step_size` is in epochs, e.g. `{name: step, step_size: 30, gamma: "
        "0.1}`; `cosine`: CosineAnnealingLR and `polynomial`: PolynomialLR, from step to step over the whole training; "
        "`onecycle`: OneCycleLR up to `lr` and down, by default with `cycle_momentum: false`.",
    )
    warmup_fraction: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="Fraction of all steps used for linear warmup of the learning rate.",
    )

    def _problems(self) -> Iterator[str]:
        if self.name == "constant" and self.arguments:
            known = ", ".join(Schedule.model_fields)
            yield f"the schedule constant has no argument {next(iter(self.arguments))!r}; known: {known}"
        if self.name == "onecycle" and self.warmup_fraction:
            yield "onecycle has a warmup of its own: give pct_start instead of warmup_fraction"


class Augment(Section):
    """Random augmentation of the training images, on the device."""

    crop_padding: NonNegativeInt = Field(0, description="Random crop: zero padding in pixels on each side.")
    resized_crop: PositiveFloat | None = Field(
        None,
        le=1,
        description="RandomResizedCrop: a crop of at least this fraction of the image's area, e.g. `0.08`, enlarged to "
        "the size of the image; aspect ratios from 3/4 to 4/3.",
    )
    flip: bool = Field(False, description="Random horizontal flip with probability 0.5.")
    mixup: NonNegativeFloat = Field(
        0.0, description="Mixup of images and labels: alpha of the Beta distribution of the weights, e.g. `0.2`."
    )
    cutmix: NonNegativeFloat = Field(
        0.0, description="CutMix: the same for the area of a box; with `mixup`, one of the two in each step."
    )

    @property
    def changes_images(self) -> bool:
        """Whether single images are augmented, which is done on uint8."""
        return bool(self.crop_padding or self.resized_crop or self.flip)

    def _problems(self) -> Iterator[str]:
        if self.crop_padding and self.resized_crop:
            yield "give crop_padding or resized_crop, not both"


def _check_order(steps: list[int]) -> list[int]:
    if steps[0] > steps[1]:
        raise invalid("the first step is after the last one: write [first, last]")
    return steps


ProfiledSteps = Annotated[
    Annotated[list[PositiveInt], Field(min_length=2, max_length=2)],
    AfterValidator(_check_order),
]
PROFILE: Final = (
    "Record some steps with torch.profiler, as in `[10, 15]`: the first and the last one, counted from 1 from the "
    "start of a run, also over several epochs. The folder `profile` of each trial or scale that runs then has a trace "
    "of rank 0, for Perfetto, Chrome and TensorBoard, and on a GPU a snapshot of its memory. Nothing runs again for it."
)


PARAMETER_BYTES: Final = 32  # float32 weights, gradients, two values of the optimizer, and a copy for the checkpoint


class Train(TrialSpec):
    """The training configuration of a trial, or of a scale of a study."""

    model: str = Field(
        "resnet",
        description="`resnet`, `cnn`, the name of a torchvision classification model, `timm:<name>` for one of timm, "
        "or `package.module:function`.",
    )
    model_args: dict[str, Any] = Field({}, description="Keyword arguments of the model, e.g. `{blocks: 8, width: 16}`.")
    small_images: bool = Field(
        False, description="For torchvision models and images of 32 to 64 pixels: a stem without downsampling."
    )
    pretrained: str | None = Field(
        None,
        min_length=1,
        description="Weights to start from: a file of `torch.save`, or the name of weights that torchvision publishes "
        "for the model, e.g. `IMAGENET1K_V1`.",
    )
    freeze: list[NamePattern] = Field(
        [], description="Parameters that are not trained, by patterns of their names, e.g. `[conv1, 'layer1.*']`."
    )
    lr_scale: dict[NamePattern, PositiveFloat] = Field(
        {},
        description="Factors of `lr` by patterns of parameter names, e.g. `{'*': 0.1, 'fc.*': 1}`; the longest "
        "pattern that matches decides, not counting `*`.",
    )
    epochs: PositiveInt = Field(1, description="Passes over the training images.")
    batch_size: PositiveInt = Field(
        128,
        description="Images per GPU and batch. With strong scaling: images per step, over all GPUs.",
    )
    accumulation: PositiveInt = Field(1, description="Gradient accumulation: batches per optimizer step.")
    lr: PositiveFloat = Field(0.001, description="Peak learning rate; by default that of torch's optimizers.")
    optimizer: Literal["sgd", "adam", "adamw"] = Field("sgd", description="Optimizer.")
    optimizer_args: dict[str, Any] = Field(
        {},
        description="Further arguments of torch's class of the optimizer, e.g. `{nesterov: true}` of `sgd`, or "
        "`{betas: [0.9, 0.95]}` of `adamw`.",
    )
    momentum: float = Field(0.9, ge=0, lt=1, description="Momentum of `sgd`.")
    weight_decay: NonNegativeFloat | None = Field(
        None, description="Weight decay. By default that of torch: 0.01 for `adamw`, 0 for the others."
    )
    decay_all: bool = Field(
        True, description="Apply weight decay to all parameters; `false` excludes biases and normalization layers."
    )
    label_smoothing: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="Label smoothing of the training loss. `train_loss` includes it, `val_loss` does not.",
    )
    loss: LossPath = Field(
        "cross_entropy",
        description="`cross_entropy`, or your own, `package.module:name`: a function `loss(outputs, targets)` that "
        "returns the mean of a batch, or a class of such objects, e.g. `torch.nn:BCEWithLogitsLoss`.",
    )
    loss_args: dict[str, Any] = Field({}, description="Keyword arguments of your own loss, e.g. `{gamma: 2}`.")
    metrics: Annotated[dict[MetricName, MetricPath], BeforeValidator(_by_name, json_schema_input_type=Metrics)] = Field(
        {},
        description="Further metrics of the validation images, as columns `val_<name>`: `top5_accuracy` or your own, "
        "a list such as `[top5_accuracy, my_module:hit]` or a mapping `{hits: my_module:hit}`; also a class of "
        "torchmetrics.",
    )
    metric_args: dict[MetricName, dict[str, Any]] = Field(
        {}, description="Keyword arguments of metrics that are classes, by their names, e.g. `{f1: {average: macro}}`."
    )
    patience: PositiveInt | None = Field(
        None,
        description="End the training after this number of epochs in a row in which the `metric` of the sweep or study "
        "has no new best.",
    )
    ema_decay: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="Validate an exponential moving average (EMA) of the weights, which is saved beside them: after "
        "each step, `ema_decay` times the average plus the rest times the weights; 0.999 averages about 1,000 steps. "
        "After the first n steps, the decay is at most (1 + n) / (10 + n), so that the initial weights are forgotten.",
    )
    clip_norm: PositiveFloat | None = Field(None, description="Maximum gradient norm (clipping).")
    schedule: Schedule = Field(Schedule(), description="Learning-rate schedule.")
    augment: Augment = Field(Augment(), description="Augmentation of the training images.")
    precision: Literal["auto", "fp32", "tf32", "bf16", "fp16"] = Field(
        "auto",
        description="Precision of the forward pass (autocast); `fp16` uses loss scaling. `auto`: `bf16` on NVIDIA "
        "Ampere and later, `fp16` on Volta and Turing, `fp32` elsewhere.",
    )
    activation_checkpointing: bool = Field(
        False, description="Recompute activations in the backward pass: less memory, about a third more computation."
    )
    compile: bool | Literal["blocks"] = Field(
        False,
        description="Compile the model and its loss with `torch.compile`; on a single GPU without accumulation, with "
        "CUDA graphs. `blocks`: only the repeated blocks of the model, each by itself, which compiles faster.",
    )
    seed: NonNegativeInt = Field(
        0, description="Seed of the initial weights, the order of images and the augmentation."
    )
    deterministic: bool = Field(
        False,
        description="Use deterministic kernels only: on the same number of the same GPUs, a training gives the same "
        "numbers bit for bit, also if it was interrupted. It is slower; an operation of the model without a "
        "deterministic kernel, such as the pooling of `cnn` on a GPU, is an error.",
    )

    @property
    def content(self) -> dict[str, Any]:
        """The settings that identify the result of the training; a file of weights is there by its content."""
        content = self.model_dump(mode="json", exclude_defaults=True)
        return identifying(content | {"lr": self.lr, "weight_decay": self.used_weight_decay})

    @property
    def process_mib(self) -> float:
        """The host memory of a process that trains it, without its dataset, if none was measured."""
        return super().process_mib + PARAMETER_BYTES * 1e6 * count_parameters(self.model, self.model_args) / 2**20

    @property
    def has_user_loss(self) -> bool:
        """Whether the loss is a user's own."""
        return ":" in self.loss

    @property
    def further_metrics(self) -> list[str]:
        """The names of the further metrics as columns."""
        return [f"val_{name}" for name in self.metrics]

    @property
    def epoch_metrics(self) -> list[str]:
        """The metrics by which an epoch can be the best."""
        return [*MONITORED, *self.further_metrics]

    def judged_by(self, metric: str) -> "Training":
        """This training, whose best epoch is by a metric."""
        return Training.model_construct(self.model_fields_set, **dict(self) | {"metric": metric})

    def images_per_step(self, *, gpus: int = 1, is_strong: bool = False) -> int:
        """The global batch; under strong scaling, `batch_size` is the batch size of all GPUs together."""
        return self.batch_size if is_strong else self.batch_size * self.accumulation * gpus

    @property
    def used_weight_decay(self) -> float:
        """The weight decay, also where the config gives none."""
        if self.weight_decay is not None:
            return self.weight_decay
        return ADAMW_DECAY if self.optimizer == "adamw" else 0.0

    def ema_decay_after(self, steps: int) -> float:
        """The decay of the average of the weights in the update after `steps` others: a ramp up to `ema_decay`."""
        return min(self.ema_decay or 0.0, (1 + steps) / (10 + steps))

    @property
    def import_paths(self) -> dict[str, tuple[str, str]]:
        """The import paths of a user's code, with their roles, by key."""
        if ":" not in self.model and not self.has_user_loss and not self.metrics:
            return {}  # quickly, for the trials of a large sweep
        paths = {"model": (self.model, "model"), "loss": (self.loss, "loss")}
        paths |= {f"metrics.{name}": (path, "metric") for name, path in self.metrics.items()}
        return {key: found for key, found in paths.items() if ":" in found[0] and not found[0].startswith(TIMM)}

    def _problems(self) -> Iterator[str]:
        if taken := sorted({*EPOCH_METRICS} & {*self.further_metrics}):
            yield f"{taken[0]} is a metric of its own: use another name"
        if self.has_user_loss and self.label_smoothing:
            yield "label_smoothing is for the loss cross_entropy, not for your own"
        if unknown := sorted({*self.metric_args} - {*self.metrics}):
            yield f"metric_args: there is no metric {unknown[0]}; known: {', '.join(self.metrics) or 'none'}"
        if self.loss_args and not self.has_user_loss:
            yield "loss_args are for a loss of your own"
        weights = self.pretrained or ""
        problem = ""
        if name := re.fullmatch(r"\w+_Weights\.(\w+)", weights):
            problem = f"includes the name of the model: write {name[1]}"
        elif weights == "DEFAULT":
            problem = "depends on the version of torchvision: write a name such as IMAGENET1K_V1"
        elif is_published(weights) and (self.model in BUILT_IN_MODELS or ":" in self.model):
            problem = f"belongs to a torchvision model, and {self.model} is not one: give a file"
        elif is_published(weights) and self.small_images:
            problem = "has a stem for large images: leave out small_images"
        if problem:
            yield f"pretrained: {weights} {problem}"


class Training(Train):
    """A training with the metric of its best epoch and of `patience`, which its sweep or study names."""

    metric: str = DEFAULT_METRIC

    @property
    def monitored(self) -> str:
        """The metric of `patience`."""
        return self.metric

    @property
    def known_metrics(self) -> list[str]:
        """The columns of its metrics."""
        return [*TABLE_METRICS, *self.further_metrics, f"best_{self.metric}"]
