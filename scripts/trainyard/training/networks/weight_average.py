"""The exponential moving average (EMA) of a model's weights, which is validated in their place."""

from copy import deepcopy
from typing import Any

import torch
from torch import nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from trainyard.training.networks.running_statistics import running_statistics


class WeightAverage:
    """The average of a model's weights and running statistics; other buffers are copied from the model.

    It starts at the initial weights. torch's `AveragedModel` does the same, but copies its counter to the GPU in each
    step, for which the host waits.
    """

    def __init__(self, module: nn.Module, decay: float) -> None:
        self.module = deepcopy(module).requires_grad_(False)
        self._average = get_ema_multi_avg_fn(decay)  # type: ignore[no-untyped-call]
        self._model = module
        self._ours, self._theirs = (
            [*(each.detach() for each in one.parameters()), *running_statistics(one)] for one in (self.module, module)
        )

    @torch.no_grad()
    def update(self) -> None:
        """Average the model's current weights in, after a step."""
        self._average(self._ours, self._theirs, 0)

    @torch.no_grad()
    def for_validation(self) -> nn.Module:
        """The averaged model, with all buffers that are not averaged as in the model, such as counters and masks."""
        averaged = {id(each) for each in self._ours}
        for ours, theirs in zip(self.module.buffers(), self._model.buffers(), strict=True):
            if id(ours) not in averaged:
                ours.copy_(theirs)
        return self.module

    def state_dict(self) -> dict[str, Any]:
        """The averaged weights and buffers, by the names of the model."""
        return self.module.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore them."""
        self.module.load_state_dict(state)
