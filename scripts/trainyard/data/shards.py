"""Stages the images of a source in shards, on all CPUs; a shard that is recorded as done is kept.

Memory: each process holds one shard of at most 16 MiB of pixels, and the list of its files (about 0.3 KiB each).

While a dataset is staged, the folder `.staging/` has these files, the arrays at their final size from the start:

    {train,val}-images.npy, {train,val}-labels.npy     shards are written in place
    shards.jsonl                                       a line per shard that is on the disk
"""

import logging
import math
import multiprocessing
import os
import signal
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.lib.format import open_memmap, read_array_header_1_0, read_magic
from numpy.typing import NDArray

from trainyard.data.mean_std import channel_sums
from trainyard.data.problems import Problem
from trainyard.data.sources import BlockTask, DataSource
from trainyard.data.staged import SPLITS, DataError
from trainyard.utils import event_log
from trainyard.utils.errors import storage_errors
from trainyard.utils.guard import signal_at_end_of_parent
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

    shard: Shard
    key: str  # of the task that made it
    bad: list[int]  # rows
    problems: list[Problem]
    handled: dict[str, int]
    count: int  # good training images
    sums: list[int]  # per channel, over the pixels of the training images
    squares: list[int]


def divide_into_shards(sizes: dict[str, int], shape: tuple[int, int, int]) -> list[Shard]:
    """The shards of all splits; they do not depend on the number of CPUs."""
    rows = max(1, min(SHARD_IMAGES, SHARD_BYTES // math.prod(shape)))
    shards = list[Shard]()
    for name in SPLITS:
        size = sizes[name]
        shards += [Shard(name, start, min(start + rows, size)) for start in range(0, size, rows)]
    return shards


def stage_shards(source: DataSource, work: Path, *, cpus: int, name: str) -> list[ShardRecord]:
    """Write all images of the source to the folder `work`, except shards that are there and have not changed.

    Returns the records of all shards.

    Raises:
        DataError: a process died.
        UserError: from a user's function.
    """
    shards = divide_into_shards(source.sizes, source.shape)
    tasks = {shard: source.block_task(shard.split, shard.start, shard.stop) for shard in shards}
    with event_log.EventLog.opened(work / SHARDS_FILE) as events:
        recorded = read_shard_records(work) if allocate_files(source, work) else {}
        records = list[ShardRecord]()
        missing = list[Shard]()
        for shard, task in tasks.items():
            record = recorded.get(shard)
            if record and record.key == task.key:
                records.append(record)
                continue
            missing.append(shard)
            if record:  # the source has changed: the rows are about to be overwritten
                events.append("void", durable=True, shard=asdict(shard))
        total = sum(map(len, tasks))
        pending = sum(map(len, missing))
        if records:
            log.info("%s: %d of %d shards are already staged", name, len(records), len(tasks))
        is_small = source.is_in_memory or pending * math.prod(source.shape) <= SHARD_BYTES
        with show_progress(name, total, unit="images", completed=total - pending) as advance:
            for made in _make_shards(missing, tasks, work, 1 if is_small else cpus):
                _flush_arrays(work)  # once for all shards that were made meanwhile
                for record in made:
                    events.append("shard", durable=record is made[-1], **asdict(record))
                    advance(len(record.shard))
                records += made
    return records


# ---- making shards, in processes or in this one


def _make_shards(
    shards: list[Shard], tasks: dict[Shard, BlockTask], work: Path, cpus: int
) -> Iterator[list[ShardRecord]]:
    """Make the shards; yields the records of those that have been written since the last ones, in any order."""
    if cpus == 1:
        for shard in shards:
            yield [make_shard(tasks[shard], shard, work)]
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(cpus, len(shards)), context, _end_with_parent) as pool:
        waiting = iter(shards)
        running = dict[Future[ShardRecord], Shard]()
        try:
            while True:
                for shard in waiting:
                    running[pool.submit(make_shard, tasks[shard], shard, work)] = shard
                    if len(running) >= QUEUED_PER_CPU * cpus:
                        break
                if not running:
                    return
                ended = wait(running, return_when=FIRST_COMPLETED).done
                yield [future.result() for future in ended if future.exception() is None]
                for future in ended:
                    future.result()  # raises its error
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


def _end_with_parent() -> None:
    """Make a process of the pool ignore Ctrl-C, which its parent handles, and end with its parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None
    signal_at_end_of_parent(signal.SIGKILL, parent.pid)


def make_shard(task: BlockTask, shard: Shard, work: Path) -> ShardRecord:
    """Make one shard and write its rows; the record is valid once they are on the disk."""
    block = task.make()
    _write_array_rows(work / f"{shard.split}-images.npy", shard.start, block.images)
    _write_array_rows(work / f"{shard.split}-labels.npy", shard.start, block.labels)
    bad = [] if block.is_good is None else (np.flatnonzero(~block.is_good) + shard.start).tolist()
    is_train = shard.split == "train"
    sums, squares = channel_sums(block.images) if is_train else ([], [])
    return ShardRecord(
        shard=shard,
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
        shard = Shard(**event["shard"])
        records.pop(shard, None)
        if event["event"] == "shard":
            values = {field.name: event[field.name] for field in fields(ShardRecord)}
            problems = [Problem(**problem) for problem in event["problems"]]
            records[shard] = ShardRecord(**values | {"shard": shard, "problems": problems})
    return records


def allocate_files(source: DataSource, work: Path) -> bool:
    """Create the arrays that do not exist at the right size, and then drop all records; returns whether all existed."""
    arrays: dict[Path, tuple[Any, tuple[int, ...]]] = {}
    for split, size in source.sizes.items():
        arrays[work / f"{split}-images.npy"] = np.uint8, (size, *source.shape)
        arrays[work / f"{split}-labels.npy"] = np.int64, (size,)
    missing = [path for path, expected in arrays.items() if not _is_allocated(path, *expected)]
    for path in missing:
        dtype, shape = arrays[path]
        with storage_errors(path):
            (work / SHARDS_FILE).write_text("")
            open_memmap(path, mode="w+", dtype=dtype, shape=shape).flush()
    return not missing


def _is_allocated(path: Path, dtype: Any, shape: tuple[int, ...]) -> bool:
    with suppress(OSError, ValueError, EOFError):
        array = np.load(path, mmap_mode="r")
        return bool(array.dtype == dtype and array.shape == shape)
    return False


def _write_array_rows(path: Path, start: int, rows: NDArray[Any]) -> None:
    """Write rows to an allocated array, from the row `start` on."""
    with storage_errors(path), open(path, "r+b", buffering=0) as file:
        read_magic(file)
        read_array_header_1_0(file)
        file.seek(start * rows[:1].nbytes, os.SEEK_CUR)
        content = memoryview(np.ascontiguousarray(rows).view(np.uint8).reshape(-1))  # type: ignore[arg-type]
        while content:
            content = content[file.write(content) :]


def _flush_arrays(work: Path) -> None:
    for path in work.glob("*.npy"):
        with storage_errors(path), open(path, "rb") as file:
            os.fsync(file.fileno())
