"""A training on one of several ranks, started by torchrun: a scale of a study, or a trial on several GPUs."""

import json
import logging
import math
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import torch

from trainyard.cluster import host, slurm_allocation, slurm_queries
from trainyard.cluster.job_step import is_rank
from trainyard.cluster.stop_request import StopRequest, stop_request_of_rank
from trainyard.cluster.telemetry import record_telemetry_beside
from trainyard.config.config import Config
from trainyard.config.load import config_copy
from trainyard.config.scaling import MOST_CPUS_PER_GPU, TrainScaling, split_scale
from trainyard.data.node_copy import local_copy
from trainyard.data.staged import Staged
from trainyard.programs.user_environment import code_record
from trainyard.scaling import rank_failures
from trainyard.training import numerics
from trainyard.training.checkpoints import SAVE_SECONDS, CheckpointStore
from trainyard.training.epoch_metrics import EpochMetrics, epoch_line, time_left
from trainyard.training.loaders import load_input_data
from trainyard.training.out_of_memory import OutOfMemory
from trainyard.training.process_group import Group, process_group
from trainyard.training.sampler import BatchSizes, batch_sizes
from trainyard.training.step_profile import StepProfiler
from trainyard.training.step_timing import device_name
from trainyard.training.summary import write_results
from trainyard.training.trainer import Trainer, TrainingInterrupted
from trainyard.training.untimed_steps import WarmUpResult, measure_steady_steps, warm_up
from trainyard.utils.errors import ContinuedError, UserError
from trainyard.utils.files import digest_of, write_json
from trainyard.utils.locks import hold
from trainyard.utils.text import count_of
from trainyard.utils.typed_commands import installed_program

# Files in the folder of the checkpoints, for the next attempt:
MICRO_BATCH = "micro-batch.json"  # the micro-batch that fits the memory
WARM_UP = "probe.json"  # the measurements of the warm-up
SESSIONS = "sessions.json"  # where the training began in each session, and with which code
STARTUP_MINUTES = 30  # until the first step, in which nodes wait for each other to copy data and to compile
log = logging.getLogger(__name__)


def train_scale(config: Config, study_name: str, scale: str, *, results: Path) -> None:
    """Join the process group and train a scale, such as `1x2` or `1x2/repeat-2`.

    Raises:
        UserError: the scale has a different number of ranks, the deadline was reached, or a signal stopped it.
    """
    study = config.scaling[study_name]
    folder = results / "scaling" / study_name / scale
    assert isinstance(study, TrainScaling)
    with join_ranks(study, scale, traces=folder.absolute()) as (group, stop_request), ExitStack() as stack:
        if group.is_main:
            stack.enter_context(hold(folder / ".lock", is_given_up=slurm_queries.is_given_up))
        staged = Staged(results / "data" / str(study.dataset))  # a study without `script` has a dataset
        spec = study.result_content(scale, staged.digest)  # each has its own folder, which no other config overwrites
        store = CheckpointStore(
            folder / "checkpoints" / digest_of(spec, length=10), spec, keep_all=study.keep_checkpoints == "all"
        )
        copy = stack.enter_context(local_copy(staged, config.data.local))
        if copy.message:
            log.warning("%s", copy.message)
        trainer = create_trainer(
            study,
            scale,
            copy.staged,
            group,
            store,
            folder=folder,
            deadline=_deadline(group),
            stop_request=stop_request,
            downloads=config.data.downloads,
        )
        _log_start(trainer, store)
        if group.is_main and not trainer.is_complete:
            _record_session(trainer, store, code_record(study, config=config_copy(config, results).stem))
        with _telemetry(trainer, folder):
            try:
                for row in train_epochs(trainer, study, store):
                    log.info(epoch_line(row, trainer.spec.epochs))
                    if left := time_left(row, trainer.spec.epochs):
                        log.info(left)
            except TrainingInterrupted as error:
                kind = UserError if error.is_by_signal else ContinuedError
                raise kind(f"{error}: the same command continues from here, and on Slurm the next job") from None
        # No verdict is on CPUs. The telemetry, with its energy, is that of the training alone.
        steady = measure_steady_steps(trainer) if group.device.type == "cuda" else None
        group.all_gather_object(None)  # wait until all nodes have written their telemetry
        if group.is_main:
            measured = _read_note(store, WARM_UP)
            warmed_up = WarmUpResult(**measured) if measured else None
            facts: dict[str, Any] = {"spec_digest": store.folder.name, "sessions": _read_note(store, SESSIONS)}
            write_results(trainer, warmed_up, folder, scale=scale, steady=steady, **facts)


@contextmanager
def join_ranks(study: TrainScaling, scale: str, *, traces: Path) -> Iterator[tuple[Group, StopRequest]]:
    """Join the process group of a scale; the request to stop is that of this rank. `traces` is for NCCL's failures.

    Raises:
        UserError: the scale has a different number of ranks; and as `process_group` and `record_exception` do.
    """
    stop_request, (nodes, gpus) = stop_request_of_rank(), split_scale(scale)
    with rank_failures.record_exception():
        has_gpu = torch.accelerator.is_available()
        # On CPUs, the number of threads changes the last digits. On GPUs, a rank soon keeps to the CPUs near its own.
        cpus = slurm_allocation.cpus_per_gpu(gpus, most=MOST_CPUS_PER_GPU) if has_gpu else 1
        with process_group(traces=traces) as group:
            if not group.is_main:
                logging.getLogger().setLevel(logging.WARNING)
            if group.world_size != nodes * gpus:
                count = count_of(nodes * gpus, "rank")
                remedy = f"start it with {installed_program('torchrun')} --nnodes {nodes} --nproc-per-node {gpus}"
                raise UserError(f"scale {scale} needs {count}, but has {group.world_size}: {remedy}")
            numerics.set_threads(study.cpus_per_gpu or cpus)
            group.limit_collectives(max(STARTUP_MINUTES, study.ddp.timeout_minutes))
            yield group, stop_request


def create_trainer(
    study: TrainScaling,
    scale: str,
    staged: Staged,
    group: Group,
    store: CheckpointStore,
    *,
    folder: Path,
    **options: Any,
) -> Trainer:
    """The trainer of a study's scale on this rank, with the `options` of `Trainer` that the study does not set.

    `folder` is that of the scale or the trial.
    """
    return Trainer(
        study.train_at(scale),
        load_input_data(staged, group.device),
        group,
        batch=_batch(study, store, group),
        store=store,
        save_every_seconds=0.0 if study.keep_checkpoints == "all" else SAVE_SECONDS,
        on_halved=partial(_remember_micro_batch, store),
        ddp=study.ddp.arguments,
        profiler=StepProfiler(study.profile, folder / "profile") if study.profile else None,
        **options,
    )


def train_epochs(trainer: Trainer, study: TrainScaling, store: CheckpointStore) -> Iterator[EpochMetrics]:
    """Train the remaining epochs, if any, after a warm-up; each is yielded.

    Raises:
        Diverged, TrainingInterrupted: as `Trainer.epochs`.
        UserError: out of memory on a rank, for which the next attempt has smaller micro-batches; or DDP's error.
    """
    if trainer.is_complete:
        return
    group = trainer.group
    try:
        with _explaining_unused_parameters():
            if group.world_size > 1 or trainer.spec.compile or group.device.type == "cuda":
                measured = warm_up(trainer)
                if group.is_main:
                    write_json(store.folder / WARM_UP, asdict(measured))
            group.limit_collectives(study.ddp.timeout_minutes)
            yield from trainer.epochs()
    except OutOfMemory as error:
        _remember_micro_batch(store, trainer.batch.halved())
        raise UserError(f"{error}: the next attempt uses micro-batches of half the size") from None


@contextmanager
def _explaining_unused_parameters() -> Iterator[None]:
    """Raise DDP's error about unused parameters, which it detects one step later, as a `UserError`."""
    try:
        yield
    except RuntimeError as error:
        if "Expected to have finished reduction" not in str(error):
            raise
        remedy = "set `ddp: {find_unused_parameters: true}` in this study, or `gpus_per_trial: 1` in this sweep"
        raise UserError(f"a step did not use all parameters of the model: {remedy}") from error


def _log_start(trainer: Trainer, store: CheckpointStore) -> None:
    group = trainer.group
    done = len(trainer.history)
    if trainer.is_complete:
        log.info("already trained for %s: see %s", count_of(done, "epoch"), store.folder)
    elif not trainer.state.is_new:
        step = f" and step {trainer.state.progress.step}" if trainer.state.progress.step else ""
        log.info("continuing after epoch %d%s, from %s", done, step, store.folder)
    elif group.is_main:
        for other in store.others():
            log.info("starting over: %s", other)
    ranks = f"{group.world_size} x {device_name(group.device)}"
    batch = trainer.batch.images
    log.info("training on %s in %s, global batch %d, master node %s", ranks, trainer.precision, batch, host.node_name())


def _telemetry(trainer: Trainer, folder: Path) -> AbstractContextManager[Any]:
    """Record telemetry of this node: torchrun, all ranks that it has started here, and their GPUs. Collective.

    A new training first removes that of another one, which may have run on other nodes.
    """
    group = trainer.group
    is_new = trainer.state.is_new
    if is_new and group.is_main:
        shutil.rmtree(folder / "telemetry", ignore_errors=True)
    group.any(False)  # no node records before that
    if group.local_rank:
        return nullcontext()
    me = psutil.Process()
    root = (me.parent() if is_rank() else None) or me
    # A machine without Slurm may show further GPUs, whose energy is not that of this training.
    count = int(os.environ.get("LOCAL_WORLD_SIZE", 1)) if group.device.type == "cuda" else 0
    gpus = [str(torch.cuda.get_device_properties(number).uuid) for number in range(count)]
    return record_telemetry_beside(folder / "telemetry", host.node_name(), overwrite=is_new, root=root, gpus=gpus)


def _deadline(group: Group) -> float:
    """Deadline in Unix seconds by the clock of this node. Collective: rank 0 reads from Slurm the time that is left."""
    given = slurm_allocation.current_allocation() if group.is_main else None
    left = given.deadline - time.time() if given else math.inf
    return time.time() + float(group.broadcast(torch.tensor(left, dtype=torch.float64, device=group.device)))


def _batch(study: TrainScaling, store: CheckpointStore, group: Group) -> BatchSizes:
    """The batch sizes, with the micro-batch that previous attempts found to fit the memory."""
    batch = batch_sizes(study.train, world_size=group.world_size, mode=study.mode)
    kept = _read_note(store, MICRO_BATCH)
    fits = torch.tensor(min(kept["images"], batch.micro) if kept else batch.micro, device=group.device)
    return replace(batch, micro=int(group.minimum(fits)))  # not all nodes may see the file yet


def _remember_micro_batch(store: CheckpointStore, batch: BatchSizes) -> None:
    write_json(store.folder / MICRO_BATCH, {"images": batch.micro})


def _record_session(trainer: Trainer, store: CheckpointStore, session: dict[str, Any]) -> None:
    """Add a session to those that have trained this far; a previous one that has got no further has trained nothing."""
    begins = [len(trainer.history), trainer.state.progress.step]
    before = [each for each in _read_note(store, SESSIONS) or [] if each["begins"] < begins]
    write_json(store.folder / SESSIONS, [*before, {"begins": begins, **session}])


def _read_note(store: CheckpointStore, name: str) -> Any:
    """The content of a file in the folder of the checkpoints, written by a previous attempt; None without it."""
    path = store.folder / name
    return json.loads(path.read_text()) if path.exists() else None
