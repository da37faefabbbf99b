"""Command lines to paste, derived from the command line of this run."""

import shlex
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final

from trainyard.utils.typed_commands import as_typed, own_program, program_as_typed

OF_CONFIG: Final = ("--configfile", "--configfiles", "--config", "-C")  # each takes several values


def call_again(argv: Sequence[str], *options: str) -> str:
    """The command of this run with further options."""
    end = argv.index("--") if "--" in argv else len(argv)
    return f"{_program(argv[0])} {shlex.join([*argv[1:end], *options, *argv[end:]])}"


def call_with_config(argv: Sequence[str], config: Path, *targets: str, but: Collection[str] = ()) -> str:
    """The command of this run with another config file and other targets; `but` are the targets of this run."""
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
    """The program of a command line as one would type it."""
    if Path(path).name == "__main__.py":
        return f"{own_program('python')} -m snakemake"
    return program_as_typed(Path(path)) if Path(path).is_absolute() else shlex.quote(path)
