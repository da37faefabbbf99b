"""One training configuration as typed models: what a trial of a sweep or a scale of a study trains.

Part of the config, see `config.py`; a key that changes no result must not stand here, since this is what a trial's
identity is made of.
"""

from typing import Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)
from pydantic_core import PydanticCustomError


class Section(BaseModel):
    """A part of the config: unknown keys are errors, and nothing changes after validation."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


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
