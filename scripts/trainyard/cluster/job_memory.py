"""Host memory of this Slurm job on this node, sampled while it runs and recorded for the requests of later jobs.

<folder>/memory.json       the record of the job, on its first node
<folder>/memory-<k>.json   of several jobs of a sweep, the record of job k, from 1
"""

import contextlib
import json
import logging
import os
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

from trainyard.cluster import slurm_allocation
from trainyard.cluster.slurm_allocation import JOB_OF_TRIAL
from trainyard.cluster.slurm_queries import ran_out_of_memory
from trainyard.utils.errors import UserError
from trainyard.utils.files import write_json

INTERVAL_SECONDS: Final = 1.0
MAX_LOAD: Final = 0.05  # of a CPU: without a control group, the kernel looks at each page (16 ms per GiB)
NOTED_GROWTH: Final = 1.1  # of the peak, until the record is written again
log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class MemoryRecord:
    """The host memory that a job has used on one node, in MiB, without the page cache, which the kernel can free."""

    job: str
    processes: int  # slots or ranks on the node
    requested_mib: int | None  # None if Slurm does not limit it
    peak_mib: int = 0
    process_peak_mib: int = 0  # the highest peak per slot or rank, over all jobs so far
    oom_kills: int = 0  # processes that the kernel killed for exceeding the limit
    ended: bool = False  # False while the job runs, and after it was killed

    def with_sample(self, used_mib: int, oom_kills: int) -> "MemoryRecord":
        """The record after one more sample."""
        peak = max(self.peak_mib, used_mib)
        per_process = max(self.process_peak_mib, -(-peak // self.processes))
        return replace(self, peak_mib=peak, process_peak_mib=per_process, oom_kills=oom_kills)


def read_records(folder: Path) -> list[MemoryRecord]:
    """The records in a folder, of the first job first."""
    records = []
    for path in sorted(folder.glob("memory*.json"), key=lambda path: (len(path.name), path.name)):
        with contextlib.suppress(OSError, ValueError, TypeError):  # a record of another version is no evidence
            records.append(MemoryRecord(**json.loads(path.read_text())))
    return records


def exhausted_mib(records: Sequence[MemoryRecord]) -> int:
    """The memory that the last job had, if it ran out of it; otherwise 0."""
    if not records or not records[0].requested_mib:
        return 0
    last = [record for record in records if record.job == records[0].job]
    was_killed = any(record.oom_kills for record in last)
    if not was_killed and not all(record.ended for record in last):
        was_killed = ran_out_of_memory(records[0].job)
    return records[0].requested_mib if was_killed else 0


@contextlib.contextmanager
def record_memory(folder: Path, *, processes: int, order_job: int = 0) -> Iterator[None]:
    """Record the memory of this Slurm job on this node while the block runs; outside of a job, do nothing.

    `order_job` is the number of a sweep's job: each of several has a record of its own.
    """
    try:
        allocation = slurm_allocation.current_allocation()
    except UserError:  # code that needs the allocation reports it
        allocation = None
    if allocation is None:
        yield
        return
    path = folder / (f"memory-{order_job}.json" if order_job else "memory.json")
    earlier = read_records(folder)
    record = MemoryRecord(
        job=allocation.job,
        processes=max(1, processes),
        requested_mib=allocation.memory_mib_per_node,
        process_peak_mib=max((each.process_peak_mib for each in earlier), default=0),
    )
    stopped = threading.Event()
    thread = threading.Thread(target=_keep_record, args=(path, record, stopped), name="memory", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()


def _keep_record(path: Path, record: MemoryRecord, stopped: threading.Event) -> None:
    """Sample until the end, and write the record when its peak has grown; a failure costs it, never the job."""
    try:
        usage = JobUsage(record.job)
        written_mib = -1
        ends = False
        while not ends:
            began = time.perf_counter()
            ends = stopped.is_set()
            record = replace(record.with_sample(usage.used_mib(), usage.oom_kills()), ended=ends)
            if ends or record.peak_mib > NOTED_GROWTH * written_mib:
                write_json(path, asdict(record))
                written_mib = record.peak_mib
            stopped.wait(max(INTERVAL_SECONDS, (time.perf_counter() - began) / MAX_LOAD))
    except Exception as error:
        log.warning("the memory of the job is not recorded: %s", error)


class JobUsage:
    """The memory of a job on this node, by its control group, or else by its processes."""

    def __init__(self, job: str) -> None:
        self._marks = [f"{name}={job}\0".encode() for name in ("SLURM_JOB_ID", JOB_OF_TRIAL)]
        groups = slurm_allocation.memory_groups(os.fsdecode(_read(slurm_allocation.PROC / "self/cgroup")))
        named = (each for each in groups if each.name == f"job_{job}" and (each / "memory.stat").exists())
        self._group = next(named, None)
        self._mine: set[str] = set()

    def used_mib(self) -> int:
        """Memory that the kernel cannot free: anonymous and shared memory, and files in a tmpfs."""
        counted = _counters(self._group / "memory.stat") if self._group else {}
        for names in (("anon", "shmem"), ("total_rss", "total_shmem")):  # cgroup v2, v1
            if names[0] in counted:
                return sum(counted.get(name, 0) for name in names) // 2**20
        return sum(map(self._resident_kib, self._processes())) // 1024

    def oom_kills(self) -> int:
        """How often the kernel has killed a process of the job for exceeding the limit; 0 if unknown."""
        if self._group is None:
            return 0
        files = [self._group / name for name in ("memory.events", "memory.oom_control")]
        return max(_counters(path).get("oom_kill", 0) for path in files)

    def _processes(self) -> set[str]:
        """The processes whose environment names the job. One that does not may still be about to execute a program."""
        alive = {name for name in os.listdir(slurm_allocation.PROC) if name.isdigit()}
        self._mine &= alive
        for name in alive - self._mine:
            variables = _read(slurm_allocation.PROC / name / "environ")
            if any(mark in variables for mark in self._marks):
                self._mine.add(name)
        return self._mine

    def _resident_kib(self, process: str) -> int:
        """The memory of a process, with its part of what it shares, such as with the one it was forked from."""
        files = {"smaps_rollup": rb"^Pss_(?:Anon|Shmem):\s+(\d+) kB", "status": rb"^Rss(?:Anon|Shmem):\s+(\d+) kB"}
        sizes = (
            re.findall(line, _read(slurm_allocation.PROC / process / name), re.MULTILINE)
            for name, line in files.items()
        )
        return sum(map(int, next(filter(None, sizes), ())))  # before Linux 5.4, all of what it shares


def _counters(path: Path) -> Mapping[str, int]:
    """The lines `<name> <number>` of a file."""
    return {name.decode(): int(number) for name, number in re.findall(rb"^(\w+) (\d+)$", _read(path), re.MULTILINE)}


def _read(path: Path) -> bytes:
    """The content of a file; empty if it cannot be read, as when a process has ended or belongs to another user."""
    try:
        return path.read_bytes()
    except OSError:
        return b""
