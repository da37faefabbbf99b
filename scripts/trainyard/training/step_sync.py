"""Two flags per step, reduced over all ranks in one small all-reduce: a loss that is not finite, and a stop request.

On a CPU, the result is known before the parameters are updated. On a GPU, the host does not wait for it: the update of
a bad step is cancelled on the device, as after an overflow under loss scaling, and the host reads the result `LAG`
steps later, at the same step on every rank.
"""

import time
from collections import deque
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor
from torch.optim import Optimizer

from trainyard.training.process_group import Group

# The host runs ahead of the GPU, which would be idle if the host waited for each result. With long steps, it waits: the
# GPU is then idle for a small part of the step, and a training stops in time.
MAX_LAG: Final = 8  # steps
LAG_SECONDS: Final = 1.0


@dataclass(frozen=True)
class StepStatus:
    """The flags of a step, reduced over all ranks."""

    step: int
    bad_rank: int | None  # the lowest rank whose loss is not finite
    stop: bool  # whether a rank asks to stop


@dataclass
class _PendingStep:
    step: int
    flags: Tensor  # int64 (3,): the lowest rank with a bad loss, or the world size; 0 to stop, or 1; the next lag
    work: Any = None
    copied: Any = None  # the CUDA event after the copy of the flags to the host


class StepFlags:
    """The flags of the steps of a training: `start` is called after the forward pass, `finish` before the update."""

    def __init__(self, group: Group) -> None:
        self._group = group
        # Created once: the copy of a constant to the GPU would synchronize host and device in each step.
        self._good, self._bad = (torch.tensor(rank, device=group.device) for rank in (group.world_size, group.rank))
        self._on_gpu = group.device.type == "cuda"
        self._max_lag = MAX_LAG if self._on_gpu else 0
        self._lag = min(1, self._max_lag)  # the same on all ranks: they take it from the same status
        self._pending: deque[_PendingStep] = deque()
        self._began: float | None = None  # start of the last step of this epoch, on the monotonic clock
        self._step_seconds = 0.0  # of the last step

    @property
    def stop_seconds(self) -> float:
        """Seconds that a training may go on after it has asked to stop."""
        return (self._lag + 1) * self._step_seconds

    def start(self, step: int, loss: Tensor, *, stop: bool) -> None:
        """Start the all-reduce of a step; `loss` is a scalar on the device, `stop` asks all ranks to stop."""
        began, self._began = self._began, time.monotonic()
        if began is not None:
            self._step_seconds = self._began - began
        lag = min(self._max_lag, int(LAG_SECONDS / max(self._step_seconds, 1e-9)))
        first_bad = torch.where(torch.isfinite(loss), self._good, self._bad)
        numbers = (torch.full_like(first_bad, number) for number in (0 if stop else 1, lag))
        flags = torch.stack([first_bad, *numbers])
        self._pending.append(_PendingStep(step, flags, work=self._group.all_reduce_min(flags)))

    def finish(self, optimizer: Optimizer) -> list[StepStatus]:
        """The status of this step on a CPU; on a GPU, those of some earlier steps, and a bad step is cancelled."""
        newest = self._pending[-1]
        if newest.work is not None:
            newest.work.wait()
        if self._on_gpu:
            optimizer.found_inf = (newest.flags[0] < self._group.world_size).float()  # type: ignore[attr-defined]
            newest.flags = newest.flags.to("cpu", non_blocking=True)
            newest.copied = torch.cuda.current_stream(self._group.device).record_event()
        known = []
        while len(self._pending) > self._lag:
            known.append(self._oldest())
        return known

    def finish_all(self) -> list[StepStatus]:
        """The status of all steps that `finish` has not returned yet, at the end of an epoch."""
        self._began = None  # the time of the validation is not that of a step
        return [self._oldest() for _ in range(len(self._pending))]

    def _oldest(self) -> StepStatus:
        oldest = self._pending.popleft()
        if oldest.copied is not None:
            oldest.copied.synchronize()
        bad_rank, keep_going, self._lag = oldest.flags.tolist()
        return StepStatus(oldest.step, None if bad_rank == self._group.world_size else bad_rank, stop=not keep_going)
