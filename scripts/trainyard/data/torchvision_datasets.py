"""Datasets of torchvision, read by torchvision's own classes from a local copy or from downloaded files.

The files are first copied to the layout that torchvision expects. torchvision loads CIFAR's batches with pickle, which
can run code, but only if their MD5 checksums are the published ones; it checks a private copy, which no other process
changes between the check and the loading.
"""

import gzip
import shutil
import zlib
from pathlib import Path, PurePosixPath
from typing import Any, Final

import numpy as np

from trainyard.config.datasets import Torchvision
from trainyard.data.archives import open_collection
from trainyard.data.downloads import RemoteFile, has_checksum
from trainyard.data.sources import InMemorySource
from trainyard.data.staged import SPLITS, DataError
from trainyard.utils.errors import storage_errors
from trainyard.utils.files import file_digest

WRONG_CHECKSUM: Final = "its checksum differs from the published one: replace it, or leave out `root` to download it"


def published_files(dataset: Torchvision) -> list[RemoteFile]:
    """The files to download, with torchvision's addresses and checksums."""
    published = _class_of(dataset)
    if hasattr(published, "resources"):  # MNIST, FashionMNIST, KMNIST
        return [
            RemoteFile(name, tuple(f"{mirror}{name}" for mirror in published.mirrors), f"md5:{md5}")
            for name, md5 in published.resources
        ]
    if hasattr(published, "split_list"):  # SVHN, USPS
        parts = [published.split_list[split] for split in ("train", "test")]
        return [RemoteFile(name, (url,), f"md5:{md5}") for url, name, md5 in parts]
    return [RemoteFile(published.filename, (published.url,), f"md5:{published.tgz_md5}")]


def read_published(dataset: Torchvision, root: Path, work: Path) -> InMemorySource:
    """The images in the copy at `root`; `work` is a folder for temporary files.

    Raises:
        DataError: a file is missing, or is not what torchvision expects.
    """
    if not root.exists():
        raise DataError(
            f"{root}: no such file or folder; set `root` to a copy of {dataset.name}, or leave it out to download one"
        )
    published = _class_of(dataset)
    copy_files = _copy_batches if hasattr(published, "train_list") else _copy_files
    work.mkdir(parents=True, exist_ok=True)
    state = copy_files(dataset, root, work)
    splits = {}
    classes = [str(digit) for digit in range(10)]  # SVHN and USPS do not name them
    for split in SPLITS:
        is_train = split == "train"
        try:
            if dataset.name == "SVHN":
                loaded = published(str(work), split="train" if is_train else "test")
            else:
                loaded = published(str(work), train=is_train)
        except Exception as error:  # which exception a damaged file raises depends on its bytes
            reason = str(error) or type(error).__name__
            raise DataError(
                f"{root}: torchvision cannot read the {split} files of {dataset.name} ({reason}): replace "
                "them, or leave out `root` to download them"
            ) from None
        images = np.asarray(loaded.data)
        labels = np.asarray(loaded.targets if hasattr(loaded, "targets") else loaded.labels, np.int64)
        classes = [text.partition(" - ")[0] for text in getattr(loaded, "classes", classes)]
        # torchvision does not check that each image has a label, and each label a class.
        what = f"{root}: the {split} split of {dataset.name}"
        if not len(images) or len(images) != len(labels):
            raise DataError(f"{what} has {len(images)} images and {len(labels)} labels")
        if labels.min() < 0 or labels.max() >= len(classes):
            raise DataError(f"{what} has labels from {labels.min()} to {labels.max()}, but {len(classes)} classes")
        if images.ndim == 3:
            images = images[..., None]
        elif images.shape[-1] != 3:  # (N, 3, H, W)
            images = np.moveaxis(images, 1, -1)
        splits[split] = (np.ascontiguousarray(images), labels)
    return InMemorySource(splits, classes, file_state={"files": state})


def _class_of(dataset: Torchvision) -> Any:
    import torchvision.datasets

    return getattr(torchvision.datasets, dataset.name)


# ---- copying the files to torchvision's layout


def _copy_files(dataset: Torchvision, root: Path, work: Path) -> dict[str, str]:
    """Copy the files of MNIST, SVHN and the like, and decompress them; returns their digests by name."""
    digests = {}
    for remote in published_files(dataset):
        name = remote.name.removesuffix(".gz")
        raw = f"{dataset.name}/raw" if name != remote.name else ""  # the folder that torchvision reads, below its root
        folders = [root / raw, root / dataset.name, root / "raw", root]
        found = (path for folder in folders for path in (folder / name, folder / f"{name}.gz") if path.is_file())
        source = next(found, None)
        if source is None:
            raise DataError(
                f"{root}: {remote.name} of {dataset.name} is missing; torchvision expects {name} in {root / raw}"
            )
        (work / raw).mkdir(parents=True, exist_ok=True)
        _copy(source, work / raw / name)
        if not raw and not has_checksum(work / name, remote.checksum):
            raise DataError(f"{source}: {WRONG_CHECKSUM}")
        digests[source.name] = file_digest(source)
    return digests


def _copy(source: Path, target: Path) -> None:
    try:
        opened = gzip.open if source.suffix == ".gz" else open
        with opened(source, "rb") as file, storage_errors(target), open(target, "wb") as plain:
            shutil.copyfileobj(file, plain)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{source}: is damaged ({error}): replace it") from None


def _copy_batches(dataset: Torchvision, root: Path, work: Path) -> dict[str, list[int]]:
    """Copy CIFAR's batches from a folder or archive; returns sizes and modification times of its files by name."""
    published = _class_of(dataset)
    places = [root / published.base_folder, root / published.filename, root]
    collection = open_collection(next(path for path in places if path.exists()), work)
    files = {PurePosixPath(file.name).name: file for file in collection.files()}
    meta = [published.meta["filename"], published.meta["md5"]]
    for name, md5 in [*published.train_list, *published.test_list, meta]:
        if name not in files:
            raise DataError(
                f"{collection.path}: {name} of {dataset.name} is missing; torchvision reads the Python "
                f"version, {published.filename}"
            )
        target = work / published.base_folder / name
        target.parent.mkdir(exist_ok=True)
        try:
            content = collection.read(files[name])
        except OSError as error:
            raise DataError(f"{collection.path}/{name}: cannot be read ({error})") from None
        with storage_errors(target):
            target.write_bytes(content)
        if not has_checksum(target, f"md5:{md5}"):
            raise DataError(f"{collection.path}/{name}: {WRONG_CHECKSUM}")
    return {file.name: [file.size, file.stamp] for file in files.values()}
