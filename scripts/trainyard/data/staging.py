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
from collections.abc import Sequence
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
from trainyard.data.problems import Problem, count_by_kind, find_duplicates, summarize_problems, write_problems
from trainyard.data.python_factory import PythonSource, describe_on_the_fly, module_digest
from trainyard.data.shards import ShardRecord, stage_shards
from trainyard.data.sources import DataSource, SyntheticSource, digits_source
from trainyard.data.staged import SPLITS, DataError, DatasetMeta, Staged, StagedImageMeta, read_meta, write_meta
from trainyard.data.table import stage_table, table_digest
from trainyard.utils.errors import MissingResultError, StorageError, storage_errors
from trainyard.utils.files import digest_of, expand_path, file_digest
from trainyard.utils.locks import hold
from trainyard.utils.text import format_duration

STAGING_VERSION: Final = 1  # increment it when a change of the code changes the staged files
CHUNK_IMAGES: Final = 1024  # copied at a time where bad images are left out
log = logging.getLogger(__name__)


def stage(dataset: Dataset, folder: Path, data: Data | None = None) -> Staged:
    """The dataset, staged in `folder`; does nothing if it is there already and the source has not changed.

    Raises:
        DataError: the source cannot be used, or has bad images and `on_bad_image` is `fail`.
    """
    with hold(folder / ".lock", wait_seconds=3600, notify=log.info):
        images = _open_source(dataset, folder / ".staging", data or Data())
        state = images.state if images else _other_state(dataset)
        source = dataset.model_dump(mode="json") | {"staging_version": STAGING_VERSION} | state
        if not _is_staged(folder, source):
            (folder / "meta.json").unlink(missing_ok=True)
            if images is not None:
                skip = getattr(dataset, "on_bad_image", "fail") == "skip"
                meta, files = _stage_images(images, folder, skip=skip)
            else:
                meta, files = _stage_other(dataset, folder), {}
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


def _other_state(dataset: Dataset) -> dict[str, Any]:
    """The state of a source without images to stage: the dataset is staged again when it changes."""
    if isinstance(dataset, Table):
        return {"source_digest": table_digest(dataset)}
    return {"module_digest": module_digest(dataset)} if isinstance(dataset, Python) else {}


def _stage_other(dataset: Dataset, folder: Path) -> DatasetMeta:
    if isinstance(dataset, Table):
        return stage_table(dataset, folder)
    return describe_on_the_fly(dataset) if isinstance(dataset, Python) else DatasetMeta()


# ---- sources


def _open_source(dataset: Dataset, work: Path, data: Data) -> DataSource | None:
    """The source of the dataset's images, downloaded if necessary; None if there are no images to stage."""
    match dataset:
        case Digits():
            return digits_source()
        case Synthetic():
            return SyntheticSource(dataset)
        case Torchvision() | ImageFolder():
            root = expand_path(dataset.root) if dataset.root else download_dataset(dataset, data)
            if isinstance(dataset, Torchvision):
                return torchvision_datasets.read_published(dataset, root, work)
            return ImageFileSource(dataset, root, work)
        case Python(on_the_fly=False):
            return PythonSource(dataset)
        case _:
            return None


def remote_files(dataset: Dataset) -> list[RemoteFile]:
    """The files to download for a dataset; none for one that is local."""
    match dataset:
        case Torchvision(root=None):
            return torchvision_datasets.published_files(dataset)
        case ImageFolder(url=str(url), checksum=str(checksum)):
            return [RemoteFile(PurePosixPath(urlparse(url).path).name, (url,), checksum)]
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


def _stage_images(source: DataSource, folder: Path, *, skip: bool) -> tuple[DatasetMeta, dict[str, Path]]:
    """The metadata of the staged images, and their files by name."""
    work, cpus = folder / ".staging", slurm_allocation.available_cpus()
    work.mkdir(parents=True, exist_ok=True)
    count = sum(source.sizes.values())
    size = count * math.prod(source.shape)
    missing, free = _missing_bytes(folder, size), shutil.disk_usage(folder).free
    if missing > free:
        raise DataError(
            f"{folder}: staging needs {missing / 2**30:,.1f} GiB of disk space, {free / 2**30:,.1f} GiB are free"
        )
    seconds = source.seconds_per_image() * count / cpus
    about = f", about {format_duration(seconds)} on {cpus} CPUs" if seconds >= 1 else ""
    shape = "x".join(map(str, source.shape))
    log.info("%s: %s images of %s, %s MiB%s", folder.name, f"{count:,}", shape, f"{size / 2**20:,.1f}", about)
    try:
        records, digests = stage_shards(source, work, cpus=cpus, name=folder.name)
    except StorageError as error:
        raise DataError(f"{error}; {_missing_bytes(folder, size) / 2**20:,.0f} MiB are still to be written") from None
    if source.has_changed():
        raise DataError(
            f"{folder.name}: files of its source changed while they were staged: run this again when nothing writes to "
            "them; shards of other files are kept"
        )
    problems = _report_problems(source, records, folder, skip=skip)
    bad = {name: [row for each in records if each.split == name for row in each.bad] for name in SPLITS}
    files = _drop_bad_rows(work, bad)
    labels = {name: np.load(files[f"{name}-labels.npy"]) for name in SPLITS}
    empty = [name for name in SPLITS if not len(labels[name])]
    if empty:
        raise DataError(f"{folder.name}: no image is left in the {empty[0]} split")
    classes = source.classes(int(max(each.max() for each in labels.values())))
    whole = {name: digests.get(path.name) or file_digest(path) for name, path in files.items()}
    height, width, _ = source.shape
    train = [each for each in records if each.split == "train"]
    sums, squares = np.sum([[each.sums, each.squares] for each in train], axis=0).tolist()
    mean, std = mean_and_std(sum(each.count for each in train) * height * width, sums, squares)
    handled = sum((Counter(each.handled) for each in records), Counter(source.handled))
    meta = StagedImageMeta(
        classes=classes,
        titles=source.titles or None,
        shape=source.shape,
        mean=mean,
        std=std,
        counts={name: np.bincount(labels[name], minlength=len(classes)).tolist() for name in SPLITS},
        handled=dict(sorted(handled.items())),
        problems=count_by_kind(problems),
        files=whole,
    )
    return meta, files


def _missing_bytes(folder: Path, size: int) -> int:
    """How much of this size is not on the disk; an interrupted run may have written some of it."""
    return max(0, size - sum(path.stat().st_blocks * 512 for path in (folder / ".staging").glob("*.npy")))


def _report_problems(source: DataSource, records: Sequence[ShardRecord], folder: Path, *, skip: bool) -> list[Problem]:
    """Write `problems.csv`, then log the bad images or fail; returns all problems.

    Raises:
        DataError: there are bad images, and `skip` is false.
    """
    found = [*source.problems, *(problem for each in records for problem in each.problems)]
    with_action = [each if each.action else replace(each, action="skip" if skip else "fail") for each in found]
    problems = sorted(with_action + find_duplicates(folder / ".staging", source.name_of), key=astuple)
    path = folder / "problems.csv"
    write_problems(path, problems)
    bad = [each for each in problems if each.action != "keep"]
    if bad and not skip:
        raise DataError(
            f"{folder.name}: {summarize_problems(bad)}\nall are listed in {path}: repair them, or leave "
            "them out with `on_bad_image: skip`"
        )
    if bad:
        log.warning("%s: left out: %s\nall are listed in %s", folder.name, summarize_problems(bad), path)
    if kept := [each for each in problems if each.action == "keep"]:
        log.info("%s: kept: %s", folder.name, summarize_problems(kept))
    return problems


def _drop_bad_rows(work: Path, bad: dict[str, list[int]]) -> dict[str, Path]:
    """The files of images and labels by name; for a split with bad rows, copies without them."""
    files = {f"{split}-{kind}.npy": work / f"{split}-{kind}.npy" for split in SPLITS for kind in ("images", "labels")}
    for name, path in files.items():
        if rows := bad.get(name.split("-")[0]):
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
