"""Models by name, built for the images and classes of a dataset with the arguments of the config."""

import math
from collections.abc import Callable
from contextlib import nullcontext
from difflib import get_close_matches
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from trainyard.config.train import TIMM, Train
from trainyard.utils.errors import UserError
from trainyard.utils.import_path import import_object, user_code_location
from trainyard.utils.text import suggest


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


BUILT_IN: dict[str, Callable[..., nn.Module]] = {"resnet": ResNet, "cnn": SmallConvNet}


def is_known(name: str) -> bool:
    """Whether a model is Trainyard's, torchvision's or timm's: these use the same parameters in every step."""
    return ":" not in name or name.startswith(TIMM)


def build_model(spec: Train, *, shape: tuple[int, int, int], classes: int) -> nn.Module:
    """The model of a training for images of `shape` (height, width, channels): float (N, C, H, W) to (N, classes).

    `spec.model` is a name of Trainyard's, torchvision's or timm's, or a path `package.module:function`, which is
    called with `channels`, `classes` and `spec.model_args`.

    Raises:
        ModelError: the model is unknown, cannot be imported, or does not accept the arguments.
    """
    name = spec.model
    arguments = spec.model_args
    try:
        if name.startswith(TIMM):
            return _timm_model(name.removeprefix(TIMM), shape=shape, classes=classes, arguments=arguments)
        if name in BUILT_IN or ":" in name:
            factory = BUILT_IN.get(name) or cast(Callable[..., nn.Module], import_object(name, role="model"))
            return factory(channels=shape[2], classes=classes, **arguments)
        return _torchvision_model(name, shape=shape, classes=classes, arguments=arguments, small=spec.small_images)
    except (TypeError, ValueError) as error:
        raise ModelError(
            f"model {name!r} cannot be built with {arguments}: {error}{user_code_location(error)}"
        ) from error


def gradient_bytes(module: nn.Module) -> int:
    """The size of the gradients of the parameters that are trained."""
    return sum(each.numel() * each.element_size() for each in module.parameters() if each.requires_grad)


class AdaptedModel(nn.Module):
    """A model of torchvision, for RGB images of a minimum size, adapted to grayscale and smaller images."""

    def __init__(self, model: nn.Module, *, channels: int, enlarged_to: tuple[int, int] | None) -> None:
        super().__init__()
        self.model = model
        self._is_grayscale = channels == 1
        self._size = enlarged_to

    def forward(self, images: Tensor) -> Tensor:
        """(N, 1 or 3, H, W) to (N, classes)."""
        if self._is_grayscale:
            images = images.expand(-1, 3, -1, -1)
        if self._size is not None:
            images = nn.functional.interpolate(images, self._size, mode="bilinear", antialias=False)
        logits: Tensor = self.model(images)
        return logits


def inner_model(model: nn.Module) -> nn.Module:
    """The model without its adaptation to the images, so that torchvision's models have torchvision's names."""
    return model.model if isinstance(model, AdaptedModel) else model


# Smallest image sides that a family of models accepts, in pixels; smaller images are enlarged.
_MIN_PIXELS = {"alexnet": 63, "inception": 75, "vgg": 32, "densenet": 29, "squeezenet": 17, "convnext": 32}
_FIXED_PIXELS = {"maxvit": 224}  # windows of 7x7 must fill every stage
_NO_STEM = ("alexnet", "convnext", "inception", "maxvit", "swin", "vgg", "vit")


def _torchvision_model(
    name: str, *, shape: tuple[int, int, int], classes: int, arguments: dict[str, Any], small: bool
) -> nn.Module:
    """Torchvision's model `name` for images of `shape` (height, width, channels), with `classes` outputs.

    With `small`, for small images, the stem does not downsample: its first convolution is 3x3 without stride, and its
    pooling is removed, as in the networks of He et al. 2015 for 32x32 images.

    Raises:
        ModelError: torchvision has no classification model of that name.
        ValueError: the model does not accept such images, or has no stem to replace.
    """
    from torchvision import models  # its import takes seconds

    known: list[str] = models.list_models(module=models)
    if name not in known:
        close = get_close_matches(name[:100], [*BUILT_IN, *known], n=1)
        remedy = f"did you mean {close[0]!r}?" if close else f"use {', '.join(BUILT_IN)}, or a name of torchvision's"
        raise ModelError(f"model {name!r} is not known; {remedy} (or a path package.module:function)")
    height, width, channels = shape
    if channels not in (1, 3):
        raise ValueError(f"it takes images of 1 or 3 channels, not {channels}")
    size = _input_size(name, height, width)
    with _ValuesOnCpu() if name.startswith("regnet") else nullcontext():  # it computes its widths with tensors
        model: nn.Module = models.get_model(name, num_classes=classes, **(_required_arguments(name, size) | arguments))
    if small:
        _replace_stem(name, model)
    enlarged_to = size if size != (height, width) else None
    if channels == 3 and enlarged_to is None:
        return model
    return AdaptedModel(model, channels=channels, enlarged_to=enlarged_to)


def _timm_model(name: str, *, shape: tuple[int, int, int], classes: int, arguments: dict[str, Any]) -> nn.Module:
    """The model `name` of timm with `classes` outputs, for images of `shape` (height, width, channels).

    Raises:
        UserError: timm is not installed, or has no model of that name.
    """
    timm = import_object("timm", role="model")
    if not timm.is_model(name):
        known = timm.list_models() if name else ()
        raise ModelError(f"timm has no model {name!r}; {suggest(name, known)}")
    height, width, channels = shape
    is_sized = timm.get_pretrained_cfg(name).fixed_input_size
    size = {"img_size": (height, width)} if is_sized else {}
    model: nn.Module = timm.create_model(name, num_classes=classes, in_chans=channels, **(size | arguments))
    return model


class _ValuesOnCpu(TorchFunctionMode):
    """Within the block, tensors of given values are on the CPU, also where parameters are on the meta device."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        has_values = func in (torch.arange, torch.tensor)
        return func(*args, **({"device": "cpu"} if has_values else {}) | (kwargs or {}))


def _input_size(name: str, height: int, width: int) -> tuple[int, int]:
    """Height and width of the images after they are enlarged for the model."""
    family = name.split("_")[0].rstrip("0123456789")
    if family in _FIXED_PIXELS:
        return (_FIXED_PIXELS[family],) * 2
    if family == "vit":  # square, in whole patches
        patch = int(name.rsplit("_", 1)[1])
        side = math.ceil(max(height, width) / patch) * patch
        return side, side
    smallest = _MIN_PIXELS.get(family, 1)
    scale = max(1.0, smallest / min(height, width))
    return math.ceil(height * scale), math.ceil(width * scale)


def _required_arguments(name: str, size: tuple[int, int]) -> dict[str, Any]:
    """Arguments that some models need: the size of their input, and no auxiliary output."""
    if name.startswith("vit"):
        return {"image_size": size[0]}
    if name.startswith("maxvit"):
        return {"input_size": size}
    if name in ("googlenet", "inception_v3"):
        return {"aux_logits": False, "init_weights": True}
    return {}


def _replace_stem(name: str, model: nn.Module) -> None:
    """Replace the stem by one that does not downsample."""
    if name.startswith(_NO_STEM):
        raise ValueError("it has no stem to replace for small images: leave out small_images")
    path, old = next((path, module) for path, module in model.named_modules() if isinstance(module, nn.Conv2d))
    new = nn.Conv2d(3, old.out_channels, 3, padding=1, bias=old.bias is not None)
    nn.init.kaiming_normal_(new.weight, mode="fan_out", nonlinearity="relu")
    model.set_submodule(path, new)
    after = iter(list(model.named_modules()))
    next(path for path, module in after if module is new)
    for path, module in after:
        if isinstance(module, nn.MaxPool2d):
            model.set_submodule(path, nn.Identity())
        if isinstance(module, (nn.Conv2d, nn.MaxPool2d)):
            break
