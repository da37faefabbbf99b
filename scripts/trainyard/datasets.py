"""Staging: turns a dataset of the config into a few large files that training maps into memory.

<folder>/{train,val}-{images,labels}.npy   uint8 of shape (N, H, W, C); int64 of shape (N,)
<folder>/{train,val}.parquet               instead, for a table
<folder>/meta.json                         written last: if it is there, the rest is whole
"""

import inspect
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainyard.config import Dataset, Digits, Python, Synthetic, Table
from trainyard.dotted import imported
from trainyard.errors import UserError
from trainyard.files import atomic_write, digest_of, file_digest, lock, write_json

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
        except (OSError, ValueError) as error:
            remedy = f"remove {self.folder / 'meta.json'} and run `snakemake data`"
            raise DataError(f"{self.folder / name} cannot be opened ({error}): {remedy}") from None
        return array


def stage(dataset: Dataset, folder: Path) -> Staged:
    """Make `folder` hold the dataset; what is there already, from the same source, is left as it is."""
    with lock(folder / ".lock", wait_seconds=3600):
        staged = Staged(folder)
        source = dataset.model_dump(mode="json") | _file_state(dataset)
        if (folder / "meta.json").exists() and staged.meta["source"] == source and not _changed_files(staged):
            return staged
        (folder / "meta.json").unlink(missing_ok=True)
        details = _STAGERS[type(dataset)](dataset, folder)
        digests = {
            path.name: file_digest(path) for path in sorted(folder.glob("*-*.npy")) + sorted(folder.glob("*.parquet"))
        }
        meta = {"source": source, **details, "files": digests, "digest": digest_of(digests or source)}
        write_json(folder / "meta.json", meta)
        return Staged(folder)


def _changed_files(staged: Staged) -> list[str]:
    """Files of the dataset that are gone or no longer what was staged."""
    paths = {name: staged.folder / name for name in staged.meta["files"]}
    digests = staged.meta["files"]
    return [name for name, path in paths.items() if not path.exists() or file_digest(path) != digests[name]]


def _file_state(dataset: Dataset) -> dict[str, Any]:
    """What tells that a source file is no longer the one that was staged."""
    if isinstance(dataset, Python):
        return {"module_digest": file_digest(Path(inspect.getfile(imported(dataset.factory, what="dataset"))))}
    if not isinstance(dataset, Table):
        return {}
    try:
        return {"source_digest": file_digest(Path(dataset.path))}
    except OSError as error:
        raise DataError(f"{dataset.path}: cannot be read ({error.strerror}); `path` is taken from the folder where "
                        "snakemake runs") from None  # fmt: skip


def stratified_split(labels: NDArray[Any], val_fraction: float, seed: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Indices of the training and the validation part, each class shared out alike, the same ones for the same seed."""
    from sklearn.model_selection import train_test_split

    indices = np.arange(len(labels))
    _, counts = np.unique(labels, return_counts=True)
    stratify = labels if counts.min() >= 2 else None  # a class of one cannot be in both parts
    train, val = train_test_split(indices, test_size=val_fraction, stratify=stratify, random_state=seed)
    return np.sort(train), np.sort(val)


def _stage_digits(dataset: Digits, folder: Path) -> dict[str, Any]:
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = np.round(digits.images * (255 / 16)).astype(np.uint8)[..., None]  # 0..16 to 0..255, one to one
    labels = digits.target.astype(np.int64)
    parts = stratified_split(labels, dataset.val_fraction, dataset.seed)
    splits = {name: Images(images[part], labels[part]) for name, part in zip(SPLITS, parts, strict=True)}
    return _write_images(splits, [str(name) for name in digits.target_names], folder)


def _stage_synthetic(dataset: Synthetic, folder: Path) -> dict[str, Any]:
    generator = np.random.default_rng(dataset.seed)
    shape = (dataset.height, dataset.width, dataset.channels)
    patterns = generator.integers(0, 256, (dataset.classes, *shape))
    splits = {}
    for name, count in zip(SPLITS, (dataset.images, dataset.val_images), strict=True):
        labels = generator.integers(0, dataset.classes, count)
        images = np.empty((count, *shape), np.uint8)
        for index, label in enumerate(labels):
            noise = generator.integers(0, 256, shape)
            images[index] = (patterns[label] + noise) // 2
        splits[name] = Images(images, labels.astype(np.int64))
    return _write_images(splits, [f"class {index}" for index in range(dataset.classes)], folder)


def _write_images(splits: dict[str, Images], classes: list[str], folder: Path) -> dict[str, Any]:
    for name, split in splits.items():
        for part, array in (("images", split.images), ("labels", split.labels)):
            with atomic_write(folder / f"{name}-{part}.npy", "wb") as file:
                np.save(file, array)
    train = splits["train"].images
    pixels = train.reshape(-1, train.shape[-1])
    return {
        "kind": "images",
        "classes": classes,
        "shape": list(train.shape[1:]),  # height, width, channels
        "mean": [float(value) for value in pixels.mean(axis=0, dtype=np.float64)],  # per channel, on the 0..255 scale
        "std": [float(value) for value in np.maximum(pixels.std(axis=0, dtype=np.float64), 1.0)],
        "counts": {name: np.bincount(split.labels, minlength=len(classes)).tolist() for name, split in splits.items()},
    }


NORMALISED_ON = 1024  # images whose mean and deviation normalise those that are made on the fly


def own_datasets(source: dict[str, Any]) -> tuple[Any, Any]:
    """What a user's own function gives: the datasets to train on and to validate.

    Raises:
        UserError, DataError: it cannot be imported, or gives something else.
    """
    made = imported(source["factory"], what="dataset")(**source["args"])
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


def _stage_python(dataset: Python, folder: Path) -> dict[str, Any]:
    parts = own_datasets(dataset.model_dump())
    if dataset.on_the_fly:
        return _describe_python(dataset, parts)
    splits = {}
    for name, part in zip(SPLITS, parts, strict=True):
        items = [part[index] for index in range(len(part))]
        pixels = [as_pixels(image, index) for index, (image, _) in enumerate(items)]
        odd = next((index for index, each in enumerate(pixels) if each.shape != pixels[0].shape), None)
        if odd is not None:
            raise DataError(f"{name} image {odd} of {dataset.factory!r} has the shape {pixels[odd].shape}, image 0 has "
                            f"{pixels[0].shape}: all must be of one size")  # fmt: skip
        splits[name] = Images(np.stack(pixels), np.array([int(label) for _, label in items], np.int64))
    return _write_images(splits, _class_names(dataset, max(int(each.labels.max()) for each in splits.values())), folder)


def _class_names(dataset: Python, highest_label: int) -> list[str]:
    names = dataset.classes or [str(number) for number in range(highest_label + 1)]
    if highest_label >= len(names):
        raise DataError(f"{dataset.factory!r} gives the label {highest_label}, but `classes` has {len(names)} names")
    return names


def _describe_python(dataset: Python, parts: tuple[Any, Any]) -> dict[str, Any]:
    """Only what training must know, from a sample: the images themselves are made anew in every epoch."""
    train = parts[0]
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
            "mean": mean, "std": std, "sizes": [len(part) for part in parts]}  # fmt: skip


def _stage_table(dataset: Table, folder: Path) -> dict[str, Any]:
    frame = read_table(Path(dataset.path))
    if dataset.target not in frame.columns:
        columns = ", ".join(map(str, frame.columns))
        raise DataError(f"{dataset.path}: there is no column {dataset.target!r} to predict; columns: {columns}")
    unlabelled = int(frame[dataset.target].isna().sum())
    if unlabelled:
        raise DataError(f"{dataset.path}: {unlabelled} rows have no value in the target column {dataset.target!r}")
    target = frame.pop(dataset.target)
    floating = target.dtype.kind == "f"
    task = dataset.task if dataset.task != "auto" else ("regression" if floating else "classification")
    classes: list[str] = []
    if task == "classification":
        names, codes = np.unique(target.astype(str) if target.dtype.kind not in "iuf" else target, return_inverse=True)
        classes = [str(name) for name in names]
        frame[TARGET] = codes.astype(np.int64)
    else:
        frame[TARGET] = target.astype(np.float64)
    for column in frame.columns[frame.dtypes.map(lambda kind: kind.kind not in "iufb")]:
        frame[column] = frame[column].astype("category")
    strata = frame[TARGET].to_numpy() if classes else np.zeros(len(frame), np.int64)
    for name, part in zip(SPLITS, stratified_split(strata, dataset.val_fraction, dataset.seed), strict=True):
        with atomic_write(folder / f"{name}.parquet", "wb") as file:
            frame.iloc[part].to_parquet(file)
    return {"kind": "table", "task": task, "classes": classes, "columns": [str(name) for name in frame.columns[:-1]]}


def read_table(path: Path) -> Any:
    """A CSV or Parquet file as a data frame."""
    import pandas as pd

    try:
        return pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path)
    except (ValueError, OSError) as error:
        raise DataError(f"{path}: cannot be read as {path.suffix[1:]}: {error}") from None


_STAGERS: dict[type, Callable[[Any, Path], dict[str, Any]]] = {
    Digits: _stage_digits,
    Synthetic: _stage_synthetic,
    Table: _stage_table,
    Python: _stage_python,
}
