"""Fixtures that all tests share."""

from pathlib import Path

import pytest
from yard import Yard


@pytest.fixture
def yard(tmp_path: Path) -> Yard:
    return Yard(tmp_path)
