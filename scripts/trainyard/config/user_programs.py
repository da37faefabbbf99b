"""Options of the programs that users bring, as trials of a sweep or as the training of a scaling study."""

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PositiveFloat,
    StringConstraints,
)

from trainyard.config.placeholders import (
    STYLES,
    Command,
    check_all_arguments,
    check_quoting,
    check_resume_option,
    check_values,
    dotted_items,
    find_placeholders,
    insert_resume_option,
    takes_all,
)
from trainyard.config.settings import SETTINGS, Settings, read_settings
from trainyard.config.train import Section, Train, TrialSpec, hint, invalid, value_at
from trainyard.utils.files import digest_of, expand_path, file_digest
from trainyard.utils.text import suggest

# What may stand between groups of three digits. A plain space may also stand between two numbers.
SEPARATORS: Final = ",_'\u2019\u00a0\u2009\u202f"
MINUS: Final = "\u2212"
EPOCH_NAMES: Final = ("epoch", "Epoch", "EPOCH")  # of what has the epoch, among metrics
_GROUPS_OF_DIGITS: Final = "|".join(rf"(?:{separator}\d{{3}})++" for separator in SEPARATORS)
_SIGN: Final = rf"[+\-{MINUS}]"
# The regular expression that replaces `{number}` in a pattern of metrics. It is a group, so that a quantifier after it
# applies to all of it. The quantifiers of its digits are possessive: with backtracking, the time to find that nothing
# matches would grow with the cube of the number of digits.
NUMBER: Final = (
    rf"(?:{_SIGN}?(?:(?:(?<!\d,)[1-9]\d{{0,2}}(?:{_GROUPS_OF_DIGITS})(?![{SEPARATORS}]?\d)(?:\.\d*+)?|\d++(?:\.\d*+)?|\.\d++)"
    rf"(?:[eE]{_SIGN}?\d++)?|(?i:nan|inf(?:inity)?)(?![A-Za-z]))(?: ?%)?)"
)
_IN_CLASS: Final = re.compile(r"\\[^AbB]|\[\^?\]?[^\]]*\]")  # a character that is escaped, or one of several
_GROUP: Final = re.compile(r"\(\?[a-zA-Z-]*<?[:=!]")  # its beginning, as of (?:^|,)
_INNER_START: Final = re.compile(r"(?<!\\)[a-zA-Z0-9:=,%] *\^")
_IN_PATTERN: Final = re.compile(r"(?<!\\)\{number\}")
_BRACES: Final = re.compile(r"(?<!\\)\{(?!number\})([A-Za-z]\w*)\}")  # text in braces, no quantifier
GRACE_SECONDS: Final = 30.0  # Slurm's and torchrun's default between SIGTERM and SIGKILL: a checkpoint of several GB


PROGRAM_MIB: Final = 8000.0  # of host memory, per slot or rank


class UserProgram(TrialSpec):
    """A command or a Python function with the arguments of one trial."""

    epochs: ClassVar[None] = None  # are not known
    patience: ClassVar[None] = None
    command: Command | None = None
    function: str | None = None
    args: dict[str, Any] = {}
    code: str = ""  # digest of the files of `code`
    settings_digest: str = ""  # of the file of `settings`

    @property
    def content(self) -> dict[str, Any]:
        """What identifies the result of the program; the place of `{resume}` in a command changes none."""
        content = self.model_dump(mode="json", exclude_defaults=True)
        if self.command is not None:
            content["command"] = insert_resume_option(self.command, None, self.args)
        return content

    @property
    def process_mib(self) -> float:
        """The host memory of a process, which Trainyard does not know."""
        return PROGRAM_MIB

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments."""
        return self.args

    def values_of(self, keys: Collection[str]) -> dict[str, Any]:
        """The values of dotted keys of the arguments."""
        return {key: value_at(self.args, key) for key in keys}


def digest_of_code(paths: Sequence[str]) -> str:
    """The digest of the names and contents of these files, and of those in these folders.

    Raises:
        OSError: one does not exist, or cannot be read.
    """
    found = [(root, file) for root in map(expand_path, paths) for file in _files_of(root)]
    return digest_of([[root.name, str(file.relative_to(root)), file_digest(file)] for root, file in found])


code_digest = cache(digest_of_code)  # read once in a process: its trials keep their identity if the files change


def _files_of(path: Path) -> list[Path]:
    """A file, or the files in a folder that are code: not those of Git and of Python's cache."""
    if not path.is_dir():
        return [path]
    files = [each for each in sorted(path.rglob("*")) if each.is_file()]
    return [each for each in files if not {"__pycache__", ".git"}.intersection(each.relative_to(path).parts)]


def _check_own_file(pattern: str) -> str:
    """A pattern of files in a program's own folder, which no other trial has."""
    if "{" in pattern:
        raise invalid(f"{pattern} is relative to the program's folder already: nothing in braces is replaced")
    if Path(pattern).is_absolute() or os.path.normpath(pattern).startswith(("../", "~")):
        remedy = "give a path relative to the program's folder, and let your program write it there"
        raise invalid(f"{pattern} would be shared by all trials: {remedy}: it is {{trial_dir}}, in a study {{out_dir}}")
    try:
        next(Path(os.devnull).glob(pattern), None)
    except ValueError as error:
        raise invalid(f"{pattern} is no pattern of files: {error}") from None
    return pattern


OwnFile = Annotated[str, Field(min_length=1), AfterValidator(_check_own_file)]
WANDB_RUNS: Final = "wandb/*run-*/run-*.wandb"  # of W&B, offline and online
_TEXT_FILE: Final = r"\.(jsonl|txt|log|json|csv|tsv|wandb)$"
_EVENT_FILES: Final = r"tfevents|(^|/)[^/.]*$"  # a file, or a folder
MetricsFile = Annotated[
    OwnFile,
    Field(pattern=f"{_TEXT_FILE}|{_EVENT_FILES}"),
    hint("a metrics file must end in .csv, .tsv, .json, .jsonl, .txt, .log or .wandb, or be a folder with event files"),
]


class Metrics(Section):
    """Where Trainyard finds the metrics of a program: rows of numbers by name.

    A row without `epoch` belongs to the epoch before it; if none has an `epoch`, it gets the number of the row. Epochs
    may be fractions. Consecutive rows of the same epoch count as one, with the last
    value of each metric, so let the pattern for a progress bar include the epoch. With `stop`, a trial's first epoch is
    compared when its second begins. Up to 300 rows are recorded at once, then one per second; of the others, only the
    latest is kept. The last value of each metric is always kept. Only the first 16,384 characters of a line are
    searched, without escape codes such as colors.
    """

    file: MetricsFile | None = Field(
        None,
        description="File that the program writes, relative to the program's folder (`{trial_dir}` in a sweep, "
        "`{out_dir}` in a scaling study), or a pattern of which each attempt's newest match is read, such as "
        "`lightning_logs/version_*/metrics.csv`. A table has a header, and commas, semicolons or tabs; all but `.csv` "
        "may also be JSON: an object per line, a row or a list of rows. Of a folder, such as `runs/**`, its event "
        "files of TensorBoard: a row has the scalars of a step, and the step as its epoch, unless a scalar is named "
        "`epoch`. "
        "They need the package `tensorboard` beside Trainyard. Let the writer flush often, as with "
        "`SummaryWriter(flush_secs=10)`.",
    )
    pattern: str | Annotated[list[str], Field(min_length=1)] | None = Field(
        None,
        description="Regular expressions that are applied to each line of output, with a named group per metric, e.g. "
        "`val_acc=(?P<val_accuracy>{number})`. `{number}` matches numbers with sign and exponent, `nan` and `inf`; a "
        "number followed by `%` is divided by 100, and in `7,282` the comma separates thousands; a decimal comma is an "
        "error. A row is complete when every group has matched.",
    )

    sample: str | Annotated[list[str], Field(min_length=1)] | None = Field(
        None,
        exclude=True,  # it changes no result
        description="With `pattern`: one or more lines of your program's output, e.g. `epoch 3: val_acc=91.2%`. Each "
        "pattern must match in one of them, which is checked before anything is submitted.",
    )

    def _problems(self) -> Iterator[str]:
        if (self.file is None) == (self.pattern is None):
            yield "give one of file and pattern"
        if self.sample is not None and self.pattern is None:
            yield "sample is for pattern: files are read by their format"
        for pattern in self.patterns:
            try:
                re.compile(pattern)  # as it was written, for the position in an error
                groups = _compile(pattern).groupindex
            except re.error as error:
                yield f"{pattern} is not a regular expression: {error}"
                return
            if not groups:
                yield f"{pattern} names no metric: write a group as (?P<val_accuracy>{{number}})"
            if typo := next((name for name in _BRACES.findall(pattern) if get_close_matches(name, ["number"])), None):
                yield f"{{{typo}}} would match only these very characters; did you mean {{number}}?"
            if _INNER_START.search(_GROUP.sub("(", _IN_CLASS.sub("x", pattern))):
                yield f"{pattern}: ^ is the start of a line, and can match nothing after text: remove it, or write \\^"
        lines = self.sample_lines
        for pattern in self.patterns if lines else ():
            if not any(_compile(pattern).search(line) for line in lines):
                yield f"{pattern} matches nothing in the sample, {'; '.join(lines)}{find_mismatch(pattern, lines)}"

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
        return bool(self.patterns) and set(EPOCH_NAMES).isdisjoint(self.groups)

    @property
    def groups(self) -> list[str]:
        """The metrics that the patterns name."""
        return [name for pattern in self.compiled for name in pattern.groupindex]

    @property
    def compiled(self) -> list[re.Pattern[str]]:
        """The patterns as compiled regular expressions."""
        return [_compile(pattern) for pattern in self.patterns]

    @property
    def digest(self) -> str:
        """A digest that changes when a program's output must be parsed again."""
        return digest_of([self.file, self.patterns], length=10)

    @property
    def has_event_files(self) -> bool:
        """Whether `file` names event files of TensorBoard, or folders with them."""
        return self.file is not None and not re.search(_TEXT_FILE, self.file)

    @property
    def is_wandb(self) -> bool:
        """Whether the program takes its settings from W&B, and logs to it."""
        return self.file is not None and self.file.endswith(".wandb")


def _wandb_metrics(value: Any) -> Any:
    return {"file": WANDB_RUNS} if value == "wandb" else value


INCOMPLETE: Final = "it ended with exit code 0 before it was complete"


class Complete(Section):
    """When a program is done: one of these.

    If it ends with exit code 0 before, the next attempt follows at once, from its checkpoint if it has one. That uses
    up no retry. After two attempts in a row without progress (a later epoch, or else another checkpoint), or 20 that
    report no epoch, it has failed.
    """

    epoch: PositiveFloat | None = Field(
        None, description="The last epoch that it has reported, by its `metrics`, is this one or a later one."
    )
    line: Annotated[str, Field(min_length=1)] | None = Field(
        None, description="A line of its output matches this regular expression; `{number}` as in `pattern`."
    )
    file: OwnFile | None = Field(
        None,
        description="It has written this file, or one that matches this pattern, in its folder (`{trial_dir}` or "
        "`{out_dir}`). That of an earlier attempt counts if nothing was left to do.",
    )

    def _problems(self) -> Iterator[str]:
        if len(self.model_dump(exclude_none=True)) != 1:
            yield "give one of epoch, line and file"
        try:
            _compile(self.line or "")
        except re.error as error:
            yield f"{self.line} is not a regular expression: {error}"

    def is_line(self, text: str) -> bool:
        """Whether this line of output says that the program is complete."""
        return self.line is not None and _compile(self.line).search(text) is not None

    def missing(self, *, epoch: float | None, has_line: bool, has_file: bool) -> str:
        """Why a program is not complete, in words; "" if it is.

        `epoch` is the last that it has reported; `has_line` and `has_file`: whether it has written the line or file.
        """
        if self.epoch is not None and (epoch is None or epoch < self.epoch):
            seen = "it has reported no epoch" if epoch is None else f"its last epoch is {epoch:.6g}"
            from_0 = f"; if it counts from 0, write {{epoch: {epoch:.6g}}}" if epoch == self.epoch - 1 else ""
            return f"{INCOMPLETE}: {seen}, and `complete` says {self.epoch:.6g}{from_0}"
        if self.line is not None and not has_line:
            return f"{INCOMPLETE}: no line of its output matches {self.line}"
        if self.file is not None and not has_file:
            return f"{INCOMPLETE}: it has written no {self.file} in its folder"
        return ""


def metrics_digest(metrics: Metrics | None, complete: Complete | None = None) -> str:
    """The digest of what the output of a program is read by; "" if that is nothing."""
    digest = metrics.digest if metrics else ""
    return digest_of([digest, complete.model_dump(exclude_none=True)], length=10) if complete else digest


def _compile(pattern: str) -> re.Pattern[str]:
    return re.compile(_IN_PATTERN.sub(lambda _: NUMBER, pattern))


def find_mismatch(pattern: str, lines: Collection[str]) -> str:
    """Up to where a pattern matches one of the lines, three letters at least, and none as a whole; "" if nowhere."""
    for end in range(len(pattern) - 1, 0, -1):
        try:
            beginning = _compile(pattern[:end])
        except re.error:  # within a group, say
            continue
        if any(len(match[0].strip()) > 2 for match in map(beginning.search, lines) if match):
            return f": it matches up to {pattern[:end]}, but not the rest, {pattern[end:]}"
    return ""


TIME_SPAN: Final = r"[0-9]+(\.[0-9]+)? ?(min|h|d)"


def seconds_of(duration: str) -> float:
    """The seconds of a duration such as `90min`, `6h` or `2d`."""
    number = duration.rstrip("dhimn ")
    unit = duration[len(number) :].strip()
    return float(number) * {"min": 60, "h": 3600, "d": 24 * 3600}[unit]


def _check_a_minute(walltime: str) -> str:
    if seconds_of(walltime) < 60:
        raise invalid(f"{walltime} is too short: a job needs 1min at least")
    return walltime


Walltime = Annotated[
    str,
    BeforeValidator(str),
    StringConstraints(pattern=f"^{TIME_SPAN}$"),
    hint("write it as 90min, 6h or 2d"),
    AfterValidator(_check_a_minute),
]


_VARIES: Final = re.compile(r"[*?\[]")
_WEIGHTS: Final = re.compile(r"\.(pt|pth|ckpt|bin|safetensors|pkl|h5|npz)$")


def checkpoints_of(pattern: str) -> str:
    """The pattern of the checkpoints: of the folders, if `pattern` names the file that completes each of them.

    As in `checkpoint-*/state.json`: the name of the folder varies, that of the file does not, and it has no weights.
    """
    folder, _, name = pattern.rpartition("/")
    is_marker = _VARIES.search(folder.rpartition("/")[2]) and not _VARIES.search(name) and not _WEIGHTS.search(name)
    return folder if is_marker else pattern


class Study(Section):
    """What sweeps and scaling studies have in common. The kinds of both answer these questions."""

    keeps_output: ClassVar[bool] = False  # of its programs, in which metrics can be found again
    packages: ClassVar[tuple[str, ...]] = ("torch",)  # whose versions are recorded

    walltime: Walltime | None = Field(
        None,
        description="Walltime of each job, such as `90min`, `6h` or `2d`. By default that which is predicted for a "
        "sweep, and the profile's `runtime` for a study; the profile's `set-resources` comes before it.",
    )

    @property
    def walltime_minutes(self) -> float | None:
        """Minutes of `walltime`; None without it."""
        return None if self.walltime is None else seconds_of(self.walltime) / 60

    @property
    def base_training(self) -> Train | None:
        """The training of Trainyard's own loop, which trials and scales vary; None if it trains nothing itself."""
        return None

    def epoch_metric(self, train: Train) -> str | None:
        """The metric by which the best epoch of a training is found; None without one."""
        return None

    @property
    def trains(self) -> bool:
        """Whether Trainyard's own training loop trains it."""
        return self.base_training is not None

    @property
    def program_metrics(self) -> Metrics | None:
        """Where a user's program reports metrics."""
        return None

    @property
    def completion(self) -> Complete | None:
        """When a user's program is done; None if it is at exit code 0."""
        return None

    @property
    def command_line(self) -> Command | None:
        """The command of a user's program, as it is started; None if no command is."""
        return None

    @property
    def started_command(self) -> Command | None:
        """The command in which scripts are looked for."""
        return self.command_line

    @property
    def command_file(self) -> str | None:
        """The file whose lines are this command."""
        return None

    @property
    def checkpoint_pattern(self) -> str | None:
        """The pattern of the checkpoints of a user's program in the folder of a trial or run."""
        return None


class ProgramOptions(Study):
    """Options of your own program: of a `command`, a `function` or a `script`."""

    args: dict[str, Any] = Field({}, description="Arguments of your own program; `{lr}` stands for the argument `lr`.")
    workdir: Literal["keep", "trial"] = Field(
        "keep",
        description="Folder in which your program runs. `keep`: the one in which you start Snakemake; `trial`: a "
        "folder of its own, `{trial_dir}` or `{out_dir}`.",
    )
    setup: str | None = Field(
        None,
        description="Commands for bash (with `-e` and `pipefail`) that run once per job on each node, before the first "
        "trial: unpack data to the local disk, start a server with `&`, which ends with the job. Trials get the "
        "variables that they `export`. If they fail, or `exit` at all, the job ends in an error, and no trial runs. "
        "They have no time limit but that of the job.",
    )
    teardown: str | None = Field(
        None,
        description="Commands for bash that run after the last trial, with the variables of `setup`, also if trials "
        f"failed or the job is requested to stop; for {GRACE_SECONDS:g} s at most. If they fail, it is a warning.",
    )


class CommandOptions(ProgramOptions):
    """Options of a program that is started by a command line: of a `command` or a `script`."""

    keeps_output: ClassVar[bool] = True
    command_key: ClassVar[str] = "command"  # of the config
    own_folders: ClassVar[set[str]] = {"trial_dir", "trial"}  # placeholders that tell trials or runs apart

    metrics: Annotated[
        Metrics | None, BeforeValidator(_wandb_metrics, json_schema_input_type=Metrics | Literal["wandb"] | None)
    ] = Field(
        None,
        description="Where your program reports metrics such as `val_accuracy` or `images_per_second`. `wandb`: it "
        "takes its settings from `wandb.config`, also without placeholders in the command, and reports by `wandb.log`.",
    )
    complete: Complete | None = Field(
        None,
        description="When your program is done, if it can end before with exit code 0: `{epoch: 10}`, "
        "`{line: training complete}` or `{file: done.json}`.",
    )
    checkpoint: OwnFile | None = Field(
        None,
        description="Glob pattern of the checkpoints in the program's folder (`{trial_dir}` or `{out_dir}`), e.g. "
        "`*.pt`. `{resume_from}` is the newest one, or empty: by the number in the name if the names differ in one "
        "integer only, else by time. `checkpoint-*/state.json` names the file that completes a folder, which is then "
        "`{resume_from}`. If an attempt that resumed from it fails, the next one gets the checkpoint before it, and "
        "the one after that none; if it fails within a minute, that uses up no retry.",
    )
    resume: str | None = Field(
        None,
        description="Option that is added to the command if there is a checkpoint, e.g. `--resume {resume_from}`: in "
        "place of `{resume}`, or at the end.",
    )
    settings: Annotated[
        Settings | None, BeforeValidator(read_settings, json_schema_input_type=str | Settings | None)
    ] = Field(
        None,
        description="A JSON, YAML or TOML file such as `base.yaml`, whose copy with the arguments at their places "
        "(`optimizer.lr`, `layers.0.width`) is `{settings}`. An argument that it does not have must be named in the "
        "command. `json`, `yaml` or `toml`: a file with the arguments alone. Its content is part of what identifies a "
        "trial.",
    )
    grace_seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)] = Field(
        GRACE_SECONDS,
        description="Grace period between `stop_signal` and SIGKILL when your program must end: the time to write a "
        "checkpoint.",
    )
    stop_signal: Literal["TERM", "INT", "USR1", "USR2"] = Field(
        "TERM",
        description="Signal that requests your program to save a checkpoint and to end. All of its processes get TERM "
        "and INT; USR1 and USR2 only those that handle them, and when these have ended, the others get TERM.",
    )
    env: str | None = Field(
        None,
        description="Another environment than the one in which you start Snakemake: the name of a conda environment, "
        "or the folder of a conda or virtual environment, which is activated; an interpreter, whose folder is then "
        "first on PATH; or `trainyard`, the environment that runs Trainyard.",
    )

    @property
    def program_metrics(self) -> Metrics | None:
        """The section `metrics`."""
        return self.metrics

    @property
    def completion(self) -> Complete | None:
        """The section `complete`."""
        return self.complete

    @property
    def checkpoint_pattern(self) -> str | None:
        """The option `checkpoint`."""
        return self.checkpoint

    def _problems(self) -> Iterator[str]:
        yield from super()._problems()
        if self.complete and self.complete.epoch and (self.metrics is None or self.metrics.numbers_rows):
            remedy = "give a pattern with a group (?P<epoch>{number}), or a line or a file"
            yield f"complete: epoch needs `metrics` that find the epoch: {remedy}"

    @property
    def is_wandb(self) -> bool:
        """Whether the settings reach the program by `wandb.config`, too."""
        return self.metrics is not None and self.metrics.is_wandb

    @property
    def used_names(self) -> set[str]:
        """The names of the placeholders in the command and in the option to resume, up to the first dot."""
        return self.find_names(self.command_line or [])

    @property
    def argument_values(self) -> dict[str, list[Any]]:
        """The different values that the arguments have in any trial or run, by dotted key."""
        return {key: [value] for key, value in dotted_items(self.args)}

    def find_names(self, command: Command) -> set[str]:
        """The names of all placeholders in a command and in the option to resume, up to the first dot."""
        used = find_placeholders(command) | find_placeholders(self.resume or "")
        return {name.partition(".")[0] for name in used}

    def check_arguments(
        self, command: Command, args: Mapping[str, Any], predefined: Mapping[str, Any], *, program: str
    ) -> None:
        """Raise a ValueError unless a command uses all arguments, and nothing else but what is predefined.

        `predefined` has values of the type that a trial has; `program` is what the error calls it, as "the command".
        """
        used = self.find_names(command)
        names = [*args, *predefined, "args"]
        error = ""
        check_all_arguments(command, args)
        options = {"resume": "the option that replaces it", SETTINGS: "the file that it is made from"}
        named = {*names, *STYLES, *(name for name in options if getattr(self, name) is not None)}
        takes_rest = any(takes_all(name, args) for name in used)
        unused = [] if self.is_wandb else sorted(set(args) - used)
        if unknown := sorted(used - named):
            own = options.get(unknown[0])
            remedy = f"or give `{unknown[0]}`, {own}" if own else suggest(unknown[0], names)
            error = f"{program} has {{{unknown[0]}}}, which is neither an argument nor predefined; {remedy}"
        elif self.settings is not None:
            if SETTINGS in args:
                error = f"{SETTINGS} is predefined: give the argument another name"
            elif SETTINGS not in used:
                error = f"`settings` is not used: write {{settings}} in {program}, where it takes its file"
            elif takes_rest:
                error = "{args} and {settings} both have all arguments: write one of the two"
            else:
                self.settings.check(args, find_placeholders(command) | find_placeholders(self.resume or ""))
        elif unused and not takes_rest:
            verb, belongs = ("is", "it belongs") if len(unused) == 1 else ("are", "they belong")
            placeholders = " ".join(f"{{{name}}}" for name in unused)
            error = f"{', '.join(unused)} {verb} not in {program}: write {placeholders} where {belongs}, or {{args}}"
        if error:
            raise invalid(error)
        check_values(command, args, {**predefined, "resume": "", SETTINGS: ""})

    def check_resume(self, command: Command, args: Collection[str], *, in_shell: bool = True) -> None:
        """Raise a PydanticCustomError if the command cannot resume with these options."""
        if "resume_from" in self.find_names(command) and self.checkpoint is None:
            raise invalid("`resume_from` needs `checkpoint`, a pattern of files such as *.pt")
        check_resume_option(command, self.resume, args, in_shell=in_shell)
        if self.resume is not None and (isinstance(command, str) or not in_shell):
            check_quoting(self.resume, in_shell=in_shell)
