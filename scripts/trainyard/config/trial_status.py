"""The states of a trial and of an attempt at one, as the journal and the CSV files write them."""

from enum import StrEnum
from typing import Final


class TrialStatus(StrEnum):
    """The state of a trial, or how an attempt at it ended."""

    PENDING = "pending"  # not started
    RUNNING = "running"
    FINISHED = "finished"
    STOPPED = "stopped"  # early, because other trials were better
    DIVERGED = "diverged"  # the loss or a monitored metric became NaN or infinite
    UNREADABLE = "unreadable"  # the program succeeded, but its output has no metrics
    FAILED = "failed"
    INTERRUPTED = "interrupted"  # by the end of the job or the loss of its slot, or because its trial was cancelled
    CANCELLED = "cancelled"  # by a user, with `control.py`; of trials only: the attempt is interrupted


WITH_RESULT: Final = frozenset({TrialStatus.FINISHED, TrialStatus.STOPPED})  # the metrics count
CONCLUSIVE: Final = WITH_RESULT | {TrialStatus.DIVERGED}  # the quality of the configuration is known
FINAL: Final = CONCLUSIVE | {TrialStatus.UNREADABLE}  # the trial is not run again
ENDED: Final = FINAL | {TrialStatus.FAILED, TrialStatus.INTERRUPTED}  # the attempt is over
