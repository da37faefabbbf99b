"""The errors that are meant for people."""

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """What was asked for cannot be done: the message says what, where, and what to do; no stack trace is needed."""


class Diverged(UserError):
    """The loss became NaN or infinite."""


def suggestion(word: str, known: Iterable[str]) -> str:
    """What may have been meant by an unknown word."""
    known = list(known)
    close = difflib.get_close_matches(word, known, n=1)
    if close:
        return f"did you mean {close[0]!r}?"
    return f"known: {', '.join(known)}" if known else "none is defined"
