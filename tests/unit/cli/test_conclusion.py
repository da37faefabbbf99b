"""The captions of the report say the conclusion of a study, which Snakemake writes again for each file."""

import pandas as pd
import pytest
from trainyard.cli.conclusion import Conclusion
from trainyard.config.load import check_config
from trainyard.utils.csv_files import write_table


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
    write_table(pd.DataFrame({"trial": ["a"], "device": [device]}), tmp_path / "sweeps/s/timeline.csv")
    assert Conclusion(config, "sweeps", "s", tmp_path).unit == unit
