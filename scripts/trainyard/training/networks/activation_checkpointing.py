"""Activation checkpointing (Chen et al. 2016): the backward pass recomputes each block from its input."""

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


def checkpoint_blocks(model: nn.Module) -> int:
    """Apply activation checkpointing to every block of a model; returns the number of blocks.

    Results do not change, including random numbers and the running statistics of batch normalization.
    """
    blocks = _blocks(model)
    for block in blocks:
        norms = [module for module in block.modules() if isinstance(module, _BatchNorm)]
        block.forward = partial(_checkpointed, block, block.forward, norms)
    if not blocks:
        log.warning("activation_checkpointing: %s has no repeated blocks, so no memory is saved", type(model).__name__)
    return len(blocks)


def _blocks(model: nn.Module) -> list[nn.Module]:
    """The outermost modules whose class occurs more than once and that have children."""
    kinds = Counter(type(module) for module in model.modules())
    containers = (nn.Sequential, nn.ModuleList, nn.ModuleDict)

    def search(module: nn.Module) -> Iterator[nn.Module]:
        for child in module.children():
            if kinds[type(child)] > 1 and type(child) not in containers and next(child.children(), None) is not None:
                yield child
            else:
                yield from search(child)

    return list(search(model))


def _checkpointed(block: nn.Module, forward: Any, norms: Sequence[nn.Module], *inputs: Any, **named: Any) -> Any:
    if not (block.training and torch.is_grad_enabled()):
        return forward(*inputs, **named)
    if torch.compiler.is_compiling():  # compiled code recomputes values only: it updates statistics once by itself
        return checkpoint(forward, *inputs, use_reentrant=False, **named)

    def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return nullcontext(), _frozen_statistics(norms)

    return checkpoint(forward, *inputs, use_reentrant=False, context_fn=contexts, **named)


@contextmanager
def _frozen_statistics(norms: Sequence[Any]) -> Iterator[None]:
    """Within the block, batch normalization does not update its running statistics: the forward pass has done so."""
    before = [(norm, norm.momentum, norm.num_batches_tracked) for norm in norms]
    for norm in norms:
        norm.momentum, norm.num_batches_tracked = 0.0, None
    try:
        yield
    finally:
        for norm, momentum, batches in before:
            norm.momentum, norm.num_batches_tracked = momentum, batches
