"""Activation checkpointing (Chen et al. 2016): the backward pass recomputes each block from its input."""

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.nn.modules.batchnorm import _NormBase
from torch.utils.checkpoint import checkpoint

log = logging.getLogger(__name__)


def checkpoint_blocks(model: nn.Module) -> None:
    """Wrap every block of a model for activation checkpointing.

    Results do not change, including random numbers and the running statistics of normalization; neither do the
    names in the model's state dict.
    """
    places = list(repeated_blocks(model))
    for parent, name, block in places:
        norms = [module for module in block.modules() if isinstance(module, _NormBase)]
        setattr(parent, name, checkpoint_wrapper(block, checkpoint_fn=partial(_checkpointed, norms)))
    if not places:
        log.warning("activation_checkpointing: %s has no repeated blocks, so no memory is saved", type(model).__name__)


def repeated_blocks(model: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Module]]:
    """Parent, name and module of the outermost modules whose class occurs more than once and that have children."""
    kinds = Counter(type(module) for module in model.modules())
    containers = (nn.Sequential, nn.ModuleList, nn.ModuleDict)

    def search(parent: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Module]]:
        for name, child in parent.named_children():
            if kinds[type(child)] > 1 and type(child) not in containers and next(child.children(), None) is not None:
                yield parent, name, child
            else:
                yield from search(child)

    return search(model)


def _checkpointed(norms: Sequence[nn.Module], block: nn.Module, *inputs: Any, **named: Any) -> Any:
    if not (block.training and torch.is_grad_enabled()):
        return block(*inputs, **named)
    if torch.compiler.is_compiling():  # compiled code recomputes values only: it updates statistics once by itself
        return checkpoint(block, *inputs, use_reentrant=False, **named)
    return checkpoint(
        block,
        *inputs,
        use_reentrant=False,
        context_fn=lambda: (nullcontext(), _frozen_statistics(norms)),  # of the forward pass and its repetition
        **named,
    )


@contextmanager
def _frozen_statistics(norms: Sequence[nn.Module]) -> Iterator[None]:
    """Within the block, normalization updates copies of its running statistics: the forward pass has updated them."""
    before = [(norm, dict(norm._buffers)) for norm in norms]
    for norm, buffers in before:
        norm._buffers.update({name: buffer.clone() for name, buffer in buffers.items() if buffer is not None})
    try:
        yield
    finally:
        for norm, buffers in before:
            norm._buffers.update(buffers)
