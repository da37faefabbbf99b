"""Images that are in a dataset more than once: worth knowing, above all if one is trained on and validated with."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainyard.data.problems import Problem
from trainyard.data.staged import SPLITS


class _Place(NamedTuple):
    split: str
    row: int


def duplicates(work: Path, name_of: Callable[[str, int], str]) -> list[Problem]:
    """Images whose file is equal to that of an earlier one, from the staged rows in `work`.

    Equal length and CRC-32 make a candidate; equal pixels decide.
    """
    prints = {name: np.load(work / f"{name}-prints.npy") for name in SPLITS}
    rows = {name: np.load(work / f"{name}-images.npy", mmap_mode="r") for name in SPLITS}
    labels = {name: np.load(work / f"{name}-labels.npy") for name in SPLITS}
    found = []
    for places in _equal(prints):
        first = places[0]
        for place in places[1:]:
            if np.array_equal(rows[place.split][place.row], rows[first.split][first.row]):
                same_class = labels[place.split][place.row] == labels[first.split][first.row]
                kind = "duplicate" if place.split == first.split else "duplicate of a training image"
                kind += "" if same_class else " in another class"
                detail = f"same as {name_of(*first)}"
                found.append(Problem(name_of(*place), place.split, kind, detail, "keep"))
    return found


def _equal(prints: dict[str, NDArray[np.uint64]]) -> Iterator[list[_Place]]:
    """Places with equal prints, in order; bad images have none."""
    every = np.concatenate([prints[name] for name in SPLITS])
    order = np.argsort(every, kind="stable")
    begins = np.flatnonzero(np.diff(every[order], prepend=np.uint64(0)))  # from the first that is not 0
    ends = np.append(begins[1:], len(order))
    several = ends - begins > 1
    border = len(prints["train"])
    for begin, end in zip(begins[several], ends[several], strict=True):
        group = order[begin:end]
        places = [("train", index) if index < border else ("val", index - border) for index in group.tolist()]
        yield [_Place(*place) for place in places]
