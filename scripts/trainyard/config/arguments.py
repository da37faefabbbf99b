"""The words that `{args}` in a command stands for: all arguments, in the style that the program's parser reads."""

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Final

# What Hydra reads as text without quotes, unless it is one of the words after that.
_HYDRA_TEXT: Final = re.compile(r"[A-Za-z_/][\w/.-]*", re.ASCII)
_HYDRA_CONSTANTS: Final = ("true", "false", "null", "inf", "nan")


class Words(list[str]):
    """Words of a command line; any other value is one word."""


def list_words(style: str, args: Mapping[str, Any], *, besides: Collection[str]) -> Words:
    """All arguments in one of STYLES, but those whose place in the command is given by name, as `{lr}`."""
    left = (
        (key, value)
        for key, value in dotted_items(args)
        if not any(f"{key}.".startswith(f"{name}.") for name in besides)
    )
    return Words(word for key, value in left for word in STYLES[style](key, value))


def format_argument(value: Any) -> str:
    """A value as an argument of a program: text unchanged, everything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value)


def dotted_items(mapping: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The dotted keys and values of a nested mapping."""
    for key, value in mapping.items():
        if isinstance(value, Mapping):
            yield from dotted_items(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _options(key: str, value: Any) -> list[str]:
    """`--key value`; true is the option alone, false and null are nothing, a list is several words."""
    if value is True:
        return [f"--{key}"]
    if value is None or value is False:
        return []
    if isinstance(value, list):
        return [f"--{key}", *map(format_argument, value)]
    text = format_argument(value)
    return [f"--{key}={text}"] if text.startswith("-") else [f"--{key}", text]  # -1e-05 looks like an option


def _hydra_value(value: Any) -> str:
    """A value in the grammar of Hydra's overrides."""
    if isinstance(value, str):
        plain = _HYDRA_TEXT.fullmatch(value) and value.lower() not in _HYDRA_CONSTANTS
        return value if plain else _quote_for_hydra(value)
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{_hydra_value(key)}:{_hydra_value(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_hydra_value, value)) + "]"
    return repr(value) if isinstance(value, float) else json.dumps(value)  # `inf`, not JSON's `Infinity`


def _quote_for_hydra(text: str) -> str:
    """Text in single quotes. Hydra reads backslashes as escapes only before a quote."""
    return "'" + re.sub(r"(\\*)('|\Z)", lambda end: 2 * end[1] + ("\\'" if end[2] else ""), text) + "'"


STYLES: Final[Mapping[str, Callable[[str, Any], list[str]]]] = {
    "args": _options,  # --batch_size 64
    "args:dashes": lambda key, value: _options(key.replace("_", "-"), value),  # --batch-size 64
    "args:hydra": lambda key, value: [f"{key}={_hydra_value(value)}"],  # batch_size=64
}
