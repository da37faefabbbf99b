"""Human-readable text: durations, points in time, and suggestions for misspelled names."""

import difflib
import signal
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final

SHELL_SIGNAL: Final = 128  # plus the number of a signal: the exit code of a shell whose command it ended


def format_duration(seconds: float) -> str:
    """Seconds with readable units: `42 s`, `3 min 20 s`, `2 h 5 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def count_of(number: float, noun: str) -> str:
    """A number with its noun, in the plural if it is above 1: `1 slot`, `0.5 GPU`, `2 GPUs`; `0 trials`."""
    text = f"{number:g}" if isinstance(number, float) else f"{number:,}"
    return f"{text} {noun}" if 0 < number <= 1 else f"{text} {noun}s"


def format_precise_duration(seconds: float) -> str:
    """As `format_duration`, but with two digits below a minute: `0.35 s`, `42 s`, `3 min 20 s`."""
    return f"{seconds:.2g} s" if seconds < 59.5 else format_duration(seconds)


def format_time(unix_seconds: float) -> str:
    """Date, time of day and time zone of a point in time, in local time."""
    return f"{datetime.fromtimestamp(unix_seconds).astimezone():%Y-%m-%d %H:%M:%S %Z}"


def describe_exit(code: int) -> str:
    """How a process ended, by its exit code or minus the signal: `exit code 3`, `killed by SIGKILL`.

    A shell reports the signal that ended its command as 128 plus its number: `exit code 137 (SIGKILL)`.
    """
    if code < 0:
        return f"killed by {_signal_name(-code)}"
    return f"exit code {code}" + (
        f" ({_signal_name(code - SHELL_SIGNAL)})" if code - SHELL_SIGNAL in signal.valid_signals() else ""
    )


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


def list_some(names: Sequence[str], most: int = 3) -> str:
    """The first names, and how many more there are; `none` without any."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more or "none"


def printable(text: str) -> str:
    r"""The text, with control characters and bytes that are not UTF-8 escaped, as in `a\nb` and `caf\xe9`.

    Python represents such a byte of a file name by a surrogate, `\udce9`, which cannot be written as UTF-8.
    """
    if text.isprintable():
        return text
    escaped = "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)
    return escaped.replace("\\udc", "\\x")


def is_number(text: str) -> bool:
    """Whether a text is a number, as Python reads it: also `1e-5`, `nan` and `inf`."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def _abbreviates(one: str, other: str) -> bool:
    """Whether one word has the initials of the other, as `lr` and `learning_rate`."""
    initials = ["".join(part[:1] for part in word.split("_")) for word in (one, other)]
    return (len(initials[1]) > 1 and one == initials[1]) or (len(initials[0]) > 1 and other == initials[0])


def suggest(word: str, words: Iterable[str], *, otherwise: str = "") -> str:
    """The known word closest to an unknown one, as a question; if none is close, `otherwise`, or all known words."""
    words = list(words)
    close = difflib.get_close_matches(word[:100], words, n=1) or [name for name in words if _abbreviates(word, name)]
    if close:
        return f"did you mean {close[0]!r}?"
    if otherwise:
        return otherwise
    return f"known: {', '.join(words)}" if words else "none is defined"
