"""torchvision's classification models, made to fit images of any size and one or three channels."""

import math
from typing import Any

from torch import Tensor, nn
from torchvision import models

# Images smaller than this do not survive a model's pooling: they are enlarged first. Pixels, by the name's beginning.
_LEAST_PIXELS = {"alexnet": 63, "inception": 75, "vgg": 32, "densenet": 29, "squeezenet": 17,
                 "convnext": 32}  # fmt: skip
_FIXED_PIXELS = {"maxvit": 224}  # its windows of 7x7 must fill every stage
_NO_STEM = ("alexnet", "convnext", "inception", "maxvit", "swin", "vgg", "vit")


class Fitted(nn.Module):
    """A model of RGB images of at least some size, for grey and smaller ones, too."""

    def __init__(self, model: nn.Module, *, channels: int, enlarged_to: tuple[int, int] | None) -> None:
        super().__init__()
        self.model, self._grey, self._size = model, channels == 1, enlarged_to

    def forward(self, images: Tensor) -> Tensor:
        """(N, 1 or 3, H, W) to (N, classes)."""
        if self._grey:
            images = images.expand(-1, 3, -1, -1)
        if self._size is not None:
            images = nn.functional.interpolate(images, self._size, mode="bilinear", antialias=False)
        logits: Tensor = self.model(images)
        return logits


def build_torchvision_model(
    name: str, *, shape: tuple[int, int, int], classes: int, arguments: dict[str, Any], small_images: bool
) -> nn.Module:
    """The model of this name for images of `shape` (height, width, channels), its last layer for so many classes.

    With `small_images`, the stem keeps the size: its first convolution is 3x3 without stride, and its pooling is left
    out, as He et al. 2015 have it for 32x32 images.

    Raises:
        KeyError: torchvision has no classification model of that name.
        ValueError: it cannot take such images, or has no stem that could be changed.
    """
    if name not in models.list_models(module=models):
        raise KeyError(name)
    height, width, channels = shape
    if channels not in (1, 3):
        raise ValueError(f"it takes images of 1 or 3 channels, not {channels}")
    size = _size_taken(name, height, width)
    model: nn.Module = models.get_model(name, num_classes=classes, **(_extras(name, size) | arguments))
    if small_images:
        _keep_size(name, model)
    enlarged_to = size if size != (height, width) else None
    if channels == 3 and enlarged_to is None:
        return model
    return Fitted(model, channels=channels, enlarged_to=enlarged_to)


def _size_taken(name: str, height: int, width: int) -> tuple[int, int]:
    """Height and width of the images that the model itself gets to see."""
    family = name.split("_")[0].rstrip("0123456789")
    if family in _FIXED_PIXELS:
        return (_FIXED_PIXELS[family],) * 2
    if family == "vit":  # square, in whole patches
        patch = int(name.rsplit("_", 1)[1])
        side = math.ceil(max(height, width) / patch) * patch
        return side, side
    least = _LEAST_PIXELS.get(family, 1)
    scale = max(1.0, least / min(height, width))
    return math.ceil(height * scale), math.ceil(width * scale)


def _extras(name: str, size: tuple[int, int]) -> dict[str, Any]:
    """What some models must be told: their input's size, and to have one output."""
    if name.startswith("vit"):
        return {"image_size": size[0]}
    if name.startswith("maxvit"):
        return {"input_size": size}
    if name in ("googlenet", "inception_v3"):
        return {"aux_logits": False, "init_weights": True}
    return {}


def _keep_size(name: str, model: nn.Module) -> None:
    """Exchange the stem for one that does not shrink the images."""
    if name.startswith(_NO_STEM):
        raise ValueError("it has no stem that could be changed for small images: leave out small_images")
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
