"""Command lines to paste, made from the one of this run."""

import os
import shlex
import shutil
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final

OF_CONFIG: Final = ("--configfile", "--configfiles", "--config", "-C")  # each takes several values


def call_again(argv: Sequence[str], *options: str) -> str:
    """The command of this run with further options."""
    end = argv.index("--") if "--" in argv else len(argv)
    return f"{_program(argv[0])} {shlex.join([*argv[1:end], *options, *argv[end:]])}"


def call_with_config(argv: Sequence[str], config: Path, *targets: str, but: Collection[str] = ()) -> str:
    """The command of this run with another config file and other targets; `but` are those of this run."""
    words, is_value = list[str](), False
    for word in argv[1:]:
        if word == "--":
            break
        if word.startswith("-"):
            is_value = word.partition("=")[0] in OF_CONFIG
        if not is_value and word not in but:
            words.append(word)
    return f"{_program(argv[0])} {shlex.join([*words, '--configfile', as_typed(config), '--', *targets])}"


def _program(path: str) -> str:
    """A program as one would type it: its name if it is on PATH."""
    if Path(path).name == "__main__.py":
        return "python -m snakemake"
    if not Path(path).is_absolute():
        return shlex.quote(path)
    return shlex.quote(Path(path).name if shutil.which(Path(path).name) == path else as_typed(Path(path)))


def as_typed(path: Path) -> str:
    """A path, from the folder of the shell that started this run if it is below it. Snakemake may have left it."""
    start = os.environ.get("PWD", str(Path.cwd()))
    return str(path.absolute().relative_to(start) if path.absolute().is_relative_to(start) else path.absolute())
