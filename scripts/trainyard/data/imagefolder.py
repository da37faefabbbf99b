"""A source of images that are files: in a folder, a zip or a tar, of whatever size and mode."""

import time
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
import PIL
from numpy.typing import NDArray

from trainyard.config.datasets import ImageFolder
from trainyard.data.archives import Collection, File, opened
from trainyard.data.decoding import BadImage, Form, decode, size_of
from trainyard.data.layouts import Layout, find_layout
from trainyard.data.problems import Problem
from trainyard.data.sources import Block, Part, Source
from trainyard.data.staged import DataError
from trainyard.utils.files import digest_of

PROBES: Final = 64  # images that are looked at to learn the usual size, and how long one takes
PROBE_SECONDS: Final = 2.0


@dataclass
class ImageFiles(Source):
    """The images of a folder or archive, sorted out; `work` is a folder for what has to be unpacked."""

    dataset: ImageFolder
    path: Path
    work: Path

    @cached_property
    def state(self) -> dict[str, Any]:
        """Names, sizes and times of all files of a folder; size and time of an archive."""
        if self.path.is_file():
            state = self.path.stat()
            return {"archive": [state.st_size, state.st_mtime_ns]}
        return {"listing": _digest(self._files)}

    @cached_property
    def _collection(self) -> Collection:
        return opened(self.path, self.work)

    @cached_property
    def _files(self) -> list[File]:
        return self._collection.files()

    @cached_property
    def layout(self) -> Layout:
        """What belongs where."""
        dataset = self.dataset
        return find_layout(self._collection, self._files, val_fraction=dataset.val_fraction, seed=dataset.seed)

    @property
    def problems(self) -> list[Problem]:
        """What does not fit in."""
        return self.layout.problems

    @property
    def sizes(self) -> dict[str, int]:
        """Images per split."""
        return {name: len(images) for name, images in self.layout.images.items()}

    @cached_property
    def form(self) -> Form:
        """The size asked for, or else that of most images of a sample.

        Raises:
            DataError: no image of the sample can be read.
        """
        dataset = self.dataset
        if dataset.height and dataset.width:
            return Form(dataset.height, dataset.width, dataset.channels, dataset.fit)
        found = Counter(size for file in self._sample() if (size := self._size_of(file)))
        if not found:
            raise DataError(f"{self.path}: none of {len(self._sample())} images that were tried can be read")
        (height, width), _ = found.most_common(1)[0]
        return Form(height, width, dataset.channels, None)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width, channels."""
        return self.form.shape

    def _sample(self) -> list[File]:
        train = self.layout.images["train"]
        return [file for file, _ in train[:: -(-len(train) // PROBES)]]

    def _size_of(self, file: File) -> tuple[int, int] | None:
        try:
            return size_of(self._collection.read(file))
        except OSError:
            return None

    def seconds_per_image(self) -> float:
        """What reading and decoding takes one CPU, from a sample."""
        began, tried = time.perf_counter(), 0
        for file in self._sample():
            with suppress(BadImage):
                _read(self._collection, file, self.form)
            tried += 1
            if time.perf_counter() - began > PROBE_SECONDS:
                break
        return (time.perf_counter() - began) / tried

    def part(self, split: str, start: int, stop: int) -> Part:
        """Read and decoded by whoever makes it; its key knows the files by name, size and time of change."""
        images = self.layout.images[split][start:stop]
        labels = [label for _, label in images]
        key = digest_of([_digest(file for file, _ in images), labels, asdict(self.form), PIL.__version__])
        return Part(key, _Decode(self._collection, images, self.form, split))

    def classes(self, highest_label: int) -> list[str]:
        """The names of their folders."""
        return self.layout.classes

    @property
    def handled(self) -> dict[str, int]:
        """Files that are no images by their names, or in no split."""
        return {"ignored": self.layout.ignored} if self.layout.ignored else {}

    @property
    def titles(self) -> dict[str, str]:
        """Classes in words, where the source has them."""
        return self.layout.titles

    def name_of(self, split: str, row: int) -> str:
        """The file that an image is."""
        return self.layout.images[split][row][0].name


def _digest(files: Iterable[File]) -> str:
    """Changes with the files by name, size and time; of a million it must not take long."""
    return digest_of("\n".join(f"{file.name}\t{file.size}\t{file.stamp}" for file in files))


@dataclass(frozen=True)
class _Decode:
    collection: Collection
    images: Sequence[tuple[File, int]]
    form: Form
    split: str

    def __call__(self) -> Block:
        count = len(self.images)
        images = np.zeros((count, *self.form.shape), np.uint8)
        rows = images[..., 0] if self.form.channels == 1 else images
        labels = np.fromiter((label for _, label in self.images), np.int64, count)
        prints, good = np.zeros(count, np.uint64), np.ones(count, np.bool_)
        problems, handled = list[Problem](), Counter[str]()
        for row, (file, _) in enumerate(self.images):
            try:
                rows[row], done, prints[row] = _read(self.collection, file, self.form)
            except BadImage as error:
                good[row] = False
                problems.append(Problem(file.name, self.split, error.problem, error.detail))
            else:
                handled.update(done)
        return Block(images, labels, prints, good, problems, handled)


def _read(collection: Collection, file: File, form: Form) -> tuple[NDArray[np.uint8], list[str], int]:
    """Pixels, what had to be done for them, and a number that is equal for equal files.

    Raises:
        BadImage: it cannot be used.
    """
    try:
        content = collection.read(file)
    except OSError as error:
        raise BadImage("unreadable", str(error)) from None
    pixels, done = decode(content, form)
    return pixels, done, len(content) << 32 | zlib.crc32(content)
