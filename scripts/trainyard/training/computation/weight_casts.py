"""16-bit copies of the weights for autocast, cast from float32 with one operation for all layers."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


def cast_weights_together(model: nn.Module) -> None:
    """Let a model cast the weights and biases of its trained convolutions and linear layers at once, under autocast.

    By itself, autocast casts each of them in the forward pass, and autograd each of their gradients in the backward
    pass: two kernels per tensor and step. Results do not change. All gradients are complete only at the end of the
    backward pass, so this is not for DDP, which reduces them meanwhile.
    """
    layers = [module for module in model.modules() if _is_cast(module)]
    if not layers:
        return
    casts = _Casts(layers)
    for index, layer in enumerate(layers):
        layer.forward = partial(_FORWARD[type(layer)], layer, casts, index)
    model.register_forward_pre_hook(casts.refresh)


class _Casts:
    """The weights and biases of layers in 16 bits, for one forward and backward pass."""

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        self._layers = layers
        self._pairs: list[tuple[Any, Any]] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_pairs": None}  # for copies of the model: those tensors belong to its autograd graph

    def refresh(self, model: nn.Module, inputs: Any) -> None:
        """A forward hook: cast them again if autograd needs them; otherwise autocast does it."""
        self._pairs = None
        kind = inputs[0].device.type
        if torch.is_grad_enabled() and torch.is_autocast_enabled(kind):
            given = [(layer.weight, layer.bias) for layer in self._layers]
            tensors = [each for pair in given for each in pair if each is not None]
            found = iter(_Cast.apply(torch.get_autocast_dtype(kind), *tensors))
            self._pairs = [(next(found), None if bias is None else next(found)) for _, bias in given]

    def of(self, index: int, layer: Any) -> tuple[Any, Any]:
        """Weight and bias of a layer, for its forward pass."""
        return (layer.weight, layer.bias) if self._pairs is None else self._pairs[index]


class _Cast(torch.autograd.Function):
    """Casts tensors to another data type, and their gradients back."""

    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.dtypes = [tensor.dtype for tensor in tensors]
        return tuple(_cast(tensors, [dtype] * len(tensors)))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        given = [(each, dtype) for each, dtype in zip(gradients, ctx.dtypes, strict=True) if each is not None]
        found = iter(_cast([each for each, _ in given], [dtype for _, dtype in given]))
        return (None, *(None if each is None else next(found) for each in gradients))


def _cast(tensors: Sequence[Tensor], dtypes: Sequence[torch.dtype]) -> list[Tensor]:
    results = [torch.empty_like(tensor, dtype=dtype) for tensor, dtype in zip(tensors, dtypes, strict=True)]
    if results:
        torch._foreach_copy_(results, list(tensors))
    return results


def _is_cast(module: nn.Module) -> bool:
    """Whether a layer is exactly of one of these types, with its default padding, and trained."""
    is_plain = type(module) in _FORWARD and getattr(module, "padding_mode", "zeros") == "zeros"
    return is_plain and all(parameter.requires_grad for parameter in module.parameters())


def _convolve(layer: nn.Conv2d, casts: _Casts, index: int, images: Tensor) -> Tensor:
    weight, bias = casts.of(index, layer)
    return functional.conv2d(images, weight, bias, layer.stride, layer.padding, layer.dilation, layer.groups)


def _transform(layer: nn.Linear, casts: _Casts, index: int, features: Tensor) -> Tensor:
    return functional.linear(features, *casts.of(index, layer))


_FORWARD: dict[type, Any] = {nn.Conv2d: _convolve, nn.Linear: _transform}
