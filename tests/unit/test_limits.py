"""Limits of size and of names for the programs and the library in `scripts/`."""

import ast
import functools
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"
LIBRARY = SCRIPTS / "trainyard"
MOST_PACKAGES = 14
MOST_MODULES = 21  # in one package, without `__init__`
MOST_PROGRAM_LINES = 100
MOST_CLASS_LINES = 250
MOST_FUNCTION_LINES = 40  # with signature and docstring, without decorators
SHARED_NAMES = {"main": "the entry point of a program or of `python -m`"}


@functools.cache
def trees() -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text()) for path in sorted(SCRIPTS.rglob("*.py"))}


def too_long(kinds: type[ast.AST] | tuple[type[ast.AST], ...], most: int) -> Iterator[str]:
    for path, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, kinds) and (lines := node.end_lineno - node.lineno + 1) > most:
                yield f"{path.relative_to(SCRIPTS)}:{node.lineno} {node.name}: {lines} lines"


def test_packages_are_few():
    assert len([path for path in LIBRARY.iterdir() if (path / "__init__.py").exists()]) <= MOST_PACKAGES


def test_packages_have_few_modules():
    packages = [path.parent for path in LIBRARY.rglob("__init__.py")]
    modules = {package.name: len(list(package.glob("[!_]*.py"))) for package in packages}
    assert {name: count for name, count in modules.items() if count > MOST_MODULES} == {}


def test_programs_are_short():
    lines = {path.name: len(path.read_text().splitlines()) for path in SCRIPTS.glob("*.py")}
    assert {name: count for name, count in lines.items() if count > MOST_PROGRAM_LINES} == {}


@pytest.mark.parametrize(
    ("kinds", "most"),
    [
        pytest.param(ast.ClassDef, MOST_CLASS_LINES, id="classes"),
        pytest.param((ast.FunctionDef, ast.AsyncFunctionDef), MOST_FUNCTION_LINES, id="functions"),
    ],
)
def test_classes_and_functions_are_short(kinds, most):
    assert list(too_long(kinds, most)) == []


def test_public_names_are_defined_once():
    places = defaultdict(list)
    for path, tree in trees().items():
        for node in tree.body:
            if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                places[node.name].append(str(path.relative_to(SCRIPTS)))
    shared = {name: where for name, where in places.items() if len(where) > 1 and not name.startswith("_")}
    assert {name: where for name, where in shared.items() if name not in SHARED_NAMES} == {}
