"""Batch sizes of a training, and the images of each rank and step."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from trainyard.config.train import Train
from trainyard.data.staged import DataError
from trainyard.utils.errors import UserError


@dataclass(frozen=True)
class BatchSizes:
    """Images of one optimizer step: `per_rank` on each of `world_size` ranks, in micro-batches of at most `micro`."""

    per_rank: int
    micro: int
    world_size: int = 1

    @property
    def images(self) -> int:
        """The global batch: images per step over all ranks."""
        return self.per_rank * self.world_size

    @property
    def accumulation(self) -> int:
        """Micro-batches per step, whose gradients are accumulated."""
        return -(-self.per_rank // self.micro)

    def halved(self) -> "BatchSizes":
        """The same step in micro-batches of half the size.

        Raises:
            UserError: the micro-batch is one image.
        """
        if self.micro == 1:
            remedy = "use a smaller model, `activation_checkpointing: true`, `precision: bf16`, or a larger GPU"
            raise UserError(f"out of memory with a micro-batch of one image: {remedy}")
        return replace(self, micro=(self.micro + 1) // 2)


def batch_sizes(spec: Train, *, world_size: int = 1, mode: Literal["weak", "strong"] = "weak") -> BatchSizes:
    """The batch sizes of a spec on `world_size` ranks.

    `batch_size` is the micro-batch of a rank: the global batch is batch_size x accumulation x ranks. Under strong
    scaling, `batch_size` is the global batch.

    Raises:
        UserError: the global batch is not divisible by the number of ranks and micro-batches.
    """
    whole = spec.batch_size
    if mode == "weak":
        return BatchSizes(per_rank=whole * spec.accumulation, micro=whole, world_size=world_size)
    if whole % (world_size * spec.accumulation):
        parts = f" in {spec.accumulation} parts" if spec.accumulation > 1 else ""
        raise UserError(f"the global batch of {whole} images cannot be shared evenly{parts} by {world_size} ranks")
    per_rank = whole // world_size
    return BatchSizes(per_rank=per_rank, micro=per_rank // spec.accumulation, world_size=world_size)


def steps_per_epoch(size: int, batch: BatchSizes) -> int:
    """Number of complete global batches in `size` images; the incomplete one is dropped.

    Raises:
        DataError: the global batch is larger than `size`.
    """
    if size < batch.images:
        sizes = f"the global batch of {batch.images} images is larger than the {size} training images"
        raise DataError(f"{sizes}: lower batch_size")
    return size // batch.images


def training_batches(
    size: int, batch: BatchSizes, *, rank: int, seed: int, epoch: int, first_step: int = 0
) -> Iterator[Tensor]:
    """Image indices, int64 (B,), of each micro-batch of `rank` in an epoch, starting with `first_step`.

    As DistributedSampler with drop_last, each epoch is reshuffled. The images of a step do not depend on the number
    of ranks.
    """
    order = torch.randperm(size, generator=torch.Generator().manual_seed(derived_seed(seed, epoch)))
    for step in range(first_step, steps_per_epoch(size, batch)):
        mine = order[step * batch.images + rank : (step + 1) * batch.images : batch.world_size]
        yield from torch.tensor_split(mine, batch.accumulation)  # as even as possible: batch normalization needs two


def validation_batches(size: int, *, batch: int, rank: int, world_size: int) -> Iterator[Tensor]:
    """Image indices of each validation batch of `rank`. Each image is on one rank, once: nothing is padded.

    With fewer images than ranks, the last ranks have no batch.
    """
    mine = torch.arange(size)[rank::world_size]
    if len(mine):  # torch.split returns one empty batch, whose mean loss is NaN
        yield from torch.split(mine, batch)


def derived_seed(*parts: int) -> int:
    """A seed from several numbers; close numbers give unrelated seeds."""
    return int(np.random.SeedSequence(list(parts)).generate_state(1)[0])
