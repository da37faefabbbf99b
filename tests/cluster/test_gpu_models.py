"""Jobs of one sweep on GPUs of different models: what is measured on one is not taken for that on another."""

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
from slurm_cluster.cluster import Cluster
from slurm_cluster.site import Site
from submitting import cluster_or_skip, nothing_is_left, snakemake

pytestmark = pytest.mark.slow

SITE = Site(name="mixed", hosts=("m01", "m02"), gpu_type="a100", gpu_types=("a100", "h100"))
# On an H100, a trial takes a fifth of the time.
TRIALS = """
import socket
import time

def run(config, context):
    time.sleep(0.2 * config["n"] * {"m01": 5, "m02": 1}[socket.gethostname()])
    context.report(val_accuracy=config["n"] / 100)
"""


@pytest.fixture(scope="module")
def mixed_site() -> Iterator[Cluster]:
    """A site with a host of each model, in a partition of its own."""
    with cluster_or_skip(SITE, name="mixed") as running:
        yield running


def test_durations_are_those_on_the_model_that_the_next_jobs_get(mixed_site: Cluster) -> None:
    with tempfile.TemporaryDirectory(dir=mixed_site.shared) as name:
        folder = Path(name)
        (folder / "mine.py").write_text(TRIALS)
        sweep = {"function": "mine:run", "grid": {"n": list(range(1, 13))}, "slots": {"jobs": 4, "gpus_per_node": 1}}

        def run(partitions: str, *options: str, retrain: int = 0) -> str:
            config = {"sweeps": {"s": {**sweep, "retrain": retrain}}}
            resources = ["--set-resources", f"sweep:slurm_partition={partitions}"]
            return snakemake(mixed_site, folder, config, *options, *resources, "--", "sweeps")

        assert "partitions: a100 or h100, nodes: 1, GPUs per node: 1 a100 or h100," in run(
            "a100,h100", "-n", "--verbose"
        )
        run("a100,h100")
        nothing_is_left(mixed_site)
        timeline = pd.read_csv(folder / "results/sweeps/s/timeline.csv")
        assert set(timeline["gpu_model"]) == {"a100", "h100"}, "each job runs where Slurm starts it first"
        assert len(timeline) == 12
        predicted = {each: run(each, "-n", "--verbose", retrain=1) for each in ("a100", "h100", "a100,h100")}
        seconds = {each: float(re.search(r"predicted ([0-9.]+) s", text)[1]) for each, text in predicted.items()}
        assert 2.5 < seconds["a100"] / seconds["h100"] < 10, "a factor of five, on so few trials"
        assert seconds["h100"] < seconds["a100,h100"] < seconds["a100"]
        assert "of training after the start-up on a100 or h100;" in predicted["a100,h100"]
        assert "of training after the start-up on h100;" in predicted["h100"]
