"""Objects of the user's own code by their import path, `package.module:name`."""

import json
import pkgutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from trainyard.utils.errors import UserError

SCRIPTS: Final = Path(__file__).resolve().parents[2]  # the folder that `trainyard` is imported from

# Prints the error of each path that cannot be imported, by its place in the config. It runs in a process of its own,
# because importing the user's code may have any side effect.
_CHECK: Final = """
import json, sys
sys.path.insert(0, sys.argv[1])
from trainyard.utils.import_path import import_object
from trainyard.utils.errors import UserError
errors = {}
for place, (path, role) in json.loads(sys.argv[2]).items():
    try:
        import_object(path, role=role)
    except UserError as error:
        errors[place] = str(error)
print("\\n" + json.dumps(errors))
"""


def import_object(path: str, *, role: str) -> Any:
    """The object at `package.module:name`; modules in the working directory are found, too.

    `role` describes the object in the error message: "model", "dataset", "function".

    Raises:
        UserError: the import fails; the message contains the original one.
    """
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)
    try:
        return pkgutil.resolve_name(path)
    except Exception as error:  # a module may raise anything while it is imported
        kind = "" if isinstance(error, (ImportError, AttributeError)) else f"{type(error).__name__}: "
        raise UserError(f"{role} {path!r} cannot be imported: {kind}{error}") from error


def check_imports(paths: Mapping[str, tuple[str, str]]) -> None:
    """Import every path, in another process; `paths` maps a place in the config to an import path and its role.

    Raises:
        UserError: some imports fail; the message lists all of them.
    """
    if not paths:
        return
    done = subprocess.run(
        [sys.executable, "-c", _CHECK, str(SCRIPTS), json.dumps(paths)], text=True, capture_output=True, check=False
    )
    if done.returncode:  # the process itself ended, as by sys.exit() in a module
        raise UserError(f"importing {', '.join(path for path, _ in paths.values())} failed: {done.stderr.strip()}")
    if errors := json.loads(done.stdout.splitlines()[-1]):
        lines = "\n".join(f"  {place}: {error}" for place, error in errors.items())
        raise UserError(f"your own code cannot be imported:\n{lines}\n(searched: the working directory and PYTHONPATH)")


def helper_command(module: str) -> list[str]:
    """The command that runs one of the library's helper programs, such as `scaling.agent`; append its options."""
    return [sys.executable, str(SCRIPTS / "trainyard"), module]
