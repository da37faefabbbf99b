"""Simulated workers of slots: the interface of `trainyard.packing.worker.Worker` as an actor of Ray."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from trainyard.config.trial_status import TrialStatus
from trainyard.packing.messages import Assignment, WorkerStarted
from trainyard.packing.worker_gpu import GpuChecked
from trainyard.packing.workers import ENDED, WorkerDiedError
from trainyard.planning.journal import Resumed
from trainyard.programs.runner import CheckpointFile
from trainyard.programs.trial_messages import TrialEnded

if TYPE_CHECKING:
    from simulated_cluster.cluster import Cluster

GPU_ERROR: Final = "exit code 1: RuntimeError: CUDA error: uncorrectable ECC error encountered"
NO_PROCESS: Final = 2**22 + 1  # above the highest PID
KEPT: Final = 2  # checkpoints of a trial: the newest ones, from which it may resume


@dataclass
class Trial:
    """A trial as its program runs it, in seconds of training."""

    seconds: float
    checkpoints: list[tuple[CheckpointFile, float]] = field(default_factory=list)  # the newest last; progress in each


@dataclass(eq=False)
class Gpu:
    """A GPU of a job."""

    node: str
    number: int
    is_up: bool = True  # whether its node is
    is_broken: bool = False
    is_found: bool = False  # whether a check finds that it is broken
    worker: "Worker | None" = None


@dataclass(eq=False)
class Answer:
    """What a worker will answer: a reference of Ray."""

    value: Any = None
    error: Exception | None = None


@dataclass(frozen=True)
class Method:
    """A method of an actor."""

    remote: Callable[..., Answer]


@dataclass(eq=False)
class _Attempt:
    """An attempt at a trial."""

    assignment: Assignment
    trial: Trial
    began: float  # on the simulated clock
    before: float = 0.0  # progress in the checkpoint that it resumed from


class Worker:
    """The worker of a slot. It runs trials on one GPU, one after another."""

    def __init__(self, cluster: "Cluster") -> None:
        self._cluster, self._at, self._clock = cluster, cluster.conditions, cluster.clock
        self._gpu: Gpu | None = None
        self._answer: Answer | None = None  # that the driver waits for
        self._attempt: _Attempt | None = None
        self._is_alive, self._is_asked_to_start = True, False
        self.start, self.wake, self.check_gpu = Method(self._start), Method(self._wake), Method(self._check_gpu)
        self.begin, self.resume = Method(self._begin), Method(self._resume)

    def take(self, gpu: Gpu) -> None:
        """Start on a GPU."""
        self._gpu, gpu.worker = gpu, self
        if self._is_asked_to_start:
            self._start_there()

    # ---- methods of the actor

    def _start(self, _: Any) -> Answer:
        self._is_asked_to_start, answer = True, self._asked()
        if self._gpu:
            self._start_there()
        return answer

    def _start_there(self) -> None:
        assert self._gpu is not None
        startup = {"import_seconds": self._at.worker_seconds}
        started = WorkerStarted(
            NO_PROCESS, self._cluster.job, self._gpu.node, str(self._gpu.number), "simulated", startup
        )
        self._answer_after(self._at.worker_seconds, lambda: started)

    def _wake(self) -> Answer:
        answer = self._asked()
        self._answer_after(0.0, lambda: None)
        return answer

    def _check_gpu(self) -> Answer:
        answer, gpu = self._asked(), self._gpu
        checked = GpuChecked(gpu is not None and gpu.is_broken and gpu.is_found, "simulated")
        self._answer_after(self._at.check_seconds, lambda: checked)
        return answer

    def _begin(self, assignment: Assignment) -> Answer:
        trial = self._cluster.trials[assignment.trial]
        usable = [each for each in reversed(trial.checkpoints) if each[0] not in assignment.bad_checkpoints]
        if not self._is_alive:
            return self._asked()
        self._attempt = _Attempt(assignment, trial, self._clock.now)
        self._cluster.account.attempts += 1
        if not usable or assignment.attempt == 1:
            return self._resume(None)
        (checkpoint, self._attempt.before), answer = usable[0], self._asked()
        resumed = Resumed(trial=assignment.trial, attempt=assignment.attempt, checkpoint=checkpoint._asdict())
        self._answer_after(0.0, lambda: resumed)
        return answer

    def _resume(self, _: bool | None) -> Answer:
        answer, attempt, gpu = self._asked(), self._attempt, self._gpu
        if attempt is None or gpu is None:  # its node has failed
            return answer
        needed = self._at.program_seconds + attempt.trial.seconds - attempt.before
        left = max(0.0, attempt.assignment.deadline - self._clock.now)
        if gpu.is_broken:
            self._answer_after(min(self._at.broken_seconds, left), self._failed)
        elif needed <= left:
            self._answer_after(needed, self._finished)
        else:
            self._answer_after(left, self._interrupted)
        return answer

    # ---- what happens to it

    def fail_trial(self) -> None:
        """Its GPU breaks: the trial that runs fails."""
        if self._attempt:
            self._send(self._failed())

    def die(self, *, noticed_after: float = 0.0) -> None:
        """Its process ends; Ray notices it some seconds later."""
        if not self._is_alive:
            return
        self._is_alive = False
        self._end_attempt()
        if self._gpu:
            self._cluster.release(self._gpu)
        if answer := self._answer:
            answer.error = WorkerDiedError(ENDED)
            self._clock.at(self._clock.now + noticed_after, lambda: self._cluster.arrive(answer))

    def _finished(self) -> TrialEnded:
        return self._ended(TrialStatus.FINISHED)

    def _interrupted(self) -> TrialEnded:
        return self._ended(TrialStatus.INTERRUPTED, "the end of the walltime")

    def _failed(self) -> TrialEnded:
        return self._ended(TrialStatus.FAILED, GPU_ERROR)

    def _ended(self, status: TrialStatus, error: str = "") -> TrialEnded:
        assert self._attempt is not None
        seconds, folder = self._clock.now - self._attempt.began, self._attempt.assignment.folder
        output = str(folder / f"output-{self._attempt.assignment.attempt}.log")
        self._end_attempt()
        return TrialEnded(status=status, error=error, seconds=seconds, exit_code=1 if error else 0, output=output,
                          tail="", metrics_digest="")  # fmt: skip

    def _end_attempt(self) -> None:
        """Account for the time of the attempt that ends now, and keep the last checkpoints that it has written."""
        attempt, self._attempt = self._attempt, None
        if attempt is None:
            return
        first_step = attempt.began + self._at.program_seconds
        made = max(0.0, self._clock.now - first_step)
        self._cluster.account.training += made
        self._cluster.account.starting += self._clock.now - attempt.began - made
        if interval := self._at.checkpoint_seconds:
            written = int(made // interval)
            for number in range(max(1, written - KEPT + 1), written + 1):
                file = CheckpointFile(f"{number}.pt", round(1e9 * (first_step + number * interval)), 1)
                attempt.trial.checkpoints.append((file, attempt.before + number * interval))
            del attempt.trial.checkpoints[:-KEPT]

    # ---- answers

    def _asked(self) -> Answer:
        """A new answer that the driver waits for; an error at once, if the worker has died."""
        self._answer = answer = Answer()
        if not self._is_alive:
            self._send(error=WorkerDiedError(ENDED))
        return answer

    def _answer_after(self, seconds: float, content: Callable[[], Any]) -> None:
        """Answer after some time, unless something else happens before."""
        asked = self._answer

        def answer() -> None:
            if self._is_alive and self._answer is asked:
                self._send(content())

        self._clock.at(self._clock.now + seconds, answer)

    def _send(self, value: Any = None, *, error: Exception | None = None) -> None:
        answer, self._answer = self._answer, None
        if answer:
            answer.value, answer.error = value, error
            self._cluster.arrive(answer)
