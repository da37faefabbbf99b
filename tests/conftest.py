"""What all tests share: a yard, and who runs beside whom with `pytest -n 2`."""

from pathlib import Path

import pytest
from xdist.scheduler import LoadScopeScheduling
from yard import Yard


@pytest.fixture
def yard(tmp_path: Path) -> Yard:
    return Yard(tmp_path)


BY_THEMSELVES = ("tests/unit/", "tests/cluster/test_prediction.py")


class ByFolder(LoadScopeScheduling):
    """The tests of a folder run one after another, for they share a cluster; what shares nothing, file by file."""

    def _split_scope(self, nodeid: str) -> str:
        return nodeid.split("::")[0] if nodeid.startswith(BY_THEMSELVES) else nodeid.split("/")[1]


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> ByFolder:
    return ByFolder(config, log)
