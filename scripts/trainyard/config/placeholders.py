"""Commands of users: their placeholders, such as `{lr}` and `{args}`, checked and replaced by quoted values."""

import json
import re
import shlex
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import PurePath
from typing import Annotated, Any, Final

from pydantic import Field

from trainyard.config.arithmetic import evaluate
from trainyard.config.train import ABSENT, invalid, value_at
from trainyard.utils import shell_syntax
from trainyard.utils.errors import UserError

Command = str | Annotated[list[str], Field(min_length=1)]
_NAME: Final = r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*"
_TERM: Final = rf"\(*(?:{_NAME}|\d[\d.]*(?:e-?\d+)?)\)*"
# A name, or arithmetic as in {64*gpus}, where a minus needs spaces, since {a-b} is text; but not ${HOME}, which the
# shell expands.
PLACEHOLDER: Final = re.compile(
    rf"(?<!\$)\{{(args:[a-z]+|{_NAME}|(?=[^{{}}]*[A-Za-z_]){_TERM}(?:(?: ?(?:\*\*?|//?|\+) ?| - ){_TERM})+)\}}"
)
SHELL: Final = "bash"  # dash, the `sh` of Debian, has no pipefail
TRIAL_DIR: Final = "TRAINYARD_TRIAL_DIR"  # the variable with the folder of a trial
# Placeholders that a command may use beside its arguments, with a value of their type.
TRIAL_PLACEHOLDERS: Final[Mapping[str, Any]] = {
    "trial_dir": "", "trial": "", "attempt": 1, "resume_from": "", "dataset": "", "cpus": 1
}  # fmt: skip
# A free port, and the number of GPUs, unless an argument has this name.
PORT = "port"
GPUS = "gpus"
SCALE_PLACEHOLDERS: Final[Mapping[str, Any]] = {
    "out_dir": "", "resume_from": "", "nodes": 1, "gpus": 1, "gpus_per_node": 1, "cpus_per_gpu": 1, "dataset": "",
    "seed": 0, PORT: 1,
}  # fmt: skip
# What Hydra reads as text without quotes, unless it is one of the words after that.
_HYDRA_TEXT: Final = re.compile(r"[A-Za-z_/][\w/.-]*", re.ASCII)
_HYDRA_CONSTANTS: Final = ("true", "false", "null", "inf", "nan")


@dataclass(frozen=True)
class Switch:
    """The words of a command line that turn an option of a program on and off, or how it takes a list."""

    on: tuple[str, ...]
    off: tuple[str, ...]  # () if the option is off when it is left out
    repeats: bool = False  # for a list, the option comes before each value


SwitchOf = Callable[[str], Switch | None]  # of an option such as --amp; None if its words are not certain


def _uncertain(flag: str) -> None:
    """What is known of the options of a program that was not read."""


def takes_all(name: str, args: Collection[str]) -> bool:
    """Whether a placeholder stands for all arguments: `{args}`, unless it is the name of one, or `{args:hydra}`."""
    return name in STYLES and name not in args


def check_all_arguments(command: Command, args: Collection[str]) -> None:
    """Raise a PydanticCustomError if a placeholder for all arguments has an unknown style or is only part of a word."""
    for part in [command] if isinstance(command, str) else command:
        for placeholder in PLACEHOLDER.finditer(part) if "{args" in part else ():
            if placeholder[1].startswith("args:") and placeholder[1] not in STYLES:
                styles = ", ".join(f"{{{style}}}" for style in STYLES)
                raise invalid(f"there is no {placeholder[0]}; known: {styles}")
            beside = part[: placeholder.start()][-1:] + part[placeholder.end() :][:1]
            if takes_all(placeholder[1], args) and beside.strip(_SEPARATORS if isinstance(command, str) else ""):
                raise invalid(f"{placeholder[0]} is several words: write no other text beside it")


_SEPARATORS: Final = " \t\n;|&()<>"


def is_arithmetic(placeholder: str) -> bool:
    """Whether it is an expression, and not a name or a style such as `args:hydra`."""
    return re.search(r"[+*/]| - ", placeholder) is not None


def find_placeholders(command: Command) -> set[str]:
    """The names of all placeholders of a command, also those within arithmetic."""
    return set[str]().union(*map(_names, [command] if isinstance(command, str) else command))


@lru_cache(maxsize=256)  # called for each trial
def _names(part: str) -> frozenset[str]:
    names = set[str]()
    for placeholder in PLACEHOLDER.findall(part):
        names.update(re.findall(rf"(?<![\w.]){_NAME}", placeholder) if is_arithmetic(placeholder) else [placeholder])
    return frozenset(names)


def check_quoting(command: Command, *, in_shell: bool = True) -> Command:
    """The command; raises a PydanticCustomError if it cannot run as it is meant.

    A placeholder is in a context where quoting does not work, or in the script of a list `[bash, -c, script]`, whose
    words are not quoted; it may be the whole script. Or a shell would take an option for a command. Without a shell, an
    operator of one would be an argument.
    """
    script = _script_index(command) if isinstance(command, list) else None
    part = PLACEHOLDER.search(command[script]) if script is not None else None
    if part and part[0] != part.string:
        problem = f"{part[0]} is in the script of a shell's -c, and the shell would interpret its value"
        remedy = "write the command as text instead of a list, since Trainyard quotes the values of text"
        raise invalid(f"{problem}: {remedy}")
    if not in_shell and isinstance(command, str):
        try:
            shlex.split(command)
        except ValueError as error:
            raise invalid(str(error).lower()) from None
        words = shlex.split(command, posix=False)  # with their quotes
        if operator := next(filter(_OPERATOR.fullmatch, words), None):
            raise invalid(f"{operator} would be an argument of the script, which runs without a shell: remove it")
    if in_shell and isinstance(command, str) and (options := _parse(command).options):
        raise invalid(_OPTION_LINE.format(option=options[0]))
    for name, where in _parse(command).placeholders if isinstance(command, str) else ():
        if where in _REMEDIES and (in_shell or where in _IN_WORDS):
            raise invalid(f"{{{name}}} is in {where}: {_REMEDIES[where].format(name=f'{{{name}}}')}")
    return command


_NO_QUOTES: Final = (
    "write {name} without quotes, since Trainyard quotes values; literal braces need a space, as in '{{ x }}'"
)
_OPTION_LINE: Final = (
    "the shell would take {option} for a command, since it begins a line: in YAML, indent all lines after `>` alike, "
    "or end the line before it with a backslash after `|`"
)
_OPERATOR: Final = re.compile(r"[|&;]+|[&\d]*>.*")  # as in `2>&1 | tee log.txt`
_ASSIGN: Final = "assign it to a variable first, as in x={name}, and write $x there"
_IN_WORDS: Final = (shell_syntax.SINGLE_QUOTES, shell_syntax.DOUBLE_QUOTES, shell_syntax.ESCAPED)
_REMEDIES: Final = {
    shell_syntax.SINGLE_QUOTES: _NO_QUOTES,
    shell_syntax.ANSI_QUOTES: _NO_QUOTES,
    shell_syntax.DOUBLE_QUOTES: _NO_QUOTES,
    shell_syntax.ESCAPED: "write {name} without the backslash, since Trainyard quotes values",
    shell_syntax.BACKTICKS: "write $(...) instead of backticks",
    shell_syntax.HERE_DOCUMENT: _ASSIGN,
    shell_syntax.COMMENT: "remove it there",
}


_PREDEFINED: Final = re.compile(r"(?<!\$)\{(\w+)\}")  # in a value, where ${...} is of a shell, or of Hydra


@cache
def _parse(command: str) -> shell_syntax.CommandLine:
    return shell_syntax.parse_command(command, PLACEHOLDER)


def check_values(command: Command, args: Mapping[str, Any], predefined: Mapping[str, Any]) -> None:
    """Raise a ValueError if a placeholder or arithmetic has no value, or a shell would not take one as it is.

    In an arithmetic expansion, $((...)), it must be a number. A value with a placeholder, which is not replaced, is an
    error, too.
    """
    for key, text in dotted_items(args):
        names = _PREDEFINED.findall(text) if isinstance(text, str) else []
        if name := next(filter(predefined.__contains__, names), None):
            remedy = "write it in the command, or let the program run in its own folder by `workdir: trial`"
            raise invalid(f"{key}: {{{name}}} is not replaced within a value: {remedy}")
    values = make_values(command, args, predefined, lambda flag: Switch((flag,), ()))
    parts = [command] if isinstance(command, str) else command
    for name in sorted({each for part in parts for each in PLACEHOLDER.findall(part)}):
        try:
            values(name)
        except KeyError:
            raise ValueError(f"{{{name}}} has no value here: give one, or write {{args}} instead") from None
    for name, where in _parse(command).placeholders if isinstance(command, str) else ():
        value = values(name)
        if where == shell_syntax.ARITHMETIC and type(value) not in (int, float):
            remedy = _ASSIGN.format(name=f"{{{name}}}")
            raise ValueError(f"{{{name}}} is in {where}, but {value!r} is not a number: {remedy}")


def _script_index(words: list[str]) -> int | None:
    """The index of the script in a list such as `[bash, -c, script]`, if there is one.

    It is the first word after the options of the shell. In `[bash, train.sh, -c, value]`, -c is an option of train.sh.
    """
    shell = next((index for index, word in enumerate(words) if PurePath(word).name in shell_syntax.SHELLS), len(words))
    options = shell_syntax.shell_options(words[shell + 1 :])
    index = shell + 1 + len(options)
    has_script = any(map(shell_syntax.CODE_OPTION.fullmatch, options)) and index < len(words)
    return index if has_script else None


def check_resume_option(command: Command, option: str | None, args: Collection[str], *, in_shell: bool) -> None:
    """Raise a PydanticCustomError if the option to resume cannot be added to the command."""
    if "resume" in find_placeholders(option or ""):
        raise invalid("`resume` cannot contain {resume}")
    try:
        words_of_option = shlex.split(option or "")
    except ValueError as error:
        raise invalid(f"`resume`: {str(error).lower()}") from None
    if _has_place(command, args):
        words = command if isinstance(command, list) else []
        if any("resume" in find_placeholders(word) and word != "{resume}" for word in words):
            raise invalid("in a list, {resume} must be a word of its own")
    elif option is not None and in_shell and isinstance(command, str) and (operators := _parse(command).operators):
        raise invalid(f"`resume` cannot be added at the end, after {operators[0]}: write {{resume}} in the command")
    elif words_of_option and in_shell and _ends_in_script(command):
        raise invalid("`resume` cannot be added after the script of a shell's -c: write the script itself as `command`")


def _ends_in_script(command: Command) -> bool:
    """Whether the last word is the script of `bash -c`, which would take an option after it for its own name."""
    try:
        words = command if isinstance(command, list) else shlex.split(command)
    except ValueError:  # the quotes of a here-document or comment
        return False
    return _script_index(words) == len(words) - 1


def insert_resume_option(command: Command, option: str | None, args: Collection[str]) -> Command:
    """The command with the option to resume in place of `{resume}` or at its end; without an option, with neither.

    The line break with which a block of YAML ends is not part of the option. If an argument is called `resume`,
    `{resume}` stands for that argument.
    """
    option = option.strip() if option else None
    if isinstance(command, list):
        words = shlex.split(option or "")
        if not _has_place(command, args):
            return [*command, *words]
        return [each for word in command for each in (words if word == "{resume}" else [word])]
    if _has_place(command, args):
        return _RESUME.sub(lambda found: f"{found[1]}{option}" if option else "", command)
    return f"{command.rstrip()} {option}" if option else command


def _has_place(command: Command, args: Collection[str]) -> bool:
    return "resume" in find_placeholders(command) and "resume" not in args


_RESUME: Final = re.compile(r"([ \t]*)(?<!\$)\{resume\}")


def build_argv(
    command: Command,
    args: Mapping[str, Any],
    predefined: Mapping[str, Any] | None = None,
    *,
    in_shell: bool = True,
    switch_of: SwitchOf = _uncertain,
) -> list[str]:
    """The argument vector of a command whose placeholders are replaced by their values, as in `make_values`.

    Text runs in bash, with its values quoted: a pipe fails if any of its programs does. Without a shell, it is split
    into words as a shell would split it. `switch_of` says how `{args}` writes true and false.

    Raises:
        KeyError: a placeholder has no value.
        UserError: `{args}` has false for an option that cannot be turned off for certain.
    """
    values = make_values(command, args, predefined or {}, switch_of)
    if isinstance(command, list):
        return [word for part in command for word in _fill_in(part, values)]
    line = PLACEHOLDER.sub(lambda name: _quote(values(name[1])), command)
    return [SHELL, "-o", "pipefail", "-c", line] if in_shell else shlex.split(line)


def _fill_in(part: str, values: Callable[[str], Any]) -> list[str]:
    """The words of one part of a command that is a list."""
    whole = PLACEHOLDER.fullmatch(part)
    if whole and isinstance(found := values(whole[1]), Words):
        return found
    return [PLACEHOLDER.sub(lambda name: format_argument(values(name[1])), part)]


def _quote(value: Any) -> str:
    return shlex.join(value) if isinstance(value, Words) else shlex.quote(format_argument(value))


def make_values(
    command: Command, args: Mapping[str, Any], predefined: Mapping[str, Any], switch_of: SwitchOf = _uncertain
) -> Callable[[str], Any]:
    """A function from a placeholder of a command to its value; to a KeyError if it has none.

    `{args}` has all arguments that the command does not name; a name with dots is a place in a nested mapping.
    Arithmetic whose value is whole is an integer.
    """
    named = find_placeholders(command)

    def value(name: str) -> Any:
        if is_arithmetic(name):
            try:
                number = evaluate(name, value)
            except (SyntaxError, TypeError, ArithmeticError) as error:
                raise invalid(f"{{{name}}} has no value: {error}") from None
            return int(number) if isinstance(number, int) or number.is_integer() else number
        if takes_all(name, args):
            words = Words()
            for key, argument in unnamed_items(args, named):
                words += STYLES[name](key, argument, switch_of)
            return words
        argument = value_at(args, name, value_at(predefined, name, ABSENT))
        if argument is ABSENT:
            raise KeyError(name)
        return argument

    return value


class Words(list[str]):
    """Words of a command line; any other value is one word."""


def format_argument(value: Any) -> str:
    """A value as an argument of a program: text unchanged, everything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value)


def dotted_items(mapping: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The dotted keys and values of a nested mapping."""
    for key, value in mapping.items():
        if isinstance(value, Mapping):
            yield from dotted_items(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def unnamed_items(args: Mapping[str, Any], named: Collection[str]) -> Iterator[tuple[str, Any]]:
    """The dotted keys and values that `{args}` stands for: those of which a command with these names has none."""
    for key, value in dotted_items(args):
        if not any(f"{key}.".startswith(f"{name}.") for name in named):
            yield key, value


def _options(key: str, value: Any, switch_of: SwitchOf) -> list[str]:
    """`--key value`; null is nothing, so that the program's default holds; a list is several words.

    True and false are the words that turn the option on and off; true is the option alone if they are not certain.
    """
    if value is None:
        return []
    if isinstance(value, bool):
        switch = switch_of(f"--{key}")
        if switch is None and not value:
            raise UserError(FALSE_IS_UNCERTAIN.format(flag=f"--{key}", key=key))
        if switch is None:
            return [f"--{key}"]
        return list(switch.on if value else switch.off)
    if isinstance(value, list):
        how = switch_of(f"--{key}")
        if how and how.repeats:
            return [word for each in value for word in _options(key, each, switch_of)]
        return [f"--{key}", *map(format_argument, value)]
    text = format_argument(value)
    return [f"--{key}={text}"] if text.startswith("-") else [f"--{key}", text]  # -1e-05 looks like an option


# `null` says that the option is left out; words in a list of values say how it is written.
FALSE_IS_UNCERTAIN: Final = (
    "it is not certain how {flag} is turned off: write `null` for false if it is off unless it is given, "
    "or the words of your program for both as values of `{key}`, and {{{key}}} in the command"
)


def _hydra_value(value: Any) -> str:
    """A value in the grammar of Hydra's overrides."""
    if isinstance(value, str):
        if _HYDRA_TEXT.fullmatch(value) and value.lower() not in _HYDRA_CONSTANTS:
            return value
        # In single quotes, Hydra reads backslashes as escapes only before a quote.
        return "'" + re.sub(r"(\\*)('|\Z)", lambda end: 2 * end[1] + ("\\'" if end[2] else ""), value) + "'"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{_hydra_value(key)}:{_hydra_value(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_hydra_value, value)) + "]"
    if isinstance(value, float):  # `inf`, not JSON's `Infinity`; of 1e-05, YAML 1.1 makes a text
        return re.sub(r"^(-?\d)e", r"\1.0e", repr(value))
    return json.dumps(value)


STYLES: Final[Mapping[str, Callable[[str, Any, SwitchOf], list[str]]]] = {
    "args": _options,  # --batch_size 64
    "args:dashes": lambda key, value, switch_of: _options(key.replace("_", "-"), value, switch_of),  # --batch-size 64
    "args:hydra": lambda key, value, switch_of: [f"{key}={_hydra_value(value)}"],  # batch_size=64
}
ALL_ARGUMENTS: Final = frozenset(f"{{{style}}}" for style in STYLES)
