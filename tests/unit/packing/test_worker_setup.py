"""What the workers of a sweep know before their first trial."""

from types import SimpleNamespace

import pytest
from trainyard.config.config import Data
from trainyard.config.sweep import Sweep
from trainyard.packing import driver


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"grid": {"lr": [0.1, 0.2]}}, False),
        ({"grid": {"lr": [0.1, 0.2]}, "train": {"deterministic": True}}, True),
        ({"grid": {"deterministic": [False, True]}}, True),
        ({"search": {"trials": 3, "values": {"deterministic": [False, True], "lr": [0.1, 0.2]}}}, True),
        ({"function": "os:getcwd", "dataset": None}, False),
    ],
)
def test_a_worker_prepares_for_deterministic_trials_if_there_may_be_one(tmp_path, fields, expected):
    """Before the first trial: torch reads the workspace of cuBLAS only once."""
    sweep = Sweep.model_validate({"dataset": "digits", **fields})
    plan = SimpleNamespace(state=SimpleNamespace(sweep=sweep, name="s"))
    assert driver._worker_setup(plan, tmp_path, Data()).is_deterministic == expected
