"""Turning a source into its large files shard by shard, on all cores, so that a shard that is done stays done.

Memory: a process holds one shard of at most 16 MiB of pixels, and the source's list of files (about 0.3 KiB each).
"""

import logging
import math
import multiprocessing
import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final

import numpy as np

from trainyard.data.mean_std import channel_sums
from trainyard.data.problems import Problem
from trainyard.data.shard_store import RECORD, Digests, Notes, Shard, known_shards, prepare, write_rows
from trainyard.data.sources import Part, Source
from trainyard.data.staged import SPLITS, DataError
from trainyard.planning import journal
from trainyard.utils.progress_bar import counting

SHARD_BYTES: Final = 2**24  # of pixels
SHARD_IMAGES: Final = 4096  # at most
AHEAD: Final = 2  # shards per process that are handed out before they are asked for
log = logging.getLogger(__name__)


@dataclass
class Outcome:
    """What is known of a shard, or of several together, besides its rows."""

    bad: dict[str, list[int]] = field(default_factory=dict)  # rows by split
    problems: list[Problem] = field(default_factory=list)
    handled: Counter[str] = field(default_factory=Counter)
    count: int = 0  # good training images
    sums: list[int] = field(default_factory=list)  # per channel, over the pixels of those
    squares: list[int] = field(default_factory=list)
    digests: dict[str, str] = field(default_factory=dict)  # of the image files, bad rows included

    def add(self, record: dict[str, Any]) -> None:
        """Take in what a shard's line says."""
        self.bad.setdefault(record["split"], []).extend(record["bad"])
        self.problems += [Problem(**each) for each in record["problems"]]
        self.handled.update(record["handled"])
        self.count += record["count"]
        self.sums = [sum(pair) for pair in zip_longest(self.sums, record["sums"], fillvalue=0)]
        self.squares = [sum(pair) for pair in zip_longest(self.squares, record["squares"], fillvalue=0)]


def shards_of(sizes: dict[str, int], shape: tuple[int, int, int]) -> list[Shard]:
    """All rows of all splits, cut where the number of processes has no say."""
    rows = max(1, min(SHARD_IMAGES, SHARD_BYTES // math.prod(shape)))
    return [Shard(name, start, min(start + rows, sizes[name]))
            for name in SPLITS for start in range(0, sizes[name], rows)]  # fmt: skip


def make_shards(source: Source, work: Path, *, cpus: int, what: str) -> Outcome:
    """Have all rows of the source in `work`; shards that are there already, of the same files, are not made again.

    Raises:
        DataError: a process that worked on them died.
        UserError: what a user's own code raises in one.
    """
    shards = shards_of(source.sizes, source.shape)
    parts = {shard: source.part(shard.split, shard.start, shard.stop) for shard in shards}
    with journal.opened(work / RECORD) as record:
        known = known_shards(work) if prepare(source, work) else {}
        there = [shard for shard, part in parts.items() if shard in known and known[shard]["key"] == part.key]
        missing = [shard for shard in parts if shard not in set(there)]
        for shard in missing:
            if shard in known:  # of other files: its rows are about to be overwritten
                record.append("void", durable=True, **asdict(shard))
        notes, outcome, digests = Notes(record, work), Outcome(), Digests(work, source)
        for shard in there:
            outcome.add(known[shard])
            digests.add(shard)
        total, pending = sum(map(len, parts)), sum(map(len, missing))
        if pending < total:
            log.info("%s: %d of %d shards are there already", what, len(there), len(parts))
        small = source.in_process or pending * math.prod(source.shape) <= SHARD_BYTES
        with counting(what, total, unit="images", done=total - pending) as count, notes.kept():
            for shard, line in _made(missing, parts, work, 1 if small else cpus):
                outcome.add(notes.take({**asdict(shard), "key": parts[shard].key, **line}))
                digests.add(shard)
                count.add(len(shard))
    outcome.digests = digests.finished()
    return outcome


# ---- in another process, or in this one


def _made(
    shards: list[Shard], parts: dict[Shard, Part], work: Path, cpus: int
) -> Iterator[tuple[Shard, dict[str, Any]]]:
    """Make each shard, and give what is to be noted of it as soon as it is written."""
    if cpus == 1:
        for shard in shards:
            yield shard, write_shard(parts[shard], shard, work)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(cpus, len(shards)), context, _end_with_parent) as pool:
        waiting, running = iter(shards), dict[Future[dict[str, Any]], Shard]()
        try:
            while True:
                for shard in waiting:
                    running[pool.submit(write_shard, parts[shard], shard, work)] = shard
                    if len(running) >= AHEAD * cpus:
                        break
                if not running:
                    return
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    yield running[future], future.result()
                    del running[future]
        except BrokenProcessPool:
            place = ", ".join(f"{each.split} {each.start} to {each.stop}" for each in running.values())
            raise DataError(f"a process that read images died, perhaps for lack of memory, at one of: {place}; what is "
                            "done is kept: run this again, with more memory or fewer CPUs") from None  # fmt: skip
        finally:
            for future in running:
                future.cancel()


def _end_with_parent() -> None:
    """A process of the pool does not outlive the one that started it, and leaves Ctrl-C to it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_follow, args=[parent], daemon=True).start()


def _follow(parent: Any) -> None:
    parent.join()
    os._exit(1)


def write_shard(part: Part, shard: Shard, work: Path) -> dict[str, Any]:
    """Make one shard and write its rows; gives what is to be noted of it once they are on the disk."""
    block = part.make()
    write_rows(work / f"{shard.split}-images.npy", shard.start, block.images)
    write_rows(work / f"{shard.split}-labels.npy", shard.start, block.labels)
    prints = np.zeros(len(shard), np.uint64) if block.prints is None else block.prints
    write_rows(work / f"{shard.split}-prints.npy", shard.start, prints)
    bad = [] if block.good is None else (np.flatnonzero(~block.good) + shard.start).tolist()
    trained_on = shard.split == "train"
    sums, squares = channel_sums(block.images) if trained_on else ([], [])
    return {
        "bad": bad,
        "problems": [asdict(problem) for problem in block.problems],
        "handled": dict(block.handled),
        "count": (len(shard) - len(bad)) * trained_on,
        "sums": sums,
        "squares": squares,
    }
