"""Turning a source into its large files shard by shard, on all cores, so that a shard that is done stays done.

Memory: a process holds one shard of at most 16 MiB of pixels, and the source's list of files (about 0.3 KiB each).

While a dataset is being staged, `.staging/` below its folder holds the files, each of its final length from the start:

    {train,val}-images.npy, {train,val}-labels.npy, {train,val}-prints.npy     rows are written in place
    shards.jsonl                                                               a line per shard that is on the disk
"""

import hashlib
import logging
import math
import multiprocessing
import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.lib.format import open_memmap, read_magic
from numpy.typing import NDArray

from trainyard.data.mean_std import channel_sums
from trainyard.data.problems import Problem
from trainyard.data.sources import Part, Source
from trainyard.data.staged import SPLITS, DataError
from trainyard.utils import jsonl
from trainyard.utils.progress_bar import show_progress

SHARD_BYTES: Final = 2**24  # of pixels
SHARD_IMAGES: Final = 4096  # at most
AHEAD: Final = 2  # shards per process that are handed out before they are asked for
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Shard:
    """Rows of one split."""

    split: str
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


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
    with jsonl.EventLog.opened(work / RECORD) as record:
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
        with show_progress(what, total, unit="images", completed=total - pending) as advance, notes.kept():
            for shard, line in _made(missing, parts, work, 1 if small else cpus):
                outcome.add(notes.take({**asdict(shard), "key": parts[shard].key, **line}))
                digests.add(shard)
                advance(len(shard))
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


RECORD: Final = "shards.jsonl"


def known_shards(work: Path) -> dict[Shard, dict[str, Any]]:
    """What was last noted of each shard that is there."""
    known = dict[Shard, dict[str, Any]]()
    for event in jsonl.read_events(work / RECORD):
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

    def __init__(self, record: jsonl.EventLog, work: Path) -> None:
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
