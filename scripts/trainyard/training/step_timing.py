"""Where the time of a training goes: its steps, and what they wait for."""

import itertools
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeVar, cast

import numpy as np
import psutil
import torch

_Item = TypeVar("_Item")


@dataclass(frozen=True)
class StepTimes:
    """How long some steps took."""

    seconds: float = 0.0  # all of them together
    waited_seconds: float = 0.0  # of which the host waited for data
    steps_ms: list[float] = field(default_factory=list)

    def __add__(self, later: "StepTimes") -> "StepTimes":
        return StepTimes(
            self.seconds + later.seconds, self.waited_seconds + later.waited_seconds, self.steps_ms + later.steps_ms
        )

    def percentiles_ms(self) -> tuple[float, float]:
        """Median and 95th percentile of the steps in milliseconds."""
        p50, p95 = np.percentile(self.steps_ms, [50, 95])
        return float(p50), float(p95)


class StepTimer:
    """Duration of every step of an epoch: CUDA events on a GPU, where the clock of the host sees only launches."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._marks: list[float | torch.cuda.Event] = []
        self._waited = 0.0  # seconds
        self._began = time.perf_counter()
        self.mark()

    def mark(self) -> None:
        """A step ends here, and the next one begins."""
        if self._device.type == "cuda":
            event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            event.record()
            self._marks.append(event)
        else:
            self._marks.append(time.perf_counter())

    def waiting(self, items: Iterator[_Item]) -> Iterator[_Item]:
        """The same items; the time until each is there counts as waiting for data."""
        while True:
            began = time.perf_counter()
            try:
                item = next(items)
            except StopIteration:
                return
            self._waited += time.perf_counter() - began
            yield item

    def times(self) -> StepTimes:
        """What was measured since the timer was made; waits for the device."""
        synchronise(self._device)
        steps = [_milliseconds(start, end) for start, end in itertools.pairwise(self._marks)]
        return StepTimes(time.perf_counter() - self._began, self._waited, steps)


class StepRate:
    """How fast an epoch goes, now and then: for epochs that take long, so that one sees it move."""

    def __init__(self, step: int, *, every_seconds: float = 30.0) -> None:
        self._every = every_seconds
        self._step, self._at = step, time.monotonic()

    def poll(self, step: int) -> float | None:
        """Steps per second since the last time that there was something to say; None if it is not time yet."""
        passed = time.monotonic() - self._at
        if passed < self._every:
            return None
        pace = (step - self._step) / passed
        self._step, self._at = step, time.monotonic()
        return pace


def _milliseconds(start: float | torch.cuda.Event, end: float | torch.cuda.Event) -> float:
    if isinstance(start, torch.cuda.Event) and isinstance(end, torch.cuda.Event):
        return float(start.elapsed_time(end))
    return (cast(float, end) - cast(float, start)) * 1000


def synchronise(device: torch.device) -> None:
    """Wait until the device has done all it was given."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def launch_time() -> float:
    """When this run was launched, in Unix seconds: the start of torchrun if it started us, else of this process."""
    process = psutil.Process()
    launcher = process.parent() if "TORCHELASTIC_RUN_ID" in os.environ else None
    return (launcher or process).create_time()


def device_name(device: torch.device) -> str:
    """The GPU's model, or "cpu"."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
