"""Models that misbehave, as a user's own model might; a spec names them `gpu_check.models:<function>`."""

from typing import Any

import torch
from torch import Tensor, nn
from trainyard.training.models import SmallConvNet

BAD_STEP = 6


class _BadStep(SmallConvNet):
    """Logits that are NaN in the sixth training step; no operation synchronizes with the GPU."""

    steps: Tensor

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = super().forward(images)  # type: ignore[no-untyped-call]
        if not self.training:
            return logits
        self.steps += 1
        return logits.masked_fill(self.steps.eq(BAD_STEP), torch.nan)


def bad_step(*, channels: int, classes: int) -> nn.Module:
    """A model whose loss is NaN in the sixth step."""
    return _BadStep(channels=channels, classes=classes, width=8)
