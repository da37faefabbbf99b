"""Objects of a user's own code, by dotted path."""

import importlib
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from trainyard.utils.errors import UserError

SCRIPTS: Final = Path(__file__).resolve().parents[2]  # the folder that `trainyard` is imported from

# Prints what is wrong with each path, by its place; in a process of its own, as users' code may do anything.
_CHECK: Final = """
import json, sys
sys.path.insert(0, sys.argv[1])
from trainyard.utils.import_path import imported
from trainyard.utils.errors import UserError
wrong = {}
for place, (path, what) in json.loads(sys.argv[2]).items():
    try:
        imported(path, what=what)
    except UserError as error:
        wrong[place] = str(error)
print("\\n" + json.dumps(wrong))
"""


def imported(path: str, *, what: str) -> Any:
    """The object at `package.module:name`; `what` it is to be, for the message. Also found in the folder one is in.

    Raises:
        UserError: there is none; with the import's own message.
    """
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)
    module_name, _, attribute = path.partition(":")
    try:
        return getattr(importlib.import_module(module_name), attribute)
    except Exception as error:  # a module may raise anything while it is imported
        kind = "" if isinstance(error, (ImportError, AttributeError)) else f"{type(error).__name__}: "
        raise UserError(f"{what} {path!r} cannot be imported: {kind}{error}") from error


def check_imports(paths: Mapping[str, tuple[str, str]]) -> None:
    """See that all of these import; each by its place in the config, as (path, what it is to be).

    Raises:
        UserError: some do not; all of them are told.
    """
    if not paths:
        return
    done = subprocess.run(
        [sys.executable, "-c", _CHECK, str(SCRIPTS), json.dumps(paths)], text=True, capture_output=True, check=False
    )
    if done.returncode:  # not an exception: the process itself ended
        raise UserError(f"importing {', '.join(path for path, _ in paths.values())} failed: {done.stderr.strip()}")
    if wrong := json.loads(done.stdout.splitlines()[-1]):
        lines = "\n".join(f"  {place}: {error}" for place, error in wrong.items())
        raise UserError(f"your own code does not import:\n{lines}\n(modules are looked for in this folder and in "
                        "PYTHONPATH)")  # fmt: skip


def helper_line(module: str) -> list[str]:
    """What starts one of the library's own helper programs, such as `scaling.agent`; its options follow."""
    return [sys.executable, str(SCRIPTS / "trainyard"), module]
