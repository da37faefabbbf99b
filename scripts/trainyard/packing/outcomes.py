"""Recording attempts in the journal, and handling their end: a retry, the next trial, or the end of the sweep."""

import logging
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from trainyard.config.trial_status import TrialStatus
from trainyard.config.trials import full_seconds
from trainyard.packing.failure_policy import MACHINE_ERROR, FailurePolicy, TrialFailure
from trainyard.packing.messages import TrainingEnded, WorkerSetup
from trainyard.packing.shared_order import SharedOrder
from trainyard.packing.slot_pool import Phase, Slot, SlotPool
from trainyard.packing.trial_queue import TrialQueue
from trainyard.packing.worker_gpu import GpuUse
from trainyard.planning.attempts import Attempt, Attempts, update_attempts
from trainyard.planning.early_stopping import EarlyStoppingRule
from trainyard.planning.journal import END_FIELDS, Ended, Journal, TrialEvent
from trainyard.planning.requests import CANCELLED
from trainyard.planning.sweep_state import Task
from trainyard.programs.metric_rows import find_divergence
from trainyard.programs.metrics import UNREADABLE_REMEDY
from trainyard.programs.trial_messages import TrialEnded
from trainyard.utils.errors import FinalError, storage_error
from trainyard.utils.guarded_process import forget_completed

log = logging.getLogger(__name__)


class AttemptRecorder:
    """Writes the events of attempts to the journal, and calls `listeners` with each and its attempt as it is then."""

    def __init__(
        self, journal: Journal, *, folder: Path, listeners: Sequence[Callable[[TrialEvent, Attempt], None]]
    ) -> None:
        self._journal, self._logs, self._listeners = journal, folder / "logs", listeners
        self._running: Attempts = {}

    def record(self, event: TrialEvent, *, then: Callable[[], object] | None = None) -> Attempt:
        """Record an event, and return its attempt. `then` is as in `Journal.record`."""
        event = self._journal.record(event, then=then)
        attempt = update_attempts(self._running, event)
        if isinstance(event, Ended):
            del self._running[event.trial, event.attempt]
        for listener in self._listeners:
            listener(event, attempt)
        return attempt

    def record_end(
        self, slot: Slot, end: TrialEnded, *, then: Callable[[], object] | None = None, **further: Any
    ) -> None:
        """Record how the trial of a slot ended, with `further` fields of the event. The slot becomes idle.

        The first end counts: a signal may arrive after it was recorded, and then the slot still seems to run the trial.
        """
        attempt = slot.attempt
        assert attempt is not None
        seconds = None if end.seconds is None else round(end.seconds, 4)
        progress = end.progress._asdict() if end.progress else None
        fields = vars(end) | {"seconds": seconds, "error": end.error or None, "progress": progress} | further
        if self._journal.is_incomplete:
            fields["metrics_digest"] = None  # the output is read again: the journal may lack rows
        fields = {name: fields.get(name) for name in END_FIELDS[end.status]}
        if attempt.outcome is TrialStatus.RUNNING:
            self.record(Ended(trial=attempt.trial, attempt=attempt.number, status=end.status, **fields), then=then)
            if end.exit_code == 0 and end.output:
                forget_completed(Path(end.output))
        slot.task = None
        slot.expect(Phase.IDLE, None)

    def write_log(self, slot: Slot, text: str) -> Path:
        """Write the log of a failed attempt.

        Other attempts have none, because file systems limit the number of files.
        """
        assert slot.attempt is not None
        path = self._logs / f"{slot.attempt.trial}-{slot.attempt.number}.log"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text.rstrip() + "\n", encoding="utf-8", errors="backslashreplace")
        except OSError as error:  # a log must not end a sweep
            log.warning("the log of a failed trial is not kept: %s", storage_error(error, path) or error)
        return path


class OutcomeHandler:
    """Records how attempts end, retries failed trials, and stops a sweep that cannot succeed.

    A trial with one of `monitored_metrics` NaN or infinite has diverged. All trials must report `required_metrics`,
    unless an earlier one has.
    """

    def __init__(
        self,
        setup: WorkerSetup,
        *,
        recorder: AttemptRecorder,
        queue: TrialQueue,
        order: SharedOrder,
        pool: SlotPool,
        failures: FailurePolicy,
        rule: EarlyStoppingRule | None,
        monitored_metrics: set[str],
        required_metrics: set[str],
    ) -> None:
        self._setup, self._recorder, self._queue, self._pool, self._order = setup, recorder, queue, pool, order
        self._failures, self._rule = failures, rule
        self._monitored, self._required = monitored_metrics, required_metrics
        self._warned = set[str]()  # subjects
        self.gpu_uses: list[GpuUse] = []  # of trials whose GPU use was measured
        self.interrupted = 0  # trials that ended at the deadline and can continue
        self.interrupted_themselves = 0  # of these, the functions that ended without a request

    def handle(self, slot: Slot, end: TrialEnded) -> bool:
        """Handle the end of an attempt; returns whether the slot is ready for the next trial."""
        if end.seconds is not None and (paused := self._order.paused_seconds - slot.paused_before):
            end = replace(end, seconds=max(0.0, end.seconds - paused))
        self.warn_once("metrics", slot, end.warning)
        if end.status is TrialStatus.FAILED and self._queue.is_closed:  # the job's signal ended it
            end = replace(end, status=TrialStatus.INTERRUPTED)
        if slot.is_cancelled and not self._queue.is_closed:
            self._handle_cancelled(slot, end)
            return False
        match end.status:
            case TrialStatus.INTERRUPTED:
                self.interrupted += slot not in self._pool.fills
                self.interrupted_themselves += end.interrupts_itself
                self._recorder.record_end(slot, end)
                if not end.interrupts_itself:
                    slot.worker = None
                return end.interrupts_itself
            case TrialStatus.FAILED:
                self._handle_failure(slot, end)
                return False
            case TrialStatus.UNREADABLE:
                self._handle_unreadable(slot, end)
            case _:
                self._handle_result(slot, end)
        return True

    def _handle_cancelled(self, slot: Slot, end: TrialEnded) -> None:
        """Record how an attempt at a cancelled trial ended, give the trial back, and replace the worker."""
        assert slot.task is not None
        trial = slot.task.trial
        if end.status in (TrialStatus.INTERRUPTED, TrialStatus.FAILED):
            self._recorder.record_end(slot, replace(end, status=TrialStatus.INTERRUPTED, error=CANCELLED))
            self._order.release(trial)
            log.info("trial %s: %s", trial, CANCELLED)
        elif end.status is TrialStatus.UNREADABLE:
            self._handle_unreadable(slot, end)
        else:
            self._handle_result(slot, end)
        self._pool.replace_worker(slot)

    def _handle_failure(self, slot: Slot, end: TrialEnded) -> None:
        """Record a failed attempt, and replace the worker of its slot.

        The trial is retried on another slot, unless it has diverged before: many programs fail then.
        """
        path = end.output or str(self._recorder.write_log(slot, end.traceback or end.error))
        reason = find_divergence(end.metrics, self._monitored)
        if reason and not MACHINE_ERROR.search(end.error):
            self._record_diverged(slot, replace(end, error=reason), failure=end.error, log=path)
        else:
            self._record_failed(slot, end, path)
        self._pool.replace_worker(slot)
        self._check_common_failure()
        self._pool.wake_idle()

    def _record_failed(self, slot: Slot, end: TrialEnded, path: str) -> None:
        """Record a failed attempt, and add its trial to the queue if it is retried."""
        assert slot.task is not None
        assert slot.attempt is not None
        task, took = slot.task, time.monotonic() - slot.began
        is_retried = slot not in self._pool.fills and self._failures.record_failure(
            TrialFailure(task.trial, slot.place, end.error, took, end.exit_code, task.values)
        )
        self._recorder.record_end(slot, end, log=path, retried=is_retried)
        if is_retried:
            again = replace(task, earlier=(*task.earlier, slot.attempt))
            self._queue.retry(again, self._pool.places, self._order.places)

    def _record_diverged(self, slot: Slot, end: TrialEnded, **further: Any) -> None:
        """Record an attempt that diverged, and remove its checkpoints."""
        assert slot.task is not None
        task = slot.task
        self._recorder.record_end(slot, replace(end, status=TrialStatus.DIVERGED), then=self._removal(task), **further)

    def _removal(self, task: Task) -> Callable[[], object]:
        """Removes the checkpoints of a trial once its end is on the disk; short trials have none."""
        return partial(shutil.rmtree, self._setup.checkpoint_folder(task), ignore_errors=True)

    def _check_common_failure(self) -> None:
        """Stop the sweep if all its trials fail in the same way."""
        running = self._pool.running_seconds.values()
        failure = self._failures.common_failure([*self._pool.known_places, *self._order.places], running)
        if failure and (failure.is_of_start or not self._queue.awaits_probe(failure.trial)):
            raise FinalError(
                "stopped: the first trials failed in the same way, and none has succeeded: "
                f"{failure.error}. Correct it and run the same command; with `max_failed_fraction: 1`, all trials run "
                "anyway"
            )

    def _handle_unreadable(self, slot: Slot, end: TrialEnded) -> None:
        """A program succeeded, but reported no metrics. It has not failed, and its output is kept."""
        assert slot.task is not None
        trial = slot.task.trial
        warning = f"{end.error}; see {end.output}. {UNREADABLE_REMEDY}"
        is_needed = self._required and not self._queue.is_closed  # search and early stopping would have no values
        if not is_needed:
            self.warn_once("unreadable", slot, warning)
        self._failures.record_success(trial, slot.place)
        self._queue.note_finished(trial, end.seconds or 0.0)
        self._recorder.record_end(slot, end, log=end.output)
        if is_needed:
            raise FinalError(f"search and early stopping need the metrics of trial {trial}: {warning}")
        self._update_order()

    def _handle_result(self, slot: Slot, end: TrialEnded) -> None:
        """A trial finished, was stopped early, or diverged."""
        assert slot.task is not None
        task, is_stopped = slot.task, end.status is TrialStatus.STOPPED
        further: dict[str, Any] = {"rule": self._rule.content} if is_stopped and self._rule else {}
        is_diverged = end.status is TrialStatus.DIVERGED
        if reason := end.error if is_diverged else find_divergence(end.metrics, self._monitored):
            further |= {"early": slot.stop_reason if is_stopped else None, "log": end.output}
            self._record_diverged(slot, replace(end, error=reason), **further)
        else:
            self._failures.record_success(task.trial, slot.place)
            if not is_stopped:
                self._queue.note_finished(task.trial, full_seconds(task.spec, end.seconds or 0.0, end.metrics))
                if isinstance(end, TrainingEnded) and end.gpu_use:
                    self.gpu_uses.append(end.gpu_use)
            self._recorder.record_end(slot, end, then=self._removal(task), why=slot.stop_reason, **further)
            if not is_stopped:
                self._check_required_metrics(task, end.metrics)
        self._update_order()

    def _update_order(self) -> None:
        self._queue.update_order(self._pool.running_seconds, len(self._pool.places))

    def _check_required_metrics(self, task: Task, metrics: Mapping[str, Any]) -> None:
        """Check that some trial has reported each metric by which trials are compared, now that one has finished."""
        self._required -= metrics.keys()
        if not self._required or self._queue.is_closed:
            return
        missing, reported = ", ".join(sorted(self._required)), ", ".join(metrics) or "no metrics"
        remedy = "let the function report or return it" if task.is_function else "let `metrics` find it"
        raise FinalError(
            f"trial {task.trial} has finished, but does not report {missing}, by which trials are compared; it "
            f"reports {reported}: {remedy}, or name a reported one as `metric`"
        )

    def warn_once(self, subject: str, slot: Slot, warning: str) -> None:
        """Log only the first warning on a subject, because it usually applies to all trials."""
        assert slot.task is not None
        if warning and subject not in self._warned:
            self._warned.add(subject)
            log.warning("trial %s: %s", slot.task.trial, warning)
