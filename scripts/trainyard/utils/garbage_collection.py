"""The host's memory: kept when a training frees it, and not searched for garbage while much is made that will stay."""

import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager

# Of glibc's malloc.h: https://man7.org/linux/man-pages/man3/mallopt.3.html
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4


def keep_freed_memory() -> None:
    """Have malloc return nothing to the operating system before the process ends.

    Left alone, it returns each large tensor, and the next one costs page faults and zeroing: a fifth of the time of a
    small ResNet's training on two cores (benchmarks/README.md). With another libc than glibc, nothing is done.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_MAX, 0)
        mallopt(_M_TRIM_THRESHOLD, -1)


@contextmanager
def collection_paused() -> Iterator[None]:
    """Search for no reference cycles within the block: of 100,000 new objects that stay, it is a third of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
