"""Feeding a training: the staged images as tensors on its device, and which of them each rank takes at each step."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from trainyard.datasets import DataError, Staged


@dataclass(frozen=True)
class DeviceSplit:
    """One split on the training device."""

    images: Tensor  # uint8 (N, C, H, W)
    labels: Tensor  # int64 (N,)

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class DeviceData:
    """A staged dataset on the training device: images stay uint8 until the step that uses them."""

    train: DeviceSplit
    val: DeviceSplit
    mean: Tensor  # float32 (1, C, 1, 1), on the 0..255 scale
    std: Tensor  # float32 (1, C, 1, 1)
    classes: int

    @property
    def channels(self) -> int:
        """Channels of an image."""
        return int(self.train.images.shape[1])

    def normalised(self, images: Tensor) -> Tensor:
        """uint8 images as float32 with zero mean and unit deviation per channel of the training images."""
        return (images.float() - self.mean) / self.std


def load(staged: Staged, device: torch.device) -> DeviceData:
    """Put a staged dataset on `device`."""
    meta = staged.meta
    train, val = (_split_on(staged, name, device) for name in ("train", "val"))
    mean, std = (torch.tensor(meta[name], device=device).view(1, -1, 1, 1) for name in ("mean", "std"))
    return DeviceData(train=train, val=val, mean=mean, std=std, classes=len(meta["classes"]))


def _split_on(staged: Staged, name: str, device: torch.device) -> DeviceSplit:
    split = staged.split(name)
    channels_first = split.images.transpose(0, 3, 1, 2).copy(order="C")
    images, labels = torch.from_numpy(channels_first), torch.from_numpy(split.labels.copy())
    return DeviceSplit(images=images.to(device), labels=labels.to(device))


def steps_per_epoch(size: int, global_batch: int) -> int:
    """Whole global batches in `size` images; the rest is left out of an epoch, other ones each time.

    Raises:
        DataError: there is not even one.
    """
    if size < global_batch:
        raise DataError(f"the global batch of {global_batch} images is larger than the {size} training images: "
                        "lower batch_size")  # fmt: skip
    return size // global_batch


def training_batches(
    size: int, *, global_batch: int, rank: int, world_size: int, seed: int, epoch: int
) -> Iterator[Tensor]:
    """Indices, int64 (global_batch / world_size,), of the images that `rank` takes at each step of an epoch.

    As DistributedSampler with drop_last: every epoch has an order of its own, and all ranks together take the same
    images at a step, however many ranks there are.
    """
    order = torch.randperm(size, generator=torch.Generator().manual_seed(derived_seed(seed, epoch)))
    for step in range(steps_per_epoch(size, global_batch)):
        yield order[step * global_batch + rank : (step + 1) * global_batch : world_size]


def validation_batches(size: int, *, batch: int, rank: int, world_size: int) -> Iterator[Tensor]:
    """Indices of the images that `rank` validates: every image is somebody's, once, so that there is no padding."""
    mine = torch.arange(rank, size, world_size)
    yield from torch.split(mine, batch)


def derived_seed(*parts: int) -> int:
    """One seed made of several numbers, so that neighbours do not resemble each other."""
    return int(np.random.SeedSequence(list(parts)).generate_state(1)[0])
