"""A Python function as a trial: called as `run(config, context)` in a process that stays warm from trial to trial."""

import math
import queue
import threading
import time
import traceback
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from trainyard.programs.metrics import Row, Sieve, as_row


class TrialEnds(BaseException):
    """Ends a function from within; not an Exception, so that no `except Exception` of the user's catches it."""


@dataclass
class Context:
    """What a function may ask of Trainyard, and tell it."""

    trial: str
    attempt: int  # 1 for the first
    trial_dir: Path  # for what the trial is to leave
    checkpoint_dir: Path  # empty at the first attempt; kept while the trial is not finished, removed when it is
    dataset: Path | None  # the staged dataset, on this node's own disk if it is copied
    deadline: float = math.inf  # Unix seconds by which to have kept where it is
    _told: "queue.SimpleQueue[dict[str, Any]]" = field(default_factory=queue.SimpleQueue, repr=False)
    _answers: "queue.SimpleQueue[bool]" = field(default_factory=queue.SimpleQueue, repr=False)
    _rows: int = 0

    @property
    def time_is_up(self) -> bool:
        """Whether the deadline has come: keep where you are, then call `interrupt`."""
        return time.time() >= self.deadline

    def report(self, **metrics: float) -> None:
        """Tell metrics, as of an `epoch` (counted, if it is left out). The trial may end here, if others are better.

        Of an epoch that is told again, the last values count. Of very many rows, not all are kept (see `Sieve`), but
        the last value of each metric is. Each row is judged at once: tell an epoch when it has ended.
        """
        self._rows += 1
        row = as_row(metrics)
        epoch = row.pop("epoch", None)
        self._told.put({"epoch": {"epoch": self._rows if epoch is None else epoch, **row}})
        if self._answers.get():
            raise TrialEnds("pruned")

    def interrupt(self) -> NoReturn:
        """End here, to be called again with the same `checkpoint_dir` by the next job."""
        raise TrialEnds("interrupted")


def run(
    function: Callable[..., Any], config: dict[str, Any], context: Context
) -> Generator[dict[str, Any], bool | None, None]:
    """Call a function, in a thread of its own.

    Yields and is sent what `commands.run` does. What the function returns, if a mapping, are further metrics.
    """
    began = time.monotonic()
    latest: Row = {}
    told = context._told

    def call() -> None:
        try:
            returned = function(config, context)
            told.put({"finished": as_row(returned) if isinstance(returned, dict) else {}})
        except TrialEnds as end:
            told.put({str(end): None})
        except BaseException as error:
            line = f"{type(error).__name__}: {error}".splitlines()[0]
            told.put({"failed": line, "traceback": traceback.format_exc()})

    threading.Thread(target=call, daemon=True).start()
    sieve = Sieve()
    while "epoch" in (message := told.get()):
        latest |= message["epoch"]
        sieve.put(message["epoch"], whole=True)
        prune = False
        for row in sieve.passed(last=False):
            prune = prune or bool((yield {"epoch": row}))
        context._answers.put(prune)
    for row in sieve.passed(last=True) if "pruned" not in message else ():
        yield {"epoch": row}
    latest.pop("epoch", None)
    seconds = {"seconds": time.monotonic() - began}
    if "failed" in message:
        yield message | seconds
    elif "interrupted" in message:
        yield {"stopped": "it kept where it was before the end of the walltime", **seconds}
    else:
        yield {"pruned" if "pruned" in message else "finished": latest | (message.get("finished") or {}), **seconds}
