"""Measuring a training while it runs."""

import os
import time
from typing import cast

import numpy as np
import psutil
import torch


class StepTimer:
    """Duration of every step of an epoch: CUDA events on a GPU, where the clock of the host sees only launches."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._marks: list[float | torch.cuda.Event] = []
        self.mark()

    def mark(self) -> None:
        """A step ends here, and the next one begins."""
        if self._device.type == "cuda":
            event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            event.record()
            self._marks.append(event)
        else:
            self._marks.append(time.perf_counter())

    def percentiles_ms(self) -> tuple[float, float]:
        """Median and 95th percentile of the steps in milliseconds; waits for the device."""
        synchronise(self._device)
        pairs = zip(self._marks, self._marks[1:], strict=False)
        steps = [_milliseconds(start, end) for start, end in pairs]
        p50, p95 = np.percentile(steps, [50, 95])
        return float(p50), float(p95)


def _milliseconds(start: float | torch.cuda.Event, end: float | torch.cuda.Event) -> float:
    if isinstance(start, torch.cuda.Event) and isinstance(end, torch.cuda.Event):
        return float(start.elapsed_time(end))
    return (cast(float, end) - cast(float, start)) * 1000


def synchronise(device: torch.device) -> None:
    """Wait until the device has done all it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def launch_time() -> float:
    """When this run was launched, in Unix seconds: the start of torchrun if it started us, else of this process."""
    process = psutil.Process()
    launcher = process.parent() if "TORCHELASTIC_RUN_ID" in os.environ else None
    return (launcher or process).create_time()


def device_name(device: torch.device) -> str:
    """The GPU's model, or "cpu"."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
