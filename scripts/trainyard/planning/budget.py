"""What the jobs of a sweep have spent of its budget, and whether another trial fits it."""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from trainyard.config.sweep import Budget, Slots
from trainyard.planning.attempts import Session


@dataclass(frozen=True)
class Spending:
    """The jobs of a sweep against its budget. Its unit-seconds are GPU-seconds or, without GPUs, CPU-seconds.

    A job counts from its start to its last event, and one that runs, until its trials are predicted to have ended.
    """

    budget: Budget
    sessions: Sequence[Session]
    slots: Slots
    ends: Mapping[str, float] = field(default_factory=dict)  # of jobs that run, by session: Unix seconds, from now on

    def unit_seconds(self, ends: Mapping[str, float]) -> float:
        """What all jobs have spent if those that run end at these times."""
        spans = ((max(run.end, ends.get(run.name, 0.0)) - run.job_start, run) for run in self.sessions)
        return sum(seconds * run.units(self.slots) for seconds, run in spans)

    @property
    def left_unit_seconds(self) -> float:
        """What jobs that do not run yet may spend; infinite without a limit."""
        return self.budget.unit_seconds - self.unit_seconds(self.ends)

    @property
    def end_time(self) -> float:
        """When all jobs must end by the clock, in Unix seconds; infinite without a limit."""
        return self.budget.end_time(min((run.job_start for run in self.sessions), default=time.time()))

    def latest_end(self, session: str) -> float:
        """When another trial of a job that runs must have ended, in Unix seconds, to fit beside all that runs."""
        unit_seconds = self.left_unit_seconds
        run = next((each for each in self.sessions if each.name == session), None)
        if unit_seconds <= 0:
            return -math.inf
        return min(self.end_time, self.ends[session] + unit_seconds / run.units(self.slots) if run else math.inf)

    def must_stop_by(self, now: float) -> float:
        """When the budget is spent, in Unix seconds, if all jobs go on that run now."""
        running = sum(run.units(self.slots) for run in self.sessions if run.name in self.ends)
        left = self.budget.unit_seconds - self.unit_seconds(dict.fromkeys(self.ends, now))
        return min(self.end_time, now + left / running if running else math.inf)

    @property
    def is_spent(self) -> bool:
        """Whether nothing is left."""
        return self.left_unit_seconds <= 0 or self.end_time <= time.time()
