"""The walltime of a sweep: foreseen once it has run, and made up for where it was too short."""

import shutil
import tempfile
from pathlib import Path

import pandas as pd
import pytest
from submitting import cluster_or_skip, nothing_is_left, snakemake
from trainyard.journal import attempts, read_events

# What a trial takes is proportional to its blocks.
TIMED = """
import time

def run(config, context):
    time.sleep(2 / 3 * config["blocks"])
    context.report(val_accuracy=0.5)
"""
SLEPT = [2 / 3 * blocks for blocks in range(4, 81, 4)]  # 560 s in all, 53 s the longest


@pytest.fixture(scope="module")
def cluster():
    """A cluster beside the one that other tests share: these are long, and sleep."""
    folder = Path(tempfile.mkdtemp(prefix="ty-cluster-"))
    folder.rmdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRAINYARD_CLUSTER", str(folder))
        with cluster_or_skip() as running:
            yield running


def config(*, nodes: int, retrain: int) -> dict:
    sweep = {
        "function": "timed:run",
        "grid": {"blocks": {"start": 4, "stop": 80, "step": 4}},
        "slots": {"nodes": nodes, "gpus_per_node": 2},
        "retrain": retrain,
    }
    return {"sweeps": {"depth": sweep}, "pricing": {"gpu_hour": 2.5}}


def test_the_second_time_makespan_and_walltime_are_foreseen(cluster, shared_dir):
    """The first journal begins without evidence, the second with what the first has found; each on GPUs of its own."""
    first, second = shared_dir / "first", shared_dir / "second"
    for folder in (first, second):
        folder.mkdir()
        (folder / "timed.py").write_text(TIMED)
    snakemake(cluster, first, config(nodes=4, retrain=0), "--", "sweeps")
    nothing_is_left(cluster)
    unforeseen = pd.read_csv(first / "results/sweeps/depth/jobs.csv").iloc[0]
    assert pd.isna(unforeseen["predicted_seconds"])
    assert unforeseen["requested_seconds"] == 3600

    (second / "results/sweeps/depth").mkdir(parents=True)
    shutil.copy(first / "results/sweeps/depth/journal.jsonl", second / "results/sweeps/depth/journal.jsonl")
    snakemake(cluster, second, config(nodes=2, retrain=1), "--", "sweeps")
    nothing_is_left(cluster)
    jobs = pd.read_csv(second / "results/sweeps/depth/jobs.csv")
    foreseen = jobs.iloc[-1]
    assert foreseen["finished"] == 20
    assert abs(foreseen["gap"]) <= 0.1
    assert foreseen["measured_seconds"] == pytest.approx(foreseen["predicted_seconds"], rel=0.1)
    assert foreseen["requested_seconds"] <= 1.5 * foreseen["elapsed_seconds"]
    assert foreseen["requested_seconds"] >= foreseen["elapsed_seconds"]

    record = cluster.jobs(int(foreseen["job"]))[0]
    assert record.state == "COMPLETED"
    assert foreseen["elapsed_seconds"] == pytest.approx(record.elapsed_seconds, abs=1)
    assert "gres/gpu=4" in foreseen["allocated_tres"]
    table = pd.read_csv(second / "results/sweeps/depth/strategies.csv").set_index("strategy")
    packed, array = table.loc["packed"], table.loc["job_array"]
    assert packed["basis"] == "measured: journal and sacct"
    assert (packed["jobs"], packed["gpus_total"]) == (1, 4), "the first job's results have been overruled"
    assert packed["requested_gpu_seconds"] == 4 * foreseen["requested_seconds"]
    assert packed["running_gpu_seconds"] == array["running_gpu_seconds"] == pytest.approx(sum(SLEPT), rel=0.1)
    startup = array["startup_gpu_seconds"] / array["jobs"]
    assert array["requested_seconds_per_job"] - startup == pytest.approx(max(SLEPT), rel=0.1)
    assert packed["makespan_lower_bound_seconds"] <= packed["makespan_seconds"] <= 1.15 * sum(SLEPT) / 4


def test_a_walltime_too_short_for_a_sweep_is_made_up_for_by_retries(cluster, shared_dir):
    """Three trials of 32 s; two minutes, less ten seconds for the end, have room for one or two of them, not for three.

    A busy machine takes from 15 to 70 s to begin.
    """
    (shared_dir / "timed.py").write_text(TIMED)
    config = {"sweeps": {"s": {"function": "timed:run", "args": {"blocks": 48}, "grid": {"seed": [0, 1, 2]}}}}
    snakemake(cluster, shared_dir, config, "--set-resources", "sweep:runtime=2", "--", "sweeps")
    tries = attempts(read_events(shared_dir / "results/sweeps/s/journal.jsonl"))
    assert [attempt.outcome for attempt in tries] == ["finished"] * 3, "no trial was begun twice"
    jobs = list(dict.fromkeys(attempt.where["job"] for attempt in tries))
    assert len(jobs) >= 2, "one job did not do"
    assert cluster.jobs(int(jobs[0]))[0].state == "FAILED", "it ended itself, Slurm did not have to"
    nothing_is_left(cluster)
