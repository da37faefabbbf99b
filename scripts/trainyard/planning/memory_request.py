"""The host memory that a job requests on each node: from the measured peak of earlier jobs, or else an estimate."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from trainyard.cluster.job_memory import MemoryRecord, exhausted_mib, read_records
from trainyard.config.config import Config
from trainyard.config.datasets import Python
from trainyard.config.scaling import split_scale
from trainyard.config.sweep import Slots, Sweep
from trainyard.config.trials import expand
from trainyard.config.user_programs import PROGRAM_MIB
from trainyard.planning.plan import Plan

# In MiB, as `process_mib` of what trials run. Without a GPU, we measured as anonymous and shared memory: the driver of
# a sweep 470, Ray's daemons 135, torchrun with its agent 330, and a slot's worker or a rank 550. CUDA's context and
# libraries add to each process.
NODE_MIB: Final = 2000  # per node, whatever runs there
LOADER_MIB: Final = 500  # per worker of a DataLoader
STAGING_MIB: Final = 6000
STAGING_WORKER_MIB: Final = 750
TABLES_MIB: Final = 2000

MARGIN: Final = 1.5  # on the measured peak
GROWTH: Final = 1.5  # of the request, after a job that ran out of memory
USABLE: Final = 0.95  # of a node's memory: sites may reserve some
STEP_MB: Final = 1000


@dataclass(frozen=True)
class NodeMemory:
    """The memory of the nodes on which a job can run, in MB; infinite if Slurm does not report it."""

    largest: float = math.inf
    share: float = math.inf  # of a node, for the GPUs of the job; the whole node for a job without GPUs


@dataclass(frozen=True)
class MemoryRequest:
    """Memory per node in MB, in the sense of Slurm, and how it was determined."""

    mb: int
    basis: str


def request_memory(
    node: NodeMemory, records: Sequence[MemoryRecord], count: int, process_mib: float, noun: str, shared_mib: float = 0
) -> MemoryRequest:
    """The memory to request: measured, or else estimated; more than the last job had if it ran out of it.

    Each of `count` processes on a node takes `process_mib`, and all of them share the dataset that they map. The
    estimate takes at most the job's share of a node, and no request exceeds a node.
    """
    per_process = max((each.process_peak_mib for each in records), default=0)
    if per_process:
        least = NODE_MIB + MARGIN * count * per_process
        basis = f"{MARGIN:g} times the measured {_gb(per_process)} per {noun}"
    else:
        least = NODE_MIB + count * process_mib
        basis = f"assuming {_gb(process_mib)} per {noun}"
    wanted = least + shared_mib
    basis += f" and {_gb(shared_mib)} of data" if shared_mib >= STEP_MB else ""
    exhausted = GROWTH * exhausted_mib(records)
    if exhausted > wanted:
        least = wanted = exhausted
        basis = f"{GROWTH:g} times the {_gb(exhausted / GROWTH)} that the last job ran out of"
    limit = USABLE * node.share
    whose = "the share of a node"
    if (per_process or exhausted) and least > limit:  # this is known to be needed
        limit = max(limit, min(least, USABLE * node.largest))
        whose = "a whole node"
    if wanted > limit:
        return MemoryRequest(int(limit), f"{basis}, limited to {whose}")
    return MemoryRequest(int(min(STEP_MB * math.ceil(wanted / STEP_MB), USABLE * node.largest)), basis)


def _gb(mib: float) -> str:
    return f"{mib / 1000:.2f}".rstrip("0").rstrip(".") + " GB"


# ---- the jobs of each kind


def sweep_memory(config: Config, plan: Plan, results: Path, node: NodeMemory) -> MemoryRequest:
    """The memory of a sweep's job."""
    sweep = plan.state.sweep
    slots = plan.slots
    if not plan.forecast.pending:
        return tables_memory(node)
    records = read_records(plan.state.folder)
    count, noun = measured_processes(sweep, slots)
    trials = [*(plan.state.trials[name] for name in plan.forecast.pending), *expand(sweep).examples]
    dataset_mib = data_mib(results, sweep.dataset)
    process_mib = max(trial.spec.process_mib + trial.spec.data_copies * dataset_mib for trial in trials)
    if not sweep.trains:
        return request_memory(node, records, count, process_mib, noun)
    process_mib += _loader_mib(config, sweep.dataset, slots.cpus_per_trial // split_scale(slots.scale)[1])
    process_mib *= max(1.0, slots.count / count)
    return request_memory(node, records, count, process_mib, noun, dataset_mib)


def tables_memory(node: NodeMemory) -> MemoryRequest:
    """The memory of a job that only reads saved outputs and writes tables."""
    return request_memory(node, [], 1, TABLES_MIB, "job")


def measured_processes(sweep: Sweep, slots: Slots) -> tuple[int, str]:
    """What the memory of a sweep's job is counted by, per node: slots, or GPUs if these are ranks."""
    counts_gpus = sweep.trains and slots.ranks > 1
    return (slots.gpus_per_node, "GPU") if counts_gpus else (slots.count, "slot")


def scale_memory(
    config: Config, name: str, run: str, results: Path, node: NodeMemory, *, cpus_per_gpu: int = 1
) -> MemoryRequest:
    """The memory of the job of a scale of a scaling study; measured on any of its scales."""
    study, (_, ranks) = config.scaling[name], split_scale(run)
    folder = results / "scaling" / name
    others = [each for other in study.scales for each in study.runs(other) if each != run]
    records = [record for each in (run, *others) for record in read_records(folder / each)]
    if study.base_training is None:
        return request_memory(node, records, ranks, PROGRAM_MIB, "rank")
    each = study.base_training.process_mib + _loader_mib(config, study.dataset, cpus_per_gpu)
    return request_memory(node, records, ranks, each, "rank", data_mib(results, study.dataset))


def staging_memory(name: str, cpus: int, results: Path, node: NodeMemory) -> MemoryRequest:
    """The memory of the job that stages a dataset."""
    process_mib = max(STAGING_MIB, STAGING_WORKER_MIB * cpus)
    return request_memory(node, read_records(results / "data" / name), 1, process_mib, "job")


def data_mib(results: Path, dataset: str | None) -> float:
    """The size of a staged dataset; 0 before it is staged."""
    if dataset is None:
        return 0.0
    files = (results / "data" / dataset).glob("*.*")
    return sum(path.stat().st_size for path in files if path.is_file()) / 2**20


def _loader_mib(config: Config, dataset: str | None, cpus: int) -> float:
    """The memory of a rank's DataLoader, which only a dataset of the user's own code has."""
    if not isinstance(config.datasets.get(dataset or ""), Python):
        return 0.0
    return LOADER_MIB * max(1, cpus - 1)
