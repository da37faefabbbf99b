"""Staging: converts a dataset of the config to a few large files that training maps into memory.

<folder>/{train,val}-{images,labels}.npy   uint8 of shape (N, H, W, C); int64 of shape (N,)
<folder>/{train,val}.parquet               for a table, instead
<folder>/problems.csv                      problems of the source, file by file
<folder>/meta.json                         written last: if it exists, so do the others
"""

import logging
import math
import os
import platform
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import astuple, replace
from pathlib import Path, PurePosixPath
from typing import Any, Final
from urllib.parse import urlparse

import numpy as np
import PIL
from numpy.lib.format import header_data_from_array_1_0, write_array_header_1_0

from trainyard.cluster import slurm_allocation
from trainyard.config.config import Data
from trainyard.config.datasets import Dataset, Digits, ImageFolder, Python, Synthetic, Table, Torchvision
from trainyard.data import torchvision_datasets
from trainyard.data.downloads import RemoteFile, download
from trainyard.data.imagefolder import ImageFileSource
from trainyard.data.mean_std import mean_and_std
from trainyard.data.problems import Problem, count_by_kind, summarize_problems, write_problems
from trainyard.data.python_factory import PythonSource, describe_on_the_fly, module_digest
from trainyard.data.shards import ShardRecord, stage_shards
from trainyard.data.sources import DataSource, SyntheticSource, digits_source
from trainyard.data.staged import SPLITS, DataError, DatasetMeta, Staged, StagedImageMeta, read_meta, write_meta
from trainyard.data.table import stage_table, table_digest
from trainyard.utils.errors import MissingResultError, StorageError, storage_errors
from trainyard.utils.files import digest_of, expand_path, file_digest
from trainyard.utils.locks import hold

STAGING_VERSION: Final = 1  # increment it when a change of the code changes the staged files
CHUNK_IMAGES: Final = 1024  # copied at a time where bad images are left out
Made = tuple[DatasetMeta, dict[str, Path]]  # the metadata of a staged dataset, and its files by name
log = logging.getLogger(__name__)


def stage(dataset: Dataset, folder: Path, data: Data | None = None) -> Staged:
    """The dataset, staged in `folder`; does nothing if it is there already and the source has not changed.

    Raises:
        DataError: the source cannot be used, or has bad images and `on_bad_image` is `fail`.
    """
    with hold(folder / ".lock", wait_seconds=3600):
        state, make = _open_source(dataset, folder, data or Data())
        source = dataset.model_dump(mode="json") | {"staging_version": STAGING_VERSION} | state
        if not _is_staged(folder, source):
            (folder / "meta.json").unlink(missing_ok=True)
            meta, files = make()
            versions = {"python": platform.python_version(), "numpy": np.__version__, "pillow": PIL.__version__}
            whole = replace(meta, source=source, versions=versions, digest=digest_of(meta.files or source))
            write_meta(folder, whole, files)
        shutil.rmtree(folder / ".staging", ignore_errors=True)
        return Staged(folder)


def _is_staged(folder: Path, source: dict[str, Any]) -> bool:
    """Whether the folder has the dataset of this source, verified by the digests of its files."""
    try:
        meta = read_meta(folder)
    except (MissingResultError, DataError):
        return False
    paths = {folder / name: digest for name, digest in meta.files.items()}
    same = (path.exists() and file_digest(path) == digest for path, digest in paths.items())
    return meta.source == source and all(same)


# ---- sources


def _open_source(dataset: Dataset, folder: Path, data: Data) -> tuple[dict[str, Any], Callable[[], Made]]:
    """The state of a source, with which the dataset is staged again, and the function that stages it in `folder`."""
    work = folder / ".staging"
    skip = False
    images: DataSource
    match dataset:
        case Table():
            return {"source_digest": table_digest(dataset)}, lambda: (stage_table(dataset, folder), {})
        case Python():
            if dataset.on_the_fly:
                return {"module_digest": module_digest(dataset)}, lambda: (describe_on_the_fly(dataset), {})
            images = PythonSource(dataset)
        case Digits():
            images = digits_source()
        case Synthetic():
            images = SyntheticSource(dataset)
        case Torchvision():
            images = torchvision_datasets.read_published(dataset, _local_files(dataset, data), work)
        case ImageFolder():
            images = ImageFileSource(dataset, _local_files(dataset, data), work)
            skip = dataset.on_bad_image == "skip"
    return images.state, lambda: _stage_images(images, folder, skip=skip)


def _local_files(dataset: Torchvision | ImageFolder, data: Data) -> Path:
    """The files of a dataset, downloaded if necessary."""
    return expand_path(dataset.root) if dataset.root else download_dataset(dataset, data)


def remote_files(dataset: Dataset) -> list[RemoteFile]:
    """The files to download for a dataset; none for one that is local."""
    match dataset:
        case Torchvision(root=None):
            return torchvision_datasets.published_files(dataset)
        case ImageFolder(url=str(url)):
            address, _, checksum = url.partition("#")
            return [RemoteFile(PurePosixPath(urlparse(address).path).name, (address,), checksum.replace("=", ":"))]
        case _:
            return []


def download_dataset(dataset: Dataset, data: Data) -> Path:
    """Download the files that are missing; returns their folder, or for an archive its path.

    Raises:
        DownloadError: a file cannot be downloaded.
    """
    remotes = remote_files(dataset)
    name = dataset.name if isinstance(dataset, Torchvision) else digest_of(remotes[0].urls, 8)
    paths = [download(remote, expand_path(data.downloads) / name) for remote in remotes]
    return paths[0].parent if isinstance(dataset, Torchvision) else paths[0]


# ---- images


def _stage_images(source: DataSource, folder: Path, *, skip: bool) -> Made:
    work = folder / ".staging"
    cpus = slurm_allocation.available_cpus()
    work.mkdir(parents=True, exist_ok=True)
    count = sum(source.sizes.values())
    size = count * math.prod(source.shape)
    missing = _missing_bytes(folder, size)
    free = shutil.disk_usage(folder).free
    if missing > free:
        raise DataError(
            f"{folder}: staging needs {missing / 2**30:,.1f} GiB of disk space, {free / 2**30:,.1f} GiB are free"
        )
    shape = "x".join(map(str, source.shape))
    log.info("%s: %s images of %s, %s MiB", folder.name, f"{count:,}", shape, f"{size / 2**20:,.1f}")
    try:
        records = stage_shards(source, work, cpus=cpus, name=folder.name)
    except StorageError as error:
        raise DataError(f"{error}; {_missing_bytes(folder, size) / 2**20:,.0f} MiB are still to be written") from None
    if source.has_changed():
        raise DataError(
            f"{folder.name}: files of its source changed while they were staged: run this again when nothing writes to "
            "them; shards of other files are kept"
        )
    problems = _report_problems(source, records, folder, skip=skip)
    bad: dict[str, list[int]] = {name: [] for name in SPLITS}
    for record in records:
        bad[record.shard.split] += record.bad
    files = _drop_bad_rows(work, bad)
    labels = {name: np.load(files[f"{name}-labels.npy"]) for name in SPLITS}
    empty = [name for name in SPLITS if not len(labels[name])]
    if empty:
        raise DataError(f"{folder.name}: no image is left in the {empty[0]} split")
    classes = source.classes(int(max(each.max() for each in labels.values())))
    height, width, _ = source.shape
    train = [record for record in records if record.shard.split == "train"]
    sums, squares = np.sum([[record.sums, record.squares] for record in train], axis=0).tolist()
    mean, std = mean_and_std(sum(record.count for record in train) * height * width, sums, squares)
    handled = sum((Counter(record.handled) for record in records), Counter(source.handled))
    meta = StagedImageMeta(
        classes=classes,
        titles=source.titles or None,
        shape=source.shape,
        mean=mean,
        std=std,
        counts={name: np.bincount(labels[name], minlength=len(classes)).tolist() for name in SPLITS},
        handled=dict(sorted(handled.items())),
        problems=count_by_kind(problems),
        files={name: file_digest(path) for name, path in files.items()},
    )
    return meta, files


def _missing_bytes(folder: Path, size: int) -> int:
    """How much of this size is not on the disk; an interrupted run may have written some of it."""
    return max(0, size - sum(path.stat().st_blocks * 512 for path in (folder / ".staging").glob("*.npy")))


def _report_problems(source: DataSource, records: Sequence[ShardRecord], folder: Path, *, skip: bool) -> list[Problem]:
    """Write `problems.csv`, then log the problems or fail; returns them.

    Raises:
        DataError: there are problems, and `skip` is false.
    """
    found = [*source.problems, *(problem for each in records for problem in each.problems)]
    problems = sorted(found, key=astuple)
    path = folder / "problems.csv"
    write_problems(path, problems)
    if problems and not skip:
        raise DataError(
            f"{folder.name}: {summarize_problems(problems)}\nall are listed in {path}: repair them, or leave "
            "them out with `on_bad_image: skip`"
        )
    if problems:
        log.warning("%s: left out: %s\nall are listed in %s", folder.name, summarize_problems(problems), path)
    return problems


def _drop_bad_rows(work: Path, bad: dict[str, list[int]]) -> dict[str, Path]:
    """The files of images and labels by name; for a split with bad rows, copies without them."""
    files = {f"{split}-{kind}.npy": work / f"{split}-{kind}.npy" for split in SPLITS for kind in ("images", "labels")}
    for name, path in files.items():
        if rows := bad[name.split("-")[0]]:
            files[name] = target = work / f"good-{name}"
            whole = np.load(path, mmap_mode="r")
            good = np.setdiff1d(np.arange(len(whole)), rows)
            header = header_data_from_array_1_0(whole) | {"shape": (len(good), *whole.shape[1:])}
            with storage_errors(target), open(target, "wb") as file:  # on a full disk, writing to a memory map is fatal
                write_array_header_1_0(file, header)
                for start in range(0, len(good), CHUNK_IMAGES):
                    file.write(whole[good[start : start + CHUNK_IMAGES]].tobytes())
                file.flush()
                os.fsync(file.fileno())
    return files
