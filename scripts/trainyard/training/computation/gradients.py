"""The gradients of a step, from the forward and backward passes of its micro-batches."""

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from trainyard.training.loaders import ImageBatch

if TYPE_CHECKING:
    from trainyard.training.trainer import Trainer


def compute_gradients(
    trainer: "Trainer", batches: Iterable[ImageBatch], *, on_forward: Callable[[Tensor], None] = lambda sums: None
) -> Tensor:
    """Set the gradients of all parameters; returns the sums of the step, for `Objective.means`.

    `on_forward` gets these sums after the last forward pass, so that an all-reduce of them overlaps the backward pass.
    """
    state, sizes = trainer.state, trainer.batch
    sums = torch.zeros_like(state.progress.sums)
    state.optimizer.zero_grad(set_to_none=True)
    for remaining, images in zip(reversed(range(sizes.accumulation)), batches, strict=True):
        with trainer.forward.no_sync() if remaining else nullcontext():
            loss, sums_of_batch = trainer.forward.compute_loss(images, model=trainer.model, training=True)
            sums += sums_of_batch
            if not remaining:
                on_forward(sums)
            share = len(images.labels) / sizes.per_rank
            state.scaler.scale(loss * share if share < 1 else loss).backward()  # type: ignore[no-untyped-call]
    return sums


def gradient_bytes(module: nn.Module) -> int:
    """The size of the gradients of the parameters that are trained."""
    return sum(each.numel() * each.element_size() for each in module.parameters() if each.requires_grad)
