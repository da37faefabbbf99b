"""The section `scaling` of the config: one training at several scales."""

from typing import Annotated, Any, Literal

from pydantic import (
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    StringConstraints,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from trainyard.config.sweep import Name
from trainyard.config.train import Section, Train
from trainyard.config.user_programs import (
    GRACE_DESCRIPTION,
    GRACE_SECONDS,
    SCALE_PLACEHOLDERS,
    Command,
    GraceSeconds,
    Metrics,
    check_quoting,
    check_resume,
    find_placeholders,
    insert_resume_option,
)

Scale = Annotated[str, StringConstraints(pattern=r"^[1-9][0-9]*x[1-9][0-9]*$")]
EFFICIENT = 0.7  # the parallel efficiency that a scale must have to pay


class Scaling(Section):
    """One training at several scales, each written `<nodes>x<gpus per node>`."""

    dataset: Name | None = Field(None, description="One of `datasets`; a script of yours can do without.")
    train: Train = Field(Train(), description="What to train.")
    script: Command | None = Field(
        None,
        description="Instead of `train`, a training script of yours with its options, as after `python`. `{lr}` stands "
        "for the argument `lr`, and so do `{out_dir}`, `{resume_from}`, `{nodes}`, `{gpus}`, `{gpus_per_node}`, "
        "`{cpus_per_gpu}`, `{dataset}` and `{seed}` for theirs.",
    )
    launcher: Literal["torchrun", "accelerate", "deepspeed", "srun"] = Field(
        "torchrun",
        description="What starts a `script` on every GPU. `srun` does it directly, with RANK, LOCAL_RANK, WORLD_SIZE, "
        "MASTER_ADDR and MASTER_PORT set.",
    )
    launcher_options: list[str] = Field([], description="Further options of the launcher, as a list of words.")
    python: str | None = Field(
        None, description="The Python that runs `script` and launcher; by default the one that runs Trainyard."
    )
    args: dict[str, Any] = Field({}, description="Arguments of a `script`.")
    metrics: Metrics | None = Field(
        None, description="Where a `script` tells its metrics: `images_per_second`, `train_loss`, `val_accuracy`, ..."
    )
    checkpoint: str | None = Field(
        None,
        description="Files in `{out_dir}` that a `script` can go on from: `{resume_from}` is the newest, if any. After "
        "a run that resumed from it and failed, it is the one before, then nothing.",
    )
    resume: str | None = Field(
        None,
        description="What a `script` is given that has something to go on from, as in `--resume {resume_from}`: in the "
        "place of `{resume}`, or else at its end.",
    )
    grace_seconds: GraceSeconds = Field(GRACE_SECONDS, description=GRACE_DESCRIPTION.format(what="`script`"))
    scales: list[Scale] = Field(description="Scales, e.g. `[1x1, 1x2]`; the first is the baseline.", min_length=1)
    mode: Literal["weak", "strong"] = Field(
        "weak", description="`weak`: `batch_size` is per GPU. `strong`: it is the global batch, shared among the GPUs."
    )
    repeats: PositiveInt = Field(
        1, description="Trainings of each scale, each with a seed of its own; the table gives medians and spread."
    )
    cpus_per_gpu: PositiveInt = Field(1, description="CPUs, and so threads, per GPU.")
    telemetry_seconds: PositiveFloat = Field(
        5.0, description="Seconds between two looks at GPUs, CPUs and memory while it trains."
    )
    retrain: NonNegativeInt = Field(0, description="Raise to train again.")

    def runs(self, scale: str) -> list[str]:
        """The trainings of a scale, as their folders are named: `4x2`, `4x2/repeat-2`, `4x2/repeat-3`."""
        return [scale, *(f"{scale}/repeat-{number}" for number in range(2, self.repeats + 1))]

    @property
    def program(self) -> Command | None:
        """The `script` as it begins: what it is given to resume with changes no result."""
        return self.script and insert_resume_option(self.script, None, self.args)

    @field_validator("script")
    @classmethod
    def _can_be_quoted(cls, script: Command | None) -> Command | None:
        return script and check_quoting(script, in_shell=False)

    @model_validator(mode="after")
    def _is_one_kind(self) -> "Scaling":
        if self.script is None:
            if self.dataset is None:
                raise PydanticCustomError("kind", "a training needs a `dataset`; or give a `script`")
            of_scripts = ("launcher", "launcher_options", "python", "args", "metrics", "checkpoint", "resume",
                          "grace_seconds")  # fmt: skip
            if given := [name for name in of_scripts if name in self.model_fields_set]:
                raise PydanticCustomError("kind", "{name} is for a script", {"name": given[0]})
            return self
        if "train" in self.model_fields_set:
            raise PydanticCustomError("kind", "give train or script, not both")
        used = {name.split(".")[0] for name in find_placeholders(self.script) | find_placeholders(self.resume or "")}
        if unknown := sorted(
            used - {*self.args, *SCALE_PLACEHOLDERS, *(["resume"] if self.resume is not None else [])}
        ):
            message = "the script has {name} in braces, which is not in `args`"
            raise PydanticCustomError("script", message, {"name": unknown[0]})
        if unused := sorted(self.args.keys() - used):
            message = "{name} of `args` is not in the script: write it in braces where it is to stand"
            raise PydanticCustomError("script", message, {"name": unused[0]})
        if "resume_from" in used and self.checkpoint is None:
            raise PydanticCustomError("script", "`resume_from` needs `checkpoint`: the files that it may stand for")
        check_resume(self.script, self.resume, self.args, in_shell=False)
        check_quoting(self.resume or "", in_shell=False)
        return self

    @model_validator(mode="after")
    def _shares_the_batch(self) -> "Scaling":
        if self.script is not None:
            return self
        batch = self.train.global_batch_size
        if self.mode == "weak" and batch is not None:
            message = "weak scaling fixes the batch of a GPU: give batch_size, or have `mode: strong`"
            raise PydanticCustomError("batch", message)
        sizes = [nodes * gpus * self.train.accumulation for nodes, gpus in map(split_scale, self.scales)]
        batch = batch or self.train.batch_size
        wrong = [scale for scale, size in zip(self.scales, sizes, strict=True) if batch % size]
        if self.mode == "strong" and wrong:
            times = f" in {self.train.accumulation} parts" if self.train.accumulation > 1 else ""
            message = "the global batch of {batch} cannot be shared evenly{times} at {scales}"
            raise PydanticCustomError("batch", message, {"batch": batch, "times": times, "scales": ", ".join(wrong)})
        if len(set(self.scales)) < len(self.scales):
            raise PydanticCustomError("scales", "a scale is listed twice")
        return self


def split_scale(run: str) -> tuple[int, int]:
    """`4x2`, or a repeat of it, as (nodes, GPUs per node)."""
    nodes, gpus = run.partition("/")[0].split("x")
    return int(nodes), int(gpus)


def repeat_of(run: str) -> int:
    """Which repeat a run of a scale is, from 1: of `4x2` the first, of `4x2/repeat-3` the third."""
    return int(run.partition("/repeat-")[2] or 1)
