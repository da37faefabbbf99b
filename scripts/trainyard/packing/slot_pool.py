"""The slots as the driver sees them, and their workers: started, checked, woken, replaced and retired."""

import logging
import math
import time
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Any, Final

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError

from trainyard.config.sweep import Slots
from trainyard.packing.failure_policy import FailurePolicy, SlotLocation
from trainyard.packing.messages import WorkerSetup, WorkerStarted
from trainyard.packing.shared_order import SharedOrder
from trainyard.packing.trial_queue import TrialQueue
from trainyard.packing.worker import Worker
from trainyard.packing.worker_gpu import CHECK_SECONDS, GpuChecked
from trainyard.planning.attempts import Attempt
from trainyard.planning.journal import Journal, Location, SlotRetired, SlotStarted
from trainyard.planning.sweep_state import Task
from trainyard.utils.errors import UserError
from trainyard.utils.text import count_of

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
    attempt: Attempt | None = None  # at the task, as far as it is recorded
    began: float = 0.0  # start of the attempt, on the monotonic clock
    paused_before: float = 0.0  # `SharedOrder.paused_seconds` then
    epochs_before: float = 0  # up to the checkpoint from which the attempt resumed, if its program numbers no epochs
    stop_reason: str = ""  # why early stopping ends the trial
    is_cancelled: bool = False  # whether its worker was requested to end the trial, and is replaced then
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
    def place(self) -> SlotLocation:
        """Where its worker runs, or ran last."""
        return _place(self.location.node, self.location.gpu, self.number, self.location.job)

    @property
    def next_place(self) -> SlotLocation:
        """Where its next trial runs: a worker that starts may get another GPU than the one before it."""
        is_known = self.phase is not Phase.STARTING
        return _place(self.location.node, self.location.gpu if is_known else "", self.number, self.location.job)

    def __str__(self) -> str:
        gpu = f", GPU {self.place.gpu}" if self.place.gpu else ""
        return f"slot {self.number} ({self.place.node}{gpu})" if self.has_started else f"slot {self.number}"


_place = cache(SlotLocation)  # the packer needs the places of all slots whenever a trial starts


START_ATTEMPTS: Final = 3  # failed ones in a row, after which a slot is retired: its node must be broken
START_SECONDS: Final = 300.0  # after which no trial waits for a worker to start
log = logging.getLogger(__name__)


class SlotPool:
    """The slots of a sweep. A slot whose worker cannot start, or whose GPU is broken, is retired."""

    def __init__(
        self,
        slots: Slots,
        setup: WorkerSetup,
        *,
        journal: Journal,
        failures: FailurePolicy,
        queue: TrialQueue,
        order: SharedOrder,
        gpu_model: str,
    ) -> None:
        self._setup, self._journal, self._failures, self._queue, self._order = setup, journal, failures, queue, order
        options = {"num_cpus": slots.cpus_per_trial, "num_gpus": slots.node_share, "max_restarts": 0}
        self._worker_class = ray.remote(Worker).options(**options)  # once: Ray exports it each time
        self._gpu_model = gpu_model
        first = journal.order_job * slots.count
        self.slots = [Slot(number) for number in range(first, first + slots.count)]
        self._spares: list[Slot] = []  # more than there were trials for

    @property
    def usable(self) -> list[Slot]:
        """The slots that are not retired."""
        return [slot for slot in self.slots if not slot.is_retired]

    @property
    def busy(self) -> list[Slot]:
        """The slots whose workers will send a message."""
        return [slot for slot in self.slots if slot.answer is not None]

    @property
    def running(self) -> list[Slot]:
        """The slots that run a trial."""
        return [slot for slot in self.slots if slot.task is not None]

    @property
    def fills(self) -> list[Slot]:
        """Those that run a trial which the sweep does not need."""
        return [slot for slot in self.running if slot.task and slot.task.trial in self._order.space.optional]

    @property
    def running_seconds(self) -> dict[str, float]:
        """For how long each running trial has been running."""
        now = time.monotonic()
        return {slot.task.trial: now - slot.began for slot in self.slots if slot.task is not None}

    @property
    def places(self) -> list[SlotLocation]:
        """Where trials may run, including places that are not known yet."""
        return [slot.next_place for slot in self.usable if not slot.is_late]

    @property
    def all_places(self) -> list[SlotLocation]:
        """The same, and where other jobs run trials."""
        return [*self.places, *self._order.places]

    @property
    def known_places(self) -> list[SlotLocation]:
        """The places of the usable slots that have started at least once."""
        return [slot.place for slot in self.usable if slot.has_started]

    def start_all(self, count: int) -> None:
        """Start the workers of at most `count` slots; the others only if other jobs may give trials back."""
        if not self._order.is_shared:
            self.slots, self._spares = self.slots[:count], self.slots[count:]
        for slot in self.slots[:count]:
            self._start(slot)

    def _start(self, slot: Slot) -> None:
        slot.worker = self._worker_class.remote()
        slot.expect(Phase.STARTING, slot.worker.start.remote(self._setup), due=time.monotonic() + START_SECONDS)

    def replace_worker(self, slot: Slot) -> None:
        """Kill the worker of a slot, and start a new one if trials wait.

        What a failed trial leaves in its process, such as a CUDA error, would fail all later ones.
        """
        ray.kill(slot.worker)
        slot.worker = None
        self._note_avoided(slot)
        if self._queue.waiting:
            self._start(slot)

    def use_spares(self) -> None:
        """Use more slots if more trials wait than those that are free can take, since a user has added some."""
        free = sum(slot.task is None for slot in self.usable)
        added = max(0, self._queue.waiting - free) if self._spares and not self._order.is_held else 0
        self.slots, self._spares = self.slots + self._spares[:added], self._spares[added:]

    def wake_idle(self) -> None:
        """Wake the idle slots for which a trial waits."""
        places = self.all_places
        for slot in self.usable:
            if slot.answer is not None or not self._queue.has_task(slot.place, places):
                continue
            if slot.worker is None:
                self._start(slot)
            else:
                slot.expect(Phase.WAKING, slot.worker.wake.remote(), due=time.monotonic() + START_SECONDS)

    def handle_started(self, slot: Slot, answer: Any) -> bool:
        """Record that a worker has started; returns whether the slot is ready for a trial."""
        slot.is_late = False
        try:
            started: WorkerStarted = ray.get(answer)
        except RayTaskError as error:  # it would fail again
            reason = str(error.cause) if isinstance(error.cause, UserError) else repr(error.cause)
            self._retire(slot, f"slot {slot.number} cannot be started: {reason}")
            return False
        except RayActorError as error:
            self._restart(slot, error)
            return False
        slot.location = Location(started.job, started.node, started.gpu, slot.number, self._gpu_model, started.device)
        if started.copy_message:
            log.info("%s", started.copy_message)
        self._journal.record(SlotStarted(slot=slot.number, spent=started.startup))
        for other in self.running:
            if other.task:
                self._failures.record_running(other.task.trial, other.place, time.monotonic() - other.began)
        if len(self.all_places) > 1 and self._failures.is_suspect(slot.place):
            due = time.monotonic() + 2 * CHECK_SECONDS  # no signal ends a process that waits for a GPU that hangs
            slot.expect(Phase.CHECKING, slot.worker.check_gpu.remote(), due=due)
            return False
        slot.failed_starts = 0
        self._note_avoided(slot)
        return True

    def _note_avoided(self, slot: Slot) -> None:
        """Log that a slot gets no trial for now, when this begins."""
        was_avoided, slot.is_avoided = slot.is_avoided, self._failures.avoids(slot.place, self.all_places)
        if slot.is_avoided and not was_avoided:
            count = self._failures.failures_in_a_row(slot.place)
            log.warning("%s gets no trial while others succeed: %d trials in a row failed there", slot, count)

    def handle_checked(self, slot: Slot, answer: Any) -> bool:
        """Retire a slot whose GPU, or without GPUs node, is broken; returns whether the slot is ready for a trial."""
        try:
            check: GpuChecked = ray.get(answer)
        except RayError as error:
            self._restart(slot, error)
            return False
        count, finished = self._failures.failures_in_a_row(slot.place), self._failures.finished_elsewhere(slot.place)
        found = f"; check of its GPU: {check.finding}" if slot.place.gpu else ""
        if len(self.all_places) > 1 and (check.is_broken or self._failures.is_likely_broken(slot.place)):
            self._retire(
                slot,
                f"{slot} is retired: {count} trials in a row failed there, {finished} of them finished elsewhere or "
                f"run longer there{found}"
                if count
                else f"{slot} is retired{found}",
            )
            return False
        if count:  # none by now if a trial has finished there in another slot, or they have failed elsewhere, too
            log.warning("%s: %d trials in a row failed there%s", slot, count, found)
        slot.failed_starts = 0
        self._note_avoided(slot)
        return True

    def handle_woken(self, slot: Slot, answer: Any) -> bool:
        """Whether an idle worker is still alive. Without this check, a trial on a dead one would lose an attempt."""
        slot.is_late = False
        try:
            ray.get(answer)
        except RayError as error:
            self._restart(slot, error)
            return False
        return True

    def handle_late(self, slot: Slot) -> None:
        """Stop waiting for a worker that did not start or check its GPU in time, so that trials go to other slots."""
        if slot.phase is Phase.CHECKING:
            slot.take_answer()
            self._retire(slot, f"{slot} is retired: the check of its GPU does not end")
            return
        slot.is_late = True
        self.wake_idle()

    def _restart(self, slot: Slot, error: RayError) -> None:
        """Restart a worker that died before it could run a trial."""
        slot.worker = None
        slot.failed_starts += 1
        if slot.failed_starts >= START_ATTEMPTS:
            self._retire(slot, f"slot {slot.number} cannot be started: {death_reason(error)}")
        elif self._queue.waiting:
            self._start(slot)

    def _retire(self, slot: Slot, reason: str) -> None:
        """Retire a slot: the sweep continues without it.

        The slot keeps its worker, if any, because Ray would otherwise assign the broken GPU to another slot.

        Raises:
            UserError: it was the last one.
        """
        slot.is_retired = True
        if not self.usable:
            raise UserError(reason)
        log.warning("%s; continuing with %d of %d slots", reason, len(self.usable), len(self.slots))
        self._journal.record(SlotRetired(slot=slot.number, error=reason))
        self.wake_idle()

    def check_startable(self) -> None:
        """Raise an error if no worker starts any more. The first start of a slot may take long, since it may copy data.

        Raises:
            UserError: none starts.
        """
        if not all(slot.is_late for slot in self.usable if slot.worker is not None or slot.has_started):
            return
        nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
        if self.known_places or not any(node["Alive"] for node in nodes):
            raise UserError(
                f"Ray does not start workers any more: none has started in {START_SECONDS:g} s, and "
                f"{count_of(self._queue.waiting, 'trial')} left. The same command continues from here"
            )

    def release(self) -> None:
        """End all workers: dropping the last handle ends the process and frees its memory."""
        for slot in self.slots:
            slot.worker = None


def death_reason(error: Exception) -> str:
    """Why a worker sent no message, in one line."""
    if isinstance(error, RayActorError) and "creation task" in str(error):  # it never started: the last line says why
        return str(error).strip().splitlines()[-1]
    if isinstance(error, RayActorError):
        return "the worker's process ended: it was killed, or it crashed"
    return f"{type(error).__name__}: {error}".splitlines()[0]
