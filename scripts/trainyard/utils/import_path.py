"""Objects of the user's own code by their import path, `package.module:name`."""

import inspect
import pkgutil
import re
import sys
import sysconfig
import tomllib
import traceback
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from trainyard.utils.errors import UserError
from trainyard.utils.text import printable

SCRIPTS: Final = Path(__file__).resolve().parents[2]  # the folder that `trainyard` is imported from
EXTRAS: Final = ("timm", "torchmetrics")  # packages that a training may use, and that Trainyard does not install
USER_CODE_ERRORS: Final = (Exception, SystemExit)  # that a user's code may raise
CODE_LOCATION: Final = re.compile(r" \((?:(?! \().)*, line \d+\)$")  # as `user_code_location` writes it
_INSTALLED: Final = [Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")]


def version() -> str:
    """The version of Trainyard: of the installed package, or of the clone."""
    if (project := SCRIPTS.parent / "pyproject.toml").exists():
        return str(tomllib.loads(project.read_text())["project"]["version"])
    return metadata.version("trainyard")


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
    except USER_CODE_ERRORS as error:  # a module may raise anything while it is imported
        is_missing = isinstance(error, (ImportError, AttributeError))
        reason = f"{error}{user_code_location(error)}" if is_missing else error_line(error)
        close = get_close_matches(str(error.name), dir(error.obj), n=1) if isinstance(error, AttributeError) else []
        hint = f"; did you mean {close[0]!r}?" if close else ""
        if isinstance(error, ModuleNotFoundError) and (package := str(error.name).partition(".")[0]) in EXTRAS:
            hint = f": run `pip install {package}` in the environment that runs Trainyard"
        raise UserError(f"{role} {path!r} cannot be imported: {reason}{hint}") from error


def error_line(error: BaseException) -> str:
    """An error of a user's code in one line: its type, the first line of its message, and the place in that code."""
    if isinstance(error, SystemExit):
        return f"it calls sys.exit({error.code!r}){user_code_location(error)}"
    message = printable((str(error).strip().splitlines() or [""])[0])
    described = ": ".join(filter(None, [type(error).__name__, message]))
    return f"{described}{user_code_location(error)}"


def user_code_location(error: BaseException) -> str:
    """The file and line of the user's code that an error comes from, as the end of a message; empty without one."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [each for each in frames if not each.filename.startswith("<") and is_user_file(Path(each.filename))]
    return f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""


def is_user_file(path: Path) -> bool:
    """Whether a file belongs to a user: neither to Trainyard, nor to Python, nor to an installed package."""
    return not any(folder in path.parents for folder in (SCRIPTS, *_INSTALLED))


def check_call(called: Any, path: str, *, role: str, args: Sequence[str], kwargs: Mapping[str, Any]) -> None:
    """Check that an imported object can be called with these arguments, without calling it.

    Raises:
        UserError: it is no function or class, or takes other arguments.
    """
    if not callable(called):
        raise UserError(f"{role} {path!r} is a {type(called).__name__}: give a function or a class")
    try:
        signature = inspect.signature(called)
    except (TypeError, ValueError):  # it is not written in Python
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        names = [*args, *(f"{name}=..." for name in kwargs)]
        remedy = f"; define it as `def {path.rpartition(':')[2]}({', '.join(args)})`" if args else ""
        raise UserError(f"{role} {path!r} is called with ({', '.join(names)}): {error}{remedy}") from None


def further_arguments(
    called: Callable[..., Any],
    values: Mapping[str, Any],
    *,
    option: str,
    without: Collection[str],
    keys: Iterable[str] = (),
) -> dict[str, Any]:
    """The arguments of a library's class that an option sets: those that are given, and the defaults of the others.

    `without`: its arguments that the option cannot set. `keys`: what the option has beside its arguments.

    Raises:
        UserError: the class has no such argument, or lacks one.
    """
    parameters = [each for name, each in inspect.signature(called).parameters.items() if name not in without]
    try:
        bound = inspect.Signature(parameters).bind(**values)
    except TypeError as error:
        known = ", ".join([*keys, *(each.name for each in parameters)])
        raise UserError(f"{option}: {called.__name__} {error}; known: {known}") from None
    bound.apply_defaults()
    return bound.arguments


def helper_command(module: str) -> list[str]:
    """The command that runs one of the library's helper programs, such as `scaling.agent`; append its options."""
    return [sys.executable, str(SCRIPTS / "trainyard"), module]
