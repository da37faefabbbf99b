"""A staged dataset, as training and tree models open it. `staging.py` makes it and documents its files."""

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from trainyard.utils.errors import MissingResultError, UserError

SPLITS = ("train", "val")
TARGET = "(target)"  # the target column of a staged table; a name that no real column is likely to have


STAGE: Final = "run Snakemake's target `data`"


class DataError(UserError):
    """The data cannot be used; the message names the file, the problem and the remedy."""


@dataclass(frozen=True)
class StagedImages:
    """The images and labels of a split, mapped into memory."""

    images: NDArray[np.uint8]  # (N, H, W, C)
    labels: NDArray[np.int64]  # (N,)


@dataclass(frozen=True)
class Staged:
    """The staged dataset in a folder; nothing is read before it is used."""

    folder: Path

    @cached_property
    def meta(self) -> dict[str, Any]:
        """The content of `meta.json`.

        Raises:
            MissingResultError: the folder has no staged dataset.
        """
        try:
            found: dict[str, Any] = json.loads((self.folder / "meta.json").read_text())
        except OSError:
            raise MissingResultError(self.folder / "meta.json", remedy=STAGE) from None
        return found

    @property
    def digest(self) -> str:
        """A digest of the content: equal for equal data."""
        return str(self.meta["digest"])

    def description(self) -> str:
        """A one-line summary of the dataset."""
        meta = self.meta
        if meta["kind"] == "table":
            return f"a table of {len(meta['columns'])} columns for {meta['task']}"
        if meta["kind"] == "python":
            return f"images that {meta['source']['factory']} makes on the fly, in {len(meta['classes'])} classes"
        sizes = " and ".join(f"{sum(meta['counts'][name])} {name}" for name in SPLITS)
        height, width, channels = meta["shape"]
        return f"{sizes} images of {height}x{width}x{channels} in {len(meta['classes'])} classes"

    def check_images(self) -> None:
        """Check that the images can be opened, before a job starts.

        Raises:
            DataError: they cannot.
        """
        if self.meta["kind"] != "python":
            self.split("train")

    def split(self, name: str) -> StagedImages:
        """The images and labels of `train` or `val`."""
        if self.meta["kind"] != "images":
            content = {"table": "a table", "python": "the name of a function"}[self.meta["kind"]]
            raise DataError(f"{self.folder} holds {content}, not images")
        return StagedImages(images=self._map(f"{name}-images.npy"), labels=self._map(f"{name}-labels.npy"))

    def _map(self, name: str) -> NDArray[Any]:
        try:
            array: NDArray[Any] = np.load(self.folder / name, mmap_mode="r")
        except (OSError, ValueError, EOFError) as error:
            remedy = f"remove {self.folder / 'meta.json'} and {STAGE}"
            raise DataError(f"{self.folder / name} cannot be opened ({error}): {remedy}") from None
        return array
