"""The cluster as a Snakemake profile describes it: what jobs request by default, and what is set for a rule."""

import ast
import os
import re
import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import cached_property
from types import SimpleNamespace
from typing import Any, Final

from snakemake_interface_common.exceptions import WorkflowError

from trainyard.cluster.slurm_limits import JobLimits, find_limits
from trainyard.cluster.slurm_queries import (
    Partition,
    controller_settings,
    keeps_accounting,
    list_gpu_models,
    list_partitions,
    max_walltime_minutes,
    named_partitions,
)
from trainyard.config.scaling import MOST_CPUS_PER_GPU
from trainyard.planning.memory_request import MemoryRequest, NodeMemory
from trainyard.utils.background import in_background
from trainyard.utils.errors import UserError
from trainyard.utils.text import format_duration

Settings = Mapping[str, Any]  # snakemake.resources.Resource by name
GPU_TYPE: Final = re.compile(r"[\w.+-]+")
POLL_SECONDS: Final = 200  # the executor plugin asks for the states of jobs at least every 180 s
PLUGIN_GPU_TYPE: Final = re.compile(r"[a-zA-Z0-9_.]+")  # the types that Snakemake's executor plugin accepts


class Profile:
    """What a profile and the command line set for jobs; without a scheduler, nothing is requested."""

    def __init__(
        self,
        default_resources: Settings | None,
        executor: Callable[[], Any] = lambda: None,
        set_resources: Mapping[str, Settings] | None = None,
        *,
        is_main: bool = True,
    ) -> None:
        """`is_main`: no other Snakemake has started this one, as in a job."""
        self._defaults = default_resources or {}
        self._set = set_resources or {}
        self._executor = executor  # its settings, which Snakemake sets after it has read the Snakefile
        self.gpu_type = self.default("gpu_type")
        self.has_scheduler = bool(self.default("runtime"))
        self.is_main = is_main
        self.submits = is_main and self.has_scheduler  # a message then states what a job costs
        self._keeps_accounting: Future[bool] | None = None

    def default(self, name: str) -> str:
        """A resource of `default-resources`; "" if it is not there."""
        return _text(self._defaults.get(name))

    def setting(self, rule: str, name: str) -> str:
        """A resource that is set for a rule, or else for all jobs; "" if neither is."""
        return _text(self._set.get(rule, {}).get(name)) or self.default(name)

    def check(self) -> None:
        """Raise a UserError if a setting cannot be passed to Slurm."""
        if self.gpu_type and not GPU_TYPE.fullmatch(self.gpu_type):
            raise UserError(f"gpu_type: {self.gpu_type!r} is not a GPU type: `sinfo -o %G` prints gpu:<type>:<count>")
        for rule, settings in self._set.items():
            for name in ("gpu_model", "gres"):
                if "-" in (value := _text(settings.get(name))):
                    raise UserError(
                        f"set-resources: {rule}: {name}={value}: Snakemake's Slurm plugin refuses the hyphen; "
                        "set `gpu_type` in default-resources instead"
                    )

    def ask_accounting(self) -> None:
        """Ask Slurm whether it keeps accounting, in a thread: it may take a while. Nothing if no job is submitted."""
        if self.submits:
            self._keeps_accounting = in_background(keeps_accounting)

    def follow_jobs(self) -> None:
        """Have Snakemake follow its jobs with squeue if Slurm keeps no accounting: with sacct, it would wait forever.

        Waits for the answer to `ask_accounting`.

        Raises:
            UserError: jobs cannot be followed.
        """
        settings = self._executor()
        if self._keeps_accounting is None or not hasattr(settings, "status_command"):
            return
        if self._keeps_accounting.result():
            return
        if shutil.which("sacct") is None:
            raise UserError("the command sacct is missing here: Snakemake's Slurm plugin runs it to find your account")
        if account := self.default("slurm_account"):
            raise UserError(
                f"slurm_account: {account}, but Slurm's accounting does not answer (`sacct`): try again later or, if "
                "Slurm keeps none here, remove it from the profile"
            )
        age = controller_settings().get("MinJobAge", "")
        if not (number := re.match(r"\d+", age)) or int(number[0]) < POLL_SECONDS:
            raise UserError(
                f"Slurm keeps no accounting here, and forgets a job {age or 'at once'} after its end (MinJobAge): "
                f"Snakemake would wait for it forever; ask the site's administrators for at least {POLL_SECONDS} s"
            )
        settings.status_command = "squeue"

    # ---- partitions

    def walltime_minutes(self, rule: str = "", attempt: int = 1) -> float | None:
        """The walltime that is set for a rule, or else for all jobs; None if it is not known before a job runs."""
        resource: Any = self._set.get(rule, {}).get("runtime") or self._defaults.get("runtime")
        if (text := _text(resource)).isdigit():
            return float(text)
        try:  # an expression, such as `60 * attempt`
            context = {"input": [], "attempt": attempt, "threads": 1, "rulename": rule, "async_run": None}
            return float(resource.evaluate(None, **context).value)
        except (WorkflowError, ValueError, TypeError, AttributeError):
            return None

    def fixed_minutes(self, rule: str) -> float | None:
        """The walltime that `set-resources` gives a rule instead of what it would request; None if there is none."""
        return self.walltime_minutes(rule) if "runtime" in self._set.get(rule, {}) else None

    def limit_minutes(self, rule: str, gpus: int) -> float:
        """The longest walltime that a job of a rule can request, with this number of GPUs per node.

        Infinite without a scheduler, or if it is unknown.
        """
        if self.setting(rule, "slurm_partition") or not (fitting := self._fitting_partitions(rule, gpus)):
            return self.partition_minutes(rule)
        slurm = max_walltime_minutes(self._partitions, ",".join(each.name for each in fitting))
        return min(slurm, self.limits(rule).minutes, max(float(each.limits.max_runtime) for each in fitting))

    def partition_minutes(self, rule: str) -> float:
        """The same without a partition file, which is not known while Snakemake reads the Snakefile."""
        slurm = max_walltime_minutes(self._partitions, self.setting(rule, "slurm_partition"))
        return min(slurm, self.limits(rule).minutes)

    def describe_excess(self, rule: str, gpus: int, minutes: float | None) -> str:
        """That a walltime is longer than a job of a rule may take, for messages; "" if it is not."""
        longest = self.limit_minutes(rule, gpus)
        if minutes is None or minutes <= longest:
            return ""
        walltime = format_duration(60 * minutes)
        most = format_duration(60 * longest)
        remedy = "lower `walltime`, or `runtime` in the profile"
        return f"; above the limit: {walltime} of walltime, but a job may take {most} at most: {remedy}"

    def limits(self, rule: str) -> JobLimits:
        """The limits of the accounting on the jobs of a rule; none in a job, which submits no other."""
        if not self.submits:
            return JobLimits()
        default = next((each.name for each in self._partitions if each.default), "")
        partition = (self.setting(rule, "slurm_partition") or default).split(",")[0]
        return find_limits(self.setting(rule, "slurm_account"), self.setting(rule, "qos"), partition, self.gpu_type)

    def node_memory(self, rule: str, gpus: int) -> NodeMemory:
        """The memory of the nodes with enough GPUs of the right type in the partition of a rule."""
        nodes = [each for each in self._named_partitions(rule, gpus) if each.gpu_count(self.gpu_type) >= gpus]
        if not nodes:
            return NodeMemory()
        largest = max(each.node_memory_mb for each in nodes)
        shares = [each.memory_share_mb(gpus, self.gpu_type) for each in nodes]
        return NodeMemory(largest, min(shares) if gpus else largest)

    def gpu_models(self, rule: str, gpus: int) -> tuple[str, ...]:
        """The GPU models that a job of a rule may get, with this number of GPUs per node; empty if that is unknown."""
        if not self.has_scheduler:
            return ()
        return list_gpu_models(self._named_partitions(rule, gpus), gpus, self.gpu_type)

    def _named_partitions(self, rule: str, gpus: int) -> list[Partition]:
        return named_partitions(self._partitions, self.partition_names(rule, gpus))

    def cpus_per_gpu(self, rule: str, gpus: int) -> int | None:
        """The CPUs for each GPU on the nodes for a rule's jobs, at most `MOST_CPUS_PER_GPU`; None if unknown."""
        nodes = self._named_partitions(rule, gpus)
        counts = [(int(each.cpus.rstrip("+")), each.gpu_count(self.gpu_type)) for each in nodes]
        shares = [cpus // count for cpus, count in counts if count >= max(1, gpus)]
        return max(1, min([MOST_CPUS_PER_GPU, *shares])) if shares else None

    def partition_names(self, rule: str, gpus: int) -> str:
        """The partitions in which the jobs of a rule may start; "" for the default one."""
        fitting = (each.name for each in self._fitting_partitions(rule, gpus))
        return self.setting(rule, "slurm_partition") or ",".join(fitting)

    def _fitting_partitions(self, rule: str, gpus: int) -> list[Any]:
        """The partitions of the partition file that the plugin would consider for a short job with these GPUs per node.

        If there is none, those for one such GPU, because a sweep with `slots: auto` may request fewer, or else all.
        """
        file = self._partition_file()
        names = ("slurm_cluster", "cluster", "clusters", "constraint")
        settings = {name: self.setting(rule, name) for name in names if self.setting(rule, name)}
        for count in (gpus, min(gpus, 1)):
            job = SimpleNamespace(resources={**settings, "gpu": count, "gpu_model": self.gpu_type}, threads=1)
            if fitting := [each for each in file if each.score_job_fit(job) is not None]:
                return fitting
        return file

    def _partition_file(self) -> list[Any]:
        """The partitions of the plugin's partition file, if there is one: each job is sent to one of them."""
        path = getattr(self._executor(), "partition_config", None) or os.environ.get("SNAKEMAKE_SLURM_PARTITIONS")
        if not path or not self.has_scheduler:
            return []
        from snakemake_executor_plugin_slurm.partitions import read_partition_file  # takes a second

        return list(read_partition_file(path))

    @cached_property
    def _partitions(self) -> list[Partition]:
        """The partitions of the cluster; none without a scheduler, or if Slurm does not answer."""
        try:
            return list_partitions() if self.has_scheduler else []
        except UserError:  # a dry run away from the cluster
            return []

    # ---- GPUs and options of sbatch

    def needs_own_option(self, gpus: int) -> bool:
        """Whether GPUs are requested in `slurm_extra`: the plugin refuses types with hyphens."""
        return gpus > 0 and bool(self.gpu_type) and not PLUGIN_GPU_TYPE.fullmatch(self.gpu_type)

    def gres(self, gpus: int) -> str | None:
        """GPUs per node in the syntax of Slurm's `--gres`; None leaves the resource out."""
        if not gpus or self.needs_own_option(gpus):
            return None
        return ":".join(filter(None, ["gpu", self.gpu_type, str(gpus)]))

    def hardware(self, rule: str, nodes: int, gpus: int | None) -> str:
        """Nodes and GPUs per node, for messages, and partitions if there are several; no GPUs if `gpus` is None."""
        names = self.setting(rule, "slurm_partition")
        parts = [f"partitions: {names.replace(',', ' or ')}"] if "," in names else []
        parts.append(f"nodes: {nodes}")
        if gpus is not None:
            model = self.gpu_type or " or ".join(models if len(models := self.gpu_models(rule, gpus)) > 1 else ())
            count = f"{gpus} {model}".rstrip() if gpus else "none"
            parts.append(f"GPUs per node: {count}")
        return ", ".join(parts)

    def slurm_extra(self, rule: str, gpus: int, *options: str) -> str | None:
        """Options of sbatch: given ones, the profile's, and GPUs that the plugin refuses; None for none.

        Raises:
            UserError: what is set for the rule conflicts with these options.
        """
        needed = [*options, *([f"--gpus-per-node={self.gpu_type}:{gpus}"] if self.needs_own_option(gpus) else [])]
        if self.needs_own_option(gpus) and not self.setting(rule, "slurm_partition") and self._partition_file():
            raise UserError(
                f"gpu_type: {self.gpu_type} does not work with a partition file, because Snakemake's Slurm plugin "
                f"refuses the hyphens: set slurm_partition for {rule}"
            )
        given = _text(self._set.get(rule, {}).get("slurm_extra")).split()
        if given and (missing := [word for word in needed if word not in given]):
            raise UserError(
                f"set-resources: {rule}: slurm_extra replaces options that its jobs need: add {' '.join(missing)!r}, "
                "or set slurm_extra in default-resources, which adds to them"
            )
        return " ".join(filter(None, [*needed, self.default("slurm_extra")])) or None

    # ---- memory

    def mem_mb(self, request: Callable[..., MemoryRequest]) -> Callable[..., Any]:
        """The resource `mem_mb` of a rule: what `request` returns, unless default-resources sets it."""
        default = self._defaults.get("mem_mb")
        if default is None or default.raw is None:  # None: Snakemake's own default
            return lambda wildcards, attempt: request(wildcards, attempt).mb
        return lambda wildcards, **context: default.evaluate(wildcards, **context).value

    def describe_memory(self, rule: str, basis: str) -> str:
        """How the memory of a job was determined, for messages."""
        if per_cpu := self.setting(rule, "mem_mb_per_cpu"):
            return f"but {per_cpu} MB per CPU, as set"
        return "as set" if self.setting(rule, "mem_mb") else basis


def _text(resource: Any) -> str:
    """A resource as it was written, without quotes; "" without one, or if it is Snakemake's own default.

    Raises:
        UserError: it is an expression of texts.
    """
    raw = getattr(resource, "raw", None)
    if raw is None:
        return ""
    text = os.path.expandvars(str(raw))
    if not re.fullmatch(r"""(['"]).*\1""", text):
        return text
    try:
        return str(ast.literal_eval(text))
    except (ValueError, SyntaxError):
        message = "is known only when a job runs, but what jobs request depends on it: give one text in quotes"
        raise UserError(f"{resource.name}: {text} {message}") from None
