"""Trials on several GPUs in one sweep, and commands on one GPU each in another, as jobs of a real Slurm."""

import re
from pathlib import Path

import pandas as pd
import pytest
from project import TINY
from submitting import nothing_is_left, snakemake

TRAIN = {"model": "cnn", "model_args": {"width": 4}, "batch_size": 32, "epochs": 2}
PAIRS = {"jobs": 2, "gpus_per_node": 2, "gpus_per_trial": 2, "cpus_per_trial": 2}
NODES = {"jobs": 2, "nodes_per_trial": 2, "gpus_per_node": 1}
CONFIG = {
    "datasets": TINY["datasets"],
    "data": {"local": "/tmp"},
    "sweeps": {
        "nodes": {"dataset": "tiny", "train": TRAIN, "grid": {"lr": [0.01, 0.02, 0.03]}, "slots": NODES},
        "pairs": {"dataset": "tiny", "train": TRAIN, "grid": {"lr": [0.01, 0.02, 0.03]}, "slots": PAIRS},
        "singles": {
            "command": "echo gpus=$(echo $CUDA_VISIBLE_DEVICES | tr , '\\n' | wc -l) of={gpus} n={n}",
            "grid": {"n": [1, 2, 3, 4]},
            "metric": "gpus",
            "workdir": "keep",
            "metrics": {"pattern": r"gpus=(?P<gpus>\d+) of=(?P<of>\d+)"},
            "slots": {"gpus_per_node": 2},
        },
    },
    "scaling": {
        "pair": {"dataset": "tiny", "train": {**TRAIN, "lr": 0.02}, "scales": ["1x2", "2x1"], "mode": "strong"}
    },
}


def check_same_as_scale(results: Path, trials: pd.DataFrame, scale: str) -> None:
    """The metrics of the trial with the learning rate of the study are those of its scale, bit for bit."""
    study = pd.read_csv(results / f"scaling/pair/{scale}/history.csv").iloc[-1]
    trial = trials[trials["lr"] == 0.02].iloc[0]
    assert (trial["val_loss"], trial["train_loss"]) == (study["val_loss"], study["train_loss"])


@pytest.mark.slow
def test_pairs_of_gpus_train_in_one_sweep_and_commands_on_one_in_another(cluster, shared_dir):
    plan = snakemake(cluster, shared_dir, CONFIG, "-n", "--", "sweeps")
    assert "requests 2 jobs with 1 slot of 2 GPUs and 2 CPUs" in plan
    assert "requests 2 jobs with 1 slot of 2 nodes with 1 GPU and 1 CPU each" in plan
    snakemake(cluster, shared_dir, CONFIG, "--", "sweeps", "scaling")
    results = shared_dir / "results"
    trials, timeline, jobs = (
        pd.read_csv(results / f"sweeps/pairs/{name}.csv") for name in ("trials", "timeline", "jobs")
    )
    assert list(trials["status"]) == ["finished"] * 3
    assert list(timeline["gpus_per_trial"]) == [2, 2, 2]
    assert set(timeline["gpu"]) <= {"0,1", "1,0"}
    assert set(jobs["gpus"]) == {2}
    running = timeline["kept_seconds"].sum()
    assert jobs["running_gpu_seconds"].sum() == pytest.approx(2 * running, rel=0.01)
    check_same_as_scale(results, trials, "1x2")
    trials, timeline, jobs = (
        pd.read_csv(results / f"sweeps/nodes/{name}.csv") for name in ("trials", "timeline", "jobs")
    )
    assert list(trials["status"]) == ["finished"] * 3
    assert set(timeline["gpus_per_trial"]) == set(jobs["gpus"]) == set(jobs["nodes"]) == {2}
    assert all(re.fullmatch(r"n\d,n\d", node) for node in timeline["node"])
    check_same_as_scale(results, trials, "2x1")
    singles = pd.read_csv(results / "sweeps/singles/trials.csv")
    assert list(singles["gpus"]) == list(singles["of"]) == [1] * 4
    nothing_is_left(cluster)
