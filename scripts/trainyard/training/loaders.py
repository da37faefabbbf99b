"""Input of a training: batches of staged images, or of a user's own dataset, on the training device.

Batches stay uint8 of shape (B, H, W, C) until they are on the device. `ResidentSplit` holds all images there,
`MappedSplit` prefetches them from the memory-mapped file, `LoaderSplit` takes them from a DataLoader's workers.
"""

import gc
import math
import multiprocessing
import os
import random
import signal
import threading
import warnings
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainyard.cluster.stop_request import shielded_children
from trainyard.data.python_factory import as_class, as_normalized, as_numbers, as_pixels, call_factory, read_item
from trainyard.data.staged import SPLITS, DataError, ImageMeta, OnTheFlyMeta, Staged
from trainyard.training.sampler import derived_seed
from trainyard.utils.guard import signal_at_end_of_parent

_Item = TypeVar("_Item")
PREFETCHED = 2  # batches; of a DataLoader, per worker
RESIDENT_SHARE = 0.5  # for images, at most, of the GPU memory that a process can allocate; the rest is for the model


@dataclass(frozen=True)
class ImageBatch:
    """A batch on the training device."""

    pixels: Tensor  # uint8 (B, H, W, C); from a user's dataset also float32 (B, C, H, W), normalized
    labels: Tensor  # int64 (B,); float32 (B, classes) if mixed, and float32 (B, targets) for `targets`
    indices: Tensor  # int64 (B,), on the CPU: positions of the images in the split


class Split(Protocol):
    """The training or validation images of a dataset."""

    def __len__(self) -> int:
        """Number of images."""

    def batches(self, order: Iterable[Tensor], *, seed: int = 0) -> Generator[ImageBatch, None, None]:
        """One batch per tensor of indices. The caller closes the generator if it stops early.

        A user's own dataset draws the random numbers of an image from this `seed` and its index.
        """


@dataclass(frozen=True)
class InputData:
    """A dataset, opened for a training."""

    train: Split
    val: Split
    mean: Tensor  # float32 (1, C, 1, 1), on the 0..255 scale
    std: Tensor  # float32 (1, C, 1, 1)
    classes: int  # outputs of the model
    shape: tuple[int, int, int]  # height, width, channels
    numeric: bool = False  # labels are numbers, one per output, instead of classes

    def normalize(self, pixels: Tensor, *, channels_last: bool) -> Tensor:
        """A batch as input of the model: float32 (B, C, H, W), with mean 0 and standard deviation 1 per channel."""
        order = torch.channels_last if channels_last else torch.contiguous_format
        if pixels.dtype != torch.uint8:
            return pixels.contiguous(memory_format=order)
        images = pixels.permute(0, 3, 1, 2).contiguous(memory_format=order)
        return (images.float() - self.mean) / self.std


def load_input_data(staged: Staged, device: torch.device) -> InputData:
    """Open a dataset for a training on `device`.

    Raises:
        DataError: the dataset cannot be opened, or is a table.
    """
    meta = staged.require(ImageMeta)
    classes = len(meta.classes)
    numeric = bool(meta.source.get("targets"))
    splits: list[Split]
    if isinstance(meta, OnTheFlyMeta):
        factory = call_factory(meta.source)
        splits = [LoaderSplit(each, device, outputs=classes, numeric=numeric) for each in factory]
    else:
        splits = list(_staged_splits(staged, device))
    train, val = splits
    mean, std = (torch.tensor(each, device=device).view(1, -1, 1, 1) for each in (meta.mean, meta.std))
    return InputData(train=train, val=val, mean=mean, std=std, classes=classes, shape=meta.shape, numeric=numeric)


def _staged_splits(staged: Staged, device: torch.device) -> Iterator[Split]:
    """The training and the validation images. Those that stay on a GPU share the memory that images may use.

    Of a GPU that several trials share, this is a part of what is left of this trial's share
    (`worker_gpu.limit_gpu_memory`).
    """
    bytes_left = math.inf
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        share = torch.cuda.get_per_process_memory_fraction(device) * total
        bytes_left = RESIDENT_SHARE * min(free, share - torch.cuda.memory_reserved(device))
    for split in map(staged.split, SPLITS):
        if split.images.nbytes <= bytes_left:
            bytes_left -= split.images.nbytes
            yield ResidentSplit(split.images, split.labels, device)
        else:
            yield MappedSplit(split.images, split.labels, device)


def upload(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor of the host on the device. To a GPU it goes through pinned memory, so that the host does not wait."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def _tensor(array: NDArray[Any]) -> Tensor:
    """A tensor that shares memory with a read-only array; torch would warn about it."""
    with warnings.catch_warnings(action="ignore"):
        return torch.from_numpy(array)


class ResidentSplit:
    """All images on the device, where a batch is one gather. On a CPU, they stay in the memory-mapped file."""

    def __init__(self, images: NDArray[np.uint8], labels: NDArray[np.int64], device: torch.device) -> None:
        self._images = _tensor(images).to(device)
        self._labels = _tensor(labels).to(device)
        self._device = device

    def __len__(self) -> int:
        return len(self._labels)

    def batches(self, order: Iterable[Tensor], *, seed: int = 0) -> Generator[ImageBatch, None, None]:
        """See `Split`."""
        for indices in order:
            there = upload(indices, self._device)
            yield ImageBatch(torch.index_select(self._images, 0, there), self._labels[there], indices)


class MappedSplit:
    """Images that do not fit the device: a thread prefetches batches from the memory-mapped file."""

    def __init__(self, images: NDArray[np.uint8], labels: NDArray[np.int64], device: torch.device) -> None:
        self._images = _tensor(images)
        self._labels = _tensor(labels)
        self._device = device
        # Copies from pinned memory to a GPU are on a separate stream, while the GPU computes.
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def __len__(self) -> int:
        return len(self._labels)

    def batches(self, order: Iterable[Tensor], *, seed: int = 0) -> Generator[ImageBatch, None, None]:
        """See `Split`."""
        with closing(prefetched(map(self._send, order), device=self._device)) as sent:
            for batch, copied in sent:
                if copied is not None:
                    current = torch.cuda.current_stream(self._device)
                    current.wait_event(copied)
                    batch.pixels.record_stream(current)
                    batch.labels.record_stream(current)
                yield batch

    def _send(self, indices: Tensor) -> tuple[ImageBatch, Any]:
        """A batch, and the event of the end of its copy to a GPU. Called by the prefetching thread."""
        parts = torch.index_select(self._images, 0, indices), self._labels[indices]
        if self._stream is None:
            return ImageBatch(*parts, indices), None
        with torch.cuda.stream(self._stream):
            pixels, labels = (upload(part, self._device) for part in parts)
            return ImageBatch(pixels, labels, indices), self._stream.record_event()


class LoaderSplit:
    """Images of a user's own dataset, loaded by the persistent workers of a DataLoader.

    With `numeric`, a label is `outputs` numbers, instead of one of as many classes.
    """

    def __init__(self, dataset: Any, device: torch.device, *, outputs: int, numeric: bool = False) -> None:
        self._dataset = dataset
        self._device = device
        self._order: list[list[tuple[int, int]]] = []  # the batches of an epoch: index and seed of each image
        self._loader = torch.utils.data.DataLoader(
            _WithIndex(dataset, outputs, numeric),
            batch_sampler=self._order,
            num_workers=max(1, torch.get_num_threads() - 1),
            worker_init_fn=_prepare_worker,
            persistent_workers=True,
            prefetch_factor=PREFETCHED,
            pin_memory=device.type == "cuda",
            generator=torch.Generator(),  # the loader seeds its workers once; it must not change what the model draws
        )

    def __len__(self) -> int:
        return len(self._dataset)

    def batches(self, order: Iterable[Tensor], *, seed: int = 0) -> Generator[ImageBatch, None, None]:
        """See `Split`."""
        self._order[:] = [[(index, seed) for index in indices.tolist()] for indices in order]
        there = {"device": self._device, "non_blocking": True}
        try:
            with shielded_children():  # the workers, without which the training could not save its state
                loaded = iter(self._loader)
            for pixels, labels, indices in loaded:
                yield ImageBatch(pixels.to(**there), labels.to(**there), indices)
        except (DataError, RuntimeError) as error:
            message = str(error).strip()
            if "in DataLoader worker process" not in message:
                raise
            # In one line: torch adds the worker's stack trace.
            ours = f"{DataError.__module__}.{DataError.__name__}: "
            raise DataError(message.splitlines()[-1].removeprefix(ours)) from None


def _prepare_worker(worker: int) -> None:
    """Let Python collect garbage in a worker, which starts within an epoch, where the training does so by itself.

    The worker ends with the process that started it.
    """
    gc.enable()
    parent = multiprocessing.parent_process()
    assert parent is not None
    assert parent.pid is not None
    signal_at_end_of_parent(signal.SIGKILL, parent.pid)
    threading.Thread(target=_end_if_told, args=(parent.pid,), daemon=True).start()


def _end_if_told(parent: int) -> None:
    """End a worker at the SIGTERM of the process that started it, which may wait for its end; not at Slurm's."""
    while signal.sigwaitinfo([signal.SIGTERM]).si_pid != parent:
        pass
    os._exit(0)


class _WithIndex(torch.utils.data.Dataset[tuple[Any, Any, int]]):
    """The items of a dataset as (image tensor, label, index), by index and seed.

    The generators of torch, numpy and Python are seeded for each of them: random augmentation depends neither on the
    number of workers and ranks nor on an interruption.
    """

    def __init__(self, dataset: Any, outputs: int, numeric: bool) -> None:
        self._dataset = dataset
        self._outputs = outputs
        self._numeric = numeric

    def __getitem__(self, key: tuple[int, int]) -> tuple[Any, Any, int]:
        index, seed = key
        drawn = derived_seed(seed, index)
        torch.default_generator.manual_seed(drawn)  # `torch.manual_seed` would also look for GPUs, for each image
        np.random.seed(drawn)  # the global one, which code of a user may use
        random.seed(drawn)
        image, label = read_item(self._dataset, index)
        normalized = as_normalized(image, index)
        array = as_pixels(image, index) if normalized is None else normalized
        as_label = as_numbers if self._numeric else as_class
        return _tensor(array), as_label(label, index, self._outputs), index


def prefetched(items: Iterator[_Item], *, device: torch.device) -> Generator[_Item, None, None]:
    """The same items, computed up to `PREFETCHED` ahead by a thread, whose exceptions are raised here."""
    with ThreadPoolExecutor(1, "prefetching") as thread:
        if device.type == "cuda":  # a new thread is on GPU 0, and would create a context there
            thread.submit(torch.cuda.set_device, device).result()
        ahead = deque(thread.submit(next, items, None) for _ in range(PREFETCHED))
        try:
            while (item := ahead.popleft().result()) is not None:
                ahead.append(thread.submit(next, items, None))
                yield item
        finally:
            thread.shutdown(cancel_futures=True)
