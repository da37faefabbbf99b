"""Out of memory: telling such errors from others, and the error of one of several ranks."""

import re
from typing import Final

from trainyard.utils.errors import UserError

# torch's own allocator says "CUDA out of memory", and on a CPU "can't allocate memory". The libraries below say "CUDA
# error: out of memory" (the driver), "CUBLAS_STATUS_ALLOC_FAILED" or, for the memory of a handle, "NOT_INITIALIZED",
# "CUDNN_STATUS_ALLOC_FAILED", since cuDNN 9 "INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED", and "GET was unable to find an
# engine to execute this computation" (cuDNN, without memory for the workspace of any algorithm).
_MESSAGES: Final = re.compile(
    r"out of memory|_ALLOC(ATION)?_FAILED|_NOT_INITIALIZED when calling `(cublas|cusolverDn)Create|"
    r"unable to find an engine|can't allocate memory",
    re.I,
)


class OutOfMemory(UserError):
    """One of several ranks ran out of memory in a step, so the other ranks cannot retry the step."""

    def __init__(self, where: str, *, rank: int, micro: int, error: RuntimeError) -> None:
        super().__init__(f"out of memory in {where}, on rank {rank}, with micro-batches of {micro}: {error}")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error of torch, cuDNN, cuBLAS or the CUDA driver says that the memory does not suffice."""
    return isinstance(error, RuntimeError) and _MESSAGES.search(str(error)) is not None
