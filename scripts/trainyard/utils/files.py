"""Durable files: atomic writes and digests. Every file that must survive a crash is written here."""

import errno
import hashlib
import json
import os
import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from trainyard.utils.errors import storage_errors


@contextmanager
def atomic_write(path: Path, mode: str = "w", *, name: Callable[[], str] | None = None) -> Iterator[IO[Any]]:
    """A temporary file beside `path`; at the end of the block, it is fsynced and replaces `path`. Text is UTF-8.

    Readers see the complete old file or the complete new one, even after a power failure. If the block raises, the old
    file stays. `name`: called at the end of the block for the file's name, which replaces the name of `path`.

    Raises:
        StorageError: the file system does not store it.
    """
    temporary = path.with_name(f".{path.name}.{socket.gethostname()}.{os.getpid()}.tmp")
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            newline, encoding = (None, None) if "b" in mode else ("", "utf-8")
            with open(temporary, mode, newline=newline, encoding=encoding) as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path.with_name(name()) if name else path)
            sync_folder(path.parent)
        finally:
            with suppress(OSError):  # the error that follows from it would hide the first
                temporary.unlink()


def append_whole(fd: int, content: bytes) -> None:
    """Append to an open file as a whole or not at all: if the disk is full, the part that was written is removed."""
    written = 0
    try:
        while written < len(content):
            written += os.write(fd, content[written:])
    except OSError:
        end = os.lseek(fd, 0, os.SEEK_CUR)
        if end == os.fstat(fd).st_size:  # nothing has been appended since
            os.ftruncate(fd, end - written)
        raise


def copy_matching(folder: Path, pattern: str, target: Path) -> None:
    """Copy what matches `pattern` in a folder to `target`, with its times, unless that exists; all of it or nothing.

    What is removed or renamed meanwhile is left out.
    """
    files = [path for path in sorted(folder.glob(pattern)) if not path.name.startswith(".")]
    if not files or target.exists():
        return
    draft = target.with_name(f".{target.name}.copy")
    shutil.rmtree(draft, ignore_errors=True)
    for path in files:
        copy = draft / path.relative_to(folder)
        copy.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):
            if path.is_dir():
                shutil.copytree(path, copy, copy_function=_copy_if_there, dirs_exist_ok=True)
            else:
                shutil.copy2(path, copy)
    draft.rename(target)


def _copy_if_there(source: str, target: str) -> None:
    with suppress(FileNotFoundError):
        shutil.copy2(source, target)


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON, atomically."""
    with atomic_write(path) as file:
        json.dump(value, file, indent=2)
        file.write("\n")


def sync_folder(folder: Path) -> None:
    """Make a rename in `folder` durable. Some network file systems cannot fsync a folder; they do not need it."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def expand_path(text: str) -> Path:
    """The path of the config with its environment variables and `~` replaced."""
    return Path(os.path.expandvars(text)).expanduser()


def digest_of(value: Any, length: int = 16) -> str:
    """The first `length` hex digits of the SHA-256 of `value` as canonical JSON."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:length]


def file_digest(path: Path, algorithm: str = "sha256") -> str:
    """The digest of a file's bytes, in hex."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()
