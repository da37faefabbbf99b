"""One training configuration as typed models: what a trial of a sweep or a scale of a study trains.

Part of the config, see `config.py`; a key that changes no result must not stand here, since this is what a trial's
identity is made of.
"""

import types
from collections.abc import Iterator
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError


class Section(BaseModel):
    """A part of the config: unknown keys are errors, and nothing changes after validation."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, ser_json_inf_nan="constants")

    @model_validator(mode="before")
    @classmethod
    def _no_text_for_numbers(cls, given: Any) -> Any:
        """Pydantic would take text for a number, and so hide which of the two a value is."""
        if not isinstance(given, dict):
            return given
        names = cls._number_fields()
        if wrong := [name for name in given if name in names and _holds_text(given[name])]:
            kind = PydanticCustomError("number", "text where a number is meant: write it without quotes")
            details = [InitErrorDetails(type=kind, loc=(name,), input=given[name]) for name in wrong]
            raise ValidationError.from_exception_data(cls.__name__, details)
        return given

    @classmethod
    @cache
    def _number_fields(cls) -> list[str]:
        """The fields that hold numbers, or mappings to numbers, and never text."""
        members = {name: set(_members(field.annotation)) for name, field in cls.model_fields.items()}
        return [name for name, types in members.items() if types & {int, float} and str not in types]


def _members(annotation: Any) -> Iterator[Any]:
    """The types that a value may have, or the values of a mapping."""
    if get_origin(annotation) in (Union, types.UnionType):
        for member in get_args(annotation):
            yield from _members(member)
    elif get_origin(annotation) is Annotated:
        yield from _members(get_args(annotation)[0])
    elif get_origin(annotation) is dict:
        yield from _members(get_args(annotation)[1])
    else:
        yield annotation


def _holds_text(value: Any) -> bool:
    """Whether it is a number written as text, or a mapping with one."""
    if isinstance(value, dict):
        return any(map(_holds_text, value.values()))
    if not isinstance(value, str):
        return False
    try:
        float(value)
    except ValueError:
        return False
    return True


class Schedule(Section):
    """How the learning rate moves during training."""

    name: Literal["constant", "step", "cosine"] = Field(
        "constant",
        description="`step` multiplies by `gamma` every `step_size` epochs; `cosine` falls to zero, step by step.",
    )
    step_size: PositiveInt = Field(1, description="Epochs between two drops of `step`.")
    gamma: PositiveFloat = Field(0.1, description="Factor of a drop of `step`.")
    warmup_fraction: float = Field(
        0.0, ge=0, lt=1, description="Share of all steps in which the learning rate first rises from near zero."
    )


class Augment(Section):
    """Random changes to each training image, drawn anew in every epoch, made on the device while it is uint8."""

    crop_padding: NonNegativeInt = Field(
        0, description="Pixels that an image is moved by at most, in each direction; black moves in."
    )
    flip: bool = Field(False, description="Mirror every second image, left to right.")


class Train(Section):
    """One training configuration: what a trial or a scale of a study trains."""

    model: str = Field(
        "resnet", description="`resnet`, `cnn`, a torchvision classification model by its name, or a dotted path."
    )
    model_args: dict[str, Any] = Field({}, description="Keyword arguments of the model, e.g. `{blocks: 8, width: 16}`.")
    small_images: bool = Field(
        False, description="For torchvision's models and images of 32 to 64 pixels: a stem that does not shrink them."
    )
    epochs: PositiveInt = Field(1, description="Passes over the training images.")
    batch_size: PositiveInt = Field(
        128,
        description="Images that a GPU takes at once. Under strong scaling: images per step of all GPUs together.",
    )
    global_batch_size: PositiveInt | None = Field(
        None, description="Instead of `batch_size`: images per step of all GPUs together."
    )
    accumulation: PositiveInt = Field(
        1, description="Batches whose gradients are added up for one step (gradient accumulation)."
    )
    lr: PositiveFloat = Field(0.1, description="Learning rate at its highest.")
    optimizer: Literal["sgd", "adam", "adamw"] = Field("sgd", description="The optimiser.")
    momentum: float = Field(0.9, ge=0, lt=1, description="Momentum of `sgd`.")
    nesterov: bool = Field(False, description="Nesterov momentum, for `sgd`.")
    weight_decay: NonNegativeFloat = Field(0.0, description="Weight decay.")
    decay_all: bool = Field(True, description="Decay all parameters; `false` spares biases and those of norms.")
    label_smoothing: float = Field(0.0, ge=0, lt=1, description="Label smoothing of the training loss.")
    clip_norm: PositiveFloat | None = Field(None, description="Longest gradient, by its L2 norm; a longer one is cut.")
    schedule: Schedule = Field(Schedule(), description="The learning-rate schedule.")
    augment: Augment = Field(Augment(), description="Random changes to the training images.")
    precision: Literal["auto", "fp32", "tf32", "bf16", "fp16"] = Field(
        "auto",
        description="Arithmetic of the forward pass; `fp16` with loss scaling. `auto`: the best that the device is "
        "fast at: `bf16` from NVIDIA's Ampere on, `fp16` before, `fp32` on a CPU.",
    )
    channels_last: bool | Literal["auto"] = Field(
        "auto", description="Memory order of images in the model; `auto`: on a GPU in 16 bits, where it is faster."
    )
    activation_checkpointing: bool = Field(
        False, description="Compute activations twice instead of keeping them: less memory, a third more work."
    )
    compile: bool = Field(
        False, description="Compile the model with `torch.compile`; on a single GPU, with CUDA graphs."
    )
    sync_batchnorm: bool = Field(False, description="Batch normalisation over all GPUs together.")
    gradient_compression: Literal["none", "bf16"] = Field(
        "none", description="What gradients are sent as between GPUs: `bf16` halves the traffic."
    )
    seed: int = Field(0, description="Seed of weights, of the order of images and of their random changes.")

    @model_validator(mode="after")
    def _one_batch_size(self) -> "Train":
        if self.global_batch_size is None:
            return self
        if "batch_size" in self.model_fields_set:
            raise PydanticCustomError("batch", "give batch_size or global_batch_size, not both")
        if self.global_batch_size % self.accumulation:
            message = "global_batch_size ({global_batch_size}) is not a multiple of accumulation ({accumulation})"
            raise PydanticCustomError("batch", message, self.model_dump())
        return self

    @model_validator(mode="after")
    def _nesterov_has_momentum(self) -> "Train":
        if self.nesterov and (self.optimizer != "sgd" or not self.momentum):
            raise PydanticCustomError("nesterov", "nesterov needs optimizer sgd with momentum")
        return self
