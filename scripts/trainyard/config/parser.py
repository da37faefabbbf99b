"""Reads and writes config files: YAML 1.1 with the numbers of YAML 1.2, or JSON."""

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, Final

import yaml
from pydantic_core import to_jsonable_python

from trainyard.utils.errors import UserError
from trainyard.utils.typed_commands import absent_config

# What PyYAML says of text that needs quotes.
PLAIN_TEXT: Final = (
    "did not find expected key",
    "did not find expected '-' indicator",
    "mapping values are not allowed in this context",
)
MAX_DEPTH: Final = 60  # a node that contains itself by an alias is deeper


class ConfigError(UserError):
    """The config has errors; the message has one line for each."""


def read_file(path: Path) -> Any:
    """The content of a config file.

    Raises:
        ConfigError: it cannot be read or parsed.
    """
    kind = "JSON" if path.suffix == ".json" else "YAML"
    text = ""
    try:
        text = path.read_text(encoding="utf-8-sig")
        raw = json.loads(text, object_pairs_hook=_unique) if kind == "JSON" else _parse_yaml(text)
    except FileNotFoundError:
        raise ConfigError(absent_config(path)) from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None
    except yaml.MarkedYAMLError as error:
        raise ConfigError(f"{path}{_place(error)}: not valid {kind}: {_problem(error, text)}") from None
    except json.JSONDecodeError as error:
        place = f", line {error.lineno}, column {error.colno}"
        raise ConfigError(f"{path}{place}: not valid {kind}: {error.msg}") from None
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"{path}: not valid {kind}: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise ConfigError(f"{path}: cannot be read: it is nested too deeply") from None
    return raw


def _place(error: yaml.MarkedYAMLError) -> str:
    """Line and column of an error in a YAML file, where PyYAML knows them."""
    mark = error.problem_mark or error.context_mark
    return f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""


def _problem(error: yaml.MarkedYAMLError, text: str) -> str:
    """What is wrong, and in which context, with a remedy for the mistakes that are made most often."""
    began = f" (begun in line {error.context_mark.line + 1})" if error.context and error.context_mark else ""
    problem = f"{error.context}{began}: {error.problem}" if error.context else str(error.problem)
    mark = error.problem_mark
    line = next(iter(text.splitlines()[mark.line :]), "") if mark else ""
    remedy = ""
    if mark and "\t" in line[: mark.column + 1]:
        remedy = "; indent with spaces, not with tabs"
    elif "(?P<" in line and not re.search(r"""['"].*\(\?P<""", line):
        remedy = "; put the pattern in single quotes: '...'"
    elif mark and error.problem in PLAIN_TEXT and re.search(r"(:|^\s*-)\s", line[: mark.column]):
        remedy = "; put the value in '...', with each ' in it as ''"
    elif (error.context or "").startswith("while parsing a flow"):
        remedy = "; is its bracket closed?"
    elif error.problem == "did not find expected key":
        remedy = f"; indent {line.strip()!r} as a key above it"
    if "escape character" in problem:
        remedy = "; put text with backslashes, such as a pattern, in single quotes"
    return " ".join(problem.split()) + remedy


def find_unusable(raw: Any) -> str | None:
    """The place and problem of the first value, however deep, that is no text, number, list or mapping."""
    return next(_unusable(raw, ()), None)


def _unusable(value: Any, place: tuple[str, ...]) -> Iterator[str]:
    """What is wrong, with its place."""
    if len(place) > MAX_DEPTH:
        yield f"{place[0]}: is nested too deeply (more than {MAX_DEPTH} levels)"
    elif isinstance(value, (Mapping, list)):
        for key, inner in value.items() if isinstance(value, Mapping) else enumerate(value):
            if problem := _problem_of(key):
                yield f"{'.'.join(place) or 'the file'}: the key {str(key)[:40]!r} {problem}"
            yield from _unusable(inner, (*place, str(key)[:40]))
    elif problem := _problem_of(value):
        yield f"{'.'.join(place)}: {problem}"


def _problem_of(value: Any) -> str:
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return "is too large for an integer; if it is text, write it in quotes"
    if value is None or isinstance(value, (str, int, float, date)):
        return ""
    return f"is a {type(value).__name__}; use text, numbers, lists or mappings"


_TAG: Final = "tag:yaml.org,2002:"
_PLAIN_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast, if PyYAML is built with it


class _Loader(_PLAIN_LOADER):  # type: ignore[misc]
    """YAML 1.1, as in Snakemake, but with the numbers of YAML 1.2: `1e-5` is a number, `1:30` is not, `012` is 12.

    Dates are text, as in JSON, in which the jobs read the config.
    """

    def construct_integer(self, node: Any) -> int:
        """An integer; octal with `0o`, hexadecimal with `0x`."""
        text = node.value.replace("_", "")
        return int(text, 0 if text.lstrip("+-")[:2] in ("0o", "0x") else 10)

    def construct_finite(self, node: Any) -> float:
        """A float; an error if the number is too large for one."""
        value = float(self.construct_yaml_float(node))
        if math.isinf(value) and "inf" not in node.value.lower():
            message = f"{node.value} is too large for a number; if it is text, write it in quotes"
            raise yaml.constructor.ConstructorError(None, None, message, node.start_mark)
        return value

    def construct_date(self, node: Any) -> str:
        """A date or time as text, such as `2024-01-01`."""
        return str(to_jsonable_python(self.construct_yaml_timestamp(node)))


_INTEGER: Final = re.compile(r"[-+]?(?:[0-9][0-9_]*|0o[0-7]+|0x[0-9a-fA-F]+)\Z")
_FLOAT: Final = re.compile(
    r"[-+]?(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*|[0-9][0-9_]*(?=[eE]))(?:[eE][-+]?[0-9]+)?\Z"
    r"|[-+]?\.(?:inf|Inf|INF)\Z|\.(?:nan|NaN|NAN)\Z"
)
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in known if tag not in (_TAG + "int", _TAG + "float")]
    for first, known in _Loader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(_TAG + "int", _INTEGER, list("-+0123456789"))
_Loader.add_implicit_resolver(_TAG + "float", _FLOAT, list("-+.0123456789"))
_Loader.add_constructor(_TAG + "int", _Loader.construct_integer)
_Loader.add_constructor(_TAG + "float", _Loader.construct_finite)
_Loader.add_constructor(_TAG + "timestamp", _Loader.construct_date)


@dataclass(frozen=True)
class InLine:
    """A mapping or list that is written in one line, as in `{low: 0, high: 1}`."""

    value: Any


class _Written(str):
    """A scalar as it stands in a file, with its quotes."""

    style: str | None


class _WrittenLoader(yaml.SafeLoader):
    """Leaves scalars as they are written: what `1e-3`, `on` and `010` are depends on the program's reader of YAML."""

    def construct_written(self, node: yaml.ScalarNode) -> Any:
        """The scalar; its value if it has a tag."""
        is_plain = node.style is None
        tag = self.resolve(yaml.ScalarNode, node.value, (is_plain, not is_plain))  # type: ignore[no-untyped-call]
        if node.tag != tag:
            return yaml.SafeLoader.yaml_constructors[node.tag](self, node)
        written = _Written(node.value if node.value or node.style else "null")
        written.style = node.style
        return written


for _kind in ("null", "bool", "int", "float", "timestamp", "str"):
    _WrittenLoader.add_constructor(_TAG + _kind, _WrittenLoader.construct_written)


def read_as_written(text: str) -> Any:
    """The content of a YAML file whose scalars `write_yaml` writes again as they are."""
    return yaml.load(text, _WrittenLoader)


class _Dumper(yaml.SafeDumper):
    """Writes YAML without aliases; text that `_Loader` or YAML 1.1 would read as something else is quoted."""

    def ignore_aliases(self, data: Any) -> bool:
        """Write equal values twice: people read the file."""
        return True

    def represent_text(self, text: str) -> yaml.ScalarNode:
        """Text of several lines as a block."""
        return self.represent_scalar(_TAG + "str", text, style="|" if "\n" in text else None)

    def represent_written(self, scalar: _Written) -> yaml.ScalarNode:
        """The scalar as it was."""
        plain = self.resolve(yaml.ScalarNode, scalar, (True, False))  # type: ignore[no-untyped-call]
        tag = _TAG + "str" if scalar.style else plain
        return self.represent_scalar(tag, str(scalar), style=scalar.style)

    def represent_in_line(self, content: InLine) -> yaml.Node:
        """The mapping or list in one line."""
        node = self.represent_data(content.value)
        assert isinstance(node, yaml.CollectionNode)
        node.flow_style = True
        return node


_Dumper.add_implicit_resolver(_TAG + "int", _INTEGER, list("-+0123456789"))
_Dumper.add_implicit_resolver(_TAG + "float", _FLOAT, list("-+.0123456789"))
_Dumper.add_representer(str, _Dumper.represent_text)
_Dumper.add_representer(_Written, _Dumper.represent_written)
_Dumper.add_representer(InLine, _Dumper.represent_in_line)


def write_yaml(content: Any) -> str:
    """The text of a config file from which `read_file` reads this content."""
    return yaml.dump(content, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


def _parse_yaml(text: str) -> Any:
    loader = _Loader(text)
    if (root := loader.get_single_node()) is None:
        return {}
    _check_keys(root, set())
    return loader.construct_document(root)


def _check_keys(node: yaml.Node, seen: set[int]) -> None:
    """Convert all keys to text, and reject duplicate keys, which PyYAML accepts."""
    if isinstance(node, yaml.ScalarNode) or id(node) in seen:
        return
    seen.add(id(node))
    lines = dict[str, int]()
    for item in node.value:
        key, value = item if isinstance(node, yaml.MappingNode) else (None, item)
        if isinstance(key, yaml.ScalarNode) and key.tag != _TAG + "merge":
            if key.value in lines:
                message = f"duplicate key {key.value!r}, which line {lines[key.value]} has, too"
                raise yaml.constructor.ConstructorError(None, None, message, key.start_mark)
            lines[key.value] = key.start_mark.line + 1
            key.tag = _TAG + "str"
        _check_keys(value, seen)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A mapping of a JSON file, whose keys must be unique."""
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"duplicate key {next(name for name in names if names.count(name) > 1)!r}")
    return mapping


def parse_value(value: Any) -> Any:
    """A value of `--config`, which Snakemake passes as text, with the type that it would have in a file."""
    if isinstance(value, Mapping):
        return {key: parse_value(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [parse_value(inner) for inner in value]
    if not isinstance(value, str):
        return to_jsonable_python(value) if isinstance(value, date) else value
    loader = _Loader("")
    tag = loader.resolve(yaml.ScalarNode, value, (True, False))
    plain = tag in {_TAG + kind for kind in ("int", "float", "bool", "null")}
    try:
        return loader.construct_object(yaml.ScalarNode(tag, value)) if plain else value
    except (yaml.YAMLError, ValueError):
        remedy = "if it is text, put it in a config file, in quotes"
        raise ConfigError(f"--config: {value[:40]} cannot be read as a number; {remedy}") from None
