"""Parameters and resources of the jobs that train; Snakemake's Slurm plugin makes their sbatch lines from them."""

import logging
import math
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Literal

from trainyard.checks.program_environments import describe_environment
from trainyard.cli.profile import Profile
from trainyard.config.config import Config
from trainyard.config.scaling import Scaling, split_scale
from trainyard.config.trials import RESULT_VERSION
from trainyard.config.weights import identifying
from trainyard.planning.memory_request import MemoryRequest, scale_memory, sweep_memory, tables_memory
from trainyard.planning.plan import Plan, dataset_digest, plan_sweep
from trainyard.planning.planned_jobs import (
    PlannedJob,
    describe_scale,
    plan_scale,
    scale_rule,
    summarize_cost,
    summarize_plan,
    sweep_rule,
)
from trainyard.scaling.user_script import UserScript
from trainyard.utils.files import digest_of
from trainyard.utils.text import format_duration

log = logging.getLogger("workflow")
Wildcards = Any  # snakemake.io.Wildcards: an attribute per wildcard
_ON_NODES = ("--ntasks-per-node=1", "--no-kill")  # options of sbatch for a sweep on several nodes


class SweepJobs:
    """Parameters and resources of the rules `sweep` and `sweep_on_nodes`."""

    def __init__(
        self, config: Config, results: Path, profile: Profile, *, shows_plans: Callable[[], bool] = lambda: True
    ) -> None:
        self._config, self._results, self._profile, self._shows_plans = config, results, profile, shows_plans
        self._plans: dict[tuple[str, int, str], Plan] = {}
        self.mem_mb = profile.mem_mb(self._memory)

    def rule_of(self, name: str) -> str:
        """The rule that runs a sweep."""
        return sweep_rule(self._config.sweeps[name])

    def _plan(self, name: str, attempt: int) -> Plan:
        """The plan of a sweep: one per attempt, since a retry requests what is left, and one per state of the data.

        Snakemake evaluates resources before the dataset is staged, and again when the job is submitted.
        """
        key = (name, attempt, dataset_digest(self._results, self._config.sweeps[name]))
        if key not in self._plans:
            rule = self.rule_of(name)
            self._plans[key] = plan_sweep(
                self._config,
                name,
                self._results,
                limit_minutes=self.limit_minutes(name),
                limit_gpus=self._profile.limits(rule).gpus,
                fixed_minutes=self._profile.fixed_minutes(rule),
            )
        return self._plans[key]

    def limit_minutes(self, name: str) -> float:
        """The longest walltime that a job of a sweep can request."""
        return self._profile.limit_minutes(self.rule_of(name), self._config.sweeps[name].slots.gpus_per_node)

    def digest(self, wildcards: Wildcards) -> str:
        """Changes with the results that a sweep must have; what is pending must not be a parameter of its rule."""
        state = self._plan(wildcards.name, 1).state
        table = state.folder / "trials.csv"
        if table.exists() and self._shows_plans() and 0 < state.failed_before == len(state.unfinished):
            failed = f"{state.failed_before} of {len(state.trials)} trials failed"
            _note(f"sweep {wildcards.name}: {failed}; `--forcerun {table}` runs them again")
        return state.space.digest

    def pending(self, wildcards: Wildcards, attempt: int) -> int:
        """The number of trials without a result."""
        return len(self._plan(wildcards.name, attempt).forecast.pending)

    def summary(self, wildcards: Wildcards, attempt: int) -> str:
        """What the job does, for messages; with its cost if there is a scheduler."""
        if not self._shows_plans():
            return f"sweep {wildcards.name}"
        plan = self._plan(wildcards.name, attempt)
        if not plan.forecast.pending:
            return summarize_plan(plan)
        environment = describe_environment(plan.state.sweep)
        if not self._profile.has_scheduler:
            return f"{summarize_plan(plan)}{environment}"
        request, most, rule = plan.request, plan.state.max_slots.gpus, self.rule_of(wildcards.name)
        is_fixed = plan.fixed_minutes is not None
        needed = 0 if is_fixed else request.needed_minutes
        effect = self._profile.limits(rule).describe(needed, gpus=request.slots.gpus, max_gpus=most)
        if is_fixed:
            effect += self._profile.describe_excess(rule, plan.state.max_slots.gpus_per_node)
        return f"{summarize_plan(plan)}; {summarize_cost(plan)}{effect}{environment}"

    def minutes(self, wildcards: Wildcards, attempt: int) -> int:
        """Walltime."""
        return self._plan(wildcards.name, attempt).request.walltime_minutes

    def cpus(self, wildcards: Wildcards, attempt: int) -> int:
        """CPUs per node."""
        return max(1, self._plan(wildcards.name, attempt).request.slots.cpus_per_node)

    def _memory(self, wildcards: Wildcards, attempt: int) -> MemoryRequest:
        plan = self._plan(wildcards.name, attempt)
        node = self._profile.node_memory(self.rule_of(wildcards.name), plan.request.slots.gpus_per_node)
        return sweep_memory(self._config, plan, self._results, node)

    def memory(self, wildcards: Wildcards, attempt: int) -> str:
        """How the memory was determined, for messages."""
        return self._profile.describe_memory(self.rule_of(wildcards.name), self._memory(wildcards, attempt).basis)

    def gpus(self, wildcards: Wildcards, attempt: int) -> int | None:
        """GPUs of a job on one node; None leaves the resource out."""
        slots = self._plan(wildcards.name, attempt).request.slots
        has_resource = slots.nodes == 1 and not self._profile.needs_own_option(slots.gpus_per_node)
        return slots.gpus_per_node or None if has_resource else None

    def gpu_model(self, wildcards: Wildcards, attempt: int) -> str | None:
        """The GPU type of the profile, for a job on one node."""
        return self._profile.gpu_type if self.gpus(wildcards, attempt) else None

    def nodes(self, wildcards: Wildcards, attempt: int) -> int:
        """Nodes."""
        return self._plan(wildcards.name, attempt).request.slots.nodes

    def gres(self, wildcards: Wildcards, attempt: int) -> str | None:
        """GPUs per node in the syntax of Slurm's `--gres`."""
        return self._profile.gres(self._plan(wildcards.name, attempt).request.slots.gpus_per_node)

    def slurm_extra(self, wildcards: Wildcards, attempt: int) -> str | None:
        """Further options of sbatch. If a node of several fails, the job continues on the others."""
        slots = self._plan(wildcards.name, attempt).request.slots
        options = _ON_NODES if slots.nodes > 1 else ()
        return self._profile.slurm_extra(self.rule_of(wildcards.name), slots.gpus_per_node, *options)

    def hardware(self, wildcards: Wildcards, attempt: int) -> str:
        """Nodes and GPUs per node, for messages; of a sweep without GPUs, nodes alone."""
        slots = self._plan(wildcards.name, attempt).request.slots
        if not self._config.sweeps[wildcards.name].slots.has_gpus:
            return f"nodes: {slots.nodes}"
        return self._profile.hardware(slots.nodes, slots.gpus_per_node)

    def if_on_nodes(self, value: Any) -> Callable[[Wildcards, int], Any]:
        """A resource that only jobs on several nodes have: with `slots: auto`, the plan may need only one."""

        def resource(wildcards: Wildcards, attempt: int) -> Any:
            return _value_on_nodes(value, self.nodes(wildcards, attempt), wildcards, attempt)

        return resource

    def retries(self) -> int | None:
        """Retries for the jobs that follow the first if a partition's limit is too short, and two for failures.

        None leaves the number to the profile.
        """
        rules = {name: self.rule_of(name) for name in self._config.sweeps}
        limits = {
            name: self._profile.fixed_minutes(rule) or self._profile.partition_minutes(rule)
            for name, rule in rules.items()
        }
        if all(map(math.isinf, limits.values())):
            return None
        gpus = {name: self._profile.limits(rule).gpus for name, rule in rules.items()}
        jobs = max(
            plan_sweep(self._config, name, self._results, limit_minutes=minutes, limit_gpus=gpus[name]).request.jobs
            for name, minutes in limits.items()
        )
        return jobs + 1 if jobs > 1 else None

    def names(self, *, nodes: Literal["one", "several"]) -> str:
        """A regular expression for the names of the sweeps on one node, or several; it matches nothing if none is."""
        rule = "sweep" if nodes == "one" else "sweep_on_nodes"
        names = [name for name in self._config.sweeps if self.rule_of(name) == rule]
        return "|".join(names) or "(?!)"

    def check(self) -> None:
        """Raise a UserError if `retrain` of a sweep names something else than its trials, or no job can run any."""
        for name, sweep in self._config.sweeps.items():
            limit = self.limit_minutes(name)
            if isinstance(sweep.retrain, dict) or math.isfinite(limit):
                # A plan of its own: those of a partition file may not be known yet.
                plan = plan_sweep(self._config, name, self._results, limit_minutes=limit)
                plan.state.space.check_retrain(name)
                if plan.forecast.pending and self._profile.fixed_minutes(self.rule_of(name)) is None:
                    plan.request.check_limit()


@cache
def _note(message: str) -> None:
    """Print a message, but only once."""
    log.warning("%s", message)


def _value_on_nodes(value: Any, nodes: int, *arguments: Any) -> Any:
    """A resource, or what it returns for these arguments, of a job on several nodes; None on one node."""
    if nodes == 1:
        return None
    return value(*arguments) if callable(value) else value


class TrainJobs:
    """Parameters and resources of the rules `train` and `train_on_nodes`."""

    def __init__(
        self, config: Config, results: Path, profile: Profile, *, declared: Path, submits: bool = True
    ) -> None:
        self._config, self._results, self._profile = config, results, profile
        self._submits = submits and profile.has_scheduler  # what a job costs is said before it is submitted
        self._declared = declared  # the results as the rules name them, without the prefix of a module
        self.mem_mb = profile.mem_mb(self._memory)

    def rule_of(self, scale: str) -> str:
        """The rule that trains a scale."""
        return scale_rule(scale)

    def _memory(self, wildcards: Wildcards, attempt: int) -> MemoryRequest:
        node = self._profile.node_memory(self.rule_of(wildcards.scale), self._ranks(wildcards))
        if self._only_rereads(wildcards):
            return tables_memory(node)
        return scale_memory(self._config, wildcards.name, wildcards.scale, self._results, node)

    def memory(self, wildcards: Wildcards, attempt: int) -> str:
        """How the memory was determined, for messages."""
        return self._profile.describe_memory(self.rule_of(wildcards.scale), self._memory(wildcards, attempt).basis)

    def digest(self, wildcards: Wildcards) -> str:
        """Changes with everything in the config that changes the result of a scale."""
        study = self._config.scaling[wildcards.name]
        train = study.train.model_copy(update={"lr": study.lr_at(wildcards.scale)})
        what: Any = identifying(train.model_dump(mode="json", exclude_defaults=True))
        if study.script is not None:
            named = {"launcher", "launcher_options", "python", "args", "metrics"}
            what = study.model_dump(include=named, mode="json") | {"script": study.program}
            what |= {"env": study.env} if study.env else {}
            what |= {"workdir": study.workdir} if study.workdir != "keep" else {}
        return digest_of([what, study.mode, study.retrain, RESULT_VERSION])

    def summary(self, wildcards: Wildcards) -> str:
        """What the job does, for messages; with its cost if there is a scheduler."""
        study = self._config.scaling[wildcards.name]
        if self._only_rereads(wildcards):
            return f"scaling {wildcards.name}: the output of {wildcards.scale} is read again; nothing runs"
        details = f"{study.describe_step(wildcards.scale)}{describe_environment(study)}"
        what = f"scaling {wildcards.name}: training at {wildcards.scale}{details}"
        if not self._submits:
            return what
        row = plan_scale(self._config, wildcards.name, wildcards.scale, self._results, runtime_minutes=None)
        gpus = self.nodes(wildcards) * self._ranks(wildcards)
        effect = self._profile.limits(self.rule_of(wildcards.scale)).describe(0, gpus=gpus, max_gpus=gpus)
        return f"{what}; {describe_scale(row)}{effect}{self._describe_walltime(wildcards, study, row)}"

    def _describe_walltime(self, wildcards: Wildcards, study: Scaling, row: PlannedJob) -> str:
        """Why the walltime that the profile sets for a scale is not enough, or too much; "" if it suits."""
        minutes = self._profile.walltime_minutes(rule := self.rule_of(wildcards.scale))
        if minutes is None:
            return ""
        if excess := self._profile.describe_excess(rule, self._ranks(wildcards)):
            return excess
        walltime = format_duration(60 * minutes)
        if not row.predicted_seconds or row.predicted_seconds <= 60 * minutes:
            return ""
        if study.script is not None and study.checkpoint is None:
            return f"; longer than the walltime of {walltime}, and it cannot resume: set `runtime`"
        jobs = math.ceil(row.predicted_seconds / (60 * minutes))
        return f"; at least {jobs} jobs one after another, which `retries` must allow, with a walltime of {walltime}"

    def _only_rereads(self, wildcards: Wildcards) -> bool:
        """Whether a job only parses the saved output of a script again, for which one CPU is enough."""
        study, folder = self._config.scaling[wildcards.name], self._results / "scaling" / wildcards.name
        return bool(study.script and UserScript(study, wildcards.scale, folder).reusable(self._results))

    def cpus(self, wildcards: Wildcards) -> int:
        """CPUs per node."""
        return max(1, self._config.scaling[wildcards.name].cpus_per_gpu * self._ranks(wildcards))

    def _ranks(self, wildcards: Wildcards) -> int:
        """GPUs per node: one for each rank."""
        return 0 if self._only_rereads(wildcards) else split_scale(wildcards.scale)[1]

    def gpus(self, wildcards: Wildcards) -> int | None:
        """GPUs of a job on one node; None leaves the resource out."""
        ranks = self._ranks(wildcards)
        return ranks or None if self.nodes(wildcards) == 1 and not self._profile.needs_own_option(ranks) else None

    def gpu_model(self, wildcards: Wildcards) -> str | None:
        """The GPU type of the profile, for a job on one node; "" for any."""
        return self._profile.gpu_type if self.gpus(wildcards) else None

    def nodes(self, wildcards: Wildcards) -> int:
        """Nodes."""
        return 1 if self._only_rereads(wildcards) else split_scale(wildcards.scale)[0]

    def if_on_nodes(self, value: Any) -> Callable[[Wildcards], Any]:
        """A resource that only jobs on several nodes have."""
        return lambda wildcards: _value_on_nodes(value, self.nodes(wildcards), wildcards)

    def gres(self, wildcards: Wildcards) -> str | None:
        """GPUs per node in the syntax of Slurm's `--gres`."""
        return self._profile.gres(self._ranks(wildcards))

    def slurm_extra(self, wildcards: Wildcards) -> str | None:
        """Further options of sbatch."""
        options = ("--ntasks-per-node=1",) if self.nodes(wildcards) > 1 else ()
        return self._profile.slurm_extra(self.rule_of(wildcards.scale), self._ranks(wildcards), *options)

    def hardware(self, wildcards: Wildcards) -> str:
        """Nodes and GPUs per node, for messages."""
        return self._profile.hardware(self.nodes(wildcards), self._ranks(wildcards))

    def summaries(self, wildcards: Wildcards) -> list[str]:
        """The summary of every run of every scale, in the config's order."""
        folder, study = self._declared / "scaling" / wildcards.name, self._config.scaling[wildcards.name]
        return [str(folder / run / "summary.json") for scale in study.scales for run in study.runs(scale)]
