"""The progress of sweeps, as `status.py` shows it."""

import time

import pytest
from trainyard.cli.status_view import _seconds_left
from trainyard.config.load import check_config
from trainyard.planning.journal import Journal
from trainyard.planning.plan import plan_sweep

CONFIG = check_config({"sweeps": {"s": {"command": "x {seed}", "grid": {"seed": [1, 2, 3, 4]}}}})


@pytest.mark.parametrize(("slots", "minutes"), [(2, 40 + 100), (1, 40 + 40 + 100), (3, 100)])
def test_the_time_left_leaves_out_what_running_trials_have_run_on_the_slots_of_the_job(tmp_path, slots, minutes):
    done, second, third, _ = plan_sweep(CONFIG, "s", tmp_path).state.trials
    now = time.time()
    with Journal.opened(tmp_path / "sweeps/s/journal.jsonl") as journal:
        journal.write({"event": "session", "time": now - 9660, "job": "1", "slots": slots})
        journal.write({"event": "started", "time": now - 9660, "trial": done, "attempt": 1})
        journal.write({"event": "finished", "time": now - 3660, "trial": done, "attempt": 1, "seconds": 6000.0})
        for trial in (second, third):
            journal.write({"event": "started", "time": now - 3600, "trial": trial, "attempt": 1})
    assert _seconds_left(plan_sweep(CONFIG, "s", tmp_path)) == pytest.approx(60 * minutes, rel=0.05)
