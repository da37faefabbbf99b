"""The config file as typed models: the one truth from which schema, defaults and option tables are generated.

Every field has a description; `scripts/options.py` turns them into `workflow/schemas/config.schema.json` and the
tables of `config/README.md`. Reading a file and reporting its errors is `configfile.py`; `train` is in `spec.py`,
`datasets` in `dataspec.py`.
"""

import re
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    Discriminator,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    StringConstraints,
    Tag,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from trainyard.dataspec import Dataset
from trainyard.spec import Section, Train

NAME_PATTERN = r"[A-Za-z0-9][A-Za-z0-9_-]*"
Name = Annotated[str, StringConstraints(pattern=f"^{NAME_PATTERN}$", max_length=64)]
Scale = Annotated[str, StringConstraints(pattern=r"^[1-9][0-9]*x[1-9][0-9]*$")]


# ---- sweeps


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
        """All values, in order; whole numbers stay whole."""
        count = int((self.stop - self.start) / self.step + 1e-9) + 1
        return [self.start + index * self.step for index in range(count)]


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


class Slots(Section):
    """What the sweep's job asks for, and how it is shared out."""

    auto: bool = Field(False, description="Ask for as many nodes and GPUs as suit `goal`, at most those given here.")
    nodes: PositiveInt = Field(1, description="Nodes of the job.")
    gpus_per_node: PositiveInt = Field(1, description="GPUs of a node. Without GPUs they are only counted.")
    gpus_per_trial: PositiveFloat | Literal["auto"] = Field(
        1.0,
        description="Share of a GPU per trial (0.25: four trials on one), or GPUs. `auto`: the first trials have a GPU "
        "each, and from the memory and time that they take of it, it is worked out how many share one from then on.",
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


class Sweep(Section):
    """A named set of trials: `grid`, `trials` and `sample` each add theirs; what comes out twice is trained once."""

    dataset: Name = Field(description="One of `datasets`.")
    train: Train = Field(Train(), description="What all trials have in common.")
    grid: dict[str, GridValues] = Field(
        {},
        description="Per key of `train` (dots reach inside) a list or `{start: , stop: , step: }`; all combinations.",
    )
    trials: list[dict[str, Any]] = Field([], description="Configurations written out, each as keys of `train`.")
    sample: Sample | None = Field(None, description="Random configurations.")
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
    cost: str | None = Field(
        None,
        description="Relative cost before there is evidence: arithmetic on keys, e.g. `epochs * model_args.blocks`.",
    )
    retrain: Retrain = Field(0, description="Raise to train again: a number for all trials, or `{trial: number}`.")

    @property
    def deadline_seconds(self) -> float | None:
        """Within which the sweep is to be done, if its goal is a deadline."""
        if not self.goal.startswith("deadline"):
            return None
        number, unit = re.findall(r"[0-9.]+|[a-z]+", self.goal)[1:]
        return float(number) * {"min": 60, "h": 3600, "d": 86400}[unit]


# ---- scaling studies, tree models, pricing


EFFICIENT = 0.7  # the parallel efficiency that a scale must have to pay


class Scaling(Section):
    """One training at several scales, each written `<nodes>x<gpus per node>`."""

    dataset: Name = Field(description="One of `datasets`.")
    train: Train = Field(Train(), description="What to train.")
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

    @model_validator(mode="after")
    def _shares_the_batch(self) -> "Scaling":
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


TreeModel = Literal["xgboost", "lightgbm"]


class Trees(Section):
    """Tree models on a staged dataset (images flattened) or a table."""

    dataset: Name = Field(description="One of `datasets`.")
    models: list[TreeModel] = Field(["xgboost", "lightgbm"], description="Which models.", min_length=1)
    cpus: PositiveInt = Field(8, description="CPUs to ask for; the models use as many threads as there are.")
    rounds: PositiveInt = Field(100, description="Boosting rounds.")
    params: dict[TreeModel, dict[str, Any]] = Field(
        {}, description="Further parameters of a model, in its own words, e.g. `{lightgbm: {num_leaves: 15}}`."
    )
    seed: int = Field(0, description="Seed of the models.")
    retrain: NonNegativeInt = Field(0, description="Raise to train again.")


class Pricing(Section):
    """What a GPU costs."""

    gpu_hour: NonNegativeFloat | None = Field(None, description="Price of one GPU for one hour, in your currency.")


class Data(Section):
    """How data are read."""

    local: str = Field(
        "auto",
        description="Copy on a node's own disk, one per node and job: `off`, a folder for it, or `auto`: in a Slurm "
        "job, for data on a network file system, in the first of `$SLURM_TMPDIR`, `$TMPDIR`, `/tmp`, `/dev/shm` "
        "with room.",
    )
    downloads: str = Field("~/.cache/trainyard", description="The folder that downloads are kept in.")
    staging_cpus: PositiveInt = Field(8, description="CPUs to ask for to read image files with.")
    on_device: bool | Literal["auto"] = Field(
        "auto",
        description="Keep all images in the GPU's memory; `auto`: where they take at most half of what is free, and "
        "else read the next batches ahead.",
    )
    workers: PositiveInt | None = Field(
        None, description="Processes per GPU that run your own dataset's code; by default all CPUs but one."
    )
    prefetch: PositiveInt = Field(2, description="Batches that are read ahead, or by each worker.")


class Tables(Section):
    """How tables are written: always as CSV, which pandas and spreadsheets read without being told how."""

    parquet: bool = Field(False, description="Write each table as Parquet, too, beside its CSV.")


class Config(Section):
    """The whole file."""

    datasets: dict[Name, Dataset] = Field({}, description="Datasets by name.")
    data: Data = Field(Data(), description="How data are read.")
    sweeps: dict[Name, Sweep] = Field({}, description="Sweeps by name.")
    scaling: dict[Name, Scaling] = Field({}, description="Scaling studies by name.")
    trees: dict[Name, Trees] = Field({}, description="Studies of tree models by name.")
    pricing: Pricing = Field(Pricing(), description="Prices, for the columns `cost`.")
    tables: Tables = Field(Tables(), description="How tables are written.")


VARIED_KEY = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*$")
