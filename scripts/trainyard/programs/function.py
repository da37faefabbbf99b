"""A Python function as a trial: called with `(config, context)` in a process that stays warm from trial to trial."""

import math
import queue
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NoReturn

from trainyard.cluster.stop_request import POLL_SECONDS, StopRequest
from trainyard.config.trial_status import TrialStatus
from trainyard.programs.metric_rows import Row, RowLimiter, numeric_row, take_epoch
from trainyard.programs.trial_messages import EpochReported, ReportEpoch, TrialEnded
from trainyard.utils.errors import UserError
from trainyard.utils.import_path import error_line

INTERRUPTED_ITSELF: Final = "it called context.interrupt(), although context.time_is_up was False"


class EndTrial(BaseException):
    """Ends a function from within. It is a BaseException, so that `except Exception` does not catch it."""

    def __init__(self, status: TrialStatus) -> None:
        super().__init__(status)
        self.status = status


@dataclass
class Context:
    """The interface of a function to Trainyard: folders, deadline, and reporting."""

    trial: str
    attempt: int  # 1 for the first
    trial_dir: Path  # for the files that the trial leaves
    checkpoint_dir: Path  # empty in the first attempt; kept until the trial has finished, then removed
    dataset: Path | None  # the staged dataset; on a local disk of this node if it is copied there
    deadline: float = math.inf  # Unix seconds by which a checkpoint must be written
    gpus: int = 0  # how many it sees; 1 if it shares one
    cpus: int = 1  # the number of threads to use
    _stop_request: StopRequest = field(default_factory=StopRequest, repr=False)
    _checks_time: bool = False
    _reports: "queue.SimpleQueue[Row | TrialEnded]" = field(default_factory=queue.SimpleQueue, repr=False)
    _answers: "queue.SimpleQueue[bool]" = field(default_factory=queue.SimpleQueue, repr=False)
    _row_count: int = 0

    @property
    def time_is_up(self) -> bool:
        """Whether the deadline has passed or the job is ending: write a checkpoint, then call `interrupt`."""
        self._checks_time = True
        return self._stop_request.is_made or time.time() >= self.deadline

    def report(self, **metrics: float) -> None:
        """Report metrics of an `epoch` (counted if it is omitted). Early stopping may end the trial here.

        If an epoch is reported again, its last values count. Very many rows are thinned (see `RowLimiter`), but the
        last value of each metric is kept. Early stopping judges each row immediately, so report an epoch when it is
        complete.
        """
        self._row_count += 1
        row = numeric_row(metrics)
        epoch = take_epoch(row)
        self._reports.put({"epoch": self._row_count if epoch is None else epoch, **row})
        if self._answers.get():
            raise EndTrial(TrialStatus.STOPPED)

    def _next_report(self) -> Row | TrialEnded:
        """The next report; the end of the attempt at a request to stop if the function has never read `time_is_up`."""
        while self._checks_time or not self._stop_request.is_made or not self._reports.empty():
            with suppress(queue.Empty):
                return self._reports.get(timeout=POLL_SECONDS)
        return TrialEnded(status=TrialStatus.INTERRUPTED, error="it was interrupted")

    def interrupt(self) -> NoReturn:
        """End the attempt. The next job calls the function again with the same `checkpoint_dir`."""
        raise EndTrial(TrialStatus.INTERRUPTED)


def run_function(
    function: Callable[[Any, Context], Any], config: Any, context: Context, report: ReportEpoch
) -> TrialEnded:
    """Call a function in its own thread; it is stopped early after an epoch for which `report` returns True.

    If the function returns a mapping, its numbers are further metrics.
    """
    began = time.monotonic()
    threading.Thread(target=_call, args=(function, config, context), daemon=True).start()
    latest = Row()
    limiter = RowLimiter()
    while not isinstance(reported := context._next_report(), TrialEnded):
        latest |= reported
        limiter.add(reported, complete=True)
        verdicts = [report(EpochReported(row)) for row in limiter.take_rows(final=False)]
        context._answers.put(any(verdicts))
    for row in limiter.take_rows(final=True) if reported.status is not TrialStatus.STOPPED else ():
        report(EpochReported(row))
    latest.pop("epoch", None)
    metrics = {} if reported.status is TrialStatus.INTERRUPTED else latest | reported.metrics
    return replace(reported, metrics=metrics, seconds=time.monotonic() - began)


def _call(function: Callable[[Any, Context], Any], config: Any, context: Context) -> None:
    """Call the function, and report how it ended."""
    try:
        returned = function(config, context)
        metrics = numeric_row(returned) if isinstance(returned, dict) else {}
        end = TrialEnded(status=TrialStatus.FINISHED, metrics=metrics)
    except EndTrial as request:
        error = ""
        by_itself = request.status is TrialStatus.INTERRUPTED and not context.time_is_up
        if request.status is TrialStatus.INTERRUPTED:
            error = INTERRUPTED_ITSELF if by_itself else "it ended itself before the end of the job"
        end = TrialEnded(status=request.status, error=error, interrupts_itself=by_itself)
    except BaseException as error:
        reason = str(error) if isinstance(error, UserError) else error_line(error)
        end = TrialEnded(status=TrialStatus.FAILED, error=reason, traceback=traceback.format_exc())
    context._reports.put(end)
