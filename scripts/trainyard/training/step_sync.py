"""Two flags per step, reduced over all ranks in one small all-reduce: a loss that is not finite, and a stop request.

On a CPU, the result is known before the parameters are updated. On a GPU, the host does not wait for it: the update of
a bad step is cancelled on the device, as after an overflow under loss scaling, and the host reads the result some steps
later, at the same step on every rank. With steps that take long on the GPU, it waits, so that a training stops in time.
With loss scaling (fp16), the scaler alone decides, by the gradients: a bad step with finite ones is not cancelled, but
nothing is saved after it.
"""

from collections import deque
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor
from torch.optim import Optimizer

from trainyard.training.process_group import Group
from trainyard.training.step_timing import Moment, milliseconds, moment, wait_until_reached

# The host runs ahead of the GPU, which would be idle if the host waited for each result: by MAX_LAG steps, or by those
# that the GPU takes in LAG_SECONDS. If this is less than one step, the host waits for each.
MAX_LAG: Final = 8  # steps
LAG_SECONDS: Final = 1.0


@dataclass(frozen=True)
class StepStatus:
    """The flags of a step, reduced over all ranks."""

    step: int
    bad_rank: int | None  # the lowest rank whose loss is not finite
    stop: bool  # whether a rank asks to stop
    signalled_rank: int | None  # the lowest one that a signal has told to stop


@dataclass
class _PendingStep:
    step: int
    # int64 (3,): the lowest rank with a bad loss, or the world size; the lowest rank that a signal has told to stop, or
    # the world size to stop for another reason, or one more to go on; the next lag
    flags: Tensor
    work: Any = None
    ended: Moment | None = None  # when the flags are known; on a GPU, the event after their copy to the host


class StepFlags:
    """The flags of the steps of a training.

    `begin` is called before the first forward pass of an epoch, `start` after each one, `finish` before the update.
    """

    def __init__(self, group: Group) -> None:
        self._group = group
        # Created once: the copy of a constant to the GPU would synchronize host and device in each step.
        self._good, self._bad = (torch.tensor(rank, device=group.device) for rank in (group.world_size, group.rank))
        self._on_gpu = group.device.type == "cuda"
        self.max_lag = MAX_LAG if self._on_gpu else 0
        self._lag = 0  # the same on all ranks: they take it from the same status
        self._pending: deque[_PendingStep] = deque()
        self._known_at: Moment = 0.0  # when the flags of the previous step were known
        self._seconds: deque[float] = deque(maxlen=MAX_LAG)  # of the last known steps, on the device

    @property
    def stop_seconds(self) -> float:
        """Seconds from one call of `start` that a training may go on if it asks to stop at the next one.

        This step comes first. At the next call, the device has yet to do the steps by which the host is ahead, and when
        the host reads the request, those that it has launched meanwhile. A step is added for what follows `finish`.
        """
        return (2 * max(self._lag, self._affordable_lag) + 3) * max(self._seconds, default=0.0)

    @property
    def _affordable_lag(self) -> int:
        """The steps that the device takes in LAG_SECONDS; 0 before the first ones are known."""
        return min(self.max_lag, int(LAG_SECONDS / max(*self._seconds, 1e-9))) if self._seconds else 0

    def begin(self) -> None:
        """Begin the first step of an epoch, or of the rest of one."""
        self._known_at = moment(self._group.device)

    def start(self, step: int, loss: Tensor, *, stop: bool, signalled: bool = False) -> None:
        """Start the all-reduce of a step; `loss` is a scalar on the device.

        `stop` asks all ranks to stop, and so does `signalled`: a signal has told this rank to.
        """
        first_bad = torch.where(torch.isfinite(loss), self._good, self._bad)
        stops = self._group.rank if signalled else self._group.world_size + (not stop)
        numbers = (torch.full_like(first_bad, number) for number in (stops, self._affordable_lag))
        flags = torch.stack([first_bad, *numbers])
        self._pending.append(_PendingStep(step, flags, work=self._group.all_reduce_min(flags)))

    def finish(self, optimizer: Optimizer) -> list[StepStatus]:
        """On a CPU, the status of this step. On a GPU, the status of some earlier steps; a bad step is cancelled."""
        newest = self._pending[-1]
        if newest.work is not None:
            newest.work.wait()
        if self._on_gpu:
            optimizer.found_inf = (newest.flags[0] < self._group.world_size).float()  # type: ignore[attr-defined]
            newest.flags = newest.flags.to("cpu", non_blocking=True)
        newest.ended = moment(self._group.device)
        statuses = []
        while len(self._pending) > self._lag:
            statuses.append(self._oldest())
        return statuses

    def finish_all(self) -> list[StepStatus]:
        """The status of all steps that `finish` has not returned yet: at the end of an epoch, or after an error.

        The step of the error, which started but did not finish, is left out.
        """
        if self._pending and self._pending[-1].ended is None:
            self._pending.pop()
        return [self._oldest() for _ in range(len(self._pending))]

    def _oldest(self) -> StepStatus:
        oldest = self._pending.popleft()
        assert oldest.ended is not None
        wait_until_reached(oldest.ended)
        self._seconds.append(milliseconds(self._known_at, oldest.ended) / 1000)
        self._known_at = oldest.ended
        bad_rank, stops, self._lag = oldest.flags.tolist()
        count = self._group.world_size
        return StepStatus(
            oldest.step,
            bad_rank if bad_rank < count else None,
            stop=stops <= count,
            signalled_rank=stops if stops < count else None,
        )
