"""What all tests share: a yard, and who runs beside whom with `pytest -n 2`."""

from pathlib import Path

import pytest
from xdist.scheduler import LoadScopeScheduling
from yard import Yard


@pytest.fixture
def yard(tmp_path: Path) -> Yard:
    return Yard(tmp_path)


# The first two mostly wait; the others have no clock to beat.
BESIDE = ("tests/cluster/test_walltimes.py", "tests/faults/", "tests/unit/")


class OneByOne(LoadScopeScheduling):
    """What starts Slurm or Snakemake runs one after another; beside it, file by file, what disturbs it little."""

    def _split_scope(self, nodeid: str) -> str:
        return nodeid.split("::")[0] if nodeid.startswith(BESIDE) else "one by one"


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> OneByOne:
    return OneByOne(config, log)
