"""Problems of a dataset's source, which are then listed per file in `problems.csv`."""

import csv
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Final

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
