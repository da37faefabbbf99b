"""Shutdown of an interrupted sweep: running trials get a grace period, and all attempts are recorded."""

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import ray
from ray.exceptions import RayError

from trainyard.cluster.stop_request import request_stop_of_workers
from trainyard.config.trial_status import TrialStatus
from trainyard.packing.messages import TrialMessage, WorkerSetup
from trainyard.packing.outcomes import AttemptRecorder
from trainyard.packing.slot_pool import Phase, Slot
from trainyard.packing.trial_queue import STOP_SECONDS, TimeLimits
from trainyard.programs.trial_messages import TrialEnded
from trainyard.utils.process_guard import wait_for_folder
from trainyard.utils.text import count_of

LOSS_WARNING: Final = (
    "trial %s was interrupted by the end of the walltime and has nothing in its checkpoint_dir: it will start from the "
    "beginning; if the function cannot resume, set `resumable: false`, so that a trial starts only if it can end"
)
log = logging.getLogger(__name__)


def end_trials(
    slots: list[Slot],
    setup: WorkerSetup,
    *,
    recorder: AttemptRecorder,
    handle_message: Callable[[Slot, TrialMessage], None],
) -> None:
    """End the running trials, which may save a checkpoint within the grace period, and record how they ended."""
    running = [slot for slot in slots if slot.phase is Phase.RUNNING and slot.task is not None]
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
            recorder.record_end(slot, TrialEnded(status=TrialStatus.INTERRUPTED))
        else:
            handle_message(slot, message)


def record_interrupted(
    running: list[Slot], setup: WorkerSetup, *, recorder: AttemptRecorder, limits: TimeLimits
) -> int:
    """Record the attempts that still run as interrupted; returns how many there were."""
    for slot in running:
        if limits.seconds_left() == 0 and setup.can_resume and _loses_progress(slot, setup):
            assert slot.task is not None
            log.warning(LOSS_WARNING, slot.task.trial)
        recorder.record_end(slot, TrialEnded(status=TrialStatus.INTERRUPTED))
    return len(running)


def _loses_progress(slot: Slot, setup: WorkerSetup) -> bool:
    """Whether a slot runs a function that has written no checkpoint."""
    assert slot.task is not None
    checkpoints = setup.checkpoint_folder(slot.task)
    return slot.task.is_function and not (checkpoints.exists() and any(checkpoints.iterdir()))
