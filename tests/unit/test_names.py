"""A public name of the programs and the library in `scripts/` means one thing."""

import ast
import re
from collections import defaultdict
from pathlib import Path

SCRIPTS = Path(__file__).parents[2] / "scripts"
SHARED_NAMES = {"main": "the entry point of a program or of `python -m`"}


def test_public_names_are_defined_once():
    places = defaultdict(list)
    for path in sorted(SCRIPTS.rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                places[node.name].append(str(path.relative_to(SCRIPTS)))
    shared = {name: where for name, where in places.items() if len(where) > 1 and not name.startswith("_")}
    assert {name: where for name, where in shared.items() if name not in SHARED_NAMES} == {}


def test_each_hop_of_the_walks_in_the_architecture_exists():
    text = (SCRIPTS.parent / "docs" / "architecture.md").read_text()
    hops = re.findall(r"([\w/]+\.py):(\w+)", text.partition("## Three walks")[2].partition("\n## ")[0])
    assert hops
    for file, name in hops:
        defined = ast.walk(ast.parse((SCRIPTS / "trainyard" / file).read_text()))
        assert name in {getattr(node, "name", None) for node in defined}, f"{file}:{name}"
