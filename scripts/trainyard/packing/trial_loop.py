"""Runs the trials of a sweep on slots: one long-lived worker per slot, which gets one trial after another."""

import logging
import math
import signal
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from trainyard.cluster import host
from trainyard.cluster.ray.start import RayEndedError
from trainyard.config.trial_status import CONCLUSIVE, FINAL, WITH_RESULT, TrialStatus
from trainyard.config.trials import full_seconds
from trainyard.config.user_programs import INCOMPLETE, UserProgram
from trainyard.packing.failure_policy import MACHINE_ERROR, TrialFailure
from trainyard.packing.messages import Assignment, TrialMessage
from trainyard.packing.slot_pool import CurrentTrial, Phase, Slot, SlotPool
from trainyard.packing.sweep_run import SweepRun
from trainyard.packing.time_limits import STOP_SECONDS
from trainyard.packing.trial_queue import TrialQueue
from trainyard.packing.workers import WorkerDiedError, Workers
from trainyard.planning.attempts import UNSAVED, Attempt, Piece, whole_seconds, why_given_up
from trainyard.planning.journal import Ended, Epoch, MicroBatchHalved, Resumed, Row, Started
from trainyard.planning.requests import CANCELLED
from trainyard.planning.task import Task
from trainyard.programs.function import INTERRUPTED_ITSELF
from trainyard.programs.metric_rows import find_divergence, shift_epoch
from trainyard.programs.metrics import UNREADABLE_REMEDY, first_unread
from trainyard.programs.runner import MAY_BE_DAMAGED, CheckpointFile, list_checkpoints
from trainyard.programs.trial_messages import EpochReported, TrialEnded, timeout_error
from trainyard.results.retention import remove_checkpoints
from trainyard.utils.errors import ContinuedError, FinalError, UserError, storage_error
from trainyard.utils.guarded_process import forget_completed, wait_for_folder
from trainyard.utils.text import SHELL_SIGNAL, count_of

# The signals of a cancelled job arrive everywhere at about the same time. When workers or programs die first, the
# driver waits this long for its own signal, so that their trials count as interrupted and not as failed.
SIGNAL_SECONDS: Final = 1.0
SYNC_POLL_SECONDS: Final = 0.1  # until an end that could not be synced ends the sweep
RAY_POLL_SECONDS: Final = 1.0  # until the end of the raylet is noticed, also if no worker reports it
SIGNAL_CODES: Final = (-signal.SIGTERM, -signal.SIGINT, SHELL_SIGNAL + signal.SIGTERM, SHELL_SIGNAL + signal.SIGINT)
LOSS_WARNING: Final = (
    "trial %s was interrupted by the end of the walltime and has nothing in its checkpoint_dir: it will start from the "
    "beginning, in a job that requests more time"
)
LOST: Final = "other jobs had given this one up, since it gave no sign of life, and have taken the trial"
log = logging.getLogger(__name__)


def _pieces(task: Task, attempt: Attempt, end: TrialEnded) -> list[Piece]:
    """The last attempts at a task that were interrupted, up to the one that ends now.

    If its program ended by itself before it was complete, only those that did so, too.
    """
    pieces = [Piece(_last_epoch(attempt), end.has_saved)]
    for earlier in reversed(task.earlier):
        is_piece = earlier.outcome is TrialStatus.INTERRUPTED and (earlier.is_incomplete or not _is_incomplete(end))
        if earlier.generation != task.generation or (not is_piece and _is_incomplete(end)):
            break
        if is_piece:  # between two, others may have failed on a checkpoint
            pieces.insert(0, Piece(_last_epoch(earlier), earlier.has_saved))
    return pieces


def _is_incomplete(end: TrialEnded) -> bool:
    return end.error.startswith(INCOMPLETE)


def _last_epoch(attempt: Attempt) -> float | None:
    return attempt.epochs[-1]["epoch"] if attempt.epochs else None


class TrialLoop:
    """Runs trials on slots until none is left, and records everything in the journal."""

    def __init__(self, run: SweepRun, workers: Workers) -> None:
        self._run = run
        self._workers = workers
        self._clock = run.clock
        self.queue = TrialQueue(run)
        self.slots = SlotPool(run, self.queue, workers)
        self._paused_before = run.claims.paused_seconds
        self._awaited = set[Any]()  # answers that had arrived when the loop last waited for a signal
        self._warned = set[str]()  # subjects
        self._interrupted = 0  # trials that ended at the deadline and can continue
        self._is_further = False  # whether one of them got further
        self._why_stalled = ""  # why one did not
        self._interrupted_themselves = 0  # of these, the functions that ended without a request
        # A trial with one of these metrics NaN or infinite has diverged.
        self._monitored = run.state.sweep.monitored_metrics
        self._unreported = set(run.state.sweep.required_metrics)  # by any trial; all trials must report these
        for result in run.state.results:
            self._unreported -= result.metrics.keys()

    def run(self, tasks: Sequence[Task]) -> None:
        """Run all tasks in this order, then what a search draws. Each slot takes the next one as soon as it is free.

        If there is a deadline, a trial starts only if it is expected to end before it, or if it can resume
        and has time to make progress; otherwise a shorter one starts. At the deadline, running trials stop.

        Raises:
            UserError: no slot can be started any more, all trials fail in the same way, a finished trial does not
                report a required metric, or tasks are left at the deadline.
            RayEndedError: only a new Ray can run the tasks that are left.
        """
        self.queue.add(tasks)
        self.slots.start_all(self.queue.waiting)
        try:
            self._run_until_idle()
            while self._run.limits.seconds_left() and self.queue.await_others():
                self._wake_idle()
                if not self.slots.busy:
                    break
                self._run_until_idle()
        except (KeyboardInterrupt, UserError, OSError):  # also of a file system that has lost its server
            self._end_all_trials()
            raise
        finally:
            late = self._end_late_trials()
            self.slots.release()
        self._check_complete(late)

    def _run_until_idle(self) -> None:
        """Run trials until no worker will send a message, or no trial may run any more."""
        run = self._run
        queue = self.queue
        slots = self.slots
        while busy := slots.busy:
            if queue.poll():
                self._end_cancelled_trials()
                self._wake_idle()
            if not queue.waiting and not slots.running:
                return  # the other workers start too late or never; their node may be down
            if self._end_at_budget():
                return
            slots.check_startable()
            by_answer = {slot.answer: slot for slot in busy}
            draws_ahead = queue.lacks_draw(len(busy))  # which takes a while: only if no slot waits
            ready = self._workers.wait(by_answer, seconds=0.0 if draws_ahead else self._wait_seconds(busy))
            if self._workers.have_ended:
                self._clock.sleep(SIGNAL_SECONDS)
                raise RayEndedError(f"Ray has ended on {host.node_name()}: its raylet was killed, or it crashed")
            self._note_pause()
            for answer in ready:
                self._handle_answer(by_answer[answer])
            if ready:
                continue
            if draws_ahead:
                queue.draw_ahead()
            overdue = [slot for slot in busy if slot.due <= self._clock.monotonic()]
            for slot in overdue:
                self._handle_overdue(slot)
            if not overdue and not run.limits.seconds_left():
                return

    def _wake_idle(self) -> None:
        """Wake the idle slots for which a trial waits."""
        self.slots.use_spares()
        self.slots.wake_idle()

    def _wait_seconds(self, busy: Sequence[Slot]) -> float:
        """Seconds until a message is overdue, the deadline is reached, or the journal or Ray must be looked at."""
        due = min(slot.due for slot in busy)
        overdue = max(0.0, due - self._clock.monotonic())
        poll = RAY_POLL_SECONDS if self._run.journal.is_synced() else SYNC_POLL_SECONDS
        return min(poll, overdue, self._run.limits.seconds_left())

    def _note_pause(self) -> None:
        """After a pause of this process, wait so much longer for messages, and for the deadline that Slurm has set."""
        paused = self._run.claims.paused_seconds - self._paused_before
        if paused > 0:
            self._paused_before += paused
            for slot in self.slots.busy:
                slot.due += paused
            self._run.limits.refresh()

    def _handle_overdue(self, slot: Slot) -> None:
        """Handle a trial beyond its timeout, or a worker that does not start."""
        slot.due = math.inf
        if slot.current:
            error = timeout_error(self._run.setup.sweep.timeout_seconds or 0.0)
            self._end(slot.current, TrialEnded(status=TrialStatus.FAILED, error=error))
        else:
            self.slots.handle_late(slot)

    # ---- the start of a trial

    def _start_trial(self, slot: Slot) -> None:
        """Start the next trial on a slot.

        If there is none, the slot keeps its GPU, since a failed trial may be retried on it.
        """
        run = self._run
        setup = self._run.setup
        task = self.queue.take(slot.location, self.slots.places)
        if task is None:
            return
        seconds = task.expected_seconds
        attempt = run.record(
            Started(
                trial=task.trial,
                attempt=self.queue.start_attempt(task),
                generation=task.generation,
                takeover=task.takeover,
                values=task.values,
                gpus_per_trial=run.state.sweep.slots.share,
                **slot.location._asdict(),
                expected_seconds=None if seconds is None else round(seconds, 4),
            )
        )
        began = self._clock.monotonic()
        slot.current = CurrentTrial(slot, task, attempt, began, run.claims.paused_seconds)
        assignment = Assignment(
            spec=task.spec,
            trial=task.trial,
            attempt=attempt.number,
            folder=setup.trial_folder(task),
            checkpoints=setup.checkpoint_folder(task),
            deadline=run.limits.deadline - run.limits.stop_seconds,
            earlier_outputs=setup.earlier_outputs(task),
            taken_over=setup.taken_over(task),
            bad_checkpoints=task.bad_checkpoints,
        )
        slot.expect(Phase.RUNNING, slot.worker.begin.remote(assignment), due=began + run.limits.kill_seconds(task))

    # ---- messages of workers

    def _handle_answer(self, slot: Slot) -> None:
        """Handle the next message of a slot's worker."""
        if not slot.current:
            was_waking = slot.phase is Phase.WAKING
            if self.slots.handle(slot):
                self._start_trial(slot)
                if not was_waking:  # the slot may be on another GPU now, which changes where failed trials may run
                    self.slots.wake_idle()
            return
        try:
            message: TrialMessage = self._workers.receive(slot.answer)
        except WorkerDiedError as error:
            message = TrialEnded(status=TrialStatus.FAILED, error=str(error))
            self._await_signal(slot)
        else:
            match message:
                case TrialEnded(status=TrialStatus.FAILED, exit_code=code) if code in SIGNAL_CODES:
                    self._await_signal(slot)
        self._handle_message(slot.current, message)

    def _await_signal(self, slot: Slot) -> None:
        """Wait for the signal of a cancelled job; once for the workers of a node, which die together."""
        if slot.answer not in self._awaited:
            self._clock.sleep(SIGNAL_SECONDS)
            answers = [busy.answer for busy in self.slots.busy]
            self._awaited = set(self._workers.wait(answers, seconds=0.0, count=len(answers)))

    def _handle_message(self, current: CurrentTrial, message: TrialMessage) -> None:
        """Record a message of a running trial. Let the trial continue or stop, or start the next one."""
        slot = current.slot
        task = current.task
        match message:
            case TrialEnded():
                if self._end(current, message):
                    self._start_trial(slot)
                return
            case EpochReported(row=row, warning=warning, first_step_time=first):
                self._warn_once("metrics", task, warning)
                first_step_time = first if first and row["epoch"] == 1 else None
                row = shift_epoch(row, current.epochs_before)
                number = current.attempt.number
                self._run.record(Epoch(trial=task.trial, attempt=number, metrics=row, first_step_time=first_step_time))
                current.stop_reason = self._judge(task.trial, row)
            case Resumed(checkpoint=checkpoint):
                metrics = self._run.setup.sweep.program_metrics
                if metrics and metrics.numbers_rows:
                    current.epochs_before = task.epochs_before(CheckpointFile(**checkpoint))
                self._run.record(message)
            case MicroBatchHalved():
                self._run.record(message)
        slot.expect(Phase.RUNNING, slot.worker.resume.remote(bool(current.stop_reason)), due=slot.due)

    def _judge(self, trial: str, row: Row) -> str:
        """Why a trial must stop after this epoch; "" if it continues.

        Of two that are judged at the same time in two jobs, one sees the row of the other.
        """
        run = self._run
        if run.rule is None:
            return ""
        if run.claims.is_shared and not self.queue.is_closed and run.rule.awaits_verdict(trial, row):
            run.journal.sync()
            run.claims.refresh()
        return run.rule.verdict(trial, row)

    def _warn_once(self, subject: str, task: Task, warning: str) -> None:
        """Log only the first warning on a subject, because it usually applies to all trials."""
        if warning and subject not in self._warned:
            self._warned.add(subject)
            log.warning("trial %s: %s", task.trial, warning)

    # ---- the end of a trial

    def _end(self, current: CurrentTrial, end: TrialEnded) -> bool:
        """Record how an attempt ended, and do what follows; returns whether the slot is ready for the next trial."""
        slot = current.slot
        task = current.task
        is_cancelled = current.is_cancelled and not self.queue.is_closed
        goes_on = end.status is TrialStatus.INTERRUPTED and _is_incomplete(end)
        if goes_on and (why := why_given_up(_pieces(task, current.attempt, end))):
            end = replace(end, status=TrialStatus.FAILED, error=f"{end.error}; {why}")
        has_failed = end.status is TrialStatus.FAILED and not is_cancelled and not self.queue.is_closed
        was_stopped = end.status is TrialStatus.STOPPED
        self._warn_once("metrics", task, end.warning)
        if end.seconds is not None:
            paused = self._run.claims.paused_seconds - current.paused_before
            end = replace(end, seconds=max(0.0, end.seconds - paused))
        status, error = self._judge_end(end)
        if is_cancelled and end.status in (TrialStatus.FAILED, TrialStatus.INTERRUPTED):
            has_lost = self._run.claims.has_lost(task.trial, current.attempt.number)
            status = TrialStatus.INTERRUPTED
            error = LOST if has_lost else CANCELLED
        output = end.output
        if has_failed and not output:
            output = str(self._write_log(current.attempt, end.traceback or end.error))
        failure = end.error if has_failed and status is TrialStatus.DIVERGED else None
        end = replace(end, status=status, error=error)
        if status is TrialStatus.INTERRUPTED and not goes_on:
            end = self._judge_progress(current, end)
        is_retried = status is TrialStatus.FAILED and not goes_on and self._decide_retry(current, end)
        goes_on = goes_on and status is TrialStatus.INTERRUPTED and not is_cancelled
        self._record_end(
            current,
            end,
            why=current.stop_reason if was_stopped else None,
            rule=self._run.rule.content if was_stopped and self._run.rule else None,
            log=output if status in (TrialStatus.DIVERGED, TrialStatus.UNREADABLE, TrialStatus.FAILED) else None,
            failure=failure,
            retried=is_retried or goes_on if status is TrialStatus.FAILED or goes_on else None,
            has_saved=end.has_saved or None,
        )
        if status in FINAL:
            if status in (TrialStatus.FINISHED, TrialStatus.UNREADABLE):
                seconds = whole_seconds([*task.earlier, current.attempt], current.attempt) or 0.0
                self.queue.note_finished(task.trial, full_seconds(task.spec, seconds, end.metrics))
                self._check_metrics(task, end)
            self.queue.update_order()
        elif is_retried:
            self.queue.add([replace(task, earlier=(*task.earlier, current.attempt))])
        elif is_cancelled:
            self._run.claims.release(task.trial)
            log.info("trial %s: %s", task.trial, error)
        elif goes_on and not self.queue.is_closed:
            log.info("trial %s: %s; it goes on", task.trial, error)
            self.queue.go_on(replace(task, earlier=(*task.earlier, current.attempt)))
        elif status is TrialStatus.INTERRUPTED:
            self._interrupted += 1
            self._interrupted_themselves += end.interrupts_itself
            if not end.interrupts_itself:
                slot.worker = None
            return end.interrupts_itself
        if has_failed or is_cancelled:
            self.slots.replace_worker(slot)
        if has_failed:
            self._check_common_failure()
            self.slots.wake_idle()
        return not has_failed and not is_cancelled

    def _judge_progress(self, current: CurrentTrial, end: TrialEnded) -> TrialEnded:
        """Note whether an interrupted trial got further; returns its end, with whether it has saved a checkpoint.

        Trainyard's own training takes a step, unless it hangs.
        """
        task, attempt = current.task, current.attempt
        if not isinstance(task.spec, UserProgram):
            self._is_further |= bool(end.error)
            return end
        of_function = list_checkpoints(self._run.setup.checkpoint_folder(task), "*")
        is_new = any(each.modified_ns / 1e9 > attempt.start for each in of_function)
        end = replace(end, has_saved=end.has_saved or is_new)
        why = why_given_up(_pieces(task, attempt, end)) if end.has_saved else UNSAVED
        self._is_further |= not why
        self._why_stalled = self._why_stalled or why
        return end

    def _judge_end(self, end: TrialEnded) -> tuple[TrialStatus, str]:
        """The status with which an attempt is recorded, and its error."""
        has_failed = end.status is TrialStatus.FAILED
        if has_failed and self.queue.is_closed:  # the job's signal ended it
            return TrialStatus.INTERRUPTED, end.error
        unread = first_unread(end.unread, self._monitored)
        if end.status is TrialStatus.FINISHED and unread:
            return TrialStatus.UNREADABLE, unread
        diverged = find_divergence(end.metrics, self._monitored)
        if has_failed and MACHINE_ERROR.search(end.error):
            diverged = ""
        if diverged and (has_failed or _is_incomplete(end) or end.status in WITH_RESULT):
            return TrialStatus.DIVERGED, diverged  # many programs fail then, and would again
        return end.status, end.error

    def _decide_retry(self, current: CurrentTrial, end: TrialEnded) -> bool:
        seconds = self._clock.monotonic() - current.began
        task = current.task
        attempt = current.attempt
        before = [row["epoch"] for each in task.earlier for row in each.epochs[-1:]]
        is_further = bool(attempt.epochs) and attempt.epochs[-1]["epoch"] > max(before, default=-math.inf)
        resumed = attempt.resumed is not None and not is_further
        place = current.slot.location
        failure = TrialFailure(task.trial, place, end.error, seconds, end.exit_code, task.values, resumed=resumed)
        is_retried = self._run.failures.record_failure(failure)
        if is_retried and attempt.resumed and failure.may_be_of_checkpoint:
            log.warning("trial %s: it failed on %s, %s", task.trial, attempt.resumed.name, MAY_BE_DAMAGED)
        return is_retried

    def _record_end(self, current: CurrentTrial, end: TrialEnded, **further: Any) -> None:
        """Record how the trial of a slot ended, with `further` fields of the event. The slot becomes idle.

        The first end counts: a signal may arrive after it was recorded, and then the slot still seems to run the trial.
        """
        attempt = current.attempt
        if attempt.outcome is TrialStatus.RUNNING:
            seconds = None if end.status is TrialStatus.INTERRUPTED else end.seconds
            event = Ended(
                trial=attempt.trial,
                attempt=attempt.number,
                status=end.status,
                metrics=end.metrics if end.status in WITH_RESULT else None,
                error=end.error or None,
                seconds=None if seconds is None else round(seconds, 4),
                precision=end.precision,
                exit_code=end.exit_code,
                output=end.output,
                tail=end.tail,
                hidden_error=end.hidden_error or None,
                progress=end.progress._asdict() if end.progress else None,
                units=end.units,
                # Without it, the output is read again: the journal may lack rows.
                metrics_digest=None if self._run.journal.is_incomplete else end.metrics_digest,
                energy_kwh=end.energy_kwh,
                **further,
            )
            then: Callable[[], object] | None = None
            if end.status in CONCLUSIVE:  # once the event is on the disk
                then = partial(remove_checkpoints, self._run.setup.checkpoint_folder(current.task))
            self._run.record(event, then=then)
            if end.exit_code == 0 and end.output:
                forget_completed(Path(end.output))
        current.slot.current = None
        current.slot.expect(Phase.IDLE, None)

    def _write_log(self, attempt: Attempt, text: str) -> Path:
        """Write the log of a failed attempt.

        Other attempts have none, because file systems limit the number of files.
        """
        path = self._run.setup.folder / "logs" / f"{attempt.trial}-{attempt.number}.log"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text.rstrip() + "\n", encoding="utf-8", errors="backslashreplace")
        except OSError as error:  # a log must not end a sweep
            log.warning("the log of a failed trial is not kept: %s", storage_error(error, path) or error)
        return path

    def _check_metrics(self, task: Task, end: TrialEnded) -> None:
        """Check that some trial has reported each metric by which trials are compared, now that one has finished.

        Raises:
            FinalError: none has.
        """
        is_needed = bool(self._unreported) and not self.queue.is_closed
        if end.status is TrialStatus.UNREADABLE:
            warning = f"{end.error}; see {end.output}. {UNREADABLE_REMEDY}"
            if is_needed:
                raise FinalError(f"search and early stopping need the metrics of trial {task.trial}: {warning}")
            self._warn_once("unreadable", task, warning)
            return
        self._unreported -= end.metrics.keys()
        if not self._unreported or not is_needed:
            return
        missing = ", ".join(sorted(self._unreported))
        reported = ", ".join(end.metrics) or "no metrics"
        remedy = self._run.setup.sweep.report_remedy
        raise FinalError(
            f"trial {task.trial} has finished, but does not report {missing}, by which trials are compared; it "
            f"reports {reported}: {remedy}name a reported one as `metric`"
        )

    def _check_common_failure(self) -> None:
        """Check that not all trials fail in the same way.

        Raises:
            FinalError: they do.
        """
        run = self._run
        now = self._clock.monotonic()
        running_seconds = [now - current.began for current in self.slots.running]
        failure = run.failures.common_failure([*self.slots.known_places, *run.claims.places], running_seconds)
        if failure and (failure.is_of_start or not self.queue.awaits_probe(failure.trial)):
            raise FinalError(
                "stopped: the first trials failed in the same way, and none has succeeded: "
                f"{failure.error}. Correct it and run the same command; with `max_failed_fraction: 1`, all trials run "
                "anyway"
            )

    # ---- trials that end before their end

    def _end_cancelled_trials(self) -> None:
        """Request the end of the trials that users have cancelled or others taken; they may save a checkpoint first."""
        claims = self._run.claims
        for current in self.slots.running:
            trial = current.task.trial
            is_unwanted = trial in claims.cancelled or claims.has_lost(trial, current.attempt.number)
            if is_unwanted and not current.is_cancelled:
                current.is_cancelled = True
                current.slot.due = self._clock.monotonic() + self._run.setup.sweep.end_seconds + STOP_SECONDS
                current.slot.request_stop()

    def _end_at_budget(self) -> bool:
        """End the running trials if the budget is reached; returns whether it is."""
        if self._run.claims.must_stop_by() - self._run.limits.stop_seconds > self._clock.time():
            return False
        log.info("the budget is reached: running trials end")
        self._end_all_trials()
        return True

    def _end_all_trials(self) -> None:
        """End the running trials, which may save a checkpoint within the grace period, and start no others."""
        setup = self._run.setup
        workers = self._workers
        self.queue.is_closed = True
        running = self.slots.running
        if not running:
            return
        count = count_of(len(running), "running trial")
        seconds = setup.sweep.end_seconds
        if setup.sweep.can_resume:
            log.info("%s may take up to %g s to save a checkpoint", count, seconds)
        else:
            log.info("%s may take up to %g s to end; a trial without a checkpoint starts again", count, seconds)
        deadline = self._clock.monotonic() + setup.sweep.end_seconds + STOP_SECONDS
        for current in running:
            current.slot.request_stop()
        while by_answer := {each.slot.answer: each for each in running if each.slot.answer is not None}:
            seconds_left = max(0.0, deadline - self._clock.monotonic())
            ready = workers.wait(by_answer, seconds=seconds_left)
            if not ready:
                return
            current = by_answer[ready[0]]
            try:
                message = workers.receive(current.slot.answer)
            except WorkerDiedError:  # then the guard ends its command
                if setup.sweep.trial_grace_seconds:
                    wait_for_folder(setup.trial_folder(current.task), timeout_seconds=seconds_left)
                message = TrialEnded(status=TrialStatus.INTERRUPTED)
            self._handle_message(current, message)

    def _end_late_trials(self) -> int:
        """Record the attempts that still run as interrupted, as at the deadline; returns how many."""
        running = self.slots.running
        for current in running:
            if not self._run.limits.seconds_left() and not self._run.setup.sweep.saves_by_itself:
                checkpoints = self._run.setup.checkpoint_folder(current.task)
                if not (checkpoints.exists() and any(checkpoints.iterdir())):
                    log.warning(LOSS_WARNING, current.task.trial)
            end = self._judge_progress(current, TrialEnded(status=TrialStatus.INTERRUPTED))
            self._record_end(current, end, has_saved=end.has_saved or None)
        return len(running)

    # ---- the end of the run

    def _check_complete(self, late: int) -> None:
        """Check whether trials are left, and whether another job runs them. `late` ones did not end by themselves.

        Raises:
            UserError: they are left, and none does.
        """
        claims = self._run.claims
        queue = self.queue
        interrupted = self._interrupted + late
        trials_left = queue.waiting + interrupted
        if not trials_left and not queue.is_closed:
            return
        if queue.is_closed or queue.is_over_budget():
            claims.note_budget_reached()
            return
        count = count_of(trials_left, "trial")
        if not interrupted and claims.is_held:
            log.info("%s left to the jobs that go on, or that follow", count)
            return
        if not interrupted and queue.is_left_to_others(self.slots.places):
            log.info("%s left to other jobs, which have better places for them", count)
            return
        can_continue = "the same command continues from here, and on Slurm the next job"
        if trials_left == self._interrupted_themselves:
            raise UserError(f"{count} left, of which each {INTERRUPTED_ITSELF[3:]}: {can_continue}")
        stopped = f"stopped before the end of the walltime with {count} left"
        sweep = self._run.setup.sweep
        can_resume = sweep.can_resume
        if queue.longest_seconds or (can_resume and self._is_further):
            raise ContinuedError(f"{stopped}: {can_continue}")
        if can_resume and self._why_stalled:
            raise UserError(f"{stopped}: {self._why_stalled}; raise `walltime`, or correct how the program resumes")
        setting = f"walltime: {sweep.walltime}" if sweep.walltime else "walltime"
        remedy = f"none could end in time: raise `{setting}` of the sweep, or `runtime` where `set-resources` has it"
        if not can_resume:
            remedy += "; these trials cannot resume"
            if interrupted and not sweep.walltime:
                remedy += ", so that retries request more time, unless `runtime` is set"
        raise UserError(f"{stopped}: {remedy}")
