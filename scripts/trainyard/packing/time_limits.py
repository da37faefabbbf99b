"""The times by which trials must end: the deadline of the job, their timeout and their grace period."""

import math
import time
from dataclasses import dataclass
from typing import Final, Protocol

from trainyard.cluster import slurm_allocation
from trainyard.cluster.slurm_allocation import Allocation
from trainyard.planning.task import Task

STOP_SECONDS: Final = 5.0  # for a trial to stop at its next step and to write a checkpoint
WORTHWHILE_SECONDS: Final = 120.0  # a trial that can resume starts if it can run for at least this time
OVERDUE_SECONDS: Final = 15.0  # for a worker to end a command at its timeout, before the worker is killed


class Clock(Protocol):
    """What a run needs of the module `time`."""

    def time(self) -> float:
        """Unix seconds."""

    def monotonic(self) -> float:
        """Seconds on a clock that is never set."""

    def sleep(self, seconds: float, /) -> None:
        """Wait for some seconds."""


@dataclass
class TimeLimits:
    """When trials must end, and which still have time to run."""

    allocation: Allocation | None
    can_resume: bool
    grace_seconds: float = 0.0
    timeout_seconds: float | None = None
    clock: Clock = time

    def refresh(self) -> None:
        """Use the deadline that Slurm has set by now."""
        self.allocation = slurm_allocation.refresh_allocation()

    @property
    def deadline(self) -> float:
        """The deadline of the allocation, in Unix seconds; infinite without an allocation."""
        return self.allocation.deadline if self.allocation else math.inf

    @property
    def stop_seconds(self) -> float:
        """Seconds before the deadline at which trials must stop."""
        return STOP_SECONDS + self.grace_seconds

    def seconds_left(self) -> float:
        """Seconds until the deadline, at least 0; infinite without one."""
        return max(0.0, self.deadline - self.clock.time())

    def is_worthwhile(self, needed_seconds: float) -> bool:
        """Whether there is time to start a trial: to finish it or, if it can resume, to run it for a while."""
        seconds_left = self.seconds_left()
        if needed_seconds <= seconds_left - self.stop_seconds:
            return True
        return self.can_resume and seconds_left - self.grace_seconds >= WORTHWHILE_SECONDS

    def kill_seconds(self, task: Task) -> float:
        """Seconds after its start at which a trial's worker is killed; infinite without a timeout."""
        if self.timeout_seconds is None:
            return math.inf
        if task.is_command:
            return self.timeout_seconds + OVERDUE_SECONDS + self.grace_seconds
        return self.timeout_seconds
