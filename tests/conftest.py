"""What all tests share: a yard, and the groups into which pytest-xdist puts them."""

from pathlib import Path

import pytest
from yard import Yard

TESTS = Path(__file__).parent

# Where tests run with `-n`: the first path (below tests/) that a test's own begins with decides. The tests of a named
# group run one after another in one process; without a name, each file is a group. Groups start in this order.
GROUPS = {
    "cluster/test_walltimes.py": None,  # a Slurm of its own, for which it mostly waits
    "cluster": "slurm",
    "workflow/test_demo.py": "ray",
    "workflow/test_workflow.py": "ray",
    "faults/test_broken_slots.py": "ray",
    "faults/test_sweep_faults.py": "ray",
    "faults": None,
    "workflow": None,
    "integration": None,
    "unit": None,
}


@pytest.fixture
def yard(tmp_path: Path) -> Yard:
    return Yard(tmp_path)


def path_of(item: pytest.Item) -> str:
    return item.path.relative_to(TESTS).as_posix()


def rank_of(item: pytest.Item) -> int:
    """The place of a test's entry in GROUPS."""
    return next(number for number, start in enumerate(GROUPS) if path_of(item).startswith(start))


@pytest.hookimpl(tryfirst=True)  # before xdist reads the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test with its group, and put the groups that take longest first."""
    items.sort(key=rank_of)
    names = list(GROUPS.values())
    for item in items:
        item.add_marker(pytest.mark.xdist_group(names[rank_of(item)] or path_of(item)))
