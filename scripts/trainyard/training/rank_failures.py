"""Which rank ended a distributed training, and why: each rank, each node and the launcher add what they know.

A rank that raises says so in the file that torchrun names for it. The agent, torchrun's process on each node, writes
down how the ranks of its node ended, also those that were killed. The launcher looks for the cause among all of them:
when one rank is gone, the others fail, too, for want of its answer.
"""

import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from trainyard.utils.files import write_json


@dataclass(frozen=True)
class RankFailure:
    """How a rank ended before the training had."""

    rank: int
    node: str
    message: str
    time: float  # Unix seconds
    killed: bool  # by a signal that nobody of the training sent, such as the kernel's when memory is out


@contextmanager
def record_exception() -> Iterator[None]:
    """Leave word of an exception in the block where torchrun looks for it; without torchrun, only pass it on."""
    try:
        yield
    except Exception as error:
        if path := os.environ.get("TORCHELASTIC_ERROR_FILE"):
            write_json(Path(path), {"message": f"{type(error).__name__}: {error}", "timestamp": time.time()})
        raise


def write(failures: Sequence[RankFailure], folder: Path, *, node: str) -> None:
    """Keep the failures of a node's ranks for the launcher."""
    write_json(folder / f"failed-{node}.json", [asdict(failure) for failure in failures])


def cause(folder: Path) -> RankFailure | None:
    """The failure that came first, of all nodes; a rank that was killed could not tell when, and goes before all."""
    found = [RankFailure(**each) for path in folder.glob("failed-*.json") for each in json.loads(path.read_text())]
    return min(found, key=lambda failure: (not failure.killed, failure.time), default=None)
