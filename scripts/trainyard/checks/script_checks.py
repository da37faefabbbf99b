"""Checks of the script that a command starts: whether it takes the options of trials, and what it does to others."""

import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from trainyard.checks.findings import Finding, Verdict
from trainyard.checks.program_checks import CheckedStudy, missing_file
from trainyard.config.placeholders import (
    FALSE_IS_UNCERTAIN,
    PLACEHOLDER,
    find_placeholders,
    format_argument,
    takes_all,
    unnamed_items,
)
from trainyard.config.settings import SETTINGS
from trainyard.config.sweep import Sweep
from trainyard.config.user_programs import CommandOptions, Study
from trainyard.programs.parser_uses import leaves_to_wandb
from trainyard.programs.script_findings import ScriptFinding, find_named_signals, find_problems
from trainyard.programs.script_options import Script, ScriptOption, read_started
from trainyard.programs.script_source import parse
from trainyard.programs.started_scripts import CommandContents, find_started
from trainyard.programs.wandb_runs import REPLACED
from trainyard.utils.errors import UserError
from trainyard.utils.text import list_some, suggest

_FLAG: Final = re.compile(r"--[A-Za-z][\w.-]*")
_ONE_WORD: Final = "takes one word"
_OFF: Final = ("false", "no", "off", "0", "none")  # text that `type=bool` takes for true


def check_script_source(checked: CheckedStudy[CommandOptions]) -> Iterator[Finding]:
    """Whether the script of a study is there, and what its source shows before it runs.

    An absent script is a warning if another program gets its path: that may be one in a container.
    """
    study = checked.study
    place = f"{checked.place}.{study.command_key}"
    started = find_started_by(study)
    absent = list[tuple[str, Finding]]()
    for path, is_certain, where in started.absent:
        is_sure = is_certain and checked.absent == "fails"
        found = missing_file(place, path, "no such file", has_scheduler=checked.has_scheduler, is_sure=is_sure)
        absent.append((where, found))
    yield from _where_first(absent)
    scripts = read_started(started)
    read = {script.path for script in scripts}
    for there in dict.fromkeys(script.path for script in started.scripts):
        yield Finding(place, "ok", f"{there} is there") if there in read else _unread(place, there)
    named = find_placeholders(study.started_command or "")
    options = _OptionChecks(study.argument_values, named, place, checked.absent, study.is_wandb)
    yield from _where_first(options.of_command(scripts, study.resume))
    if study.is_wandb:
        yield from options.of_wandb(scripts)
    for problem in find_problems(started, scripts):
        if concerns(study, problem):
            verdict: Verdict = "fails" if problem.topic == "srun" else "warns"
            yield Finding(place, verdict, f"{problem.where}: {problem.message}", problem.remedy)


def _unread(place: str, path: Path) -> Finding:
    """What is wrong with a script that cannot be parsed. A newer Python than this one may run it."""
    try:
        parse(path)
    except UserError as error:
        return Finding(place, "warns", str(error), "correct it: no trial will start, unless its Python is a newer one")
    return Finding(place, "ok", f"{path} is there")


def find_started_by(study: Study) -> CommandContents:
    """What the command of a study starts, or the lines of its file of commands."""
    return find_started(study.started_command or "", Path(), file=study.command_file)


def _where_first(found: Iterable[tuple[str, Finding]]) -> Iterator[Finding]:
    """Each finding once, with the first line of a file of commands where it is."""
    first = dict[Finding, str]()
    for where, finding in found:
        first.setdefault(finding, where)
    for finding, where in first.items():
        yield replace(finding, message=f"{where}: {finding.message}") if where else finding


def named_signals(study: Study) -> list[str]:
    """The other signals than its `stop_signal` that the scripts of a study name."""
    if not isinstance(study, CommandOptions):
        return []
    started = find_started_by(study)
    return [name for name in find_named_signals(started, read_started(started)) if name != study.stop_signal]


def describe_spoiled_results(study: Study) -> list[str]:
    """What the scripts of a study do that makes its results other ones than its config says: a line each."""
    started = find_started_by(study)
    spoils = [each for each in find_problems(started, read_started(started)) if concerns(study, each)]
    topics = ("background", "gpu", "settings", "wandb")
    return [f"warning: {each.where}: {each.message}" for each in spoils if each.topic in topics]


def concerns(study: Study, problem: ScriptFinding) -> bool:
    """Whether a problem of a script matters for a study: ports, if several trials share a node, and so on."""
    if isinstance(study, CommandOptions) and problem.topic == "signal":
        return study.stop_signal not in problem.message
    if not isinstance(study, Sweep):  # one run at a time, on all GPUs of its job
        return problem.topic in ("gpu", "requeue")
    slots = study.slots
    match problem.topic:
        case "port":
            return slots.count > 1 or slots.jobs > 1
        case "gpu":
            return slots.has_gpus
        case "wandb":
            return not (study.program_metrics and study.program_metrics.is_wandb)
    return True


@dataclass
class _OptionChecks:
    """Checks of the options that a script gets, and their values in any trial."""

    values: Mapping[str, Sequence[Any]]  # by key
    named: set[str]  # the placeholders of the command
    place: str
    absent: Any  # the verdict if there is no script that can be read
    is_wandb: bool  # `wandb.config` has the values, too

    def of_command(self, scripts: Sequence[Script], resume: str | None) -> Iterator[tuple[str, Finding]]:
        """Of all words of a command, with the line of a file of commands; `resume` is the option to resume."""
        for script in scripts:
            for finding in self._of_script(script, [*script.words, *(shlex.split(resume or ""))]):
                yield script.where, finding
        read = {word[1:-1] for script in scripts for word in script.words}
        for name in self.named - read - {"args:hydra"}:
            for key, values in unnamed_items(self.values, self.named) if takes_all(name, self.values) else ():
                if any(value is False for value in values):
                    flag = _flag_of(key, dashed=name == "args:dashes")
                    yield "", self._find(FALSE_IS_UNCERTAIN.format(flag=flag, key=key), verdict=self.absent)

    def _of_script(self, script: Script, words: Sequence[str]) -> Iterator[Finding]:
        for word, following in pairwise([*words, ""]):
            if word == "--":
                break
            if word.startswith("{") and takes_all(word[1:-1], self.values):
                if word != "{args:hydra}" or script.uses_hydra:
                    yield from self._of_all(script, dashed=word == "{args:dashes}")
            elif _FLAG.match(word) or (script.uses_hydra and script.find(word.partition("=")[0])):
                yield from self._of_word(script, word, following)

    def of_wandb(self, scripts: Sequence[Script]) -> Iterator[Finding]:
        """Of settings that a script may read elsewhere than in `wandb.config`, and of what the user has set for W&B."""
        passes_all = any(name == SETTINGS or takes_all(name, self.values) for name in self.named)
        for key, _ in unnamed_items(self.values, self.named) if not passes_all else ():
            for option in filter(None, (script.find(_flag_of(key, dashed=False)) for script in scripts)):
                problem = f"where it reads {option.flag} instead of `wandb.config`, all trials are equal"
                yield self._find(f"{option.where}: {problem}", "add {args} to the command", verdict="warns")
        for name in REPLACED & os.environ.keys():
            yield self._find(f"{name} is set here, and is another one in each trial", verdict="warns")
        if os.environ.get("WANDB_MODE") == "disabled":
            yield self._find("WANDB_MODE is `disabled`, so that no run is written", "unset it, or set it to `offline`")

    def _of_all(self, script: Script, *, dashed: bool) -> Iterator[Finding]:
        """Of the options that `{args}` stands for."""
        for key, values in unnamed_items(self.values, self.named):
            flag = key if script.uses_hydra else _flag_of(key, dashed=dashed)
            written = [value for value in values if value is not None]
            option = script.find(flag)
            if option:
                yield from self._of_values(script, option, flag, key, written, is_named=False)
            elif written:
                yield from self._unknown(script, flag)
                is_known = script.is_strict or script.uses_hydra or script.switch(flag) is not None
                if not is_known and any(value is False for value in written):
                    yield self._find(f"{script.path}: {_describe_uncertain(script, flag, key)}")

    def _of_word(self, script: Script, word: str, following: str) -> Iterator[Finding]:
        """Of an option that the command itself names, such as `--amp {amp}`."""
        flag, equals, text = word.partition("=")
        if "{" in flag or flag in ("--help", "--version"):
            return
        option = script.find(flag)
        if option is None:
            yield from self._unknown(script, flag)
        elif equals and script.library == "absl" and option.is_flag:
            return  # it takes `--amp=false`, but not `--amp false`
        elif placeholder := PLACEHOLDER.fullmatch(text if equals else following):
            key = placeholder[1]
            yield from self._of_values(script, option, flag, key, self.values.get(key, ()), is_named=True)

    def _of_values(
        self, script: Script, option: ScriptOption, flag: str, key: str, values: Sequence[Any], *, is_named: bool
    ) -> Iterator[Finding]:
        """Of the first value of an option that it does not take, where false comes before all others."""
        for value in sorted(values, key=lambda value: value is not False):
            problem = _find_wrong(option, flag, key, value, is_named=is_named)
            is_text = "type=bool" not in problem or isinstance(value, str)
            if problem and (is_text or not self.is_wandb or not leaves_to_wandb(script.source, option.flag)):
                remedy = _remedy(script, option, key, value)
                if problem.startswith(_ONE_WORD) and option.repeats:
                    remedy = "write {args} in place of it, which gives the option once for each value"
                elif problem.startswith(_ONE_WORD):
                    how = "declare it with nargs='+', or " if script.library == "argparse" else ""
                    remedy = f"{how}write `{flag} {{{key}}}` in the command if it reads JSON, or the list as one text"
                yield self._find(f"{option.where}: {flag} {problem}", remedy)
                return

    def _unknown(self, script: Script, flag: str) -> Iterator[Finding]:
        """An option that the script does not have; if that is uncertain, only one that seems misspelt."""
        key = flag[2:].replace("-", "_")
        others = f"it has {list_some(script.flags, most=8)}"
        names = {name.lstrip("-").replace("-", "_"): name for name in script.flags}
        names = {plain: name for plain, name in names.items() if plain.startswith("no_") == key.startswith("no_")}
        remedy = suggest(key, names, otherwise=others)
        if script.reads_pairs and not script.is_strict:
            how = f"write {{args:hydra}}, or `{flag[2:]}={{{key}}}`"
            yield self._find(f"{flag} is ignored by {script.path}, which reads `lr=0.1`", how, verdict="warns")
            return
        if not script.is_strict and (script.library != "argparse" or remedy == others):
            return
        for plain, name in names.items():
            remedy = remedy.replace(repr(plain), name)
        if names.get(key, "").startswith("--"):
            argument = "{args:dashes}" if "-" in names[key][2:] else "{args}"
            remedy += f" `{argument}` writes it so"
        if script.is_strict:
            yield self._find(f"{flag} is no option of {script.path}", remedy)
        else:
            yield self._find(f"{flag} is declared nowhere in {script.path}", remedy, verdict="warns")

    def _find(self, message: str, remedy: str = "", *, verdict: Any = "fails") -> Finding:
        return Finding(self.place, verdict, message, remedy)


def _find_wrong(option: ScriptOption, flag: str, key: str, value: Any, *, is_named: bool) -> str:
    """What is wrong with a value of an option, which the command names itself or `{args}` writes; "" if it is taken."""
    text = format_argument(value)
    if isinstance(value, bool) and not is_named:
        is_known = option.switch is not None or not option.flag.startswith("-")  # of Hydra
        return "" if value or is_known else f"false: {option.problem}"
    if option.is_flag:
        return f"takes no value, but {key} is {value!r}"
    if isinstance(value, list):
        if is_named or option.repeats:
            is_taken = is_named != option.repeats
        else:
            is_taken = len(value) == 1 or not option.takes_one_word
        wrong = [each for each in value if not _is_number(option, each)] if option.repeats or not is_named else []
        if wrong:
            return f"{wrong[0]}: {option.problem}"
        return "" if is_taken else f"{_ONE_WORD}, but {key} is {value!r}"
    if isinstance(value, bool):
        is_read = option.switch is None or (flag, text) in (option.switch.on, option.switch.off)
        is_wrong = not value and option.problem.startswith(("`type=bool`", "its value is"))
        return f"{text}: {option.problem or 'its type reads other words'}" if is_wrong or not is_read else ""
    if option.is_boolean and isinstance(value, (int, float)) and value not in (0, 1):
        return f"is true or false, but {key} is {value!r}"
    is_off = "type=bool" in option.problem and text.lower() in _OFF
    return f"{value}: {option.problem}" if is_off or not _is_number(option, value) else ""


def _is_number(option: ScriptOption, value: Any) -> bool:
    """Whether `type=int` or `type=float` reads a value, for an option with such a type."""
    for number in (int, float):
        if f"`type={number.__name__}`" in option.problem:
            try:
                number(format_argument(value))
            except ValueError:
                return False
    return True


def _describe_uncertain(script: Script, flag: str, key: str) -> str:
    """Why false cannot be written for an option that a script does not declare."""
    opposite = script.find(f"--no-{flag.removeprefix('--')}")
    if opposite is None:
        return FALSE_IS_UNCERTAIN.format(flag=flag, key=key)
    remedy = f"write `{opposite.key}: [true, null]` and {{args:dashes}}"
    return f"it has {opposite.flag}, and no {flag}: {remedy}"


def _flag_of(key: str, *, dashed: bool) -> str:
    return f"--{key.replace('_', '-')}" if dashed else f"--{key}"


def _remedy(script: Script, option: ScriptOption, key: str, value: Any) -> str:
    """How true and false, or a value that is no number, are written for an option."""
    if option.choices:
        return f"write the words that it reads as text, as in `{key}: {list(option.choices)}`"
    if "type=bool" in option.problem:
        return f"declare it with action=argparse.BooleanOptionalAction, or write `{key}: ['1', '']`"
    if "no option turns it off" in option.problem:
        pair = f"declare it as `{option.flag}/--no-{option.flag.removeprefix('--')}`"
        how = "use action=argparse.BooleanOptionalAction" if script.library == "argparse" else pair
        return f"add one to the script: {how}"
    if "number" in option.problem and isinstance(value, bool):
        return f"write `{key}: [1, 0]`"
    if "number" in option.problem:
        return f"write numbers that {option.problem.partition('`')[2].partition('`')[0]} reads"
    if option.is_flag and option.switch:
        return f"write `{key}: [true, false]` and {{args}}"
    if option.is_flag:
        return f"write `{key}: [true, null]` if it is off unless it is given"
    if script.library == "fire":
        return f"write `{option.flag}={{{key}}}` in the command, and `{key}: ['True', 'False']`"
    on, off = (option.switch.on[-1], option.switch.off[-1]) if option.switch else ("true", "false")
    return f"write the words that it reads as text, as in `{key}: ['{on}', '{off}']`"
