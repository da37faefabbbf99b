"""Packing: one long-lived worker per slot is fed trials, longest first, and everything goes into the journal."""

import logging
import math
import shutil
import signal
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError

from trainyard.cluster import slurm_allocation
from trainyard.config.sweep import Slots
from trainyard.config.trial_status import TrialStatus
from trainyard.config.user_programs import UserProgram
from trainyard.packing.failure_policy import Failure, FailurePolicy
from trainyard.packing.gpu_sharing import Use, has_gpu
from trainyard.packing.slot import Slot
from trainyard.packing.worker import Order, Setting, Worker
from trainyard.planning.early_stopping import Rule
from trainyard.planning.journal import (
    PLACE,
    Ended,
    Epoch,
    Halved,
    Journal,
    Resumed,
    SlotDown,
    SlotUp,
    Started,
    TrialEvent,
)
from trainyard.planning.task import Source, Task
from trainyard.programs.command import blames_checkpoint
from trainyard.programs.metrics import UNREADABLE_REMEDY, divergence
from trainyard.programs.process import wait_until_free
from trainyard.utils.errors import UserError

START_ATTEMPTS = 3  # a slot whose worker cannot start this often in a row is given up: its node must be broken
# A job that is cancelled gets its signals everywhere at about the same time: if the death of a worker or a program is
# heard of first, the driver's own signal is given this long to arrive, so that the trial counts as interrupted and not
# as failed.
SIGNAL_SECONDS = 1.0
TOLD_TO_END = (-signal.SIGTERM, -signal.SIGINT, 128 + signal.SIGTERM, 128 + signal.SIGINT)  # exit codes; two of a shell
STOP_SECONDS = 5.0  # that a trial has, when time is up, to stop at its next step and to write where it is
WORTHWHILE_SECONDS = 120.0  # a trial that cannot end in time, but resumes, is started if it can train for so long
START_SECONDS = 300.0  # after which no trial waits any more for a slot to come up
OVERDUE_SECONDS = 15.0  # that a worker has to end a command by itself at its timeout, before it is killed
log = logging.getLogger(__name__)


class Packer:
    """Runs tasks on slots until none is left. The journal tells all that happened; `on_event` sees it as it does.

    With `look`, it is measured what trials take of their GPU. A `rule` says which to end early. A trial that
    ends with one of `metrics` NaN or infinite has diverged. All trials must tell those in `untold`; none has so far.
    """

    def __init__(
        self,
        journal: Journal,
        *,
        slots: Slots,
        setting: Setting,
        failures: FailurePolicy,
        allocation: slurm_allocation.Allocation | None = None,
        look: bool = False,
        rule: Rule | None = None,
        metrics: Iterable[str] = (),
        untold: Iterable[str] = (),
        source: Source | None = None,
        predict: Callable[[list[str], dict[str, float]], list[tuple[float, float]]] | None = None,
        on_event: Callable[[TrialEvent], None] = lambda event: None,
    ) -> None:
        self._journal, self._on_event, self._setting = journal, on_event, setting
        self._failures, self._predict = failures, predict
        self._rule, self._source = rule, source
        self._metrics, self._untold = set(metrics), set(untold)
        self._finished: dict[str, float] = {}  # seconds by trial, of this run
        self._predict_at = 1  # finished trials, next time
        self._allocation = allocation
        self._gpu_model = allocation.gpu_model if allocation else ""
        self._options = {"num_cpus": slots.cpus_per_trial, "num_gpus": slots.share, "max_restarts": 0}
        self._share, self._look = slots.share, look
        self.uses: list[Use] = []  # what trials took of their GPUs, if they were looked at
        self._slots = [Slot(number) for number in range(slots.count)]
        self._queue: deque[Task] = deque()
        self._tried_now: dict[str, int] = {}
        self._longest_seen = 0.0  # seconds
        self._warned = set[str]()  # of what
        self._over = False  # whether nothing is to start any more
        self._stopped = 0  # trials that have kept where they were when time was up

    def run(self, tasks: list[Task]) -> None:
        """Run all tasks in this order, and then the source's, each slot taking the next one as soon as it is free.

        In an `allocation` that ends, no trial starts that is not expected to end by its deadline, unless it can resume
        and has time to train for a while. A shorter one takes its place. Trials that still run at the deadline stop.

        Raises:
            UserError: no slot can be started any more, all trials fail in the same way, a finished trial does not tell
                what it must, or the deadline left some tasks undone.
        """
        self._queue = deque(tasks)
        del self._slots[self._waiting :]
        for slot in self._slots:
            self._start_worker(slot)
        try:
            while busy := [slot for slot in self._slots if slot.waits_for is not None]:
                if not self._waiting and all(slot.task is None for slot in busy):
                    break  # these come up too late, or never: their node may be gone
                self._check_workers_start()
                answers = {slot.waits_for: slot for slot in busy}
                ready, _ = ray.wait(list(answers), num_returns=1, timeout=self._patience(busy), fetch_local=False)
                for answer in ready:
                    self._hear(answers[answer])
                if not ready and not self._end_overdue(busy) and self._seconds_left() == 0:
                    break
        except (KeyboardInterrupt, UserError):
            self._end_commands()
            raise
        finally:
            given_up = self._record_interrupted()
            for slot in self._slots:
                slot.worker = None  # dropping the last handle ends the process and frees its memory
        left = self._waiting + given_up + self._stopped
        if left:
            remedy = "the same command continues from here, and so do Snakemake's retries"
            if not self._longest_seen and not self._stopped:
                remedy = "none could end in time: ask for a longer walltime (the resource `runtime`, in minutes)"
                remedy += "" if self._setting.resumes else ", for they cannot resume"
            raise UserError(f"stopped before the end of the walltime, {left} trials are left: {remedy}")

    @property
    def _waiting(self) -> int:
        """Tasks that have not begun."""
        return 0 if self._over else len(self._queue) + (self._source.open if self._source else 0)

    def _patience(self, busy: list[Slot]) -> float | None:
        """Seconds until something must be done though nobody has said anything; None: nothing ever must."""
        due = min(slot.due for slot in busy)
        times = [self._seconds_left()] + ([] if math.isinf(due) else [max(0.0, due - time.monotonic())])
        return min((seconds for seconds in times if seconds is not None), default=None)

    def _end_overdue(self, busy: list[Slot]) -> bool:
        """Kill what has not ended at its timeout, and wait no more for who does not come up; whether there was any."""
        overdue = [slot for slot in busy if slot.due <= time.monotonic()]
        for slot in overdue:
            slot.due = math.inf
            if slot.task is None:
                slot.late = True
                self._feed_idle()
            else:
                minutes = (self._setting.timeout_seconds or 0.0) / 60
                self._fail(slot, error=f"it took longer than its timeout_minutes, {minutes:g}")
        return bool(overdue)

    def _check_workers_start(self) -> None:
        """See that not all slots wait in vain. The first start of a slot may take long: it may copy the data."""
        if not all(slot.late for slot in self._live):
            return
        nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
        if any(slot.place for slot in self._live) or not any(node["Alive"] for node in nodes):
            raise UserError(f"Ray does not start workers any more: none has come up in {START_SECONDS:g} s, and "
                            f"{self._waiting} trials wait. The same command continues from here")  # fmt: skip

    def _end_commands(self) -> None:
        """Have the commands that run end, with their grace, and hear how they did; nothing starts any more."""
        self._over, self._source = True, None
        grace = self._setting.grace_seconds
        slots = [slot for slot in self._slots if slot.answer is not None and grace and not slot.starting]
        if not slots:
            return
        log.info("%d programs have up to %g s to end", len(slots), grace)
        end = time.monotonic() + grace + STOP_SECONDS
        for slot in slots:
            slot.worker.tell_to_end.options(concurrency_group="control").remote()
        while running := {slot.answer: slot for slot in slots if slot.answer is not None}:
            left = end - time.monotonic()
            ready, _ = ray.wait(list(running), num_returns=1, timeout=max(0.0, left), fetch_local=False)
            if not ready:
                return
            self._hear_of_end(running[ready[0]], left)

    def _hear_of_end(self, slot: Slot, seconds: float) -> None:
        """Take in what a slot says when the sweep is over; without its worker, its command ends by itself."""
        assert slot.task is not None
        try:
            self._take(slot, ray.get(slot.answer))
        except RayError:  # the workers of a job that is cancelled get SIGTERM, too
            wait_until_free(self._folder_of(slot.task), seconds=seconds)
            self._end_attempt(slot, TrialStatus.INTERRUPTED)

    # ---- one slot

    def _start_worker(self, slot: Slot) -> None:
        # `tell_to_end` needs a thread of its own. With it, Ray runs nothing in a worker's main thread, where training
        # belongs: so only for commands.
        grouped = ray.remote(concurrency_groups={"control": 1})  # type: ignore[call-overload]  # Ray's stubs lack it
        made = grouped(Worker) if self._setting.grace_seconds else ray.remote(Worker)
        slot.worker = made.options(**self._options).remote()
        slot.starting = slot.worker.start.remote(self._setting)
        slot.due = time.monotonic() + START_SECONDS

    def _hear(self, slot: Slot) -> None:
        """Take in one message of a slot."""
        if slot.starting is not None:
            self._hear_of_start(slot)
        elif slot.checking is not None:
            self._hear_of_check(slot)
        elif slot.waking is not None:
            self._hear_of_waking(slot)
        else:
            try:
                message = ray.get(slot.answer)
            except RayError as error:
                time.sleep(SIGNAL_SECONDS)
                self._fail(slot, error=_death(error))
            else:
                if "failed" in message and message.get("exit_code") in TOLD_TO_END:
                    time.sleep(SIGNAL_SECONDS)
                self._take(slot, message)

    def _hear_of_start(self, slot: Slot) -> None:
        starting, slot.starting, slot.due, slot.late = slot.starting, None, math.inf, False
        try:
            place = ray.get(starting)
        except RayTaskError as error:  # what went wrong will go wrong again
            why = str(error.cause) if isinstance(error.cause, UserError) else repr(error.cause)
            self._retire(slot, f"slot {slot.number} cannot be started: {why}")
            return
        except RayActorError as error:
            self._start_again(slot, error)
            return
        place |= {"slot": slot.number, "gpu_model": self._gpu_model}
        slot.place = {name: place[name] for name in PLACE}
        if place["copy"]:
            log.info("%s", place["copy"])
        spent = {name: value for name, value in place.items() if name not in PLACE}
        self._journal.record(SlotUp(slot=slot.number, spent=spent))
        if len(self._live) > 1 and self._failures.is_suspect(slot.where):
            slot.checking = slot.worker.check_gpu.remote()
            return
        slot.failed_starts = 0
        self._next_trial(slot)
        self._feed_idle()  # now that it is known where this one is

    def _start_again(self, slot: Slot, error: RayError) -> None:
        """The process of a slot ended before it could run a trial."""
        slot.worker = None
        slot.failed_starts += 1
        if slot.failed_starts >= START_ATTEMPTS:
            self._retire(slot, f"slot {slot.number} cannot be started: {_death(error)}")
        elif self._waiting:
            self._start_worker(slot)

    def _hear_of_check(self, slot: Slot) -> None:
        checking, slot.checking = slot.checking, None
        try:
            is_broken, found = ray.get(checking)
        except RayError as error:
            self._start_again(slot, error)
            return
        count = self._failures.in_a_row(slot.where)
        if len(self._live) > 1 and (is_broken or self._failures.is_to_blame(slot.where)):
            elsewhere = f"{self._failures.finished_elsewhere(slot.where)} of them finished elsewhere"
            self._retire(slot, f"{slot} is retired: {count} trials in a row failed there, {elsewhere}; "
                               f"check of its GPU: {found}")  # fmt: skip
            return
        log.warning("%s: %d trials in a row failed there; check of its GPU: %s", slot, count, found)
        slot.failed_starts = 0
        self._next_trial(slot)
        self._feed_idle()  # as after a start: this slot's process may have been given another GPU

    @property
    def _live(self) -> list[Slot]:
        """The slots that are not given up."""
        return [slot for slot in self._slots if not slot.retired]

    def _retire(self, slot: Slot, why: str) -> None:
        """Go on without a slot: one broken GPU is no reason to give up the others.

        A process that it still has goes on holding the GPU, which Ray would else give to another slot.
        """
        slot.retired = True
        if not self._live:
            raise UserError(why)
        log.warning("%s; going on with %d of %d slots", why, len(self._live), len(self._slots))
        self._journal.record(SlotDown(slot=slot.number, error=why))
        self._feed_idle()

    def _feed_idle(self) -> None:
        """Wake the slots that have nothing to do, where there is something for them now."""
        for slot in self._live:
            if slot.waits_for is not None or not self._has_work_for(slot):
                continue
            if slot.worker is None:
                self._start_worker(slot)
            else:
                slot.waking = slot.worker.wake.remote()
                slot.due = time.monotonic() + START_SECONDS

    def _hear_of_waking(self, slot: Slot) -> None:
        """It is seen that an idle slot is still there before it gets a trial, which would else lose an attempt."""
        waking, slot.waking, slot.due, slot.late = slot.waking, None, math.inf, False
        try:
            ray.get(waking)
        except RayError as error:
            self._start_again(slot, error)
        else:
            self._next_trial(slot)

    def _next_trial(self, slot: Slot) -> None:
        task = self._next_task(slot)
        if task is None:
            return  # it goes on holding its GPU: a trial that fails elsewhere is tried again here
        tried = self._tried_now.get(task.trial, 0) + 1
        self._tried_now[task.trial] = tried
        slot.task, slot.attempt = task, task.earlier_attempts + tried
        expected = {} if task.expected_seconds is None else {"expected_seconds": round(task.expected_seconds, 4)}
        self._record(slot, Started, generation=task.generation, values=task.values, gpus_per_trial=self._share,
                     **slot.place, **expected)  # fmt: skip
        order = Order(
            spec=task.spec.model_dump(mode="json", exclude_defaults=True),
            trial=task.trial,
            attempt=slot.attempt,
            folder=self._folder_of(task),
            checkpoints=self._checkpoints_of(task),
            deadline=self._deadline - self._stop_seconds,
            bad_checkpoints=task.bad_checkpoints,
            looked_at=self._look,
        )
        slot.began = time.monotonic()
        slot.due = slot.began + self._limit_of(task)
        slot.pruned, slot.resumed = "", None
        slot.answer = slot.worker.begin.remote(order)

    def _limit_of(self, task: Task) -> float:
        """Seconds after which a trial's process is killed; infinite without a timeout."""
        limit = self._setting.timeout_seconds
        if limit is None:
            return math.inf
        is_command = isinstance(task.spec, UserProgram) and task.spec.command
        return limit + (OVERDUE_SECONDS + self._setting.grace_seconds if is_command else 0.0)

    def _correct_order(self) -> None:
        """Predict anew what waits, whenever a quarter more has finished, and put the longest first again."""
        if self._predict is None or len(self._finished) < self._predict_at or not self._queue:
            return
        self._predict_at = len(self._finished) + 1 + len(self._finished) // 4
        seconds = self._predict([task.trial for task in self._queue], self._finished)
        expected = zip(self._queue, seconds, strict=True)
        tasks = [replace(task, expected_seconds=each, least_seconds=least) for task, (each, least) in expected]
        tasks.sort(key=lambda task: (self._tried_now.get(task.trial, 0), -(task.expected_seconds or 0.0)))
        self._queue = deque(tasks)

    def _next_task(self, slot: Slot) -> Task | None:
        """The first task in the queue for a slot, taken off it; or the source's."""
        if task := self._in_queue(slot):
            self._queue.remove(task)
            return task
        return self._source.next_task() if self._source and self._is_worthwhile(None) else None

    def _in_queue(self, slot: Slot) -> Task | None:
        """The first task in the queue that suits a slot and is worth beginning before the deadline."""
        if self._over:
            return None
        others = [other.where for other in self._live if not other.late]
        witnesses = self._failures.witnesses  # they go first, so that a broken GPU fails few trials
        tasks = sorted(self._queue, key=lambda task: task.trial not in witnesses) if witnesses else self._queue
        for task in tasks:
            if self._is_worthwhile(task) and self._failures.suits(task.trial, slot.where, others):
                return task
        return None

    def _has_work_for(self, slot: Slot) -> bool:
        is_source_open = self._source is not None and self._source.open > 0
        return self._in_queue(slot) is not None or (is_source_open and self._is_worthwhile(None))

    def _is_worthwhile(self, task: Task | None) -> bool:
        """Whether there is time for a trial, None being one that is still to be drawn.

        One that resumes must be expected to end, or have time to train for a while; another one must be able to end.
        """
        left = self._seconds_left()
        if left is None:
            return True
        needed = None
        if task:
            needed = task.expected_seconds if self._setting.resumes else task.least_seconds
        if (self._longest_seen if needed is None else needed) <= left - self._stop_seconds:
            return True
        return self._setting.resumes and left - self._setting.grace_seconds >= WORTHWHILE_SECONDS

    @property
    def _stop_seconds(self) -> float:
        """Seconds before the deadline at which trials must stop."""
        return STOP_SECONDS + self._setting.grace_seconds

    @property
    def _deadline(self) -> float:
        """Unix seconds; infinite without one."""
        return self._allocation.deadline if self._allocation else math.inf

    def _seconds_left(self) -> float | None:
        """Seconds until the deadline, at least 0; None without one."""
        return None if math.isinf(self._deadline) else max(0.0, self._deadline - time.time())

    def _take(self, slot: Slot, message: dict[str, Any]) -> None:
        """Take in what the trial of a slot says, and answer."""
        assert slot.task is not None
        if "warning" in message:
            self._warn_once("metrics", slot, message["warning"])
        if "epoch" in message:
            row, first = message["epoch"], message.get("first_step_time")
            self._record(slot, Epoch, metrics=row, first_step_time=first if first and row["epoch"] == 1 else None)
            if self._rule:
                slot.pruned = self._rule.verdict(slot.task.trial, message["epoch"])
            slot.answer = slot.worker.go_on.remote(bool(slot.pruned))
            return
        if "resumed" in message:
            slot.resumed = message["resumed"]
            self._record(slot, Resumed, checkpoint=message["resumed"]._asdict())
            slot.answer = slot.worker.go_on.remote(False)
            return
        if "halved" in message:
            self._record(slot, Halved, **message["halved"])
            slot.answer = slot.worker.go_on.remote(False)
            return
        said = {
            name: message[name] for name in ("precision", "exit_code", "output", "tail", "heard") if name in message
        }
        seconds = round(message["seconds"], 4) if "seconds" in message else None
        if "stopped" in message or (self._over and "failed" in message):  # the signal of the job has ended it
            self._stopped += 1
            self._end_attempt(slot, TrialStatus.INTERRUPTED, error=message.get("stopped") or message["failed"], **said)
            slot.worker = None
            return
        if "failed" in message:
            trace = message["traceback"]
            self._fail(slot, error=message["failed"], seconds=seconds, trace=trace, **said)
            return
        if "unreadable" in message:
            self._take_unreadable(slot, message["unreadable"], seconds=seconds or 0.0, **said)
        else:
            self._take_result(slot, message, seconds=seconds or 0.0, **said)
        self._next_trial(slot)

    def _fail(self, slot: Slot, *, error: str, seconds: float | None = None, trace: str = "", **said: Any) -> None:
        """An attempt has failed: its trial is tried again elsewhere, and the slot goes on with a fresh process.

        What a failed trial leaves in its process, such as an error of CUDA, would fail all that follow.
        """
        assert slot.task is not None
        task, took = slot.task, time.monotonic() - slot.began
        failure = Failure(task.trial, slot.where, error, took, said.get("exit_code"), task.values)
        again = self._failures.failed(failure)
        path = said.get("output") or self._write_log(task.trial, slot.attempt, trace or error)
        self._end_attempt(slot, TrialStatus.FAILED, error=error, seconds=seconds, **said, log=str(path), retried=again)
        if again:
            bad = (slot.resumed,) if slot.resumed and blames_checkpoint(error) else ()
            self._queue.append(replace(task, bad_checkpoints=(*task.bad_checkpoints, *bad)))
        ray.kill(slot.worker)
        slot.worker = None
        if self._waiting:
            self._start_worker(slot)
        self._check_hope()
        self._feed_idle()

    def _check_hope(self) -> None:
        """See that not all trials fail in the same way."""
        running = [time.monotonic() - slot.began for slot in self._slots if slot.task is not None]
        if shared := self._failures.fault_of_all([slot.where for slot in self._live if slot.place], running):
            raise UserError("stopped: the first trials failed in the same way, and none has succeeded: "
                            f"{shared.error}. Correct it and run the same command; with `max_failed_fraction: 1`, all "
                            "trials run in spite of that")  # fmt: skip

    def _take_unreadable(self, slot: Slot, error: str, *, seconds: float, output: str, **said: Any) -> None:
        """A program has done its work, but told no metrics: it is no failure, and its output is kept."""
        assert slot.task is not None
        warning, trial = f"{error}; see {output}. {UNREADABLE_REMEDY}", slot.task.trial
        self._warn_once("unreadable", slot, warning)
        self._failures.succeeded(trial, slot.where)
        self._longest_seen = max(self._longest_seen, seconds)
        self._finished[trial] = seconds
        self._end_attempt(slot, TrialStatus.UNREADABLE, error=error, seconds=seconds, log=output, output=output, **said)
        if self._untold and not self._over:  # a search would be blind
            raise UserError(f"trial {trial}, by the metrics of which others are drawn or ended: {warning}")
        self._correct_order()

    def _warn_once(self, of: str, slot: Slot, warning: str) -> None:
        """What is true of one trial of a sweep will be true of others."""
        assert slot.task is not None
        if of not in self._warned:
            self._warned.add(of)
            log.warning("trial %s: %s", slot.task.trial, warning)

    def _take_result(self, slot: Slot, message: dict[str, Any], *, seconds: float, **said: Any) -> None:
        """A trial has finished, was ended early, or has diverged."""
        task = slot.task
        assert task is not None
        metrics = message.get("finished") or message.get("pruned") or {}
        if why := message.get("diverged") or divergence(metrics, self._metrics):
            early = {"early": slot.pruned} if "pruned" in message else {}
            self._end_attempt(slot, TrialStatus.DIVERGED, error=why, seconds=seconds, **early, **said)
            if self._rule:
                self._rule.diverged(task.trial)
        elif "pruned" in message:
            self._failures.succeeded(task.trial, slot.where)
            self._end_attempt(slot, TrialStatus.STOPPED, metrics=metrics, seconds=seconds, why=slot.pruned, **said)
        else:
            self._failures.succeeded(task.trial, slot.where)
            self._longest_seen = max(self._longest_seen, seconds)
            self._finished[task.trial] = seconds
            self.uses += [Use(**message["use"])] if message.get("use") else []
            self._end_attempt(slot, TrialStatus.FINISHED, metrics=metrics, seconds=seconds, **said)
            self._check_told(task, metrics)
        shutil.rmtree(self._checkpoints_of(task), ignore_errors=True)  # most trials are too short to have any
        self._correct_order()

    def _check_told(self, task: Task, metrics: Mapping[str, Any]) -> None:
        """See that somebody has told each metric by which trials are compared, now that a trial has finished."""
        self._untold -= metrics.keys()
        if not self._untold or self._over:
            return
        missing, told = ", ".join(sorted(self._untold)), ", ".join(metrics) or "no metrics"
        is_function = isinstance(task.spec, UserProgram) and task.spec.function is not None
        remedy = "let the function report or return it" if is_function else "let `metrics` find it"
        raise UserError(f"trial {task.trial} has finished, but tells no {missing}, by which trials are compared; it "
                        f"tells {told}: {remedy}, or name one that it tells as `metric`")  # fmt: skip

    def _end_attempt(self, slot: Slot, status: TrialStatus, **fields: Any) -> None:
        """Record how the slot's trial ended."""
        self._record(slot, Ended, status=status, **fields)
        slot.task = slot.answer = None
        slot.due = math.inf

    def _folder_of(self, task: Task) -> Path:
        return self._setting.folder / "trials" / task.folder_name

    def _checkpoints_of(self, task: Task) -> Path:
        return self._setting.folder / "checkpoints" / f"{task.trial}-{task.generation}"

    def _write_log(self, trial: str, attempt: int, text: str) -> Path:
        """Only a failure gets a file of its own: file systems charge by the inode."""
        path = self._setting.folder / "logs" / f"{trial}-{attempt}.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.rstrip() + "\n")
        return path

    def _record(self, on: Slot, kind: type[TrialEvent], **fields: Any) -> None:
        """Journal an event of the trial that a slot runs, then show it."""
        assert on.task is not None
        self._on_event(self._journal.record(kind(trial=on.task.trial, attempt=on.attempt, **fields)))

    def _record_interrupted(self) -> int:
        """End the attempts that are still open; returns how many there were."""
        running = [slot for slot in self._slots if slot.task is not None]
        for slot in running:
            self._warn_if_nothing_is_kept(slot)
            self._end_attempt(slot, TrialStatus.INTERRUPTED)
        return len(running)

    def _warn_if_nothing_is_kept(self, slot: Slot) -> None:
        """A function that the walltime interrupts, and that has no checkpoint, starts from the beginning again."""
        assert slot.task is not None
        spec, checkpoints = slot.task.spec, self._checkpoints_of(slot.task)
        is_function = isinstance(spec, UserProgram) and spec.function is not None
        if self._seconds_left() != 0 or not is_function or not self._setting.resumes:
            return
        if not checkpoints.exists() or not any(checkpoints.iterdir()):
            log.warning("trial %s was interrupted by the end of the walltime and has nothing in its checkpoint_dir: it "
                        "will start from the beginning; if the function cannot resume, set `resumable: false`, so that "
                        "a trial starts only if it can end", slot.task.trial)  # fmt: skip


def gpu_is_seen() -> bool:
    """Whether there is a GPU where the first slot is."""
    return bool(ray.get(ray.remote(num_cpus=1, num_gpus=1)(has_gpu).remote()))


def _death(error: Exception) -> str:
    """Why a worker gave no answer, in one line."""
    if isinstance(error, RayActorError) and "creation task" in str(error):  # it never was: the last line says why
        return str(error).strip().splitlines()[-1]
    if isinstance(error, RayActorError):
        return "the worker's process ended: it was killed, or it crashed"
    return f"{type(error).__name__}: {error}".splitlines()[0]
