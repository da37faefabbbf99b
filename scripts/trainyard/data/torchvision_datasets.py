"""Datasets that torchvision knows: MNIST, FashionMNIST, KMNIST, CIFAR10 and CIFAR100, read from their own formats.

Addresses and checksums are torchvision's. A copy may be laid out as torchvision does, or be the files themselves:
IDX, gzipped or not; CIFAR's Python or binary version, in a folder or a tar.
"""

import gzip
import io
import pickle
import struct
import zlib
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from trainyard.config.datasets import Torchvision
from trainyard.data.archives import Collection, Folder, opened
from trainyard.data.downloads import Remote, checksum_of
from trainyard.data.problems import Problem
from trainyard.data.sources import Arrays
from trainyard.data.staged import SPLITS, DataError
from trainyard.utils.files import file_digest

IDX_FILES: Final = {"train": "train", "val": "t10k"}
CIFAR_FOLDERS: Final = {"CIFAR10": ("cifar-10-batches-py", "cifar-10-batches-bin"),
                        "CIFAR100": ("cifar-100-python", "cifar-100-binary")}  # fmt: skip
CIFAR_ARCHIVES: Final = {"CIFAR10": ("cifar-10-python.tar.gz", "cifar-10-binary.tar.gz"),
                         "CIFAR100": ("cifar-100-python.tar.gz", "cifar-100-binary.tar.gz")}  # fmt: skip
CIFAR_PARTS: Final = {"CIFAR10": {"train": [f"data_batch_{number}" for number in range(1, 6)], "val": ["test_batch"]},
                      "CIFAR100": {"train": ["train"], "val": ["test"]}}  # fmt: skip
CIFAR_NAMES: Final = {"CIFAR10": (("batches.meta", "label_names"), "batches.meta.txt"),
                      "CIFAR100": (("meta", "fine_label_names"), "fine_label_names.txt")}  # fmt: skip
CIFAR_BYTES: Final = 3 * 32 * 32

Images = NDArray[np.uint8]
Labels = NDArray[np.int64]


def remotes(dataset: Torchvision) -> list[Remote]:
    """The files to download, as torchvision has them."""
    known = _torchvision(dataset.name)
    if hasattr(known, "resources"):
        return [Remote(name, tuple(f"{mirror}{name}" for mirror in known.mirrors), f"md5:{md5}")
                for name, md5 in known.resources]  # fmt: skip
    return [Remote(known.filename, (known.url,), f"md5:{known.tgz_md5}")]


def published(dataset: Torchvision, root: Path, work: Path) -> Arrays:
    """The images below `root`.

    Raises:
        DataError: files are missing, or are not what their format says.
    """
    if not root.exists():
        raise DataError(
            f"{root}: there is nothing; `root` must be a copy of {dataset.name}, or leave it out to download it"
        )
    read = _read_cifar if dataset.name in CIFAR_FOLDERS else _read_idx
    return read(dataset.name, root, work)


def _torchvision(name: str) -> Any:
    import torchvision.datasets

    return getattr(torchvision.datasets, name)


def _check_published(path: Path, checksums: dict[str, str]) -> list[Problem]:
    """A copy need not be the published one, but that is worth saying."""
    known = checksums.get(path.name)
    found = checksum_of(path, known) if known else None
    if found == known:
        return []
    return [Problem(path.name, "", "differs from the published file", f"{found}, not {known}", "keep")]


# ---- IDX


def _read_idx(name: str, root: Path, work: Path) -> Arrays:
    known, splits, problems = _torchvision(name), {}, list[Problem]()
    checksums = {file: f"md5:{md5}" for file, md5 in known.resources}
    state: dict[str, Any] = {}
    for split in SPLITS:
        arrays = []
        for part, dimensions in (("images-idx3", 3), ("labels-idx1", 1)):
            path = _idx_file(name, root, f"{IDX_FILES[split]}-{part}-ubyte")
            problems += _check_published(path, checksums)
            state[path.name] = file_digest(path)
            arrays.append(read_idx(path, dimensions))
        images, labels = arrays
        if len(images) != len(labels):
            raise DataError(f"{path}: has {len(labels)} labels for {len(images)} images")
        splits[split] = (images[..., None], labels.astype(np.int64))
    classes = [text.partition(" - ")[0] for text in known.classes]
    return _checked(Arrays(splits, classes, read_from={"files": state}, remarks=problems), root)


def _idx_file(name: str, root: Path, stem: str) -> Path:
    folders = [root / name / "raw", root / name, root / "raw", root]
    for path in (folder / f"{stem}{suffix}" for folder in folders for suffix in ("", ".gz")):
        if path.is_file():
            return path
    raise DataError(f"{root}: there is no {stem} or {stem}.gz, nor in {name}/raw below")


def read_idx(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """The bytes of an IDX file (http://yann.lecun.com/exdb/mnist), gzipped or not, of so many dimensions.

    Raises:
        DataError: it is something else, or is not whole.
    """
    opener: Callable[..., Any] = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rb") as file:
            magic, shape = file.read(4), struct.unpack(f">{dimensions}I", file.read(4 * dimensions))
            content = file.read(int(np.prod(shape)) + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile, struct.error) as error:
        raise DataError(f"{path}: is damaged or was cut off ({error})") from None
    if magic != bytes([0, 0, 8, dimensions]):
        raise DataError(f"{path}: is not an IDX file of bytes in {dimensions} dimensions (begins with {magic!r})")
    if len(content) != np.prod(shape):
        more = "more" if len(content) > np.prod(shape) else f"{len(content):,}"
        raise DataError(f"{path}: is damaged or was cut off ({np.prod(shape):,} bytes are announced, {more} are there)")
    return np.frombuffer(content, np.uint8).reshape(shape)


# ---- CIFAR


def _read_cifar(name: str, root: Path, work: Path) -> Arrays:
    collection = _cifar_collection(name, root, work)
    files = {PurePosixPath(file.name).name: file for file in collection.files()}
    (meta, key), words = CIFAR_NAMES[name]
    binary = words in files
    splits: dict[str, tuple[Images, Labels]] = {}
    for split, parts in CIFAR_PARTS[name].items():
        wanted = [f"{part}.bin" if binary else part for part in parts]
        missing = [part for part in wanted if part not in files]
        if missing:
            raise DataError(f"{collection.path}: misses {', '.join(missing)} of {name}")
        contents = [(part, collection.read(files[part])) for part in wanted]
        read = _cifar_binary if binary else _cifar_python
        blocks = [read(content, f"{collection.path}/{part}", name) for part, content in contents]
        splits[split] = (
            np.concatenate([images for images, _ in blocks]),
            np.concatenate([labels for _, labels in blocks]),
        )
    if binary:
        classes = collection.read(files[words]).decode().split()
    elif meta in files:
        classes = [str(each) for each in _unpickled(collection.read(files[meta]), f"{collection.path}/{meta}")[key]]
    else:
        raise DataError(f"{collection.path}: misses {meta} of {name}, which names its classes")
    problems = _check_cifar(name, collection)
    state = {file.name: [file.size, file.stamp] for file in files.values()}
    return _checked(Arrays(splits, classes, read_from={"files": state}, remarks=problems), root)


def _cifar_collection(name: str, root: Path, work: Path) -> Collection:
    if root.is_file():
        return opened(root, work)
    for path in (root / folder for folder in CIFAR_FOLDERS[name]):
        if path.is_dir():
            return Folder(path)
    for path in (root / archive for archive in CIFAR_ARCHIVES[name]):
        if path.is_file():
            return opened(path, work)
    return Folder(root)


def _check_cifar(name: str, collection: Collection) -> list[Problem]:
    if not isinstance(collection, Folder):
        return []  # an archive that was downloaded has been checked; another is as good as its own checksum
    known = _torchvision(name)
    checksums = {file: f"md5:{md5}" for file, md5 in [*known.train_list, *known.test_list]}
    return [problem for file in sorted(checksums) if (collection.path / file).is_file()
            for problem in _check_published(collection.path / file, checksums)]  # fmt: skip


def _cifar_python(content: bytes, place: str, name: str) -> tuple[Images, Labels]:
    held = _unpickled(content, place)
    labels = held.get("labels", held.get("fine_labels"))
    data = np.asarray(held.get("data"))
    if labels is None or data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] != CIFAR_BYTES:
        raise DataError(
            f"{place}: does not hold the images of {name}: `data` must be uint8 of shape (N, {CIFAR_BYTES})"
        )
    if len(labels) != len(data):
        raise DataError(f"{place}: has {len(labels)} labels for {len(data)} images")
    return _channels_last(data), np.asarray(labels, np.int64)


def _cifar_binary(content: bytes, place: str, name: str) -> tuple[Images, Labels]:
    """Records of one label (CIFAR100: a coarse and a fine one) and 3,072 pixels, the planes of R, G and B."""
    labels = 2 if name == "CIFAR100" else 1
    size = labels + CIFAR_BYTES
    if not content or len(content) % size:
        raise DataError(
            f"{place}: is damaged or was cut off: {len(content):,} bytes are no whole number of records of {size}"
        )
    records = np.frombuffer(content, np.uint8).reshape(-1, size)
    return _channels_last(records[:, labels:]), records[:, labels - 1].astype(np.int64)


def _channels_last(planes: Images) -> Images:
    return np.ascontiguousarray(planes.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))


class _OnlyArrays(pickle.Unpickler):
    """Unpickles arrays, and runs no code that a file brings along."""

    def find_class(self, module: str, name: str) -> Any:
        if module.startswith("numpy") and name in ("_reconstruct", "ndarray", "dtype", "scalar", "_frombuffer"):
            return super().find_class(module.replace("numpy.core", "numpy._core"), name)
        if (module, name) == ("_codecs", "encode"):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"holds {module}.{name}, which is no array")


def _unpickled(content: bytes, place: str) -> dict[str, Any]:
    try:
        held = _OnlyArrays(io.BytesIO(content), encoding="latin1").load()
    except Exception as error:  # a damaged pickle raises whatever its bytes happen to spell
        raise DataError(f"{place}: is damaged or no pickle of arrays ({error})") from None
    if not isinstance(held, dict):
        raise DataError(f"{place}: holds {type(held).__name__}, not a dict")
    return {key.decode() if isinstance(key, bytes) else key: value for key, value in held.items()}


def _checked(arrays: Arrays, root: Path) -> Arrays:
    for split, (images, labels) in arrays.splits.items():
        if not len(images):
            raise DataError(f"{root}: holds no {split} images")
        if labels.max() >= len(arrays.names) or labels.min() < 0:
            raise DataError(f"{root}: has the {split} label {labels.max()}, but there are {len(arrays.names)} classes")
    return arrays
