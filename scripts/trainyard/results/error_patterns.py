"""What errors of different trials have in common."""

import re
from collections.abc import Mapping
from typing import Any, Final

from trainyard.config.placeholders import format_argument
from trainyard.utils.import_path import CODE_LOCATION

ERROR_NUMBER: Final = re.compile(r"\[Errno \d+\] ")  # of Python's OSError; its digits are no value of a trial


def error_pattern(error: str, trial: str, values: Mapping[str, Any]) -> str:
    """An error with placeholders for a trial's name and the values of its varied keys, to compare it between trials."""
    location = CODE_LOCATION.search(error)
    message = error[: location.start()] if location else error
    kind, colon, words = ERROR_NUMBER.sub("", message).partition(": ")
    for text, key in sorted(_texts(trial, values).items(), key=lambda item: -len(item[0])):
        if text in words:  # thousands of trials have as many patterns to compile
            words = re.sub(rf"(?<![\w.]){re.escape(text)}(?![\w.])", key, words)
    return kind + colon + words + (location[0] if location else "")


def _texts(trial: str, values: Mapping[str, Any]) -> dict[str, str]:
    """A trial's name and values as a program's output may show them, and the placeholders for them."""
    placeholders = {trial: "{trial}"}
    for key, value in values.items():
        if isinstance(value, (str, int, float)) and str(value):
            placeholders[str(value)] = f"{{{key}}}"
            placeholders[format_argument(value)] = f"{{{key}}}"
    return placeholders
