"""A public name of the programs and the library in `scripts/` means one thing."""

import ast
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
