"""The slots as the driver sees them, and their workers: started, checked, woken, replaced and retired."""

import logging
import math
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from trainyard.cluster.stop_request import GENTLE_SIGNAL
from trainyard.packing.messages import WorkerStarted
from trainyard.packing.sweep_run import SweepRun
from trainyard.packing.trial_queue import TrialQueue
from trainyard.packing.worker_gpu import CHECK_SECONDS, GpuChecked
from trainyard.packing.workers import WorkerDiedError, WorkerFailedError, Workers
from trainyard.planning.attempts import Attempt
from trainyard.planning.journal import Location, SlotRetired, SlotStarted
from trainyard.planning.task import Task
from trainyard.utils.errors import UserError
from trainyard.utils.guard import send_signal
from trainyard.utils.text import count_of

NOWHERE: Final = Location()


class Phase(Enum):
    """What the worker of a slot is doing."""

    IDLE = "idle"
    STARTING = "starting"
    CHECKING = "checking its GPU"
    WAKING = "waking"  # an idle worker confirms that it is alive before it gets a trial
    RUNNING = "running a trial"


@dataclass(eq=False)
class CurrentTrial:
    """The trial that runs on a slot."""

    slot: "Slot"
    task: Task
    attempt: Attempt  # as far as it is recorded
    began: float  # on the monotonic clock
    paused_before: float = 0.0  # `TrialClaims.paused_seconds` then
    epochs_before: float = 0  # up to the checkpoint from which the attempt resumed, if its program numbers no epochs
    stop_reason: str = ""  # why early stopping ends the trial
    is_cancelled: bool = False  # whether the worker was requested to end the trial, and is replaced then


@dataclass(eq=False)
class Slot:
    """A slot as the driver sees it: its worker and what the worker is doing."""

    number: int
    worker: Any = None  # the handle of a Ray actor
    process: int | None = None  # of its worker, or of the last one
    location: Location = NOWHERE  # where its worker runs, or ran last
    phase: Phase = Phase.IDLE
    answer: Any = None  # the Ray reference of the worker's next message; None if it is idle
    due: float = math.inf  # time at which that message is overdue, on the monotonic clock
    current: CurrentTrial | None = None
    failed_starts: int = 0
    is_late: bool = False  # the worker did not start in time; no trial waits for it
    is_avoided: bool = False  # it gets no trial while those of others succeed
    is_retired: bool = False

    def expect(self, phase: Phase, answer: Any, *, due: float = math.inf) -> None:
        """Wait for the next message of the worker."""
        self.phase = phase
        self.answer = answer
        self.due = due

    def take_answer(self) -> Any:
        """The Ray reference of a message that has arrived. The slot becomes idle."""
        answer = self.answer
        self.expect(Phase.IDLE, None)
        return answer

    def request_stop(self) -> None:
        """Request the worker to end its trial, which may save a checkpoint first."""
        assert self.process
        send_signal(self.process, GENTLE_SIGNAL)

    @property
    def has_started(self) -> bool:
        """Whether its worker has started once."""
        return self.location is not NOWHERE

    @property
    def next_location(self) -> Location:
        """Where its next trial runs: a worker that starts may get another GPU than the one before it."""
        return self.location._replace(gpu="") if self.phase is Phase.STARTING else self.location

    def __str__(self) -> str:
        gpu = f", GPU {self.location.gpu}" if self.location.gpu else ""
        return f"slot {self.number} ({self.location.node}{gpu})" if self.has_started else f"slot {self.number}"


START_ATTEMPTS: Final = 3  # failed ones in a row, after which a slot is retired: its node must be broken
START_SECONDS: Final = 300.0  # after which no trial waits for a worker to start
log = logging.getLogger(__name__)


class SlotPool:
    """The slots of a sweep. A slot whose worker cannot start, or whose GPU is broken, is retired."""

    def __init__(self, run: SweepRun, queue: TrialQueue, workers: Workers) -> None:
        self._run = run
        self._queue = queue
        self._workers = workers
        self._clock = run.clock
        count = run.state.sweep.slots.count
        first = run.journal.order_job * count
        self.slots = [Slot(number) for number in range(first, first + count)]
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
    def running(self) -> list[CurrentTrial]:
        """The trials that run."""
        return [slot.current for slot in self.slots if slot.current]

    @property
    def places(self) -> list[Location]:
        """Where trials may run, including places that are not known yet."""
        return [slot.next_location for slot in self.usable if not slot.is_late]

    @property
    def all_places(self) -> list[Location]:
        """The same, and where other jobs run trials."""
        return [*self.places, *self._run.claims.places]

    @property
    def known_places(self) -> list[Location]:
        """The places of the usable slots that have started at least once."""
        return [slot.location for slot in self.usable if slot.has_started]

    # ---- workers that start, and end

    def start_all(self, count: int) -> None:
        """Start the workers of at most `count` slots; the others only if other jobs may give trials back."""
        if not self._run.claims.is_shared:
            self._spares = self.slots[count:]
            self.slots = self.slots[:count]
        for slot in self.slots[:count]:
            self._start(slot)

    def _start(self, slot: Slot) -> None:
        slot.worker = self._workers.create()
        due = self._clock.monotonic() + START_SECONDS
        slot.expect(Phase.STARTING, slot.worker.start.remote(self._run.setup), due=due)

    def replace_worker(self, slot: Slot) -> None:
        """Kill the worker of a slot, and start a new one if trials wait.

        What a failed trial leaves in its process, such as a CUDA error, would fail all later ones.
        """
        self._workers.kill(slot.worker)
        slot.worker = None
        self._note_avoided(slot)
        if self._queue.waiting:
            self._start(slot)

    def wake_idle(self) -> None:
        """Wake the idle slots for which a trial waits."""
        places = self.all_places
        for slot in self.usable:
            if slot.answer is not None or not self._queue.has_task(slot.location, places):
                continue
            if slot.worker is None:
                self._start(slot)
            else:
                due = self._clock.monotonic() + START_SECONDS
                slot.expect(Phase.WAKING, slot.worker.wake.remote(), due=due)

    def use_spares(self) -> None:
        """Use more slots if more trials wait than those that are free can take, since a user has added some."""
        if not self._spares or self._run.claims.is_held:
            return
        free = sum(slot.current is None for slot in self.usable)
        added = max(0, self._queue.waiting - free)
        self.slots = self.slots + self._spares[:added]
        self._spares = self._spares[added:]

    def release(self) -> None:
        """End all workers: dropping the last handle ends the process and frees its memory."""
        for slot in self.slots:
            slot.worker = None

    # ---- messages of workers that run no trial

    def handle(self, slot: Slot) -> bool:
        """Handle the answer of a worker that runs no trial; returns whether its slot is ready for one."""
        phase = slot.phase
        answer = slot.take_answer()
        slot.is_late = False
        try:
            message = self._workers.receive(answer)
        except WorkerDiedError as error:
            if phase is Phase.STARTING and isinstance(error, WorkerFailedError):
                self._retire(slot, f"slot {slot.number} cannot be started: {error}")
            else:
                self._restart(slot, error)
            return False
        match message:
            case WorkerStarted():
                return self._handle_started(slot, message)
            case GpuChecked():
                return self._handle_checked(slot, message)
        return True  # it was woken: without this, a trial on a dead worker would lose an attempt

    def _handle_started(self, slot: Slot, started: WorkerStarted) -> bool:
        run = self._run
        failures = self._run.failures
        allocation = run.limits.allocation
        gpu_model = allocation.gpu_model if allocation else ""
        slot.process = started.process
        slot.location = Location(started.job, started.node, started.gpu, slot.number, gpu_model, started.device)
        if started.copy_message:
            log.info("%s", started.copy_message)
        run.journal.record(SlotStarted(slot=slot.number, spent=started.startup))
        now = self._clock.monotonic()
        for current in self.running:
            failures.record_running(current.task.trial, current.slot.location, now - current.began)
        if len(self.all_places) > 1 and failures.is_suspect(slot.location):
            due = now + 2 * CHECK_SECONDS  # no signal ends a process that waits for a GPU that hangs
            slot.expect(Phase.CHECKING, slot.worker.check_gpu.remote(), due=due)
            return False
        slot.failed_starts = 0
        self._note_avoided(slot)
        return True

    def _handle_checked(self, slot: Slot, check: GpuChecked) -> bool:
        """Retire a slot whose GPU, or without GPUs node, is broken."""
        failures = self._run.failures
        place = slot.location
        count = failures.failures_in_a_row(place)
        finding = f"check of its GPU: {check.finding}" if place.gpu else ""
        if len(self.all_places) > 1 and (check.is_broken or failures.is_likely_broken(place)):
            reasons = [finding]
            if count:
                reasons.insert(
                    0,
                    f"{count} trials in a row failed there, {failures.finished_elsewhere(place)} of them finished "
                    "elsewhere or run longer there",
                )
            self._retire(slot, f"{slot} is retired: {'; '.join(filter(None, reasons))}")
            return False
        if count:  # none by now if a trial has finished there in another slot, or they have failed elsewhere, too
            log.warning("%s: %d trials in a row failed there%s", slot, count, finding and f"; {finding}")
        slot.failed_starts = 0
        self._note_avoided(slot)
        return True

    def _note_avoided(self, slot: Slot) -> None:
        """Log that a slot gets no trial for now, when this begins."""
        failures = self._run.failures
        was_avoided = slot.is_avoided
        slot.is_avoided = failures.avoids(slot.location, self.all_places)
        if slot.is_avoided and not was_avoided:
            count = failures.failures_in_a_row(slot.location)
            log.warning("%s gets no trial while others succeed: %d trials in a row failed there", slot, count)

    def handle_late(self, slot: Slot) -> None:
        """Stop waiting for a worker that did not start or check its GPU in time, so that trials go to other slots."""
        if slot.phase is Phase.CHECKING:
            slot.take_answer()
            self._retire(slot, f"{slot} is retired: the check of its GPU does not end")
            return
        slot.is_late = True
        self.wake_idle()

    def _restart(self, slot: Slot, error: WorkerDiedError) -> None:
        """Restart a worker that died before it could run a trial."""
        slot.worker = None
        slot.failed_starts += 1
        if slot.failed_starts >= START_ATTEMPTS:
            self._retire(slot, f"slot {slot.number} cannot be started: {error}")
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
        self._run.journal.record(SlotRetired(slot=slot.number, error=reason))
        self.wake_idle()

    def check_startable(self) -> None:
        """Check that workers still start. The first start of a slot may take long, since it may copy data.

        Raises:
            UserError: none starts.
        """
        if not all(slot.is_late for slot in self.usable if slot.worker is not None or slot.has_started):
            return
        if self.known_places or not self._workers.has_node():
            raise UserError(
                f"Ray does not start workers any more: none has started in {START_SECONDS:g} s, and "
                f"{count_of(self._queue.waiting, 'trial')} left. The same command continues from here"
            )
