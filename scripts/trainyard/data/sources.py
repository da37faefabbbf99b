"""Where images come from, in parts: what staging asks of a source, and the sources that need no files."""

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainyard.config.datasets import Digits, Synthetic
from trainyard.data.problems import Problem
from trainyard.data.staged import SPLITS
from trainyard.utils.files import digest_of


@dataclass
class Block:
    """Some images one after another; of a bad one, the row is black and `good` false."""

    images: NDArray[np.uint8]  # (N, H, W, C)
    labels: NDArray[np.int64]  # (N,)
    prints: NDArray[np.uint64] | None = None  # (N,): equal where the files are; None: not asked for
    good: NDArray[np.bool_] | None = None  # (N,); None: all
    problems: list[Problem] = field(default_factory=list)
    handled: Counter[str] = field(default_factory=Counter)  # how many images had to be converted, by what they were


@dataclass(frozen=True)
class Part:
    """One shard of the work: goes to another process, and makes its block there."""

    key: str  # changes with everything that the block is made from
    make: Callable[[], Block]


class Source(ABC):
    """A set of images, of which any part can be made by itself."""

    in_process = False  # whether its parts are only views of what is in memory

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int, int]:
        """Height, width and channels of all images."""

    @property
    @abstractmethod
    def sizes(self) -> dict[str, int]:
        """Images per split."""

    @property
    def problems(self) -> Sequence[Problem]:
        """What is wrong with the source, as far as can be told without reading an image."""
        return ()

    @property
    def state(self) -> dict[str, Any]:
        """Changes when the source does."""
        return {}

    @property
    def handled(self) -> dict[str, int]:
        """How many files needed no image to be read for what is done with them."""
        return {}

    @property
    def titles(self) -> dict[str, str]:
        """Classes in words, where their names are not."""
        return {}

    def seconds_per_image(self) -> float:
        """What one CPU needs for an image, from a sample; 0 if that is not worth saying."""
        return 0.0

    @abstractmethod
    def part(self, split: str, start: int, stop: int) -> Part:
        """The images from `start` to `stop` of a split."""

    @abstractmethod
    def classes(self, highest_label: int) -> list[str]:
        """The names of the classes, once all labels are known."""

    def name_of(self, split: str, row: int) -> str:
        """What to call an image."""
        return f"{split} image {row}"


# ---- splits


def stratified_split(labels: NDArray[Any], val_fraction: float, seed: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Indices of the training and the validation part, in ascending order, the same ones for the same seed.

    Of each class, the validation part gets its share rounded down or up, most remainder first, so that it has
    `val_fraction` of all, rounded up; of every class, one image at least is trained on.
    """
    _, classes = np.unique(labels, return_inverse=True)
    counts = np.bincount(classes)
    wanted = counts * val_fraction
    taken = np.minimum(np.floor(wanted + 1e-9).astype(np.int64), counts - 1)
    missing = math.ceil(len(labels) * val_fraction - 1e-9) - taken.sum()
    can_give = taken < np.minimum(wanted - 1e-9, counts - 1)
    order = np.argsort(np.where(can_give, taken - wanted, 1.0), kind="stable")
    taken[order[: min(missing, can_give.sum())]] += 1
    held_out = shuffled_ranks(classes, seed)[1] < taken[classes]
    return np.flatnonzero(~held_out), np.flatnonzero(held_out)


def shuffled_ranks(labels: NDArray[np.int64], seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """All indices in a random order, and of each index the how-manieth of its label it is in that order, from 0."""
    counts = np.bincount(labels)
    shuffled = np.random.default_rng(seed).permutation(len(labels))
    rank = np.empty(len(labels), np.int64)
    order = shuffled[np.argsort(labels[shuffled], kind="stable")]
    rank[order] = np.arange(len(labels)) - np.repeat(np.cumsum(counts) - counts, counts)
    return shuffled, rank


# ---- sources that need no files


@dataclass
class Arrays(Source):
    """Images that are in memory."""

    splits: dict[str, tuple[NDArray[np.uint8], NDArray[np.int64]]]  # images (N, H, W, C) and labels (N,)
    names: list[str]
    read_from: dict[str, Any] = field(default_factory=dict)
    in_process = True

    @property
    def state(self) -> dict[str, Any]:
        """The files that they were read from."""
        return self.read_from

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width, channels."""
        height, width, channels = self.splits["train"][0].shape[1:]
        return height, width, channels

    @property
    def sizes(self) -> dict[str, int]:
        """Images per split."""
        return {name: len(labels) for name, (_, labels) in self.splits.items()}

    def part(self, split: str, start: int, stop: int) -> Part:
        """A view."""
        images, labels = self.splits[split]
        key = digest_of([self.state, split, start, stop])
        return Part(key, lambda: Block(images[start:stop], labels[start:stop]))

    def classes(self, highest_label: int) -> list[str]:
        """As they were given."""
        return self.names


def digits(dataset: Digits) -> Arrays:
    """scikit-learn's digits, their 17 shades of grey spread over 0..255, one to one."""
    from sklearn.datasets import load_digits

    found = load_digits()
    images = np.round(found.images * (255 / 16)).astype(np.uint8)[..., None]
    labels = found.target.astype(np.int64)
    parts = stratified_split(labels, dataset.val_fraction, dataset.seed)
    splits = {name: (images[part], labels[part]) for name, part in zip(SPLITS, parts, strict=True)}
    return Arrays(splits, [str(name) for name in found.target_names])


@dataclass
class Generated(Source):
    """Noise around one random pattern per class; every part has a seed of its own."""

    dataset: Synthetic

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width, channels."""
        return self.dataset.height, self.dataset.width, self.dataset.channels

    @property
    def sizes(self) -> dict[str, int]:
        """Images per split."""
        return dict(zip(SPLITS, (self.dataset.images, self.dataset.val_images), strict=True))

    def part(self, split: str, start: int, stop: int) -> Part:
        """Made of nothing but its place and the seed."""
        key = digest_of([self.dataset.model_dump(), split, start, stop])
        return Part(key, _Generate(self.dataset, SPLITS.index(split), start, stop))

    def classes(self, highest_label: int) -> list[str]:
        """Numbered."""
        return [f"class {index}" for index in range(self.dataset.classes)]


@dataclass(frozen=True)
class _Generate:
    dataset: Synthetic
    split: int
    start: int
    stop: int

    def __call__(self) -> Block:
        dataset = self.dataset
        shape, count = (dataset.height, dataset.width, dataset.channels), self.stop - self.start
        patterns = np.random.default_rng(dataset.seed).integers(0, 256, (dataset.classes, *shape), np.uint8)
        generator = np.random.default_rng([dataset.seed, self.split, self.start])
        labels = generator.integers(0, dataset.classes, count)
        images = np.empty((count, *shape), np.uint8)
        for index, label in enumerate(labels):
            noise = generator.integers(0, 256, shape, np.uint8)
            images[index] = (patterns[label].astype(np.uint16) + noise) // 2
        return Block(images, labels)
