"""The files that a config names: the sources of datasets and users' scripts."""

import csv
import os
import re
import shlex
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from trainyard.checks.findings import Finding, Verdict
from trainyard.config.datasets import Dataset, ImageFolder, Table, Torchvision
from trainyard.config.placeholders import Command
from trainyard.config.scaling import Scaling
from trainyard.config.sweep import Sweep
from trainyard.data.known_images import KnownImages
from trainyard.programs.user_environment import SCRIPT
from trainyard.utils.files import expand_path
from trainyard.utils.text import suggest

_SHELL: Final = re.compile(r"[;|&$<>()`\n]")  # a command that may change folders or make files
_INTERPRETER: Final = re.compile(r"python[\d.]*|(ba)?sh")
_CODE_OPTION: Final = re.compile(r"-[a-z]*[cm]|--module")  # followed by a module or code, not by a script


def check_source(place: str, dataset: Dataset, known: KnownImages, *, has_scheduler: bool) -> Finding:
    """Whether the source of a dataset is there, and a table has its target."""
    if known.is_staged:
        return Finding(place, "ok", ", ".join(filter(None, ["staged", str(known)])))
    match dataset:
        case Table():
            return _check_table(place, dataset, has_scheduler=has_scheduler)
        case ImageFolder(root=str(root)) | Torchvision(root=str(root)) if not expand_path(root).exists():
            verdict = _absent(expand_path(root), has_scheduler=has_scheduler)
            return Finding(f"{place}.root", verdict, f"{root}: no such file or folder", _remedy(root))
    if known.shape and known.outputs and known.training_images:
        return Finding(place, "ok", f"not staged yet: {known}")
    message = f"{f'{known}; ' if str(known) else ''}the rest is known once its images are staged"
    return Finding(place, "unknown", message, "Snakemake's target `data` stages them")


def _absent(path: Path, *, has_scheduler: bool) -> Verdict:
    """A warning if only the nodes of a cluster may have a file: not even the folder below `/` is on this machine."""
    return "warns" if has_scheduler and path.is_absolute() and not Path(*path.parts[:2]).exists() else "fails"


def _remedy(path: Path | str) -> str:
    """The folder of a relative path: the present one, as for Snakemake and its programs."""
    return (
        ""
        if Path(path).is_absolute()
        else f"a relative path begins in the folder where Snakemake runs: here {Path.cwd()}"
    )


def _check_table(place: str, dataset: Table, *, has_scheduler: bool) -> Finding:
    path = expand_path(dataset.path)
    try:
        columns = _columns(path)
    except FileNotFoundError:
        return Finding(
            f"{place}.path", _absent(path, has_scheduler=has_scheduler), f"{path}: no such file", _remedy(path)
        )
    except (OSError, ValueError, csv.Error) as error:
        reason = " ".join(str(error).split())
        return Finding(f"{place}.path", "fails", f"{path}: is not a readable {path.suffix[1:]} file ({reason})")
    if dataset.target not in columns:
        message = f"{path} has no column {dataset.target!r}"
        return Finding(f"{place}.target", "fails", message, suggest(dataset.target, columns))
    return Finding(place, "ok", f"{path}: {len(columns)} columns, of which {dataset.target!r} is the target")


def _columns(path: Path) -> Sequence[str]:
    """The names of a table's columns."""
    if path.suffix == ".parquet":
        from trainyard.data.table import parquet_columns  # takes a tenth of a second to import

        return parquet_columns(path)
    with open(path, encoding="utf-8-sig", newline="") as file:
        return next((row for row in csv.reader(file) if row), [])


def check_script(place: str, study: Sweep | Scaling, *, has_scheduler: bool, dry_run: bool) -> Iterator[Finding]:
    """Whether the script that a study starts exists, if its command names it.

    It is a warning if another program gets the path as an argument: it may be one in a container, or of an output.
    """
    key, command = ("command", study.command) if isinstance(study, Sweep) else ("script", study.script)
    found = _find_script(_words(command))
    if found is None:
        return
    place, (path, is_started) = f"{place}.{key}", found
    if Path(path).expanduser().exists():
        yield Finding(place, "ok", f"{path} is there")
    else:
        is_sure = is_started and not (has_scheduler and dry_run)
        verdict = _absent(Path(path), has_scheduler=has_scheduler) if is_sure else "warns"
        yield Finding(place, verdict, f"{path}: no such file", _remedy(path))


def _words(command: Command | None) -> list[str]:
    """The words of a command; none if only a shell can split it."""
    if not isinstance(command, str):
        return command or []
    line = command.replace("\\\n", " ").strip()  # without continued lines
    try:
        return [] if _SHELL.search(line) else shlex.split(line)
    except ValueError:
        return []


def _find_script(words: Sequence[str]) -> tuple[str, bool] | None:
    """The first word that looks like a script, and whether the command itself starts it; None if that is not clear."""
    number = next((number for number, word in enumerate(words) if word.endswith(SCRIPT)), None)
    if number is None:
        return None
    path, before = words[number], [word for word in words[:number] if word != "-u"]
    if "{" in path or path.startswith("-") or any(map(_CODE_OPTION.fullmatch, before)):
        return None
    if not before:
        return None if os.sep not in path and shutil.which(path) else (path, True)  # one on PATH is there
    return path, len(before) == 1 and _INTERPRETER.fullmatch(Path(before[0]).name) is not None
