"""A staged dataset, as training and tree models open it; `staging.py` makes it and says what its files are."""

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainyard.utils.errors import UserError

SPLITS = ("train", "val")
TARGET = "(target)"  # the column to predict in a staged table; no name that a real column is likely to have


class DataError(UserError):
    """The data cannot be used; the message names the file, what is wrong and what to do."""


@dataclass(frozen=True)
class Images:
    """Images as staged: uint8 (N, H, W, C), with int64 labels (N,)."""

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]


@dataclass(frozen=True)
class Staged:
    """A staged dataset, opened; arrays are mapped into memory, not read."""

    folder: Path

    @cached_property
    def meta(self) -> dict[str, Any]:
        """What `meta.json` says.

        Raises:
            DataError: the folder holds no staged dataset.
        """
        try:
            found: dict[str, Any] = json.loads((self.folder / "meta.json").read_text())
        except OSError:
            raise DataError(f"{self.folder} holds no staged dataset: run `snakemake data` first") from None
        return found

    @property
    def digest(self) -> str:
        """Identifies the content: equal data, equal digest."""
        return str(self.meta["digest"])

    def description(self) -> str:
        """What it is, in words."""
        meta = self.meta
        if meta["kind"] == "table":
            return f"a table of {len(meta['columns'])} columns for {meta['task']}"
        if meta["kind"] == "python":
            return f"images that {meta['source']['factory']} makes on the fly, in {len(meta['classes'])} classes"
        sizes = " and ".join(f"{sum(meta['counts'][name])} {name}" for name in SPLITS)
        height, width, channels = meta["shape"]
        return f"{sizes} images of {height}x{width}x{channels} in {len(meta['classes'])} classes"

    def check_images(self) -> None:
        """Find out before anything is started whether a training could open it.

        Raises:
            DataError: it could not.
        """
        if self.meta["kind"] != "python":
            self.split("train")

    def split(self, name: str) -> Images:
        """The images and labels of `train` or `val`."""
        if self.meta["kind"] != "images":
            held = {"table": "a table", "python": "the name of a function"}[self.meta["kind"]]
            raise DataError(f"{self.folder} holds {held}, not images")
        return Images(images=self._mapped(f"{name}-images.npy"), labels=self._mapped(f"{name}-labels.npy"))

    def _mapped(self, name: str) -> NDArray[Any]:
        try:
            array: NDArray[Any] = np.load(self.folder / name, mmap_mode="r")
        except (OSError, ValueError, EOFError) as error:
            remedy = f"remove {self.folder / 'meta.json'} and run `snakemake data`"
            raise DataError(f"{self.folder / name} cannot be opened ({error}): {remedy}") from None
        return array
