"""Datasets that a user's own function makes: two torch datasets, to train on and to validate."""

import inspect
import json
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from trainyard.config.datasets import Python
from trainyard.data.sources import Block, Part, Source
from trainyard.data.staged import SPLITS, DataError
from trainyard.utils.files import digest_of, file_digest
from trainyard.utils.import_path import import_object

NORMALISED_ON: Final = 1024  # images whose mean and deviation normalise those that are made on the fly


def own_datasets(source: dict[str, Any]) -> tuple[Any, Any]:
    """What a user's own function gives: the datasets to train on and to validate.

    Raises:
        UserError, DataError: it cannot be imported, or gives something else.
    """
    made = import_object(source["factory"], role="dataset")(**source["args"])
    if not (isinstance(made, (tuple, list)) and len(made) == 2 and all(hasattr(each, "__len__") for each in made)):
        raise DataError(f"dataset {source['factory']!r} must give two torch datasets that have a length, to train on "
                        f"and to validate, not {type(made).__name__}")  # fmt: skip
    return made[0], made[1]


def as_pixels(image: Any, index: int) -> NDArray[np.uint8]:
    """An image of a user's own dataset as uint8 of shape (H, W, C).

    Raises:
        DataError: it is something else.
    """
    pixels = np.asarray(image)
    pixels = pixels[..., None] if pixels.ndim == 2 else pixels
    if pixels.dtype != np.uint8 or pixels.ndim != 3:
        raise DataError(f"image {index} is {pixels.dtype} of shape {pixels.shape}: give uint8 of shape (H, W) or "
                        "(H, W, C), or with `on_the_fly: true` float32 of shape (C, H, W)")  # fmt: skip
    return np.ascontiguousarray(pixels)


def module_digest(dataset: Python) -> str:
    """Changes with the file that the function is in."""
    return file_digest(Path(inspect.getfile(import_object(dataset.factory, role="dataset"))))


@dataclass
class Own(Source):
    """A user's own datasets, each image asked for once; every process that works on them makes its own."""

    dataset: Python

    @cached_property
    def state(self) -> dict[str, Any]:
        """Changes with the file that the function is in."""
        return {"module_digest": module_digest(self.dataset)}

    @cached_property
    def _datasets(self) -> dict[str, Any]:
        return _made_once(json.dumps(self.dataset.model_dump()))

    @cached_property
    def shape(self) -> tuple[int, int, int]:
        """That of the first image."""
        height, width, channels = as_pixels(self._datasets["train"][0][0], 0).shape
        return height, width, channels

    @property
    def sizes(self) -> dict[str, int]:
        """Images per split."""
        return {name: len(part) for name, part in self._datasets.items()}

    def part(self, split: str, start: int, stop: int) -> Part:
        """Made by calling the user's code."""
        source = self.dataset.model_dump()
        key = digest_of([source, self.state, split, start, stop])
        return Part(key, _Ask(json.dumps(source), split, start, stop, self.shape))

    def classes(self, highest_label: int) -> list[str]:
        """The names in the config, or numbers.

        Raises:
            DataError: there are more labels than names.
        """
        names = self.dataset.classes or [str(number) for number in range(highest_label + 1)]
        if highest_label >= len(names):
            raise DataError(f"{self.dataset.factory!r} gives the label {highest_label}, but `classes` has {len(names)} "
                            "names")  # fmt: skip
        return names


@lru_cache(maxsize=1)
def _made_once(source: str) -> dict[str, Any]:
    return dict(zip(SPLITS, own_datasets(json.loads(source)), strict=True))


@dataclass(frozen=True)
class _Ask:
    source: str
    split: str
    start: int
    stop: int
    shape: tuple[int, int, int]

    def __call__(self) -> Block:
        part = _made_once(self.source)[self.split]
        images = np.empty((self.stop - self.start, *self.shape), np.uint8)
        labels = np.empty(len(images), np.int64)
        for row, index in enumerate(range(self.start, self.stop)):
            image, labels[row] = part[index]
            pixels = as_pixels(image, index)
            if pixels.shape != self.shape:
                factory = json.loads(self.source)["factory"]
                raise DataError(f"{self.split} image {index} of {factory!r} has the shape {pixels.shape}, train image "
                                f"0 has {self.shape}: all must be of one size")  # fmt: skip
            images[row] = pixels
        return Block(images, labels)


def describe(dataset: Python) -> dict[str, Any]:
    """Of images that are made anew in every epoch: only what training must know, from a sample."""
    train, val = own_datasets(dataset.model_dump())
    if dataset.classes is None:
        raise DataError(f"{dataset.factory!r}: with `on_the_fly: true`, name the `classes`")
    sample = [train[index][0] for index in range(0, len(train), -(-len(train) // NORMALISED_ON))]
    if getattr(sample[0], "is_floating_point", lambda: False)():
        channels, height, width = sample[0].shape
        mean, std = [0.0] * channels, [1.0] * channels
    else:
        pixels = np.stack([as_pixels(image, index) for index, image in enumerate(sample)])
        _, height, width, channels = pixels.shape
        flat = pixels.reshape(-1, channels)
        mean, std = flat.mean(axis=0).tolist(), np.maximum(flat.std(axis=0), 1.0).tolist()
    return {"kind": "python", "classes": dataset.classes, "shape": [height, width, channels],
            "mean": mean, "std": std, "sizes": [len(train), len(val)]}  # fmt: skip
