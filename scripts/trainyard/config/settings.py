"""The file of settings that a program reads: the user's own, with the values of a trial at their places."""

import json
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path, PurePath
from typing import Any, Final

import yaml
from pydantic import Field

from trainyard.config.parser import read_as_written, write_yaml
from trainyard.config.placeholders import dotted_items, unnamed_items
from trainyard.config.train import Section, invalid
from trainyard.utils.files import atomic_write, digest_of, expand_path
from trainyard.utils.text import suggest

SETTINGS: Final = "settings"  # the placeholder
_PARSERS: Final[Mapping[str, Callable[[str], Any]]] = {
    ".json": json.loads, ".yaml": read_as_written, ".yml": read_as_written, ".toml": tomllib.loads,
}  # fmt: skip


class Settings(Section):
    """A file of settings as it was when the config was read, so that all trials have the same."""

    file: str = Field(description="Its name, whose suffix tells its format.")
    text: str | None = Field(None, description="Its content; without it, the file of a trial has the arguments alone.")

    def _problems(self) -> Iterator[str]:
        if self._suffix not in _PARSERS:
            endings = "must end in .json, .yaml, .yml or .toml"
            yield f"{self.file} {endings}; json, yaml or toml alone is a file with the arguments only"
        try:
            is_mapping = self.text is None or isinstance(self.content, dict)
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            yield f"{self.file} cannot be read: {' '.join(str(error).split())}"
            return
        if not is_mapping:
            yield f"{self.file} must be a mapping of settings"

    @property
    def _suffix(self) -> str:
        return PurePath(self.file).suffix

    @property
    def name(self) -> str:
        """The name of the file of a trial, in its folder."""
        return f"{SETTINGS}{self._suffix}"

    @cached_property
    def digest(self) -> str:
        """Identifies the format and the content."""
        return digest_of([self._suffix, self.text])

    @cached_property
    def content(self) -> Any:
        """What a program reads from the file, before the values of a trial are set."""
        return _PARSERS[self._suffix](self.text or "")

    def check(self, args: Mapping[str, Any], named: Collection[str]) -> None:
        """Raise a PydanticCustomError if the file has no place for an argument that is not among those `named`."""
        content, absent = self._fill(args)
        self._check_aliases({key for key, _ in dotted_items(args)})
        for key, _ in unnamed_items(dict.fromkeys(absent), named):
            known = [name for name, _ in dotted_items(self.content)]
            hint = suggest(key, [name for name in known if name.endswith(f".{key}")] or known)
            raise invalid(f"{self.file} has no {key}: add it there if the program reads it; {hint}")
        if self._suffix == ".toml":
            try:
                is_same = tomllib.loads(_toml(content)) == content
            except (TypeError, ValueError):
                is_same = False
            if not is_same:
                raise invalid("null, dates, nan and inf cannot be written as TOML here: use YAML, or other values")

    def _check_aliases(self, given: set[str]) -> None:
        """Raise a PydanticCustomError if a value that is given has an anchor, and one of its aliases is not given."""
        places = dict(dotted_items(self.content)) if self._suffix in (".yaml", ".yml") and self.text else {}
        for key in given & places.keys():
            value = places[key]
            is_node = isinstance(value, list) or hasattr(value, "style")  # equal numbers may be one object, too
            first, *aliases = [name for name, other in places.items() if other is value]
            left = [name for name in aliases if name not in given]
            if is_node and key == first and left:
                raise invalid(f"{self.file}: {key} has an anchor, and {left[0]} would keep its value: give both")

    def write(self, folder: Path, args: Mapping[str, Any]) -> str:
        """Write the file of a trial with these arguments in its folder; returns its path."""
        content, _ = self._fill(args)
        path = folder / self.name
        with atomic_write(path) as file:
            if self._suffix == ".json":
                json.dump(content, file, indent=2)
            elif self._suffix == ".toml":
                file.write(_toml(content))
            else:
                file.write(write_yaml(content))
        return str(path)

    def _fill(self, args: Mapping[str, Any]) -> tuple[Any, list[str]]:
        """The content with these arguments, and the keys of those for which it has no place."""
        if self.text is None:
            return args, []
        content = self.content
        absent = list[str]()
        for key, value in dotted_items(args):
            changed = _with_value(content, key, value)
            if changed is None:
                absent.append(key)
            else:
                content = changed
        return content, absent


def read_settings(content: Any) -> Any:
    """The file that a config names, with its content, or the name of a format; anything else is for Pydantic."""
    if not isinstance(content, str):
        return content
    if f".{content}" in _PARSERS:
        return {"file": f"{SETTINGS}.{content}"}
    return {"file": content, "text": read_text(content)}


def read_text(file: str) -> str:
    """The text of a file that the config names; a PydanticCustomError if it cannot be read."""
    try:
        return expand_path(file).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise invalid(f"{file} cannot be read ({error})") from None


def _with_value(content: Any, key: str, value: Any) -> Any:
    """A copy of a mapping or list with a value at a dotted key; None if it has no such key.

    Only what changes is copied, since YAML's aliases are one object in several places.
    """
    items: Iterable[tuple[Any, Any]] = ()
    if isinstance(content, dict):
        items = content.items()
    elif isinstance(content, list):
        items = enumerate(content)
    for name, inner in items:
        changed = value
        if key == str(name):
            if isinstance(inner, dict) and value is not None:
                raise invalid(f"{key} is a section of the settings: give values for its keys, such as {key}.lr")
        elif key.startswith(f"{name}."):
            changed = _with_value(inner, key.removeprefix(f"{name}."), value)
            if changed is None:
                continue
        else:
            continue
        copy = content.copy()
        copy[name] = changed
        return copy
    return None


def _toml(content: Mapping[str, Any]) -> str:
    """A mapping in TOML. Its inline values are as in JSON, but for what stands between names and values."""
    inline = json.JSONEncoder(separators=(", ", " = "), ensure_ascii=False)
    return "".join(f"{json.dumps(key)} = {inline.encode(value)}\n" for key, value in content.items())
