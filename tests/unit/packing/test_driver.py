"""What the driver of a sweep does before a trial runs."""

import subprocess

import pytest
from trainyard.config.load import check_config
from trainyard.config.trial_status import TrialStatus
from trainyard.packing.driver import run_sweep
from trainyard.planning.journal import Ended, Journal, Started
from trainyard.planning.trial_space import TrialSpace


def test_a_sweep_that_has_all_results_starts_no_process(tmp_path, monkeypatch):
    """Not even the one that imports what workers need while the sweep is planned."""
    config = check_config({"sweeps": {"s": {"command": "true {seed}", "grid": {"seed": [1, 2]}}}})
    with Journal.opened(tmp_path / "sweeps/s/journal.jsonl") as journal:
        for trial in TrialSpace(config.sweeps["s"], "no dataset").trials:
            journal.record(Started(trial=trial, attempt=1))
            journal.record(Ended(trial=trial, attempt=1, status=TrialStatus.FINISHED, metrics={}, seconds=1.0))
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("a process is started"))
    assert run_sweep(config, "s", tmp_path).state.unfinished == []
