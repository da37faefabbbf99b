"""Stages the images of a source in shards, on all CPUs; a shard that is recorded as done is kept.

Memory: each process holds one shard of at most 16 MiB of pixels, and the list of its files (about 0.3 KiB each).

While a dataset is staged, the folder `.staging/` has these files, the arrays at their final size from the start:

    {train,val}-images.npy, {train,val}-labels.npy, {train,val}-hashes.npy     shards are written in place
    shards.jsonl                                                               a line per shard that is on the disk
"""

import hashlib
import logging
import math
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.lib.format import open_memmap, read_magic
from numpy.typing import NDArray

from trainyard.data.mean_std import channel_sums
from trainyard.data.problems import Problem
from trainyard.data.sources import BlockTask, DataSource
from trainyard.data.staged import SPLITS, DataError
from trainyard.utils import event_log
from trainyard.utils.errors import storage_errors
from trainyard.utils.terminal import show_progress

SHARD_BYTES: Final = 2**24  # of pixels, at most
SHARD_IMAGES: Final = 4096  # at most
QUEUED_PER_CPU: Final = 2  # shards that are submitted ahead of time, so that no process waits for work
SHARDS_FILE: Final = "shards.jsonl"
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Shard:
    """Consecutive rows of a split."""

    split: str
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True)
class ShardRecord:
    """A line of `shards.jsonl`: a shard that is on the disk."""

    split: str
    start: int
    stop: int
    key: str  # of the task that made it
    bad: list[int]  # rows
    problems: list[Problem]
    handled: dict[str, int]
    count: int  # good training images
    sums: list[int]  # per channel, over the pixels of the training images
    squares: list[int]

    @property
    def shard(self) -> Shard:
        """Which shard it is."""
        return Shard(self.split, self.start, self.stop)


def divide_into_shards(sizes: dict[str, int], shape: tuple[int, int, int]) -> list[Shard]:
    """The shards of all splits; they do not depend on the number of CPUs."""
    rows = max(1, min(SHARD_IMAGES, SHARD_BYTES // math.prod(shape)))
    return [
        Shard(name, start, min(start + rows, sizes[name])) for name in SPLITS for start in range(0, sizes[name], rows)
    ]


def stage_shards(source: DataSource, work: Path, *, cpus: int, name: str) -> tuple[list[ShardRecord], dict[str, str]]:
    """Write all images of the source to the folder `work`, except shards that are there and have not changed.

    Returns the records of all shards, and the SHA-256 of the image files by name, bad rows included.

    Raises:
        DataError: a process died.
        UserError: from a user's function.
    """
    shards = divide_into_shards(source.sizes, source.shape)
    tasks = {shard: source.block_task(shard.split, shard.start, shard.stop) for shard in shards}
    with event_log.EventLog.opened(work / SHARDS_FILE) as events:
        recorded = read_shard_records(work) if allocate_files(source, work) else {}
        done = [shard for shard, task in tasks.items() if shard in recorded and recorded[shard].key == task.key]
        missing = [shard for shard in tasks if shard not in set(done)]
        for shard in missing:
            if shard in recorded:  # the source has changed: the rows are about to be overwritten
                events.append("void", durable=True, **asdict(shard))
        writer, digests = _RecordWriter(events, work), _ImageDigests(work, source)
        records = [recorded[shard] for shard in done]
        for shard in done:
            digests.add(shard)
        total, pending = sum(map(len, tasks)), sum(map(len, missing))
        if pending < total:
            log.info("%s: %d of %d shards are already staged", name, len(done), len(tasks))
        is_small = source.is_in_memory or pending * math.prod(source.shape) <= SHARD_BYTES
        with show_progress(name, total, unit="images", completed=total - pending) as advance, writer.flushed_at_end():
            for record in _make_shards(missing, tasks, work, 1 if is_small else cpus):
                records.append(record)
                writer.write(record)
                digests.add(record.shard)
                advance(len(record.shard))
    return records, digests.finish()


# ---- making shards, in processes or in this one


def _make_shards(shards: list[Shard], tasks: dict[Shard, BlockTask], work: Path, cpus: int) -> Iterator[ShardRecord]:
    """Make the shards; yields the record of each as soon as it is written, in any order."""
    if cpus == 1:
        for shard in shards:
            yield make_shard(tasks[shard], shard, work)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(cpus, len(shards)), context, _exit_with_parent) as pool:
        waiting, running = iter(shards), dict[Future[ShardRecord], Shard]()
        try:
            while True:
                for shard in waiting:
                    running[pool.submit(make_shard, tasks[shard], shard, work)] = shard
                    if len(running) >= QUEUED_PER_CPU * cpus:
                        break
                if not running:
                    return
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    yield future.result()
                    del running[future]
        except BrokenProcessPool:
            candidates = ", ".join(f"{each.split} {each.start} to {each.stop}" for each in running.values())
            raise DataError(
                f"a process that reads images died, perhaps out of memory, at one of: {candidates}; "
                "finished shards are kept: run this again with more memory or fewer CPUs"
            ) from None
        finally:
            for future in running:
                future.cancel()


def _exit_with_parent() -> None:
    """Make a process of the pool ignore Ctrl-C, which its parent handles, and exit with its parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def wait_and_exit() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait_and_exit, daemon=True).start()


def make_shard(task: BlockTask, shard: Shard, work: Path) -> ShardRecord:
    """Make one shard and write its rows; the record is valid once they are on the disk."""
    block = task.make()
    _write_array_rows(work / f"{shard.split}-images.npy", shard.start, block.images)
    _write_array_rows(work / f"{shard.split}-labels.npy", shard.start, block.labels)
    hashes = np.zeros(len(shard), np.uint64) if block.hashes is None else block.hashes
    _write_array_rows(work / f"{shard.split}-hashes.npy", shard.start, hashes)
    bad = [] if block.is_good is None else (np.flatnonzero(~block.is_good) + shard.start).tolist()
    is_train = shard.split == "train"
    sums, squares = channel_sums(block.images) if is_train else ([], [])
    return ShardRecord(
        **asdict(shard),
        key=task.key,
        bad=bad,
        problems=block.problems,
        handled=dict(block.handled),
        count=(len(shard) - len(bad)) * is_train,
        sums=sums,
        squares=squares,
    )


# ---- files


def read_shard_records(work: Path) -> dict[Shard, ShardRecord]:
    """The latest record of each shard that is on the disk."""
    records = dict[Shard, ShardRecord]()
    for event in event_log.read_events(work / SHARDS_FILE):
        shard = Shard(event["split"], event["start"], event["stop"])
        records.pop(shard, None)
        if event["event"] == "shard":
            values = {name: event[name] for name in ShardRecord.__dataclass_fields__}
            records[shard] = ShardRecord(**values | {"problems": [Problem(**each) for each in event["problems"]]})
    return records


def allocate_files(source: DataSource, work: Path) -> bool:
    """Create the arrays that do not exist at the right size, and then drop all records; returns whether all existed."""
    all_exist = True
    for split, size in source.sizes.items():
        arrays: dict[str, tuple[Any, tuple[int, ...]]] = {
            "images": (np.uint8, (size, *source.shape)),
            "labels": (np.int64, (size,)),
            "hashes": (np.uint64, (size,)),
        }
        for kind, (dtype, shape) in arrays.items():
            path = work / f"{split}-{kind}.npy"
            if not _is_allocated(path, dtype, shape):
                with storage_errors(path):
                    (work / SHARDS_FILE).write_text("")
                    open_memmap(path, mode="w+", dtype=dtype, shape=shape).flush()
                all_exist = False
    return all_exist


def _is_allocated(path: Path, dtype: Any, shape: tuple[int, ...]) -> bool:
    try:
        found = np.load(path, mmap_mode="r")
    except (OSError, ValueError, EOFError):
        return False
    return bool(found.dtype == dtype and found.shape == shape)


def _write_array_rows(path: Path, start: int, rows: NDArray[Any]) -> None:
    """Write rows to an allocated array, from the row `start` on."""
    with storage_errors(path), open(path, "r+b", buffering=0) as file:
        file.seek(data_offset(path) + start * rows[:1].nbytes)
        content = memoryview(np.ascontiguousarray(rows).view(np.uint8).reshape(-1))  # type: ignore[arg-type]
        while content:
            content = content[file.write(content) :]


def data_offset(path: Path) -> int:
    """The number of bytes before the first row.

    numpy parses the header with Python's parser, which in Python 3.11 sometimes fails when two threads use it at once
    ("AST constructor recursion depth mismatch"). So this reads only the header's length.
    """
    with open(path, "rb") as file:
        length = file.read(2 if read_magic(file) == (1, 0) else 4)
        return file.tell() + int.from_bytes(length, "little")


class _RecordWriter:
    """Records shards once their rows are on the disk; the fsync runs in a thread, while more shards are made."""

    def __init__(self, events: event_log.EventLog, work: Path) -> None:
        self._events, self._work = events, work
        self._pending = deque[ShardRecord]()
        self._thread = ThreadPoolExecutor(1)
        self._flushes = deque[Future[None]]()

    @contextmanager
    def flushed_at_end(self) -> Iterator[None]:
        """Ensure that all records are on the disk when the block ends, also after an exception."""
        try:
            yield
        finally:
            with self._thread:
                for flush in self._flushes:
                    flush.result()

    def write(self, record: ShardRecord) -> None:
        """Write a record soon, together with all that arrive while the fsync before it runs."""
        self._pending.append(record)
        self._flushes.append(self._thread.submit(self._flush))
        while self._flushes and self._flushes[0].done():
            self._flushes.popleft().result()

    def _flush(self) -> None:
        """Write the pending records, if an earlier flush has not written them."""
        records = [self._pending.popleft() for _ in range(len(self._pending))]
        for path in self._work.glob("*.npy") if records else ():
            with storage_errors(path), open(path, "rb") as file:
                os.fsync(file.fileno())
        for record in records:
            self._events.append("shard", durable=record is records[-1], **asdict(record))


class _ImageDigests:
    """SHA-256 of the image files, updated in a thread while they are written; at the end, it would use one CPU only."""

    def __init__(self, work: Path, source: DataSource) -> None:
        self._paths = {split: work / f"{split}-images.npy" for split in source.sizes}
        self._row_bytes = math.prod(source.shape)
        self._unread: dict[tuple[str, int], Shard] = {}  # written shards by split and first row
        self._rows = dict.fromkeys(source.sizes, 0)  # that are part of the digest
        self._digests = {split: hashlib.sha256(self._read_header(split)) for split in source.sizes}
        self._thread = ThreadPoolExecutor(1)
        self._updates: list[Future[None]] = []

    def _read_header(self, split: str) -> bytes:
        with open(self._paths[split], "rb") as file:
            return file.read(data_offset(self._paths[split]))

    def add(self, shard: Shard) -> None:
        """Add a written shard; it is read once all shards before it have been."""
        self._updates.append(self._thread.submit(self._update, shard))

    def _update(self, shard: Shard) -> None:
        self._unread[shard.split, shard.start] = shard
        while ready := self._unread.pop((shard.split, self._rows[shard.split]), None):
            with open(self._paths[ready.split], "rb", buffering=0) as file:
                file.seek(data_offset(self._paths[ready.split]) + ready.start * self._row_bytes)
                self._digests[ready.split].update(file.read(len(ready) * self._row_bytes))
            self._rows[ready.split] = ready.stop

    def finish(self) -> dict[str, str]:
        """The digests by file name, equal to what `files.file_digest` returns."""
        with self._thread:
            for update in self._updates:
                update.result()
        return {self._paths[split].name: digest.hexdigest() for split, digest in self._digests.items()}
