"""Drivers that a test starts end with it."""

import pytest
from drivers import Drivers


@pytest.fixture
def drivers(project):
    made = Drivers(project)
    yield made
    made.kill_all()
