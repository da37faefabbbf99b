"""A staged dataset, as training and tree models open it, and its metadata. `staging.py` documents its files."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from trainyard.utils.errors import MissingResultError, UserError
from trainyard.utils.files import atomic_write

SPLITS = ("train", "val")
TARGET = "(target)"  # the target column of a staged table; a name that no real column is likely to have


STAGE: Final = "run Snakemake's target `data`"


class DataError(UserError):
    """The data cannot be used; the message names the file, the problem and the remedy."""


# ---- metadata: the content of meta.json


@dataclass(frozen=True, kw_only=True)
class DatasetMeta:
    """The metadata of any dataset."""

    kind: ClassVar[str | None] = None
    content: ClassVar[str] = "data of an unknown kind"  # for messages

    source: dict[str, Any] = field(default_factory=dict)  # its section of the config, and the state of its files
    classes: list[str] = field(default_factory=list)  # names of the outputs of a model: classes or `targets`
    files: dict[str, str] = field(default_factory=dict)  # SHA-256 by name
    versions: dict[str, str] = field(default_factory=dict)  # of the libraries that staged it
    digest: str = ""  # of the content: equal for equal data


@dataclass(frozen=True, kw_only=True)
class TableMeta(DatasetMeta):
    """The metadata of a table."""

    kind = "table"
    content = "a table"

    task: str  # classification or regression
    columns: list[str]  # without the target

    def __str__(self) -> str:
        return f"a table of {len(self.columns)} columns for {self.task}"


@dataclass(frozen=True, kw_only=True)
class ImageMeta(DatasetMeta):
    """The metadata of images, staged or made on the fly."""

    content = "images"

    shape: tuple[int, int, int]  # height, width, channels
    mean: list[float]  # per channel, in 0..255
    std: list[float]


@dataclass(frozen=True, kw_only=True)
class StagedImageMeta(ImageMeta):
    """The metadata of staged images."""

    kind = "images"

    counts: dict[str, list[int]]  # images per class, by split
    titles: dict[str, str] | None = None  # readable names of classes that are named by an id
    handled: dict[str, int] = field(default_factory=dict)  # images by conversion
    problems: dict[str, int] = field(default_factory=dict)  # files by kind of problem

    def __str__(self) -> str:
        sizes = " and ".join(f"{sum(self.counts[name])} {name}" for name in SPLITS)
        return f"{sizes} images of {'x'.join(map(str, self.shape))} in {len(self.classes)} classes"


@dataclass(frozen=True, kw_only=True)
class OnTheFlyMeta(ImageMeta):
    """The metadata of images that a user's function makes on the fly."""

    kind = "python"
    content = "the name of a function"

    sizes: list[int]  # training and validation images

    def __str__(self) -> str:
        return f"images that {self.source['factory']} makes on the fly, in {len(self.classes)} classes"


_KINDS: Final = {each.kind: each for each in (DatasetMeta, TableMeta, StagedImageMeta, OnTheFlyMeta)}
_Meta = TypeVar("_Meta", bound=DatasetMeta)


def write_meta(folder: Path, meta: DatasetMeta, files: Mapping[str, Path] | None = None) -> None:
    """Write `meta.json`, and move the files beside it; if the disk is full, they stay where the next run continues."""
    content = {"kind": meta.kind} | asdict(meta)
    with atomic_write(folder / "meta.json") as file:
        json.dump({name: value for name, value in content.items() if value is not None}, file, indent=2)
        file.write("\n")
        file.flush()
        for name, path in (files or {}).items():
            path.replace(folder / name)


def read_meta(folder: Path) -> DatasetMeta:
    """The metadata of the staged dataset in a folder.

    Raises:
        MissingResultError: there is none.
        DataError: its file is damaged, or of another version of Trainyard.
    """
    path = folder / "meta.json"
    try:
        content = json.loads(path.read_text())
        if "shape" in content:
            content["shape"] = tuple(content["shape"])
        kind = _KINDS[content.pop("kind")]
        return kind(**content)
    except FileNotFoundError:
        raise MissingResultError(path, remedy=STAGE) from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise DataError(f"{path} is damaged or of another version: remove it and {STAGE}") from None


# ---- data


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
    def meta(self) -> DatasetMeta:
        """The metadata; see `read_meta` for errors."""
        return read_meta(self.folder)

    @property
    def digest(self) -> str:
        """A digest of the content: equal for equal data."""
        return self.meta.digest

    def require(self, kind: type[_Meta]) -> _Meta:
        """The metadata of a dataset that must be of this kind.

        Raises:
            DataError: it is of another kind.
        """
        meta = self.meta
        if not isinstance(meta, kind):
            raise DataError(f"{self.folder} holds {meta.content}, not {kind.content}")
        return meta

    def check_images(self) -> None:
        """Check that the images can be opened, before a job starts.

        Raises:
            DataError: they cannot.
        """
        if not isinstance(self.meta, OnTheFlyMeta):
            self.split("train")

    def split(self, name: str) -> StagedImages:
        """The images and labels of `train` or `val`."""
        self.require(StagedImageMeta)
        return StagedImages(images=self._map(f"{name}-images.npy"), labels=self._map(f"{name}-labels.npy"))

    def _map(self, name: str) -> NDArray[Any]:
        try:
            array: NDArray[Any] = np.load(self.folder / name, mmap_mode="r")
        except (OSError, ValueError, EOFError) as error:
            remedy = f"remove {self.folder / 'meta.json'} and {STAGE}"
            raise DataError(f"{self.folder / name} cannot be opened ({error}): {remedy}") from None
        return array
