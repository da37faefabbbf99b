"""Staging: turns a dataset of the config into a few large files that training maps into memory.

<folder>/{train,val}-{images,labels}.npy   uint8 of shape (N, H, W, C); int64 of shape (N,)
<folder>/{train,val}.parquet               instead, for a table
<folder>/problems.csv                      what was wrong with the source, file by file
<folder>/meta.json                         written last: if it is there, the rest is whole
"""

import logging
import math
import os
import platform
import shutil
from collections import Counter
from dataclasses import astuple, replace
from pathlib import Path, PurePosixPath
from typing import Any, Final
from urllib.parse import urlparse

import numpy as np
import PIL
from numpy.lib.format import open_memmap

from trainyard.cluster import slurm_allocation
from trainyard.config.config import Data
from trainyard.config.datasets import Dataset, Digits, ImageFolder, Python, Synthetic, Table, Torchvision, is_downloaded
from trainyard.data import torchvision_datasets
from trainyard.data.downloads import RemoteFile, download
from trainyard.data.duplicates import duplicates
from trainyard.data.imagefolder import ImageFiles
from trainyard.data.mean_std import moments
from trainyard.data.problems import counted, summary, write_problems
from trainyard.data.python_factory import Own, describe, module_digest
from trainyard.data.shards import Outcome, make_shards
from trainyard.data.sources import Generated, Source, digits
from trainyard.data.staged import SPLITS, DataError, Staged
from trainyard.data.table import stage_table, table_digest
from trainyard.utils.files import digest_of, file_digest, hold_lock, write_json
from trainyard.utils.text import format_duration

VERSION: Final = 1  # raise it when the same source is to give other files
COPIED_ROWS: Final = 1024  # images that are in memory at once while bad ones are left out
log = logging.getLogger(__name__)


def stage(dataset: Dataset, folder: Path, data: Data | None = None) -> Staged:
    """Make `folder` hold the dataset; what is there already, from the same source, is left as it is.

    Raises:
        DataError: the source cannot be used, or holds bad images that are not to be skipped.
    """
    with hold_lock(folder / ".lock", wait_seconds=3600, notify=log.info):
        images = _source(dataset, folder / ".staging", data or Data())
        state = images.state if images else _state_of_other(dataset)
        source = dataset.model_dump(mode="json") | {"staging_version": VERSION} | state
        if _is_staged(Staged(folder), source):
            return Staged(folder)
        (folder / "meta.json").unlink(missing_ok=True)
        if images is not None:
            details = _stage_images(images, folder, skip=getattr(dataset, "on_bad_image", "fail") == "skip")
        else:
            details = _stage_other(dataset, folder)
        versions = {"python": platform.python_version(), "numpy": np.__version__, "pillow": PIL.__version__}
        digest = digest_of(details["files"] or source)
        write_json(folder / "meta.json", {"source": source, **details, "versions": versions, "digest": digest})
        shutil.rmtree(folder / ".staging", ignore_errors=True)
        return Staged(folder)


def _is_staged(staged: Staged, source: dict[str, Any]) -> bool:
    """Whether the folder holds what this source gives, byte for byte."""
    if not (staged.folder / "meta.json").exists() or staged.meta["source"] != source:
        return False
    paths = {staged.folder / name: digest for name, digest in staged.meta["files"].items()}
    return all(path.exists() and file_digest(path) == digest for path, digest in paths.items())


def _state_of_other(dataset: Dataset) -> dict[str, Any]:
    """What tells that a source without images to stage is no longer the same."""
    if isinstance(dataset, Table):
        return {"source_digest": table_digest(dataset)}
    return {"module_digest": module_digest(dataset)} if isinstance(dataset, Python) else {}


def _stage_other(dataset: Dataset, folder: Path) -> dict[str, Any]:
    if isinstance(dataset, Table):
        details = stage_table(dataset, folder)
        return details | {"files": {f"{name}.parquet": file_digest(folder / f"{name}.parquet") for name in SPLITS}}
    return (describe(dataset) if isinstance(dataset, Python) else {}) | {"files": {}}


# ---- where images come from


def _source(dataset: Dataset, work: Path, data: Data) -> Source | None:
    """The dataset's images, downloaded if need be; None for one without images to stage."""
    match dataset:
        case Digits():
            return digits(dataset)
        case Synthetic():
            return Generated(dataset)
        case Torchvision() | ImageFolder():
            root = _path(dataset.root) if dataset.root else downloaded(dataset, data)
            if isinstance(dataset, Torchvision):
                return torchvision_datasets.read_published(dataset, root, work)
            return ImageFiles(dataset, root, work)
        case Python(on_the_fly=False):
            return Own(dataset)
        case _:
            return None


def remotes(dataset: Dataset) -> list[RemoteFile]:
    """What has to be downloaded for a dataset."""
    if not is_downloaded(dataset):
        return []
    if isinstance(dataset, ImageFolder) and dataset.url and dataset.checksum:
        return [RemoteFile(PurePosixPath(urlparse(dataset.url).path).name, (dataset.url,), dataset.checksum)]
    return torchvision_datasets.published_files(dataset) if isinstance(dataset, Torchvision) else []


def downloaded(dataset: Dataset, data: Data) -> Path:
    """Download what is not there yet of a dataset that needs it; the folder that holds the files, or the one file.

    Raises:
        DownloadError: it cannot be had.
    """
    wanted = remotes(dataset)
    name = dataset.name if isinstance(dataset, Torchvision) else digest_of(wanted[0].urls, 8)
    paths = [download(remote, _path(data.downloads) / name) for remote in wanted]
    return paths[0].parent if isinstance(dataset, Torchvision) else paths[0]


def _path(text: str) -> Path:
    return Path(os.path.expandvars(text)).expanduser()


# ---- images


def _stage_images(source: Source, folder: Path, *, skip: bool) -> dict[str, Any]:
    work, cpus = folder / ".staging", slurm_allocation.available_cpus()
    work.mkdir(parents=True, exist_ok=True)
    _announce(source, folder, cpus)
    outcome = make_shards(source, work, cpus=cpus, what=folder.name)
    _check(source, outcome, folder, skip=skip)
    files = _good_files(work, outcome.bad)
    labels = {name: np.load(files[f"{name}-labels.npy"]) for name in SPLITS}
    empty = [name for name in SPLITS if not len(labels[name])]
    if empty:
        raise DataError(f"{folder.name}: there is no image to {'train on' if 'train' in empty else 'validate with'}")
    classes = source.classes(int(max(each.max() for each in labels.values())))
    known = {path: outcome.digests[name] for name, path in files.items() if path.name in outcome.digests}
    digests = {name: known.get(path) or file_digest(path) for name, path in files.items()}
    for name, path in files.items():
        path.replace(folder / name)
    height, width, channels = source.shape
    mean, std = moments(outcome.count * height * width, outcome.sums, outcome.squares)
    return {
        "kind": "images",
        "classes": classes,
        **({"titles": source.titles} if source.titles else {}),
        "shape": [height, width, channels],
        "mean": mean,  # per channel, on the 0..255 scale
        "std": std,
        "counts": {name: np.bincount(labels[name], minlength=len(classes)).tolist() for name in SPLITS},
        "handled": dict(sorted((outcome.handled + Counter(source.handled)).items())),
        "problems": counted(outcome.problems),
        "files": digests,
    }


def _announce(source: Source, folder: Path, cpus: int) -> None:
    """Say what there is to do, and find out whether there is room for it."""
    count = sum(source.sizes.values())
    size = count * math.prod(source.shape)
    _look_for_room(folder, size)
    seconds = source.seconds_per_image() * count / cpus
    about = f", about {format_duration(seconds)} on {cpus} CPUs" if seconds >= 1 else ""
    form = "x".join(map(str, source.shape))
    log.info("%s: %s images of %s, %s MiB%s", folder.name, f"{count:,}", form, f"{size / 2**20:,.1f}", about)


def _look_for_room(folder: Path, size: int) -> None:
    """Find out before hours of work whether the result will fit; what an earlier run has written is there already."""
    written = sum(path.stat().st_blocks * 512 for path in (folder / ".staging").glob("*.npy"))
    free = shutil.disk_usage(folder).free
    if size - written > free:
        raise DataError(f"{folder}: {(size - written) / 2**30:,.1f} GiB more will be needed here, "
                        f"{free / 2**30:,.1f} GiB are free")  # fmt: skip


def _check(source: Source, outcome: Outcome, folder: Path, *, skip: bool) -> None:
    """List all that is wrong, then go on without the bad images, or stop.

    Raises:
        DataError: there are some, and they are not to be skipped.
    """
    found = [*source.problems, *outcome.problems]
    judged = [each if each.action else replace(each, action="skip" if skip else "fail") for each in found]
    outcome.problems = sorted(judged + duplicates(folder / ".staging", source.name_of), key=astuple)
    path = folder / "problems.csv"
    write_problems(path, outcome.problems)
    bad = [each for each in outcome.problems if each.action != "keep"]
    if bad and not skip:
        raise DataError(f"{folder.name}: {summary(bad)}\nall are in {path}: repair them, or leave them out with "
                        "`on_bad_image: skip`")  # fmt: skip
    if bad:
        log.warning("%s: left out: %s\nall are in %s", folder.name, summary(bad), path)
    if len(bad) < len(outcome.problems):
        kept = [each for each in outcome.problems if each.action == "keep"]
        log.info("%s: worth knowing: %s", folder.name, summary(kept))


def _good_files(work: Path, bad: dict[str, list[int]]) -> dict[str, Path]:
    """By their names, the files of images and labels; of a split with bad rows, copies without them."""
    files = {f"{split}-{kind}.npy": work / f"{split}-{kind}.npy" for split in SPLITS for kind in ("images", "labels")}
    for name, path in files.items():
        if rows := bad.get(name.split("-")[0]):
            files[name] = work / f"good-{name}"
            _copy_without(rows, path, files[name])
    return files


def _copy_without(rows: list[int], path: Path, target: Path) -> None:
    whole = np.load(path, mmap_mode="r")
    good = np.setdiff1d(np.arange(len(whole)), rows)
    copy = open_memmap(target, mode="w+", dtype=whole.dtype, shape=(len(good), *whole.shape[1:]))
    for start in range(0, len(good), COPIED_ROWS):
        copy[start : start + COPIED_ROWS] = whole[good[start : start + COPIED_ROWS]]
    copy.flush()
