"""torchvision's classification models, adapted to images of any size and one or three channels."""

import math
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torchvision import models

from trainyard.training.networks.adapted_model import AdaptedModel

# Smallest image sides that a family of models accepts, in pixels; smaller images are enlarged.
_MIN_PIXELS = {"alexnet": 63, "inception": 75, "vgg": 32, "densenet": 29, "squeezenet": 17, "convnext": 32}
_FIXED_PIXELS = {"maxvit": 224}  # windows of 7x7 must fill every stage
_NO_STEM = ("alexnet", "convnext", "inception", "maxvit", "swin", "vgg", "vit")


def list_names() -> list[str]:
    """The names of torchvision's classification models."""
    names: list[str] = models.list_models(module=models)
    return names


def build_torchvision_model(
    name: str, *, shape: tuple[int, int, int], classes: int, arguments: dict[str, Any], small_images: bool
) -> nn.Module:
    """Torchvision's model `name` for images of `shape` (height, width, channels), with `classes` outputs.

    With `small_images`, the stem does not downsample: its first convolution is 3x3 without stride, and its pooling is
    removed, as in the networks of He et al. 2015 for 32x32 images.

    Raises:
        ValueError: torchvision has no classification model of that name, or the model does not accept such images, or
            has no stem to replace.
    """
    height, width, channels = shape
    if channels not in (1, 3):
        raise ValueError(f"it takes images of 1 or 3 channels, not {channels}")
    size = _input_size(name, height, width)
    with _ValuesOnCpu() if name.startswith("regnet") else nullcontext():  # it computes its widths with tensors
        model: nn.Module = models.get_model(name, num_classes=classes, **(_required_arguments(name, size) | arguments))
    if small_images:
        _replace_stem(name, model)
    enlarged_to = size if size != (height, width) else None
    if channels == 3 and enlarged_to is None:
        return model
    return AdaptedModel(model, channels=channels, enlarged_to=enlarged_to)


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
    path, old = next((path, each) for path, each in model.named_modules() if isinstance(each, nn.Conv2d))
    new = nn.Conv2d(3, old.out_channels, 3, padding=1, bias=old.bias is not None)
    nn.init.kaiming_normal_(new.weight, mode="fan_out", nonlinearity="relu")
    model.set_submodule(path, new)
    after = iter(list(model.named_modules()))
    next(path for path, each in after if each is new)
    for path, each in after:
        if isinstance(each, nn.MaxPool2d):
            model.set_submodule(path, nn.Identity())
        if isinstance(each, (nn.Conv2d, nn.MaxPool2d)):
            break
