"""What `--json` prints for scripts and agents, in place of tables and sentences. docs/json.md describes it."""

import re
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any, Final

from pydantic_core import to_json

from trainyard.checks.findings import Finding

_PLACE: Final = re.compile(r"([^\s:]+|.*?, line \d+(?:, column \d+)?): ")  # a key, or a line of a file
_printed: Final = list[bool]()
VERSION: Final = 1  # of the keys: those of a version keep their meaning, and new ones may be added
OPTION: Final = "--json"
HELP: Final = "print one JSON object, for scripts: docs/json.md describes it"


def print_json(**content: Any) -> None:
    """Print an object with its version. A number that is not finite is null."""
    _printed.append(True)
    print(to_json({"version": VERSION, **content}, indent=2, inf_nan_mode="null").decode(), flush=True)


def print_error(error: Exception) -> None:
    """Print an object with an error: its message, and if it lists several mistakes, each with its place.

    Only one object is printed: none after the answer, or after another error.
    """
    if _printed:
        return
    first, *lines = str(error).splitlines() or [""]
    parts = [(line.strip(), _PLACE.match(line.strip())) for line in lines or [first]]
    mistakes = [{"place": at[1], "message": line[at.end() :]} if at else {"place": "", "message": line}
                for line, at in parts]  # fmt: skip
    print_json(error={"message": str(error), "mistakes": mistakes})


def findings_as_json(findings: Iterable[Finding]) -> dict[str, Any]:
    """What a check found, and whether anything fails."""
    found = [asdict(each) for each in findings]
    return {"fails": any(each["verdict"] == "fails" for each in found), "findings": found}
