"""Datasets for tests, written in their published formats from given pixels."""

import bz2
import gzip
import io
import pickle
import struct
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import scipy.io
from PIL import Image


def pixels(count, shape, seed=0):
    """Random images, uint8 (N, ...)."""
    return np.random.default_rng(seed).integers(0, 256, (count, *shape), np.uint8)


def write_image(path, image, **options):
    """A file of any format; PNG is lossless."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(image).save(path, **options)


def write_tree(root, images, labels, *, split="train", suffix="png"):
    """ImageFolder's layout."""
    for index, (image, label) in enumerate(zip(images, labels, strict=True)):
        write_image(root / split / f"class{label}" / f"{index:05d}.{suffix}", image)
    return root


def write_tiny_imagenet(root, train, val, classes):
    """TinyImageNet as published, but lossless; `train` and `val` are (images, labels)."""
    wnids = [f"n{1000 + 7 * label:08d}" for label in range(classes)]
    root.mkdir(parents=True)
    (root / "wnids.txt").write_text("".join(f"{wnid}\n" for wnid in reversed(wnids)))
    (root / "words.txt").write_text("".join(f"{wnid}\tthing {wnid}, also so called\n" for wnid in wnids))
    for wnid in wnids:
        (root / "train" / wnid / "images").mkdir(parents=True)
        (root / "train" / wnid / f"{wnid}_boxes.txt").write_text(f"{wnid}_0.JPEG\t0\t0\t62\t62\n")
    for index, (image, label) in enumerate(zip(*train, strict=True)):
        write_image(root / "train" / wnids[label] / "images" / f"{wnids[label]}_{index}.JPEG", image, format="PNG")
    lines = []
    for index, (image, label) in enumerate(zip(*val, strict=True)):
        write_image(root / "val/images" / f"val_{index:04d}.JPEG", image, format="PNG")
        lines.append(f"val_{index:04d}.JPEG\t{wnids[label]}\t0\t0\t62\t62\n")
    (root / "val/val_annotations.txt").write_text("".join(lines))
    write_image(root / "test/images/test_0.JPEG", train[0][0], format="PNG")
    return wnids


def write_idx(path, array):
    """An IDX file, the format of MNIST; gzipped if its name ends in .gz."""
    content = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)


def write_mnist(folder, train, val, *, suffix=""):
    """The four files of MNIST, FashionMNIST or KMNIST."""
    for stem, (images, labels) in (("train", train), ("t10k", val)):
        write_idx(folder / f"{stem}-images-idx3-ubyte{suffix}", images)
        write_idx(folder / f"{stem}-labels-idx1-ubyte{suffix}", labels.astype(np.uint8))


def planes(images):
    """CIFAR's order: one row per image, with the planes of R, G and B."""
    return np.ascontiguousarray(images.transpose(0, 3, 1, 2)).reshape(len(images), -1)


def write_cifar10(folder, train, val):
    """Five batches and a test batch, as pickles."""
    folder.mkdir(parents=True)
    parts = [(f"data_batch_{number + 1}", part) for number, part in enumerate(zip(*map(_fifths, train), strict=True))]
    for name, (images, labels) in [*parts, ("test_batch", val)]:
        _dump(
            folder / name,
            {
                "batch_label": name,
                "labels": labels.tolist(),
                "data": planes(images),
                "filenames": ["x.png"] * len(labels),
            },
        )
    _dump(folder / "batches.meta", {"label_names": [f"thing{label}" for label in range(10)], "num_vis": 3072})


def write_cifar100(folder, train, val):
    """One pickle per split, each image with a coarse and a fine label."""
    folder.mkdir(parents=True)
    for name, (images, labels) in (("train", train), ("test", val)):
        coarse = (labels // 5).tolist()
        _dump(folder / name, {"fine_labels": labels.tolist(), "coarse_labels": coarse, "data": planes(images)})
    names = [f"thing{label}" for label in range(100)]
    _dump(folder / "meta", {"fine_label_names": names, "coarse_label_names": names[:20]})


def write_svhn(folder, train, val):
    """Matlab files; the label of the digit 0 is 10."""
    for name, (images, labels) in (("train", train), ("test", val)):
        content = {"X": images.transpose(1, 2, 3, 0), "y": np.where(labels == 0, 10, labels)[:, None].astype(np.uint8)}
        scipy.io.savemat(folder / f"{name}_32x32.mat", content)


def write_usps(folder, train, val):
    """LIBSVM's text format; pixels from -1 to 1, labels from 1 to 10."""
    for name, (images, labels) in (("usps.bz2", train), ("usps.t.bz2", val)):
        rows = [
            " ".join(f"{index}:{(value + 0.5) / 127.5 - 1:.6f}" for index, value in enumerate(image.flat, start=1))
            for image in images
        ]
        lines = [f"{label + 1} {row}\n" for label, row in zip(labels, rows, strict=True)]
        (folder / name).write_bytes(bz2.compress("".join(lines).encode()))


def _fifths(array):
    return np.array_split(array, 5)


class _Python2Pickler(pickle._Pickler):
    """Writes strings and bytes as Python 2 did, which had one type for both."""

    dispatch = dict(pickle._Pickler.dispatch)

    def _save_string(self, value):
        content = value.encode("latin1") if isinstance(value, str) else value
        self.write(pickle.BINSTRING + struct.pack("<i", len(content)) + content)
        self.memoize(value)

    dispatch[str] = dispatch[bytes] = _save_string


def _dump(path, value):
    content = io.BytesIO()
    _Python2Pickler(content, protocol=2).dump(value)
    path.write_bytes(content.getvalue().replace(b"numpy._core", b"numpy.core"))


def pack(folder, target):
    """Pack a folder, under its own name, to an archive of the type in the suffix of `target`."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    if target.suffix == ".zip":
        with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in paths:
                archive.write(path, Path(folder.name, path.relative_to(folder)))
    else:
        mode = {".tar": "w", ".gz": "w:gz", ".xz": "w:xz"}[target.suffix]
        with tarfile.open(target, mode) as archive:
            archive.add(folder, folder.name)
    return target
