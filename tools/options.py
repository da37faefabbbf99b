"""Write what is generated from the config's models: the JSON schema, and the tables of docs/options.md."""

import argparse
import inspect
import json
import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "scripts"))
from trainyard.config import config, datasets, scaling, sweep, train, trees, user_programs  # noqa: E402

SCHEMA = ROOT / "workflow/schemas/config.schema.json"
OPTIONS = ROOT / "docs/options.md"
INTRODUCTION = """<!-- Written by `make docs` from scripts/trainyard/config/. -->
# All options of the config

[config/README.md](../config/README.md) has recipes. An unknown key, or a value that is not valid, is an error before
anything runs.
"""

# Sections of the tables, in the order of the config file: heading and model.
SECTIONS: list[tuple[str, type[BaseModel]]] = [
    ("The file", config.Config),
    ("`datasets.<name>` with `source: digits`", datasets.Digits),
    ("`datasets.<name>` with `source: torchvision`", datasets.Torchvision),
    ("`datasets.<name>` with `source: imagefolder`", datasets.ImageFolder),
    ("`datasets.<name>` with `source: synthetic`", datasets.Synthetic),
    ("`datasets.<name>` with `source: table`", datasets.Table),
    ("`datasets.<name>` with `source: python`", datasets.Python),
    ("`train`, in sweeps and scaling studies", train.Train),
    ("`train.schedule`", train.Schedule),
    ("`train.augment`", train.Augment),
    ("`sweeps.<name>` and `scaling.<name>`", user_programs.Study),
    ("`sweeps.<name>`", sweep.Sweep),
    ("`sweeps.<name>` with `train`", sweep.TrainSweep),
    ("`sweeps.<name>` with `trees`", sweep.TreeSweep),
    ("`trees`, in sweeps", trees.Trees),
    ("`sweeps.<name>` with a `command` or a `function`", sweep.ProgramSweep),
    ("`sweeps.<name>` with a `command`", sweep.CommandSweep),
    ("`sweeps.<name>` with a `function`", sweep.FunctionSweep),
    ("`sweeps.<name>.slots`", sweep.Slots),
    ("`sweeps.<name>.sample`", sweep.Sample),
    ("`sweeps.<name>.search`", sweep.Search),
    ("`sweeps.<name>.stop`", sweep.Stop),
    ("`scaling.<name>`", scaling.Scaling),
    ("`scaling.<name>` with `train`", scaling.TrainScaling),
    ("`scaling.<name>.ddp`", scaling.Ddp),
    ("`scaling.<name>` with a `script`", scaling.ScriptScaling),
    ("Your own program: a `command`, a `function` or a `script`", user_programs.ProgramOptions),
    ("Your own program: a `command` or a `script`", user_programs.CommandOptions),
    ("`metrics` of a `command` or a `script`", user_programs.Metrics),
    ("`data`", config.Data),
    ("`pricing`", config.Pricing),
]


def schema_text() -> str:
    """The config's JSON schema, for editors and for people."""
    schema = config.Config.model_json_schema()
    return json.dumps({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}, indent=2) + "\n"


def options_text() -> str:
    """A page with a table of options for each section, and links to them at its top."""
    contents = [f"- [{heading}](#{anchor(heading)})" for heading, _ in SECTIONS]
    tables = [line for heading, model in SECTIONS for line in _table(heading, model)]
    return "\n".join([INTRODUCTION, *contents, *tables]) + "\n"


def anchor(heading: str) -> str:
    """The name under which a Markdown heading can be linked to, as on GitHub."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _table(heading: str, model: type[BaseModel]) -> Iterator[str]:
    yield f"\n## {heading}\n"
    yield inspect.cleandoc(model.__doc__ or "") + "\n"
    shared = {name for base in model.__mro__[1:] for name in getattr(base, "model_fields", {})}  # in other tables
    rows = []
    for name, field in model.model_fields.items():
        if name in shared or (len(get_args(field.annotation)) == 1 and get_origin(field.annotation) is Literal):
            continue  # a `source` is in the heading
        rows.append(f"| `{name}` | {_type_name(field.annotation)} | {_default(field)} | {field.description} |")
    if rows:
        yield from ["| option | type | default | meaning |", "| --- | --- | --- | --- |", *rows]


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.default
    if isinstance(value, BaseModel):
        return "see below"
    return "none" if value is None else f"`{json.dumps(value)}`"


def _type_name(annotation: Any) -> str:
    """A type in the words of a YAML file."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _type_name(arguments[0])
    if origin is Literal:
        return " \\| ".join(f"`{value}`" for value in arguments)
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(_type_name(member) for member in arguments if member is not type(None)))
    if origin is list:
        return f"list of {_type_name(arguments[0])}"
    if origin is dict:
        return f"mapping to {_type_name(arguments[1])}"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "mapping"
    return {int: "whole number", float: "number", str: "text", bool: "true or false", Any: "anything"}.get(
        annotation, str(annotation)
    )


def main() -> int:
    """Write both files, or with --check say whether they are current."""
    parser = argparse.ArgumentParser(description=__doc__, epilog="example: python tools/options.py --check")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a file is not current")
    check = parser.parse_args().check
    wanted = {SCHEMA: schema_text(), OPTIONS: options_text()}
    stale = [path for path, text in wanted.items() if not path.exists() or path.read_text() != text]
    for path in stale:
        print(f"{path.relative_to(ROOT)} {'is not current: run `make docs`' if check else 'written'}")
        if not check:
            path.write_text(wanted[path])
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
