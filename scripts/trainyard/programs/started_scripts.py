"""The Python scripts that a command starts, itself, through a launcher or a container, or from a script of a shell."""

import os
import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import dropwhile
from pathlib import Path, PurePath
from typing import Final, NamedTuple

from trainyard.config.placeholders import Command
from trainyard.programs.script_source import is_file
from trainyard.utils.shell_syntax import CODE_OPTION, SHELLS, shell_options

_OPERATOR: Final = re.compile(r"[;&|()<>\n]+")
_ASSIGNMENT: Final = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_PYTHON: Final = re.compile(r"i?python[\d.]*")
# What starts a script with options of its own before it.
_LAUNCHERS: Final = (
    "torchrun", "accelerate", "deepspeed", "horovodrun", "composer", "fabric",
    "torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch",
)  # fmt: skip
# What may come before a script that is started by its name.
_WRAPPERS: Final = ("srun", "mpirun", "mpiexec", "env", "timeout", "nice", "numactl", "stdbuf", "source", ".", "uv")
_PARALLEL: Final = ("srun", "mpirun", "mpiexec")
_KEYWORDS: Final = ("then", "do", "else", "if", "!", "{", "time", "exec", "export", "nohup")
_NO_TRAINING: Final = ("pip", "venv")
_PRINTS: Final = ("echo", "printf", "which", "type")
_ALL_WORDS: Final = ("$@", "$*", "${@}", "${*}", "${@:1}")
_CODE: Final = re.compile(r"-[a-zA-Z]*c")  # of Python
_COMMENT: Final = re.compile(r"""(?P<quoted>'[^']*'|"(?:\\.|[^"\\])*"|\\.)|(?<!\S)#.*""")
_EXPANDED: Final = re.compile(r"[${}`]")  # by the shell, or by Trainyard


@dataclass(frozen=True)
class ShellLine:
    """A line of a command, or of a script of a shell that a command starts."""

    path: Path | None  # of the script; None for the command itself
    number: int
    text: str  # without a comment
    options: tuple[str, ...] = ()  # of the shell that runs the script


@dataclass(frozen=True)
class StartedScript:
    """A Python script that a command starts."""

    path: Path
    words: tuple[str, ...]  # its arguments, with their placeholders
    roots: tuple[Path, ...] = ()  # where its modules may be, beside its own folder
    variables: Mapping[str, str] = field(default_factory=dict)  # that the command sets
    where: str = ""  # the line of the file of commands, as in "jobs.txt, line 3"


@dataclass(frozen=True)
class CommandContents:
    """What a command starts, as far as it can be read."""

    scripts: tuple[StartedScript, ...]
    lines: tuple[ShellLine, ...]
    absent: tuple[tuple[str, bool, str], ...]  # scripts that are not there, whether the command starts them, and where
    file: Path | None = None  # of commands

    def mentions(self, name: str) -> bool:
        """Whether a line of the command, or of a script that it starts, has this text."""
        texts = [line.text for line in self.lines]
        texts += [script.path.read_text(encoding="utf-8", errors="replace") for script in self.scripts]
        return any(name in text for text in texts)


class _SimpleCommand(NamedTuple):
    """A command of a shell, without keywords before it, and the variables that it sets."""

    words: list[str]
    variables: dict[str, str]

    @classmethod
    def of(cls, tokens: list[str]) -> "_SimpleCommand":
        """The command of all of its tokens."""
        words = list(dropwhile(lambda word: word in _KEYWORDS, tokens))
        variables = dict[str, str]()
        while words and (match := _ASSIGNMENT.fullmatch(words[0])):
            variables[match[1]] = match[2]
            words = words[1:]
        return cls(words, variables)


def find_started(command: Command, start: Path, *, file: str | None = None) -> CommandContents:
    """What a command starts that runs in the folder `start`; the lines of a `file` of commands are one each."""
    lines = [ShellLine(None, 1, shlex.join(command))] if isinstance(command, list) else _split_lines(command)
    readers = list[_ShellReader]()
    for part in [[line] for line in lines] if file else [lines]:
        readers.append(_ShellReader(f"{file}, line {part[0].number}" if file else ""))
        readers[-1].read(part, start)
    return CommandContents(
        tuple(script for reader in readers for script in reader.scripts),
        tuple(line for reader in readers for line in reader.lines),
        # Other commands may change the folder or make the script.
        tuple(absent for reader in readers if reader.command_count == 1 for absent in reader.absent),
        Path(file) if file else None,
    )


def starts_program(text: str) -> bool:
    """Whether a line for a shell starts a Python script or module, or a program through a launcher."""
    reader = _ShellReader()
    reader.read([ShellLine(None, 1, text)], Path())
    return reader.starts_program


class _ShellReader:
    """Reads texts for a shell: their lines, and the Python scripts that they start."""

    def __init__(self, where: str = "") -> None:
        self._where = where
        self.lines: list[ShellLine] = []
        self.scripts: list[StartedScript] = []
        self.absent: list[tuple[str, bool, str]] = []
        self.command_count = 0
        self.starts_program = False

    def read(self, lines: Sequence[ShellLine], folder: Path, *, passed: Sequence[str] | None = None) -> None:
        """Read a command, or a script; `passed` are the words that the script got, None in a command."""
        self.lines += lines
        variables = dict[str, str]()
        where: Path | None = folder
        for command in map(_SimpleCommand.of, split_commands("\n".join(line.text for line in lines))):
            words = command.words
            self.command_count += bool(words)
            if not words:
                variables |= command.variables
            elif words[0] == "cd":
                is_known = where is not None and len(words) == 2 and not _EXPANDED.search(words[1])
                where = where / words[1] if where and is_known else None
            elif where and words[0] not in _PRINTS:
                self._read_command(words, where, variables | command.variables, passed)

    def _read_command(
        self, words: list[str], folder: Path, variables: dict[str, str], passed: Sequence[str] | None
    ) -> None:
        first = PurePath(words[0]).name
        is_wrapped = first in _WRAPPERS
        if first in _PARALLEL or first in _LAUNCHERS:
            self.starts_program = True
        for index, word in enumerate(words):
            name = PurePath(word).name
            is_first = index == 0 or is_wrapped
            rest = words[index + 1 :]
            absent = ""
            if name in SHELLS and rest:
                options = shell_options(rest)
                rest = rest[len(options) :]
                if rest and any(map(CODE_OPTION.fullmatch, options)):
                    self.read(_split_lines(rest[0]), folder, passed=rest[2:])
                elif rest and passed is None:
                    absent = self._read_shell_script(rest, folder, options)
            elif word.endswith(".sh") and is_first:
                if passed is None:  # scripts within scripts are not followed
                    absent = self._read_shell_script(words[index:], folder, None)
            elif _PYTHON.fullmatch(name) or name in _LAUNCHERS or (word.endswith(".py") and is_first):
                absent = self._read_python(words[index:], folder, variables, passed)
            else:
                continue
            if absent and passed is None:
                self.absent.append((absent, index == 0, self._where))
            return

    def _read_shell_script(self, words: list[str], folder: Path, options: list[str] | None) -> str:
        """Read a script of a shell; returns its name if it is absent.

        `options` are those of the shell, None if the script is started by its name.
        """
        path = folder / words[0]
        try:
            text = path.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            is_on_path = "/" not in words[0] and shutil.which(words[0])
            return "" if is_on_path or _EXPANDED.search(words[0]) else words[0]
        except OSError:  # the shell will say it
            return ""
        if options is None:
            options = text.partition("\n")[0].split()
        self.read(_split_lines(text, path, tuple(options)), folder, passed=words[1:])
        return ""

    def _read_python(
        self, words: list[str], folder: Path, variables: dict[str, str], passed: Sequence[str] | None
    ) -> str:
        """Read the words of `python` or of a launcher; returns the name of a script that is absent."""
        script, is_module, rest = _find_script(words)
        if script and script not in _NO_TRAINING:
            self.starts_program = True
        if not script or _EXPANDED.search(script):
            return ""
        roots = [folder] if is_module else []
        roots += [folder / part for part in variables.get("PYTHONPATH", "").split(":") if part and "$" not in part]
        files = [folder / os.path.expanduser(script)]  # noqa: PTH111  (pathlib fails for an unknown user)
        if is_module:
            parts = script.replace(".", "/")
            files = [root / name for root in roots for name in (f"{parts}.py", f"{parts}/__main__.py")]
        path = next(filter(is_file, files), None)
        if path is None:
            return "" if is_module else script
        arguments = list[str]()
        for word in rest:
            arguments += [word] if passed is None or word not in _ALL_WORDS else passed
        self.scripts.append(StartedScript(path, tuple(arguments), tuple(roots), variables, self._where))
        return ""


def _split_lines(text: str, path: Path | None = None, options: tuple[str, ...] = ()) -> list[ShellLine]:
    """The lines of a text for a shell; one that a backslash continues is one line."""
    lines = list[ShellLine]()
    number = 1
    for line in re.split(r"(?<!\\)\n", text):
        plain = _COMMENT.sub(lambda match: match["quoted"] or "", line.replace("\\\n", " "))
        lines.append(ShellLine(path, number, plain, options))
        number += line.count("\n") + 1
    return lines


def split_commands(text: str) -> list[list[str]]:
    """The words of each simple command of a text for a shell without comments, up to quotes that only it can follow."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars=";&|()<>\n")
    lexer.whitespace = " \t\r"
    lexer.whitespace_split = True
    lexer.commenters = ""
    commands = [list[str]()]
    is_target = False
    with suppress(ValueError):
        for token in lexer:
            if is_target:
                is_target = False
            elif not _OPERATOR.fullmatch(token):
                commands[-1].append(token)
            elif "<" in token or ">" in token:
                is_target = True
            else:
                commands.append([])
    return commands


def _find_script(words: list[str]) -> tuple[str, bool, list[str]]:
    """The script or module that these words start, whether it is a module, and the words after it; "" without one."""
    for index, word in enumerate(words):
        rest = words[index + 1 :]
        if word.endswith(".py"):
            return word, False, rest
        if word in ("-m", "--module") and rest and rest[0] not in _LAUNCHERS:
            return rest[0], True, rest[1:]
        if _CODE.fullmatch(word):
            break
    return "", False, []
