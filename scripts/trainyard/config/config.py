"""The whole config file as a typed model, from which schema, defaults and option tables are generated.

`tools/options.py` writes the descriptions of all fields to `workflow/schemas/config.schema.json` and `docs/options.md`.
`load.py` reads a file and reports its errors. The larger sections have modules of their own.
"""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, NonNegativeFloat, PositiveInt, field_validator

from trainyard.config.datasets import Dataset
from trainyard.config.scaling import AnyScaling, Scaling
from trainyard.config.sweep import AnySweep, Sweep, Unit
from trainyard.config.train import Name, Section, hint

EnvModule = Annotated[
    str, Field(pattern=r"^[\w.+/-]+$"), hint("an environment module is named as in `module load`: cuda/13.0")
]
TreeModel = Literal["xgboost", "lightgbm"]
_DEVICES = {"device", "device_type", "tree_method"}  # parameters by which the libraries choose a GPU


class Trees(Section):
    """Tree models on a staged dataset (flattened images) or a table."""

    dataset: Name = Field(description="One of `datasets`.")
    models: list[TreeModel] = Field(["xgboost", "lightgbm"], description="Models to train.", min_length=1)
    cpus: PositiveInt = Field(8, description="CPUs to request; the models use one thread per available CPU.")
    rounds: PositiveInt = Field(100, description="Number of boosting rounds.")
    params: dict[TreeModel, dict[str, Any]] = Field(
        {},
        description="Further parameters per model, under the library's names, e.g. `{lightgbm: {num_leaves: 15}}`. "
        "`n_estimators`, `n_jobs` and `random_state`, which Trainyard sets, may be given under any of their names.",
    )

    @field_validator("params")
    @classmethod
    def _refuse_gpus(cls, params: dict[TreeModel, dict[str, Any]]) -> dict[TreeModel, dict[str, Any]]:
        for model, given in params.items():
            for name in given.keys() & _DEVICES:
                if str(given[name]).lower().startswith(("cuda", "gpu")):
                    raise ValueError(
                        f"{model}: {name}: {given[name]}: tree models train on CPUs, since their job requests no GPU: "
                        "remove it; on a GPU, train them as a `command` of a sweep"
                    )
        return params


class Pricing(Section):
    """Prices, from which costs are computed."""

    gpu_hour: NonNegativeFloat | None = Field(None, description="Price of a GPU-hour, in your currency.")
    cpu_hour: NonNegativeFloat | None = Field(
        None, description="Price of a CPU-hour of a sweep without GPUs (`slots: {gpus_per_node: 0}`)."
    )

    def per_hour(self, unit: Unit) -> float | None:
        """Price of an hour of a GPU or CPU; None if it is not known."""
        return self.gpu_hour if unit == "GPU" else self.cpu_hour


class Data(Section):
    """How data is staged and loaded."""

    local: Annotated[str, BeforeValidator(lambda value: "off" if value is False else value)] = Field(  # YAML's `off`
        "auto",
        description="Copy of the data on the node's local disk, one per node and job: `off`, a folder, or `auto`: in a "
        "Slurm job with data on a network file system, in the first of `$SLURM_TMPDIR`, `$TMPDIR`, `/tmp` and "
        "`/dev/shm` that has enough space. A copy in a folder that takes host memory (tmpfs) may take a quarter of the "
        "job's memory.",
    )
    downloads: str = Field("~/.cache/trainyard", description="Folder for downloads.")


class Config(Section):
    """The whole config file."""

    datasets: dict[Name, Dataset] = Field({}, description="Datasets by name.")
    data: Data = Field(Data(), description="How data is staged and loaded.")
    sweeps: dict[Name, AnySweep] = Field({}, description="Sweeps by name.")
    scaling: dict[Name, AnyScaling] = Field({}, description="Scaling studies by name.")
    trees: dict[Name, Trees] = Field({}, description="Studies of tree models by name.")
    pricing: Pricing = Field(Pricing(), description="Prices, from which costs are computed.")
    tensorboard: bool = Field(
        False,
        description="Write event files for TensorBoard to `results/tensorboard`, of all sweeps and scaling studies.",
    )
    env_modules: list[EnvModule] = Field(
        [], description="Environment modules that each job loads, if Snakemake runs with `--sdm env-modules`."
    )

    def studies(self) -> Iterator[tuple[str, Sweep | Scaling]]:
        """Each sweep and scaling study, with its place in the config."""
        yield from ((f"sweeps.{name}", sweep) for name, sweep in self.sweeps.items())
        yield from ((f"scaling.{name}", study) for name, study in self.scaling.items())
