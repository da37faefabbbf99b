"""Checkpoint files: written atomically, named by the digest of their content, verified when they are read."""

import hashlib
import io
import json
import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, cast

import torch

from trainyard.config.placeholders import dotted_items
from trainyard.utils.errors import StorageError, UserError
from trainyard.utils.files import atomic_write, write_json

KEEP = 2  # the latest, and the one before it in case the latest is damaged; besides these, the best one
_NAME = re.compile(r"epoch-(\d+)-step-(\d+)\.([0-9a-f]+)\.pt")
log = logging.getLogger(__name__)


class CheckpointStore:
    """The checkpoints of one training in `folder`: `epoch-0003-step-000000.<digest>.pt`, and `spec.json` beside them.

    `epoch` is the number of complete epochs, `step` the number of steps since. `spec` holds everything that the results
    depend on: a checkpoint with another spec is refused.
    """

    def __init__(self, folder: Path, spec: Mapping[str, Any] | None = None) -> None:
        self.folder, self.spec = folder, dict(spec or {})

    def save(self, state: dict[str, Any], *, epoch: int, step: int = 0, best_epoch: int | None = None) -> Path:
        """Write a state, then delete all checkpoints but the latest `KEEP` and the best epoch's.

        Also deletes files of processes that were killed while saving, and checkpoints of the same step or later ones:
        they are damaged, or the training would have continued from them. Only one process may save at a time.

        Raises:
            StorageError: the checkpoint cannot be written; previous checkpoints are intact.
        """
        name, digest = f"epoch-{epoch:04d}-step-{step:06d}", _new_digest()
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
            mib = sum(tensor.nbytes for tensor in _tensors(state)) / 2**20
            raise StorageError(f"a checkpoint of {mib:.1f} MiB cannot be written: {error}") from error
        new, newest_first = self.folder / complete_name(), self._newest_first()
        before = [path for path in newest_first if _position(path) < (epoch, step)]
        kept = {new, *before[: KEEP - 1], *(path for path in before if _position(path) == (best_epoch, 0))}
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
                found = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
                if differing := differences(found["spec"], self.spec):
                    raise UserError(f"{path} belongs to another training and is not used: {differing}")
                state: dict[str, Any] = found["state"]
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


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in nested mappings and lists."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (Mapping, list, tuple)):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from _tensors(inner)


class _DigestingWriter:
    """A file object for `torch.save` that writes to a file and updates a digest, without another copy in memory.

    After the first error, which is in `error`, it drops the data: `torch.save` would raise another one.
    """

    def __init__(self, file: IO[bytes], digest: "hashlib.blake2b") -> None:
        self._file, self._digest = file, digest
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
