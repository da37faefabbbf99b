"""A file of commands, each line of which is a trial."""

import re
import shlex
from typing import Any, Final

from trainyard.config.placeholders import SHELL
from trainyard.config.settings import read_text
from trainyard.config.train import invalid

LINE: Final = "command"  # the argument that is the line
COMMAND: Final = [SHELL, "-o", "pipefail", "-c", f"{{{LINE}}}"]  # nothing is replaced in the line itself
_REPLACED: Final = ("command", "args", "grid", "trials", "sample", "search", "repeats", "settings", "resume")
_PROBLEMS: Final = {
    r"\s*(-|(do|done|then|else|elif|fi|esac)\b|\}|(for|while|until|if|case)\b(?!.*\b(done|fi|esac)\b)).*|.*(\\|\||&&|\{)\s*|.*(?<!<)<<-?\s*['\"\\]?[A-Za-z_].*":
        "is only a part of a command: write each command in one line",
    r"\s*((cd|export|source|\.|module|set|unset|alias|conda activate|wait)(\s[^;&|]*)?|[A-Za-z_]\w*=\S*\s*)":
        "changes nothing for other lines, each of which has a shell of its own: write it there before `&&`",
    r".*[^&>]&[\s)]*": "ends with &: its trial would end at once; remove it",
}  # fmt: skip


def make_trials(content: Any) -> Any:
    """A sweep with `commands` as one with the trials of the lines; anything else as it is."""
    if not isinstance(content, dict) or not isinstance(path := content.get("commands"), str):
        return content
    if placed := [key for key in _REPLACED if key in content]:
        raise invalid(f"commands run as they are written, so {placed[0]} has no place: write it in their lines")
    trials = []
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        if line.strip() and not line.lstrip().startswith("#"):
            if problem := _find_problem(line):
                raise invalid(f"{path}, line {number}: {line.strip()[:60]!r} {problem}")
            trials.append({LINE: line})
    if not trials:
        raise invalid(f"{path} has no command")
    return {**content, "command": COMMAND, "trials": trials}


def _find_problem(line: str) -> str:
    for pattern, problem in _PROBLEMS.items():
        if re.fullmatch(pattern, line):
            return problem
    try:
        shlex.split(line, comments=True)
    except ValueError as error:
        return f"has {str(error).lower()}"
    return ""
