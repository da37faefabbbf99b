"""The exponential moving average (EMA) of a model's weights, which is validated in their place."""

from copy import deepcopy
from typing import Any

import torch
from torch import nn
from torch.optim.swa_utils import get_ema_multi_avg_fn


class WeightAverage:
    """The average of a model's weights and of its floating-point buffers, such as running statistics.

    It starts at the initial weights. torch's `AveragedModel` does the same, but copies its counter to the GPU in each
    step, for which the host waits.
    """

    def __init__(self, module: nn.Module, decay: float) -> None:
        self.module = deepcopy(module).requires_grad_(False)
        self._average = get_ema_multi_avg_fn(decay)  # type: ignore[no-untyped-call]
        theirs, ours = ([*each.parameters(), *each.buffers()] for each in (module, self.module))
        pairs = [(one.detach(), other) for one, other in zip(ours, theirs, strict=True)]
        self._averaged = [pair for pair in pairs if pair[0].is_floating_point()]
        self._copied = [pair for pair in pairs if not pair[0].is_floating_point()]

    @torch.no_grad()
    def update(self) -> None:
        """Average the model's current weights in, after a step."""
        ours, theirs = ([pair[place] for pair in self._averaged] for place in (0, 1))
        self._average(ours, theirs, 0)

    @torch.no_grad()
    def for_validation(self) -> nn.Module:
        """The averaged model, with counters and other integer buffers as in the model."""
        for ours, theirs in self._copied:
            ours.copy_(theirs)
        return self.module

    def state_dict(self) -> dict[str, Any]:
        """The averaged weights and buffers, by the names of the model."""
        return self.module.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore them."""
        self.module.load_state_dict(state)
