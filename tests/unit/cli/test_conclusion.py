"""The captions of the report say the conclusion of a study, which Snakemake writes again for each file."""

import pytest
from sweep_journals import write_session
from trainyard.cli.conclusion import Conclusion
from trainyard.config.load import check_config


def test_the_captions_of_a_sweep_rank_it_once(tmp_path):
    config = check_config({"sweeps": {"s": {"function": "os:getcwd", "grid": {"lr": [1, 2]}}}})
    conclusion = Conclusion(config, "sweeps", "s", tmp_path)
    assert str(conclusion) == "No trial has finished."
    (tmp_path / "sweeps").write_text("no folder: it could not be ranked any more")
    assert f"{conclusion}" == "No trial has finished."
    with pytest.raises(OSError, match="sweeps"):
        str(Conclusion(config, "sweeps", "s", tmp_path))


@pytest.mark.parametrize(("device", "unit"), [("cpu", "slot"), ("NVIDIA H100", "GPU")])
def test_a_sweep_for_gpus_that_ran_on_cpus_counts_slots(tmp_path, device, unit):
    config = check_config({"sweeps": {"s": {"function": "os:getcwd", "grid": {"lr": [1, 2]}}}})
    started = {"event": "started", "time": 1.0, "trial": "a", "attempt": 1, "slot": 0, "node": "n", "device": device}
    write_session(tmp_path / "sweeps/s", [{"event": "session", "time": 0.0}, started])
    assert Conclusion(config, "sweeps", "s", tmp_path).unit == unit
