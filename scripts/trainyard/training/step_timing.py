"""Time of steps, time waiting for data, and throughput of a training."""

import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import TypeVar, cast

import numpy as np
import psutil
import torch

from trainyard.cluster.job_step import is_rank

_Item = TypeVar("_Item")
Moment = float | torch.cuda.Event  # on the clock of `time.perf_counter`, or when the GPU gets there


@dataclass(frozen=True)
class StepTimes:
    """Durations of some steps."""

    seconds: float = 0.0  # in total
    waited_seconds: float = 0.0  # part of `seconds` in which the host waited for data
    steps_ms: list[float] = field(default_factory=list)
    start_seconds: float = 0.0  # part of `seconds` before the first step

    def __add__(self, later: "StepTimes") -> "StepTimes":
        return StepTimes(*(getattr(self, each.name) + getattr(later, each.name) for each in fields(self)))

    def percentiles_ms(self) -> tuple[float, float]:
        """Median and 95th percentile of the step time in milliseconds."""
        p50, p95 = np.percentile(self.steps_ms, [50, 95])
        return float(p50), float(p95)


class StepTimer:
    """Measures each step of an epoch; on a GPU with CUDA events, since the host only launches kernels."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._marks: list[Moment] = []
        self._waited = self._start = 0.0  # seconds
        self._began = time.perf_counter()

    def begin(self) -> None:
        """Mark the start of the first step. After an error, the steps go on, and the mark before it counts."""
        if not self._marks:
            self._start = time.perf_counter() - self._began
            self.mark()

    def mark(self) -> None:
        """Mark the end of a step and the start of the next one."""
        self._marks.append(moment(self._device))

    def waiting(self, items: Iterator[_Item]) -> Iterator[_Item]:
        """The same items; the time to get each one counts as waiting for data."""
        while True:
            began = time.perf_counter()
            item = next(items, None)
            if item is None:
                return
            self._waited += time.perf_counter() - began
            yield item

    def times(self) -> StepTimes:
        """The times since the timer was created; synchronizes the device."""
        synchronize(self._device)
        steps = [milliseconds(start, end) for start, end in itertools.pairwise(self._marks)]
        return StepTimes(time.perf_counter() - self._began, self._waited, steps, self._start)


class StepRate:
    """Steps per second at regular intervals, for progress messages within long epochs."""

    def __init__(self, step: int, *, every_seconds: float = 30.0) -> None:
        self._every = every_seconds
        self._step = step
        self._at = time.monotonic()

    def poll(self, step: int) -> float | None:
        """Steps per second since the previous interval ended; None within an interval."""
        passed = time.monotonic() - self._at
        if passed < self._every:
            return None
        rate = (step - self._step) / passed
        self._step = step
        self._at = time.monotonic()
        return rate


def moment(device: torch.device) -> Moment:
    """This moment on a CPU; on a GPU, an event after all that has been launched on the current stream."""
    if device.type != "cuda":
        return time.perf_counter()
    # Who waits for a blocking event sleeps; otherwise it would spin, on a CPU that loaders may need.
    event = torch.cuda.Event(enable_timing=True, blocking=True)  # type: ignore[no-untyped-call]
    event.record()
    return event


def milliseconds(start: Moment, end: Moment) -> float:
    """The time between two moments of a device, which has reached both."""
    if isinstance(start, float) or isinstance(end, float):
        return (cast(float, end) - cast(float, start)) * 1000
    return float(start.elapsed_time(end))


def wait_until_reached(moment: Moment) -> None:
    """Wait until the device gets to a moment."""
    if not isinstance(moment, float):
        moment.synchronize()


def synchronize(device: torch.device) -> None:
    """Wait until the device has finished all work."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def launch_time() -> float:
    """Start of this run in Unix seconds: when torchrun, or else this process, started."""
    process = psutil.Process()
    launcher = process.parent() if is_rank() else None
    return (launcher or process).create_time()


def device_name(device: torch.device) -> str:
    """The GPU's model, or "cpu"."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
