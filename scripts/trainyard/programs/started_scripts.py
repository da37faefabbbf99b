"""The Python scripts that a command starts, itself, through a launcher or a container, or from a script of a shell."""

import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Final

from trainyard.config.placeholders import Command
from trainyard.config.scaling import ScriptScaling
from trainyard.config.sweep import CommandSweep
from trainyard.programs.script_source import is_file

_OPERATOR: Final = re.compile(r"[;&|()<>\n]+")
_ASSIGNMENT: Final = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_PYTHON: Final = re.compile(r"i?python[\d.]*")
_SHELL: Final = re.compile(r"(ba|z|da|k)?sh")
# What starts a script with options of its own before it.
_LAUNCHERS: Final = ("torchrun", "accelerate", "deepspeed", "horovodrun", "composer", "fabric")
_LAUNCHER_MODULES: Final = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch")
# What may come before a script that is started by its name.
_WRAPPERS: Final = ("srun", "mpirun", "mpiexec", "env", "timeout", "nice", "numactl", "stdbuf", "source", ".", "uv")
_PRINTS: Final = ("echo", "printf", "which", "type")
_ALL_WORDS: Final = ("$@", "$*", "${@}", "${*}", "${@:1}")
_CODE: Final = re.compile(r"-[a-zA-Z]*c")
_VALUE_OPTIONS: Final = ("-X", "-W", "--check-hash-based-pycs")


@dataclass(frozen=True)
class ShellLine:
    """A line of a command, or of a script of a shell that a command starts."""

    path: Path | None  # of the script; None for the command itself
    number: int
    text: str


@dataclass(frozen=True)
class StartedScript:
    """A Python script that a command starts."""

    path: Path
    words: tuple[str, ...]  # its arguments, with their placeholders
    roots: tuple[Path, ...] = ()  # where its modules may be, beside its own folder


@dataclass(frozen=True)
class CommandContents:
    """What a command starts, as far as it can be read."""

    scripts: tuple[StartedScript, ...]
    lines: tuple[ShellLine, ...]


def typed_command(study: CommandSweep | ScriptScaling) -> Command:
    """The command of a sweep, or the script of a study as its launcher starts it."""
    if isinstance(study, CommandSweep):
        return study.command
    script = study.script if isinstance(study.script, list) else [study.script]
    words = script if PurePath(script[0].split()[0]).name.startswith("python") else ["python", *script]
    return words if isinstance(study.script, list) else " ".join(words)


def find_started(command: Command, start: Path) -> CommandContents:
    """What a command starts that runs in the folder `start`."""
    if isinstance(command, list):
        lines = [ShellLine(None, 1, shlex.join(command))]
        return CommandContents(tuple(_of_words(command, start, {}, lines, None)), tuple(lines))
    lines = list(_lines_of(command, None))
    return CommandContents(tuple(_of_text(command, start, lines, None)), tuple(lines))


def _lines_of(text: str, path: Path | None) -> Iterator[ShellLine]:
    """The lines of a text for a shell; one that a backslash continues is one line."""
    number = 1
    for line in re.split(r"(?<!\\)\n", text):
        yield ShellLine(path, number, line.replace("\\\n", " "))
        number += line.count("\n") + 1


def _of_text(text: str, folder: Path, lines: list[ShellLine], passed: Sequence[str] | None) -> Iterator[StartedScript]:
    """The scripts that lines for a shell start; `passed`: the words that a script of a shell got, None in a command."""
    variables = dict[str, str]()
    where: Path | None = folder
    for words in _simple_commands(text):
        while words and words[0] in ("then", "do", "else", "if", "!", "{", "time", "exec", "export", "nohup"):
            words = words[1:]
        assigned = dict[str, str]()
        while words and (match := _ASSIGNMENT.fullmatch(words[0])):
            assigned[match[1]] = match[2]
            words = words[1:]
        if not words:
            variables |= assigned
        elif words[0] == "cd":
            where = where / words[1] if where and len(words) == 2 and not re.search(r"[${}`]", words[1]) else None
        elif where:
            yield from _of_words(words, where, variables | assigned, lines, passed)


def _simple_commands(text: str) -> Iterator[list[str]]:
    """The words of the simple commands of a text for a shell; nothing of what only a shell can split."""
    lines = [line for line in text.replace("\\\n", " ").splitlines() if not line.lstrip().startswith("#")]
    try:
        yield from _split("\n".join(lines))
        return
    except ValueError:  # as by the apostrophe of a comment after a command
        pass
    for line in lines:
        with suppress(ValueError):  # quotes that go on in the next line
            yield from _split(line)


def _split(text: str) -> list[list[str]]:
    lexer = shlex.shlex(text, posix=True, punctuation_chars=";&|()<>\n")
    lexer.whitespace = " \t\r"
    lexer.whitespace_split = True
    lexer.commenters = ""
    commands, is_target, is_comment = [list[str]()], False, False
    for token in lexer:
        is_operator = _OPERATOR.fullmatch(token) is not None
        if is_operator and "\n" in token:
            is_comment = False
        if is_comment or token.startswith("#"):
            is_comment = True
        elif is_operator and not set("<>").isdisjoint(token):
            is_target = True
        elif is_operator:
            commands.append([])
        elif is_target:
            is_target = False
        else:
            commands[-1].append(token)
    return commands


def _of_words(
    words: Sequence[str], folder: Path, variables: dict[str, str], lines: list[ShellLine], passed: Sequence[str] | None
) -> Iterator[StartedScript]:
    """The script that a simple command starts."""
    if words[0] in _PRINTS:
        return
    is_wrapped = PurePath(words[0]).name in _WRAPPERS
    for number, word in enumerate(words):
        is_first = number == 0 or is_wrapped
        name, rest = PurePath(word).name, list(words[number + 1 :])
        if _SHELL.fullmatch(name) and rest:
            code = next((index for index, option in enumerate(rest) if _CODE.fullmatch(option)), None)
            if code is not None and all(option.startswith("-") for option in rest[:code]) and rest[code + 1 :]:
                yield from _of_text(rest[code + 1], folder, lines, rest[code + 3 :])
                return
            options = [option for option in rest if option.startswith("-")]
            rest = rest[len(options) :]
            if rest and rest[0].endswith(".sh"):
                yield from _of_shell_script(folder / rest[0], rest[1:], folder, lines, passed)
            return
        if word.endswith(".sh") and is_first:
            yield from _of_shell_script(folder / word, rest, folder, lines, passed)
            return
        if _PYTHON.fullmatch(name) or name in _LAUNCHERS or (word.endswith(".py") and is_first):
            yield from _of_python(list(words[number:]), folder, variables, passed)
            return


def _of_shell_script(
    path: Path, words: Sequence[str], folder: Path, lines: list[ShellLine], passed: Sequence[str] | None
) -> Iterator[StartedScript]:
    if passed is not None:  # one level
        return
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:  # the shell will say it
        return
    lines += _lines_of(text, path)
    yield from _of_text(text, folder, lines, words)


def _of_python(
    words: list[str], folder: Path, variables: dict[str, str], passed: Sequence[str] | None
) -> Iterator[StartedScript]:
    """The script after `python` or a launcher, with the words after it."""
    script, is_module, rest = _split_python(words)
    if script is None or re.search(r"[${}`]", script):
        return
    roots = [folder] if is_module else []
    roots += [folder / part for part in variables.get("PYTHONPATH", "").split(":") if part and "$" not in part]
    path: Path | None = None
    with suppress(RuntimeError):  # ~ of a user who does not exist
        path = folder / Path(script).expanduser()
    if is_module:
        parts = script.replace(".", "/")
        files = [root / name for root in roots for name in (f"{parts}.py", f"{parts}/__main__.py")]
        path = next(filter(is_file, files), None)
    if path is None or not is_file(path):
        return
    used = rest
    if passed is not None:  # in a script of a shell
        used = [inner for word in rest for inner in (passed if word in _ALL_WORDS else [word])]
    yield StartedScript(path, tuple(used), tuple(roots))


def _split_python(words: list[str]) -> tuple[str | None, bool, list[str]]:
    """The script or module that these words start, whether it is a module, and the words after it."""
    if words[0].endswith(".py"):
        return words[0], False, words[1:]
    is_launcher = PurePath(words[0]).name in _LAUNCHERS
    index = 1
    while index < len(words):
        word = words[index]
        if word in ("-m", "--module") and index + 1 < len(words):
            module = words[index + 1]
            if not is_launcher and module in _LAUNCHER_MODULES:
                is_launcher = True
                index += 2
                continue
            return module, True, words[index + 2 :]
        if not is_launcher and _CODE.fullmatch(word):
            return None, False, []
        if word.endswith(".py"):
            return word, False, words[index + 1 :]
        if not is_launcher and word in _VALUE_OPTIONS:
            index += 1
        elif not is_launcher and not word.startswith("-"):
            return word, False, words[index + 1 :]
        index += 1
    return None, False, []
