"""The interface of a data source, and the sources that read no files. A source is staged in blocks of images."""

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainyard.config.datasets import Synthetic
from trainyard.data.problems import Problem
from trainyard.data.staged import SPLITS
from trainyard.utils.files import digest_of


@dataclass
class Block:
    """Consecutive images of a split. A bad image is black, and `is_good` is false for it."""

    images: NDArray[np.uint8]  # (N, H, W, C)
    labels: NDArray[np.int64]  # (N,)
    is_good: NDArray[np.bool_] | None = None  # (N,); None: all are
    problems: list[Problem] = field(default_factory=list)
    handled: Counter[str] = field(default_factory=Counter)  # number of images by conversion


@dataclass(frozen=True)
class BlockTask:
    """Makes a block; it can be pickled and run in another process unless its source is in memory."""

    key: str  # changes with everything that the block depends on
    make: Callable[[], Block]


class DataSource(ABC):
    """Images of which any block can be made independently of the others."""

    is_in_memory = False  # then its blocks are views, and are made in this process

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int, int]:
        """Height, width and channels of all images."""

    @property
    @abstractmethod
    def sizes(self) -> dict[str, int]:
        """The number of images of each split."""

    @property
    def problems(self) -> Sequence[Problem]:
        """Problems that are known before any image is read."""
        return ()

    @property
    def state(self) -> dict[str, Any]:
        """What `meta.json` records of the source's files; if it changes, the dataset is staged again."""
        return {}

    def has_changed(self) -> bool:
        """Whether the source's files have changed since `state` was determined."""
        return False

    @property
    def handled(self) -> dict[str, int]:
        """Numbers for `meta.json` that no block counts."""
        return {}

    @property
    def titles(self) -> dict[str, str]:
        """Readable names of classes that are named by an id."""
        return {}

    @abstractmethod
    def block_task(self, split: str, start: int, stop: int) -> BlockTask:
        """The task that makes the images from `start` to `stop` of a split."""

    @abstractmethod
    def classes(self, highest_label: int) -> list[str]:
        """The names of the classes; called once all labels are known."""


# ---- splits


def stratified_split(labels: NDArray[Any], val_fraction: float) -> tuple[NDArray[Any], NDArray[Any]]:
    """Indices of the training and validation images, each in ascending order; the same each time.

    The validation split has ceil(val_fraction * N) images. The share of each class is rounded down, and then up for the
    classes with the largest remainders; at least one image of each class stays in the training split. scikit-learn's
    `train_test_split` would refuse classes of one image, and split staged datasets differently.
    """
    _, classes = np.unique(labels, return_inverse=True)
    counts = np.bincount(classes)
    exact = counts * val_fraction
    held_out = np.minimum(np.floor(exact + 1e-9).astype(np.int64), counts - 1)
    missing = math.ceil(len(labels) * val_fraction - 1e-9) - held_out.sum()
    can_round_up = held_out < np.minimum(exact - 1e-9, counts - 1)
    order = np.argsort(np.where(can_round_up, held_out - exact, 1.0), kind="stable")
    held_out[order[: min(missing, can_round_up.sum())]] += 1
    is_val = shuffled_ranks(classes)[1] < held_out[classes]
    return np.flatnonzero(~is_val), np.flatnonzero(is_val)


def shuffled_ranks(labels: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """A random permutation of all indices, and for each index its position within its class in that order."""
    counts = np.bincount(labels)
    shuffled = np.random.default_rng(0).permutation(len(labels))
    rank = np.empty(len(labels), np.int64)
    order = shuffled[np.argsort(labels[shuffled], kind="stable")]
    rank[order] = np.arange(len(labels)) - np.repeat(np.cumsum(counts) - counts, counts)
    return shuffled, rank


# ---- sources that read no files


@dataclass
class InMemorySource(DataSource):
    """Images that are in memory."""

    splits: dict[str, tuple[NDArray[np.uint8], NDArray[np.int64]]]  # images (N, H, W, C) and labels (N,)
    class_names: list[str]
    file_state: dict[str, Any] = field(default_factory=dict)
    is_in_memory = True

    @property
    def state(self) -> dict[str, Any]:
        """The files that the images were read from."""
        return self.file_state

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width and channels of all images."""
        height, width, channels = self.splits["train"][0].shape[1:]
        return height, width, channels

    @property
    def sizes(self) -> dict[str, int]:
        """The number of images of each split."""
        return {name: len(labels) for name, (_, labels) in self.splits.items()}

    def block_task(self, split: str, start: int, stop: int) -> BlockTask:
        """Returns a view."""
        images, labels = self.splits[split]
        key = digest_of([self.state, split, start, stop])
        return BlockTask(key, lambda: Block(images[start:stop], labels[start:stop]))

    def classes(self, highest_label: int) -> list[str]:
        """The names that were given."""
        return self.class_names


def digits_source() -> InMemorySource:
    """scikit-learn's digits, with their 17 shades of gray scaled to 0..255; a fifth of them is for validation."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = np.round(digits.images * (255 / 16)).astype(np.uint8)[..., None]
    labels = digits.target.astype(np.int64)
    indices = stratified_split(labels, 0.2)
    splits = {name: (images[part], labels[part]) for name, part in zip(SPLITS, indices, strict=True)}
    return InMemorySource(splits, [str(name) for name in digits.target_names])


@dataclass
class SyntheticSource(DataSource):
    """Noise around one random pattern per class; each block has a seed of its own."""

    dataset: Synthetic

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width and channels of all images."""
        return self.dataset.height, self.dataset.width, self.dataset.channels

    @property
    def sizes(self) -> dict[str, int]:
        """The number of images of each split."""
        return dict(zip(SPLITS, (self.dataset.images, self.dataset.val_images), strict=True))

    def block_task(self, split: str, start: int, stop: int) -> BlockTask:
        """Generates images from the seed and their position."""
        key = digest_of([self.dataset.model_dump(), split, start, stop])
        return BlockTask(key, partial(_generate_images, self.dataset, self.shape, SPLITS.index(split), start, stop))

    def classes(self, highest_label: int) -> list[str]:
        """Numbered names."""
        return [f"class {index}" for index in range(self.dataset.classes)]


def _generate_images(dataset: Synthetic, shape: tuple[int, int, int], split: int, start: int, stop: int) -> Block:
    patterns = np.random.default_rng(0).integers(0, 256, (dataset.classes, *shape), np.uint8)
    generator = np.random.default_rng([0, split, start])
    labels = generator.integers(0, dataset.classes, stop - start)
    images = np.empty((len(labels), *shape), np.uint8)
    for index, label in enumerate(labels):
        noise = generator.integers(0, 256, shape, np.uint8)
        images[index] = (patterns[label].astype(np.uint16) + noise) // 2
    return Block(images, labels)
