"""The whole config file as a typed model, from which schema, defaults and option tables are generated.

`tools/options.py` writes the descriptions of all fields to `workflow/schemas/config.schema.json` and `docs/options.md`.
`load.py` reads a file and reports its errors. The larger sections have modules of their own.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, NonNegativeFloat, PositiveFloat, PositiveInt

from trainyard.config.datasets import Dataset
from trainyard.config.scaling import AnyScaling, Scaling
from trainyard.config.sweep import AnySweep, Sweep, Unit
from trainyard.config.train import Name, Section, hint

EnvModule = Annotated[
    str, Field(pattern=r"^[\w.+/-]+$"), hint("an environment module is named as in `module load`: cuda/13.0")
]
TreeModel = Literal["xgboost", "lightgbm"]
ClassName = Annotated[str, BeforeValidator(lambda value: value if isinstance(value, str) else str(value))]
TREE_TRIAL: Final = "trainyard.trees.boosting:fit_trial"  # `function` of a sweep over tree models
_OF_TRIALS: Final = ("rounds", "early_stopping", "folds", "class_weights")  # options of a study that a trial has, too


class Trees(Section):
    """Tree models on a staged dataset (flattened images) or a table."""

    dataset: Name = Field(description="One of `datasets`.")
    models: list[TreeModel] = Field(["xgboost", "lightgbm"], description="Models to train.", min_length=1)
    cpus: PositiveInt = Field(8, description="CPUs to request; the models use one thread per available CPU.")
    rounds: PositiveInt = Field(100, description="Number of boosting rounds; with `early_stopping`, at most.")
    early_stopping: PositiveInt | None = Field(
        None,
        description="End a fit when the loss of the validation rows has had no new best for this number of rounds, and "
        "keep the rounds up to the best one. The validation scores are then too good: the rows have chosen the rounds.",
    )
    folds: Annotated[int, Field(ge=2)] | None = Field(
        None,
        description="Cross-validation: the training rows in this number of parts, stratified by class, each of which "
        "is predicted by a fit to the others, with the rounds that `early_stopping` has found. The table has mean and "
        "standard deviation of the metric as `cv` and `cv_deviation`.",
    )
    class_weights: Literal["balanced"] | dict[ClassName, PositiveFloat] | None = Field(
        None,
        description="Weights of the training rows by class, e.g. `{rare: 5}` (1 for all others), or `balanced`: "
        "inversely proportional to the number of rows of a class.",
    )
    params: dict[TreeModel, dict[str, Any]] = Field(
        {},
        description="Further parameters per model, under any of the library's names, e.g. `{lightgbm: {num_leaves: "
        "15}}`. They replace what Trainyard sets: the rounds, `n_jobs` and `random_state`. With `device: cuda`, the "
        "job requests a GPU.",
    )

    @classmethod
    def of_trial(cls, arguments: Mapping[str, Any]) -> "Trees":
        """The study of the one model that a trial of `TREE_TRIAL` fits, from the trial's arguments.

        Raises:
            ValidationError: they are not valid.
        """
        given = dict(arguments)
        options = {key: given.pop(key) for key in _OF_TRIALS if key in given}
        model = given.pop("model", "xgboost")
        return cls.model_validate({"dataset": "trial", "models": [model], "params": {str(model): given}, **options})

    def given(self, model: TreeModel) -> dict[str, Any]:
        """The parameters of a model in the config."""
        return self.params.get(model, {})

    @property
    def needs_gpu(self) -> bool:
        """Whether one of the models is fitted on a GPU."""
        return any(gpu_parameter(self.given(model)) for model in self.models)


def gpu_parameter(params: Mapping[str, Any]) -> str:
    """The parameter by which a tree model chooses a GPU, as `device: cuda`; "" if none does."""
    chosen = {name: str(params[name]) for name in ("device", "device_type") if name in params}
    wanted = (f"{name}: {value}" for name, value in chosen.items() if value.lower().startswith(("cuda", "gpu")))
    return next(wanted, "")


class Pricing(Section):
    """Prices, from which costs are computed."""

    gpu_hour: NonNegativeFloat | None = Field(None, description="Price of a GPU-hour, in your currency.")
    cpu_hour: NonNegativeFloat | None = Field(
        None, description="Price of a CPU-hour of a sweep without GPUs (`slots: {gpus_per_node: 0}`)."
    )

    kwh: NonNegativeFloat | None = Field(
        None, description="Price of a kilowatt-hour, for the energy of the GPUs of a scaling study as they measure it."
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

    def evidence_of(self, name: str, results: Path) -> dict[str, str | None]:
        """The files from which the search of a sweep learns, by path: the sweep of this config whose table it is."""
        tables = {(results / "sweeps" / each / "trials.csv").resolve(): each for each in self.sweeps}
        search = self.sweeps[name].search
        return {path: tables.get(Path(path).resolve()) for path in (search.evidence if search else ())}
