"""Activation checkpointing (Chen et al. 2016): a block keeps its input only, and is computed again when going back."""

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

log = logging.getLogger(__name__)


def recompute_blocks(model: nn.Module) -> int:
    """Have every block of a model compute its activations twice; returns how many blocks there are.

    The numbers stay the same, random ones and running statistics of batch normalisation included.
    """
    blocks = _blocks(model)
    for block in blocks:
        norms = [module for module in block.modules() if isinstance(module, _BatchNorm)]
        block.forward = partial(_recomputed, block, block.forward, norms)
    if not blocks:
        log.warning("activation_checkpointing: %s has no blocks that repeat: nothing is spared", type(model).__name__)
    return len(blocks)


def _blocks(model: nn.Module) -> list[nn.Module]:
    """The outermost modules of a kind that there is more than once, and that have others inside."""
    kinds = Counter(type(module) for module in model.modules())
    plain = (nn.Sequential, nn.ModuleList, nn.ModuleDict)

    def found(module: nn.Module) -> Iterator[nn.Module]:
        for child in module.children():
            if kinds[type(child)] > 1 and type(child) not in plain and next(child.children(), None) is not None:
                yield child
            else:
                yield from found(child)

    return list(found(model))


def _recomputed(block: nn.Module, forward: Any, norms: Sequence[nn.Module], *inputs: Any, **named: Any) -> Any:
    if not (block.training and torch.is_grad_enabled()):
        return forward(*inputs, **named)

    def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return nullcontext(), _statistics_kept(norms)

    return checkpoint(forward, *inputs, use_reentrant=False, context_fn=contexts, **named)


@contextmanager
def _statistics_kept(norms: Sequence[Any]) -> Iterator[None]:
    """Batch normalisation in training, but its running statistics are not updated a second time."""
    before = [(norm, norm.momentum, norm.num_batches_tracked) for norm in norms]
    for norm in norms:
        norm.momentum, norm.num_batches_tracked = 0.0, None
    try:
        yield
    finally:
        for norm, momentum, batches in before:
            norm.momentum, norm.num_batches_tracked = momentum, batches
