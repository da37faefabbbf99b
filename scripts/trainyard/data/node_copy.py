"""The copy of a staged dataset on a node's own disk: made once per node, shared by all processes of the job there."""

import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from trainyard.cluster import held_folders, host
from trainyard.cluster.held_folders import candidate_folders, copy_prefix
from trainyard.data.staged import DataError, Staged
from trainyard.utils.files import file_digest

MARGIN_BYTES: Final = 2**30  # that a disk must have free beyond the copy and a tenth of it
MEMORY_SHARE: Final = 0.25  # of what is free on a file system that is memory, at most


@dataclass
class LocalCopy:
    """What a process reads its data from."""

    staged: Staged
    words: str = ""  # what there is to say: that it was copied just now, or why it was not
    seconds: float = 0.0  # spent on copying, or on waiting for another process that did


@contextmanager
def local_copy(staged: Staged, policy: str) -> Iterator[LocalCopy]:
    """Have the dataset on this node's own disk for the length of the block, or say why the shared files are read.

    `policy` is `off`, the folder to use, or `auto`: in a Slurm job, for data on a network file system.

    Raises:
        DataError: the staged files are not what was staged.
    """
    began = time.perf_counter()
    base, words = choose(staged, policy, os.environ)
    if base is None:
        yield LocalCopy(staged, words)
        return
    path, made = base / f"{copy_prefix()}{staged.digest}", list[str]()
    with ExitStack() as stack:
        try:
            fill = partial(_copy, staged, made.append)
            stack.enter_context(held_folders.shared_folder(path, is_complete=_is_complete, fill=fill))
        except OSError as error:
            yield LocalCopy(staged, _not_copied(staged, str(error)))
            return
        yield LocalCopy(Staged(path), "".join(made), time.perf_counter() - began)


def choose(
    staged: Staged,
    policy: str,
    environment: Mapping[str, str],
    *,
    kind_of: Callable[[Path], str] = host.file_system_type,
    free: Callable[[Path], int] = lambda path: shutil.disk_usage(path).free,
) -> tuple[Path | None, str]:
    """Where to copy to, or None and what there is to say about it."""
    if policy == "off" or not staged.meta["files"]:
        return None, ""
    if policy == "auto" and (
        "SLURM_JOB_ID" not in environment or not host.is_network_file_system(kind_of(staged.folder))
    ):
        return None, ""
    need = sum((staged.folder / name).stat().st_size for name in staged.meta["files"])
    reasons = []
    for base in candidate_folders(policy, environment):
        kind = kind_of(base)
        if policy == "auto" and host.is_network_file_system(kind):
            reasons.append(f"{base} is on {kind}")
        elif not _has_room(free(base), need, kind):
            reasons.append(f"{base} has too little room")
        else:
            return base, ""
    return None, _not_copied(staged, "; ".join(reasons) or f"{policy} cannot be written to")


def _not_copied(staged: Staged, why: str) -> str:
    return f"{host.node_name()} reads {staged.folder} itself, without a copy on its own disk: {why}"


def _has_room(free: int, need: int, kind: str) -> bool:
    """A file system that is memory counts against the job's own: only for what is small there."""
    if kind in ("tmpfs", "ramfs"):
        return need <= MEMORY_SHARE * free
    return free >= 1.1 * need + MARGIN_BYTES


def _is_complete(folder: Path) -> bool:
    return (folder / "meta.json").exists()


def _copy(staged: Staged, say: Callable[[str], None], folder: Path) -> None:
    """Copy the files, each compared with the digest that it had when it was staged; `meta.json` comes last."""
    began, size = time.perf_counter(), 0
    for name, digest in staged.meta["files"].items():
        shutil.copyfile(staged.folder / name, folder / name)
        size += (folder / name).stat().st_size
        if file_digest(folder / name) != digest:
            if file_digest(staged.folder / name) != digest:
                raise DataError(f"{staged.folder / name} is not what was staged: "
                                f"remove {staged.folder / 'meta.json'} and run `snakemake data`")  # fmt: skip
            raise OSError(f"{folder / name} is not what was written to it")
    shutil.copyfile(staged.folder / "meta.json", folder / ".meta.json")
    (folder / ".meta.json").rename(folder / "meta.json")
    took = time.perf_counter() - began
    place = f"{host.node_name()}:{folder}"
    say(f"copied {staged.folder.name} to {place} in {took:.1f} s ({size / 2**20:,.0f} MiB)")
