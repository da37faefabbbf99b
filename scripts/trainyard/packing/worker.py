"""The process of a slot: runs one trial after another, and keeps imports and data loaded between them."""

import os
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import ray

from trainyard.cluster import host, slurm_allocation
from trainyard.cluster.gpus import hide_gpus
from trainyard.cluster.stop_request import stop_request_of_signals
from trainyard.config.trial_status import TrialStatus
from trainyard.packing import worker_gpu
from trainyard.packing.messages import Assignment, TrialMessage, WorkerSetup, WorkerStarted
from trainyard.packing.trial_kind import find_kind
from trainyard.programs.trial_messages import TrialEnded
from trainyard.utils.errors import Diverged, UserError
from trainyard.utils.files import copy_matching
from trainyard.utils.import_path import error_line

if TYPE_CHECKING:
    from trainyard.cluster.telemetry import Gpu


class Worker:
    """Prepares once, then runs one trial after another. After each message of a trial, it waits for an answer.

    All of this runs in one thread, since torch keeps some of its state by thread; Ray calls the methods in another one.
    """

    def __init__(self) -> None:
        self._gpus: Sequence[Gpu] = ()
        self._calls = SimpleQueue[Callable[[], None]]()  # for the thread of the trials
        self._messages = SimpleQueue[TrialMessage]()  # of the trial that runs
        self._answers = SimpleQueue[bool]()
        self._resources = ExitStack()  # held until the process ends

    def start(self, setup: WorkerSetup) -> WorkerStarted:
        """Prepare for trials.

        This is not `__init__`, because Ray reports an exception there as the death of the process.
        """
        self._setup = setup
        if not setup.gpu_share:
            hide_gpus()
        os.chdir(setup.cwd or ".")  # users' modules and files are relative to it
        self._kind = find_kind(setup.sweep)(setup, stop_request_of_signals())
        self._start_thread()
        started = Future[tuple[str, dict[str, Any]]]()
        self._calls.put(partial(self._prepare, started))
        device, startup = started.result()
        from trainyard.cluster.telemetry import allocated_gpus  # imports pynvml

        self._gpus = self._resources.enter_context(allocated_gpus())
        gpus = ",".join(str(gpu) for gpu in ray.get_gpu_ids())
        allocation = slurm_allocation.current_allocation() if setup.nodes > 1 else None
        node = ",".join(allocation.nodes) if allocation else host.node_name()
        return WorkerStarted(os.getpid(), slurm_allocation.job_id(), node, gpus, device, startup)

    def begin(self, assignment: Assignment) -> TrialMessage:
        """Run a trial until its first message. The last message of a trial is a `TrialEnded`."""
        self._calls.put(partial(self._run_trial, assignment))
        return self._messages.get()

    def resume(self, stops: bool) -> TrialMessage:
        """Let the trial continue, or stop it early, until its next message."""
        self._answers.put(stops)
        return self._messages.get()

    def wake(self) -> None:
        """Returns if this process and its node are alive."""

    def check_gpu(self) -> worker_gpu.GpuChecked:
        """Check this slot's GPU."""
        return worker_gpu.check_gpu()

    # ---- the thread of the trials

    def _start_thread(self) -> None:
        """Start it after the signals are unblocked: what a trial starts inherits which ones are."""
        threading.Thread(target=self._run_calls, daemon=True).start()

    def _run_calls(self) -> None:
        while True:
            self._calls.get()()

    def _prepare(self, started: "Future[tuple[str, dict[str, Any]]]") -> None:
        try:
            started.set_result(self._kind.prepare())
        except BaseException as error:
            started.set_exception(error)

    def _run_trial(self, assignment: Assignment) -> None:
        """Run a trial; its last message says how it ended. An exception is a failure."""
        before = self._read_joules()
        began = time.perf_counter()
        self._kind.seconds_before = 0.0
        try:
            if assignment.taken_over:
                copy_matching(assignment.taken_over[1], "*", assignment.checkpoints)
            end = self._kind.run(assignment, self._report)
        except Diverged as error:
            seconds = self._kind.seconds_before + time.perf_counter() - began
            end = TrialEnded(status=TrialStatus.DIVERGED, error=str(error), seconds=seconds)
        except BaseException as error:  # also sys.exit in a user's code, which would end this thread
            end = TrialEnded(
                status=TrialStatus.FAILED,
                error=str(error) if isinstance(error, UserError) else error_line(error),
                traceback=traceback.format_exc(),
                seconds=self._kind.seconds_before + time.perf_counter() - began,
            )
        after = self._read_joules()
        if before and after:
            from trainyard.cluster.telemetry import JOULES_PER_KWH

            spent = sum(after) - sum(before)
            end = replace(end, energy_kwh=min(1.0, self._setup.gpu_share) * spent / JOULES_PER_KWH)
        self._messages.put(end)

    def _report(self, message: TrialMessage) -> bool:
        """Send a message of the trial; returns whether early stopping ends it."""
        self._messages.put(message)
        return self._answers.get()

    def _read_joules(self) -> list[float]:
        """The energy that each GPU of the slot has used so far; [] without GPUs, or if one does not count it."""
        joules = [gpu.joules() for gpu in self._gpus]
        counted = [each for each in joules if each is not None]
        return counted if len(counted) == len(joules) else []
