"""A data source of image files in a folder, a zip or a tar."""

from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import PIL

from trainyard.config.datasets import ImageFolder
from trainyard.data.archives import MAX_FILE_BYTES, CollectedFile, Collection, open_collection
from trainyard.data.decoding import BadImageError, ImageFormat, decode_image, read_size
from trainyard.data.layouts import Layout, find_layout
from trainyard.data.problems import Problem
from trainyard.data.sources import Block, BlockTask, DataSource
from trainyard.data.staged import DataError
from trainyard.utils.files import digest_of
from trainyard.utils.text import printable

SAMPLE_IMAGES: Final = 64  # read to find the most frequent size


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
        return find_layout(self._collection, self._files, val_fraction=self.dataset.val_fraction)

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
            return ImageFormat(dataset.height, dataset.width, is_resized=True)
        train = self.layout.images["train"]
        sample = train[:: -(-len(train) // SAMPLE_IMAGES)]
        sizes = Counter[tuple[int, int]]()
        for file, _ in sample:
            with suppress(OSError):
                sizes.update(filter(None, [read_size(self._collection.read(file))]))
        if not sizes:
            raise DataError(f"{self.path}: none of a sample of {len(sample)} images can be read")
        (height, width), _ = sizes.most_common(1)[0]
        return ImageFormat(height, width, is_resized=False)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width and channels of all images."""
        return self.image_format.shape

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


def _digest(files: Iterable[CollectedFile]) -> str:
    """Changes with the files' names, sizes and stamps; joins them as text because a million must not take long."""
    return digest_of("\n".join(f"{file.name}\t{file.size}\t{file.stamp}" for file in files))


def _decode_images(
    collection: Collection, files: Sequence[tuple[CollectedFile, int]], image_format: ImageFormat, split: str
) -> Block:
    count = len(files)
    images = np.zeros((count, *image_format.shape), np.uint8)
    labels = np.fromiter((label for _, label in files), np.int64, count)
    is_good = np.ones(count, np.bool_)
    problems = list[Problem]()
    handled = Counter[str]()
    for row, (file, _) in enumerate(files):
        try:
            if file.size > MAX_FILE_BYTES:
                raise BadImageError("too large", f"{file.size:,} bytes")
            images[row], conversions = decode_image(collection.read(file), image_format)
        except OSError as error:
            is_good[row] = False
            problems.append(Problem(file.name, split, "unreadable", str(error)))
        except BadImageError as error:
            is_good[row] = False
            problems.append(Problem(file.name, split, error.problem, error.detail))
        else:
            handled.update(conversions)
    return Block(images, labels, is_good, problems, handled)
