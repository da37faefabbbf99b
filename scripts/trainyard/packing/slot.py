"""A slot as the driver sees it: its worker and what the worker is doing."""

import math
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from typing import Any, Final

from trainyard.packing.failure_policy import Place
from trainyard.planning.attempts import ReportedEpochs
from trainyard.planning.journal import Location
from trainyard.planning.task import Task
from trainyard.programs.command import CheckpointFile

NOWHERE: Final = Location()


class Phase(Enum):
    """What the worker of a slot is doing."""

    IDLE = "idle"
    STARTING = "starting"
    CHECKING = "checking its GPU"
    WAKING = "waking"  # an idle worker confirms that it is alive before it gets a trial
    RUNNING = "running a trial"


@dataclass
class Slot:
    """A slot as the driver sees it: its worker and what the worker is doing."""

    number: int
    worker: Any = None  # the handle of a Ray actor
    location: Location = NOWHERE  # where its worker runs, or ran last
    phase: Phase = Phase.IDLE
    answer: Any = None  # the Ray reference of the worker's next message; None if it is idle
    due: float = math.inf  # time at which that message is overdue, on the monotonic clock
    task: Task | None = None
    attempt: int = 0
    began: float = 0.0  # start of the attempt, on the monotonic clock
    resumed: CheckpointFile | None = None  # the checkpoint that the attempt resumed from
    epochs: ReportedEpochs = field(default_factory=lambda: ReportedEpochs(0.0))  # of the attempt
    stop_reason: str = ""  # why early stopping ends the trial
    failed_starts: int = 0
    is_late: bool = False  # the worker did not start in time; no trial waits for it
    is_avoided: bool = False  # it gets no trial while those of others succeed
    is_retired: bool = False

    def expect(self, phase: Phase, answer: Any, *, due: float = math.inf) -> None:
        """Wait for the next message of the worker."""
        self.phase, self.answer, self.due = phase, answer, due

    def take_answer(self) -> Any:
        """The Ray reference of a message that has arrived. The slot becomes idle."""
        answer = self.answer
        self.expect(Phase.IDLE, None)
        return answer

    @property
    def has_started(self) -> bool:
        """Whether its worker has started once."""
        return self.location is not NOWHERE

    @property
    def place(self) -> Place:
        """Where its worker runs, or ran last."""
        return _place(self.location.node, self.location.gpu, self.number)

    @property
    def next_place(self) -> Place:
        """Where its next trial runs: a worker that starts may get another GPU than the one before it."""
        is_known = self.phase is not Phase.STARTING
        return _place(self.location.node, self.location.gpu if is_known else "", self.number)

    def __str__(self) -> str:
        gpu = f", GPU {self.place.gpu}" if self.place.gpu else ""
        return f"slot {self.number} ({self.place.node}{gpu})" if self.has_started else f"slot {self.number}"


_place = cache(Place)  # the packer asks for the places of all slots whenever a trial starts
