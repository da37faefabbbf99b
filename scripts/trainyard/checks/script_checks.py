"""Checks of the script that a command starts: whether it takes the options of trials, and what it does to others."""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from trainyard.checks.findings import Finding
from trainyard.checks.program_checks import CheckedStudy
from trainyard.config.placeholders import (
    FALSE_IS_UNCERTAIN,
    PLACEHOLDER,
    dotted_items,
    find_placeholders,
    format_argument,
    takes_all,
    unnamed_items,
)
from trainyard.config.scaling import ScriptScaling
from trainyard.config.sweep import CommandSweep, Sweep
from trainyard.config.trials import values_by_key
from trainyard.programs.script_findings import ScriptFinding, find_problems
from trainyard.programs.script_options import Script, ScriptOption, read_script
from trainyard.programs.started_scripts import CommandContents, StartedScript, find_started, typed_command
from trainyard.utils.errors import UserError
from trainyard.utils.text import list_some, suggest

_FLAG: Final = re.compile(r"--[A-Za-z][\w.-]*")
_OFF: Final = ("false", "no", "off", "0", "none")  # text that `type=bool` takes for true


def check_script_source(checked: CheckedStudy) -> Iterator[Finding]:
    """What the source of the script of a study shows before it runs."""
    study, place = checked.study, f"{checked.place}.command"
    if isinstance(study, ScriptScaling):
        values, place = {key: [value] for key, value in dotted_items(study.args)}, f"{checked.place}.script"
    elif isinstance(study, CommandSweep):
        values = values_by_key(study)
    else:
        return
    started = find_started(typed_command(study), Path())
    scripts = _read_scripts(started)
    options = _OptionChecks(values, find_placeholders(typed_command(study)), place, checked.absent)
    yield from options.of_command(started, scripts, study.resume)
    for problem in find_problems(started, scripts):
        if concerns(study, problem):
            yield Finding(place, "warns", f"{problem.where}: {problem.message}", problem.remedy)


def script_problems(study: Sweep | ScriptScaling) -> list[ScriptFinding]:
    """What the scripts of a study do that concerns it; empty for a study without a script that can be read."""
    if not isinstance(study, (CommandSweep, ScriptScaling)):
        return []
    started = find_started(typed_command(study), Path())
    problems = find_problems(started, _read_scripts(started))
    return [problem for problem in problems if concerns(study, problem)]


def describe_spoiled_results(study: Sweep | ScriptScaling) -> list[str]:
    """What the scripts of a study do that makes its results other ones than its config says: a line each."""
    spoils = [problem for problem in script_problems(study) if problem.topic in ("gpu", "settings")]
    return [f"warning: {problem.where}: {problem.message}" for problem in spoils]


def _read_scripts(started: CommandContents) -> list[tuple[StartedScript, Script]]:
    """The scripts that can be read, each file once."""
    scripts = dict[Path, Script | None]()
    for part in started.scripts:
        if part.path not in scripts:
            scripts[part.path] = None
            with suppress(UserError):  # it is no Python, which the interpreter will say
                scripts[part.path] = read_script(part.path, list(part.roots))
    return [(part, script) for part in started.scripts if (script := scripts[part.path])]


def concerns(study: Sweep | ScriptScaling, problem: ScriptFinding) -> bool:
    """Whether a problem of a script matters for a study: ports, if several trials share a node, and so on."""
    if isinstance(study, ScriptScaling):  # one run at a time, on all GPUs of its job
        return problem.topic in ("gpu", "requeue", "signal", "folder")
    slots = study.slots
    match problem.topic:
        case "port":
            return slots.count > (slots.nodes or 1) or slots.most_jobs > 1
        case "gpu":
            return slots.has_gpus
        case "memory":
            return slots.has_gpus and slots.share < 1
    return True


@dataclass
class _OptionChecks:
    """Checks of the options that a script gets, and their values in any trial."""

    values: Mapping[str, Sequence[Any]]  # by key
    named: set[str]  # the placeholders of the command
    place: str
    absent: Any  # the verdict if there is no script that can be read

    def of_command(
        self, started: CommandContents, scripts: Sequence[tuple[StartedScript, Script]], resume: str | None
    ) -> Iterator[Finding]:
        """Of all words of a command; `resume` is the option to resume."""
        unread = [name for name in self.named if takes_all(name, self.values) and name != "args:hydra"]
        for part, script in scripts:
            words = [*part.words, *(shlex.split(resume or ""))]
            for word, following in pairwise([*words, ""]):
                if word == "--":
                    break
                name = word[1:-1]
                if word.startswith("{") and takes_all(name, self.values):
                    unread = [other for other in unread if other != name]
                    if name != "args:hydra" or script.uses_hydra:
                        yield from self._of_all(script, dashed=name == "args:dashes")
                elif _FLAG.match(word) or (script.uses_hydra and script.find(word.partition("=")[0])):
                    yield from self._of_word(script, word, following)
        for name in unread:
            for key, values in unnamed_items(self.values, self.named):
                flag = _flag_of(key, dashed=name == "args:dashes")
                if False in [value for value in values if isinstance(value, bool)]:
                    yield self._find(FALSE_IS_UNCERTAIN.format(flag=flag, key=key), verdict=self.absent)

    def _of_all(self, script: Script, *, dashed: bool) -> Iterator[Finding]:
        """Of the options that `{args}` stands for."""
        for key, values in unnamed_items(self.values, self.named):
            flag = key if script.uses_hydra else _flag_of(key, dashed=dashed)
            option = script.find(flag)
            if option is None and script.is_strict and any(value is not None for value in values):
                yield self._unknown(script, flag)
            is_off = any(value is False for value in values)
            for value in values if option or not script.is_strict else ():
                if value is True and is_off and script.switch(flag) is None:  # what false needs is said
                    continue
                yield from self._of_value(script, option, flag, key, value)

    def _of_value(
        self, script: Script, option: ScriptOption | None, flag: str, key: str, value: Any
    ) -> Iterator[Finding]:
        """Of one value of an option that `{args}` writes."""
        if isinstance(value, bool):
            if script.uses_hydra or script.switch(flag) is not None:
                return
            if option is None:
                if not value:
                    message = f"{script.path}: {FALSE_IS_UNCERTAIN.format(flag=flag, key=key)}"
                    yield self._find(message)
            elif not value:
                yield self._find(f"{_where(option)}: {flag} false: {option.problem}", _remedy(option, key))
            elif not (option.is_flag or option.may_stand_alone):
                yield self._find(f"{_where(option)}: {flag} needs a value, and true is written as {flag} alone",
                                 _remedy(option, key))  # fmt: skip
        elif option and value is not None:
            yield from self._of_text(option, flag, key, value)

    def _of_text(self, option: ScriptOption, flag: str, key: str, value: Any) -> Iterator[Finding]:
        """Of a value that is no boolean."""
        if option.is_flag:
            message = f"{_where(option)}: {flag} takes no value, but {key} is {value!r}"
            yield self._find(message, f"write `{key}: [true, false]` and {{args}}")
        elif option.is_boolean and isinstance(value, (int, float)) and value not in (0, 1):
            yield self._find(f"{_where(option)}: {flag} is true or false, but {key} is {value!r}",
                             f"write `{key}: [true, false]`")  # fmt: skip
        elif "type=bool" in option.problem and format_argument(value).lower() in _OFF:
            yield self._find(f"{_where(option)}: {flag} {value}: {option.problem}", _remedy(option, key))

    def _of_word(self, script: Script, word: str, following: str) -> Iterator[Finding]:
        """Of an option that the command itself names, such as `--amp {amp}`."""
        flag, equals, text = word.partition("=")
        if "{" in flag or flag in ("--help", "--version"):
            return
        option = script.find(flag)
        if option is None:
            if script.is_strict:
                yield self._unknown(script, flag)
            return
        placeholder = PLACEHOLDER.fullmatch(text if equals else following)
        key = placeholder[1] if placeholder else ""
        for value in self.values.get(key, ()):
            if option.is_flag or not isinstance(value, bool):
                if option.is_flag or value is not None:
                    yield from self._of_text(option, flag, key, value)
                continue
            is_read = option.switch is None or (flag, format_argument(value)) in (option.switch.on, option.switch.off)
            is_wrong = not value and option.problem.startswith(("`type=bool`", "its value is"))
            if is_wrong or not is_read:
                problem = option.problem or "its type reads the words True and False"
                yield self._find(f"{_where(option)}: {flag} {format_argument(value)}: {problem}", _remedy(option, key))

    def _unknown(self, script: Script, flag: str) -> Finding:
        """An option that the script does not have."""
        by_key = {name.lstrip("-").replace("-", "_"): name for name in script.flags}
        key = flag[2:].replace("-", "_")
        remedy = suggest(key, by_key, otherwise=f"it has {list_some(script.flags, most=8)}")
        for name in by_key.values() if remedy.startswith("did you mean") else ():
            remedy = remedy.replace(repr(name.lstrip("-").replace("-", "_")), name)
        if key in by_key and by_key[key].startswith("--"):
            style = "{args:dashes}" if "-" in by_key[key][2:] else "{args}"
            remedy += f" `{style}` writes it so"
        return self._find(f"{flag} is no option of {script.path}", remedy)

    def _find(self, message: str, remedy: str = "", *, verdict: Any = "fails") -> Finding:
        return Finding(self.place, verdict, message, remedy)


def _flag_of(key: str, *, dashed: bool) -> str:
    return f"--{key.replace('_', '-')}" if dashed else f"--{key}"


def _where(option: ScriptOption) -> str:
    return f"{option.path}, line {option.line}" if option.path else "the config of Hydra"


def _remedy(option: ScriptOption, key: str) -> str:
    """How true and false are written for an option."""
    if "type=bool" in option.problem:
        return f"declare it with action=argparse.BooleanOptionalAction, or write `{key}: ['1', '']`"
    if "no option turns it off" in option.problem:
        return f"add one to the script, as by action=argparse.BooleanOptionalAction for {option.flag}"
    if "number" in option.problem:
        return f"write `{key}: [1, 0]`"
    if option.is_flag:
        return f"write `{key}: [true, null]` if it is off unless it is given"
    words = option.switch or None
    on, off = (words.on[-1], words.off[-1]) if words else ("true", "false")
    return f"write the words that it reads as text, as in `{key}: ['{on}', '{off}']`"
