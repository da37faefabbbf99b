"""Parameters and resources of the jobs that need GPUs; Snakemake's Slurm plugin makes their sbatch lines from them."""

import math
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from trainyard.cluster.slurm_queries import list_partitions, max_walltime_minutes
from trainyard.config.config import Config
from trainyard.config.scaling import split_scale
from trainyard.config.trials import RESULT_VERSION
from trainyard.planning.forecast import describe_scale, plan_scale, summarize_cost, summarize_plan
from trainyard.planning.plan import Plan, dataset_digest, plan_sweep
from trainyard.scaling.user_script import UserScript
from trainyard.utils.errors import UserError
from trainyard.utils.files import digest_of

Wildcards = Any  # snakemake.io.Wildcards: an attribute per wildcard


class Profile:
    """The cluster as a Snakemake profile describes it; without a scheduler, nothing is requested."""

    def __init__(self, default_resources: Mapping[str, Any] | None, executor: Callable[[], Any]) -> None:
        defaults = {name: str(resource.raw) for name, resource in (default_resources or {}).items()}
        self._executor = executor  # its settings, which Snakemake sets after it has read the Snakefile
        self.gpu_type, self._partition = defaults.get("gpu_type", ""), defaults.get("slurm_partition", "")
        self.runtime_minutes = defaults.get("runtime", "")
        self.has_scheduler = bool(self.runtime_minutes)

    def limit_minutes(self) -> float:
        """The longest walltime that a job can request; infinite if each job is assigned a partition of its own."""
        return math.inf if getattr(self._executor(), "partition_config", None) else self.partition_minutes

    @cached_property
    def partition_minutes(self) -> float:
        """The walltime limit of the default partition; infinite without a scheduler, or if Slurm does not answer."""
        try:
            return max_walltime_minutes(list_partitions(), self._partition) if self.has_scheduler else math.inf
        except UserError:  # a dry run away from the cluster
            return math.inf

    def gres(self, gpus: int) -> str:
        """GPUs per node in the syntax of Slurm's `--gres`."""
        return ":".join(filter(None, ["gpu", self.gpu_type, str(gpus)]))

    def hardware(self, nodes: int, gpus: int) -> str:
        """Nodes and GPUs per node, for messages."""
        return f"nodes: {nodes}, GPUs per node: {f'{gpus} {self.gpu_type}'.rstrip() if gpus else 'none'}"


class SweepJobs:
    """Parameters and resources of the rules `sweep` and `sweep_on_nodes`."""

    def __init__(self, config: Config, results: Path, profile: Profile) -> None:
        self._config, self._results, self._profile = config, results, profile
        self._plans: dict[tuple[str, int, str], Plan] = {}

    def _plan(self, name: str, attempt: int) -> Plan:
        """The plan of a sweep: one per attempt, since a retry requests what is left, and one per state of the data.

        Snakemake evaluates resources before the dataset is staged, and again when the job is submitted.
        """
        key = (name, attempt, dataset_digest(self._results, self._config.sweeps[name]))
        if key not in self._plans:
            limit = self._profile.limit_minutes()
            self._plans[key] = plan_sweep(self._config, name, self._results, limit_minutes=limit)
        return self._plans[key]

    def digest(self, wildcards: Wildcards) -> str:
        """Changes with the results that a sweep must have; what is pending must not be a parameter of its rule."""
        return self._plan(wildcards.name, 1).state.space.digest

    def pending(self, wildcards: Wildcards, attempt: int) -> int:
        """The number of trials without a result."""
        return len(self._plan(wildcards.name, attempt).forecast.pending)

    def summary(self, wildcards: Wildcards, attempt: int) -> str:
        """What the job does, for messages; with its cost if there is a scheduler."""
        plan = self._plan(wildcards.name, attempt)
        has_cost = self._profile.has_scheduler and plan.forecast.pending
        return f"{summarize_plan(plan)}; {summarize_cost(plan)}" if has_cost else summarize_plan(plan)

    def minutes(self, wildcards: Wildcards, attempt: int) -> int:
        """Walltime."""
        return self._plan(wildcards.name, attempt).request.walltime_minutes

    def cpus(self, wildcards: Wildcards, attempt: int) -> int:
        """CPUs per node."""
        return max(1, self._plan(wildcards.name, attempt).request.slots.cpus_per_node)

    def gpus(self, wildcards: Wildcards, attempt: int) -> int | None:
        """GPUs of a job on one node; None leaves the resource out."""
        slots = self._plan(wildcards.name, attempt).request.slots
        return slots.gpus_per_node if slots.nodes == 1 and slots.gpus_per_node else None

    def gpu_model(self, wildcards: Wildcards, attempt: int) -> str | None:
        """The GPU type of the profile, for a job on one node."""
        return self._profile.gpu_type if self.gpus(wildcards, attempt) else None

    def nodes(self, wildcards: Wildcards, attempt: int) -> int:
        """Nodes."""
        return self._plan(wildcards.name, attempt).request.slots.nodes

    def gres(self, wildcards: Wildcards, attempt: int) -> str:
        """GPUs per node in the syntax of Slurm's `--gres`."""
        return self._profile.gres(self._plan(wildcards.name, attempt).request.slots.gpus_per_node)

    def hardware(self, wildcards: Wildcards, attempt: int) -> str:
        """Nodes and GPUs per node, for messages."""
        slots = self._plan(wildcards.name, attempt).request.slots
        return self._profile.hardware(slots.nodes, slots.gpus_per_node)

    def if_on_nodes(self, value: Any) -> Callable[[Wildcards, int], Any]:
        """A resource that only jobs on several nodes have: with `slots: auto`, the plan may need only one."""

        def resource(wildcards: Wildcards, attempt: int) -> Any:
            if self.nodes(wildcards, attempt) == 1:
                return None
            return value(wildcards, attempt) if callable(value) else value

        return resource

    def retries(self) -> int | None:
        """Retries for the jobs that follow the first if a partition's limit is too short, and two for failures.

        None leaves the number to the profile.
        """
        limit = self._profile.partition_minutes
        if math.isinf(limit):
            return None
        plans = (plan_sweep(self._config, name, self._results, limit_minutes=limit) for name in self._config.sweeps)
        jobs = max((plan.request.jobs for plan in plans), default=1)
        return jobs + 1 if jobs > 1 else None

    def names(self, *, nodes: Literal["one", "several"]) -> str:
        """A regular expression for the names of the sweeps on one node, or several; it matches nothing if none is."""
        names = [name for name, sweep in self._config.sweeps.items() if (sweep.slots.nodes == 1) == (nodes == "one")]
        return "|".join(names) or "(?!)"

    def check(self) -> None:
        """Raise a UserError if `retrain` of a sweep names something else than its trials."""
        for name in self._config.sweeps:
            self._plan(name, 1).state.space.check_retrain(name)


class TrainJobs:
    """Parameters and resources of the rules `train` and `train_on_nodes`."""

    def __init__(self, config: Config, results: Path, profile: Profile) -> None:
        self._config, self._results, self._profile = config, results, profile

    def digest(self, wildcards: Wildcards) -> str:
        """Changes with everything in the config that changes the result of a scale."""
        study = self._config.scaling[wildcards.name]
        what: Any = study.train.model_dump(mode="json", exclude_defaults=True)
        if study.script is not None:
            named = {"launcher", "launcher_options", "python", "args", "metrics"}
            what = study.model_dump(include=named, mode="json") | {"script": study.program}
        return digest_of([what, study.mode, study.retrain, RESULT_VERSION])

    def summary(self, wildcards: Wildcards) -> str:
        """What the job does, for messages; with its cost if there is a scheduler."""
        study, folder = self._config.scaling[wildcards.name], self._results / "scaling" / wildcards.name
        if study.script and UserScript(study, wildcards.scale, folder).reusable(self._results):
            return f"scaling {wildcards.name}: the output of {wildcards.scale} is read again; nothing runs"
        what = f"scaling {wildcards.name}: training at {wildcards.scale}"
        if not self._profile.has_scheduler:
            return what
        row = plan_scale(self._config, wildcards.name, wildcards.scale, self._results, runtime_minutes=None)
        return f"{what}; {describe_scale(row)}"

    def cpus(self, wildcards: Wildcards) -> int:
        """CPUs per node."""
        return self._config.scaling[wildcards.name].cpus_per_gpu * self.gpus(wildcards)

    def gpus(self, wildcards: Wildcards) -> int:
        """GPUs per node: one for each rank."""
        return split_scale(wildcards.scale)[1]

    def gpu_model(self, wildcards: Wildcards) -> str:
        """The GPU type of the profile; "" for any."""
        return self._profile.gpu_type

    def nodes(self, wildcards: Wildcards) -> int:
        """Nodes."""
        return split_scale(wildcards.scale)[0]

    def gres(self, wildcards: Wildcards) -> str:
        """GPUs per node in the syntax of Slurm's `--gres`."""
        return self._profile.gres(self.gpus(wildcards))

    def hardware(self, wildcards: Wildcards) -> str:
        """Nodes and GPUs per node, for messages."""
        return self._profile.hardware(self.nodes(wildcards), self.gpus(wildcards))

    def summaries(self, wildcards: Wildcards) -> list[str]:
        """The summary of every run of every scale, in the config's order."""
        folder, study = self._results / "scaling" / wildcards.name, self._config.scaling[wildcards.name]
        return [str(folder / run / "summary.json") for scale in study.scales for run in study.runs(scale)]
