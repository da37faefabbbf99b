"""Models by name. Each is built for a number of image channels and classes; further arguments are the config's."""

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from trainyard.errors import UserError


class ModelError(UserError):
    """The model cannot be built; the message says which, why, and what is known."""


class BasicBlock(nn.Module):
    """Two 3x3 convolutions beside an identity (He et al. 2015). It starts as the identity: depth costs no learning."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        nn.init.zeros_(self.norm2.weight)

    def forward(self, images: Tensor) -> Tensor:
        """(N, width, H, W) to the same shape."""
        inner = torch.relu(self.norm1(self.conv1(images)))
        return torch.relu(images + self.norm2(self.conv2(inner)))


class ResNet(nn.Sequential):
    """A 3x3 stem, `blocks` basic blocks of constant `width`, global average pooling and a linear layer."""

    def __init__(self, *, channels: int, classes: int, blocks: int = 8, width: int = 32) -> None:
        stem = [nn.Conv2d(channels, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
        head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes)]
        super().__init__(*stem, *[BasicBlock(width) for _ in range(blocks)], *head)


class SmallConvNet(nn.Sequential):
    """Two convolutions and two linear layers: the small network of many MNIST examples, for any image size."""

    def __init__(self, *, channels: int, classes: int, width: int = 32) -> None:
        super().__init__(
            nn.Conv2d(channels, width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, padding=1),
            nn.ReLU(),
            nn.AdaptiveMaxPool2d(4),
            nn.Flatten(),
            nn.Linear(2 * width * 16, 128),
            nn.ReLU(),
            nn.Linear(128, classes),
        )


_OWN: dict[str, Callable[..., nn.Module]] = {"resnet": ResNet, "cnn": SmallConvNet}


def build(name: str, *, channels: int, classes: int, arguments: dict[str, Any]) -> nn.Module:
    """The model called `name` for images of `channels` channels: `forward` maps float (N, C, H, W) to (N, classes).

    A name of Trainyard's own, of torchvision's, or a dotted path `package.module:function` that is called with
    `channels`, `classes` and the arguments.

    Raises:
        ModelError: it is not known, cannot be imported, or does not take the arguments.
    """
    factory = _factory(name)
    try:
        if name in _OWN or ":" in name:
            return factory(channels=channels, classes=classes, **arguments)
        return factory(num_classes=classes, **arguments)
    except (TypeError, ValueError) as error:
        raise ModelError(f"model {name!r} cannot be built with {arguments}: {error}") from error


def _factory(name: str) -> Callable[..., nn.Module]:
    if name in _OWN:
        return _OWN[name]
    if ":" in name:
        return _imported(name)
    from torchvision import models  # seconds to import: only for those who use it

    try:
        builder: Callable[..., nn.Module] = models.get_model_builder(name)
    except ValueError:
        own = ", ".join(_OWN)
        known = f"use {own}, a name of torchvision's, or a path package.module:function"
        raise ModelError(f"model {name!r} is not known: {known}") from None
    return builder


def _imported(path: str) -> Callable[..., nn.Module]:
    module_name, _, attribute = path.partition(":")
    try:
        factory: Callable[..., nn.Module] = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError) as error:
        raise ModelError(f"model {path!r} cannot be imported: {error}") from error
    return factory
