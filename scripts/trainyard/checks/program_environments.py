"""The environments of users' programs: checked before anything is submitted, and named in the plan."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from trainyard.checks.findings import Finding, Verdict
from trainyard.config.config import Config
from trainyard.config.placeholders import SHELL, Command
from trainyard.config.scaling import Scaling
from trainyard.config.sweep import Sweep
from trainyard.programs.user_environment import SCRIPT, find_interpreter, program_environment, script_interpreter
from trainyard.scaling.launchers import LAUNCHER_MODULES
from trainyard.utils.errors import UserError

_OF_PYTHON: Final = re.compile(r"python[\d.]*|torchrun|accelerate|deepspeed")
_PLAIN: Final = re.compile(r"[\w./+@%-]+")  # without placeholders, variables and operators
_REMEDY: Final = "activate your environment, or name it by `python:` or `env:`"
_ASSIGNMENT: Final = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)


def check_interpreters(config: Config) -> None:
    """Raise a UserError if an environment that a sweep or study names has no interpreter; it lists all of them."""
    errors = []
    for place, study in config.studies():
        try:
            find_interpreter(study)
        except UserError as error:
            errors.append(f"  {place}.{'env' if study.env else 'python'}: {error}")
    if errors:
        raise UserError("\n".join(["environments of your programs:", *errors]))


def check_environment(
    place: str, study: Sweep | Scaling, *, absent: Verdict, may_be_elsewhere: bool
) -> Iterator[Finding]:
    """Whether a program's environment has an interpreter, the program, and for a distributed script its launcher.

    What is missing gets the verdict `absent`; a program is a warning if it may be on other nodes or in a container.
    """
    if (study.command if isinstance(study, Sweep) else study.script) is None:
        return
    if isinstance(study, Sweep):
        yield from _check_program(f"{place}.command", study, absent="warns" if may_be_elsewhere else "fails")
    key = "env" if study.env else "python"
    try:
        found = find_interpreter(study) if isinstance(study, Sweep) else script_interpreter(study)
        module = LAUNCHER_MODULES.get(study.launcher) if isinstance(study, Scaling) else None
        if isinstance(study, Scaling) and module and not _has_module(study, package := module.partition(".")[0]):
            yield Finding(f"{place}.launcher", absent, f"{found} does not have {package}", _REMEDY)
        elif found is not None:
            yield Finding(f"{place}.{key}", "ok", f"{found} runs it")
    except UserError as error:
        yield Finding(f"{place}.{key}", absent, str(error))


def _check_program(place: str, sweep: Sweep, *, absent: Verdict) -> Iterator[Finding]:
    """Whether the program that a command starts is there; nothing if that is not clear from its first word."""
    try:
        environment = program_environment(find_interpreter(sweep))
    except UserError:  # another finding says so
        return
    command, path = sweep.command or "", environment.get("PATH")
    if isinstance(command, str) and shutil.which(SHELL, path=path) is None:
        message = f"there is no {SHELL} on your PATH, which runs a command that is text"
        yield Finding(place, "fails", message, "a list of words needs none")
    elif _PLAIN.fullmatch(name := _first_word(command)) and not shutil.which(name, path=path):
        line = [SHELL, "-c", 'type -- "$1"', SHELL, name]  # bash knows its own commands and the user's functions
        if isinstance(command, str) and not subprocess.run(line, env=environment, capture_output=True).returncode:
            return
        if os.sep in name and Path(name).exists():
            yield Finding(place, absent, f"{name}: is not executable", "`chmod +x` makes it so")
        elif os.sep not in name or not name.endswith(SCRIPT):  # `check_script` looks for scripts
            yield Finding(place, absent, f"{name}: no such program on the PATH of the command", _REMEDY)


def describe_environment(study: Sweep | Scaling) -> str:
    """Which Python a command or script runs with, for messages, as in `; python: /home/me/env/bin/python`; or ""."""
    try:
        return _describe(study)
    except UserError as error:
        return f"; {error}"


def _describe(study: Sweep | Scaling) -> str:
    if isinstance(study, Scaling):
        return _where("python", script_interpreter(study)) if study.script is not None else ""
    name = "" if study.command is None else _first_word(study.command)
    if not _OF_PYTHON.fullmatch(name):
        return ""
    found = shutil.which(name, path=program_environment(find_interpreter(study)).get("PATH"))
    if found is None:
        return f"; there is no {name} on your PATH: activate your environment, or name it by python or env"
    return _where(name, Path(found))


def _where(name: str, path: Path) -> str:
    is_own = path.parent == Path(sys.executable).parent
    return f"; {name}: Trainyard's own" if is_own else f"; {name}: {path}"


def _first_word(command: Command) -> str:
    """The program of a simple command, after assignments of variables; "" if it is not known."""
    words = command if isinstance(command, list) else []
    with suppress(ValueError):  # quotes that only a shell understands
        words = words or [word for word in shlex.split(str(command)) if not _ASSIGNMENT.fullmatch(word)]
    return words[0] if words else ""


def _has_module(study: Scaling, name: str) -> bool:
    program = "import importlib.util, sys; sys.exit(importlib.util.find_spec(sys.argv[1]) is None)"
    command = [str(script_interpreter(study)), "-c", program, name]
    environment = program_environment(find_interpreter(study))
    return not subprocess.run(command, env=environment, capture_output=True, check=False).returncode
