"""Saving and resuming a training. A thread writes its state from a copy in host memory, while the training goes on."""

import copy
import logging
import time
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from trainyard.training.checkpoints.state import TrainingState
from trainyard.training.checkpoints.store import CheckpointStore
from trainyard.training.step_timing import synchronize
from trainyard.utils.errors import UserError

log = logging.getLogger(__name__)


class Checkpointer:
    """Resumes a training from its store, saves it there, and measures the time for which the training waits.

    Without a store, it does nothing. At the end of its `with` block, the last checkpoint is complete. An error of the
    thread is raised by the next save, the next `is_due`, or at the end of the block.

    Raises:
        UserError: the last checkpoint has another spec or global batch.
    """

    def __init__(
        self,
        store: CheckpointStore | None,
        state: TrainingState,
        *,
        global_batch: int,
        seed: int,
        every_seconds: float = 0.0,
    ) -> None:
        self._store, self._state = store, state
        self._facts = {"global_batch": global_batch, "seed": seed}
        self._every_seconds, self._began = every_seconds, time.monotonic()  # the start of the last save
        self._writing: Future[float] | None = None  # on rank 0: the end of the write in progress
        self._blocked_seconds = 0.0  # for which the training waited in the last save
        self.last_seconds = 0.0  # from the start of the last save until it was written
        self.total_seconds = 0.0  # for which the training waited, including previous runs
        if store and (found := store.latest()):
            _check_global_batch(found["global_batch"], global_batch)
            state.load_state_dict(found)
            self._blocked_seconds = found.get("saving_seconds", 0.0)
            self.last_seconds = found.get("writing_seconds", self._blocked_seconds)
            # The last save of a run is not in its own checkpoint: assume that it took as long as the one before it.
            self.total_seconds = found.get("checkpoint_seconds", 0.0) + self._blocked_seconds

    def __enter__(self) -> "Checkpointer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._wait()
        except Exception as lost:
            if error is None:
                raise
            log.warning("%s", lost)

    @property
    def stop_seconds(self) -> float:
        """Seconds that a stop needs: for the write in progress, and for a last checkpoint."""
        running = time.monotonic() - self._began if self._writing else 0.0
        return 2 * max(self.last_seconds, running)

    def is_due(self) -> bool:
        """Whether the last checkpoint is older than the interval. Collective: the clock of rank 0 decides."""
        if self._writing and self._writing.done():
            self._wait()
        if self._store is None or not self._every_seconds:
            return self._store is not None
        is_old = time.monotonic() - self._began >= self._every_seconds
        return bool(self._state.group.broadcast(torch.tensor(is_old, device=self._state.group.device)))

    def save(self, *, wait: bool = False) -> None:
        """Save a checkpoint: returns when the state has been copied; with `wait`, when it has been written.

        Collective: every rank must call it, rank 0 writes.
        """
        if self._store is None:
            return
        before = self.total_seconds
        self._wait()  # for the previous one: there is one copy of the state at a time
        began, self._began = time.perf_counter(), time.monotonic()
        expected = self.last_seconds if wait else self._blocked_seconds
        state = self._state.state_dict() | self._facts | {"checkpoint_seconds": self.total_seconds}
        state |= {"saving_seconds": expected, "writing_seconds": self.last_seconds}
        if self._state.group.is_main:
            self._start_writing(self._store, state)
        self.total_seconds += time.perf_counter() - began
        if wait:
            self._wait()
        self._blocked_seconds = self.total_seconds - before

    def _start_writing(self, store: CheckpointStore, state: dict[str, Any]) -> None:
        epoch, step = len(self._state.history), self._state.progress.step
        saved = store.epochs() | (set() if step else {epoch})
        copied = host_copy(state)
        synchronize(self._state.group.device)
        thread = ThreadPoolExecutor(1, "checkpoint")
        self._writing = thread.submit(_write, store, copied, epoch, step, self._state.best_of(saved))
        thread.shutdown(wait=False)  # it ends after the write

    def _wait(self) -> None:
        """Wait for the write in progress, and raise its error."""
        if self._writing is None:
            return
        began, writing, self._writing = time.perf_counter(), self._writing, None
        try:
            self.last_seconds = writing.result() - self._began
        finally:
            self.total_seconds += time.perf_counter() - began


def _write(store: CheckpointStore, state: dict[str, Any], epoch: int, step: int, best_epoch: int | None) -> float:
    """Write a checkpoint; returns the time of its end, on the monotonic clock."""
    store.save(state, epoch=epoch, step=step, best_epoch=best_epoch)
    return time.monotonic()


def host_copy(value: Any) -> Any:
    """A copy of nested dicts and lists of tensors in host memory.

    Copies of a GPU's tensors are in pinned memory, and complete after the next synchronization.
    """
    if isinstance(value, Tensor):
        return value.detach().to("cpu", non_blocking=True, copy=True)
    if isinstance(value, dict):
        copied = copy.copy(value)  # with the attribute `_metadata` of a module's state
        copied.update({key: host_copy(inner) for key, inner in value.items()})
        return copied
    if isinstance(value, (list, tuple)):
        return type(value)(map(host_copy, value))
    return value


def _check_global_batch(saved: int, ours: int) -> None:
    """A training resumes on a different number of GPUs only if a step has the same number of images."""
    if saved != ours:
        remedy = "on a different number of GPUs, set the same `global_batch_size`"
        raise UserError(f"the checkpoint has {saved} images per step, but this training has {ours}: {remedy}")
