"""Datasets of torchvision, and image folders and archives, are staged without changing a pixel."""

import errno
import gzip
import hashlib
import os
import pickle

import numpy as np
import pytest
import torchvision
from imagesets import (
    pack,
    pixels,
    write_cifar10,
    write_cifar100,
    write_idx,
    write_image,
    write_mnist,
    write_svhn,
    write_tiny_imagenet,
    write_tree,
    write_usps,
)
from trainyard.config.datasets import ImageFolder, Torchvision
from trainyard.data import archives
from trainyard.data.staged import DataError, StagedImageMeta
from trainyard.data.staging import stage
from trainyard.utils.errors import UserError


def labelled(count, shape, classes, seed):
    """Images and labels, every class among them."""
    labels = np.arange(count) % classes
    return pixels(count, shape, seed), labels


def as_set(images, labels):
    return sorted(zip(map(bytes, images), labels.tolist(), strict=True))


def check(staged, train, val):
    for split, (images, labels) in (("train", train), ("val", val)):
        found = staged.split(split)
        assert found.images.dtype == np.uint8
        assert found.labels.dtype == np.int64
        assert as_set(found.images, found.labels) == as_set(images, labels)


def md5(path):
    return hashlib.md5(path.read_bytes()).hexdigest()


def publish(monkeypatch, name, folder):
    """Have torchvision take the files in `folder` for the published ones."""
    known = getattr(torchvision.datasets, name)
    if hasattr(known, "split_list"):
        parts = known.split_list.items()
        made = {"split_list": {split: [url, file, md5(folder / file)] for split, (url, file, _) in parts
                               if (folder / file).exists()}}  # fmt: skip
    else:
        lists = ("train_list", "test_list")
        made = {kind: [[file, md5(folder / file)] for file, _ in getattr(known, kind)] for kind in lists}
        made["meta"] = known.meta | {"md5": md5(folder / known.meta["filename"])}
    for name, value in made.items():
        monkeypatch.setattr(known, name, value)


def stage_copy(name, root, folder):
    return stage(Torchvision(source="torchvision", name=name, root=str(root)), folder)


@pytest.mark.parametrize("name", ["MNIST", "FashionMNIST", "KMNIST"])
@pytest.mark.parametrize(("place", "suffix"), [("{name}/raw", ""), ("{name}/raw", ".gz"), ("", ""), ("", ".gz")])
def test_mnist_is_read_from_torchvisions_layout_and_from_the_files_alone(tmp_path, name, place, suffix):
    train, val = labelled(40, (28, 28), 10, 0), labelled(20, (28, 28), 10, 1)
    write_mnist(tmp_path / "copy" / place.format(name=name), train, val, suffix=suffix)
    staged = stage_copy(name, tmp_path / "copy", tmp_path / "staged")
    check(staged, train, val)
    assert staged.split("train").images.shape == (40, 28, 28, 1)
    assert len(staged.meta.classes) == 10
    assert staged.split("train").labels.tolist() == train[1].tolist(), "in the order of the files"


def test_files_of_another_dataset_with_the_same_names_are_not_taken(tmp_path):
    write_mnist(tmp_path / "copy/FashionMNIST/raw", *(labelled(count, (28, 28), 10, count) for count in (20, 10)))
    with pytest.raises(DataError, match="train-images-idx3-ubyte of MNIST is missing"):
        stage_copy("MNIST", tmp_path / "copy", tmp_path / "staged")


def test_svhn_is_read_from_a_folder_of_its_name(tmp_path, monkeypatch):
    train, val = labelled(20, (32, 32, 3), 10, 0), labelled(10, (32, 32, 3), 10, 1)
    (tmp_path / "copy/SVHN").mkdir(parents=True)
    write_svhn(tmp_path / "copy/SVHN", train, val)
    publish(monkeypatch, "SVHN", tmp_path / "copy/SVHN")
    check(stage_copy("SVHN", tmp_path / "copy", tmp_path / "staged"), train, val)


CIFAR = [("CIFAR10", write_cifar10, 10, "cifar-10-batches-py"), ("CIFAR100", write_cifar100, 100, "cifar-100-python")]


@pytest.mark.parametrize("place", ["layout", "folder", "archive", "archive in a folder"])
@pytest.mark.parametrize(("name", "write", "classes", "base"), CIFAR)
def test_cifar_is_read_from_a_folder_and_from_its_archive(tmp_path, monkeypatch, name, write, classes, base, place):
    folder = tmp_path / "copy" / base
    train, val = labelled(2 * classes, (32, 32, 3), classes, 0), labelled(classes, (32, 32, 3), classes, 1)
    write(folder, train, val)
    publish(monkeypatch, name, folder)
    (tmp_path / "packed").mkdir()
    archive = pack(folder, tmp_path / "packed" / getattr(torchvision.datasets, name).filename)
    roots = {"layout": folder.parent, "folder": folder, "archive": archive, "archive in a folder": archive.parent}
    staged = stage_copy(name, roots[place], tmp_path / "staged")
    check(staged, train, val)
    assert staged.meta.classes == [f"thing{label}" for label in range(classes)]


@pytest.mark.parametrize(
    ("name", "write", "shape"), [("SVHN", write_svhn, (32, 32, 3)), ("USPS", write_usps, (16, 16))]
)
def test_svhn_and_usps_are_read_and_verified(tmp_path, monkeypatch, name, write, shape):
    train, val = labelled(20, shape, 10, 0), labelled(10, shape, 10, 1)
    (tmp_path / "copy").mkdir()
    write(tmp_path / "copy", train, val)
    publish(monkeypatch, name, tmp_path / "copy")
    staged = stage_copy(name, tmp_path / "copy", tmp_path / "staged")
    check(staged, train, val)
    assert staged.meta.classes == [str(digit) for digit in range(10)]
    first = min((tmp_path / "copy").iterdir())
    first.write_bytes(first.read_bytes() + b"?")
    with pytest.raises(DataError, match=f"{first}: its checksum differs from the published one"):
        stage_copy(name, tmp_path / "copy", tmp_path / "again")


def test_a_staged_copy_is_not_staged_again(tmp_path, monkeypatch):
    """Also one that was staged before torchvision read it: `meta.json` describes the source as it did then."""
    write_mnist(tmp_path / "mnist", labelled(40, (28, 28), 10, 0), labelled(20, (28, 28), 10, 1))
    source = stage_copy("MNIST", tmp_path / "mnist", tmp_path / "staged").meta.source
    name = "t10k-labels-idx1-ubyte"
    assert source["files"][name] == hashlib.sha256((tmp_path / "mnist" / name).read_bytes()).hexdigest()
    before = (tmp_path / "staged/meta.json").stat().st_mtime_ns
    stage_copy("MNIST", tmp_path / "mnist", tmp_path / "staged")
    assert (tmp_path / "staged/meta.json").stat().st_mtime_ns == before
    assert not (tmp_path / "staged/.staging").exists(), "temporary copies are removed"
    folder = tmp_path / "cifar-10-batches-py"
    write_cifar10(folder, *[labelled(20, (32, 32, 3), 10, 0)] * 2)
    publish(monkeypatch, "CIFAR10", folder)
    source = stage_copy("CIFAR10", folder, tmp_path / "cifar").meta.source
    assert source["files"]["test_batch"] == hashlib.sha256((folder / "test_batch").read_bytes()).hexdigest()


TINY = (labelled(24, (64, 64, 3), 3, 0), labelled(9, (64, 64, 3), 3, 1))


@pytest.mark.parametrize("kind", ["folder", "zip", "tar", "tar.gz", "tar.xz"])
def test_tiny_imagenet_is_read_as_published(tmp_path, kind):
    root = tmp_path / "tiny-imagenet-200"
    wnids = write_tiny_imagenet(root, *TINY, classes=3)
    if kind != "folder":
        root = pack(root, tmp_path / f"tiny.{kind}")
    staged = stage(ImageFolder(source="imagefolder", root=str(root)), tmp_path / "staged")
    check(staged, *TINY)
    assert staged.meta.classes == wnids
    assert staged.require(StagedImageMeta).titles == {wnid: f"thing {wnid}, also so called" for wnid in wnids}
    assert staged.require(StagedImageMeta).problems == {}
    assert staged.require(StagedImageMeta).counts == {"train": [8, 8, 8], "val": [3, 3, 3]}
    assert not (tmp_path / "staged/.staging").exists(), "temporary files are removed"


@pytest.mark.parametrize("val", ["val", "valid", "validation", "test"])
@pytest.mark.parametrize("kind", ["folder", "zip"])
def test_class_folders_are_read_with_their_validation_split(tmp_path, val, kind):
    train, other = labelled(12, (9, 7, 3), 3, 0), labelled(6, (9, 7, 3), 3, 1)
    root = write_tree(write_tree(tmp_path / "set", *train), *other, split=val)
    root = pack(root, tmp_path / "set.zip") if kind == "zip" else root
    staged = stage(ImageFolder(source="imagefolder", root=str(root)), tmp_path / "staged")
    check(staged, train, other)
    assert staged.meta.classes == ["class0", "class1", "class2"]


@pytest.mark.parametrize("split", ["train", ""])
def test_without_a_validation_split_a_random_one_is_stratified(tmp_path, split):
    images, labels = labelled(60, (5, 5, 3), 3, 0)
    root = write_tree(tmp_path / "set", images, labels, split=split)
    staged = stage(ImageFolder(source="imagefolder", root=str(root), val_fraction=0.25), tmp_path / "staged")
    assert staged.require(StagedImageMeta).counts == {"train": [15] * 3, "val": [5] * 3}
    parts = [staged.split(name) for name in ("train", "val")]
    both = [np.concatenate(each) for each in zip(*((part.images, part.labels) for part in parts), strict=True)]
    assert as_set(*both) == as_set(images, labels)


def test_mean_and_deviation_are_exact(tmp_path):
    train, val = labelled(40, (8, 6, 3), 2, 0), labelled(4, (8, 6, 3), 2, 1)
    root = write_tree(write_tree(tmp_path / "set", *train), *val, split="val")
    staged = stage(ImageFolder(source="imagefolder", root=str(root)), tmp_path / "staged")
    meta = staged.require(StagedImageMeta)
    pixels_of = train[0].reshape(-1, 3).astype(np.float64)
    assert meta.mean == pytest.approx(pixels_of.mean(axis=0), abs=1e-12)
    assert meta.std == pytest.approx(pixels_of.std(axis=0), abs=1e-12)


# ---- damaged files


def cut(path, to):
    path.write_bytes(path.read_bytes()[:to])


def swap_labels_and_images(folder):
    (folder / "train-labels-idx1-ubyte").write_bytes((folder / "train-images-idx3-ubyte").read_bytes())


def fewer_labels(folder):
    write_idx(folder / "train-labels-idx1-ubyte", np.zeros(39, np.uint8))


def strange_label(folder):
    write_idx(folder / "train-labels-idx1-ubyte", np.full(40, 11, np.uint8))


def cut_gzip(folder):
    path = folder / "train-images-idx3-ubyte"
    path.with_suffix(".gz").write_bytes(gzip.compress(path.read_bytes())[:5000])
    path.unlink()


TRAIN_FILES = "torchvision cannot read the train files of MNIST"
BAD_IDX = [
    (
        lambda folder: (folder / "t10k-labels-idx1-ubyte").unlink(),
        "t10k-labels-idx1-ubyte of MNIST is missing, .* t10k-labels-idx1-ubyte.gz",
    ),
    (lambda folder: cut(folder / "train-images-idx3-ubyte", 5000), rf"{TRAIN_FILES} \(.*4984.*\): replace them"),
    (lambda folder: cut(folder / "train-images-idx3-ubyte", 3), TRAIN_FILES),
    (swap_labels_and_images, TRAIN_FILES),
    (fewer_labels, "the train split of MNIST has 40 images and 39 labels"),
    (strange_label, "the train split of MNIST has labels from 11 to 11, but 10 classes"),
    (cut_gzip, "train-images-idx3-ubyte.gz: cannot be read .*: replace it"),
]


@pytest.mark.parametrize(("damage", "message"), BAD_IDX)
def test_a_damaged_idx_copy_is_reported_and_nothing_is_kept(tmp_path, damage, message):
    write_mnist(tmp_path / "copy", labelled(40, (28, 28), 10, 0), labelled(20, (28, 28), 10, 1))
    damage(tmp_path / "copy")
    with pytest.raises(DataError, match=message) as caught:
        stage_copy("MNIST", tmp_path / "copy", tmp_path / "staged")
    assert "\n" not in str(caught.value)
    assert str(tmp_path / "copy") in str(caught.value)
    assert not list((tmp_path / "staged").glob("*.npy"))


class Evil:
    """Runs code when it is unpickled."""

    def __reduce__(self):
        return (print, ("this must not be run",))


def evil_pickle(folder):
    (folder / "data_batch_2").write_bytes(pickle.dumps({"data": Evil()}, protocol=2))


def evil_meta(folder):
    (folder / "batches.meta").write_bytes(pickle.dumps(Evil(), protocol=2))


BAD_CIFAR = [
    (
        lambda folder: (folder / "data_batch_3").unlink(),
        "data_batch_3 of CIFAR10 is missing, .* cifar-10-python.tar.gz",
    ),
    (lambda folder: (folder / "batches.meta").unlink(), "batches.meta of CIFAR10 is missing"),
    (lambda folder: cut(folder / "data_batch_1", 4000), "data_batch_1: its checksum differs from the published one"),
    (evil_pickle, "data_batch_2: its checksum differs from the published one"),
    (evil_meta, "batches.meta: its checksum differs from the published one"),
]


@pytest.mark.parametrize(("damage", "message"), BAD_CIFAR)
def test_a_damaged_cifar_copy_is_reported_and_not_unpickled(tmp_path, monkeypatch, capsys, damage, message):
    write_cifar10(tmp_path / "copy", labelled(20, (32, 32, 3), 10, 0), labelled(10, (32, 32, 3), 10, 1))
    publish(monkeypatch, "CIFAR10", tmp_path / "copy")
    damage(tmp_path / "copy")
    with pytest.raises(DataError, match=message):
        stage_copy("CIFAR10", tmp_path / "copy", tmp_path / "staged")
    assert "must not be run" not in capsys.readouterr().out


def test_a_source_that_cannot_be_read_is_not_blamed_on_the_copy(tmp_path, monkeypatch):
    def refuse(path, *_, **__):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    write_mnist(tmp_path / "copy", *(labelled(count, (28, 28), 10, count) for count in (20, 10)))
    monkeypatch.setattr(archives, "open", refuse, raising=False)  # root may read everything
    with pytest.raises(DataError, match=f"{tmp_path}/copy/.*: cannot be read .*Permission denied"):
        stage_copy("MNIST", tmp_path / "copy", tmp_path / "staged")


def test_a_missing_root_is_reported(tmp_path):
    with pytest.raises(DataError, match="/nowhere: no such file or folder; set `root` to a copy of CIFAR10"):
        stage_copy("CIFAR10", "/nowhere", tmp_path / "staged")


BLACK = np.zeros((4, 4, 3), np.uint8)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda root: None, "cannot be read .*expected a folder, a zip or a tar"),
        (lambda root: root.mkdir(), "no image is in a class folder; expected train/<class>"),
        (
            lambda root: [write_image(root / name / "x.png", BLACK) for name in ("bus", "train")],
            "if `train` is a class, move all class folders into a folder `train`$",
        ),
        (
            lambda root: [write_image(root / name / "x.png", BLACK) for name in ("bus", "tram")],
            "no image can be held out for validation, as each class has one only",
        ),
        (lambda root: root.write_text("no archive at all"), "is not a folder, a zip or a tar"),
        (lambda root: root.write_bytes(b"PK\3\4 and then nonsense"), "is not a readable zip"),
        (lambda root: root.write_bytes(gzip.compress(bytes(range(256)) * 99)[:100]), "is not a folder, a zip or a tar"),
        (lambda root: root.write_bytes(gzip.compress(b"no tar " * 999)), "is not a folder, a zip or a tar"),
    ],
)
def test_a_root_that_is_no_image_folder_is_reported(tmp_path, make, message):
    make(tmp_path / "root")
    with pytest.raises(UserError, match=message):
        stage(ImageFolder(source="imagefolder", root=str(tmp_path / "root")), tmp_path / "staged")
