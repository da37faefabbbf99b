"""Parameters and resources of the jobs that are submitted; from them, the Slurm plugin makes the sbatch lines."""

import logging
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Final

from typing_extensions import override

from trainyard.checks.program_checks import describe_environment
from trainyard.cli.profile import Profile
from trainyard.cluster.gpus import has_gpu
from trainyard.config.config import Config
from trainyard.config.datasets import ImageFolder, Python
from trainyard.config.scaling import ENOUGH_CPUS_PER_GPU, Scaling, ScriptScaling, split_scale
from trainyard.config.sweep import Slots
from trainyard.config.trials import count_configured
from trainyard.planning.claims import ClaimLog
from trainyard.planning.history import dataset_digest, is_trained, read_state
from trainyard.planning.job_costs import (
    PlannedJob,
    brief_plan,
    describe_limits,
    describe_scale,
    plan_scale,
    summarize_cost,
    summarize_plan,
)
from trainyard.planning.job_marks import remove_complete_mark, remove_done_marks
from trainyard.planning.memory_request import (
    MemoryRequest,
    scale_memory,
    staging_memory,
    sweep_memory,
    tables_memory,
)
from trainyard.planning.plan import Plan, plan_sweep
from trainyard.planning.receipts import is_outdated, staging_terms, training_terms
from trainyard.planning.slot_options import useful_jobs
from trainyard.results.completeness import describe_pause
from trainyard.scaling.user_script import UserScript
from trainyard.utils.errors import UserError
from trainyard.utils.text import count_of, format_duration

log = logging.getLogger("workflow")
Wildcards = Any  # snakemake.io.Wildcards: an attribute per wildcard
JOB_RULES: Final = ("stage", "sweep", "train")
SWEEP_RULES: Final = ("sweep", "sweep_job")  # for users, the first stands for both
USEFUL_JOBS: Final = "useful_jobs"  # resource of `sweep_job`: how many of a sweep's jobs find something to do


def match_any(names: Iterable[str]) -> str:
    """A regular expression, for the constraint of a wildcard, that matches these names and nothing else."""
    return "|".join(map(re.escape, names)) or "(?!)"


@dataclass(frozen=True)
class Job:
    """What a job needs."""

    nodes: int = 1
    gpus: int | None = 0  # per node; None for a sweep that is configured without GPUs
    cpus: int = 1  # per node
    options: tuple[str, ...] = ()  # of sbatch


class Jobs(ABC):
    """Parameters and resources of a rule whose jobs are submitted."""

    rule: ClassVar[str]

    def __init__(self, config: Config, results: Path, profile: Profile) -> None:
        self._config = config
        self._results = results
        self._profile = profile

    @abstractmethod
    def job(self, wildcards: Wildcards, attempt: int) -> Job:
        """What a job needs. It may change until the job is submitted: Snakemake evaluates resources several times."""

    @abstractmethod
    def memory(self, wildcards: Wildcards, attempt: int) -> MemoryRequest:
        """The memory per node that a job requests, unless the profile sets it."""

    @abstractmethod
    def summary(self, wildcards: Wildcards, attempt: int) -> str:
        """What the job does, for messages; with its cost if it is submitted, and `remarks`."""

    @abstractmethod
    def remarks(self, wildcards: Wildcards, attempt: int = 1) -> str:
        """What to know before the job is submitted or started, each after `; `; "" for nothing."""

    @abstractmethod
    def digest(self, wildcards: Wildcards) -> str:
        """Changes with everything in the config that changes the result of a job."""

    def lacks_results(self, wildcards: Wildcards) -> bool:
        """Whether a job has something to do although its output exists, as after the loss of other files."""
        return False

    def cpus(self, wildcards: Wildcards, attempt: int) -> int:
        """CPUs per node; Snakemake reduces the number to the CPUs of the machine."""
        return max(1, self.job(wildcards, attempt).cpus)

    def resources(self) -> dict[str, Callable[..., Any]]:
        """The resources of the rule: functions of the wildcards and the attempt. None leaves a resource out.

        On several nodes, `mpi` has the plugin leave `srun` to the program; `gpu` would then be a number per task.
        """
        profile = self._profile
        rule = self.rule

        def gpu(job: Job) -> int | None:
            return job.gpus if job.gpus and job.nodes == 1 and not profile.needs_own_option(job.gpus) else None

        of_job: dict[str, Callable[[Job], Any]] = {
            "gpu": gpu,
            "gpu_model": lambda job: profile.gpu_type if gpu(job) else None,
            "nodes": lambda job: job.nodes,
            "mpi": lambda job: "srun" if job.nodes > 1 else None,
            "tasks": lambda job: job.nodes if job.nodes > 1 else None,
            "gres": lambda job: profile.gres(job.gpus or 0) if job.nodes > 1 else None,
            "tasks_per_gpu": lambda job: 0 if job.nodes > 1 else None,
            "slurm_extra": lambda job: profile.slurm_extra(rule, job.gpus or 0, *job.options),
            "hardware": lambda job: profile.hardware(rule, job.nodes, job.gpus),
        }

        def evaluate(resource: Callable[[Job], Any]) -> Callable[[Wildcards, int], Any]:
            return lambda wildcards, attempt: resource(self.job(wildcards, attempt))

        def describe_memory(wildcards: Wildcards, attempt: int) -> str:
            return profile.describe_memory(rule, self.memory(wildcards, attempt).basis)

        return {
            **{name: evaluate(resource) for name, resource in of_job.items()},
            "mem_mb": profile.mem_mb(self.memory),
            "memory": describe_memory,
            "plan": self.summary,
        }


STAGING_CPUS: Final = 8  # for files to decode; `--set-threads stage=N` replaces it


class StagingJobs(Jobs):
    """Parameters and resources of the rule `stage`."""

    rule = "stage"

    @override
    def job(self, wildcards: Wildcards, attempt: int) -> Job:
        many = isinstance(self._config.datasets[wildcards.name], (ImageFolder, Python))  # files to decode
        return Job(cpus=STAGING_CPUS if many else 1)

    @override
    def memory(self, wildcards: Wildcards, attempt: int) -> MemoryRequest:
        cpus = self.cpus(wildcards, attempt)
        node = self._profile.node_memory(self.rule, 0)
        return staging_memory(wildcards.name, cpus, self._results, node)

    @override
    def summary(self, wildcards: Wildcards, attempt: int) -> str:
        return f"dataset {wildcards.name}: staging{self.remarks(wildcards, attempt)}"

    @override
    def remarks(self, wildcards: Wildcards, attempt: int = 1) -> str:
        minutes = self._profile.walltime_minutes(self.rule)
        return self._profile.describe_excess(self.rule, 0, minutes) if self._profile.submits else ""

    @override
    def digest(self, wildcards: Wildcards) -> str:
        return staging_terms(self._config.datasets[wildcards.name])


class SweepJobs(Jobs):
    """Parameters and resources of the rule `sweep`, and of `sweep_job` for sweeps with several jobs."""

    rule = "sweep"

    def __init__(
        self, config: Config, results: Path, profile: Profile, *, is_dry_run: Callable[[], bool] = lambda: True
    ) -> None:
        super().__init__(config, results, profile)
        self._is_dry_run = is_dry_run
        self._plans: dict[tuple[str, int, str], Plan] = {}

    def _shows_plans(self) -> bool:
        """Otherwise the job's program alone shows its plan, on the same terminal or log."""
        return self._profile.submits or (self._profile.is_main and self._is_dry_run())

    def plan(self, name: str, attempt: int = 1) -> Plan:
        """The plan of a sweep: one per attempt, since a retry requests what is left, and one per state of the data.

        Snakemake evaluates resources before the dataset is staged, and again when the job is submitted.
        """
        key = (name, attempt, dataset_digest(self._results, self._config.sweeps[name]))
        if key not in self._plans:
            self._plans[key] = plan_sweep(
                self._config,
                name,
                self._results,
                limit_minutes=self.limit_minutes(name),
                limit_gpus=self._profile.limits(self.rule).gpus,
                fixed_minutes=self._profile.fixed_minutes(self.rule),
                gpu_models=self.gpu_models(name),
            )
        return self._plans[key]

    def names(self, *, several_jobs: bool) -> str:
        """A regular expression that matches the names of the sweeps with one job, or of those with several."""
        sweeps = self._config.sweeps.items()
        return match_any(name for name, each in sweeps if (each.slots.jobs > 1) == several_jobs)

    def job_count(self, name: str) -> int:
        """Jobs of a sweep as Snakemake knows them: those that all its trials can use.

        What is pending decides only how many are submitted. With another number of jobs, Snakemake would make the
        tables again, because their inputs would be others.
        """
        state = self.plan(name).state
        sweep = self._config.sweeps[name]
        least = sweep.slots if sweep.goal is None else Slots(jobs=sweep.slots.jobs)
        return useful_jobs(least, count_configured(sweep) if sweep.search else len(state.trials))

    def _useful_jobs(self, name: str, attempt: int) -> int:
        """How many jobs of a sweep find something to do: none, once all trials have a result that can be read."""
        plan = self.plan(name, attempt)
        jobs = min(plan.parallel_jobs, plan.state.requests.jobs or math.inf)
        return int(jobs) if plan.forecast.pending or plan.state.unread_count else 0

    def forget_complete(self) -> None:
        """Remove the marks that nothing is left to do from the sweeps in which something is."""
        for name in self._config.sweeps:
            if self._useful_jobs(name, 1):
                remove_complete_mark(self._results / "sweeps" / name)

    def forget_ended_jobs(self) -> None:
        """After a run that failed: the next one starts all jobs again, and not only the one that has failed."""
        for name in self._config.sweeps:
            remove_done_marks(self._results / "sweeps" / name)

    def limit_minutes(self, name: str) -> float:
        """The longest walltime that a job of a sweep can request."""
        return self._profile.limit_minutes(self.rule, self._config.sweeps[name].slots.gpus_per_node)

    def gpu_models(self, name: str) -> tuple[str, ...]:
        """The GPU models that a job of a sweep may get; empty if that is unknown."""
        return self._profile.gpu_models(self.rule, self._config.sweeps[name].slots.gpus_per_node)

    @override
    def digest(self, wildcards: Wildcards) -> str:
        """Changes with the results that a sweep must have; what is pending must not be a parameter of its rule."""
        plan = self.plan(wildcards.name)
        state = plan.state
        forecast = plan.forecast
        table = state.folder / "trials.csv"
        is_made = table.exists() and not is_outdated(table, state.space.digest)
        if is_made and self._shows_plans() and 0 < len(forecast.failed) == len(forecast.pending):
            failed = f"{len(forecast.failed)} of {len(state.trials)} trials failed"
            _note(f"sweep {wildcards.name}: {failed}; `--forcerun {table}` runs them again")
        return state.space.digest

    @override
    def lacks_results(self, wildcards: Wildcards) -> bool:
        forecast = self.plan(wildcards.name).forecast
        return len(forecast.pending) > len(forecast.failed)

    @override
    def summary(self, wildcards: Wildcards, attempt: int) -> str:
        number = int(getattr(wildcards, "job", 0))
        plan = self.plan(wildcards.name, attempt)
        if number or not self._shows_plans():
            if not hasattr(wildcards, "job"):
                return f"sweep {wildcards.name}"
            is_useful = attempt > 1 or number < self._useful_jobs(wildcards.name, attempt)
            condition = "" if is_useful or not self._profile.submits else ", only if it is needed"
            return f"sweep {wildcards.name}: job {number + 1} of {self.job_count(wildcards.name)}{condition}"
        if not plan.forecast.pending:
            return summarize_plan(plan)
        remarks = self.remarks(wildcards, attempt)
        if not self._profile.has_scheduler:
            return f"{summarize_plan(plan, on_cpus=not has_gpu())}{remarks}"
        return f"{summarize_plan(plan)}; {summarize_cost(plan)}{remarks}"

    def brief(self, name: str) -> str:
        """What is left to run of a sweep, in a line for a dry run, which has the rest in its table."""
        return brief_plan(self.plan(name), on_cpus=not (self._profile.has_scheduler or has_gpu()))

    @override
    def remarks(self, wildcards: Wildcards, attempt: int = 1) -> str:
        plan = self.plan(wildcards.name, attempt)
        environment = describe_environment(plan.state.sweep)
        if not self._profile.has_scheduler:
            return environment
        most = plan.state.sweep.slots
        most_gpus = most.gpus * (most.jobs if plan.state.sweep.goal else 1)  # without a goal, each may start alone
        is_fixed = plan.fixed_minutes is not None
        needed = 0 if is_fixed else plan.needed_minutes
        effect = self._profile.limits(self.rule).describe(needed, gpus=plan.slots.gpus, max_gpus=most_gpus)
        if is_fixed:
            effect += self._profile.describe_excess(self.rule, most.gpus_per_node, plan.fixed_minutes)
        return f"{describe_limits(plan)}{effect}{environment}"

    @override
    def job(self, wildcards: Wildcards, attempt: int) -> Job:
        slots = self.plan(wildcards.name, attempt).slots
        gpus = slots.gpus_per_node if self._config.sweeps[wildcards.name].slots.has_gpus else None
        nodes = slots.nodes_per_trial
        return Job(nodes, gpus, slots.cpus_per_node, ("--ntasks-per-node=1",) if nodes > 1 else ())

    @override
    def memory(self, wildcards: Wildcards, attempt: int) -> MemoryRequest:
        plan = self.plan(wildcards.name, attempt)
        node = self._profile.node_memory(self.rule, plan.slots.gpus_per_node)
        return sweep_memory(self._config, plan, self._results, node)

    @override
    def resources(self) -> dict[str, Callable[..., Any]]:
        def pending(wildcards: Wildcards, attempt: int) -> int:
            return len(self.plan(wildcards.name, attempt).forecast.pending)

        def runtime(wildcards: Wildcards, attempt: int) -> int:
            return self.plan(wildcards.name, attempt).walltime_minutes

        def useful(wildcards: Wildcards, attempt: int) -> int | None:
            return self._useful_jobs(wildcards.name, attempt) if hasattr(wildcards, "job") else None

        return {"pending": pending, "runtime": runtime, USEFUL_JOBS: useful, **super().resources()}

    def check(self) -> None:
        """Raise a UserError if no job of a sweep can run any of its trials, or a sweep is paused."""
        for name in self._config.sweeps:
            claims = ClaimLog(self._results / "sweeps" / name)
            claims.read()
            if claims.requests.paused_at:
                state = read_state(self._config.sweeps[name], name, self._results)
                if state.unfinished:
                    raise UserError(f"{describe_pause(state)}; to run others without it: `-C sweeps=<names>`")
            limit = self.limit_minutes(name)
            if math.isfinite(limit):
                # A plan of its own: those of a partition file may not be known yet.
                fixed = self._profile.fixed_minutes(self.rule)
                plan = plan_sweep(self._config, name, self._results, limit_minutes=limit, fixed_minutes=fixed)
                if plan.forecast.pending and plan.fixed_minutes is None:
                    plan.check_limit()


@cache
def _note(message: str) -> None:
    """Print a message, but only once."""
    log.warning("%s", message)


class TrainJobs(Jobs):
    """Parameters and resources of the rule `train`."""

    rule = "train"

    @override
    def job(self, wildcards: Wildcards, attempt: int) -> Job:
        """One GPU for each rank; one CPU if the saved output of a script is only read again."""
        if self._only_rereads(wildcards):
            return Job()
        nodes, ranks = split_scale(wildcards.scale)
        cpus = self._cpus_per_gpu(wildcards) or 1
        return Job(nodes, ranks, cpus * ranks, ("--ntasks-per-node=1",) if nodes > 1 else ())

    def _cpus_per_gpu(self, wildcards: Wildcards) -> int | None:
        """As configured, or as the nodes have; None if neither is known."""
        given = self._config.scaling[wildcards.name].cpus_per_gpu
        return given or self._profile.cpus_per_gpu(self.rule, split_scale(wildcards.scale)[1])

    @override
    def memory(self, wildcards: Wildcards, attempt: int) -> MemoryRequest:
        node = self._profile.node_memory(self.rule, self.job(wildcards, attempt).gpus or 0)
        if self._only_rereads(wildcards):
            return tables_memory(node)
        cpus = self._cpus_per_gpu(wildcards) or 1
        return scale_memory(self._config, wildcards.name, wildcards.scale, self._results, node, cpus_per_gpu=cpus)

    def _only_rereads(self, wildcards: Wildcards) -> bool:
        """Whether a job only parses the saved output of a script again."""
        study = self._config.scaling[wildcards.name]
        folder = self._results / "scaling" / wildcards.name
        if not isinstance(study, ScriptScaling):
            return False
        return UserScript(study, wildcards.scale, folder, self._results).has_ended

    @override
    def digest(self, wildcards: Wildcards) -> str:
        return training_terms(self._config.scaling[wildcards.name], wildcards.scale)

    @override
    def lacks_results(self, wildcards: Wildcards) -> bool:
        study = self._config.scaling[wildcards.name]
        folder = self._results / "scaling" / wildcards.name
        return not is_trained(study, wildcards.scale, folder, self._results)

    @override
    def summary(self, wildcards: Wildcards, attempt: int) -> str:
        study = self._config.scaling[wildcards.name]
        if self._only_rereads(wildcards):
            return f"scaling {wildcards.name}: the output of {wildcards.scale} is read again; nothing runs"
        what = f"scaling {wildcards.name}: training at {wildcards.scale}{study.describe_step(wildcards.scale)}"
        cost = f"; {describe_scale(self._row(wildcards))}" if self._profile.submits else ""
        return f"{what}{cost}{self._remarks(wildcards)}"

    def _row(self, wildcards: Wildcards) -> PlannedJob:
        return plan_scale(self._config, wildcards.name, wildcards.scale, self._results, runtime_minutes=None)

    @override
    def remarks(self, wildcards: Wildcards, attempt: int = 1) -> str:
        if self._only_rereads(wildcards):
            return "; its output is read again; nothing runs"
        return self._remarks(wildcards)

    def _remarks(self, wildcards: Wildcards) -> str:
        study = self._config.scaling[wildcards.name]
        environment = describe_environment(study)
        if not self._profile.submits:
            return environment
        row = self._row(wildcards)
        effect = self._profile.limits(self.rule).describe(0, gpus=row.gpus, max_gpus=row.gpus)
        effect += self._describe_walltime(wildcards, study, row)
        cpus = self._cpus_per_gpu(wildcards)
        if cpus is not None and cpus < ENOUGH_CPUS_PER_GPU:
            count = count_of(cpus, "CPU")
            effect += f"; {count} per GPU may keep it waiting: {ENOUGH_CPUS_PER_GPU} are enough for most"
        return f"{effect}{environment}"

    def _minutes(self, study: Scaling, attempt: int = 1) -> float | None:
        """The walltime that the jobs of a study request."""
        of_study = self._profile.fixed_minutes(self.rule) or study.walltime_minutes
        return of_study or self._profile.walltime_minutes(self.rule, attempt)

    @override
    def resources(self) -> dict[str, Callable[..., Any]]:
        resources = super().resources()
        if not self._profile.has_scheduler or not any(each.walltime for each in self._config.scaling.values()):
            return resources  # `default-resources` has the walltime

        def runtime(wildcards: Wildcards, attempt: int) -> float | None:
            return self._minutes(self._config.scaling[wildcards.name], attempt)

        return {"runtime": runtime, **resources}

    def _describe_walltime(self, wildcards: Wildcards, study: Scaling, row: PlannedJob) -> str:
        """Why the walltime of a scale is not enough, or too much; "" if it suits."""
        minutes = self._minutes(study)
        if minutes is None:
            return ""
        if excess := self._profile.describe_excess(self.rule, row.gpus // row.nodes, minutes):
            return excess
        walltime = format_duration(60 * minutes)
        if not row.predicted_seconds or row.predicted_seconds <= 60 * minutes:
            return ""
        if not (study.trains or study.checkpoint_pattern):
            return f"; longer than the walltime of {walltime}, and it cannot resume: set `walltime`"
        jobs = math.ceil(row.predicted_seconds / (60 * minutes))
        return f"; at least {jobs} jobs one after another, with a walltime of {walltime}"
