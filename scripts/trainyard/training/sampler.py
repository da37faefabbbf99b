"""Who takes which images: how a step's images are shared among ranks, and in what order an epoch goes through them."""

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
    """The images of one optimiser step: `world_size` ranks take `per_rank` each, at most `micro` of them at once."""

    per_rank: int
    micro: int
    world_size: int = 1

    @property
    def images(self) -> int:
        """The global batch: images per step over all ranks."""
        return self.per_rank * self.world_size

    @property
    def accumulation(self) -> int:
        """Micro-batches whose gradients are added up for one step."""
        return -(-self.per_rank // self.micro)

    def halved(self) -> "BatchSizes":
        """The same step in micro-batches of half the size.

        Raises:
            UserError: one image is the least.
        """
        if self.micro == 1:
            raise UserError("out of memory with a micro-batch of one image: take a smaller model, "
                            "`activation_checkpointing: true`, `precision: bf16`, or a larger GPU")  # fmt: skip
        return replace(self, micro=(self.micro + 1) // 2)


def batch_of(spec: Train, *, world_size: int = 1, mode: Literal["weak", "strong"] = "weak") -> BatchSizes:
    """What a step takes on so many ranks.

    `batch_size` is what a rank takes at once, so the global batch is batch_size x accumulation x ranks; under strong
    scaling, and as `global_batch_size`, it is the global batch itself.

    Raises:
        UserError: the global batch cannot be shared evenly.
    """
    whole = spec.global_batch_size or (spec.batch_size if mode == "strong" else None)
    if whole is None:
        return BatchSizes(per_rank=spec.batch_size * spec.accumulation, micro=spec.batch_size, world_size=world_size)
    if whole % (world_size * spec.accumulation):
        parts = f" in {spec.accumulation} parts" if spec.accumulation > 1 else ""
        raise UserError(f"the global batch of {whole} images cannot be shared evenly{parts} by {world_size} ranks")
    per_rank = whole // world_size
    return BatchSizes(per_rank=per_rank, micro=per_rank // spec.accumulation, world_size=world_size)


def steps_per_epoch(size: int, batch: BatchSizes) -> int:
    """Whole global batches in `size` images; the rest is left out of an epoch, other ones each time.

    Raises:
        DataError: there is not even one.
    """
    if size < batch.images:
        raise DataError(f"the global batch of {batch.images} images is larger than the {size} training images: "
                        "lower batch_size")  # fmt: skip
    return size // batch.images


def training_batches(
    size: int, batch: BatchSizes, *, rank: int, seed: int, epoch: int, first_step: int = 0
) -> Iterator[Tensor]:
    """Indices, int64 (micro,), of the images that `rank` takes in each micro-batch of an epoch, from a step on.

    As DistributedSampler with drop_last: every epoch has an order of its own, and all ranks together take the same
    images at a step, however many ranks there are.
    """
    order = torch.randperm(size, generator=torch.Generator().manual_seed(derived_seed(seed, epoch)))
    for step in range(first_step, steps_per_epoch(size, batch)):
        mine = order[step * batch.images + rank : (step + 1) * batch.images : batch.world_size]
        yield from torch.split(mine, batch.micro)


def validation_batches(size: int, *, batch: int, rank: int, world_size: int) -> Iterator[Tensor]:
    """Indices of the images that `rank` validates: every image is somebody's, once, so that there is no padding."""
    mine = torch.arange(size)[rank::world_size]
    yield from torch.split(mine, batch)


def derived_seed(*parts: int) -> int:
    """One seed made of several numbers, so that neighbours do not resemble each other."""
    return int(np.random.SeedSequence(list(parts)).generate_state(1)[0])
