"""What the config may say of programs that users bring: as trials of a sweep, or as the training of a scaling study."""

import json
import re
import shlex
from collections.abc import Callable, Collection, Mapping
from functools import cache, lru_cache
from typing import Annotated, Any, Final, Literal

from pydantic import Field, PositiveInt, StringConstraints, model_validator
from pydantic_core import PydanticCustomError

from trainyard.config.train import Section
from trainyard.utils import shell_syntax
from trainyard.utils.files import digest_of

Command = str | Annotated[list[str], Field(min_length=1)]
DottedPath = Annotated[str, StringConstraints(pattern=r"^[\w.]+:\w+$")]
PLACEHOLDER: Final = re.compile(r"(?<!\$)\{([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)\}")  # ${HOME} is the shell's

# What `{number}` in a pattern of metrics stands for: a group, so that all that may follow it in a pattern is about it.
# Its digits are taken all or none: where no match follows, the time would grow with the cube of their number.
NUMBER: Final = r"(?:[+-]?(?:(?:\d++(?:\.\d*+)?|\.\d++)(?:[eE][+-]?\d++)?|(?i:nan|inf(?:inity)?)(?![A-Za-z]))(?: ?%)?)"
_IN_PATTERN: Final = re.compile(r"(?<!\\)\{number\}")
GRACE_SECONDS: Final = 30.0  # as Slurm's default from SIGTERM to SIGKILL, and torchrun's: a checkpoint of several GB
GRACE_DESCRIPTION: Final = (
    "Seconds between SIGTERM and SIGKILL for a {what} that is told to end: time to write a checkpoint. One that ends "
    "sooner costs less."
)
GraceSeconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]

# What a command may be told beside its arguments.
TRIAL_PLACEHOLDERS: Final = ("trial_dir", "trial", "attempt", "resume_from", "dataset", "cpus")
SCALE_PLACEHOLDERS: Final = (
    "out_dir", "resume_from", "nodes", "gpus", "gpus_per_node", "cpus_per_gpu", "dataset", "seed",
)  # fmt: skip


class UserProgram(Section):
    """A program or a function of the user's own, with its arguments: what is one trial."""

    command: Command | None = None
    function: str | None = None
    args: dict[str, Any] = {}


class Metrics(Section):
    """Where a program tells its metrics: numbers by name, in rows; `epoch` is counted where it does not tell it.

    Consecutive rows of the same epoch are one, in which the last value of each metric counts: let the pattern for a
    progress bar name the epoch. With `stop`, a trial's first epoch is judged when its second begins. Up to 300 rows may
    come at once, and then one a second; of more, the latest are kept. The last value of each metric is always kept. Of
    a line, the first 16,384 characters are searched, without escape codes such as colours.
    """

    file: str | None = Field(
        None,
        description="A file that it writes, in its folder if that is not said otherwise: `.jsonl` with a row a line, "
        "`.csv` with a heading, or `.json` with a row or a list of rows.",
        pattern=r"\.(jsonl|json|csv)$",
    )
    pattern: str | Annotated[list[str], Field(min_length=1)] | None = Field(
        None,
        description="Regular expressions over the lines of its output, with a named group for each metric, as in "
        "`val_acc=(?P<val_accuracy>{number})`. `{number}` takes a number with sign and exponent, `nan` and `inf`, and "
        "with a `%` behind it a hundredth of that. A row is whole when each group was seen.",
    )

    @model_validator(mode="after")
    def _is_one(self) -> "Metrics":
        if (self.file is None) == (self.pattern is None):
            raise PydanticCustomError("metrics", "give either file or pattern")
        for pattern in self.patterns:
            try:
                groups = _compiled(pattern).groupindex
            except re.error as error:
                message = "{pattern} is not a regular expression: {error}"
                raise PydanticCustomError("metrics", message, {"pattern": pattern, "error": str(error)}) from None
            if not groups:
                message = "{pattern} names no metric: write a group as {group}"
                group = "(?P<val_accuracy>{number})"
                raise PydanticCustomError("metrics", message, {"pattern": pattern, "group": group})
        return self

    @property
    def patterns(self) -> list[str]:
        """As a list; empty where a file is read."""
        return [self.pattern] if isinstance(self.pattern, str) else self.pattern or []

    @property
    def compiled(self) -> list[re.Pattern[str]]:
        """The patterns as they are used."""
        return [_compiled(pattern) for pattern in self.patterns]

    @property
    def digest(self) -> str:
        """Changes when a program's output is to be read anew."""
        return digest_of([self.file, self.patterns], length=10)


def metrics_digest(metrics: Metrics | None) -> str:
    """The digest of how metrics are told; "" where nothing is said of it."""
    return metrics.digest if metrics else ""


def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(_IN_PATTERN.sub(lambda _: NUMBER, pattern))


class Stop(Section):
    """Ends trials early that are worse than others were at the same epoch."""

    method: Literal["asha", "median"] = Field(
        description="`asha`: at epochs `grace`, `grace` x `reduction`, ... a trial goes on only if it is among the "
        "best 1/`reduction` that have come so far, and while these are less than one, if it is the best (Li et al. "
        "2020). `median`: from `grace` on, it ends where its best value is below the median of the means that other "
        "trials had by that epoch (Golovin et al. 2017)."
    )
    metric: str = Field(
        "val_accuracy", description="What is compared; if it is left out, the sweep's `metric`, if that is given."
    )
    mode: Literal["max", "min"] = Field("max", description="What is better, as in `search`: more or less of it.")
    grace: PositiveInt = Field(1, description="No trial ends before this epoch.")
    reduction: int = Field(3, ge=2, description="For `asha`: of how many trials one goes on.")
    least: PositiveInt = Field(5, description="For `median`: trials that must have come as far before one is ended.")
    epochs: PositiveInt | None = Field(
        None, description="Epochs that a whole trial reports; with `train`, it is known. By it, savings are counted."
    )


def find_placeholders(command: Command) -> set[str]:
    """The names in braces."""
    return set[str]().union(*map(_names, [command] if isinstance(command, str) else command))


@lru_cache(maxsize=256)  # asked for each trial
def _names(part: str) -> frozenset[str]:
    return frozenset(PLACEHOLDER.findall(part))


def check_quoting(command: Command, *, in_shell: bool = True) -> Command:
    """A command in whose text each placeholder stands where it can be replaced by a quoted value.

    Raises:
        PydanticCustomError: one does not.
    """
    for name, where in _read(command).placeholders if isinstance(command, str) else ():
        if where in _REMEDIES and (in_shell or where in _OF_WORDS):
            message = f"{{{name}}} stands in {where}: {_REMEDIES[where].format(name=f'{{{name}}}')}"
            raise PydanticCustomError("quoting", "{message}", {"message": message})
    return command


_NO_QUOTES: Final = (
    "write {name} without them, for Trainyard quotes values itself; braces of your own need a space, as in '{{ x }}'"
)
_BEFORE: Final = "assign it before, as in x={name}, and write $x there"
_OF_WORDS: Final = (shell_syntax.SINGLE, shell_syntax.DOUBLE, shell_syntax.ESCAPED)
_REMEDIES: Final = {
    shell_syntax.SINGLE: _NO_QUOTES,
    shell_syntax.DOUBLE: _NO_QUOTES,
    shell_syntax.ESCAPED: "write {name} without the backslash, for Trainyard quotes values itself",
    shell_syntax.BACKTICKS: "write $(...) instead of backticks",
    shell_syntax.DOCUMENT: _BEFORE,
    shell_syntax.COMMENT: "leave it out there",
}


@cache
def _read(command: str) -> shell_syntax.Reading:
    return shell_syntax.read(command, PLACEHOLDER)


def check_arithmetic(command: Command, values: Callable[[str], Any]) -> None:
    """Text cannot be quoted where the shell calculates.

    Raises:
        ValueError: a placeholder in $((...)) has a value that is not a number.
    """
    for name, where in _read(command).placeholders if isinstance(command, str) else ():
        if where == shell_syntax.ARITHMETIC and type(value := values(name)) not in (int, float):
            before = _BEFORE.format(name=f"{{{name}}}")
            raise ValueError(f"{{{name}}} stands in {where}, but {value!r} is not a number: {before}")


def check_resume(command: Command, option: str | None, args: Collection[str], *, in_shell: bool = True) -> None:
    """The option to resume has its place in a command, or the end of the command is a place for it.

    Raises:
        PydanticCustomError: neither.
    """
    if "resume" in find_placeholders(option or ""):
        raise PydanticCustomError("resume", "`resume` cannot hold {name}", {"name": "{resume}"})
    if _has_place(command, args):
        if isinstance(command, list) and any(
            "resume" in find_placeholders(word) and word != "{resume}" for word in command
        ):
            message = "in a list, {name} must be a word of its own"
            raise PydanticCustomError("resume", message, {"name": "{resume}"})
    elif option is not None and in_shell and isinstance(command, str) and (operators := _read(command).operators):
        message = f"`resume` cannot be added at the end, after {operators[0]}: write {{resume}} where it is to stand"
        raise PydanticCustomError("resume", "{message}", {"message": message})


def insert_resume_option(command: Command, option: str | None, args: Collection[str]) -> Command:
    """A command with the option to resume in the place of `{resume}`, or else at its end; without one, without both.

    Where one of the arguments is called `resume`, `{resume}` stands for that.
    """
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

    Text runs in a shell, with its values quoted; without a shell, it is split into words as a shell would split it.

    Raises:
        KeyError: a placeholder has no value.
    """
    if isinstance(command, list):
        return [PLACEHOLDER.sub(lambda name: format_argument(values(name[1])), part) for part in command]
    line = PLACEHOLDER.sub(lambda name: shlex.quote(format_argument(values(name[1]))), command)
    return ["/bin/sh", "-c", line] if in_shell else shlex.split(line)


def make_lookup(*mappings: Mapping[str, Any]) -> Callable[[str], Any]:
    """What finds a dotted name in the first of several nested mappings that has it."""

    def find(name: str) -> Any:
        for mapping in mappings:
            found: Any = mapping
            for part in name.split("."):
                found = found.get(part, _NOWHERE) if isinstance(found, Mapping) else _NOWHERE
            if found is not _NOWHERE:
                return found
        raise KeyError(name)

    return find


_NOWHERE: Final = object()


def format_argument(value: Any) -> str:
    """A value as a program's argument: text as it is, all else as in JSON."""
    return value if isinstance(value, str) else json.dumps(value)
