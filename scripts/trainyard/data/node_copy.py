"""Copies of staged datasets on a node's local disk: one per node, shared by all processes of the job."""

import os
import shutil
import time
from collections.abc import Callable, Iterator
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
    parent, message = choose_local_folder(staged, policy)
    if parent is None:
        yield LocalCopy(staged, message)
        return
    path = _copy_path(staged, parent)
    messages = list[str]()
    with ExitStack() as stack:
        try:
            shared = node_folders.shared_folder(
                path,
                is_complete=lambda folder: (folder / "meta.json").exists(),
                fill=partial(_copy, staged, messages.append),
            )
            stack.enter_context(shared)
        except OSError as error:
            yield LocalCopy(staged, _not_copied(staged, str(error)))
            return
        yield LocalCopy(Staged(path), "".join(messages), time.perf_counter() - began)


def choose_local_folder(staged: Staged, policy: str) -> tuple[Path | None, str]:
    """The folder to copy to, or None and a message with the reason (empty if no copy is requested)."""
    if policy == "off" or not staged.meta.files:
        return None, ""
    if policy == "auto":
        source_kind = host.file_system_type(staged.folder)
        if "SLURM_JOB_ID" not in os.environ or not host.is_network_file_system(source_kind):
            return None, ""
    folders = candidate_folders(policy)
    for folder in folders:
        if _copy_path(staged, folder).exists():  # made, or being made: its space is no longer free
            return folder, ""
    size = _size_bytes(staged)
    reasons = []
    for folder in folders:
        kind = host.file_system_type(folder)
        needed = 1.1 * size + MARGIN_BYTES
        if policy == "auto" and host.is_network_file_system(kind):
            reasons.append(f"{folder} is on {kind}")
            continue
        if host.is_in_memory(kind):
            memory = slurm_allocation.available_memory_bytes()
            needed = size
            if size > MEMORY_FRACTION * memory:
                share = f"{MEMORY_FRACTION:.0%} of the {memory / 2**30:,.1f} GiB that this job has"
                reasons.append(f"{folder} is in host memory, and {size / 2**30:,.1f} GiB are more than {share}")
                continue
        if shutil.disk_usage(folder).free >= needed:
            return folder, ""
        reasons.append(f"{folder} has too little space")
    return None, _not_copied(staged, "; ".join(reasons) or f"{policy} is not writable")


def _size_bytes(staged: Staged) -> int:
    return sum((staged.folder / name).stat().st_size for name in staged.meta.files)


def _copy_path(staged: Staged, parent: Path) -> Path:
    """The path in `parent` of the copy that this job has on this node."""
    return parent / f"{copy_prefix()}{staged.digest}"


def _not_copied(staged: Staged, reason: str) -> str:
    return f"{host.node_name()} reads {staged.folder} without a copy on its local disk: {reason}"


def _copy(staged: Staged, notify: Callable[[str], None], folder: Path) -> None:
    """Copy the files and verify their digests; `meta.json` comes last."""
    began = time.perf_counter()
    size = _size_bytes(staged)
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
