"""Every format that people have images in is read back equal, pixel for pixel."""

import gzip
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
    write_mnist,
    write_tiny_imagenet,
    write_tree,
)
from trainyard.config.datasets import ImageFolder, Torchvision
from trainyard.data.staged import DataError
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


@pytest.mark.parametrize("name", ["MNIST", "FashionMNIST", "KMNIST"])
@pytest.mark.parametrize(("place", "suffix"), [("{name}/raw", ""), ("", ".gz")])
def test_idx_is_read_as_torchvision_lays_it_out_and_by_itself(tmp_path, name, place, suffix):
    train, val = labelled(40, (28, 28), 10, 0), labelled(20, (28, 28), 10, 1)
    write_mnist(tmp_path / "copy" / place.format(name=name), train, val, suffix=suffix)
    staged = stage(Torchvision(source="torchvision", name=name, root=str(tmp_path / "copy")), tmp_path / "staged")
    check(staged, train, val)
    assert staged.split("train").images.shape == (40, 28, 28, 1)
    assert len(staged.meta["classes"]) == 10
    assert staged.split("train").labels.tolist() == train[1].tolist(), "in the order of the files"
    if suffix:  # torchvision knows the checksums of these
        assert staged.meta["problems"] == {"differs from the published file": 4}


@pytest.mark.parametrize("binary", [False, True], ids=["pickles", "binary"])
@pytest.mark.parametrize("packed", [False, True], ids=["folder", "tar.gz"])
@pytest.mark.parametrize(
    ("name", "write", "classes"), [("CIFAR10", write_cifar10, 10), ("CIFAR100", write_cifar100, 100)]
)
def test_cifar_is_read_in_both_versions(tmp_path, name, write, classes, binary, packed):
    kind = {"CIFAR10": "batches-bin" if binary else "batches-py", "CIFAR100": ""}[name]
    folder = tmp_path / "copy" / (f"cifar-10-{kind}" if kind else f"cifar-100-{'binary' if binary else 'python'}")
    train, val = labelled(2 * classes, (32, 32, 3), classes, 0), labelled(classes, (32, 32, 3), classes, 1)
    write(folder, train, val, binary=binary)
    root = pack(folder, tmp_path / "cifar.tar.gz") if packed else tmp_path / "copy"
    staged = stage(Torchvision(source="torchvision", name=name, root=str(root)), tmp_path / "staged")
    check(staged, train, val)
    assert staged.meta["classes"] == [f"thing{label}" for label in range(classes)]


def test_these_sets_are_in_the_true_formats(tmp_path, monkeypatch):
    """torchvision reads them, too."""
    train, val = labelled(40, (28, 28), 10, 0), labelled(20, (28, 28), 10, 1)
    write_mnist(tmp_path / "MNIST/raw", train, val)
    held = torchvision.datasets.MNIST(tmp_path, train=True)
    assert np.array_equal(held.data.numpy(), train[0])
    assert np.array_equal(held.targets.numpy(), train[1])
    colours = labelled(20, (32, 32, 3), 10, 0)
    write_cifar10(tmp_path / "cifar-10-batches-py", colours, colours)
    monkeypatch.setattr(torchvision.datasets.cifar, "check_integrity", lambda *_: True)
    held = torchvision.datasets.CIFAR10(tmp_path, train=True)
    assert np.array_equal(held.data, colours[0])
    assert held.targets == colours[1].tolist()


TINY = (labelled(24, (64, 64, 3), 3, 0), labelled(9, (64, 64, 3), 3, 1))


@pytest.mark.parametrize("kind", ["folder", "zip", "tar", "tar.gz", "tar.bz2", "tar.xz"])
def test_tiny_imagenet_is_read_as_published(tmp_path, kind):
    root = tmp_path / "tiny-imagenet-200"
    wnids = write_tiny_imagenet(root, *TINY, classes=3)
    if kind != "folder":
        root = pack(root, tmp_path / f"tiny.{kind}")
    staged = stage(ImageFolder(source="imagefolder", root=str(root)), tmp_path / "staged")
    check(staged, *TINY)
    assert staged.meta["classes"] == wnids
    assert staged.meta["titles"] == {wnid: f"thing {wnid}, also so called" for wnid in wnids}
    assert staged.meta["problems"] == {}
    assert staged.meta["counts"] == {"train": [8, 8, 8], "val": [3, 3, 3]}
    assert not (tmp_path / "staged/.staging").exists(), "what was unpacked is gone"


@pytest.mark.parametrize("val", ["val", "valid", "validation", "test"])
@pytest.mark.parametrize("kind", ["folder", "zip"])
def test_folders_of_classes_are_read_with_the_part_to_validate_with(tmp_path, val, kind):
    train, other = labelled(12, (9, 7, 3), 3, 0), labelled(6, (9, 7, 3), 3, 1)
    root = write_tree(write_tree(tmp_path / "set", *train), *other, split=val)
    root = pack(root, tmp_path / "set.zip") if kind == "zip" else root
    staged = stage(ImageFolder(source="imagefolder", root=str(root)), tmp_path / "staged")
    check(staged, train, other)
    assert staged.meta["classes"] == ["class0", "class1", "class2"]


@pytest.mark.parametrize("split", ["train", ""])
def test_without_a_part_to_validate_with_one_is_drawn_stratified(tmp_path, split):
    images, labels = labelled(60, (5, 5, 3), 3, 0)
    root = write_tree(tmp_path / "set", images, labels, split=split)
    staged = stage(ImageFolder(source="imagefolder", root=str(root), val_fraction=0.25), tmp_path / "staged")
    assert staged.meta["counts"] == {"train": [15] * 3, "val": [5] * 3}
    parts = [staged.split(name) for name in ("train", "val")]
    both = [np.concatenate(each) for each in zip(*((part.images, part.labels) for part in parts), strict=True)]
    assert as_set(*both) == as_set(images, labels)


def test_mean_and_deviation_are_exact(tmp_path):
    train, val = labelled(40, (8, 6, 3), 2, 0), labelled(4, (8, 6, 3), 2, 1)
    root = write_tree(write_tree(tmp_path / "set", *train), *val, split="val")
    meta = stage(ImageFolder(source="imagefolder", root=str(root)), tmp_path / "staged").meta
    pixels_of = train[0].reshape(-1, 3).astype(np.float64)
    assert meta["mean"] == pytest.approx(pixels_of.mean(axis=0), abs=1e-12)
    assert meta["std"] == pytest.approx(pixels_of.std(axis=0), abs=1e-12)


# ---- what is damaged, or something else


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


BAD_IDX = [
    (lambda folder: (folder / "t10k-labels-idx1-ubyte").unlink(), "there is no t10k-labels-idx1-ubyte or"),
    (lambda folder: cut(folder / "train-images-idx3-ubyte", 5000), "31,360 bytes are announced, 4,984 are there"),
    (lambda folder: cut(folder / "train-images-idx3-ubyte", 3), "is damaged or was cut off"),
    (swap_labels_and_images, "is not an IDX file of bytes in 1 dimensions"),
    (fewer_labels, "has 39 labels for 40 images"),
    (strange_label, "has the train label 11, but there are 10 classes"),
    (cut_gzip, "is damaged or was cut off"),
]


@pytest.mark.parametrize(("damage", "message"), BAD_IDX)
def test_a_damaged_idx_copy_is_explained_and_nothing_is_kept(tmp_path, damage, message):
    write_mnist(tmp_path / "copy", labelled(40, (28, 28), 10, 0), labelled(20, (28, 28), 10, 1))
    damage(tmp_path / "copy")
    with pytest.raises(DataError, match=message):
        stage(Torchvision(source="torchvision", name="MNIST", root=str(tmp_path / "copy")), tmp_path / "staged")
    assert not list((tmp_path / "staged").glob("*.npy"))


class Evil:
    """What runs code when it is unpickled."""

    def __reduce__(self):
        return (print, ("this must not be run",))


def evil_pickle(folder):
    (folder / "data_batch_2").write_bytes(pickle.dumps({"data": Evil()}, protocol=2))


BAD_CIFAR = [
    (False, lambda folder: (folder / "data_batch_3").unlink(), "misses data_batch_3 of CIFAR10"),
    (False, lambda folder: (folder / "batches.meta").unlink(), "misses batches.meta of CIFAR10"),
    (False, lambda folder: cut(folder / "data_batch_1", 4000), "data_batch_1: is damaged or no pickle"),
    (False, evil_pickle, r"data_batch_2: is damaged or no pickle of arrays \(holds __builtin__.print"),
    (True, lambda folder: cut(folder / "test_batch.bin", 4000), "4,000 bytes are no whole number of records of 3073"),
]


@pytest.mark.parametrize(("binary", "damage", "message"), BAD_CIFAR)
def test_a_damaged_cifar_copy_is_explained(tmp_path, capsys, binary, damage, message):
    write_cifar10(tmp_path / "copy", labelled(20, (32, 32, 3), 10, 0), labelled(10, (32, 32, 3), 10, 1), binary=binary)
    damage(tmp_path / "copy")
    with pytest.raises(DataError, match=message):
        stage(Torchvision(source="torchvision", name="CIFAR10", root=str(tmp_path / "copy")), tmp_path / "staged")
    assert "must not be run" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda root: None, "cannot be read .*give a folder, a zip or a tar"),
        (lambda root: root.mkdir(), "holds no image in a folder of its class; expected train/<class>"),
        (lambda root: root.write_text("no archive at all"), "is neither a folder nor a zip nor a tar"),
        (lambda root: root.write_bytes(b"PK\3\4 and then nonsense"), "cannot be read as a zip"),
        (lambda root: root.write_bytes(gzip.compress(bytes(range(256)) * 99)[:300]), "is damaged or was cut off"),
        (lambda root: root.write_bytes(gzip.compress(b"no tar " * 999)), "cannot be read as a tar"),
    ],
)
def test_a_root_that_is_something_else_is_explained(tmp_path, make, message):
    make(tmp_path / "root")
    with pytest.raises(UserError, match=message):
        stage(ImageFolder(source="imagefolder", root=str(tmp_path / "root")), tmp_path / "staged")
