"""The config file as typed models: the one truth from which schema, defaults and option tables are generated.

Every field has a description; `tools/options.py` turns them into `workflow/schemas/config.schema.json` and the
tables of `config/README.md`. Reading a file and reporting its errors is `load.py`; each section is in the file of
its name, and what a user's program may be told is in `user_programs.py`.
"""

from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveInt,
)

from trainyard.config.datasets import Dataset
from trainyard.config.scaling import Scaling
from trainyard.config.sweep import Name, Sweep
from trainyard.config.train import Section

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

    local: Annotated[str, BeforeValidator(lambda value: "off" if value is False else value)] = Field(  # YAML's `off`
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
