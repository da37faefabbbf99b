"""Objects of a user's own code, by dotted path."""

import importlib
from typing import Any

from trainyard.errors import UserError


def imported(path: str, *, what: str) -> Any:
    """The object at `package.module:name`; `what` it is to be, for the message.

    Raises:
        UserError: there is none; with the import's own message.
    """
    module_name, _, attribute = path.partition(":")
    try:
        return getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError) as error:
        raise UserError(f"{what} {path!r} cannot be imported: {error}") from error
