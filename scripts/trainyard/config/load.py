"""Reads and merges config files, and reports all errors at once: place, reason, value and suggestion."""

import json
import math
import re
import types
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError

from trainyard.config.config import Config
from trainyard.config.datasets import Table
from trainyard.config.sweep import Sweep
from trainyard.config.trials import CostError, Expansion, expand, relative_cost
from trainyard.utils.errors import UserError
from trainyard.utils.text import suggest


class ConfigError(UserError):
    """The config has errors; the message has one line for each."""


def read_config(path: Path) -> Config:
    """The checked config of a YAML or JSON file.

    Raises:
        ConfigError: the file is missing, cannot be parsed, or has errors.
    """
    return check_config(_read(path), source=str(path))


def _read(path: Path) -> Any:
    """The content of a config file; templates (`__use_yte__`) are rendered as by Snakemake."""
    parse, kind = (_parse_json, "JSON") if path.suffix == ".json" else (_parse_yaml, "YAML")
    try:
        raw = parse(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"{path}: not valid {kind}: {error}") from None
    except RecursionError:
        raise ConfigError(f"{path}: cannot be read: it is nested too deeply") from None
    if isinstance(raw, dict) and raw.get("__use_yte__"):
        import yte

        return yte.process_yaml(yaml.safe_dump(raw, sort_keys=False), require_use_yte=True)
    return raw


def check_config(raw: Any, *, source: str = "config") -> Config:
    """The checked config of a file's content, or a ConfigError that lists all errors."""
    try:
        config = Config.model_validate(raw)
        problems = list(_cross_checks(config))
    except ValidationError as error:
        problems = [_describe(item) for item in error.errors(include_url=False)]
    if problems := list(dict.fromkeys(problems)):  # the members of a union can report the same error
        count = "1 error" if len(problems) == 1 else f"{len(problems)} errors"
        raise ConfigError(f"{count} in {source}:\n" + "\n".join(f"  {problem}" for problem in problems))
    return config


def compose(files: Sequence[Path], command_line: Mapping[str, Any]) -> dict[str, Any]:
    """Merge config files and `--config`: later files override earlier ones, and `--config` overrides all of them.

    Snakemake merges them in the same way, but it reads numbers as YAML 1.1 (`1e-5` is text), and the values of
    `--config` as text; this function reads numbers as YAML 1.2 in both. `--config` can also select studies: `all`,
    `none` or names as the value of a section. Then only the datasets that these studies need are kept.

    Raises:
        ConfigError: a file cannot be read, or a selected study does not exist.
    """
    whole: dict[str, Any] = {}
    for path in files:
        if not isinstance(content := _read(path), Mapping):
            raise ConfigError(f"{path}: must be a mapping of sections")
        whole = _merge(whole, content)
    typed = {name: _parse_value(value) if isinstance(value, Mapping) else value for name, value in command_line.items()}
    return _select(_merge(whole, typed), whole)


def _select(raw: dict[str, Any], whole: Mapping[str, Any]) -> dict[str, Any]:
    """The config with the studies that the command line selects, as the files define them."""
    selections = {section: raw[section] for section in STUDIES if isinstance(raw.get(section), (str, list, int))}
    if not selections:
        return raw
    chosen = {section: dict(raw.get(section) or {}) for section in STUDIES if section not in selections}
    for section, names in selections.items():
        known = whole.get(section) or {}
        words = [str(name) for name in names] if isinstance(names, list) else str(names).split(",")
        words = list(known) if words == ["all"] else [] if words == ["none"] else words
        if unknown := [name for name in words if name not in known]:
            hint = suggest(unknown[0], known)
            raise ConfigError(f"--config {section}: there is no {unknown[0]!r}; {hint} (or `all`, or `none`)")
        chosen[section] = {name: known[name] for name in words}
    needed = {study.get("dataset") for section in chosen.values() for study in section.values()}
    datasets = {name: dataset for name, dataset in (raw.get("datasets") or {}).items() if name in needed}
    return {**raw, **chosen, "datasets": datasets}


def _merge(value: Any, more: Any) -> Any:
    """Merge two values as Snakemake does: mappings are merged, everything else is replaced."""
    if not isinstance(more, Mapping):
        return more
    known = value if isinstance(value, Mapping) else {}
    return {**known, **{key: _merge(known.get(key), inner) for key, inner in more.items()}}


def _parse_value(value: Any) -> Any:
    """A value of `--config`, which Snakemake passes as text, with the type that it would have in a file."""
    if isinstance(value, Mapping):
        return {key: _parse_value(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_parse_value(inner) for inner in value]
    if not isinstance(value, str):
        return value
    loader = _Loader("")
    tag = loader.resolve(yaml.ScalarNode, value, (True, False))
    plain = tag in {_TAG + kind for kind in ("int", "float", "bool", "null")}
    try:
        return loader.construct_object(yaml.ScalarNode(tag, value)) if plain else value
    except (yaml.YAMLError, ValueError):
        remedy = "if it is text, put it in a config file, in quotes"
        raise ConfigError(f"--config: {value[:40]} cannot be read as a number; {remedy}") from None


STUDIES: Final = ("sweeps", "scaling", "trees")


_TAG: Final = "tag:yaml.org,2002:"
_PLAIN_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast, if PyYAML is built with it


class _Loader(_PLAIN_LOADER):  # type: ignore[misc]
    """YAML 1.1, as in Snakemake, but with the numbers of YAML 1.2: `1e-5` is a number, `1:30` is not, `012` is 12."""

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


def _parse_yaml(text: str) -> Any:
    loader = _Loader(text)
    if (root := loader.get_single_node()) is None:
        return {}
    _check_keys(root, set(), ())
    return loader.construct_document(root)


def _check_keys(node: yaml.Node, seen: set[int], above: tuple[int, ...]) -> None:
    """Convert all keys to text, and reject duplicate keys, which PyYAML accepts, and aliases to a parent node.

    `above` has the ids of the node's parents, `seen` those of all nodes that are checked.
    """
    if id(node) in above:
        raise ValueError(f"the node that begins in line {node.start_mark.line + 1} contains itself (alias)")
    if id(node) in seen or isinstance(node, yaml.ScalarNode):
        return
    seen.add(id(node))
    names = set[str]()
    for item in node.value:
        key, value = item if isinstance(node, yaml.MappingNode) else (None, item)
        if isinstance(key, yaml.ScalarNode) and key.tag != _TAG + "merge":
            if key.value in names:
                message = f"duplicate key {key.value!r}"
                raise yaml.constructor.ConstructorError(None, None, message, key.start_mark)
            names.add(key.value)
            key.tag = _TAG + "str"
        _check_keys(value, seen, (*above, id(node)))


def _parse_json(text: str) -> Any:
    return json.loads(text, object_pairs_hook=_unique)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A mapping of a JSON file, whose keys must be unique."""
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"duplicate key {next(name for name in names if names.count(name) > 1)!r}")
    return mapping


def _cross_checks(config: Config) -> Iterator[str]:
    """Errors in the references between sections, and in trials."""
    for section in STUDIES:
        for name, study in getattr(config, section).items():
            place = f"{section}.{name}"
            if study.dataset is None:
                continue
            if study.dataset not in config.datasets:
                hint = suggest(study.dataset, config.datasets)
                yield f"{place}.dataset: there is no dataset {study.dataset!r}; {hint}"
            elif section != "trees" and isinstance(config.datasets[study.dataset], Table):
                yield f"{place}.dataset: {study.dataset!r} is a table, which only `trees` can train on"
    for name, sweep in config.sweeps.items():
        yield from _sweep_errors(name, sweep)


def _sweep_errors(name: str, sweep: Sweep) -> Iterator[str]:
    """The errors of all trials; the same error in several trials is reported once."""
    expansion = expand(sweep)
    if not (expansion.trials or expansion.errors or sweep.search):
        yield f"sweeps.{name}: has no trials; give `grid`, `trials`, `sample` or `search`"
    if sweep.cost is not None and (error := _cost_error(sweep.cost, expansion)):
        yield f"sweeps.{name}.cost: {error}"
    texts = [f"sweeps.{name}.{place}{text}" for place, error in expansion.errors for text in _trial_errors(name, error)]
    yield from dict.fromkeys(texts)


def _cost_error(cost: str, expansion: Expansion) -> CostError | None:
    """The error of the first trial whose relative cost cannot be evaluated, if any."""
    for trial in (*expansion.trials, *expansion.examples):
        try:
            relative_cost(cost, trial)
        except CostError as error:
            return error
    return None


def _trial_errors(name: str, error: Exception) -> list[str]:
    """The errors of one trial; suggestions for its keys come from the sweep's `train`."""
    if not isinstance(error, ValidationError):
        return [f": {error}"]
    items = error.errors(include_url=False)
    places = [".".join(map(str, item["loc"])) for item in items]
    reasons = [_reason({**item, "loc": ("sweeps", name, "train", *item["loc"])}) for item in items]
    return [f".{place}: {reason}" for place, reason in zip(places, reasons, strict=True)]


def _describe(item: Any) -> str:
    """One validation error as `place: reason`."""
    place = ".".join(str(part) for part in _visible(item["loc"])) or "the file"
    return f"{place}: {_reason(item)}"


def _reason(item: Any) -> str:
    """The reason of an error, with the value found or a suggestion."""
    loc = item["loc"]
    if item["type"] == "extra_forbidden":
        return f"unknown key; {suggest(str(loc[-1]), _keys_at(loc[:-1]))}"
    if item["type"] in ("union_tag_invalid", "literal_error"):
        expected = item["ctx"].get("expected_tags") or item["ctx"]["expected"]
        options = [option.strip(" '") for option in expected.replace(" or ", ",").split(",")]
        given = item["ctx"].get("tag", item["input"])
        return f"{given!r} is not known; {suggest(str(given), options)}"
    if item["type"] == "missing":
        return "is required, but missing"
    if item["type"] == "string_pattern_mismatch":
        return f"{item['input']!r} is not valid; {_PATTERN_HINTS.get(item['ctx']['pattern'], item['msg'])}"
    value = "" if isinstance(item["input"], (dict, list, BaseModel)) else f" (is {item['input']!r})"
    return f"{item['msg'][0].lower()}{item['msg'][1:]}{value}"


_PATTERN_HINTS = {
    "^[A-Za-z0-9][A-Za-z0-9_-]*$": "a name is used for a folder: letters, digits, `_` and `-`, no leading `_` or `-`",
    "^[1-9][0-9]*x[1-9][0-9]*$": "a scale is <nodes>x<gpus per node>, as in 2x4",
    r"^(fastest|cheapest|deadline [0-9]+(\.[0-9]+)? ?(min|h|d))$": "use fastest, cheapest or, say, deadline 2h",
    r"^(md5:[0-9a-f]{32}|sha256:[0-9a-f]{64})$": "a checksum is md5:... or sha256:..., in full",
    r"^https?://[^/]+/.*[^/]$": "a URL begins with http:// or https:// and ends in the name of a file",
    r"\.(jsonl|json|csv)$": "a metrics file must end in .jsonl, .json or .csv",
    r"^[\w.]+:\w+$": "a function is package.module:name",
    r"\.(csv|parquet)$": "a table must end in .csv or .parquet",
}


_UNION_TAGS = {"list", "mapping", "[key]", "digits", "torchvision", "imagefolder", "synthetic", "table", "python"}


def _visible(loc: tuple[Any, ...]) -> Iterator[Any]:
    """A place without the parts that Pydantic adds for the branches of a union."""
    annotation: Any = Config
    for part in loc:
        inner = _step(annotation, part)
        if not (inner is annotation and part in _UNION_TAGS) and part not in ("int", "float", "dict[str,int]"):
            yield part
        annotation = inner


def _keys_at(loc: tuple[Any, ...]) -> list[str]:
    """The keys that the section at this place can have."""
    annotation: Any = Config
    tag = None
    for part in loc:
        annotation, tag = _step(annotation, part), part
    models = [model for model in _branches(annotation) if isinstance(model, type) and issubclass(model, BaseModel)]
    tagged = [model for model in models if tag in get_args(_source_annotation(model))]
    return sorted({field for model in tagged or models for field in model.model_fields})


def _source_annotation(model: type[BaseModel]) -> Any:
    field = model.model_fields.get("source")
    return field.annotation if field else None


def _step(annotation: Any, part: Any) -> Any:
    """The type of the value at `part`; the type itself if `part` only names a branch of a union."""
    for branch in _branches(annotation):
        if isinstance(branch, type) and issubclass(branch, BaseModel):
            if part in branch.model_fields:
                field = branch.model_fields[part]
                return Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation
        elif get_origin(branch) in (dict, Mapping):
            return get_args(branch)[1]
        elif get_origin(branch) is list and isinstance(part, int):
            return get_args(branch)[0]
    return annotation


def _branches(annotation: Any) -> list[Any]:
    """The members of a union, flattened; any other type as the only member."""
    if get_origin(annotation) is Annotated:
        return _branches(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return [branch for member in get_args(annotation) for branch in _branches(member)]
    return [annotation]
