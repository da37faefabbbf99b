"""The whole config file as a typed model, from which schema, defaults and option tables are generated.

`tools/options.py` writes the descriptions of all fields to `workflow/schemas/config.schema.json` and `docs/options.md`.
`load.py` reads a file and reports its errors. The larger sections have modules of their own.
"""

from collections.abc import Iterator
from typing import Annotated

from pydantic import BeforeValidator, Field, NonNegativeFloat

from trainyard.config.datasets import Dataset
from trainyard.config.scaling import AnyScaling, Scaling
from trainyard.config.sweep import AnySweep, Sweep, Unit
from trainyard.config.train import Name, Section, hint

EnvModule = Annotated[
    str, Field(pattern=r"^[\w.+/-]+$"), hint("an environment module is named as in `module load`: cuda/13.0")
]


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
    pricing: Pricing = Field(Pricing(), description="Prices, from which costs are computed.")
    notify: str | None = Field(
        None,
        min_length=1,
        description="Command for bash that gets the summary of a run on its standard input once the run ends, unless "
        "you interrupt it, e.g. `mail -s Trainyard me@example.org`. It runs where you start Snakemake.",
    )
    env_modules: list[EnvModule] = Field(
        [], description="Environment modules that each job loads, if Snakemake runs with `--sdm env-modules`."
    )

    def studies(self) -> Iterator[tuple[str, Sweep | Scaling]]:
        """Each sweep and scaling study, with its place in the config."""
        yield from ((f"sweeps.{name}", sweep) for name, sweep in self.sweeps.items())
        yield from ((f"scaling.{name}", study) for name, study in self.scaling.items())
