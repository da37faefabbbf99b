"""Steps that are no part of a training: a warm-up, and steps after a training that was short.

The warm-up compiles, finds the micro-batch and measures, without changing the model.
"""

import logging
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from types import MethodType

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from trainyard.training.fine_tuning import set_training_mode
from trainyard.training.loaders import ImageBatch
from trainyard.training.models import gradient_bytes
from trainyard.training.out_of_memory import OutOfMemory, is_out_of_memory
from trainyard.training.running_statistics import unchanged_buffers
from trainyard.training.step_timing import StepTimes, synchronize
from trainyard.training.trainer import Trainer, TrainingInterrupted
from trainyard.utils.errors import Diverged

STEPS = 3  # with and without gradient sync each; their median counts
STEADY_STEPS = 50  # over which throughput is measured, at least,
SETTLING_STEPS = 10  # after so many that do not count
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class WarmUpResult:
    """Measurements of the warm-up."""

    seconds: float
    exposed_comm_fraction: float | None  # of a step with gradient sync; None on one rank


def warm_up(trainer: Trainer) -> WarmUpResult:
    """Compile, select kernels, and halve the micro-batch on all ranks until it fits the memory of each.

    On several ranks, also measure the exposed communication: the share of a step (forward and backward pass of one
    micro-batch) that gradient sync adds; the mean over the ranks.

    Raises:
        OutOfMemory: one of several ranks ran out of memory in a step that the others took with it.
        TrainingInterrupted: a rank was told to stop.
        UserError: a micro-batch of one image does not fit.
    """
    began = time.perf_counter()
    group = trainer.group
    with _unchanged(trainer):
        while not _fits(trainer):
            trainer.halve_micro_batch()
        if (rank := group.lowest(trainer.stop_request.is_made)) < group.world_size:  # compiling takes long
            raise TrainingInterrupted("the warm-up", signalled_rank=rank, world_size=group.world_size)
        try:
            _find_unused_parameters(trainer)
            exposed = _exposed_communication(trainer)
            _wrap_for_training(trainer)
            if trainer.spec.compile:
                _compile_other_sizes(trainer)
        except RuntimeError as error:
            if group.world_size == 1 or not is_out_of_memory(error):
                raise
            raise OutOfMemory("the warm-up", rank=group.rank, micro=trainer.batch.micro, error=error) from None
    return WarmUpResult(time.perf_counter() - began, exposed)


@dataclass(frozen=True)
class SteadySteps:
    """Measurements of steps after a training."""

    steps: int
    images_per_second: float  # of all ranks
    step_ms_p50: float
    step_ms_p95: float
    data_wait_fraction: float


def measure_steady_steps(trainer: Trainer) -> SteadySteps | None:
    """Take `STEADY_STEPS` more steps after a complete training that had fewer, with batches that it has seen before.

    They change the model after its last checkpoint, and no result but the throughput. None if the training had enough,
    if the loss becomes NaN, or if a rank must stop. Collective.
    """
    needed = SETTLING_STEPS + STEADY_STEPS
    if trainer.steps * len(trainer.history) >= needed:
        return None
    times = StepTimes()
    try:
        if trainer.first_step_time is None:  # this run found the training complete
            warm_up(trainer)
        while len(times.steps_ms) < needed:
            times += trainer.repeat_epoch()
    except (Diverged, TrainingInterrupted) as error:
        log.info("the throughput is that of %d steps: %s", trainer.steps * len(trainer.history), error)
        return None
    steady = StepTimes(steps_ms=times.steps_ms[SETTLING_STEPS:])
    count = len(steady.steps_ms)
    seconds = sum(steady.steps_ms) / 1000
    log.info(
        "measured the throughput in %d further steps: the training had %d", count, len(trainer.history) * trainer.steps
    )
    rate = count * trainer.batch.images / seconds
    return SteadySteps(count, rate, *steady.percentiles_ms(), times.waited_seconds / times.seconds)


def _exposed_communication(trainer: Trainer) -> float | None:
    """Share of a step that gradient sync adds; None on one rank."""
    _seconds(trainer, synced=True)  # compiles, and on several ranks allocates the gradient buckets
    if trainer.group.world_size == 1:
        return None
    synced, unsynced = (
        statistics.median(_seconds(trainer, synced=synced) for _ in range(STEPS)) for synced in (True, False)
    )
    mine = torch.tensor(max(0.0, (synced - unsynced) / synced), device=trainer.group.device)
    return float(trainer.group.all_reduce_sum(mine)) / trainer.group.world_size


def _wrap_for_training(trainer: Trainer) -> None:
    """Wrap the model for the training, and let DDP put the gradients into their buckets for good.

    After its first backward pass, with a static graph after the second, DDP orders them as they came. The last bits of
    a sum over three ranks or more depend on the place in a bucket, so a resumed training would differ from the others.
    """
    if trainer.spec.compile is True:
        return
    trainer.wrap()
    if trainer.group.world_size > 1:
        for _ in range(2):
            _pass(trainer, trainer.model)


def _compile_other_sizes(trainer: Trainer) -> None:
    """Compile what the first epoch would compile later: micro-batches of the second size, and the validation."""
    parts = torch.arange(trainer.batch.per_rank).tensor_split(trainer.batch.accumulation)
    for images in {len(part) for part in parts} - {trainer.batch.micro}:
        _pass(trainer, trainer.model, images=images)
    trainer.validate(for_warm_up=True)


@contextmanager
def _unchanged(trainer: Trainer) -> Iterator[None]:
    """Restore the buffers of the model and of an own loss at the end of the block.

    The block does not update parameters, and each epoch seeds its random numbers. After an error nothing is restored:
    it ends the training, and wrapping the model again is a collective operation.
    """
    with unchanged_buffers(*trainer.state.modules.values(), *filter(None, [trainer.objective.loss_module])):
        if trainer.spec.compile is not True:
            trainer.wrap(for_warm_up=True)
        yield
        trainer.state.optimizer.zero_grad(set_to_none=True)


def _fits(trainer: Trainer) -> bool:
    """Whether a forward and backward pass fit the memory of every rank.

    On several ranks, the pass has no collectives, in which the others would wait for a rank that runs out of memory.
    """
    device = trainer.group.device
    reserve = gradient_bytes(trainer.module) if trainer.group.world_size > 1 else 0  # of DDP's buckets
    fits = torch.ones((), dtype=torch.int64, device=device)
    try:
        reserved = torch.empty(reserve, dtype=torch.uint8, device=device)
        if trainer.group.world_size == 1:
            _pass(trainer, trainer.model)
        else:
            with _without_collectives(trainer.module):
                _pass(trainer, trainer.module)
        del reserved
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        log.info("%s", error)
        fits.zero_()
    return bool(trainer.group.minimum(fits))


def _find_unused_parameters(trainer: Trainer) -> None:
    """Let DDP look for unused parameters in each step if the last pass left one without a gradient on any rank.

    By default, DDP waits for the gradients of all parameters, and fails in the second step.
    """
    if trainer.group.world_size == 1 or trainer.forward.ddp["find_unused_parameters"]:
        return
    unused = [name for name, each in trainer.module.named_parameters() if each.requires_grad and each.grad is None]
    all_used = torch.tensor(not unused, dtype=torch.int64, device=trainer.group.device)
    if not trainer.group.minimum(all_used):
        log.info("DDP looks for unused parameters in each step: the loss does not depend on %s", ", ".join(unused))
        trainer.forward.ddp["find_unused_parameters"] = True
        trainer.wrap(for_warm_up=True)


@contextmanager
def _without_collectives(module: nn.Module) -> Iterator[None]:
    """In the block, synchronized batch normalization uses the statistics of this rank only, as BatchNorm does."""
    layers = [each for each in module.modules() if isinstance(each, nn.SyncBatchNorm)]
    for layer in layers:
        layer.forward = MethodType(_BatchNorm.forward, layer)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward


def _seconds(trainer: Trainer, *, synced: bool) -> float:
    synchronize(trainer.group.device)
    began = time.perf_counter()
    with nullcontext() if synced else trainer.forward.no_sync():
        _pass(trainer, trainer.model)
    synchronize(trainer.group.device)
    return time.perf_counter() - began


def _pass(trainer: Trainer, model: nn.Module, images: int | None = None) -> None:
    """Forward and backward pass of black images: of a micro-batch, or of so many."""
    device = trainer.group.device
    shape = (images or trainer.batch.micro, *trainer.data.shape)
    labels = trainer.objective.zero_targets(shape[0], device)
    indices = torch.zeros(shape[0], dtype=torch.int64)
    black = ImageBatch(torch.zeros(shape, dtype=torch.uint8, device=device), labels, indices)
    mixed = trainer.mix(black, epoch=0, step=0)
    set_training_mode(trainer.module)
    trainer.state.optimizer.zero_grad(set_to_none=True)
    loss, _ = trainer.forward.compute_loss(mixed, model=model, training=True)
    trainer.state.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
