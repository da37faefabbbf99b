"""The first failure of a distributed training, from the records of ranks, agents and launcher.

A rank that raises writes its exception to the error file of torchrun. The agent, which runs torchrun on each node,
records how its ranks ended, including those that were killed. The launcher finds the cause among all records: after the
first failure, the other ranks fail, too, because their collectives do not complete.
"""

import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from trainyard.utils.errors import UserError
from trainyard.utils.files import write_json
from trainyard.utils.import_path import USER_CODE_ERRORS, error_line


@dataclass(frozen=True)
class RankFailure:
    """How a rank failed."""

    rank: int
    node: str
    message: str
    time: float  # Unix seconds
    killed: bool  # by a signal from outside of the training, such as the out-of-memory killer's


@contextmanager
def record_exception() -> Iterator[None]:
    """Write an exception in the block to the error file of torchrun, if there is one, and raise it again.

    Raises:
        UserError: a user's code called sys.exit; with exit code 0, the rank would count as successful.
    """
    try:
        yield
    except USER_CODE_ERRORS as error:
        is_whole = isinstance(error, UserError)
        message = f"{type(error).__name__}: {error}" if is_whole else error_line(error)
        if path := os.environ.get("TORCHELASTIC_ERROR_FILE"):
            write_json(Path(path), {"message": message, "timestamp": time.time()})
        if isinstance(error, SystemExit):
            raise UserError(f"the training did not finish: {message}") from error
        raise


def write_failures(failures: Sequence[RankFailure], folder: Path, *, node: str) -> None:
    """Write the failures of the ranks of a node for the launcher."""
    write_json(folder / f"failed-{node}.json", [asdict(failure) for failure in failures])


def first_failure(folder: Path) -> RankFailure | None:
    """The first failure of all nodes. Killed ranks come first, because nothing recorded the time of their end."""
    failures = list[RankFailure]()
    for path in folder.glob("failed-*.json"):
        failures += [RankFailure(**fields) for fields in json.loads(path.read_text())]
    return min(failures, key=lambda failure: (not failure.killed, failure.time), default=None)
