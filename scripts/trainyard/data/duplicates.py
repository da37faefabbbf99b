"""Finding duplicate images, within a split and between training and validation."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainyard.data.problems import Problem
from trainyard.data.staged import SPLITS


class _Position(NamedTuple):
    split: str
    row: int


def find_duplicates(work: Path, name_of: Callable[[str, int], str]) -> list[Problem]:
    """Images whose file equals the file of an earlier one, from the staged arrays in the folder `work`.

    Files with the same hash (length and CRC-32) are candidates; their pixels are compared.
    """
    hashes = {name: np.load(work / f"{name}-hashes.npy") for name in SPLITS}
    images = {name: np.load(work / f"{name}-images.npy", mmap_mode="r") for name in SPLITS}
    labels = {name: np.load(work / f"{name}-labels.npy") for name in SPLITS}
    problems = []
    for positions in _equal_hashes(hashes):
        first = positions[0]
        for position in positions[1:]:
            if np.array_equal(images[position.split][position.row], images[first.split][first.row]):
                is_same_class = labels[position.split][position.row] == labels[first.split][first.row]
                kind = "duplicate" if position.split == first.split else "duplicate of a training image"
                kind += "" if is_same_class else " in another class"
                detail = f"same as {name_of(*first)}"
                problems.append(Problem(name_of(*position), position.split, kind, detail, "keep"))
    return problems


def _equal_hashes(hashes: dict[str, NDArray[np.uint64]]) -> Iterator[list[_Position]]:
    """Groups of images with equal hashes, in order; a hash of 0 means that it was not computed."""
    every = np.concatenate([hashes[name] for name in SPLITS])
    order = np.argsort(every, kind="stable")
    begins = np.flatnonzero(np.diff(every[order], prepend=np.uint64(0)))  # from the first one that is not 0
    ends = np.append(begins[1:], len(order))
    is_group = ends - begins > 1
    train_size = len(hashes["train"])
    for begin, end in zip(begins[is_group], ends[is_group], strict=True):
        group = order[begin:end].tolist()
        yield [_Position("train", row) if row < train_size else _Position("val", row - train_size) for row in group]
