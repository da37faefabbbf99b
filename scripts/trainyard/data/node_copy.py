"""Copies of staged datasets on a node's local disk: one per node, shared by all processes of the job."""

import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from trainyard.cluster import host, node_folders, slurm_allocation
from trainyard.cluster.node_folders import candidate_folders, copy_prefix
from trainyard.data.staged import STAGE, DataError, Staged
from trainyard.utils.files import file_digest
from trainyard.utils.terminal import show_progress

CHUNK_BYTES: Final = 2**24
MARGIN_BYTES: Final = 2**30  # must be free on a disk beyond 1.1 times the size of the copy
MEMORY_FRACTION: Final = 0.25  # of the job's host memory that a copy may take; the rest is for the training


@dataclass
class LocalCopy:
    """The dataset that a process reads: the copy, or the shared files."""

    staged: Staged
    message: str = ""  # for the log: that the dataset was copied, or why not
    seconds: float = 0.0  # spent copying, or waiting for another process to copy


@contextmanager
def local_copy(staged: Staged, policy: str) -> Iterator[LocalCopy]:
    """The dataset on this node's local disk for the duration of the block, or the shared files if it is not copied.

    `policy` is `off`, a folder, or `auto`: in a Slurm job, copy data from a network file system.

    Raises:
        DataError: the staged files have changed since they were staged.
    """
    began = time.perf_counter()
    parent, message = choose_local_folder(staged, policy, os.environ)
    if parent is None:
        yield LocalCopy(staged, message)
        return
    path, messages = _copy_path(staged, parent), list[str]()
    with ExitStack() as stack:
        try:
            fill = partial(_copy, staged, messages.append)
            stack.enter_context(node_folders.shared_folder(path, is_complete=_is_complete, fill=fill))
        except OSError as error:
            yield LocalCopy(staged, _not_copied(staged, str(error)))
            return
        yield LocalCopy(Staged(path), "".join(messages), time.perf_counter() - began)


def choose_local_folder(
    staged: Staged,
    policy: str,
    environment: Mapping[str, str],
    *,
    kind_of: Callable[[Path], str] = host.file_system_type,
    free: Callable[[Path], int] = lambda path: shutil.disk_usage(path).free,
    memory: Callable[[], int] = slurm_allocation.available_memory_bytes,
) -> tuple[Path | None, str]:
    """The folder to copy to, or None and a message with the reason (empty if no copy is requested)."""
    if policy == "off" or not staged.meta.files:
        return None, ""
    if policy == "auto" and (
        "SLURM_JOB_ID" not in environment or not host.is_network_file_system(kind_of(staged.folder))
    ):
        return None, ""
    folders = candidate_folders(policy, environment)
    for folder in folders:
        if _copy_path(staged, folder).exists():  # made, or being made: its space is no longer free
            return folder, ""
    need = _size_bytes(staged)
    reasons = []
    for folder in folders:
        kind = kind_of(folder)
        if policy == "auto" and host.is_network_file_system(kind):
            reasons.append(f"{folder} is on {kind}")
        elif host.is_in_memory(kind) and need > MEMORY_FRACTION * memory():
            share = f"{MEMORY_FRACTION:.0%} of the {memory() / 2**30:,.1f} GiB that this job has"
            reasons.append(f"{folder} is in host memory, and {need / 2**30:,.1f} GiB are more than {share}")
        elif free(folder) < (need if host.is_in_memory(kind) else 1.1 * need + MARGIN_BYTES):
            reasons.append(f"{folder} has too little space")
        else:
            return folder, ""
    return None, _not_copied(staged, "; ".join(reasons) or f"{policy} is not writable")


def _size_bytes(staged: Staged) -> int:
    return sum((staged.folder / name).stat().st_size for name in staged.meta.files)


def _copy_path(staged: Staged, parent: Path) -> Path:
    """The path in `parent` of the copy that this job has on this node."""
    return parent / f"{copy_prefix()}{staged.digest}"


def _not_copied(staged: Staged, reason: str) -> str:
    return f"{host.node_name()} reads {staged.folder} without a copy on its local disk: {reason}"


def _is_complete(folder: Path) -> bool:
    return (folder / "meta.json").exists()


def _copy(staged: Staged, notify: Callable[[str], None], folder: Path) -> None:
    """Copy the files and verify their digests; `meta.json` comes last."""
    began, size = time.perf_counter(), _size_bytes(staged)
    with show_progress(f"{host.node_name()}: copying {staged.folder.name}", size, unit="bytes") as advance:
        for name, digest in staged.meta.files.items():
            with open(staged.folder / name, "rb") as source, open(folder / name, "wb") as target:
                while chunk := source.read(CHUNK_BYTES):
                    target.write(chunk)
                    advance(len(chunk))
            if file_digest(folder / name) != digest:
                if file_digest(staged.folder / name) != digest:
                    raise DataError(
                        f"{staged.folder / name} has changed since it was staged: "
                        f"remove {staged.folder / 'meta.json'} and {STAGE}"
                    )
                raise OSError(f"{folder / name} differs from what was written to it")
    shutil.copyfile(staged.folder / "meta.json", folder / ".meta.json")
    (folder / ".meta.json").rename(folder / "meta.json")
    took = time.perf_counter() - began
    place = f"{host.node_name()}:{folder}"
    notify(f"copied {staged.folder.name} to {place} in {took:.1f} s ({size / 2**20:,.0f} MiB)")
