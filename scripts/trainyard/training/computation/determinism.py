"""Which kernels torch may choose on GPUs: deterministic ones only, or the fastest by cuDNN's benchmark.

See https://docs.pytorch.org/docs/stable/notes/randomness.html.
"""

import os
from typing import Final

import torch

from trainyard.config.train import Train
from trainyard.utils.errors import UserError

CUBLAS_VARIABLE: Final = "CUBLAS_WORKSPACE_CONFIG"
CUBLAS_DETERMINISTIC: Final = (":4096:8", ":16:8")  # the values with which torch calls cuBLAS in deterministic mode


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
    torch.backends.cudnn.benchmark = spec.cudnn_benchmark
    torch.backends.cudnn.deterministic = spec.deterministic
    if spec.deterministic:
        fix_cublas_workspace()
        value = os.environ[CUBLAS_VARIABLE]
        if device.type == "cuda" and value not in CUBLAS_DETERMINISTIC:
            allowed = " or ".join(CUBLAS_DETERMINISTIC)
            raise UserError(f"`deterministic: true` needs {CUBLAS_VARIABLE} to be {allowed}, not {value}: unset it")
    if torch.are_deterministic_algorithms_enabled() != spec.deterministic:  # setting it imports a part of the compiler
        torch.use_deterministic_algorithms(spec.deterministic)
