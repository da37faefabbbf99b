"""A data source of image files in a folder, a zip or a tar."""

import time
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import PIL
from numpy.typing import NDArray

from trainyard.config.datasets import ImageFolder
from trainyard.data.archives import MAX_FILE_BYTES, CollectedFile, Collection, open_collection
from trainyard.data.decoding import BadImageError, ImageFormat, decode_image, read_size
from trainyard.data.layouts import Layout, find_layout
from trainyard.data.problems import Problem
from trainyard.data.sources import Block, BlockTask, DataSource
from trainyard.data.staged import DataError
from trainyard.utils.files import digest_of
from trainyard.utils.text import printable

SAMPLE_IMAGES: Final = 64  # read to find the most frequent size, and the time that an image takes
SAMPLE_SECONDS: Final = 2.0


@dataclass
class ImageFileSource(DataSource):
    """The images of a folder or archive; `work` is a folder for temporary files."""

    dataset: ImageFolder
    path: Path
    work: Path

    @cached_property
    def state(self) -> dict[str, Any]:
        """Names, sizes and modification times of all files of a folder; size and modification time of an archive."""
        if self.path.is_file():
            state = self.path.stat()
            return {"archive": [state.st_size, state.st_mtime_ns]}
        return {"listing": _digest(self._files)}

    def has_changed(self) -> bool:
        """Whether files were added, removed or modified since they were listed."""
        return replace(self).state != self.state

    @cached_property
    def _collection(self) -> Collection:
        return open_collection(self.path, self.work)

    @cached_property
    def _files(self) -> list[CollectedFile]:
        return self._collection.files()

    @cached_property
    def layout(self) -> Layout:
        """The split and label of each image."""
        dataset = self.dataset
        return find_layout(self._collection, self._files, val_fraction=dataset.val_fraction, seed=dataset.seed)

    @property
    def problems(self) -> list[Problem]:
        """Problems of the layout."""
        return self.layout.problems

    @property
    def sizes(self) -> dict[str, int]:
        """The number of images of each split."""
        return {name: len(images) for name, images in self.layout.images.items()}

    @cached_property
    def image_format(self) -> ImageFormat:
        """The size in the config, or else the most frequent one in a sample.

        Raises:
            DataError: no image of the sample can be read.
        """
        dataset = self.dataset
        if dataset.height and dataset.width:
            return ImageFormat(dataset.height, dataset.width, dataset.channels, dataset.fit)
        found = Counter(size for file in self._sample() if (size := self._size_of(file)))
        if not found:
            raise DataError(f"{self.path}: none of a sample of {len(self._sample())} images can be read")
        (height, width), _ = found.most_common(1)[0]
        return ImageFormat(height, width, dataset.channels, None)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width and channels of all images."""
        return self.image_format.shape

    def _sample(self) -> list[CollectedFile]:
        train = self.layout.images["train"]
        return [file for file, _ in train[:: -(-len(train) // SAMPLE_IMAGES)]]

    def _size_of(self, file: CollectedFile) -> tuple[int, int] | None:
        try:
            return read_size(self._collection.read(file))
        except OSError:
            return None

    def seconds_per_image(self) -> float:
        """The time in which one CPU reads and decodes an image, from a sample."""
        began, tried = time.perf_counter(), 0
        for file in self._sample():
            with suppress(BadImageError):
                _read(self._collection, file, self.image_format)
            tried += 1
            if time.perf_counter() - began > SAMPLE_SECONDS:
                break
        return (time.perf_counter() - began) / tried

    def block_task(self, split: str, start: int, stop: int) -> BlockTask:
        """Reads and decodes images; the key has the names, sizes and modification times of their files."""
        images = self.layout.images[split][start:stop]
        labels = [label for _, label in images]
        key = digest_of([_digest(file for file, _ in images), labels, asdict(self.image_format), PIL.__version__])
        return BlockTask(key, partial(_decode_images, self._collection, images, self.image_format, split))

    def classes(self, highest_label: int) -> list[str]:
        """The names of the class folders."""
        return list(map(printable, self.layout.classes))

    @property
    def handled(self) -> dict[str, int]:
        """The number of files without an image's extension, or in no split."""
        return {"ignored": self.layout.ignored} if self.layout.ignored else {}

    @property
    def titles(self) -> dict[str, str]:
        """Readable names of classes, if the dataset has them."""
        return {printable(name): printable(title) for name, title in self.layout.titles.items()}

    def name_of(self, split: str, row: int) -> str:
        """The name of the image's file."""
        return self.layout.images[split][row][0].name


def _digest(files: Iterable[CollectedFile]) -> str:
    """Changes with the files' names, sizes and stamps; joins them as text because a million must not take long."""
    return digest_of("\n".join(f"{file.name}\t{file.size}\t{file.stamp}" for file in files))


def _decode_images(
    collection: Collection, files: Sequence[tuple[CollectedFile, int]], image_format: ImageFormat, split: str
) -> Block:
    count = len(files)
    images = np.zeros((count, *image_format.shape), np.uint8)
    rows = images[..., 0] if image_format.channels == 1 else images
    labels = np.fromiter((label for _, label in files), np.int64, count)
    hashes, is_good = np.zeros(count, np.uint64), np.ones(count, np.bool_)
    problems, handled = list[Problem](), Counter[str]()
    for row, (file, _) in enumerate(files):
        try:
            rows[row], conversions, hashes[row] = _read(collection, file, image_format)
        except BadImageError as error:
            is_good[row] = False
            problems.append(Problem(file.name, split, error.problem, error.detail))
        else:
            handled.update(conversions)
    return Block(images, labels, hashes, is_good, problems, handled)


def _read(
    collection: Collection, file: CollectedFile, image_format: ImageFormat
) -> tuple[NDArray[np.uint8], list[str], int]:
    """The pixels, the conversions that were necessary, and a hash of the file (its length and CRC-32).

    Raises:
        BadImageError: the file cannot be used.
    """
    if file.size > MAX_FILE_BYTES:
        raise BadImageError("too large", f"{file.size:,} bytes")
    try:
        content = collection.read(file)
    except OSError as error:
        raise BadImageError("unreadable", str(error)) from None
    pixels, conversions = decode_image(content, image_format)
    return pixels, conversions, len(content) << 32 | zlib.crc32(content)
