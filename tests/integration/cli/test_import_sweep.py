"""A config is written from what users have, passes the check, runs, and never replaces a file."""

import shutil

import pandas as pd
import pytest
import yaml
from project import ROOT

WANDB = """
program: train_wandb.py
method: bayes
metric: {name: val_loss, goal: minimize}
run_cap: 4
early_terminate: {type: hyperband, min_iter: 2}
parameters:
  lr: {distribution: log_uniform_values, min: 1e-4, max: 0.1}
  model: {parameters: {layers: {min: 1, max: 4}}}
  dataset: {value: digits}
"""
SCRIPT = """#!/bin/bash
#SBATCH --job-name=sizes
#SBATCH --array=1-3
#SBATCH --cpus-per-task=1
#SBATCH --time=10
OPTIONS=$(sed -n "${SLURM_ARRAY_TASK_ID}p" options.txt)
python train.py --dataset digits $OPTIONS
"""
TRAIN_WANDB = """
import wandb
wandb.init(config={"lr": 7.0, "seed": 1})
config = wandb.config
for epoch in range(1, 4):
    wandb.log({"batch_loss": 1.0})
    wandb.log({"epoch": epoch, "val_loss": config.lr * config.model["layers"] / epoch})
"""
TRAIN = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--learning-rate", type=float, default=0.1)
parser.add_argument("--layers", type=int, default=1)
parser.add_argument("--dataset", required=True)
arguments = parser.parse_args()
for epoch in range(1, 4):
    print("val_loss", arguments.learning_rate * arguments.layers / epoch)
"""


@pytest.fixture
def folder(project):
    for name, content in (
        ("sweep.yaml", WANDB),
        ("job.sbatch", SCRIPT),
        ("train.py", TRAIN),
        ("train_wandb.py", TRAIN_WANDB),
    ):
        (project.folder / name).write_text(content)
    lines = [f"python train.py --dataset digits --layers {layers} > $TRAINYARD_TRIAL_DIR/log" for layers in (1, 2)]
    (project.folder / "jobs.txt").write_text("# as for parallel\n\n" + "\n".join(lines))
    shutil.copy(ROOT / "tests/wandb_stand_in/wandb.py", project.folder)
    (project.folder / "options.txt").write_text("--layers 3\n--layers 1\n--layers 2\n")
    return project.folder


def run_import(project, *options, check=True):
    done = project.run(*project.script("init")[:2], *options, check=check)
    return done.stdout + done.stderr


@pytest.mark.parametrize(
    ("source", "name", "expected"), [("sweep.yaml", "sweep", 4), ("job.sbatch", "sizes", 3), ("jobs.txt", "jobs", 2)]
)
def test_an_imported_sweep_passes_the_check_and_runs(project, folder, source, name, expected):
    output = run_import(project, source, "--out", "config.yaml")
    assert "wrote config.yaml" in output
    config = yaml.safe_load((folder / "config.yaml").read_text())
    checked = project.run(*project.script("check"))
    assert "Nothing fails" in checked.stdout
    config["sweeps"][name]["slots"] = {"gpus_per_node": 0}
    project.write(config)
    project.run(*project.script("sweep", "--sweep", name))
    trials = pd.read_csv(project.results / "sweeps" / name / "trials.csv")
    assert len(trials) == expected
    assert set(trials["status"]) <= {"finished", "stopped"}
    if source == "sweep.yaml":
        assert config["sweeps"][name]["command"] == "python train_wandb.py"
        epochs = pd.read_csv(project.results / "sweeps" / name / "epochs.csv").dropna(subset="val_loss")
        rows = epochs[["trial", "epoch", "val_loss"]].merge(trials[["trial", "lr", "model.layers"]], on="trial")
        expected = rows["lr"] * rows["model.layers"] / rows["epoch"]
        assert rows["val_loss"].tolist() == pytest.approx(expected.tolist())


@pytest.mark.parametrize("words", [["python", "-u", "train.py", "--dataset", "digits"],
                                   ["python -u train.py --dataset digits"]])  # fmt: skip
def test_a_command_is_taken_as_it_is_typed(project, folder, words):
    output = run_import(project, "--no-run", "--out", "config.yaml", *words)
    assert "is required" not in output
    (sweep,) = yaml.safe_load((folder / "config.yaml").read_text())["sweeps"].values()
    assert sweep["command"].startswith("python -u train.py ")
    assert sweep["command"].endswith(" --dataset digits")


@pytest.mark.parametrize(
    ("words", "begin"),
    [
        (["train.py", "--dataset", "digits"], "python train.py "),
        (["A=1 python train.py --dataset digits", "--no-run"], "A=1 python train.py "),
        (["uv", "run", "train.py", "--dataset", "digits"], "uv run train.py "),
    ],
)
def test_a_command_need_not_begin_with_python(project, folder, words, begin):
    run_import(project, "--no-run", "--out", "config.yaml", *words)
    (sweep,) = yaml.safe_load((folder / "config.yaml").read_text())["sweeps"].values()
    assert sweep["command"].startswith(begin)
    assert sweep["command"].endswith(" --dataset digits")


def test_no_file_is_overwritten(project, folder):
    (folder / "trainyard.yaml").write_text("mine")
    output = run_import(project, "sweep.yaml", check=False)
    assert "trainyard.yaml exists, and no file is overwritten: name another one by --out" in output
    assert (folder / "trainyard.yaml").read_text() == "mine"
    (folder / "one.sbatch").write_text("#SBATCH --time=5\npython train.py\n")
    for source, message in (("absent.yaml", "there is no such file"), ("one.sbatch", "has no line `#SBATCH --array=`")):
        assert message in run_import(project, source, "--out", "new.yaml", check=False)
    for text, message in (
        ("a: 1", "is no sweep of Weights & Biases"),
        ("parameters: 3", "is no sweep of Weights & Biases"),
        ("sweeps: {}", "other.yaml is a config already: `"),
    ):
        (folder / "other.yaml").write_text(text)
        assert message in run_import(project, "other.yaml", "--out", "new.yaml", check=False)
    assert not (folder / "new.yaml").exists()
