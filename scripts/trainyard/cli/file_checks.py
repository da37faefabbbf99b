"""The files that a config names: the sources of datasets and users' scripts."""

import csv
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from trainyard.config.datasets import Dataset, ImageFolder, Table, Torchvision
from trainyard.config.scaling import Scaling
from trainyard.config.sweep import Sweep
from trainyard.config.user_programs import Command
from trainyard.data.known_images import KnownImages
from trainyard.doctor.findings import Finding, Verdict
from trainyard.utils.files import expand_path
from trainyard.utils.text import suggest

_SHELL: Final = re.compile(r"[;|&$<>()`\n]")  # a command that may change folders or make files
_SCRIPT: Final = (".py", ".sh")


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
    message = f"{f'{known}; ' if str(known) else ''}what else its images are is known once they are staged"
    return Finding(place, "unknown", message, "`snakemake data` stages them")


def _absent(path: Path, *, has_scheduler: bool) -> Verdict:
    """A warning if only the nodes of a cluster may have a file: not even the folder below `/` is on this machine."""
    return "warns" if has_scheduler and path.is_absolute() and not Path(*path.parts[:2]).exists() else "fails"


def _remedy(path: Path | str) -> str:
    return "" if Path(path).is_absolute() else "a relative path begins in the folder where snakemake runs"


def _check_table(place: str, dataset: Table, *, has_scheduler: bool) -> Finding:
    path = Path(dataset.path)
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
        from pyarrow.parquet import read_schema  # takes a tenth of a second to import

        return [str(name) for name in read_schema(path).names]
    with open(path, encoding="utf-8-sig", newline="") as file:
        return next((row for row in csv.reader(file) if row), [])


def check_script(place: str, study: Sweep | Scaling, *, has_scheduler: bool, dry_run: bool) -> Iterator[Finding]:
    """Whether the script that a study starts is there, if its command tells its path."""
    key = "command" if isinstance(study, Sweep) else "script"
    path = _script_of(study.command) if isinstance(study, Sweep) else _script_of(study.script, first=True)
    if path is None:
        return
    if Path(path).expanduser().exists():
        yield Finding(f"{place}.{key}", "ok", f"{path} is there")
    else:
        verdict = "warns" if has_scheduler and dry_run else _absent(Path(path), has_scheduler=has_scheduler)
        yield Finding(f"{place}.{key}", verdict, f"{path}: no such file", _remedy(path))


def _script_of(command: Command | None, *, first: bool = False) -> str | None:
    """The script in a command: its first word, or the first one that ends as scripts do; None if that is not clear."""
    line = command.replace("\\\n", " ").strip() if isinstance(command, str) else ""  # without continued lines
    if command is None or _SHELL.search(line):
        return None
    try:
        words = shlex.split(line) if isinstance(command, str) else command
    except ValueError:
        return None
    found = words[:1] if first else [word for word in words if word.endswith(_SCRIPT)]
    if not found or "{" in found[0] or found[0].startswith("-"):
        return None
    before = words[: words.index(found[0])]  # behind the script, they are its own options
    if {"-m", "-c"} & {*before}:
        return None
    return found[0]
