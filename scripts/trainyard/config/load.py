"""Reading a config file, and reporting all that is wrong with it at once: place, value, reason, suggestion."""

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
    """The config is wrong; the message has one line per error."""


def read_config(path: Path) -> Config:
    """Read and check a YAML or JSON file.

    Raises:
        ConfigError: the file is missing, cannot be parsed, or says something that cannot be meant.
    """
    return check_config(_read(path), source=str(path))


def _read(path: Path) -> Any:
    """What a config file holds. Snakemake's templates (`__use_yte__`) are filled in."""
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
    """Turn what a config file holds into a `Config`, or raise a `ConfigError` that lists every mistake."""
    try:
        config = Config.model_validate(raw)
        problems = list(_cross_checks(config))
    except ValidationError as error:
        problems = [_describe(item) for item in error.errors(include_url=False)]
    if problems := list(dict.fromkeys(problems)):  # all members of a union may say the same
        count = "1 error" if len(problems) == 1 else f"{len(problems)} errors"
        raise ConfigError(f"{count} in {source}:\n" + "\n".join(f"  {problem}" for problem in problems))
    return config


def compose(files: Sequence[Path], command_line: Mapping[str, Any]) -> dict[str, Any]:
    """What config files and `--config` say together: later files extend earlier ones, and `--config` all of them.

    Snakemake composes them in the same way, but reads numbers by YAML 1.1 (`1e-5` is text), and gives what stands
    within a value of `--config` as text: here, numbers are read as in a file. Where `--config` says `all`, `none` or
    names for a section of studies, these are chosen; of the datasets, only those stay that are then needed.

    Raises:
        ConfigError: a file cannot be read, or has no study of such a name.
    """
    whole: dict[str, Any] = {}
    for path in files:
        if not isinstance(content := _read(path), Mapping):
            raise ConfigError(f"{path}: not a mapping of sections")
        whole = _merged(whole, content)
    typed = {name: _typed(value) if isinstance(value, Mapping) else value for name, value in command_line.items()}
    return _selected(_merged(whole, typed), whole)


def _selected(raw: dict[str, Any], whole: Mapping[str, Any]) -> dict[str, Any]:
    """The config with the studies that the command line names, as the files define them."""
    asked = {section: raw[section] for section in STUDIES if isinstance(raw.get(section), (str, list, int))}
    if not asked:
        return raw
    chosen = {section: dict(raw.get(section) or {}) for section in STUDIES if section not in asked}
    for section, names in asked.items():
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


def _merged(value: Any, more: Any) -> Any:
    """As Snakemake composes config files: mappings are merged, all else is replaced."""
    if not isinstance(more, Mapping):
        return more
    known = value if isinstance(value, Mapping) else {}
    return {**known, **{key: _merged(known.get(key), inner) for key, inner in more.items()}}


def _typed(value: Any) -> Any:
    """A value of `--config`, which Snakemake gives as text, as it would be in a file."""
    if isinstance(value, Mapping):
        return {key: _typed(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_typed(inner) for inner in value]
    if not isinstance(value, str):
        return value
    loader = _Loader("")
    tag = loader.resolve(yaml.ScalarNode, value, (True, False))
    plain = tag in {_TAG + kind for kind in ("int", "float", "bool", "null")}
    try:
        return loader.construct_object(yaml.ScalarNode(tag, value)) if plain else value
    except (yaml.YAMLError, ValueError):
        remedy = "if it is text, write it in a config file, in quotes"
        raise ConfigError(f"--config: {value[:40]} cannot be read as a number; {remedy}") from None


STUDIES: Final = ("sweeps", "scaling", "trees")


_TAG: Final = "tag:yaml.org,2002:"
_PLAIN_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast, where PyYAML has it


class _Loader(_PLAIN_LOADER):  # type: ignore[misc]
    """YAML 1.1, as Snakemake reads it, with the numbers of YAML 1.2: `1e-5` is one, `1:30` is none, `012` is 12."""

    def construct_whole(self, node: Any) -> int:
        """An integer; with `0o` or `0x`, octal or hexadecimal."""
        text = node.value.replace("_", "")
        return int(text, 0 if text.lstrip("+-")[:2] in ("0o", "0x") else 10)

    def construct_finite(self, node: Any) -> float:
        """A float, unless it is too large for one."""
        value = float(self.construct_yaml_float(node))
        if math.isinf(value) and "inf" not in node.value.lower():
            message = f"{node.value} is too large a number; if it is text, write it in quotes"
            raise yaml.constructor.ConstructorError(None, None, message, node.start_mark)
        return value


_WHOLE: Final = re.compile(r"[-+]?(?:[0-9][0-9_]*|0o[0-7]+|0x[0-9a-fA-F]+)\Z")
_FLOAT: Final = re.compile(
    r"[-+]?(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*|[0-9][0-9_]*(?=[eE]))(?:[eE][-+]?[0-9]+)?\Z"
    r"|[-+]?\.(?:inf|Inf|INF)\Z|\.(?:nan|NaN|NAN)\Z"
)
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in known if tag not in (_TAG + "int", _TAG + "float")]
    for first, known in _Loader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(_TAG + "int", _WHOLE, list("-+0123456789"))
_Loader.add_implicit_resolver(_TAG + "float", _FLOAT, list("-+.0123456789"))
_Loader.add_constructor(_TAG + "int", _Loader.construct_whole)
_Loader.add_constructor(_TAG + "float", _Loader.construct_finite)


def _parse_yaml(text: str) -> Any:
    loader = _Loader(text)
    if (root := loader.get_single_node()) is None:
        return {}
    _check_keys(root, set(), ())
    return loader.construct_document(root)


def _check_keys(node: yaml.Node, seen: set[int], above: tuple[int, ...]) -> None:
    """Make all keys text, and a key that is given twice an error: PyYAML silently drops the first.

    Also what stands within itself is an error, by an alias: `above` is what a node stands in.
    """
    if id(node) in above:
        raise ValueError(f"what begins in line {node.start_mark.line + 1} contains itself, by an alias")
    if id(node) in seen or isinstance(node, yaml.ScalarNode):
        return
    seen.add(id(node))
    names = set[str]()
    for item in node.value:
        key, value = item if isinstance(node, yaml.MappingNode) else (None, item)
        if isinstance(key, yaml.ScalarNode) and key.tag != _TAG + "merge":
            if key.value in names:
                message = f"the key {key.value!r} is given twice"
                raise yaml.constructor.ConstructorError(None, None, message, key.start_mark)
            names.add(key.value)
            key.tag = _TAG + "str"
        _check_keys(value, seen, (*above, id(node)))


def _parse_json(text: str) -> Any:
    return json.loads(text, object_pairs_hook=_unique)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A mapping of a JSON file."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(name for name in names if names.count(name) > 1)!r} is given twice")
    return found


def _cross_checks(config: Config) -> Iterator[str]:
    """What one section demands of another."""
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
    """Every trial must be a valid training; the same mistake in many trials is told once."""
    expansion = expand(sweep)
    if not (expansion.trials or expansion.errors or sweep.search):
        yield f"sweeps.{name}: has no trials; give `grid`, `trials`, `sample` or `search`"
    if sweep.cost is not None and (error := _cost_error(sweep.cost, expansion)):
        yield f"sweeps.{name}.cost: {error}"
    texts = [f"sweeps.{name}.{place}{text}" for place, error in expansion.errors for text in _trial_errors(name, error)]
    yield from dict.fromkeys(texts)


def _cost_error(cost: str, expansion: Expansion) -> CostError | None:
    """Why the relative cost of a trial cannot be told, if it cannot."""
    for trial in (*expansion.trials, *expansion.examples):
        try:
            relative_cost(cost, trial)
        except CostError as error:
            return error
    return None


def _trial_errors(name: str, error: Exception) -> list[str]:
    """What is wrong with one trial, its keys looked up where they come from: in the sweep's `train`."""
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
    """What is wrong, what stands there, and what would be right."""
    loc = item["loc"]
    if item["type"] == "extra_forbidden":
        return f"unknown key; {suggest(str(loc[-1]), _keys_at(loc[:-1]))}"
    if item["type"] in ("union_tag_invalid", "literal_error"):
        expected = item["ctx"].get("expected_tags") or item["ctx"]["expected"]
        options = [option.strip(" '") for option in expected.replace(" or ", ",").split(",")]
        given = item["ctx"].get("tag", item["input"])
        return f"{given!r} is not known; {suggest(str(given), options)}"
    if item["type"] == "missing":
        return "is required, but is not there"
    if item["type"] == "string_pattern_mismatch":
        return f"{item['input']!r} does not fit; {_PATTERN_HINTS.get(item['ctx']['pattern'], item['msg'])}"
    value = "" if isinstance(item["input"], (dict, list, BaseModel)) else f" (is {item['input']!r})"
    return f"{item['msg'][0].lower()}{item['msg'][1:]}{value}"


_PATTERN_HINTS = {
    "^[A-Za-z0-9][A-Za-z0-9_-]*$": "a name becomes a folder: letters, digits, `_` and `-`, the first a letter or digit",
    "^[1-9][0-9]*x[1-9][0-9]*$": "a scale is written <nodes>x<gpus per node>, as in 2x4",
    r"^(fastest|cheapest|deadline [0-9]+(\.[0-9]+)? ?(min|h|d))$": "a goal is fastest, cheapest, or as in deadline 2h",
    r"^(md5:[0-9a-f]{32}|sha256:[0-9a-f]{64})$": "a checksum is written md5:... or sha256:..., in full",
    r"^https?://[^/]+/.*[^/]$": "an address begins with http:// or https:// and ends in the name of a file",
    r"\.(jsonl|json|csv)$": "a file of metrics must end in .jsonl, .json or .csv",
    r"^[\w.]+:\w+$": "a function is written package.module:name",
    r"\.(csv|parquet)$": "the file's name must end in .csv or .parquet",
}


_UNION_TAGS = {"list", "mapping", "[key]", "digits", "torchvision", "imagefolder", "synthetic", "table", "python"}


def _visible(loc: tuple[Any, ...]) -> Iterator[Any]:
    """A place without the parts that only pydantic knows (the branch of a union it tried)."""
    annotation: Any = Config
    for part in loc:
        inner = _step(annotation, part)
        if not (inner is annotation and part in _UNION_TAGS) and part not in ("int", "float", "dict[str,int]"):
            yield part
        annotation = inner


def _keys_at(loc: tuple[Any, ...]) -> list[str]:
    """The keys that a section at this place may have."""
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
    """The type found one step further down; the type itself where `part` only names a branch of a union."""
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
    """A union's members, flattened; anything else as the only one."""
    if get_origin(annotation) is Annotated:
        return _branches(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return [branch for member in get_args(annotation) for branch in _branches(member)]
    return [annotation]
