"""The ready-made configs, composed into one run on a real Slurm, small enough for hosts without GPUs.

They run in one job of two nodes, by the local profile, as one would in an allocation that one has: test_profile.py has
each rule submit a job of its own.
"""

import json
import shutil
import sys

import numpy as np
import pandas as pd
import pytest
import yaml
from imagesets import pack, pixels, write_mnist, write_tiny_imagenet
from project import ROOT
from submitting import run_on_two_nodes

pytestmark = pytest.mark.slow
READY_MADE = [
    ROOT / f"config/{name}.yaml"
    for name in ("depth-sweep", "mnist-4x8", "guide-scaling", "tinyimagenet-resnet50", "own-script", "trees-sweep")
]
# Fewer epochs, images, trials and GPUs, so that they run on four hosts without GPUs. KMNIST takes the place of CIFAR10,
# whose published checksums no small copy has.
SMALL = {
    "datasets": {
        "mnist": {"root": "mnist"},
        "cifar10": {"name": "KMNIST", "root": "kmnist"},
        "tinyimagenet": {"root": "tiny.zip"},
    },
    "sweeps": {
        "depth-sweep": {
            "train": {"epochs": 1, "model_args": {"width": 4}},
            "grid": {"model_args.blocks": {"stop": 12}},
            "slots": {"gpus_per_node": 2},
        },
        "own-trials": {
            "args": {"epochs": 2},
            "stop": {"epochs": 2},
            "search": {"trials": 2},
            "slots": {"gpus_per_node": 2},
        },
        "trees": {"trees": {"rounds": 2}, "slots": {"cpus_per_trial": 4}},
        "trees-sweep": {
            "trees": {"rounds": 9, "early_stopping": 2},
            "grid": {"learning_rate": [0.1, 0.5], "colsample_bytree": [1]},
            "slots": {"cpus": 2, "cpus_per_trial": 1},
        },
    },
    "scaling": {
        "mnist-4x8": {"train": {"epochs": 1}, "scales": ["2x1"], "cpus_per_gpu": 1},
        "guide": {"train": {"epochs": 1, "batch_size": 4}, "scales": ["1x1"]},
        "tinyimagenet-resnet50": {"train": {"epochs": 1, "batch_size": 2}, "scales": ["1x1"]},
        "own-ddp": {"args": {"epochs": 2}, "scales": ["1x1"]},
    },
}


def write_data(folder):
    """MNIST, KMNIST and TinyImageNet in their true formats, with few images."""
    for name, count_train in (("mnist", 256), ("kmnist", 8)):
        train, val = ((pixels(count, (28, 28)), np.arange(count) % 10) for count in (count_train, 10))
        write_mnist(folder / name, train, val)
    train, val = ((pixels(count, (32, 32, 3)), np.arange(count) % 4) for count in (4, 4))
    write_tiny_imagenet(folder / "tiny", train, val, 4)
    pack(folder / "tiny", folder / "tiny.zip")


@pytest.fixture(scope="module")
def finished(cluster):
    """The folder of all six, after one run of Snakemake."""
    folder = cluster.shared / "ready"
    folder.mkdir()
    write_data(folder)
    shutil.copytree(ROOT / "examples", folder / "examples")
    (folder / "small.yaml").write_text(yaml.safe_dump(SMALL))
    program = [
        sys.executable,
        "-m",
        "snakemake",
        "--snakefile",
        ROOT / "Snakefile",
        "--profile",
        ROOT / "profiles/local",
        "--set-threads",
        "stage=2",
    ]
    configs = ["--configfile", *READY_MADE, "small.yaml", "--config"]
    configs += ["sweeps=depth-sweep,own-trials,trees,trees-sweep", "scaling=all"]
    script = " ".join(map(str, [*program, *configs, "--", "sweeps", "scaling"]))
    run_on_two_nodes(cluster, folder, script, cpus=4)
    return folder


def read(folder, path):
    return pd.read_csv(folder / "results" / path)


def test_the_ready_made_sweep_and_trees_have_all_rows(finished):
    assert read(finished, "sweeps/depth-sweep/trials.csv")["model_args.blocks"].tolist() == [4, 8, 12]
    trees = read(finished, "sweeps/trees/trials.csv")
    assert trees["library"].tolist() == ["xgboost", "lightgbm"]
    assert trees["threads"].tolist() == [4, 4]
    assert trees["val_accuracy"].notna().all()


def test_the_ready_made_sweep_over_trees_is_packed_on_cpu_slots(finished):
    trials = read(finished, "sweeps/trees-sweep/trials.csv")
    assert trials["status"].tolist() == ["finished"] * 8
    assert set(trials["library"]) == {"xgboost", "lightgbm"}
    assert (trials["best_round"] <= 9).all()
    ranking = read(finished, "sweeps/trees-sweep/ranking.csv")
    assert ranking["val_log_loss_best"].min() == trials["val_log_loss"].min() < 1
    timeline = read(finished, "sweeps/trees-sweep/timeline.csv")
    assert timeline["slot"].nunique() == 2
    assert set(timeline["device"]) == {"cpu"}


@pytest.mark.parametrize(
    ("study", "scale"), [("mnist-4x8", "2x1"), ("guide", "1x1"), ("tinyimagenet-resnet50", "1x1"), ("own-ddp", "1x1")]
)
def test_the_ready_made_trainings_ran_on_all_their_nodes(finished, study, scale):
    row = read(finished, f"scaling/{study}/scaling.csv").iloc[0]
    assert (row["scale"], row["device"]) == (scale, "cpu")
    assert row["images_per_second"] > 0
    summary = json.loads((finished / f"results/scaling/{study}/{scale}/summary.json").read_text())
    assert summary["nodes"] == row["nodes"]
    samples = finished / f"results/scaling/{study}/{scale}/telemetry"
    assert len(list(samples.glob("cpu-*.csv"))) == row["nodes"], "on each node"


def test_a_search_runs_a_users_script(finished):
    rows = read(finished, "sweeps/own-trials/trials.csv")
    assert len(rows) == 2
    assert rows["val_accuracy"].between(0, 1).all()
    assert set(rows["status"]) <= {"finished", "stopped"}
    stopped = read(finished, "sweeps/own-trials/stopping.csv")
    assert len(stopped) == (rows["status"] == "stopped").sum()
    assert (stopped["epochs"] + stopped["saved_epochs"] == 2).all()
