"""What is found out on a few steps before the first one that counts, without changing anything."""

import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import torch

from trainyard.training.loaders import Images
from trainyard.training.step_timing import synchronise
from trainyard.training.trainer import Training

STEPS = 3  # of each kind, whose median counts


@dataclass(frozen=True)
class Probe:
    """What warming up found."""

    seconds: float
    exposed_comm_fraction: float | None  # of a step with gradient sync; None on one rank


def warm_up(training: Training) -> Probe:
    """Compile, choose kernels, make room: a micro-batch that does not fit the memory of some rank is halved on all.

    On several ranks, the exposed communication is measured: the share of a step (forward and backward pass of one
    micro-batch) that it takes longer with gradient sync than without; the mean over the ranks.
    """
    began = time.perf_counter()
    with _unchanged(training):
        while not _fits(training):
            training.halve()
        exposed = None
        _seconds(training, synced=True)  # compiles; on several ranks, lays out the buckets of gradients
        if training.group.world_size > 1:
            synced, alone = (
                statistics.median(_seconds(training, synced=synced) for _ in range(STEPS)) for synced in (True, False)
            )
            mine = torch.tensor(max(0.0, (synced - alone) / synced), device=training.group.device)
            exposed = float(training.group.total(mine)) / training.group.world_size
    return Probe(time.perf_counter() - began, exposed)


@contextmanager
def _unchanged(training: Training) -> Iterator[None]:
    """Afterwards the model's buffers are what they were; parameters are not touched, random numbers are seeded anew.

    Not after an error, which ends the training: what is to be done here is done by all ranks together.
    """
    buffers = [(buffer, buffer.clone()) for buffer in training.module.buffers()]
    if not training.spec.compile:
        training.wrap(for_probing=True)
    yield
    if not training.spec.compile:
        training.wrap()
    training.state.optimizer.zero_grad(set_to_none=True)
    with torch.no_grad():
        for buffer, before in buffers:
            buffer.copy_(before)


def _fits(training: Training) -> bool:
    """Whether a forward and a backward pass fit the memory on every rank, beside what the optimiser will keep."""
    device = training.group.device
    size = sum(parameter.numel() * parameter.element_size() for parameter in training.module.parameters())
    kept = {"sgd": 1 if training.spec.momentum else 0}.get(training.spec.optimizer, 2)
    fits = torch.ones((), dtype=torch.int64, device=device)
    try:
        room = torch.empty((kept + (training.group.world_size > 1)) * size, dtype=torch.uint8, device=device)
        _pass(training, synced=False)
        del room
    except torch.OutOfMemoryError:
        fits.zero_()
    work = training.group.least(fits)
    if work is not None:
        work.wait()
    return bool(fits)


def _seconds(training: Training, *, synced: bool) -> float:
    synchronise(training.group.device)
    began = time.perf_counter()
    _pass(training, synced=synced)
    synchronise(training.group.device)
    return time.perf_counter() - began


def _pass(training: Training, *, synced: bool) -> None:
    """Forward and backward pass of a micro-batch of black images."""
    device, shape = training.group.device, (training.batch.micro, *training.data.shape)
    labels = torch.zeros(shape[0], dtype=torch.int64, device=device)
    images = Images(torch.zeros(shape, dtype=torch.uint8, device=device), labels, labels)
    training.module.train()
    training.state.optimizer.zero_grad(set_to_none=True)
    with nullcontext() if synced else training.without_sync():
        loss, _ = training.loss_of(images, model=training.model)
        training.state.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
