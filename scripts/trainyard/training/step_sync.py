"""Two words that all ranks pass around at every step, in one small all-reduce: is my loss a number, shall we stop?

On a CPU the answer is there before the parameters are updated. On a GPU nobody waits for it: a bad step's update is
cancelled on the device, as an overflow under loss scaling is, and the host hears of it `LAG` steps later, at the same
step on every rank.
"""

from collections import deque
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from trainyard.training.process_group import Group

LAG = 8  # steps: the host launches a few steps ahead of a GPU, which would idle if it looked at each one's outcome


@dataclass(frozen=True)
class StepStatus:
    """What the ranks found about a step."""

    step: int
    bad_rank: int | None  # the first rank whose loss was not a finite number
    stop: bool  # the leading rank wants to stop


@dataclass
class _PendingStep:
    step: int
    words: Tensor  # int64 (2,): the first rank with a bad loss, or the world size; 0 to stop, or 1
    work: Any = None
    there: Any = None  # the event after which a copy of the words is on the host


class StepFlags:
    """The flags of one training's steps: `post` after the forward pass, `settle` before the update."""

    def __init__(self, group: Group) -> None:
        self._group = group
        # Made once: a constant made at each step would have the host wait for its copy to the GPU.
        self._good, self._bad = (torch.tensor(rank, device=group.device) for rank in (group.world_size, group.rank))
        self._lag = LAG if group.device.type == "cuda" else 0
        self._pending: deque[_PendingStep] = deque()

    def start(self, step: int, loss: Tensor, *, stop: bool) -> None:
        """Tell the others of this rank's loss, a scalar on the device, and whether the leading rank wants to stop."""
        first_bad = torch.where(torch.isfinite(loss), self._good, self._bad)
        words = torch.stack([first_bad, torch.full_like(first_bad, 0 if stop else 1)])
        self._pending.append(_PendingStep(step, words, work=self._group.all_reduce_min(words)))

    def finish(self, optimizer: Optimizer) -> StepStatus | None:
        """What is known now: on a CPU of this step; on a GPU, where a bad one is made harmless, of one before."""
        newest = self._pending[-1]
        if newest.work is not None:
            newest.work.wait()
        if self._lag:
            optimizer.found_inf = (newest.words[0] < self._group.world_size).float()  # type: ignore[attr-defined]
            newest.words = newest.words.to("cpu", non_blocking=True)
            newest.there = torch.cuda.current_stream(self._group.device).record_event()
        return self._oldest() if len(self._pending) > self._lag else None

    def finish_all(self) -> list[StepStatus]:
        """What was found about the steps that nothing has been heard of yet."""
        return [self._oldest() for _ in range(len(self._pending))]

    def _oldest(self) -> StepStatus:
        oldest = self._pending.popleft()
        if oldest.there is not None:
            oldest.there.synchronize()
        bad_rank, go_on = oldest.words.tolist()
        return StepStatus(oldest.step, None if bad_rank == self._group.world_size else bad_rank, stop=not go_on)
