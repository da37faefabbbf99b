"""Checks of the files and programs that a config names: sources of datasets, scripts, programs and environments."""

import csv
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Generic, TypeVar

from trainyard.checks.findings import Finding, Verdict
from trainyard.config.datasets import Dataset, ImageFolder, Table, Torchvision
from trainyard.config.placeholders import SHELL, Command
from trainyard.config.scaling import Scaling, ScriptScaling
from trainyard.config.sweep import CommandSweep, Sweep
from trainyard.config.user_programs import CommandOptions, Study
from trainyard.data.known_images import KnownImages
from trainyard.programs.user_environment import SCRIPT, find_interpreter, program_environment, script_interpreter
from trainyard.scaling.launchers import LAUNCHER_MODULES
from trainyard.utils.errors import UserError
from trainyard.utils.files import expand_path
from trainyard.utils.text import suggest

_OF_PYTHON: Final = re.compile(r"python[\d.]*|torchrun|accelerate|deepspeed")
_PLAIN: Final = re.compile(r"[\w./+@%-]+")  # without placeholders, variables and operators
_REMEDY: Final = "activate your environment, or name it by `env:`"
_ASSIGNMENT: Final = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)


S = TypeVar("S", bound=Study)


@dataclass(frozen=True)
class CheckedStudy(Generic[S]):
    """A sweep or scaling study, its place in the config, and what is known of its images and of where it will run."""

    place: str
    study: S
    images: KnownImages = field(default_factory=KnownImages)
    has_scheduler: bool = False  # it is a warning if a file is absent that only the nodes of a cluster may have
    dry_run: bool = False  # which may plan for another machine: with a scheduler, it may have scripts and environments
    may_be_elsewhere: bool = False  # programs, on other nodes or in a container

    @property
    def absent(self) -> Verdict:
        """The verdict on what is absent here."""
        return "warns" if self.has_scheduler and self.dry_run else "fails"


# ---- datasets


def check_source(place: str, dataset: Dataset, images: KnownImages, *, has_scheduler: bool) -> Finding:
    """Whether the source of a dataset is there, and a table has its target."""
    if images.is_staged:
        return Finding(place, "ok", ", ".join(filter(None, ["staged", str(images)])))
    match dataset:
        case Table():
            return _check_table(place, dataset, has_scheduler=has_scheduler)
        case ImageFolder(root=str(root)) | Torchvision(root=str(root)) if not expand_path(root).exists():
            return missing_file(f"{place}.root", root, "no such file or folder", has_scheduler=has_scheduler)
    if images.shape and images.outputs and images.training_images:
        return Finding(place, "ok", f"not staged yet: {images}")
    message = "; ".join(filter(None, [str(images), "the rest is known once its images are staged"]))
    return Finding(place, "unknown", message, "Snakemake's target `data` stages them")


def missing_file(place: str, file: str, problem: str, *, has_scheduler: bool, is_sure: bool = True) -> Finding:
    """A file that is not on this machine.

    It is a warning if only the nodes of a cluster may have it: not even the folder below `/` is here.
    """
    path = expand_path(file)
    is_elsewhere = has_scheduler and path.is_absolute() and not Path(*path.parts[:2]).exists()
    remedy = "" if path.is_absolute() else f"a relative path begins in this folder: {Path.cwd()}"
    return Finding(place, "fails" if is_sure and not is_elsewhere else "warns", f"{file}: {problem}", remedy)


def _check_table(place: str, dataset: Table, *, has_scheduler: bool) -> Finding:
    path = expand_path(dataset.path)
    try:
        if path.suffix == ".parquet":
            from trainyard.data.table import parquet_columns  # takes a tenth of a second to import

            columns: Sequence[str] = parquet_columns(path)
        else:
            with open(path, encoding="utf-8-sig", newline="") as file:
                columns = next((row for row in csv.reader(file) if row), [])
    except FileNotFoundError:
        return missing_file(f"{place}.path", str(path), "no such file", has_scheduler=has_scheduler)
    except (OSError, ValueError, csv.Error) as error:
        reason = " ".join(str(error).split())
        return Finding(f"{place}.path", "fails", f"{path}: is not a readable {path.suffix[1:]} file ({reason})")
    if dataset.target not in columns:
        message = f"{path} has no column {dataset.target!r}"
        return Finding(f"{place}.target", "fails", message, suggest(dataset.target, columns))
    return Finding(place, "ok", f"{path}: {len(columns)} columns, of which {dataset.target!r} is the target")


# ---- programs and environments


def check_program(checked: CheckedStudy[CommandSweep]) -> Iterator[Finding]:
    """Whether the program that a command starts is there; nothing if that is not clear from its first word."""
    sweep = checked.study
    place = f"{checked.place}.command"
    absent: Verdict = "warns" if checked.may_be_elsewhere else "fails"
    try:
        environment = program_environment(find_interpreter(sweep))
    except UserError:  # another finding reports it
        return
    command = sweep.command
    path = environment.get("PATH")
    if isinstance(command, str) and shutil.which(SHELL, path=path) is None:
        message = f"there is no {SHELL} on your PATH, which runs a command that is text"
        yield Finding(place, "fails", message, "a list of words needs none")
    elif name := _absent_program(command, environment):
        if os.sep in name and Path(name).exists():
            yield Finding(place, absent, f"{name}: is not executable", "`chmod +x` makes it so")
        elif os.sep not in name or not name.endswith(SCRIPT):  # `check_script_source` looks for scripts
            yield Finding(place, absent, f"{name}: no such program on the PATH of the command", _REMEDY)


def check_notify(command: str) -> Iterator[Finding]:
    """Whether the program that sends notifications is here."""
    if name := _absent_program(command, os.environ):
        yield Finding("notify", "fails", f"{name}: no such program on your PATH", "it runs where you start Snakemake")


def _absent_program(command: Command, environment: Mapping[str, str]) -> str:
    """The program that a command starts if it is not there; "" if it is, or if its first word does not show it."""
    name = _first_word(command)
    if not _PLAIN.fullmatch(name) or shutil.which(name, path=environment.get("PATH")):
        return ""
    line = [SHELL, "-c", 'type -- "$1"', SHELL, name]  # bash knows its own commands and the user's functions
    is_known = isinstance(command, str) and not subprocess.run(line, env=environment, capture_output=True).returncode
    return "" if is_known else name


def check_environment(checked: CheckedStudy[CommandOptions]) -> Iterator[Finding]:
    """Whether a program's environment has an interpreter, and for a distributed script its launcher."""
    study = checked.study
    place = checked.place
    try:
        interpreter = find_interpreter(study)
        package = ""
        if isinstance(study, ScriptScaling):
            interpreter = script_interpreter(study)
            package = (LAUNCHER_MODULES.get(study.launcher_name) or "").partition(".")[0]
        line = [
            str(interpreter),
            "-c",
            f"import importlib.util, sys; sys.exit(not importlib.util.find_spec({package!r}))",
        ]
        environment = program_environment(find_interpreter(study))
        if package and subprocess.run(line, env=environment, capture_output=True, check=False).returncode:
            yield Finding(f"{place}.launcher", checked.absent, f"{interpreter} does not have {package}", _REMEDY)
        elif interpreter is not None:
            yield Finding(f"{place}.env", "ok", f"{interpreter} runs it")
    except UserError as error:
        yield Finding(f"{place}.env", checked.absent, str(error))


def describe_environment(study: Sweep | Scaling) -> str:
    """Which Python a command or script runs with, for messages, as in `; python is /home/me/env/bin/python`; or ""."""
    try:
        name = "python"
        path = None
        if isinstance(study, ScriptScaling):
            path = script_interpreter(study)
        elif isinstance(study, CommandSweep):
            name = _first_word(study.command)
            if _OF_PYTHON.fullmatch(name):
                program = shutil.which(name, path=program_environment(find_interpreter(study)).get("PATH"))
                if program is None:
                    return f"; there is no {name} on your PATH: activate your environment, or name it by env"
                path = Path(program)
    except UserError as error:
        return f"; {error}"
    if path is None:
        return ""
    is_own = path.parent == Path(sys.executable).parent
    return f"; {name} is Trainyard's own" if is_own else f"; {name} is {path}"


def _first_word(command: Command) -> str:
    """The program of a simple command, after assignments of variables; "" if it is not known."""
    if isinstance(command, list):
        return next(iter(command), "")
    with suppress(ValueError):  # quotes that only a shell understands
        for word in shlex.split(command):
            if not _ASSIGNMENT.fullmatch(word):
                return word
            if "=(" in word:  # an array of bash
                break
    return ""
