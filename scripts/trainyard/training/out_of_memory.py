"""Out of memory: telling such errors from others, and what a training does after one."""

import logging
import re
from collections.abc import Callable
from typing import Final, TypeVar

from trainyard.utils.errors import UserError

_Result = TypeVar("_Result")
# torch's own allocator says "CUDA out of memory", and on a CPU "can't allocate memory". The libraries below say "CUDA
# error: out of memory" (the driver), "CUBLAS_STATUS_ALLOC_FAILED" or, for the memory of a handle, "NOT_INITIALIZED",
# "CUDNN_STATUS_ALLOC_FAILED", since cuDNN 9 "INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED", and "GET was unable to find an
# engine to execute this computation" (cuDNN, without memory for the workspace of any algorithm).
_MESSAGES: Final = re.compile(
    r"out of memory|_ALLOC(ATION)?_FAILED|_NOT_INITIALIZED when calling `(cublas|cusolverDn)Create|"
    r"unable to find an engine|can't allocate memory",
    re.I,
)
log = logging.getLogger(__name__)


class OutOfMemory(UserError):
    """One of several ranks ran out of memory in a step, so the other ranks cannot retry the step."""

    def __init__(self, where: str, *, rank: int, micro: int, error: RuntimeError) -> None:
        super().__init__(f"out of memory in {where}, on rank {rank}, with micro-batches of {micro}: {error}")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error of torch, cuDNN, cuBLAS or the CUDA driver says that the memory does not suffice."""
    return isinstance(error, RuntimeError) and _MESSAGES.search(str(error)) is not None


def halve_until_it_fits(run: Callable[[int], _Result], batch: int) -> tuple[_Result, int]:
    """The result of `run` for the first of `batch`, half of it, ... that fits into memory, and this batch size.

    Raises:
        RuntimeError: a batch of one does not fit.
    """
    while True:
        try:
            return run(batch), batch
        except RuntimeError as error:
            if batch == 1 or not is_out_of_memory(error):
                raise
            reason = str(error)
        batch = (batch + 1) // 2  # outside of `except`, where the traceback keeps tensors alive
        log.warning("out of memory: batches of %d images from now on (%s)", batch, reason)
