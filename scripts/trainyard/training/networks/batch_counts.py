"""The batches that batch normalization has seen (`num_batches_tracked`), counted with one operation for all layers."""

from collections.abc import Sequence
from functools import partial
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


def count_batches_together(model: nn.Module) -> None:
    """Let all batch-normalization layers of a model add to their counts in one operation before a forward pass.

    By itself, each layer launches a kernel for a number that is only used without a `momentum`; such layers stay as
    they are. The model must use each layer once in a forward pass. Results and buffers do not change.
    """
    layers = [module for module in model.modules() if _is_counted(module)]
    for layer in layers:
        layer.forward = partial(_normalize, layer)  # type: ignore[method-assign]
    if layers:
        model.register_forward_pre_hook(_Count(layers))


class _Count:
    """A hook that counts a batch for the layers in training mode. A copy of the model has a copy of it."""

    def __init__(self, layers: Sequence[_BatchNorm]) -> None:
        self._layers = layers

    def __call__(self, model: nn.Module, inputs: Any) -> None:
        counts = [
            layer.num_batches_tracked
            for layer in self._layers
            if layer.training and layer.num_batches_tracked is not None
        ]
        if counts:
            torch._foreach_add_(counts, 1)


def _is_counted(module: nn.Module) -> TypeGuard[_BatchNorm]:
    kinds = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)  # not SyncBatchNorm, which computes otherwise
    return isinstance(module, kinds) and module.track_running_stats and module.momentum is not None


def _normalize(layer: Any, inputs: Tensor) -> Tensor:
    """The forward pass of a batch-normalization layer, without counting."""
    statistics = layer.running_mean, layer.running_var
    return nn.functional.batch_norm(
        inputs, *statistics, layer.weight, layer.bias, layer.training, layer.momentum, layer.eps
    )
