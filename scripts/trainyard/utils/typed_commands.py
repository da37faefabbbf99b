"""Programs and paths in messages, as one would type them in the shell that started this run."""

import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

DEFAULT_CONFIG: Final = Path("trainyard.yaml")  # in the working directory
AS_JSON: Final = "TRAINYARD_JSON"  # the variable that is set if a dry run prints JSON
TYPED: Final = "TRAINYARD_TYPED"  # the variable with the command line of `trainyard` that has started this process


def typed_argv() -> Sequence[str]:
    """The command line of this run, as it was typed."""
    return shlex.split(os.environ.get(TYPED, "")) or sys.argv


def absent_config(path: Path) -> str:
    """That there is no config, and where one comes from."""
    if path != DEFAULT_CONFIG:
        return f"{path}: there is no such file"
    init = trainyard_call("init", "train.py")
    return f"there is no {path} in {Path.cwd()}: `{init}` writes one for a script; `--config` names another"


def shell_folder() -> Path:
    """The folder of the shell that started this run. Snakemake may have left it (`--directory`).

    PWD may also be from another machine, or removed since.
    """
    return path if (path := Path(os.environ.get("PWD") or Path.cwd())).is_dir() else Path.cwd()


def as_typed(path: Path) -> str:
    """A path, from the folder of the shell that started this run if it is below it."""
    start = shell_folder()
    return str(path.absolute().relative_to(start) if path.absolute().is_relative_to(start) else path.absolute())


def program_as_typed(path: Path) -> str:
    """A program: its name if it is on PATH, or else its path. Trainyard's own environment need not be activated."""
    found = Path(shutil.which(path.name) or "")
    is_on_path = path in (found, found.readlink() if found.is_symlink() else found)  # uv and pipx link to programs
    return shlex.quote(path.name if is_on_path else as_typed(path))


def installed_program(name: str) -> str:
    """A program of the environment that this process runs in, such as `snakemake`; only its name if it is not there.

    Jobs may run in another environment than Snakemake.
    """
    path = Path(sys.executable).with_name(name)
    return program_as_typed(path) if path.exists() else name


def trainyard_call(verb: str, *words: str) -> str:
    """A command of Trainyard with its options."""
    return shlex.join(["trainyard", verb, *words])


def run_call(config: Path, *words: str) -> str:
    """The command that runs a config on this machine, in the folder of this run, with further words for Snakemake."""
    if not shell_folder().samefile(Path.cwd()):
        words = ("--directory", as_typed(Path.cwd()), *words)
    named = [] if config == DEFAULT_CONFIG else ["--config", as_typed(config)]
    return trainyard_call("run", *named, *words)
