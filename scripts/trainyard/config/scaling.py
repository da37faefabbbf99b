"""The section `scaling` of the config: one training at several scales."""

import math
import re
import shlex
from abc import abstractmethod
from collections.abc import Iterator
from functools import partial
from pathlib import Path, PurePath
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    AfterValidator,
    Discriminator,
    Field,
    NonNegativeInt,
    PositiveInt,
    StringConstraints,
    Tag,
)

from trainyard.config.metric_names import DEFAULT_METRIC, MINIMIZED_IN_WORDS
from trainyard.config.placeholders import SCALE_PLACEHOLDERS, Command, check_quoting, insert_resume_option
from trainyard.config.settings import SETTINGS
from trainyard.config.train import (
    PROFILE,
    RESULT_VERSION,
    Name,
    ProfiledSteps,
    TorchSection,
    Train,
    Training,
    hint,
    invalid,
)
from trainyard.config.user_programs import CommandOptions, Study
from trainyard.utils.errors import UserError

Scale = Annotated[
    str,
    StringConstraints(pattern=r"^[1-9][0-9]*x[1-9][0-9]*$", max_length=12),
    hint(
        "a scale is <nodes>x<gpus per node>, as in 2x4; without GPUs, train in a sweep with `slots: {gpus_per_node: 0}`"
    ),
]
LAUNCHERS = ("torchrun", "accelerate", "deepspeed", "srun")
MOST_CPUS_PER_GPU = 8  # by default
ENOUGH_CPUS_PER_GPU = 4  # to launch kernels, load images, and for the threads of NCCL
EFFICIENT = 0.7  # minimum parallel efficiency of a scale that pays off


class Scaling(Study):
    """One training at several scales, each written `<nodes>x<gpus per node>`: by `train` or a `script`."""

    dataset: Name | None = Field(None, description="One of `datasets`. Optional for your own program.")
    scales: list[Scale] = Field(description="Scales, e.g. `[1x1, 1x2]`; the first is the baseline.", min_length=1)
    mode: Literal["weak", "strong"] = Field(
        "weak", description="`weak`: `batch_size` is per GPU. `strong`: it is the global batch size."
    )
    repeats: int = Field(
        1, ge=1, le=1000, description="Runs of each scale, with different seeds; the table has medians and spread."
    )
    cpus_per_gpu: PositiveInt | None = Field(
        None,
        description="CPUs, and threads of a rank, per GPU. By default, as many as the nodes have for each GPU, at most "
        f"{MOST_CPUS_PER_GPU}; 1 if that is not known, or without a GPU.",
    )
    retrain: NonNegativeInt = Field(0, description="Increase to train again.")

    def runs(self, scale: str) -> list[str]:
        """The names of a scale's runs, which are paths of folders: `4x2`, `4x2/repeat-2`, `4x2/repeat-3`."""
        return [scale, *(f"{scale}/repeat-{number}" for number in range(2, self.repeats + 1))]

    @abstractmethod
    def result_content(self, run: str, dataset: str) -> Any:
        """Everything that changes the result of a run; `dataset` is the digest of the staged dataset."""

    @property
    def run_count(self) -> int:
        """The number of runs of all scales."""
        return len(self.scales) * self.repeats

    def summaries(self, folder: Path) -> dict[str, list[Path]]:
        """The `summary.json` of each run in the folder of the study, by scale."""
        return {scale: [folder / run / "summary.json" for run in self.runs(scale)] for scale in self.scales}

    def _problems(self) -> Iterator[str]:
        if len(set(self.scales)) < len(self.scales):
            yield "a scale is listed twice"

    def describe_step(self, run: str) -> str:
        """What a run's scale changes in a step, for the plan; "" if it is not known."""
        return ""


class Ddp(TorchSection):
    """DistributedDataParallel, on several GPUs. All other keys are arguments of torch's class, by their own names.

    For example, `find_unused_parameters: true` is for a model of your own that skips layers in some steps. Parameters
    that no step uses are found without it.
    """

    timeout_minutes: float = Field(
        10.0,
        gt=0,
        le=7 * 24 * 60,
        description="A training fails when a rank has waited so long for the others in a collective operation. It must "
        "exceed the time to write a checkpoint; until the first step, it is at least 30 minutes.",
    )


class TrainScaling(Scaling):
    """A study of Trainyard's training loop."""

    dataset: Name = Field(description="One of `datasets`.")
    train: Train = Field(Train(), description="The training configuration.")
    metric: str = Field(
        DEFAULT_METRIC,
        description="The metric of the best epoch and of `patience`: `val_accuracy`, `val_loss`, `train_accuracy`, "
        "`train_loss`, or `val_<name>` of one of the `metrics`. The smallest value is the best for "
        f"{MINIMIZED_IN_WORDS}, the largest for all others.",
    )
    profile: ProfiledSteps | None = Field(None, description=PROFILE)
    lr_scaling: Literal["none", "linear", "sqrt"] = Field(
        "none",
        description="How weak scaling, whose global batch grows with the number N of GPUs, sets the learning rate. "
        "`none`: `lr` at every scale; `linear`: N times `lr` (Goyal et al. 2017, for `sgd`, with warmup); `sqrt`: the "
        "square root of N times `lr` (Malladi et al. 2022, for `adam` and `adamw`).",
    )
    ddp: Ddp = Field(Ddp(), description="Options of DistributedDataParallel.")
    keep_checkpoints: Literal["latest", "all"] = Field(
        "latest",
        description="`latest`: the last two checkpoints stay, and that of the best epoch; there is one after an epoch, "
        "at most once a minute, one at the end, and one where a training is stopped. `all`: there is one for each "
        "epoch, with its number in the name, and all stay.",
    )

    @property
    def base_training(self) -> Train:
        """The section `train`."""
        return self.train

    def epoch_metric(self, train: Train) -> str | None:
        """The metric of the best epoch."""
        return self.metric

    def result_content(self, run: str, dataset: str) -> dict[str, Any]:
        """Everything that changes the result of a run such as `4x2`; `dataset` is the digest of the staged dataset."""
        return {
            "train": self.train_at(run).content,
            "mode": self.mode,
            "retrain": self.retrain,
            "scale": run,
            "dataset": dataset,
            "version": RESULT_VERSION,
        }

    def largest_step(self, train: Train) -> tuple[int, str]:
        """The images of the largest step of a training, and at which scale it has them."""
        gpus = {scale: math.prod(split_scale(scale)) for scale in self.scales}
        largest = max(gpus, key=lambda scale: gpus[scale])
        return train.images_per_step(gpus=gpus[largest], is_strong=self.mode == "strong"), f" at {largest}"

    def lr_at(self, run: str) -> float:
        """The learning rate of a run such as `4x2`: `train.lr`, which is for one GPU, scaled by `lr_scaling`."""
        nodes, gpus = split_scale(run)
        factor = {"none": 1.0, "linear": float(nodes * gpus), "sqrt": math.sqrt(nodes * gpus)}
        return self.train.lr * factor[self.lr_scaling]

    def train_at(self, run: str) -> Training:
        """The training of a run such as `4x2/repeat-3`: with its learning rate, and the seed of its repeat."""
        seed = self.train.seed + repeat_of(run) - 1
        return self.train.model_copy(update={"lr": self.lr_at(run), "seed": seed}).judged_by(self.metric)

    def describe_step(self, run: str) -> str:
        """The global batch, which grows under weak scaling, and the learning rate."""
        if self.mode == "strong":
            return ""
        nodes, gpus = split_scale(run)
        images = self.train.images_per_step(gpus=nodes * gpus)
        return f", {images:,} images per step, lr {self.lr_at(run):g} (lr_scaling: {self.lr_scaling})"

    def _problems(self) -> Iterator[str]:
        yield from super()._problems()
        if self.metric not in (known := self.train.epoch_metrics):
            yield f"metric is {self.metric}, which no epoch reports; known: {', '.join(known)}"
        if self.mode == "strong" and self.lr_scaling != "none":
            yield "lr_scaling is for weak scaling: strong scaling fixes the global batch"
        sizes = [nodes * gpus * self.train.accumulation for nodes, gpus in map(split_scale, self.scales)]
        batch = self.train.batch_size
        wrong = [scale for scale, size in zip(self.scales, sizes, strict=True) if batch % size]
        if self.mode == "strong" and wrong:
            times = f" in {self.train.accumulation} parts" if self.train.accumulation > 1 else ""
            yield f"the global batch of {batch} cannot be split evenly{times} at {', '.join(wrong)}"


_Words = Annotated[Command, AfterValidator(partial(check_quoting, in_shell=False))]  # without a shell


def _check_launcher(launcher: Command) -> Command:
    if (name := split_launcher(launcher)[0]) not in LAUNCHERS:
        raise invalid(f"{name!r} is not a launcher; known: {', '.join(LAUNCHERS)}")
    return launcher


class ScriptScaling(CommandOptions, Scaling):
    """A study of a user's distributed training script, and its launcher."""

    command_key: ClassVar[str] = "script"
    own_folders: ClassVar[set[str]] = {"out_dir"}

    script: _Words = Field(
        description="Your own distributed training script with its options, as after `python`. Placeholders such as "
        "`{lr}` stand for arguments, `{args}` for all others, as in sweeps; `{settings}`, `{out_dir}`, "
        "`{resume_from}`, `{nodes}`, `{gpus}`, `{gpus_per_node}`, `{cpus_per_gpu}`, `{dataset}`, `{seed}` "
        "and `{port}` are predefined. `{512 // gpus}` is arithmetic.",
    )
    launcher: Annotated[_Words, AfterValidator(_check_launcher)] = Field(
        "torchrun",
        description="Launcher that starts the `script` on every GPU: `torchrun`, `accelerate`, `deepspeed` or `srun`, "
        "with further options, e.g. `accelerate --config_file accelerate.yaml`. `srun` starts the script directly, "
        "with RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set.",
    )

    per: Literal["gpu", "all"] | None = Field(
        None,
        description="Whether the `images_per_second` that the script reports is that of one GPU or of `all`.",
    )

    @property
    def command_line(self) -> Command:
        """The script as its launcher starts it."""
        script = self.script if isinstance(self.script, list) else [self.script]
        words = script if PurePath(script[0].split()[0]).name.startswith("python") else ["python", *script]
        return words if isinstance(self.script, list) else " ".join(words)

    def result_content(self, run: str, dataset: str) -> list[Any]:
        """Everything that changes the result of a run; its scale is in the path of its folder."""
        options = self.model_dump(mode="json", include={"env", "args", "workdir", "mode", "retrain"})
        options |= {"launcher": self.launcher_name, "launcher_options": self.launcher_options}
        options |= {SETTINGS: self.settings.digest} if self.settings else {}
        return [options | {"script": insert_resume_option(self.script, None, self.args)}, dataset]

    @property
    def launcher_name(self) -> str:
        """The launcher without its options."""
        return split_launcher(self.launcher)[0]

    @property
    def launcher_options(self) -> list[str]:
        """The further options of the launcher."""
        return split_launcher(self.launcher)[1:]

    def _problems(self) -> Iterator[str]:
        yield from super()._problems()
        self.check_arguments(self.script, self.args, SCALE_PLACEHOLDERS, program="the script")
        self.check_resume(self.script, self.args, in_shell=False)


def split_launcher(launcher: Command) -> list[str]:
    """The words of a launcher: its name and its options; [""] without any."""
    return (shlex.split(launcher) if isinstance(launcher, str) else launcher) or [""]


def study_of_trial(train: Training, dataset: str, *, scale: str, cpus: int) -> dict[str, Any]:
    """The scaling study whose only scale is the training of a trial, with so many CPUs per node.

    The global batch of a trial, `batch_size` x `accumulation`, does not depend on its number of GPUs.
    """
    nodes, gpus = split_scale(scale)
    training = train.model_dump(mode="json", exclude_unset=True)
    study = {"dataset": dataset, "train": training, "scales": [scale], "cpus_per_gpu": max(1, cpus // gpus)}
    if train.metric != DEFAULT_METRIC:
        study["metric"] = train.metric
    if nodes * gpus > 1:
        training["batch_size"] = train.batch_size * train.accumulation
        study["mode"] = "strong"
    return study


def _kind_of_study(given: Any) -> str:
    is_script = isinstance(given, ScriptScaling) or (isinstance(given, dict) and "script" in given)
    return "script" if is_script else "train"


AnyScaling = Annotated[
    Annotated[TrainScaling, Tag("train")] | Annotated[ScriptScaling, Tag("script")], Discriminator(_kind_of_study)
]


def split_scale(run: str) -> tuple[int, int]:
    """(nodes, GPUs per node) of a scale such as `4x2`, or of a repeat of it.

    Raises:
        UserError: it is not a scale.
    """
    parts = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)(/repeat-[1-9]\d*)?", run)
    if parts is None:
        raise UserError(f"{run!r} is not valid; a scale is <nodes>x<gpus per node>, as in 2x4")
    return int(parts[1]), int(parts[2])


def repeat_of(run: str) -> int:
    """The number of a repeat: 1 for the first run of a scale, `4x2`, and 3 for `4x2/repeat-3`."""
    return int(run.partition("/repeat-")[2] or 1)
