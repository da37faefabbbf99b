"""Saving and resuming a training. A thread writes its state from a copy in host memory, while the training goes on."""

import copy
import logging
import time
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, Final

import torch
from torch import Tensor

from trainyard.training.checkpoints.state import TrainingState
from trainyard.training.checkpoints.store import CheckpointStore
from trainyard.training.networks.models import gradient_bytes
from trainyard.training.out_of_memory import is_out_of_memory
from trainyard.training.process_group import Group
from trainyard.training.step_timing import synchronize
from trainyard.utils.errors import UserError

# To a slow shared file system: before the first checkpoint has been written, a stop leaves time for this.
ASSUMED_BYTES_PER_SECOND: Final = 100e6
VISIBLE_SECONDS: Final = 90.0  # until a node sees a file of another one; NFS caches folders for up to a minute
log = logging.getLogger(__name__)


class Checkpointer:
    """Resumes a training from its store, saves it there, and measures the time for which the training waits.

    Without a store, it does nothing. At the end of its `with` block, the last checkpoint is complete. An error of the
    thread is raised by the next save, the next `is_due`, or at the end of the block. A save with `wait` tries again.

    Raises:
        UserError: the last checkpoint has another spec, model or global batch, or not all ranks see it.
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
        self._assumed_seconds = _checkpoint_bytes(state) / ASSUMED_BYTES_PER_SECOND if store else 0.0  # of the first
        self.total_seconds = 0.0  # for which the training waited, including previous runs
        if store and (found := _latest(store, state.group)):
            _check_global_batch(found["global_batch"], global_batch)
            _restore(state, found, store)
            self._blocked_seconds = found.get("saving_seconds", 0.0)
            self.last_seconds = found.get("writing_seconds", self._blocked_seconds)
            # The last save of a run is not in its own checkpoint: assume that it took as long as the one before it.
            self.total_seconds = found.get("checkpoint_seconds", 0.0) + self._blocked_seconds

    def __enter__(self) -> "Checkpointer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._wait()
        else:
            self.give_up()

    def give_up(self) -> None:
        """Wait for the write in progress. An error is only logged: the checkpoint is not needed any more."""
        try:
            self._wait()
        except Exception as lost:
            log.warning("%s", lost)

    @property
    def stop_seconds(self) -> float:
        """Seconds that a stop needs: for the write in progress, and for a last checkpoint."""
        running = time.monotonic() - self._began if self._writing else 0.0
        return 2 * max(self.last_seconds or self._assumed_seconds, running)

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
        if wait:
            self.give_up()  # this one takes its place
        else:
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


def _latest(store: CheckpointStore, group: Group) -> dict[str, Any] | None:
    """The latest state, the same on all ranks. Collective.

    Shared file systems cache folders: a node may not see a file yet that another one has written.

    Raises:
        UserError: this rank does not see the checkpoint that another one sees.
    """
    found, give_up_at = store.latest(), time.monotonic() + VISIBLE_SECONDS
    latest = -int(group.minimum(torch.tensor(-_position(found), device=group.device)))
    while _position(found) != latest:
        if time.monotonic() > give_up_at:
            raise UserError(f"{store.folder}: rank {group.rank} does not find the checkpoint from which others resume")
        time.sleep(1)
        found = store.latest()
    return found


def _restore(state: TrainingState, found: dict[str, Any], store: CheckpointStore) -> None:
    """Restore a state.

    Raises:
        UserError: the model, the optimizer or the user's loss has other tensors.
    """
    try:
        state.load_state_dict(found)
    except (RuntimeError, ValueError, AttributeError) as error:  # AttributeError: for a buffer of a module that is gone
        if is_out_of_memory(error):
            raise
        reason = str(error).strip().splitlines()[-1].strip()
        remedy = "if the code of the model or the loss has changed, increase `retrain` to start anew"
        raise UserError(f"the checkpoint in {store.folder} does not fit the model ({reason}): {remedy}") from error


def _position(state: dict[str, Any] | None) -> int:
    """A number that is larger for a later state; -1 for none."""
    return -1 if state is None else (len(state["history"]) << 32) + int(state["progress"]["step"])


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


def _checkpoint_bytes(state: TrainingState) -> int:
    """The size of a checkpoint at most: the weights, their average, and the two averages of Adam."""
    weights = [each.nbytes for module in state.modules.values() for each in (*module.parameters(), *module.buffers())]
    return sum(weights) + 2 * gradient_bytes(state.module)


def _check_global_batch(saved: int, ours: int) -> None:
    """A training resumes on a different number of GPUs only if a step has the same number of images."""
    if saved != ours:
        remedy = "on a different number of GPUs, set the same `global_batch_size`"
        raise UserError(f"the checkpoint has {saved} images per step, but this training has {ours}: {remedy}")
