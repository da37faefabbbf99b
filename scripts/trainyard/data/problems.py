"""What is wrong with a source of data: found all at once, listed by name in `problems.csv`."""

import csv
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from trainyard.utils.files import atomic_write

SHOWN = 5


@dataclass(frozen=True)
class Problem:
    """Something about one file (or class) of the source."""

    file: str
    split: str  # train, val, or "" if it is in none
    problem: str  # what is wrong, in a word or two: the same words for the same thing
    detail: str = ""
    action: str = ""  # fail: staging ends with an error; skip: it was left out; keep: it is only worth knowing

    def __str__(self) -> str:
        return f"{self.file}: {self.problem}" + (f" ({self.detail})" if self.detail else "")


def write_problems(path: Path, problems: Sequence[Problem]) -> None:
    """Write the table, with its header also when there is nothing to say."""
    with atomic_write(path) as file:
        table = csv.DictWriter(file, [field.name for field in fields(Problem)], lineterminator="\n")
        table.writeheader()
        table.writerows(asdict(problem) for problem in problems)


def counted(problems: Sequence[Problem]) -> dict[str, int]:
    """How often there is each problem."""
    return dict(sorted(Counter(each.problem for each in problems).items()))


def summary(problems: Sequence[Problem]) -> str:
    """The first few in lines, and how many there are of each kind."""
    kinds = ", ".join(f"{number} x {kind}" for kind, number in counted(problems).items())
    lines = [f"  {problem}" for problem in problems[:SHOWN]]
    more = [f"  and {len(problems) - SHOWN} more"] if len(problems) > SHOWN else []
    return "\n".join([kinds, *lines, *more])
