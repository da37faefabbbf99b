"""What packing works with: trials to run, where they come from, and the slots that they run on."""

import math
from dataclasses import dataclass, field
from typing import Any, Protocol

from trainyard.config.train import Train
from trainyard.config.user_programs import Own
from trainyard.packing.failure_policy import Place
from trainyard.programs.command import Kept


@dataclass(frozen=True)
class Task:
    """A pending trial as the driver hands it out."""

    trial: str
    spec: Train | Own
    values: dict[str, Any]
    generation: int
    earlier_attempts: int
    expected_seconds: float | None = None  # None before there is evidence
    bad_checkpoints: tuple[Kept, ...] = ()  # attempts that went on from these have failed by themselves
    least_seconds: float | None = None  # that it hardly falls short of

    @property
    def folder_name(self) -> str:
        """Of what a user's program leaves."""
        return folder_name(self.trial, self.generation)


def folder_name(trial: str, generation: int) -> str:
    """Of what a user's program leaves: another one when it is trained anew on purpose."""
    return f"{trial}-{generation}" if generation else trial


def output_name(attempt: int) -> str:
    """Of the file in that folder that holds what an attempt has said."""
    return f"output-{attempt}.log"


class Source(Protocol):
    """Where tasks come from that are not known beforehand."""

    @property
    def open(self) -> int:
        """How many it can still give."""

    def next_task(self) -> Task | None:
        """One, or None if none is left."""


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
