"""Problems of a dataset's source, duplicates among them, which are then listed per file in `problems.csv`."""

import csv
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from trainyard.data.staged import SPLITS
from trainyard.utils.files import atomic_write
from trainyard.utils.text import printable

EXAMPLES: Final = 5  # problems in an error message


@dataclass(frozen=True)
class Problem:
    """A problem of one file (or class) of the source."""

    file: str
    split: str  # train, val, or "" if the file is in no split
    problem: str  # its kind, in a few words
    detail: str = ""
    action: str = ""  # fail: staging fails; skip: the file is left out; keep: the file is used

    def __str__(self) -> str:
        return printable(f"{self.file}: {self.problem}" + (f" ({self.detail})" if self.detail else ""))


def write_problems(path: Path, problems: Sequence[Problem]) -> None:
    """Write the table; without problems, its header alone."""
    with atomic_write(path) as file:
        table = csv.DictWriter(file, [field.name for field in fields(Problem)], lineterminator="\n")
        table.writeheader()
        table.writerows({key: printable(value) for key, value in asdict(each).items()} for each in problems)


def count_by_kind(problems: Sequence[Problem]) -> dict[str, int]:
    """The number of problems of each kind, in alphabetical order."""
    return dict(sorted(Counter(each.problem for each in problems).items()))


def summarize_problems(problems: Sequence[Problem]) -> str:
    """The number of problems of each kind, and the first few, one per line."""
    kinds = ", ".join(f"{number} x {kind}" for kind, number in count_by_kind(problems).items())
    lines = [f"  {problem}" for problem in problems[:EXAMPLES]]
    more = [f"  and {len(problems) - EXAMPLES} more"] if len(problems) > EXAMPLES else []
    return "\n".join([kinds, *lines, *more])


# ---- duplicates


def find_duplicates(work: Path, name_of: Callable[[str, int], str]) -> list[Problem]:
    """Images whose file equals the file of an earlier one, from the staged arrays in the folder `work`.

    Files with the same hash (length and CRC-32) are candidates; their pixels are compared.
    """
    hashes = {name: np.load(work / f"{name}-hashes.npy") for name in SPLITS}
    images = {name: np.load(work / f"{name}-images.npy", mmap_mode="r") for name in SPLITS}
    labels = {name: np.load(work / f"{name}-labels.npy") for name in SPLITS}
    problems = []
    for (first_split, first), *others in _equal_hashes(hashes):
        for split, row in others:
            if np.array_equal(images[split][row], images[first_split][first]):
                is_same_class = labels[split][row] == labels[first_split][first]
                kind = "duplicate" if split == first_split else "duplicate of a training image"
                kind += "" if is_same_class else " in another class"
                detail = f"same as {name_of(first_split, first)}"
                problems.append(Problem(name_of(split, row), split, kind, detail, "keep"))
    return problems


def _equal_hashes(hashes: dict[str, NDArray[np.uint64]]) -> Iterator[list[tuple[str, int]]]:
    """Groups of images (split and row) with equal hashes, in order; a hash of 0 means that it was not computed."""
    every = np.concatenate([hashes[name] for name in SPLITS])
    order = np.argsort(every, kind="stable")
    begins = np.flatnonzero(np.diff(every[order], prepend=np.uint64(0)))  # from the first one that is not 0
    ends = np.append(begins[1:], len(order))
    is_group = ends - begins > 1
    train_size = len(hashes["train"])
    for begin, end in zip(begins[is_group], ends[is_group], strict=True):
        group = order[begin:end].tolist()
        yield [("train", row) if row < train_size else ("val", row - train_size) for row in group]
