"""How many parameters a model has, approximately: importing torch to count them takes seconds."""

from collections.abc import Mapping
from typing import Any, Final

UNKNOWN_PARAMETERS: Final = 128  # of a user's model, in millions
OTHER_PARAMETERS: Final = 45  # of torchvision's models that are not listed, at most
PARAMETERS: Final = {  # of torchvision's large models, by the beginning of their names, in millions
    "regnet_y_128gf": 645, "vit_h": 632, "vit_l": 307, "convnext_large": 198, "regnet_y_32gf": 145, "vgg": 144,
    "wide_resnet101": 127, "efficientnet_v2_l": 119, "regnet_x_32gf": 108, "resnext101": 89, "convnext_base": 89,
    "swin_b": 88, "swin_v2_b": 88, "vit_b": 88, "regnet_y_16gf": 84, "wide_resnet50": 69, "efficientnet_b7": 66,
    "alexnet": 61, "resnet152": 60, "regnet_x_16gf": 54, "efficientnet_v2_m": 54, "convnext_small": 50, "swin_s": 50,
    "swin_v2_s": 50, "maxvit": 31,
}  # fmt: skip


def count_parameters(model: str, model_args: Mapping[str, Any]) -> float:
    """The approximate number of parameters of a model in millions."""
    if ":" in model:
        return UNKNOWN_PARAMETERS
    width = float(model_args.get("width", 32))
    if model == "resnet":
        return 18e-6 * width**2 * float(model_args.get("blocks", 8))
    if model == "cnn":
        return 4096e-6 * width
    return next((count for start, count in PARAMETERS.items() if model.startswith(start)), OTHER_PARAMETERS)
