"""What all tests share: a yard, and who runs beside whom with `pytest -n 2`."""

from pathlib import Path

import pytest
from xdist.scheduler import LoadScopeScheduling
from yard import Yard


@pytest.fixture
def yard(tmp_path: Path) -> Yard:
    return Yard(tmp_path)


class OneByOne(LoadScopeScheduling):
    """What starts Slurm, Ray or Snakemake runs one after another; beside it, file by file, the unit tests."""

    def _split_scope(self, nodeid: str) -> str:
        return nodeid.split("::")[0] if nodeid.startswith("tests/unit/") else "one by one"


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> OneByOne:
    return OneByOne(config, log)
