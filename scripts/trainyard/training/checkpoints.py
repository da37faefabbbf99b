"""Checkpoints: when a training saves its state, how it resumes, and the files.

A thread writes the state from a copy in host memory, while the training goes on. Files are written atomically, named by
the digest of their content, and verified when they are read.
"""

import copy
import hashlib
import io
import json
import logging
import re
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Final, cast

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from trainyard.config.placeholders import dotted_items
from trainyard.training.out_of_memory import is_out_of_memory
from trainyard.training.process_group import Group
from trainyard.training.step_timing import synchronize
from trainyard.training.training_state import TrainingState
from trainyard.utils.errors import StorageError, UserError
from trainyard.utils.files import atomic_write, write_json

# From one checkpoint at the end of an epoch to the next one. Short trials never write one: shared file systems have
# quotas of files.
SAVE_SECONDS: Final = 60.0
KEEP = 2  # the latest, and the one before it in case the latest is damaged; besides these, the best one
_NAME = re.compile(r"epoch-(\d+)-step-(\d+)\.([0-9a-f]+)\.pt")
log = logging.getLogger(__name__)


class CheckpointStore:
    """The checkpoints of one training in `folder`: `epoch-0003-step-000000.<digest>.pt`, and `spec.json` beside them.

    `epoch` is the number of complete epochs, `step` the number of steps since. `spec` holds everything that the results
    depend on: a checkpoint with another spec is refused. `keep_all`: those of complete epochs stay.
    """

    def __init__(self, folder: Path, spec: Mapping[str, Any] | None = None, *, keep_all: bool = False) -> None:
        self.folder = folder
        self.spec = dict(spec or {})
        self.keep_all = keep_all

    def save(self, state: dict[str, Any], *, epoch: int, step: int = 0, best_epoch: int | None = None) -> Path:
        """Write a state, then delete all checkpoints but the latest `KEEP`, and the best epoch's or all epochs'.

        Also deletes files of processes that were killed while saving, and checkpoints of the same step or later ones:
        they are damaged, or the training would have continued from them. Only one process may save at a time.

        Raises:
            StorageError: the checkpoint cannot be written; previous checkpoints are intact.
        """
        name = f"epoch-{epoch:04d}-step-{step:06d}"
        digest = _new_digest()
        for left in self.folder.glob(".epoch-*.tmp"):
            with suppress(OSError):  # the write names the reason
                left.unlink()

        def complete_name() -> str:
            return f"{name}.{digest.hexdigest()}.pt"

        try:
            if not (self.folder / "spec.json").exists():
                write_json(self.folder / "spec.json", self.spec)
            with atomic_write(self.folder / name, "wb", name=complete_name) as file:
                sink = _DigestingWriter(file, digest)
                torch.save({"spec": self.spec, "state": state}, cast(IO[bytes], sink))
                if sink.error:
                    raise sink.error
        except StorageError as error:
            mib = tensor_bytes(state) / 2**20
            raise StorageError(f"a checkpoint of {mib:.1f} MiB cannot be written: {error}") from error
        new = self.folder / complete_name()
        newest_first = self._newest_first()
        before = [path for path in newest_first if _position(path) < (epoch, step)]
        kept = {new, *before[: KEEP - 1]}
        for path in before:
            complete_epochs, step = _position(path)
            if step == 0 and (self.keep_all or complete_epochs == best_epoch):
                kept.add(path)
        for path in newest_first:
            if path not in kept:
                path.unlink(missing_ok=True)  # NFS reports a missing file when it repeats a request
        return new

    def epochs(self) -> set[int]:
        """The complete epochs at whose end a checkpoint was saved that is still here."""
        return {epoch for epoch, step in map(_position, self._newest_first()) if epoch > 0 and not step}

    def latest(self) -> dict[str, Any] | None:
        """The latest state, or None; a damaged checkpoint is skipped with a warning.

        Raises:
            UserError: the checkpoint has another spec; the message names the differences.
        """
        for path in self._newest_first():
            content = path.read_bytes()
            if _new_digest(content).hexdigest() == path.name.split(".")[1]:
                saved = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
                if differing := differences(saved["spec"], self.spec):
                    raise UserError(f"{path} belongs to another training and is not used: {differing}")
                state: dict[str, Any] = saved["state"]
                return state
            log.warning("%s is damaged: its content does not match its digest; using the one before it", path)
        return None

    def others(self) -> Iterator[str]:
        """A line for each sibling folder with checkpoints of another spec: the folder and the differences."""
        for path in sorted(self.folder.parent.glob("*/spec.json")):
            if path.parent != self.folder:
                differing = differences(json.loads(path.read_text()), self.spec)
                yield f"{path.parent} holds checkpoints of another training: {differing}"

    def _newest_first(self) -> list[Path]:
        return sorted(self.folder.glob("epoch-*.pt"), key=_position, reverse=True)


def _position(path: Path) -> tuple[int, int]:
    """Complete epochs and further steps of a checkpoint, from its name."""
    found = _NAME.fullmatch(path.name)
    return (int(found[1]), int(found[2])) if found else (-1, 0)


def differences(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> str:
    """`lr is 0.1 there and 0.05 here, ...` for all keys that differ, nested keys with dots; "" if none."""
    flat = [dict(dotted_items(spec)) for spec in (theirs, ours)]
    values = {key: [spec.get(key, "the default") for spec in flat] for key in dict.fromkeys([*flat[0], *flat[1]])}
    differing = [(key, there, here) for key, (there, here) in values.items() if there != here]
    return ", ".join(f"{key} is {there} there and {here} here" for key, there, here in differing)


class _DigestingWriter:
    """A file object for `torch.save` that writes to a file and updates a digest, without another copy in memory.

    After the first error, which is in `error`, it drops the data: `torch.save` would raise another one.
    """

    def __init__(self, file: IO[bytes], digest: "hashlib.blake2b") -> None:
        self._file = file
        self._digest = digest
        self.error: OSError | None = None

    def write(self, content: memoryview) -> int:
        if self.error is None:
            try:
                self._file.write(content)
                self._digest.update(content)
            except OSError as error:
                self.error = error
        return len(content)

    def flush(self) -> None:
        """`atomic_write` flushes the file."""


def _new_digest(content: bytes = b"") -> "hashlib.blake2b":
    """Detects a flipped byte, which torch.load does not."""
    return hashlib.blake2b(content, digest_size=8)


# To a slow shared file system: before the first checkpoint has been written, a stop leaves time for this.
ASSUMED_BYTES_PER_SECOND: Final = 100e6
VISIBLE_SECONDS: Final = 90.0  # until a node sees a file of another one; NFS caches folders for up to a minute


class Checkpointer:
    """Resumes a training from its store, saves it there, and measures the time for which the training waits.

    Without a store, it does nothing. An error of the thread is raised by the next save, the next `is_due`, or at the
    end of the block of `completed`. A save with `wait` tries again.

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
        precision: str,
        every_seconds: float = 0.0,
    ) -> None:
        self._store = store
        self._state = state
        self._facts = {"global_batch": global_batch, "seed": seed, "precision": precision}
        self.every_seconds = every_seconds
        self._began = time.monotonic()  # the start of the last save
        self._writing: Future[float] | None = None  # on rank 0: the end of the write in progress
        self._blocked_seconds = 0.0  # for which the training waited in the last save
        self.last_seconds = 0.0  # from the start of the last save until it was written
        parts: list[Any] = [*state.modules.values(), state.optimizer]
        size = tensor_bytes([part.state_dict() for part in parts]) if store else 0
        self._assumed_seconds = size / ASSUMED_BYTES_PER_SECOND  # of the first save
        self.total_seconds = 0.0  # for which the training waited, including previous runs
        if store and (found := _latest(store, state.group)):
            if (saved := found["global_batch"]) != global_batch:
                remedy = "start anew, or give the `batch_size` and `accumulation` of before"
                raise UserError(
                    f"the checkpoint has {saved} images per step, but this training has {global_batch}: {remedy}"
                )
            _restore(state, found, store)
            if (before := found["precision"]) != precision and state.group.is_main:
                log.warning("the training goes on in %s: so far, it was in %s", precision, before)
            self._blocked_seconds = found["saving_seconds"]
            self.last_seconds = found["writing_seconds"]
            # The last save of a run is not in its own checkpoint: assume that it took as long as the one before it.
            self.total_seconds = found["checkpoint_seconds"] + self._blocked_seconds

    @contextmanager
    def completed(self) -> Iterator[None]:
        """At the end of the block, the last checkpoint is complete; after an error, as far as it can be."""
        try:
            yield
        except BaseException:
            self.give_up()
            raise
        self._wait()

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
        if self._store is None or not self.every_seconds:
            return self._store is not None
        is_old = time.monotonic() - self._began >= self.every_seconds
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
        began = time.perf_counter()
        self._began = time.monotonic()
        expected = self.last_seconds if wait else self._blocked_seconds
        state = self._state.state_dict() | self._facts | {"checkpoint_seconds": self.total_seconds}
        state |= {"saving_seconds": expected, "writing_seconds": self.last_seconds}
        if self._state.group.is_main:
            epoch = len(self._state.history)
            step = self._state.progress.step
            best = self._state.best_of(self._store.epochs() | (set() if step else {epoch}))
            copied = host_copy(state)
            synchronize(self._state.group.device)
            store = self._store
            thread = ThreadPoolExecutor(1, "checkpoint")

            def write() -> float:  # returns its end
                store.save(copied, epoch=epoch, step=step, best_epoch=best)
                return time.monotonic()

            self._writing = thread.submit(write)
            thread.shutdown(wait=False)  # it ends after the write
        self.total_seconds += time.perf_counter() - began
        if wait:
            self._wait()
        self._blocked_seconds = self.total_seconds - before

    def _wait(self) -> None:
        """Wait for the write in progress, and raise its error."""
        if self._writing is None:
            return
        began = time.perf_counter()
        writing = self._writing
        self._writing = None
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
    state = store.latest()
    give_up_at = time.monotonic() + VISIBLE_SECONDS
    latest = -int(group.minimum(torch.tensor(-_steps_so_far(state), device=group.device)))
    while _steps_so_far(state) != latest:
        if time.monotonic() > give_up_at:
            raise UserError(f"{store.folder}: rank {group.rank} does not find the checkpoint from which others resume")
        time.sleep(1)
        state = store.latest()
    return state


def _restore(state: TrainingState, saved: dict[str, Any], store: CheckpointStore) -> None:
    """Restore a state.

    Raises:
        UserError: the model, the optimizer or the user's loss has other tensors.
    """
    try:
        state.load_state_dict(saved)
    except (RuntimeError, ValueError, AttributeError) as error:  # AttributeError: for a buffer of a module that is gone
        if is_out_of_memory(error):
            raise
        reason = str(error).strip().splitlines()[-1].strip()
        remedy = "if the code of the model or the loss has changed, increase `retrain` to start anew"
        raise UserError(f"the checkpoint in {store.folder} does not fit the model ({reason}): {remedy}") from error


def _steps_so_far(state: dict[str, Any] | None) -> int:
    """A number that is larger for a later state; -1 for none."""
    return -1 if state is None else (len(state["history"]) << 32) + int(state["progress"]["step"])


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


def tensor_bytes(value: Any) -> int:
    """The size of the tensors in nested dicts and lists."""
    return sum(leaf.nbytes for leaf in tree_leaves(value) if isinstance(leaf, Tensor))
