"""Objects of the user's own code by their import path, `package.module:name`."""

import inspect
import pkgutil
import sys
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from trainyard.utils.errors import UserError

SCRIPTS: Final = Path(__file__).resolve().parents[2]  # the folder that `trainyard` is imported from


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
        close = get_close_matches(str(error.name), dir(error.obj), n=1) if isinstance(error, AttributeError) else []
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise UserError(f"{role} {path!r} cannot be imported: {kind}{error}{hint}") from error


def check_call(found: Any, path: str, *, role: str, args: Sequence[str], kwargs: Mapping[str, Any]) -> None:
    """Check that an imported object can be called with these arguments, without calling it.

    Raises:
        UserError: it is no function or class, or takes other arguments.
    """
    if not callable(found):
        raise UserError(f"{role} {path!r} is a {type(found).__name__}: give a function or a class")
    try:
        signature = inspect.signature(found)
    except (TypeError, ValueError):  # it is not written in Python
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        names = [*args, *(f"{name}=..." for name in kwargs)]
        raise UserError(f"{role} {path!r} is called with ({', '.join(names)}): {error}") from None


def helper_command(module: str) -> list[str]:
    """The command that runs one of the library's helper programs, such as `scaling.agent`; append its options."""
    return [sys.executable, str(SCRIPTS / "trainyard"), module]
