"""What the rules ask of the config: one small function per parameter or resource, so that rules only wire."""

import json
import math
import sys
from collections.abc import Callable, Collection, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal

from trainyard.cluster.slurm_queries import list_partitions, max_walltime_minutes
from trainyard.config.datasets import ImageFolder, Python, holds_images, is_downloaded
from trainyard.config.load import check_config
from trainyard.config.scaling import split_scale
from trainyard.config.train import NAME_PATTERN, Train
from trainyard.config.trials import RESULT_VERSION, expand
from trainyard.planning.forecast import costs, scale_row, summary, words
from trainyard.planning.plan import Plan, dataset_digest, plan_sweep
from trainyard.scaling.user_script import UserScript
from trainyard.utils.errors import UserError
from trainyard.utils.files import digest_of, write_json
from trainyard.utils.import_path import SCRIPTS, check_imports

Wildcards = Any  # snakemake.io.Wildcards: an attribute per wildcard

# The end of a message, filled in by Snakemake with what the job will get after all overrides. For a scheduler only: on
# one machine nobody is asked.
_ASKS = (
    "; to be submitted with {resources.hardware}, CPUs per node: {threads}, memory per node: {resources.mem}, "
    "walltime: {resources.runtime} min"
)


# The pictures of each kind of study, and what each shows; its caption is workflow/report/<kind>-<picture>.rst.
PICTURES: Final = {
    "data": {"samples": "samples", "classes": "class balance"},
    "sweeps": {
        "gantt": "slots over time",
        "packing": "array against packed",
        "waste": "GPU-seconds wasted",
        "prediction": "prediction against reality",
        "metric": "accuracy against the varied key",
        "loss": "loss curves",
    },
    "scaling": {
        "speedup": "speedup and efficiency",
        "steps": "where a step's time goes",
        "telemetry": "memory and utilisation over time",
        "loss": "loss against epochs and GPU-hours",
    },
    "trees": {"scores": "scores"},
}


class Workflow:
    """The checked config, as the Snakefile sees it."""

    name_pattern = NAME_PATTERN

    def __init__(
        self,
        raw: dict[str, Any],
        *,
        results: Path,
        default_resources: Mapping[str, Any] | None = None,
        executor: Callable[[], Any] = lambda: None,
    ) -> None:
        self.config = check_config(raw)
        self._results = results
        defaults = {name: str(resource.raw) for name, resource in (default_resources or {}).items()}
        self._executor = executor  # its settings; Snakemake has them only after it has read the Snakefile
        self._gpu_type, self._partition = defaults.get("gpu_type", ""), defaults.get("slurm_partition", "")
        self._runtime = defaults.get("runtime", "")  # minutes
        self._asks = _ASKS if self._runtime else ""
        resolved = self.config.model_dump(mode="json", exclude_unset=True)
        self.config_file = results / "configs" / f"{digest_of(resolved)}.json"
        self._resolved = resolved
        self._plans: dict[tuple[str, int, str], Plan] = {}

    def _plan(self, name: str, attempt: int) -> Plan:
        """A plan of its own for each attempt, since a retry asks for what is left, and for each state of the data.

        Snakemake asks before the dataset is staged, and again when the job is submitted.
        """
        key = (name, attempt, dataset_digest(self._results, self.config.sweeps[name]))
        if key not in self._plans:
            self._plans[key] = plan_sweep(self.config, name, self._results, limit_minutes=self._limit_minutes())
        return self._plans[key]

    def _limit_minutes(self) -> float:
        """The longest walltime that a job may ask for; infinite where each job finds its own partition."""
        return math.inf if getattr(self._executor(), "partition_config", None) else self._partition_minutes

    @cached_property
    def _partition_minutes(self) -> float:
        """That of the partition jobs go to; infinite where nobody is asked, or Slurm does not answer."""
        try:
            return max_walltime_minutes(list_partitions(), self._partition) if self._asks else math.inf
        except UserError:  # a dry run away from the cluster
            return math.inf

    def shell_prefix(self, deployment: Collection[Any]) -> str:
        """What each rule's command begins with: $SCRIPTS, $CONFIG, and the environment that runs Snakemake.

        With a `deployment` method (`--sdm conda`), Snakemake activates an environment for each rule itself.
        """
        folder = Path(sys.executable).parent
        path = "" if deployment else f'export PATH="{folder}:$PATH"; '
        return f'{path}SCRIPTS="{SCRIPTS}" CONFIG="{self.config_file}"; '

    def write_config(self) -> None:
        """Keep the config that this run works with, command-line overrides included: what the programs read."""
        write_json(self.config_file, self._resolved)

    def check_own_code(self) -> None:
        """What users bring must import; told before anything is submitted."""
        paths: dict[str, tuple[str, str]] = {}
        for name, dataset in self.config.datasets.items():
            if isinstance(dataset, Python):
                paths[f"datasets.{name}.factory"] = (dataset.factory, "dataset")
        for name, sweep in self.config.sweeps.items():
            if sweep.function:
                paths[f"sweeps.{name}.function"] = (sweep.function, "function")
            models = {spec.model for trial in expand(sweep).trials if isinstance(spec := trial.spec, Train)}
            paths |= {f"sweeps.{name}.train.model": (model, "model") for model in models if ":" in model}
        for name, study in self.config.scaling.items():
            if ":" in study.train.model:
                paths[f"scaling.{name}.train.model"] = (study.train.model, "model")
        check_imports(paths)

    def message(self, text: str) -> str:
        """What a job says of itself, followed by what it will ask of a scheduler."""
        return text + self._asks

    def dataset_of(self, kind: str) -> Callable[[Wildcards], list[str]]:
        """An input function: the receipt of the dataset that a study of this kind trains on, if it has one."""

        def receipt(wildcards: Wildcards) -> list[str]:
            dataset = self._study(kind, wildcards).dataset
            return [] if dataset is None else [str(self._results / "data" / dataset / "meta.json")]

        return receipt

    def source(self, wildcards: Wildcards) -> str:
        """Changes with the dataset's section of the config."""
        return self.config.datasets[wildcards.name].model_dump_json()

    def download(self, wildcards: Wildcards) -> list[str]:
        """The receipt of what a dataset must have downloaded, if it must."""
        needed = is_downloaded(self.config.datasets[wildcards.name])
        return [str(self._results / "data" / wildcards.name / "download.json")] if needed else []

    def staging_cpus(self, wildcards: Wildcards) -> int:
        """CPUs to ask for: several where there are files to read."""
        many = isinstance(self.config.datasets[wildcards.name], (ImageFolder, Python))
        return int(self.config.data.staging_cpus) if many else 1

    def plots(self) -> list[str]:
        """All pictures. Of datasets, those that hold images once they are staged have some."""
        images = [name for name, dataset in self.config.datasets.items() if holds_images(dataset)]
        named = {"data": images, **{kind: list(getattr(self.config, kind)) for kind in ("sweeps", "scaling", "trees")}}
        return [str(self._results / "plots" / kind / name / f"{picture}.svg")
                for kind, names in named.items() for name in names for picture in PICTURES[kind]]  # fmt: skip

    def pictures(self, kind: str) -> dict[str, str]:
        """What there is a picture of in a study of this kind, and what it shows."""
        return PICTURES[kind]

    def plan_options(self, wildcards: Wildcards) -> str:
        """What the program that plans must know of the profile."""
        if not self._asks:
            return ""
        limit = self._limit_minutes()
        return f"--runtime-minutes {self._runtime}" + ("" if math.isinf(limit) else f" --limit-minutes {limit:g}")

    # ---- hardware

    def gpu_model(self, wildcards: Wildcards) -> str:
        """The GPU type that the profile asks for, under the name by which the executor knows it; "" for any."""
        return self._gpu_type

    def cpu_hardware(self, wildcards: Wildcards) -> str:
        """What a job without GPUs asks for, in words."""
        return self._hardware(1, 0)

    def _gres(self, gpus: int) -> str:
        return ":".join(filter(None, ["gpu", self._gpu_type, str(gpus)]))

    def _hardware(self, nodes: int, gpus: int) -> str:
        each = f"{gpus} {self._gpu_type}".rstrip() if gpus else "none"
        return f"nodes: {nodes}, GPUs per node: {each}"

    # ---- sweeps

    def sweep_digest(self, wildcards: Wildcards) -> str:
        """Changes with the results that a sweep must have; what is pending must not be a parameter of its rule."""
        return self._plan(wildcards.name, 1).digest

    def pending(self, wildcards: Wildcards, attempt: int) -> int:
        """Trials without a result."""
        return len(self._plan(wildcards.name, attempt).pending)

    def sweep_summary(self, wildcards: Wildcards, attempt: int) -> str:
        """What running the sweep now would mean, in words; with what it costs where a scheduler is asked."""
        plan = self._plan(wildcards.name, attempt)
        return f"{summary(plan)}; {costs(plan)}" if self._asks and plan.pending else summary(plan)

    def sweep_minutes(self, wildcards: Wildcards, attempt: int) -> int:
        """Walltime to ask for."""
        return self._plan(wildcards.name, attempt).walltime_minutes

    def sweep_gpus(self, wildcards: Wildcards, attempt: int) -> int | None:
        """GPUs of a job on one node; None leaves the resource out."""
        slots = self._plan(wildcards.name, attempt).slots
        return slots.gpus_per_node if slots.nodes == 1 and slots.gpus_per_node else None

    def sweep_gpu_model(self, wildcards: Wildcards, attempt: int) -> str | None:
        """The type of these GPUs that the profile asks for."""
        return self._gpu_type if self.sweep_gpus(wildcards, attempt) else None

    def sweep_nodes(self, wildcards: Wildcards, attempt: int) -> int:
        """Nodes of the job."""
        return self._plan(wildcards.name, attempt).slots.nodes

    def sweep_on_nodes(self, value: Any) -> Callable[[Wildcards, int], Any]:
        """A resource that only a job of several nodes has: also a sweep that may have several can ask for one."""

        def resource(wildcards: Wildcards, attempt: int) -> Any:
            if self.sweep_nodes(wildcards, attempt) == 1:
                return None
            return value(wildcards, attempt) if callable(value) else value

        return resource

    def sweep_gres(self, wildcards: Wildcards, attempt: int) -> str:
        """GPUs per node, as Slurm writes them."""
        return self._gres(self._plan(wildcards.name, attempt).slots.gpus_per_node)

    def sweep_hardware(self, wildcards: Wildcards, attempt: int) -> str:
        """Nodes and GPUs, in words."""
        slots = self._plan(wildcards.name, attempt).slots
        return self._hardware(slots.nodes, slots.gpus_per_node)

    def sweep_retries(self) -> int | None:
        """Jobs that follow the first one where a partition allows too little time for all, and two more for mishaps.

        None leaves it to the profile.
        """
        limit = self._partition_minutes
        if math.isinf(limit):
            return None
        plans = (plan_sweep(self.config, name, self._results, limit_minutes=limit) for name in self.config.sweeps)
        jobs = max((plan.jobs for plan in plans), default=1)
        return jobs + 1 if jobs > 1 else None

    def sweeps_on(self, *, nodes: Literal["one", "several"]) -> str:
        """A pattern of the names of the sweeps whose job has one node, or several; of none, one that nothing fits."""
        names = [name for name, sweep in self.config.sweeps.items() if (sweep.slots.nodes == 1) == (nodes == "one")]
        return "|".join(names) or "(?!)"

    def sweep_cpus(self, wildcards: Wildcards, attempt: int) -> int:
        """CPUs per node."""
        return max(1, self._plan(wildcards.name, attempt).slots.cpus_per_node)

    def check_sweeps(self) -> None:
        """See that the `retrain` of each sweep names its trials, before anything is submitted.

        Raises:
            UserError: one names something else.
        """
        for name in self.config.sweeps:
            self._plan(name, 1).check_retrain()

    # ---- scaling studies

    def training(self, wildcards: Wildcards) -> str:
        """Changes with everything in the config that changes the result of a scale."""
        study = self.config.scaling[wildcards.name]
        what: Any = study.train.model_dump(mode="json", exclude_defaults=True)
        if study.script is not None:
            named = {"launcher", "launcher_options", "python", "args", "metrics"}
            what = study.model_dump(include=named, mode="json") | {"script": study.program}
        return digest_of([what, study.mode, study.retrain, RESULT_VERSION])

    def ranks_per_node(self, wildcards: Wildcards) -> int:
        """Ranks, one per GPU, on each node."""
        return split_scale(wildcards.scale)[1]

    def training_nodes(self, wildcards: Wildcards) -> int:
        """Nodes of the job."""
        return split_scale(wildcards.scale)[0]

    def training_gres(self, wildcards: Wildcards) -> str:
        """GPUs per node, in Slurm's words."""
        return self._gres(self.ranks_per_node(wildcards))

    def training_hardware(self, wildcards: Wildcards) -> str:
        """Nodes and GPUs, in words."""
        return self._hardware(self.training_nodes(wildcards), self.ranks_per_node(wildcards))

    def training_summary(self, wildcards: Wildcards) -> str:
        """What is to be trained, in words; with what it will cost where a scheduler is asked."""
        study, folder = self.config.scaling[wildcards.name], self._results / "scaling" / wildcards.name
        if study.script and UserScript(study, wildcards.scale, folder).kept(self._results):
            return f"scaling {wildcards.name}: what {wildcards.scale} has told is read again, without running anything"
        what = f"scaling {wildcards.name}: training at {wildcards.scale}"
        if not self._asks:
            return what
        row = scale_row(self.config, wildcards.name, wildcards.scale, self._results, runtime_minutes=None)
        return f"{what}; {words(row)}"

    def training_cpus(self, wildcards: Wildcards) -> int:
        """CPUs per node."""
        return self.config.scaling[wildcards.name].cpus_per_gpu * self.ranks_per_node(wildcards)

    def summaries(self, wildcards: Wildcards) -> list[str]:
        """The summary of every training of every scale, in the config's order."""
        folder, study = self._results / "scaling" / wildcards.name, self.config.scaling[wildcards.name]
        return [str(folder / run / "summary.json") for scale in study.scales for run in study.runs(scale)]

    def scaling_terms(self, wildcards: Wildcards) -> str:
        """Changes with what the table is worked out from, beside the summaries."""
        return json.dumps([self.config.scaling[wildcards.name].mode, self.config.pricing.gpu_hour])

    def table_forms(self, wildcards: Wildcards) -> str:
        """Changes with how tables are written."""
        return self.config.tables.model_dump_json()

    # ---- tree models

    def tree_study(self, wildcards: Wildcards) -> str:
        """Changes with the study's section of the config, less what changes no result."""
        return self.config.trees[wildcards.name].model_dump_json(exclude={"cpus"})

    def tree_cpus(self, wildcards: Wildcards) -> int:
        """CPUs to ask for; Snakemake lowers it to what the machine has."""
        return int(self.config.trees[wildcards.name].cpus)

    def _study(self, kind: str, wildcards: Wildcards) -> Any:
        return getattr(self.config, kind)[wildcards.name]
