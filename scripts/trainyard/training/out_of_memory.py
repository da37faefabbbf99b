"""Out of memory: telling such errors from others, and the error of one of several ranks."""

import re
from typing import Final

from trainyard.utils.errors import UserError, mentions_gpu_memory

# Also on a CPU. cuBLAS has no memory for its handle, or cuDNN for any workspace, or the GPU is broken: worth a retry.
_MESSAGES: Final = re.compile(
    "out of memory|can't allocate memory|"
    "_NOT_INITIALIZED when calling `(?:cublas|cusolverDn)Create|unable to find an engine",
    re.IGNORECASE,
)


class OutOfMemory(UserError):
    """One of several ranks ran out of memory in a step, so the other ranks cannot retry the step."""

    def __init__(self, where: str, *, rank: int, micro: int, error: RuntimeError) -> None:
        super().__init__(f"out of memory in {where}, on rank {rank}, with micro-batches of {micro}: {error}")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error of torch, cuDNN, cuBLAS or the CUDA driver says that the memory does not suffice."""
    text = str(error)
    return isinstance(error, RuntimeError) and (mentions_gpu_memory(text) or _MESSAGES.search(text) is not None)
