"""When trials must end: the deadline of the allocation, their timeout, and the grace period of commands."""

import math
import time
from dataclasses import dataclass
from typing import Final

from trainyard.cluster.slurm_allocation import Allocation
from trainyard.planning.task import Task

STOP_SECONDS: Final = 5.0  # for a trial to stop at its next step and to write a checkpoint
WORTHWHILE_SECONDS: Final = 120.0  # a trial that can resume starts if it can run for at least this time
OVERDUE_SECONDS: Final = 15.0  # for a worker to end a command at its timeout, before the worker is killed


@dataclass(frozen=True)
class TimeLimits:
    """When trials must end, and which still have time to run."""

    allocation: Allocation | None
    can_resume: bool
    grace_seconds: float = 0.0
    timeout_seconds: float | None = None

    @property
    def deadline(self) -> float:
        """The deadline of the allocation, in Unix seconds; infinite without an allocation."""
        return self.allocation.deadline if self.allocation else math.inf

    @property
    def stop_seconds(self) -> float:
        """Seconds before the deadline at which trials must stop."""
        return STOP_SECONDS + self.grace_seconds

    def seconds_left(self) -> float | None:
        """Seconds until the deadline, at least 0; None without one."""
        return None if math.isinf(self.deadline) else max(0.0, self.deadline - time.time())

    def seconds_to_run(self) -> float:
        """Seconds until running trials must stop; infinite without a deadline."""
        return self.deadline - self.stop_seconds - time.time()

    def is_worthwhile(self, needed_seconds: float) -> bool:
        """Whether there is time to start a trial: to finish it or, if it can resume, to run it for a while."""
        left = self.seconds_left()
        if left is None or needed_seconds <= left - self.stop_seconds:
            return True
        return self.can_resume and left - self.grace_seconds >= WORTHWHILE_SECONDS

    def kill_seconds(self, task: Task) -> float:
        """Seconds after its start at which a trial's worker is killed; infinite without a timeout."""
        if self.timeout_seconds is None:
            return math.inf
        return self.timeout_seconds + (OVERDUE_SECONDS + self.grace_seconds if task.is_command else 0.0)
