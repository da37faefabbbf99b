"""Exceptions whose message is enough for the user: they are reported without a stack trace."""

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final


class UserError(Exception):
    """The request cannot be carried out; its message has what happened, where, and what to do."""


class FinalError(UserError):
    """An error that the same job would meet again: Snakemake's retries would not help."""


class ContinuedError(UserError):
    """A job ended by itself before the end of its walltime, as planned, and got further: another one continues."""


class Diverged(UserError):
    """The loss became NaN or infinite."""


class StorageError(UserError, OSError):
    """A file system does not store a file, for a reason that only people can remove; the message names both."""


class MissingResultError(UserError, FileNotFoundError):
    """A file of the results that no job has written yet."""

    def __init__(self, path: Path, *, remedy: str = "Snakemake runs the job that writes it") -> None:
        super().__init__(f"{path} does not exist: {remedy}")
        self.filename = str(path)

    def __str__(self) -> str:
        return str(self.args[0])  # OSError would add the file and the number of an error


_AGAIN: Final = "then run the same command again: finished work is kept"
_REMEDIES: Final = {
    errno.ENOSPC: f"make room on this file system (`df -h` and `df -i` show what is used), {_AGAIN}",
    errno.EDQUOT: f"remove files or ask for a larger quota (`quota -s` shows it), {_AGAIN}",
    errno.EFBIG: f"raise the limit of the size of files (`ulimit -f`) or use another file system, {_AGAIN}",
    errno.EROFS: f"make it writable or use another folder, {_AGAIN}",
    errno.EACCES: f"make it accessible to you or use another folder, {_AGAIN}",
    errno.EPERM: f"make it accessible to you or use another folder, {_AGAIN}",
    errno.EIO: f"the disk or its server fails: ask the administrators, {_AGAIN}",
    errno.ESTALE: f"the folder was replaced on its server, or the server fails: remount or wait, {_AGAIN}",
}
# What network file systems report when their server or its connection is lost. Sockets report some of them, too.
_LOST_SERVER: Final = frozenset(
    {
        errno.ESHUTDOWN,  # Lustre has evicted this node
        errno.ENOTCONN,  # the process behind a FUSE mount has ended
        errno.ENODEV,
        errno.EREMOTEIO,
        errno.ETIMEDOUT,
        errno.EAGAIN,
        errno.EHOSTDOWN,
    }
)
_SERVER_REMEDY: Final = (
    f"the file system has lost its server: wait, remount it or ask the administrators (`df` shows whether it answers), "
    f"{_AGAIN}"
)


def storage_error(error: OSError, path: Path | str | None = None) -> StorageError | None:
    """The error as one line with the path and a remedy; None if its cause is not the file system.

    `path` is the file in the user's terms, by default the one that the error names. Without one, an error that sockets
    report, too, is not taken for one of the file system.
    """
    if isinstance(error, StorageError):
        return error
    file = path or error.filename
    remedy = _REMEDIES.get(error.errno or 0)
    if file is not None and error.errno in _LOST_SERVER:
        remedy = _SERVER_REMEDY
    if remedy is None:
        return None
    where = f"{os.fsdecode(file)}: " if isinstance(file, (str, bytes, Path)) else ""
    described = StorageError(f"{where}{os.strerror(error.errno or 0).lower()}: {remedy}")
    described.errno = error.errno
    return described


def mentions_held_folder(message: str) -> bool:
    """Whether a message is that of a `LockHeldError`: another process uses a folder."""
    return " is in use by " in message and "end it, then run this again" in message


def mentions_full_disk(message: str) -> bool:
    """Whether a message names a full disk or quota as the reason."""
    return any(os.strerror(number) in message for number in (errno.ENOSPC, errno.EDQUOT))


# Of torch (also cuBLAS and cuDNN "ALLOC_FAILED", since 9 "ALLOCATION_FAILED"), of JAX, TensorFlow, and our training.
# TensorFlow says the same of host memory, with another allocator, and JAX names the CPU or host.
_GPU_MEMORY: Final = re.compile(
    r"\b(?:cuda\w*|hip|xpu|mps)\b.{0,40}out of memory|cudaErrorMemoryAllocation|"
    r"torch\.(?:cuda\.)?OutOfMemoryError|CUDA_ERROR_OUT_OF_MEMORY|"
    r"_ALLOC(?:ATION)?_FAILED|RESOURCE_EXHAUSTED: (?:Out of memory|Failed to allocate)(?!.*\b(?:cpu|host)\b)|"
    r"(?:OOM when allocating tensor|ResourceExhaustedError)(?!.*by allocator (?:mkl)?cpu)|"
    r"Dst tensor is not initialized|^out of memory (?:in .* on rank|with a micro-batch)",
    re.IGNORECASE,
)


def mentions_gpu_memory(message: str) -> bool:
    """Whether an error of a framework or of a library of the GPU says that the GPU's memory does not suffice."""
    return _GPU_MEMORY.search(message) is not None


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Raise errors of the file system in the block as a `StorageError` about `path`."""
    try:
        yield
    except OSError as error:
        if found := storage_error(error, path):
            raise found from error
        raise
