"""The columns of a run, computed from the log of its trials, its jobs in the accounting and the clock."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from trainyard.planning.order import lower_bound

from peers.works import Work


@dataclass(frozen=True)
class Attempt:
    """One attempt of a trial; times in Unix seconds."""

    index: int
    host: str
    start: float
    end: float | None  # None: it was killed
    has_finished: bool  # it did not crash

    @property
    def seconds(self) -> float:
        """How long it took; 0 if it was killed."""
        return (self.end or self.start) - self.start


@dataclass(frozen=True)
class LogLine:
    """`start|end|crash INDEX TIME HOST CUDA_VISIBLE_DEVICES PID`."""

    event: str
    index: int
    time: float
    host: str
    device: str
    pid: str

    @classmethod
    def parse(cls, line: str) -> Self:
        """The event of one line of trials.log."""
        event, index, time, host, device, pid = line.split()
        return cls(event, int(index), float(time), host, device, pid)


def attempts_of(log: str) -> list[Attempt]:
    """The attempts in trials.log, by their start."""
    begun: dict[tuple[int, str, str], LogLine] = {}
    attempts = []
    for line in log.splitlines():
        found = LogLine.parse(line)
        key = (found.index, found.host, found.pid)
        if found.event == "start":
            if earlier := begun.pop(key, None):  # killed; a new process has its ID
                attempts.append(Attempt(earlier.index, earlier.host, earlier.time, None, False))
            begun[key] = found
        elif started := begun.pop(key, None):
            attempts.append(Attempt(found.index, found.host, started.time, found.time, found.event == "end"))
    attempts += [Attempt(left.index, left.host, left.time, None, False) for left in begun.values()]
    return sorted(attempts, key=lambda attempt: attempt.start)


def overheads(attempts: Sequence[Attempt], slots: int) -> list[float]:
    """Seconds for which a slot was free before each attempt but the first ones, the longest free slot first.

    The first attempt on each slot waits from the start of the first attempt of all.
    """
    if not attempts:
        return []
    free = [attempts[0].start] * slots
    found = []
    for attempt in attempts:
        since = heapq.heappop(free)
        found.append(max(0.0, attempt.start - since))
        heapq.heappush(free, attempt.end or attempt.start)
    return found[1:]


def columns(
    work: Work, log: str, *, submitted: float, over: float, gpu_seconds: float, kill: float | None = None
) -> dict[str, float | None]:
    """The columns of a run; times in Unix seconds, `gpu_seconds` as allocated by Slurm."""
    attempts = attempts_of(log)
    finished = [attempt for attempt in attempts if attempt.has_finished]
    ends = [attempt.end for attempt in finished if attempt.end]
    first = min((attempt.start for attempt in attempts), default=None)
    last = max(ends, default=None)
    is_complete = {attempt.index for attempt in finished} == set(range(1, len(work.seconds) + 1))
    durations = [attempt.seconds for attempt in finished] if work.is_real else list(work.seconds)
    waits = overheads(attempts, work.slots)
    p50, p95 = np.percentile(waits, [50, 95]) if waits else (None, None)
    result: dict[str, float | None] = {
        "trials_finished": len({attempt.index for attempt in finished}),
        "seconds": last - submitted if last and is_complete else None,
        "over_seconds": over - submitted,
        "first_seconds": first - submitted if first else None,
        "over_bound": None,
        "gpu_seconds": gpu_seconds,
        "idle_fraction": max(0.0, 1 - sum(a.seconds for a in finished) / gpu_seconds) if gpu_seconds else None,
        "overhead_p50_seconds": None if p50 is None else float(p50),
        "overhead_p95_seconds": None if p95 is None else float(p95),
    }
    if first and last and is_complete:
        result["over_bound"] = (last - first) / lower_bound(durations, work.slots)
    if kill is not None:
        result |= trouble_columns(attempts, kill)
    return result


def trouble_columns(attempts: Sequence[Attempt], kill: float) -> dict[str, float | None]:
    """What the kill cost, in seconds of trials.

    `lost` is the time of trials that had finished before the kill and ran again; `repeated` is the time of all attempts
    before the kill of trials that ran again. These trials have no checkpoint: one that was running starts again.
    """
    again = {attempt.index for attempt in attempts if attempt.start > kill}
    before = [attempt for attempt in attempts if attempt.start <= kill and attempt.index in again]
    lost = sum(attempt.seconds for attempt in before if attempt.has_finished and (attempt.end or kill) <= kill)
    return {
        "lost_seconds": lost,
        "repeated_seconds": sum((attempt.end or kill) - attempt.start for attempt in before),
    }
