"""The arithmetic of a training: what `precision` means on the device at hand."""

from contextlib import AbstractContextManager

import torch

_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


def resolve_precision(precision: str, device: torch.device) -> str:
    """`precision`, with `auto` made the best that the device is fast at.

    bf16 needs no loss scaling; NVIDIA's GPUs compute it from Ampere (compute capability 8) on, fp16 from Volta (7) on.
    """
    if precision != "auto":
        return precision
    if device.type != "cuda":
        return "fp32"
    major, _ = torch.cuda.get_device_capability(device)
    return "bf16" if major >= 8 else "fp16" if major == 7 else "fp32"


def set_float32(precision: str) -> None:
    """Have this process multiply float32 exactly for `fp32`, in TF32 otherwise, whatever was set before."""
    kind = "ieee" if precision == "fp32" else "tf32"
    torch.backends.cuda.matmul.fp32_precision = kind
    torch.backends.cudnn.conv.fp32_precision = kind  # type: ignore[attr-defined]


def autocast(precision: str, device: torch.device) -> AbstractContextManager[None]:
    """The context in which a forward pass computes in 16 bits what gains by it."""
    dtype = _AUTOCAST.get(precision)
    return torch.autocast(device.type, dtype=dtype, enabled=dtype is not None)


def is_half(precision: str) -> bool:
    """Whether the forward pass computes in 16 bits."""
    return precision in _AUTOCAST


def gradient_scaler(precision: str, device: torch.device) -> torch.amp.GradScaler:
    """Loss scaling, without which small fp16 gradients become zero (Micikevicius et al. 2017)."""
    return torch.amp.GradScaler(device.type, enabled=precision == "fp16")
