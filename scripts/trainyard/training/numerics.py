"""How a training computes on its device: data types, autocast, and which kernels torch may choose.

Deterministic kernels: https://docs.pytorch.org/docs/stable/notes/randomness.html.
"""

import os
from contextlib import AbstractContextManager
from typing import Any, Final

import torch

from trainyard.config.train import Train
from trainyard.utils.environment_variables import COMPILE_THREADS
from trainyard.utils.errors import UserError

_BACKENDS: Any = torch.backends  # its stubs lack some of what follows
_FLOAT32_SETTINGS = (_BACKENDS.cudnn.conv, _BACKENDS.cudnn.rnn, _BACKENDS.cudnn, _BACKENDS.cuda.matmul, _BACKENDS)
CUBLAS_VARIABLE: Final = "CUBLAS_WORKSPACE_CONFIG"
CUBLAS_DETERMINISTIC: Final = (":4096:8", ":16:8")  # the values with which torch calls cuBLAS in deterministic mode
# `make gpu-check` also measures other values of these two.
CUDNN_BENCHMARK: Final = False  # whether cuDNN tries its algorithms for each new shape
CHANNELS_LAST: Final = ("bf16", "fp16")  # precisions in which a GPU trains with this memory format
_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


def set_threads(count: int) -> None:
    """Let this process compute with so many threads. torch.compile has as many, unless the user has set its number."""
    torch.set_num_threads(count)
    os.environ.setdefault(COMPILE_THREADS, str(count))


def resolve_precision(precision: str, device: torch.device) -> str:
    """`precision`; for `auto`, the best 16-bit type that the device has hardware for, or fp32.

    bf16 needs no loss scaling. NVIDIA GPUs have it from Ampere (compute capability 8) on, fp16 from Volta (7) on.
    """
    if precision != "auto":
        return precision
    if device.type != "cuda":
        return "fp32"
    major, _ = torch.cuda.get_device_capability(device)
    if major >= 8:
        return "bf16"
    return "fp16" if major == 7 else "fp32"


def set_float32(precision: str) -> None:
    """Set how this process multiplies float32 matrices on GPUs: exactly for `fp32`, otherwise in TF32.

    torch has three settings of this, and raises wherever one is read that contradicts another, as torch.compile does in
    torch 2.10 (https://github.com/pytorch/pytorch/issues/166387). `allow_tf32` also sets `fp32_precision`, but not the
    other way round, and not where a user's code has set it for some operations: so these are reset first.
    """
    for backend in _FLOAT32_SETTINGS:
        backend.fp32_precision = "none"
    torch.set_float32_matmul_precision("highest" if precision == "fp32" else "high")
    _BACKENDS.mkldnn.matmul.fp32_precision = "none"  # CPUs multiply exactly
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision != "fp32"


def autocast(precision: str, device: torch.device) -> AbstractContextManager[None]:
    """The autocast context of the forward pass; disabled unless `precision` has 16 bits."""
    dtype = _AUTOCAST.get(precision)
    return torch.autocast(device.type, dtype=dtype, enabled=dtype is not None)


def fix_cublas_workspace() -> None:
    """Give cuBLAS workspaces of fixed size, with which it is deterministic, unless the user has chosen another.

    torch reads the variable once, when it first calls cuBLAS: call this before, if a training may be deterministic.
    """
    os.environ.setdefault(CUBLAS_VARIABLE, CUBLAS_DETERMINISTIC[0])


def choose_kernels(spec: Train, device: torch.device) -> None:
    """Let torch choose kernels as the spec says, in all that this process computes from now on.

    Raises:
        UserError: the environment variable of cuBLAS contradicts the spec.
    """
    torch.backends.cudnn.benchmark = CUDNN_BENCHMARK and not spec.deterministic
    torch.backends.cudnn.deterministic = spec.deterministic
    if spec.deterministic:
        fix_cublas_workspace()
        value = os.environ[CUBLAS_VARIABLE]
        if device.type == "cuda" and value not in CUBLAS_DETERMINISTIC:
            allowed = " or ".join(CUBLAS_DETERMINISTIC)
            raise UserError(f"`deterministic: true` needs {CUBLAS_VARIABLE} to be {allowed}, not {value}: unset it")
    # Otherwise, deterministic mode writes NaN to each new tensor first, to expose code that reads it before it is set.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    if torch.are_deterministic_algorithms_enabled() != spec.deterministic:  # setting it imports a part of the compiler
        torch.use_deterministic_algorithms(spec.deterministic)
