"""Options of the programs that users bring, as trials of a sweep or as the training of a scaling study."""

import re
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from difflib import get_close_matches
from functools import cache, lru_cache
from pathlib import PurePath
from typing import Annotated, Any, Final, Literal

from pydantic import Field, StringConstraints, model_validator
from pydantic_core import PydanticCustomError

from trainyard.config.arguments import STYLES, Words, format_argument, list_words
from trainyard.config.train import Name, Section, Train
from trainyard.utils import shell_syntax
from trainyard.utils.files import digest_of

Command = str | Annotated[list[str], Field(min_length=1)]
DottedPath = Annotated[str, StringConstraints(pattern=r"^[\w.]+:\w+$")]
PLACEHOLDER: Final = re.compile(
    r"(?<!\$)\{(args:[a-z]+|[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)\}"
)  # but not ${HOME}, which the shell expands

# The regular expression that replaces `{number}` in a pattern of metrics. It is a group, so that a quantifier after it
# applies to all of it. The quantifiers of its digits are possessive: with backtracking, the time to find that nothing
# matches would grow with the cube of the number of digits.
NUMBER: Final = r"(?:[+-]?(?:(?:\d++(?:\.\d*+)?|\.\d++)(?:[eE][+-]?\d++)?|(?i:nan|inf(?:inity)?)(?![A-Za-z]))(?: ?%)?)"
_IN_PATTERN: Final = re.compile(r"(?<!\\)\{number\}")
_SEPARATED: Final = re.compile(r"\d+(?:[,_]\d+)+")  # 2,466
_BRACES: Final = re.compile(r"(?<!\\)\{(?!number\})([A-Za-z]\w*)\}")  # text in braces, no quantifier
GRACE_SECONDS: Final = 30.0  # Slurm's and torchrun's default between SIGTERM and SIGKILL: a checkpoint of several GB

# Placeholders that a command may use beside its arguments.
TRIAL_PLACEHOLDERS = ("trial_dir", "trial", "attempt", "resume_from", "dataset", "cpus")
SHELL: Final = "bash"  # dash, the `sh` of Debian, has no pipefail
PORT: Final = "port"  # the same, unless an argument has this name
SCALE_PLACEHOLDERS = ("out_dir", "resume_from", "nodes", "gpus", "gpus_per_node", "cpus_per_gpu", "dataset", "seed")


class UserProgram(Section):
    """A command or a Python function with the arguments of one trial."""

    command: Command | None = None
    function: str | None = None
    args: dict[str, Any] = {}


class Metrics(Section):
    """Where Trainyard finds the metrics of a program: rows of numbers by name.

    A row without `epoch` gets the number of the row. Consecutive rows of the same epoch count as one, with the last
    value of each metric, so let the pattern for a progress bar include the epoch. With `stop`, a trial's first epoch is
    compared when its second begins. Up to 300 rows are recorded at once, then one per second; of the others, only the
    latest is kept. The last value of each metric is always kept. Only the first 16,384 characters of a line are
    searched, without escape codes such as colors.
    """

    file: str | None = Field(
        None,
        description="File that the program writes, relative to the program's folder (`{trial_dir}` in a sweep, "
        "`{out_dir}` in a scaling study). `.jsonl`: one row per line; `.csv`: with a header; `.json`: a row or a list "
        "of rows.",
        pattern=r"\.(jsonl|json|csv)$",
    )
    pattern: str | Annotated[list[str], Field(min_length=1)] | None = Field(
        None,
        description="Regular expressions that are applied to each line of output, with a named group per metric, e.g. "
        "`val_acc=(?P<val_accuracy>{number})`. `{number}` matches numbers with sign and exponent, `nan` and `inf`; a "
        "number followed by `%` is divided by 100. A row is complete when every group has matched.",
    )

    sample: str | Annotated[list[str], Field(min_length=1)] | None = Field(
        None,
        exclude=True,  # it changes no result
        description="With `pattern`: one or more lines of your program's output, e.g. `epoch 3: val_acc=91.2%`. Each "
        "pattern must match in one of them, which is checked before anything is submitted.",
    )

    @model_validator(mode="after")
    def _check_source(self) -> "Metrics":
        if (self.file is None) == (self.pattern is None):
            raise PydanticCustomError("metrics", "give either file or pattern")
        if self.sample is not None and self.pattern is None:
            raise PydanticCustomError("metrics", "sample is for pattern: a file is read by its format")
        for pattern in self.patterns:
            try:
                re.compile(pattern)  # as it was written, for the position in an error
                groups = _compile(pattern).groupindex
            except re.error as error:
                message = "{pattern} is not a regular expression: {error}"
                raise PydanticCustomError("metrics", message, {"pattern": pattern, "error": str(error)}) from None
            if not groups:
                message = "{pattern} names no metric: write a group as {group}"
                group = "(?P<val_accuracy>{number})"
                raise PydanticCustomError("metrics", message, {"pattern": pattern, "group": group})
            if typo := next((name for name in _BRACES.findall(pattern) if get_close_matches(name, ["number"])), None):
                message = "{typo} would match only these very characters; did you mean {number}?"
                raise PydanticCustomError("metrics", message, {"typo": f"{{{typo}}}", "number": "{number}"})
        return self

    @model_validator(mode="after")
    def _check_sample(self) -> "Metrics":
        lines = self.sample_lines
        for pattern in self.patterns if lines else ():
            if not any(_compile(pattern).search(line) for line in lines):
                message = "{pattern} matches nothing in the sample, {lines}{place}"
                content = {"pattern": pattern, "lines": "; ".join(lines), "place": find_mismatch(pattern, lines)}
                raise PydanticCustomError("metrics", message, content)
        return self

    @property
    def sample_lines(self) -> list[str]:
        """The lines of the sample, as the pattern would be applied to them."""
        texts = [self.sample] if isinstance(self.sample, str) else self.sample or []
        return [line.strip() for text in texts for line in text.splitlines() if line.strip()]

    @property
    def patterns(self) -> list[str]:
        """The patterns as a list; empty if a file is read."""
        return [self.pattern] if isinstance(self.pattern, str) else self.pattern or []

    @property
    def numbers_rows(self) -> bool:
        """Whether the rows of a pattern without a group `epoch` get their numbers."""
        return bool(self.patterns) and not any("epoch" in pattern.groupindex for pattern in self.compiled)

    @property
    def compiled(self) -> list[re.Pattern[str]]:
        """The patterns as compiled regular expressions."""
        return [_compile(pattern) for pattern in self.patterns]

    @property
    def digest(self) -> str:
        """A digest that changes when a program's output must be parsed again."""
        return digest_of([self.file, self.patterns], length=10)


def metrics_digest(metrics: Metrics | None) -> str:
    """The digest of a section `metrics`; "" if there is none."""
    return metrics.digest if metrics else ""


def _compile(pattern: str) -> re.Pattern[str]:
    return re.compile(_IN_PATTERN.sub(lambda _: NUMBER, pattern))


def find_mismatch(pattern: str, lines: Collection[str]) -> str:
    """Up to where a pattern matches one of the lines, none of which it matches as a whole; "" if nowhere."""
    for end in range(len(pattern) - 1, 0, -1):
        try:
            beginning = _compile(pattern[:end])
        except re.error:  # within a group, say
            continue
        found = [match for line in lines if (match := beginning.search(line)) and match[0].strip()]
        if found:
            numbers = ((each, number[0]) for each in found for number in _SEPARATED.finditer(each.string)
                       if number.start() < each.end() < number.end())  # fmt: skip
            hint = next((f"; {{number}} ends at the `{each.string[each.end()]}` of {number}: have the program print "
                         "numbers without it" for each, number in numbers), "")  # fmt: skip
            return f": it matches up to {pattern[:end]}, but not the rest, {pattern[end:]}{hint}"
    return ""


class TrainingSection(Section):
    """A dataset and a training configuration, as in sweeps and scaling studies."""

    dataset: Name | None = Field(None, description="One of `datasets`. Optional for your own program.")
    train: Train = Field(Train(), description="The training configuration.")
    tensorboard: bool = Field(
        False, description="Write event files for TensorBoard of this study. At the top of the config: of all studies."
    )


class ProgramOptions(Section):
    """Options of a program that takes the place of `train`."""

    args: dict[str, Any] = Field({}, description="Arguments of your own program; `{lr}` stands for the argument `lr`.")
    metrics: Metrics | None = Field(
        None, description="Where your program reports metrics such as `val_accuracy` or `images_per_second`."
    )
    checkpoint: str | None = Field(
        None,
        description="Glob pattern of the checkpoints in the program's folder (`{trial_dir}` or `{out_dir}`), e.g. "
        "`*.pt`. `{resume_from}` is the newest one, or empty. If an attempt that resumed from it fails, the next one "
        "gets the checkpoint before it, and the one after that none.",
    )
    resume: str | None = Field(
        None,
        description="Option that is added to the command if there is a checkpoint, e.g. `--resume {resume_from}`: in "
        "place of `{resume}`, or at the end.",
    )
    grace_seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)] = Field(
        GRACE_SECONDS,
        description="Grace period between SIGTERM and SIGKILL when your program must end: the time to write a "
        "checkpoint.",
    )
    python: str | None = Field(
        None,
        description="Python of another environment than the one in which you start Snakemake: its interpreter, or the "
        "folder of the environment, whose programs are then first on PATH. `trainyard`: the one that runs Trainyard.",
    )
    env: str | None = Field(
        None, description="The same for a conda environment, by its name or its folder, which is activated."
    )
    workdir: Literal["keep", "trial"] = Field(
        "keep",
        description="Folder in which your program runs. `keep`: the one in which you start Snakemake; `trial`: a "
        "folder of its own, `{trial_dir}` or `{out_dir}`.",
    )

    @model_validator(mode="after")
    def _check_environment(self) -> "ProgramOptions":
        if self.python is not None and self.env is not None:
            raise PydanticCustomError("environment", "give python or env, not both")
        return self

    def find_names(self, command: Command) -> set[str]:
        """The names of all placeholders in a command and in the option to resume, up to the first dot."""
        used = find_placeholders(command) | find_placeholders(self.resume or "")
        return {name.partition(".")[0] for name in used}

    def check_resume(self, command: Command, args: Collection[str], *, in_shell: bool = True) -> None:
        """Raise a PydanticCustomError if the command cannot resume with these options."""
        if "resume_from" in self.find_names(command) and self.checkpoint is None:
            raise PydanticCustomError("resume", "`resume_from` needs `checkpoint`, a pattern of files such as *.pt")
        _check_resume_option(command, self.resume, args, in_shell=in_shell)
        if self.resume is not None and (isinstance(command, str) or not in_shell):
            check_quoting(self.resume, in_shell=in_shell)


def takes_all(name: str, args: Collection[str]) -> bool:
    """Whether a placeholder stands for all arguments: `{args}`, unless it is the name of one, or `{args:hydra}`."""
    return name in STYLES and name not in args


def check_all_arguments(command: Command, args: Collection[str]) -> None:
    """Raise a PydanticCustomError if a placeholder for all arguments has an unknown style or is only part of a word."""
    for part in [command] if isinstance(command, str) else command:
        for found in PLACEHOLDER.finditer(part) if "{args" in part else ():
            content = {"name": found[0], "styles": ", ".join(f"{{{style}}}" for style in STYLES)}
            if found[1].startswith("args:") and found[1] not in STYLES:
                raise PydanticCustomError("args", "there is no {name}; known: {styles}", content)
            beside = part[: found.start()][-1:] + part[found.end() :][:1]
            if takes_all(found[1], args) and beside.strip(_SEPARATORS if isinstance(command, str) else ""):
                raise PydanticCustomError("args", "{name} is several words: write no other text beside it", content)


_SEPARATORS: Final = " \t\n;|&()<>"


def describe_unused(names: Sequence[str], program: str) -> str:
    """The error for arguments that a program (`the command`) does not name."""
    verb, belongs = ("is", "it belongs") if len(names) == 1 else ("are", "they belong")
    placeholders = " ".join(f"{{{name}}}" for name in names)
    return f"{', '.join(names)} {verb} not in {program}: write {placeholders} where {belongs}, or {{args}}"


def find_placeholders(command: Command) -> set[str]:
    """The names of all placeholders of a command."""
    return set[str]().union(*map(_names, [command] if isinstance(command, str) else command))


@lru_cache(maxsize=256)  # called for each trial
def _names(part: str) -> frozenset[str]:
    return frozenset(PLACEHOLDER.findall(part))


def check_quoting(command: Command, *, in_shell: bool = True) -> Command:
    """The command; raises a PydanticCustomError if it cannot run as it is meant.

    A placeholder is in a context where quoting does not work, or a shell would take an option for a command. Without a
    shell, an operator of one would be an argument.
    """
    if not in_shell and isinstance(command, str):
        try:
            shlex.split(command)
        except ValueError as error:
            raise PydanticCustomError("quoting", "{error}", {"error": str(error).lower()}) from None
        words = shlex.split(command, posix=False)  # with their quotes
        if operator := next(filter(_OPERATOR.fullmatch, words), None):
            message = "{operator} would be an argument of the script, which runs without a shell: remove it"
            raise PydanticCustomError("quoting", message, {"operator": operator})
    if in_shell and isinstance(command, str) and (options := _parse(command).options):
        raise PydanticCustomError("quoting", "{message}", {"message": _OPTION_LINE.format(option=options[0])})
    for name, where in _parse(command).placeholders if isinstance(command, str) else ():
        if where in _REMEDIES and (in_shell or where in _IN_WORDS):
            message = f"{{{name}}} is in {where}: {_REMEDIES[where].format(name=f'{{{name}}}')}"
            raise PydanticCustomError("quoting", "{message}", {"message": message})
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


@cache
def _parse(command: str) -> shell_syntax.CommandLine:
    try:
        return shell_syntax.parse_command(command, PLACEHOLDER)
    except RecursionError:
        raise PydanticCustomError("quoting", "its quotes and parentheses are nested too deeply") from None


def check_arithmetic(command: Command, values: Callable[[str], Any]) -> None:
    """Raise a ValueError if the value of a placeholder in an arithmetic expansion, $((...)), is not a number."""
    for name, where in _parse(command).placeholders if isinstance(command, str) else ():
        if where == shell_syntax.ARITHMETIC and type(value := values(name)) not in (int, float):
            remedy = _ASSIGN.format(name=f"{{{name}}}")
            raise ValueError(f"{{{name}}} is in {where}, but {value!r} is not a number: {remedy}")


def check_list_values(command: Command, values: Callable[[str], Any]) -> None:
    """Raise a ValueError if a shell would not take a value in the script of `[bash, -c, script]` as it is.

    In a list, values are not quoted.
    """
    script = _script_index(command) if isinstance(command, list) else None
    for name, where in _parse(command[script]).placeholders if script is not None else ():
        text = format_argument(values(name))
        if not _UNSAFE.get(where, _UNSAFE_UNQUOTED).search(text):
            continue
        raise ValueError(
            f"{{{name}}} is in the script of a shell's -c, in which the shell would interpret {text!r}: write the "
            "command as text instead of a list, since Trainyard quotes the values of text"
        )


def _script_index(words: list[str]) -> int | None:
    """The index of the script in a list such as `[bash, -c, script]`, if there is one.

    It is the first word after the options of the shell. In `[bash, train.sh, -c, value]`, -c is an option of train.sh.
    """
    shell = next((index for index, word in enumerate(words) if PurePath(word).name in _SHELLS), len(words))
    has_script = takes_value = False
    for index, word in enumerate(words[shell + 1 :], start=shell + 1):
        is_value, takes_value = takes_value, bool(_VALUE_OPTION.fullmatch(word)) and not takes_value
        if is_value:
            continue
        if not _SHELL_OPTION.fullmatch(word):
            return index if has_script else None
        has_script = has_script or bool(_SCRIPT_OPTION.fullmatch(word))
    return None


_SHELLS: Final = {"sh", "bash", "dash", "ksh", "zsh"}
_SHELL_OPTION: Final = re.compile(r"[-+][a-zA-Z]+|--[a-z-]*")
_SCRIPT_OPTION: Final = re.compile(r"-[a-zA-Z]*c[a-zA-Z]*")
_VALUE_OPTION: Final = re.compile(r"[-+][a-zA-Z]*[oO][a-zA-Z]*|--(rc|init-)file")  # such as -euo pipefail
_UNSAFE_UNQUOTED: Final = re.compile(r"[^\w@%+=:,./-]", re.ASCII)  # as in shlex.quote
_UNSAFE: Final = {
    shell_syntax.SINGLE_QUOTES: re.compile("'"),
    shell_syntax.DOUBLE_QUOTES: re.compile(r'["$`\\]'),
}


def _check_resume_option(command: Command, option: str | None, args: Collection[str], *, in_shell: bool) -> None:
    if "resume" in find_placeholders(option or ""):
        raise PydanticCustomError("resume", "`resume` cannot contain {name}", {"name": "{resume}"})
    try:
        words_of_option = shlex.split(option or "")
    except ValueError as error:
        raise PydanticCustomError("resume", "`resume`: {error}", {"error": str(error).lower()}) from None
    if _has_place(command, args):
        words = command if isinstance(command, list) else []
        if any("resume" in find_placeholders(word) and word != "{resume}" for word in words):
            message = "in a list, {name} must be a word of its own"
            raise PydanticCustomError("resume", message, {"name": "{resume}"})
    elif option is not None and in_shell and isinstance(command, str) and (operators := _parse(command).operators):
        message = f"`resume` cannot be added at the end, after {operators[0]}: write {{resume}} in the command"
        raise PydanticCustomError("resume", "{message}", {"message": message})
    elif words_of_option and in_shell and _ends_in_script(command):
        message = "`resume` cannot be added after the script of a shell's -c: write the script itself as `command`"
        raise PydanticCustomError("resume", "{message}", {"message": message})


def _ends_in_script(command: Command) -> bool:
    """Whether the last word is the script of `bash -c`, which would take an option after it for its own name."""
    try:
        words = command if isinstance(command, list) else shlex.split(command)
    except ValueError:  # the quotes of a here-document or comment
        return False
    return _script_index(words) == len(words) - 1


def insert_resume_option(command: Command, option: str | None, args: Collection[str]) -> Command:
    """The command with the option to resume in place of `{resume}` or at its end; without an option, with neither.

    The line break with which a block of YAML ends is not part of the option.

    If an argument is called `resume`, `{resume}` stands for that argument.
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


def build_argv(command: Command, values: Callable[[str], Any], *, in_shell: bool = True) -> list[str]:
    """The argument vector of a command whose placeholders are replaced by their values.

    Text runs in bash, with its values quoted: a pipe fails if any of its programs does. Without a shell, it is split
    into words as a shell would split it.

    Raises:
        KeyError: a placeholder has no value.
    """
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


def make_values(command: Command, args: Mapping[str, Any], predefined: Mapping[str, Any]) -> Callable[[str], Any]:
    """A function from a placeholder of a command to its value; to a KeyError if it has none.

    `{args}` has all arguments that the command does not name; a name with dots is a place in a nested mapping.
    """
    named = find_placeholders(command)

    def value(name: str) -> Any:
        if takes_all(name, args):
            return list_words(name, args, besides=named)
        for mapping in (args, predefined):
            found: Any = mapping
            for part in name.split("."):
                found = found.get(part, _MISSING) if isinstance(found, Mapping) else _MISSING
            if found is not _MISSING:
                return found
        raise KeyError(name)

    return value


_MISSING: Final = object()
