"""Datasets of torchvision, read by torchvision's own classes from a local copy or from downloaded files.

The files are first copied to the layout that torchvision expects. torchvision loads CIFAR's batches with pickle, which
can run code, but only if their MD5 checksums are the published ones; it checks a private copy, which no other process
changes between the check and the loading.
"""

import gzip
import hashlib
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
    state = _copy_files(dataset, root, work)
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
    """Copy the files that torchvision reads from a folder or archive, decompressed; returns their digests by name.

    Raises:
        DataError: a file is missing, cannot be read, or is not the published one.
    """
    folder, wanted = _list_files(dataset)
    archive = getattr(_class_of(dataset), "filename", "")  # of CIFAR
    places = [root / folder, root / dataset.name, root / "raw", root / archive, root]
    collection = open_collection(next(path for path in places if path.exists()), work)
    paths = {PurePosixPath(file.name): file for file in collection.files()}
    own = (".", folder or dataset.name)  # other datasets have files of the same names
    files = {path.name: file for path, file in paths.items() if str(path.parent) in own}
    (work / folder).mkdir(parents=True, exist_ok=True)
    digests = {}
    for name, md5 in wanted:
        file = files.get(name) or files.get(f"{name}.gz")
        if file is None:
            published = ", ".join(remote.name for remote in published_files(dataset))
            raise DataError(f"{collection.path}: {name} of {dataset.name} is missing, which is in {published}")
        source = f"{collection.path}/{file.name}"
        try:
            content = collection.read(file)
            digests[PurePosixPath(file.name).name] = hashlib.sha256(content).hexdigest()
            if file.name.endswith(".gz"):
                content = gzip.decompress(content)
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(f"{source}: cannot be read ({error}): replace it") from None
        target = work / folder / name
        with storage_errors(target):
            target.write_bytes(content)
        if md5 and not has_checksum(target, f"md5:{md5}"):
            raise DataError(f"{source}: {WRONG_CHECKSUM}")
    return digests


def _list_files(dataset: Torchvision) -> tuple[str, list[tuple[str, str]]]:
    """The folder in which torchvision reads the files of a dataset, their names, and if they are known, checksums."""
    published = _class_of(dataset)
    if hasattr(published, "train_list"):
        meta = (published.meta["filename"], published.meta["md5"])
        return published.base_folder, [*published.train_list, *published.test_list, meta]
    remotes = published_files(dataset)
    if hasattr(published, "resources"):  # whose checksums are those of the compressed files
        return f"{dataset.name}/raw", [(remote.name.removesuffix(".gz"), "") for remote in remotes]
    return "", [(remote.name, remote.checksum.removeprefix("md5:")) for remote in remotes]
