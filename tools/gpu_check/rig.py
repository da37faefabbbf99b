"""What all checks share: the device under test, synthetic data of a given size, and trainings on them."""

import gc
import os
import subprocess
import sys
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from trainyard.config.metric_names import DEFAULT_METRIC
from trainyard.config.train import Train
from trainyard.training.loaders import ImageBatch, InputData, MappedSplit, ResidentSplit, Split
from trainyard.training.process_group import Group
from trainyard.training.sampler import batch_sizes
from trainyard.training.trainer import Trainer

from gpu_check.report import Report

SMALL = Train(model="resnet", model_args={"blocks": 2, "width": 16}, batch_size=64, lr=0.02)


@dataclass(frozen=True)
class Rig:
    """The device under test and the report. Without a GPU, all sizes are those of a toy."""

    device: torch.device
    report: Report

    @property
    def has_gpu(self) -> bool:
        """Whether the device is a GPU."""
        return self.device.type == "cuda"

    @property
    def gpu_name(self) -> str:
        """The GPU's name, as torch reports it; "cpu" without one."""
        return torch.cuda.get_device_name(self.device) if self.has_gpu else "cpu"

    def size(self, gpu: Any, toy: Any) -> Any:
        """The first value on a GPU, the second one on a CPU."""
        return gpu if self.has_gpu else toy

    def compiler(self) -> AbstractContextManager[object]:
        """A context with torch.compile; for a toy without code generation, which takes half a minute on a CPU."""
        if self.has_gpu:
            return nullcontext()
        return mock.patch("torch.compile", partial(torch.compile, backend="aot_eager"))

    def run_ranks(self, *program: str, ranks: int = 1, timeout: float) -> "subprocess.CompletedProcess[str] | None":
        """Run a module with its options as ranks of torchrun; None if it has not ended in time."""
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
        hidden = self.size({}, {"CUDA_VISIBLE_DEVICES": ""})
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | hidden
        with suppress(subprocess.TimeoutExpired):
            return subprocess.run(
                [*torchrun, "-m", *program],
                env=environment,
                capture_output=True,
                text=True,
                timeout=timeout,
            )
        return None

    def images(self, side: int = 32, **sizes: Any) -> InputData:
        """Synthetic images (see `synthetic_images`) on this device; without a GPU, few of 8x8 pixels."""
        if not self.has_gpu:
            limits = {"count": 640, "val_count": 64}
            sizes |= {name: min(sizes.get(name, limit), limit) for name, limit in limits.items()}
        return synthetic_images(self.device, side=self.size(side, 8), **sizes)


def synthetic_images(
    device: torch.device,
    *,
    count: int = 2048,
    val_count: int = 512,
    side: int = 32,
    channels: int = 3,
    classes: int = 10,
    prefetched: bool = False,
) -> InputData:
    """Random images of `side` x `side` pixels, on the device or `prefetched` from the host.

    Each class has a color: a model learns it within an epoch. The loss of random labels would be that of a training
    that does nothing.
    """
    colors = np.random.default_rng(0).integers(0, 128, (classes, 1, 1, channels), np.uint8)

    def split(size: int, seed: int) -> Split:
        images, labels = random_images((size, side, side, channels), classes, seed=seed)
        images >>= 1
        for part in np.array_split(np.arange(size), 16):  # in little memory
            images[part] += colors[labels[part]]
        if prefetched:
            return MappedSplit(images, labels, device)
        return ResidentSplit(images, labels, device)

    mean, std = (torch.full((1, channels, 1, 1), value, device=device) for value in (127.0, 73.0))
    return InputData(
        train=split(count, 1),
        val=split(val_count, 2),
        mean=mean,
        std=std,
        classes=classes,
        shape=(side, side, channels),
    )


def random_images(
    shape: tuple[int, int, int, int], classes: int, *, seed: int = 0
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Images of `shape` (N, H, W, C), and their labels."""
    generator = np.random.default_rng(seed)
    return generator.integers(0, 256, shape, np.uint8), generator.integers(0, classes, shape[0])


def changed(spec: Train, **values: Any) -> Train:
    """The spec with other values."""
    return Train.model_validate(spec.model_dump(exclude_unset=True) | values)


def start(spec: Train, data: InputData, *, group: Group | None = None, **options: Any) -> Trainer:
    """A training on the device of the data."""
    group = group or Group(rank=0, local_rank=0, world_size=1, device=data.mean.device)
    return Trainer(
        spec.judged_by(DEFAULT_METRIC), data, group, batch=batch_sizes(spec, world_size=group.world_size), **options
    )


class CallingSplit:
    """A split that calls functions when it yields batches: `calls` by the number of the batch within an epoch."""

    def __init__(self, split: Split, calls: Mapping[int, Callable[[], None]]) -> None:
        self._split, self._calls = split, calls

    def __len__(self) -> int:
        return len(self._split)

    def batches(self, order: Iterable[Tensor], *, seed: int = 0) -> Generator[ImageBatch, None, None]:
        """See `Split`."""
        for number, batch in enumerate(self._split.batches(order, seed=seed)):
            self._calls.get(number, lambda: None)()
            yield batch


def final_parameters(trainer: Trainer) -> Tensor:
    """Parameters and buffers, and their averages, as one float64 tensor on the CPU."""
    values = (value for module in trainer.state.modules.values() for value in module.state_dict().values())
    return torch.cat([value.double().flatten().cpu() for value in values])


def cuda_graph_skips() -> int:
    """How often torch.compile has left out CUDA graphs that were asked for, since its counters were cleared."""
    from torch._dynamo.utils import counters

    return counters["inductor"]["cudagraph_skips"]


def first_line(error: Exception) -> str:
    """An error as one line: its type, and the first line of its message."""
    return f"{type(error).__name__}: {error}".splitlines()[0]


def free_memory() -> None:
    """Return cached GPU memory, as between two trials."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
