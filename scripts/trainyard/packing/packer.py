"""Runs the trials of a sweep on slots: one long-lived worker per slot, which gets one trial after another."""

import logging
import math
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from threading import Event
from typing import Any, Final

import ray
from ray.exceptions import RayError

from trainyard.cluster import host
from trainyard.cluster.gpus import has_gpu
from trainyard.cluster.ray.start import RayEndedError
from trainyard.cluster.stop_request import request_stop_of_workers
from trainyard.config.sweep import Slots
from trainyard.config.trial_status import TrialStatus
from trainyard.packing.failure_policy import FailurePolicy
from trainyard.packing.messages import TrialMessage, TrialRequest, WorkerSetup, attempt_label
from trainyard.packing.outcomes import AttemptRecorder, OutcomeHandler
from trainyard.packing.shared_order import SharedOrder
from trainyard.packing.slot_pool import Phase, Slot, SlotPool, death_reason
from trainyard.packing.trial_queue import STOP_SECONDS, Predict, TimeLimits, TrialQueue
from trainyard.packing.worker_gpu import GpuUse
from trainyard.planning.attempts import Attempt
from trainyard.planning.early_stopping import EarlyStoppingRule
from trainyard.planning.journal import Epoch, Journal, MicroBatchHalved, Resumed, Started, TrialEvent
from trainyard.planning.requests import FILLED
from trainyard.planning.sweep_state import Task, TaskSource
from trainyard.programs.function import INTERRUPTED_ITSELF
from trainyard.programs.metric_rows import shift_epoch
from trainyard.programs.runner import CheckpointFile
from trainyard.programs.trial_messages import EpochReported, TrialEnded, timeout_error
from trainyard.utils.errors import ContinuedError, UserError
from trainyard.utils.guarded_process import wait_for_folder
from trainyard.utils.text import SHELL_SIGNAL, count_of

# The signals of a cancelled job arrive everywhere at about the same time. When workers or programs die first, the
# packer waits this long for its own signal, so that their trials count as interrupted and not as failed.
SIGNAL_SECONDS: Final = 1.0
SYNC_POLL_SECONDS: Final = 0.1  # until an end that could not be synced ends the sweep
RAY_POLL_SECONDS: Final = 1.0  # until the end of the raylet is noticed, also if no worker reports it
SIGNAL_CODES: Final = (-signal.SIGTERM, -signal.SIGINT, SHELL_SIGNAL + signal.SIGTERM, SHELL_SIGNAL + signal.SIGINT)
LOSS_WARNING: Final = (
    "trial %s was interrupted by the end of the walltime and has nothing in its checkpoint_dir: it will start from the "
    "beginning; if the function cannot resume, set `resumable: false`, so that a trial starts only if it can end"
)
log = logging.getLogger(__name__)


class Packer:
    """Runs trials on slots until none is left, and records everything in the journal.

    With `measures_gpu`, it measures the GPU memory and utilization of trials (`gpu_uses`). `rule` decides which trials
    to stop early. `listeners` are called with each event and its attempt. For the metrics, see `OutcomeHandler`; for
    `ray_has_ended`, `RunningRay`.
    """

    def __init__(
        self,
        journal: Journal,
        order: SharedOrder,
        *,
        slots: Slots,
        setup: WorkerSetup,
        limits: TimeLimits,
        failures: FailurePolicy,
        ray_has_ended: Event,
        gpu_model: str = "",
        measures_gpu: bool = False,
        rule: EarlyStoppingRule | None = None,
        monitored_metrics: Iterable[str] = (),
        required_metrics: Iterable[str] = (),
        source: TaskSource | None = None,
        predict: Predict | None = None,
        may_end_early: bool = False,
        listeners: Sequence[Callable[[TrialEvent, Attempt], None]] = (),
    ) -> None:
        self._setup, self._rule, self._gpu_share, self._measures_gpu = setup, rule, slots.share, measures_gpu
        self._journal, self._order, self._limits, self._ray_has_ended = journal, order, limits, ray_has_ended
        self._paused_before = order.paused_seconds
        self._awaited = set[Any]()  # answers that had arrived when the packer last waited for a signal
        self._queue = TrialQueue(
            limits=limits, failures=failures, order=order, source=source, predict=predict, may_end_early=may_end_early
        )
        self._pool = SlotPool(
            slots, setup, journal=journal, failures=failures, queue=self._queue, order=order, gpu_model=gpu_model
        )
        self._recorder = AttemptRecorder(journal, folder=setup.folder, listeners=listeners)
        self._outcomes = OutcomeHandler(
            setup,
            recorder=self._recorder,
            queue=self._queue,
            order=order,
            pool=self._pool,
            failures=failures,
            rule=rule,
            monitored_metrics=set(monitored_metrics),
            required_metrics=set(required_metrics),
        )

    @property
    def gpu_uses(self) -> list[GpuUse]:
        """What finished trials used of their GPUs, if it was measured."""
        return self._outcomes.gpu_uses

    def run(self, tasks: list[Task]) -> None:
        """Run all tasks in this order, then the source's tasks. Each slot takes the next one as soon as it is free.

        If there is a deadline, a trial starts only if it is expected to end before it, or if it can resume
        and has time to make progress; otherwise a shorter one starts. At the deadline, running trials stop.

        Raises:
            UserError: no slot can be started any more, all trials fail in the same way, a finished trial does not
                report a required metric, or tasks are left at the deadline.
            RayEndedError: only a new Ray can run the tasks that are left.
        """
        self._queue.add(tasks)
        self._pool.start_all(self._queue.waiting)
        try:
            self._run_loop()
            while self._limits.seconds_left() != 0 and self._queue.await_others() and self._wake_idle():
                self._run_loop()
        except (KeyboardInterrupt, UserError, OSError):  # also of a file system that has lost its server
            self._queue.is_closed = True
            self._end_trials()
            raise
        finally:
            interrupted = self._record_interrupted()
            self._pool.release()
        self._check_complete(interrupted + self._outcomes.interrupted)

    def _wake_idle(self) -> bool:
        """Wake the idle slots for which a trial waits; returns whether there are any."""
        self._pool.use_spares()
        self._pool.wake_idle()
        return bool(self._pool.busy)

    def _run_loop(self) -> None:
        while busy := self._pool.busy:
            if self._queue.poll():
                self._end_cancelled()
                self._wake_idle()
            if not self._queue.waiting and len(self._pool.fills) == len(self._pool.running):
                return  # the other workers start too late or never; their node may be down
            for slot in self._end_fills() if self._queue.waiting else ():
                self._pool.replace_worker(slot)
            if self._order.must_stop_by() - self._limits.stop_seconds <= time.time():
                log.info("the budget is reached: running trials end")
                self._queue.is_closed = True
                self._end_trials()
                return
            self._pool.check_startable()
            answers = {slot.answer: slot for slot in busy}
            draws_ahead = self._queue.lacks_draw(len(busy))  # which takes a while: only if no slot waits
            wait_seconds = 0.0 if draws_ahead else self._wait_seconds(busy)
            ready, _ = ray.wait(list(answers), num_returns=1, timeout=wait_seconds, fetch_local=False)
            if self._ray_has_ended.is_set():
                time.sleep(SIGNAL_SECONDS)
                raise RayEndedError(f"Ray has ended on {host.node_name()}: its raylet was killed, or it crashed")
            self._note_pause()
            for answer in ready:
                self._handle_answer(answers[answer])
            if draws_ahead and not ready:
                self._queue.draw_ahead()
            if not ready and not self._handle_overdue(busy) and self._limits.seconds_left() == 0:
                return

    def _note_pause(self) -> None:
        """After a pause of this process, wait so much longer for messages, and for the deadline that Slurm has set."""
        if (paused := self._order.paused_seconds - self._paused_before) > 0:
            self._paused_before += paused
            for slot in self._pool.busy:
                slot.due += paused
            self._limits.refresh()

    def _end_fills(self) -> list[Slot]:
        """Record that the trials which fill slots have ended; returns these slots."""
        fills = self._pool.fills
        for slot in fills:
            self._recorder.record_end(slot, TrialEnded(status=TrialStatus.INTERRUPTED, error=FILLED))
        return fills

    def _wait_seconds(self, busy: list[Slot]) -> float:
        """Seconds until a message is overdue, the deadline is reached, or the journal or Ray must be looked at."""
        due = min(slot.due for slot in busy)
        overdue = None if math.isinf(due) else max(0.0, due - time.monotonic())
        syncing = None if self._journal.is_synced() else SYNC_POLL_SECONDS
        limits = (self._limits.seconds_left(), overdue, syncing)
        return min([RAY_POLL_SECONDS, *(seconds for seconds in limits if seconds is not None)])

    def _handle_overdue(self, busy: list[Slot]) -> bool:
        """Handle trials beyond their timeout and workers that do not start; returns whether there were any."""
        overdue = [slot for slot in busy if slot.due <= time.monotonic()]
        for slot in overdue:
            slot.due = math.inf
            if slot.task is None:
                self._pool.handle_late(slot)
            else:
                error = timeout_error(self._setup.timeout_seconds or 0.0)
                self._outcomes.handle(slot, TrialEnded(status=TrialStatus.FAILED, error=error))
        return bool(overdue)

    def _end_cancelled(self) -> None:
        """Request the end of the trials that users have cancelled; they may save a checkpoint first."""
        cancelled = [slot for slot in self._pool.running if slot.task and slot.task.trial in self._order.cancelled]
        if all(slot.is_cancelled for slot in cancelled):
            return
        for slot in cancelled:
            if not slot.is_cancelled:
                slot.is_cancelled, slot.due = True, time.monotonic() + self._setup.end_seconds + STOP_SECONDS
        attempts = [slot.attempt for slot in self._pool.running if slot.is_cancelled and slot.attempt]
        with suppress(RayError):
            request_stop_of_workers(*(attempt_label(each.trial, each.number) for each in attempts))

    def _end_trials(self) -> None:
        """End the running trials, which may save a checkpoint within the grace period, and record how they ended."""
        setup, running = self._setup, [slot for slot in self._pool.running if slot.phase is Phase.RUNNING]
        if not running:
            return
        count = count_of(len(running), "running trial")
        log.info("%s may take up to %g s to save a checkpoint", count, setup.end_seconds)
        deadline = time.monotonic() + setup.end_seconds + STOP_SECONDS
        with suppress(RayError):  # Ray has ended before the driver
            request_stop_of_workers()
        while answers := {slot.answer: slot for slot in running if slot.answer is not None}:
            left = max(0.0, deadline - time.monotonic())
            ready, _ = ray.wait(list(answers), num_returns=1, timeout=left, fetch_local=False)
            if not ready:
                return
            slot = answers[ready[0]]
            assert slot.task is not None
            try:
                message = ray.get(slot.answer)
            except RayError:  # the worker has died; then the guard ends its command
                if setup.grace_seconds:
                    wait_for_folder(setup.trial_folder(slot.task), timeout_seconds=left)
                self._recorder.record_end(slot, TrialEnded(status=TrialStatus.INTERRUPTED))
            else:
                self._handle_message(slot, message)

    def _record_interrupted(self) -> int:
        """Record the attempts that still run as interrupted; returns how many the sweep needs."""
        self._end_fills()
        running = self._pool.running
        for slot in running:
            assert slot.task is not None
            if self._limits.seconds_left() == 0 and self._setup.can_resume and slot.task.is_function:
                checkpoints = self._setup.checkpoint_folder(slot.task)
                if not (checkpoints.exists() and any(checkpoints.iterdir())):
                    log.warning(LOSS_WARNING, slot.task.trial)
            self._recorder.record_end(slot, TrialEnded(status=TrialStatus.INTERRUPTED))
        return len(running)

    def _check_complete(self, interrupted: int) -> None:
        left = self._queue.waiting + interrupted
        if not left and not self._queue.is_closed:
            return
        if self._queue.is_closed or self._queue.is_over_budget():
            self._order.note_budget_reached()
            return
        if not interrupted and self._order.is_held:
            log.info("%s left to the jobs that go on, or that follow", count_of(left, "trial"))
            return
        if not interrupted and self._queue.is_left_to_others(self._pool.places, self._order.places):
            log.info("%s left to other jobs, which have better places for them", count_of(left, "trial"))
            return
        kind: type[UserError] = ContinuedError
        remedy = "the same command continues from here, and so do Snakemake's retries"
        if left == self._outcomes.interrupted_themselves:
            raise UserError(f"{count_of(left, 'trial')} left, of which each {INTERRUPTED_ITSELF[3:]}: {remedy}")
        can_resume = self._setup.can_resume
        if not self._queue.longest_seconds and not (can_resume and self._outcomes.interrupted):
            kind = UserError
            remedy = "none could end in time: request a longer walltime (the resource `runtime`, in minutes)"
            if not can_resume:
                remedy += "; these trials cannot resume"
                remedy += ", so that retries request more time, unless `runtime` is set" if interrupted else ""
        raise kind(f"stopped before the end of the walltime with {count_of(left, 'trial')} left: {remedy}")

    def _handle_answer(self, slot: Slot) -> None:
        """Handle the next message of a slot's worker."""
        phase = slot.phase
        if phase is Phase.RUNNING:
            self._handle_running(slot)
            return
        answer = slot.take_answer()
        if phase is Phase.WAKING:
            if self._pool.handle_woken(slot, answer):
                self._start_trial(slot)
            return
        handle = self._pool.handle_started if phase is Phase.STARTING else self._pool.handle_checked
        if handle(slot, answer):
            self._start_trial(slot)
            self._pool.wake_idle()  # the slot may be on another GPU now, which changes where failed trials may run

    def _handle_running(self, slot: Slot) -> None:
        """Handle the next message of the trial that runs on a slot, or the death of its worker."""
        try:
            message: TrialMessage = ray.get(slot.answer)
        except RayError as error:
            self._await_signal(slot)
            self._outcomes.handle(slot, TrialEnded(status=TrialStatus.FAILED, error=death_reason(error)))
            return
        match message:
            case TrialEnded(status=TrialStatus.FAILED, exit_code=code) if code in SIGNAL_CODES:
                self._await_signal(slot)
        self._handle_message(slot, message)

    def _await_signal(self, slot: Slot) -> None:
        """Wait for the signal of a cancelled job; once for the workers of a node, which die together."""
        if slot.answer not in self._awaited:
            time.sleep(SIGNAL_SECONDS)
            answers = [each.answer for each in self._pool.busy]
            self._awaited = set(ray.wait(answers, num_returns=len(answers), timeout=0, fetch_local=False)[0])

    def _handle_message(self, slot: Slot, message: TrialMessage) -> None:
        """Record a message of a running trial. Let the trial continue or stop, or start the next one."""
        assert slot.task is not None
        assert slot.attempt is not None
        of_attempt: Any = {"trial": slot.attempt.trial, "attempt": slot.attempt.number}
        match message:
            case TrialEnded():
                if self._outcomes.handle(slot, message):
                    self._start_trial(slot)
                return
            case EpochReported(row=row, warning=warning, first_step_time=first):
                self._outcomes.warn_once("metrics", slot, warning)
                first_step_time = first if first and row["epoch"] == 1 else None
                row = shift_epoch(row, slot.epochs_before)
                self._recorder.record(Epoch(**of_attempt, metrics=row, first_step_time=first_step_time))
                slot.stop_reason = self._judge(slot.task.trial, row)
            case Resumed(checkpoint=checkpoint):
                if self._setup.metrics and self._setup.metrics.numbers_rows:
                    slot.epochs_before = slot.task.epochs_before(CheckpointFile(**checkpoint))
                self._recorder.record(message)
            case MicroBatchHalved():
                self._recorder.record(message)
        slot.expect(Phase.RUNNING, slot.worker.resume.remote(bool(slot.stop_reason)), due=slot.due)

    def _judge(self, trial: str, row: Mapping[str, Any]) -> str:
        """Why a trial must stop after this epoch; "" if it continues.

        Of two that are judged at the same time in two jobs, one sees the row of the other.
        """
        if self._rule is None or trial in self._order.space.further:
            return ""
        if self._order.is_shared and not self._queue.is_closed and self._rule.awaits_verdict(trial, row):
            self._journal.sync()
            self._order.refresh()
        return self._rule.verdict(trial, row)

    def _start_trial(self, slot: Slot) -> None:
        """Start the next trial on a slot.

        If there is none, the slot keeps its GPU, since a failed trial may be retried on it.
        """
        task = self._queue.take(slot.place, self._pool.places, self._order.places)
        task = task or self._queue.fill(self._pool.running_seconds)
        if task is None:
            return
        seconds = task.expected_seconds
        slot.attempt = self._recorder.record(
            Started(
                trial=task.trial,
                attempt=self._queue.start_attempt(task),
                generation=task.generation,
                takeover=task.takeover,
                values=task.values,
                gpus_per_trial=self._gpu_share,
                **slot.location._asdict(),
                expected_seconds=None if seconds is None else round(seconds, 4),
            )
        )
        slot.task, slot.stop_reason, slot.is_cancelled, slot.epochs_before = task, "", False, 0
        request = TrialRequest(
            spec=task.spec,
            trial=task.trial,
            attempt=slot.attempt.number,
            folder=self._setup.trial_folder(task),
            checkpoints=self._setup.checkpoint_folder(task),
            deadline=self._limits.deadline - self._limits.stop_seconds,
            earlier_outputs=self._setup.earlier_outputs(task),
            taken_over=self._setup.taken_over(task),
            bad_checkpoints=task.bad_checkpoints,
            measures_gpu=self._measures_gpu,
        )
        slot.began, slot.paused_before = time.monotonic(), self._order.paused_seconds
        slot.expect(Phase.RUNNING, slot.worker.begin.remote(request), due=slot.began + self._limits.kill_seconds(task))


def can_see_gpu() -> bool:
    """Whether a slot of this Ray has a GPU."""
    return bool(ray.get(ray.remote(num_cpus=1, num_gpus=1)(has_gpu).remote()))
