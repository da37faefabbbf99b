"""Datasets that a user's function builds: two torch datasets, for training and for validation."""

import inspect
import json
import textwrap
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from trainyard.config.datasets import Python
from trainyard.data.mean_std import channel_sums, mean_and_std
from trainyard.data.sources import Block, BlockTask, DataSource
from trainyard.data.staged import SPLITS, DataError, OnTheFlyMeta
from trainyard.utils.files import digest_of, file_digest
from trainyard.utils.import_path import USER_CODE_ERRORS, error_line, import_object

SHOWN_CHARACTERS: Final = 80  # of a label, in an error
COLORS: Final = (3, 4)  # channels; where the height or the width belongs, they are in the wrong place
MOST_CHANNELS: Final = 16  # feature maps have more, but few pixels
SAMPLE_IMAGES: Final = 1024  # for the mean and standard deviation of images that are made on the fly


def call_factory(source: dict[str, Any]) -> tuple[Any, Any]:
    """The training and the validation dataset from the user's function; `source` is a dumped `Python` section.

    Raises:
        UserError, DataError: the function cannot be imported, raises an error, or returns other objects.
    """
    factory = import_object(source["factory"], role="dataset")
    try:
        made = factory(**source["args"])
    except USER_CODE_ERRORS as error:
        raise DataError(f"dataset {source['factory']!r}: {error_line(error)}") from error
    if not (isinstance(made, (tuple, list)) and len(made) == 2 and all(hasattr(each, "__len__") for each in made)):
        raise DataError(
            f"dataset {source['factory']!r} must return two torch datasets with a length, for training and "
            f"validation, not {type(made).__name__}"
        )
    return made[0], made[1]


def as_pixels(image: Any, index: int) -> NDArray[np.uint8]:
    """An image of a user's dataset as a contiguous uint8 array of shape (H, W, C).

    Raises:
        DataError: it has another type or shape.
    """
    pixels = np.asarray(image)
    pixels = pixels[..., None] if pixels.ndim == 2 else pixels
    if pixels.dtype != np.uint8 or pixels.ndim != 3:
        raise DataError(
            f"image {index} is {pixels.dtype} of shape {pixels.shape}: return uint8 of shape (H, W) or "
            "(H, W, C), or with `on_the_fly: true` float32 of shape (C, H, W)"
        )
    if pixels.shape[0] in (1, *COLORS) and min(pixels.shape[1:]) > MOST_CHANNELS:
        raise DataError(f"image {index} is uint8 of shape {pixels.shape}: return (H, W, C), as of `permute(1, 2, 0)`")
    return np.ascontiguousarray(pixels)


def as_normalized(image: Any, index: int) -> NDArray[np.float32] | None:
    """A normalized image of a user's dataset as a contiguous float32 array of shape (C, H, W); None for another image.

    Raises:
        DataError: it has floating-point numbers, but another shape.
    """
    if getattr(image, "is_floating_point", lambda: False)():  # a tensor: numpy has no bfloat16
        image = image.detach().float()
    numbers = np.asarray(image)
    if numbers.dtype.kind != "f":
        return None
    if numbers.ndim != 3 or (numbers.shape[2] in COLORS and min(numbers.shape[:2]) > MOST_CHANNELS):
        raise DataError(f"image {index} is {numbers.dtype} of shape {numbers.shape}: return the shape (C, H, W)")
    return np.ascontiguousarray(numbers, np.float32)


def as_numbers(label: Any, index: int, count: int) -> NDArray[np.float32]:
    """A label of a user's dataset as `count` numbers, float32 (count,).

    Raises:
        DataError: it has another number of them, or a number is not finite.
    """
    with suppress(TypeError, ValueError):  # they are not numbers
        numbers = np.asarray(label, np.float32).reshape(-1)
        if len(numbers) == count and np.isfinite(numbers).all():
            return numbers
    raise DataError(f"the label of image {index} is {_shown(label)}, but `targets` names {count}, which must be finite")


def as_class(label: Any, index: int, count: int | None = None) -> int:
    """A label of a user's dataset as a class index, below `count` if that is known.

    Raises:
        DataError: it is none. A loss would ignore the image or, on a GPU, end the process.
    """
    with suppress(TypeError, ValueError, OverflowError):
        number = int(label)
        if number == float(label) and number >= 0 and (count is None or number < count):
            return number
    known = "" if count is None else f", but `classes` has {count} names"
    raise DataError(f"the label of image {index} is {_shown(label)}{known}: return the class index, counted from 0")


def _shown(label: Any) -> str:
    """A label in one short line, although an array is printed in many."""
    return textwrap.shorten(repr(label), SHOWN_CHARACTERS, placeholder=" ...")


def read_item(dataset: Any, index: int) -> tuple[Any, Any]:
    """An image of a user's dataset and its label.

    Raises:
        DataError: the dataset raises an error, or returns something else; the message has the place in its code.
    """
    try:
        image, label = dataset[index]
    except USER_CODE_ERRORS as error:
        raise DataError(f"item {index} of the dataset: {error_line(error)}") from error
    return image, label


def module_digest(dataset: Python) -> str:
    """The digest of the file that defines the function."""
    return file_digest(Path(inspect.getfile(import_object(dataset.factory, role="dataset"))))


@dataclass
class PythonSource(DataSource):
    """The datasets of a user's function. Each image is read once; each process calls the function for itself."""

    dataset: Python

    @cached_property
    def state(self) -> dict[str, Any]:
        """The digest of the file that defines the function."""
        return {"module_digest": module_digest(self.dataset)}

    @cached_property
    def _datasets(self) -> dict[str, Any]:
        return cached_datasets(json.dumps(self.dataset.model_dump()))

    @cached_property
    def shape(self) -> tuple[int, int, int]:
        """The shape of the first image."""
        height, width, channels = as_pixels(read_item(self._datasets["train"], 0)[0], 0).shape
        return height, width, channels

    @property
    def sizes(self) -> dict[str, int]:
        """The number of images of each split."""
        return {name: len(split) for name, split in self._datasets.items()}

    def block_task(self, split: str, start: int, stop: int) -> BlockTask:
        """Reads images from the user's datasets."""
        source = self.dataset.model_dump()
        key = digest_of([source, self.state, split, start, stop])
        return BlockTask(key, partial(_read_images, json.dumps(source), split, range(start, stop), self.shape))

    def classes(self, highest_label: int) -> list[str]:
        """The names in the config, or numbers.

        Raises:
            DataError: there are more labels than names.
        """
        names = self.dataset.classes or [str(number) for number in range(highest_label + 1)]
        if highest_label >= len(names):
            raise DataError(
                f"{self.dataset.factory!r} returns the label {highest_label}, but `classes` has {len(names)} names"
            )
        return names


@lru_cache(maxsize=1)
def cached_datasets(source: str) -> dict[str, Any]:
    """The datasets by split; `source` is the section in JSON, which is hashable."""
    return dict(zip(SPLITS, call_factory(json.loads(source)), strict=True))


def _read_images(source: str, split: str, rows: range, shape: tuple[int, int, int]) -> Block:
    dataset = cached_datasets(source)[split]
    images = np.empty((len(rows), *shape), np.uint8)
    labels = np.empty(len(rows), np.int64)
    for row, index in enumerate(rows):
        image, label = read_item(dataset, index)
        labels[row] = as_class(label, index)
        pixels = as_pixels(image, index)
        if pixels.shape != shape:
            factory = json.loads(source)["factory"]
            raise DataError(
                f"{split} image {index} of {factory!r} has the shape {pixels.shape}, train image 0 has {shape}: all "
                "must have the same size"
            )
        images[row] = pixels
    return Block(images, labels)


def describe_on_the_fly(dataset: Python) -> OnTheFlyMeta:
    """The metadata of images that are made on the fly; mean and standard deviation are from a sample."""
    train, val = call_factory(dataset.model_dump())
    outputs = dataset.targets or dataset.classes
    if outputs is None:
        raise DataError(f"{dataset.factory!r}: `on_the_fly: true` needs the names of the `classes`")
    for name, split in (("training", train), ("validation", val)):
        if not len(split):
            raise DataError(f"{dataset.factory!r}: the {name} dataset is empty")
        as_label = as_numbers if dataset.targets else as_class
        as_label(read_item(split, 0)[1], 0, len(outputs))
    shape, mean, std = _measure_sample(train)
    return OnTheFlyMeta(classes=outputs, shape=shape, mean=mean, std=std, sizes=[len(train), len(val)])


def _measure_sample(dataset: Any) -> tuple[tuple[int, int, int], list[float], list[float]]:
    """Height, width and channels of a sample of images, and the mean and standard deviation of each channel.

    Normalized images have the mean 0 and the standard deviation 1.

    Raises:
        DataError: the images are not alike.
    """
    kinds = list[tuple[Any, ...]]()
    totals = list[tuple[list[int], list[int]]]()
    for index in range(0, len(dataset), -(-len(dataset) // SAMPLE_IMAGES)):
        image = read_item(dataset, index)[0]
        normalized = as_normalized(image, index)
        pixels: NDArray[Any] = as_pixels(image, index) if normalized is None else np.moveaxis(normalized, 0, 2)
        kinds.append((*pixels.shape, pixels.dtype.name))
        if kinds[-1] != kinds[0]:
            sizes = ["{}x{}x{} {}".format(*each) for each in (kinds[-1], kinds[0])]
            raise DataError(f"image {index} has {sizes[0]}, but image 0 {sizes[1]}: all must be alike")
        if normalized is None:
            totals.append(channel_sums(pixels[None]))
    height, width, channels, _ = kinds[0]
    if not totals:
        return (height, width, channels), [0.0] * channels, [1.0] * channels
    sums, squares = (np.sum(each, axis=0).tolist() for each in zip(*totals, strict=True))
    return (height, width, channels), *mean_and_std(len(totals) * height * width, sums, squares)
