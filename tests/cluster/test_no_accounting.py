"""On a site without accounting, a sweep runs to its end, and its measured memory is what the next one requests."""

import json

import pandas as pd
import pytest
from submitting import snakemake

pytestmark = pytest.mark.slow

SWEEP = {"command": "echo epoch 1 val_accuracy 0.5", "trials": [{}], "slots": {"gpus_per_node": 2}}
METRICS = {"pattern": r"epoch (?P<epoch>\d+) val_accuracy (?P<val_accuracy>[0-9.]+)"}


def test_the_end_of_a_job_is_noticed_and_its_memory_is_recorded(second_site, second_dir):
    config = {"sweeps": {"s": SWEEP | {"metrics": METRICS}}}
    snakemake(second_site, second_dir, config, "--", "results/sweeps/s/trials.csv")
    assert pd.read_csv(second_dir / "results/sweeps/s/trials.csv")["status"].tolist() == ["finished"]
    record = json.loads((second_dir / "results/sweeps/s/memory.json").read_text())
    assert (record["requested_mib"], record["processes"], record["ended"]) == (15200, 2, True)
    assert record["peak_mib"] > 100, "of Python, Ray and Snakemake"
