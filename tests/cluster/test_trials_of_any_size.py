"""Trials on several GPUs in one sweep, and commands on one GPU each in another, as jobs of a real Slurm."""

import pandas as pd
import pytest
from project import TINY
from submitting import nothing_is_left, snakemake

TRAIN = {"model": "cnn", "model_args": {"width": 4}, "batch_size": 32, "epochs": 2}
PAIRS = {"jobs": 2, "gpus_per_node": 2, "gpus_per_trial": 2, "cpus_per_trial": 2}
CONFIG = {
    "datasets": TINY["datasets"],
    "sweeps": {
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
        "pair": {"dataset": "tiny", "train": {**TRAIN, "lr": 0.02}, "scales": ["1x2"], "mode": "strong"},
    },
}


@pytest.mark.slow
def test_pairs_of_gpus_train_in_one_sweep_and_commands_on_one_in_another(cluster, shared_dir):
    plan = snakemake(cluster, shared_dir, CONFIG, "-n", "--", "sweeps")
    assert "requests 2 jobs with 1 slot of 2 GPUs and 2 CPUs" in plan
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
    study = pd.read_csv(results / "scaling/pair/1x2/history.csv").iloc[-1]
    trial = trials[trials["lr"] == 0.02].iloc[0]
    assert (trial["val_loss"], trial["train_loss"]) == (study["val_loss"], study["train_loss"])
    singles = pd.read_csv(results / "sweeps/singles/trials.csv")
    assert list(singles["gpus"]) == list(singles["of"]) == [1] * 4
    nothing_is_left(cluster)
