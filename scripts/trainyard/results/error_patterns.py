"""What errors of different trials have in common."""

import re
from collections.abc import Sequence
from typing import Final

from trainyard.config.placeholders import dotted_items, format_argument
from trainyard.config.trials import Values
from trainyard.planning.history import History
from trainyard.utils.errors import mentions_gpu_memory
from trainyard.utils.import_path import CODE_LOCATION
from trainyard.utils.text import count_of

OUT_OF_MEMORY: Final = "ran out of GPU memory"
ERROR_NUMBER: Final = re.compile(r"\[Errno \d+\] ")  # of Python's OSError; its digits are no value of a trial


def error_pattern(error: str, trial: str, values: Values) -> str:
    """An error with placeholders for a trial's name and the values of its varied keys, to compare it between trials."""
    if mentions_gpu_memory(error):  # with another number of bytes in each trial
        return OUT_OF_MEMORY
    location = CODE_LOCATION.search(error)
    message = error[: location.start()] if location else error
    kind, colon, words = ERROR_NUMBER.sub("", message).partition(": ")
    placeholders = {trial: "{trial}"}  # by what a program's output may show
    for key, value in values.items():
        if isinstance(value, (str, int, float)) and str(value):
            placeholders |= dict.fromkeys((str(value), format_argument(value)), f"{{{key}}}")
    for text, key in sorted(placeholders.items(), key=lambda item: -len(item[0])):
        if text in words:  # thousands of trials have as many patterns to compile
            words = re.sub(rf"(?<![\w.]){re.escape(text)}(?![\w.])", key, words)
    return kind + colon + words + (location[0] if location else "")


def describe_out_of_memory(state: History) -> list[str]:
    """How many trials ran out of GPU memory, and the values of the key that tells them from those that ran: a line."""
    values = [dict(dotted_items(each.trial.values)) for each in state.records if each.out_of_memory]
    ran = [dict(dotted_items(each.trial.values)) for each in state.records if each.end]
    if not values:
        return []
    conditions = {key: _condition(key, values, ran) for key in values[0]} if ran else {}
    shared = {key: condition for key, condition in conditions.items() if condition}
    # Keys whose values belong together say the same. Of others, some may do so by chance.
    one = len({_part_of_grid(state, key) for key in shared}) == 1
    every = "all " if len(values) > 1 else ""
    words = f", {every}with {' and '.join(shared.values())}" if one else ""
    return [f"{count_of(len(values), 'trial')} {OUT_OF_MEMORY}{words}"]


def _part_of_grid(state: History, key: str) -> str:
    """The varied key that has a key in its mappings; else the key itself."""
    whole = next((each for each in state.varied_keys if key.startswith(f"{each}.")), key)
    return state.sweep.paired.get(whole, whole)


def _condition(key: str, values: Sequence[Values], others: Sequence[Values]) -> str:
    """What the values of a key have in common that the others do not have, in words; "" if nothing."""
    if not all(key in each for each in (*values, *others)):
        return ""
    own = [each[key] for each in values]
    theirs = [each[key] for each in others]
    if all(isinstance(each, (int, float)) and not isinstance(each, bool) for each in (*own, *theirs)):
        if min(own) > max(theirs):
            return f"{key} of {min(own)} or more"
        return f"{key} of {max(own)} or less" if max(own) < min(theirs) else ""
    is_apart = not any(each in theirs for each in own) and all(each == own[0] for each in own)
    return f"{key} of {own[0]}" if is_apart else ""
