"""The library's floors, as README.md has them: a file imports only from its own floor and from those below."""

import ast
import re
from graphlib import TopologicalSorter

import pytest
from yard import ROOT

LIBRARY = {path.stem: path for path in (ROOT / "scripts/trainyard").glob("*.py") if path.stem != "__init__"}


def floors():
    """The number of each file's floor, counted from the top."""
    block = re.search(
        r"imports only from those below it:\n\n```\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL
    )
    return {
        name: number for number, line in enumerate(block[1].splitlines()) for name in re.findall(r"(\w+)\.py", line)
    }


def imported_by(name):
    """The files of the library that one imports, at its top or within its functions; for types only does not count."""
    tree = ast.parse(LIBRARY[name].read_text())
    for_types = [node for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)]
    skipped = {id(each) for node in for_types for each in ast.walk(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and id(node) not in skipped:
            if node.module == "trainyard":
                yield from (alias.name for alias in node.names)
            elif node.module and node.module.startswith("trainyard."):
                yield node.module.split(".")[1]


def test_every_file_has_its_floor():
    assert set(floors()) == set(LIBRARY)


@pytest.mark.parametrize("name", sorted(LIBRARY))
def test_a_file_imports_nothing_from_above(name):
    floor = floors()
    assert [each for each in imported_by(name) if floor[each] < floor[name]] == []


def test_no_two_files_import_each_other():
    TopologicalSorter({name: set(imported_by(name)) for name in LIBRARY}).prepare()
