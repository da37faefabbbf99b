"""The memory of a training on CPUs: kept when it is freed, since each step asks for the same again."""

import ctypes

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
