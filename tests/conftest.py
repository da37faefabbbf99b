"""What all tests share: a yard, and who runs beside whom with `pytest -n 2`."""

from pathlib import Path

import pytest
from xdist.scheduler import LoadScopeScheduling
from yard import Yard


@pytest.fixture
def yard(tmp_path: Path) -> Yard:
    return Yard(tmp_path)


# The first two mostly wait, and the others are short.
BESIDE = (
    "tests/cluster/test_walltimes.py",
    "tests/faults/test_deadline.py",
    "tests/faults/test_own_trials.py",
    "tests/faults/test_sharing.py",
    "tests/unit/",
    "tests/workflow/test_data.py",
    "tests/workflow/test_plans.py",
    "tests/workflow/test_tutorial.py",
)


class OneByOne(LoadScopeScheduling):
    """What starts Slurm, Ray or Snakemake runs one after another; beside it, file by file, what disturbs it little."""

    def _split_scope(self, nodeid: str) -> str:
        return nodeid.split("::")[0] if nodeid.startswith(BESIDE) else "one by one"


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> OneByOne:
    return OneByOne(config, log)
