"""The folder in which a dataset is in the making, so that a shard that is done stays done.

Below the dataset's folder, `.staging/` holds the files, each of its final length from the start:

    {train,val}-images.npy, {train,val}-labels.npy, {train,val}-prints.npy     rows are written in place
    shards.jsonl                                                               a line per shard that is on the disk
"""

import hashlib
import math
import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.lib.format import open_memmap, read_magic
from numpy.typing import NDArray

from trainyard.data.sources import Source
from trainyard.planning import journal

RECORD: Final = "shards.jsonl"


@dataclass(frozen=True)
class Shard:
    """Rows of one split."""

    split: str
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


def known_shards(work: Path) -> dict[Shard, dict[str, Any]]:
    """What was last noted of each shard that is there."""
    known = dict[Shard, dict[str, Any]]()
    for event in journal.read_events(work / RECORD):
        shard = Shard(event["split"], event["start"], event["stop"])
        known.pop(shard, None)
        if event["event"] == "shard":
            known[shard] = event
    return known


def prepare(source: Source, work: Path) -> bool:
    """Whether all files are laid out; if one is not, it is, and nothing counts as done."""
    laid_out = True
    for name, size in source.sizes.items():
        for kind, dtype, shape in _KINDS:
            path, whole = work / f"{name}-{kind}.npy", (size, *(source.shape if shape is None else shape))
            if not _is_laid_out(path, dtype, whole):
                (work / RECORD).write_text("")
                open_memmap(path, mode="w+", dtype=dtype, shape=whole).flush()
                laid_out = False
    return laid_out


_KINDS: Final[tuple[tuple[str, Any, tuple[int, ...] | None], ...]] = (
    ("images", np.uint8, None),  # of the source's shape
    ("labels", np.int64, ()),
    ("prints", np.uint64, ()),
)


def _is_laid_out(path: Path, dtype: Any, shape: tuple[int, ...]) -> bool:
    try:
        found = np.load(path, mmap_mode="r")
    except (OSError, ValueError, EOFError):
        return False
    return bool(found.dtype == dtype and found.shape == shape)


def write_rows(path: Path, start: int, rows: NDArray[Any]) -> None:
    """Write rows into a file that is laid out, from the row `start` on."""
    with open(path, "r+b", buffering=0) as file:
        file.seek(_offset(path) + start * rows[:1].nbytes)
        content = memoryview(np.ascontiguousarray(rows).view(np.uint8).reshape(-1))  # type: ignore[arg-type]
        while content:
            content = content[file.write(content) :]


def _offset(path: Path) -> int:
    """Where the rows begin, behind the header.

    The header is not parsed: numpy has Python's parser do it, which in Python 3.11 fails now and then when two threads
    use it at once ("AST constructor recursion depth mismatch").
    """
    with open(path, "rb") as file:
        length = file.read(2 if read_magic(file) == (1, 0) else 4)
        return file.tell() + int.from_bytes(length, "little")


class Notes:
    """Notes shards once their rows are on the disk; while it waits for the disk, others are made and taken."""

    def __init__(self, record: journal.Journal, work: Path) -> None:
        self._record, self._work = record, work
        self._waiting: list[dict[str, Any]] = []
        self._keeper = ThreadPoolExecutor(1)
        self._keeping: Future[None] | None = None

    @contextmanager
    def kept(self) -> Iterator[None]:
        """When the block ends, however it does, all that was taken is on the disk."""
        try:
            yield
        finally:
            with self._keeper:
                self._keep().result()

    def take(self, line: dict[str, Any]) -> dict[str, Any]:
        """Take a line, to be noted soon."""
        self._waiting.append(line)
        if self._keeping is None or self._keeping.done():
            self._keep()
        return line

    def _keep(self) -> Future[None]:
        """Have what waits kept, after what is being kept."""
        if self._keeping is not None:
            self._keeping.result()
        lines, self._waiting = self._waiting, []
        self._keeping = self._keeper.submit(self._note, lines)
        return self._keeping

    def _note(self, lines: list[dict[str, Any]]) -> None:
        for path in self._work.glob("*.npy"):
            with open(path, "rb") as file:
                os.fsync(file.fileno())
        for line in lines:
            self._record.append("shard", durable=line is lines[-1], **line)


class Digests:
    """The digests of the image files, worked out while they grow: at the end, one core would be busy long with it."""

    def __init__(self, work: Path, source: Source) -> None:
        self._paths = {split: work / f"{split}-images.npy" for split in source.sizes}
        self._row_bytes = math.prod(source.shape)
        self._done: dict[tuple[str, int], Shard] = {}  # by split and first row, of those that are not read yet
        self._rows = dict.fromkeys(source.sizes, 0)  # that have been read
        self._digests = {split: hashlib.sha256(self._head(split)) for split in source.sizes}
        self._reader = ThreadPoolExecutor(1)
        self._reads: list[Future[None]] = []

    def _head(self, split: str) -> bytes:
        with open(self._paths[split], "rb") as file:
            return file.read(_offset(self._paths[split]))

    def add(self, shard: Shard) -> None:
        """A shard is there, and will be read when what lies before it has been."""
        self._reads.append(self._reader.submit(self._read, shard))

    def _read(self, shard: Shard) -> None:
        self._done[shard.split, shard.start] = shard
        while ready := self._done.pop((shard.split, self._rows[shard.split]), None):
            with open(self._paths[ready.split], "rb", buffering=0) as file:
                file.seek(_offset(self._paths[ready.split]) + ready.start * self._row_bytes)
                self._digests[ready.split].update(file.read(len(ready) * self._row_bytes))
            self._rows[ready.split] = ready.stop

    def finished(self) -> dict[str, str]:
        """SHA-256 by file name, as `files.file_digest` would give it."""
        with self._reader:
            for read in self._reads:
                read.result()
        return {self._paths[split].name: digest.hexdigest() for split, digest in self._digests.items()}
