"""Staging in shards: finished shards are kept, memory is bounded, and an interruption does not change the bytes."""

import contextlib
import logging
import os
import signal
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from hypothesis.extra.numpy import arrays
from imagesets import pixels, write_image, write_tree
from trainyard.config.datasets import ImageFolder, Synthetic
from trainyard.data import shards as shards_module
from trainyard.data import staging
from trainyard.data.mean_std import channel_sums
from trainyard.data.shards import divide_into_shards, stage_shards
from trainyard.data.sources import Block, BlockTask, DataSource, stratified_split
from trainyard.data.staged import DataError, StagedImageMeta
from trainyard.data.staging import stage
from trainyard.utils.files import digest_of, file_digest


def digests(folder):
    return {path.name: file_digest(path) for path in sorted(folder.glob("[!.]*"))}


@pytest.fixture
def shards_of_four(monkeypatch):
    monkeypatch.setattr(shards_module, "SHARD_IMAGES", 4)


# ---- what changes


def test_a_repaired_image_has_only_its_shard_made_again(tmp_path, shards_of_four, caplog):
    root = write_tree(tmp_path / "set", pixels(12, (8, 8, 3)), np.arange(12) % 3)
    root = write_tree(root, pixels(4, (8, 8, 3), 1), np.arange(4) % 3, split="val")
    dataset, folder = ImageFolder(source="imagefolder", root=str(root)), tmp_path / "staged"
    good = (root / "train/class1/00001.png").read_bytes()
    (root / "train/class1/00001.png").write_bytes(b"")
    with pytest.raises(DataError, match="1 x empty file"):
        stage(dataset, folder)
    (root / "train/class1/00001.png").write_bytes(good)
    with caplog.at_level(logging.INFO):
        repaired = digests(stage(dataset, folder).folder)
    assert "staged: 3 of 4 shards are already staged" in caplog.text
    names = [name for name in repaired if name.endswith(".npy")]
    fresh = digests(stage(dataset, tmp_path / "fresh").folder)
    assert {name: repaired[name] for name in names} == {name: fresh[name] for name in names}


def test_a_dataset_with_a_new_image_is_staged_again(tmp_path):
    root = write_tree(tmp_path / "set", pixels(12, (8, 8, 3)), np.arange(12) % 3)
    dataset, folder = ImageFolder(source="imagefolder", root=str(root)), tmp_path / "staged"
    before = stage(dataset, folder).digest
    assert stage(dataset, folder).digest == before
    write_image(root / "train/class0/new.png", pixels(1, (8, 8, 3), 2)[0])
    assert stage(dataset, folder).digest != before
    assert sum(map(sum, stage(dataset, folder).require(StagedImageMeta).counts.values())) == 13


def test_a_source_that_changes_meanwhile_is_an_error_and_only_what_changed_is_made_again(
    tmp_path, shards_of_four, monkeypatch, caplog
):
    root = write_tree(tmp_path / "set", pixels(12, (8, 8, 3)), np.arange(12) % 3)
    root = write_tree(root, pixels(4, (8, 8, 3), 1), np.arange(4) % 3, split="val")
    dataset, folder = ImageFolder(source="imagefolder", root=str(root)), tmp_path / "staged"

    def change_meanwhile(*args, **options):
        made = stage_shards(*args, **options)
        write_image(root / "train/class1/00001.png", pixels(1, (8, 8, 3), 2)[0])
        return made

    with monkeypatch.context() as patch:
        patch.setattr(staging, "stage_shards", change_meanwhile)
        with pytest.raises(DataError, match=r"^staged: files of its source changed while they were staged: run this"):
            stage(dataset, folder)
    assert not list(folder.glob("[!.]*")), "nothing is taken for complete"
    with caplog.at_level(logging.INFO):
        again = digests(stage(dataset, folder).folder)
    assert "staged: 3 of 4 shards are already staged" in caplog.text
    fresh = digests(stage(dataset, tmp_path / "fresh").folder)
    assert {**again, "meta.json": ""} == {**fresh, "meta.json": ""}


def test_disk_space_is_checked_before_staging(tmp_path):
    with pytest.raises(DataError, match=r"staging needs .* GiB of disk space, .* GiB are free"):
        stage(Synthetic(source="synthetic", images=2**31, height=512, width=512), tmp_path / "staged")


# ---- a process that dies


class Deadly:
    """A task that kills its process, as the kernel does when memory is short."""

    def __init__(self, parent):
        self.parent = parent

    def __call__(self):
        if os.getpid() != self.parent:
            os.kill(os.getpid(), signal.SIGKILL)
        return Block(np.zeros((1, 8, 8, 3), np.uint8), np.zeros(1, np.int64))


class Numbers(DataSource):
    """Images in memory; counts how often blocks are made, and fails on request."""

    def __init__(self, train, val, *, fails=(), version=0, deadly=False):
        self.splits, self.fails, self.version, self.deadly = {"train": train, "val": val}, set(fails), version, deadly
        self.made = []
        self.is_in_memory = not deadly

    @property
    def shape(self):
        return self.splits["train"].shape[1:]

    @property
    def sizes(self):
        return {name: len(rows) for name, rows in self.splits.items()}

    def block_task(self, split, start, stop):
        key = digest_of([split, start, stop, self.version if (split, start) == ("train", 0) else 0])
        if self.deadly:
            return BlockTask(key, Deadly(os.getpid()))
        return BlockTask(key, lambda: self._make(split, start, stop))

    def _make(self, split, start, stop):
        if (split, start) in self.fails:
            raise DataError("on request")
        self.made.append((split, start))
        images = self.splits[split][start:stop]
        images = images ^ np.uint8(self.version) if (split, start) == ("train", 0) else images
        return Block(images, np.arange(start, stop))

    def classes(self, highest_label):
        return list(map(str, range(highest_label + 1)))


def test_a_process_that_dies_is_reported_with_its_shards(tmp_path, monkeypatch):
    monkeypatch.setattr(shards_module, "SHARD_BYTES", 200)
    source = Numbers(np.zeros((6, 8, 8, 3), np.uint8), np.zeros((1, 8, 8, 3), np.uint8), deadly=True)
    with pytest.raises(
        DataError, match=r"died, perhaps out of memory, at one of: .*train 0 to 1.*finished shards are kept"
    ):
        stage_shards(source, tmp_path, cpus=2, name="numbers")


# ---- properties

SHAPES = some.tuples(some.integers(1, 3), some.integers(1, 3), some.sampled_from([1, 3]))


@settings(deadline=None, max_examples=60)
@given(data=some.data())
def test_interruptions_do_not_change_the_files(data):
    shape = data.draw(SHAPES)
    sets = [data.draw(arrays(np.uint8, (data.draw(some.integers(1, 9)), *shape))) for _ in range(2)]
    shards = [(shard.split, shard.start) for shard in cut(sets, shape)]
    with TemporaryDirectory() as one, TemporaryDirectory() as other:
        straight = run(Numbers(*sets), one)
        done = set()
        for fails in data.draw(some.lists(some.sets(some.sampled_from(shards)), max_size=3)):
            source = Numbers(*sets, fails=fails)
            with contextlib.suppress(DataError):
                run(source, other)
            assert not done & set(source.made), "finished shards are not made again"
            done |= set(source.made)
        source = Numbers(*sets)
        assert run(source, other) == straight
        assert done.isdisjoint(source.made)
        assert done | set(source.made) == set(shards)


def cut(sets, shape):
    return with_small_shards(
        lambda: divide_into_shards(dict(zip(("train", "val"), map(len, sets), strict=True)), shape)
    )


def with_small_shards(work):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shards_module, "SHARD_IMAGES", 2)
        return work()


def run(source, folder):
    """The content of the files, and the sums of the pixels."""
    records = with_small_shards(lambda: stage_shards(source, Path(folder), cpus=1, name="numbers"))
    return [
        sum(each.count for each in records),
        np.sum([[each.sums, each.squares] for each in records if each.shard.split == "train"], axis=0).tolist(),
        *(path.read_bytes() for path in sorted(Path(folder).glob("*.npy"))),
    ]


def test_a_source_that_changes_and_changes_back_is_staged_each_time(tmp_path):
    """The last record of a shard counts, also if an earlier one has the same key."""
    sets = pixels(5, (2, 2, 3)), pixels(3, (2, 2, 3), 1)
    first = run(Numbers(*sets), tmp_path)
    assert run(Numbers(*sets, version=7), tmp_path) != first
    with contextlib.suppress(DataError):  # changed back, and interrupted before its first shard
        run(Numbers(*sets, fails=[("train", 0)]), tmp_path)
    assert run(Numbers(*sets), tmp_path) == first


def test_an_array_that_is_lost_is_allocated_again(tmp_path):
    sets = pixels(5, (2, 2, 3)), pixels(3, (2, 2, 3), 1)
    first = run(Numbers(*sets), tmp_path)
    (tmp_path / "train-labels.npy").write_bytes(b"")
    again = Numbers(*sets)
    assert run(again, tmp_path) == first
    assert len(again.made) == len(cut(sets, (2, 2, 3)))


SOME_IMAGES = arrays(np.uint8, some.tuples(*[some.integers(1, most) for most in (70, 4, 4)], some.just(3)))


@settings(deadline=None)
@given(images=SOME_IMAGES, cuts=some.sets(some.integers(1, 69)))
def test_sums_are_exact_for_any_shards(images, cuts):
    sums, squares = channel_sums(images)
    values = images.reshape(-1, 3).astype(object)
    assert sums == values.sum(axis=0).tolist()
    assert squares == (values**2).sum(axis=0).tolist()
    parts = [channel_sums(part) for part in np.split(images, sorted(cuts)) if len(part)]
    assert np.sum([part[1] for part in parts], axis=0).tolist() == squares


def test_sums_of_the_largest_shard_do_not_overflow():
    images = np.full((1, 4096, 4096, 1), 255, np.uint8)
    assert channel_sums(images) == ([255 * images.size], [255 * 255 * images.size])


@given(
    sizes=some.tuples(some.integers(0, 10**5), some.integers(0, 10**5)),
    shape=some.tuples(some.integers(1, 5000), some.integers(1, 5000), some.sampled_from([1, 3])),
)
def test_shards_cover_every_row_once_and_are_bounded(sizes, shape):
    shards = (
        divide_into_shards(dict(zip(("train", "val"), sizes, strict=True)), shape) if np.prod(shape) < 10**6 else []
    )
    for split, size in zip(("train", "val"), sizes, strict=True):
        mine = [shard for shard in shards if shard.split == split]
        if shards:
            assert [shard.start for shard in mine] == [0, *(shard.stop for shard in mine)][:-1] or not mine
            assert sum(map(len, mine)) == size
    for shard in shards:
        assert 1 <= len(shard) <= shards_module.SHARD_IMAGES
        assert len(shard) == 1 or len(shard) * np.prod(shape) <= shards_module.SHARD_BYTES


LABELS = some.lists(some.integers(-3, 6), min_size=1, max_size=200).map(np.array)


@given(labels=LABELS, fraction=some.floats(0.01, 0.99))
def test_a_split_is_stratified_complete_and_deterministic(labels, fraction):
    train, val = stratified_split(labels, fraction)
    assert sorted([*train, *val]) == list(range(len(labels)))
    assert list(train) == sorted(train)
    assert list(val) == sorted(val)
    for label in np.unique(labels):
        count, held = (labels == label).sum(), (labels[val] == label).sum()
        assert np.floor(count * fraction + 1e-9) - 1 <= held <= np.ceil(count * fraction)
        assert held < count, "at least one image of each class is in the training split"
        assert held >= min(np.floor(count * fraction + 1e-9), count - 1)
    possible = sum(
        min(np.ceil(count * fraction - 1e-9), count - 1) for count in np.unique(labels, return_counts=True)[1]
    )
    assert len(val) == min(np.ceil(len(labels) * fraction - 1e-9), possible)
    again = stratified_split(labels, fraction)
    assert np.array_equal(train, again[0])
