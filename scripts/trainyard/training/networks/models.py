"""Models by name, built for the images and classes of a dataset with the arguments of the config."""

from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import cast

import torch
from torch import Tensor, nn

from trainyard.config.train import Train
from trainyard.utils.errors import UserError
from trainyard.utils.import_path import import_object, own_place


class ModelError(UserError):
    """The model cannot be built; the message names the model and the reason."""


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with a shortcut (He et al. 2015), initialized as the identity so that deep models learn."""

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
    """Two convolutions and two linear layers, as in many MNIST examples, for any image size."""

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


def is_known(name: str) -> bool:
    """Whether a model is Trainyard's or torchvision's: these use the same parameters in every step."""
    return ":" not in name


def build_model(spec: Train, *, shape: tuple[int, int, int], classes: int) -> nn.Module:
    """The model of a training for images of `shape` (height, width, channels): float (N, C, H, W) to (N, classes).

    `spec.model` is a name of Trainyard's or torchvision's, or a path `package.module:function`, which is called with
    `channels`, `classes` and `spec.model_args`.

    Raises:
        ModelError: the model is unknown, cannot be imported, or does not accept the arguments.
    """
    name, arguments = spec.model, spec.model_args
    try:
        if name in _OWN or ":" in name:
            factory = _OWN.get(name) or cast(Callable[..., nn.Module], import_object(name, role="model"))
            return factory(channels=shape[2], classes=classes, **arguments)
        from trainyard.training.networks import torchvision_models  # its import takes seconds

        if name not in (known := torchvision_models.list_names()):
            raise ModelError(_unknown(name, known))
        return torchvision_models.build_torchvision_model(
            name, shape=shape, classes=classes, arguments=arguments, small_images=spec.small_images
        )
    except (TypeError, ValueError) as error:
        raise ModelError(f"model {name!r} cannot be built with {arguments}: {error}{own_place(error)}") from error


def _unknown(name: str, known: Sequence[str]) -> str:
    close = get_close_matches(name[:100], [*_OWN, *known], n=1)
    remedy = f"did you mean {close[0]!r}?" if close else f"use {', '.join(_OWN)}, or a name of torchvision's"
    return f"model {name!r} is not known; {remedy} (or a path package.module:function)"


def gradient_bytes(module: nn.Module) -> int:
    """The size of the gradients of the parameters that are trained."""
    return sum(each.numel() * each.element_size() for each in module.parameters() if each.requires_grad)
