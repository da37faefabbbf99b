"""A slot as the driver sees it: its worker, and what it does now."""

import math
from dataclasses import dataclass, field
from typing import Any

from trainyard.packing.failure_policy import Place
from trainyard.planning.task import Task
from trainyard.programs.command import Kept


@dataclass
class Slot:
    """A slot as the driver sees it: its worker, and what it does now."""

    number: int
    worker: Any = None
    place: dict[str, Any] = field(default_factory=dict)
    starting: Any = None  # answers once the worker is up
    checking: Any = None  # answers once its GPU has been checked
    waking: Any = None  # answers if its worker, which had nothing to do, is still there
    answer: Any = None  # comes when the trial that runs has something to say
    task: Task | None = None
    attempt: int = 0
    began: float = 0.0  # when the trial did, on the monotonic clock
    due: float = math.inf  # when the trial must have ended, or the worker be up, on the monotonic clock
    resumed: Kept | None = None  # what the attempt has gone on from
    pruned: str = ""  # why its trial is told to end
    failed_starts: int = 0
    late: bool = False  # its worker should have been up long ago: nothing waits for it
    retired: bool = False

    @property
    def waits_for(self) -> Any:
        """What the driver must wait for to hear of this slot; None if it is idle."""
        return self.starting or self.checking or self.waking or self.answer

    @property
    def where(self) -> Place:
        """Where its process runs, or ran last."""
        return Place(self.place.get("node", ""), self.place.get("gpu", ""), self.number)

    def __str__(self) -> str:
        return f"slot {self.number} ({self.where.node}, GPU {self.where.gpu})" if self.place else f"slot {self.number}"
