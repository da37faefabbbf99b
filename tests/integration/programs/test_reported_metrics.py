"""Sweeps of programs that report as public trainers do, with the values that are right."""

import json
import re
import shutil
import signal
from pathlib import Path

import pandas as pd
import pytest
from slurm_cluster.waiting import wait_until
from sweep_journals import attempts_in
from trainyard.config.load import read_config
from trainyard.planning.trial_space import TrialSpace

CASES = Path(__file__).parent / "cases"
CPU_SLOTS = {"cpus": 2}


class Sweep:
    """A sweep of one of the programs in `cases`."""

    def __init__(self, project, program, **options):
        self.project, self.folder = project, project.results / "sweeps/s"
        shutil.copy(CASES / program, project.folder / "train.py")
        self.config = {"slots": CPU_SLOTS, **options}
        self.write()

    def write(self, **options):
        self.config |= options
        self.project.write({"sweeps": {"s": self.config}})

    @property
    def command(self):
        return self.project.script("sweep", "--sweep", "s")

    def run(self, *, check=True):
        done = self.project.run(*self.command, check=check)
        return done.stdout + done.stderr

    def trials(self, key):
        return pd.read_csv(self.folder / "trials.csv").set_index(key)

    def epochs(self, key, value):
        table = pd.read_csv(self.folder / "epochs.csv")
        return table[table[key] == value].dropna(axis=1, how="all")


HF = {
    "command": "python train.py --learning_rate {learning_rate}",
    "grid": {"learning_rate": [2e-5, 5e-5, 1e-4]},
    "metrics": {
        "pattern": r"'eval_loss': '(?P<eval_loss>{number})', 'eval_accuracy': '(?P<eval_accuracy>{number})'"
        r".*'epoch': '(?P<epoch>{number})'"
    },
    "metric": "eval_accuracy",
}


def test_six_evaluations_of_hugging_face_stay_six(project):
    sweep = Sweep(project, "hf_trainer.py", **HF)
    sweep.run()
    assert sweep.trials("learning_rate")["eval_accuracy"].to_dict() == {2e-5: 0.8662, 5e-5: 0.8958, 1e-4: 0.8367}
    for rate in (2e-5, 5e-5, 1e-4):
        assert list(sweep.epochs("learning_rate", rate)["epoch"]) == [0.5, 1, 1.5, 2, 2.5, 3]
    assert ",0.5," in (sweep.folder / "epochs.csv").read_text()
    assert ",1.0," not in (sweep.folder / "epochs.csv").read_text()


def test_asha_judges_fractions_of_epochs_at_the_first_report_at_or_after_a_rung_once(project):
    stop = {"method": "asha", "grace_period": 1, "reduction_factor": 3, "epochs": 3}
    slots = {"cpus": 1}
    sweep = Sweep(project, "hf_trainer.py", **HF | {"stop": stop, "slots": slots})
    sweep.run()
    best = sweep.trials("learning_rate").loc[5e-5]
    assert (best["status"], best["eval_accuracy"]) == ("finished", 0.8958)
    stopping = pd.read_csv(sweep.folder / "stopping.csv")
    assert all(re.search(r"that have reached epoch 1;", why) for why in stopping["why"])
    assert list(stopping["epochs"]) == [1] * len(stopping)


def test_json_lines_in_a_file_named_json_are_read_to_the_last(project):
    sweep = Sweep(
        project,
        "json_lines.py",
        command="python train.py --lr {lr} --work-dir {trial_dir}",
        grid={"lr": [0.02, 0.005]},
        metrics={"file": "*.log.json"},
        metric="bbox_mAP",
    )
    sweep.run()
    assert sweep.trials("lr")["bbox_mAP"].round(9).to_dict() == {0.02: 0.36, 0.005: 0.3}
    rows = sweep.epochs("lr", 0.02)
    assert list(rows["epoch"]) == [1, 2, 3]
    assert list(rows["bbox_mAP"].round(9)) == [0.12, 0.24, 0.36]
    assert list(rows["loss"].round(4)) == [1.5, 1.0, 0.75]
    assert not {"mode", "exp_name", "bbox_mAP_copypaste", "seed"} & {*rows}


LIGHTNING = {
    "command": "python train.py --lr {lr} --root {trial_dir} --hold 2",
    "grid": {"lr": [0.1]},
    "checkpoint": "lightning_logs/version_*/checkpoints/*.ckpt",
    "resume": "--ckpt-path {resume_from}",
    "metric": "val_acc",
}


def interrupt(sweep):
    """Start a sweep, and end its driver once its trial has written epoch 2."""
    driver = sweep.project.start(*sweep.command)
    checkpoint = "trials/*/lightning_logs/version_0/checkpoints/epoch=2.ckpt"
    wait_until(lambda: list(sweep.folder.glob(checkpoint)), what="the epoch")
    driver.send_signal(signal.SIGTERM)
    driver.wait(timeout=300)


def test_rows_of_lightning_are_joined_over_its_versions(project):
    sweep = Sweep(project, "lightning_csv.py", **LIGHTNING, metrics={"file": "lightning_logs/version_*/metrics.csv"})
    interrupt(sweep)
    sweep.run()
    assert len(attempts_in(sweep.folder)) == 2
    trial = sweep.trials("lr").loc[0.1]
    assert (trial["status"], round(trial["val_acc"], 9)) == ("finished", 0.9)
    rows = sweep.epochs("lr", 0.1)
    assert list(rows["epoch"]) == [0, 1, 2, 3, 4, 5]
    assert list(rows["val_acc"].dropna().round(9)) == [0.3, 0.6, 0.9]
    assert len(list(sweep.folder.glob("trials/*/lightning_logs/version_*"))) == 2


def test_a_fixed_path_that_a_resumed_program_does_not_write_is_unreadable(project):
    """And once the pattern is given, nothing runs again."""
    sweep = Sweep(project, "lightning_csv.py", **LIGHTNING, metrics={"file": "lightning_logs/version_0/metrics.csv"})
    interrupt(sweep)
    text = sweep.run(check=False)
    assert "did you mean `file: lightning_logs/version_*/metrics.csv`?" in text
    assert not (sweep.folder / "trials.csv").exists() or "finished" not in list(sweep.trials("lr")["status"])
    sweep.write(metrics={"file": "lightning_logs/version_*/metrics.csv"})
    sweep.run()
    assert round(sweep.trials("lr").loc[0.1, "val_acc"], 9) == 0.9
    assert len(attempts_in(sweep.folder)) == 2


@pytest.mark.parametrize(
    ("pattern", "value"),
    [("tok/sec: (?P<m>{number})", 530100), ("ppl (?P<m>{number})", 990.5), ("loss: (?P<m>{number})", None)],
)
def test_numbers_with_separators_are_read_or_refused(project, pattern, value):
    sweep = Sweep(
        project,
        "separators.log",
        command="cat train.py; : {n}",
        grid={"n": [1]},
        metrics={"pattern": pattern},
        metric="m",
    )
    text = sweep.run(check=False)
    if value is None:
        assert "matches only '3' of '3,2451' for m" in text
    else:
        assert sweep.trials("n").loc[1, "m"] == value


def test_a_nan_in_one_column_ends_no_trial_whose_metric_is_another(project):
    sweep = Sweep(
        project,
        "coco.log",
        command="echo acc=0.5 grad=-NaN n={n}",
        grid={"n": [1]},
        metrics={"pattern": "acc=(?P<acc>{number}) grad=(?P<grad>{number})"},
        metric="acc",
    )
    sweep.run()
    assert list(sweep.trials("n")["status"]) == ["finished"]


READS_SETTINGS = """
import argparse
import json
import os

parser = argparse.ArgumentParser()
parser.add_argument("--config")
config = json.load(open(parser.parse_args().config))
assert type(config["amp"]) is bool and config["depth"] == 2
with open(os.environ.get("TRAINYARD_TRIAL_DIR", ".") + "/results.json", "w") as file:
    json.dump({"score": config["optimizer"]["lr"] + config["amp"]}, file)
"""


def test_a_program_reads_the_settings_of_its_trial_and_the_line_to_paste_has_those_of_the_best(project):
    (project.folder / "base.json").write_text('{"optimizer": {"lr": 0.5}, "amp": true, "depth": 2}')
    sweep = Sweep(
        project,
        "json_lines.py",
        command="python train.py --config {settings}",
        settings="base.json",
        grid={"optimizer.lr": [0.25, 0.5], "amp": [True, False]},
        metrics={"file": "*.json"},
        metric="score",
        keep="metrics",
    )
    (project.folder / "train.py").write_text(READS_SETTINGS)
    sweep.run()
    assert sweep.trials(["optimizer.lr", "amp"])["score"].to_dict() == {
        (0.25, True): 1.25, (0.25, False): 0.25, (0.5, True): 1.5, (0.5, False): 0.5
    }  # fmt: skip
    best = (sweep.folder / "best.yaml").read_text()
    line = re.search(r"# By hand:\n# (.*)", best)[1]
    project.run("bash", "-c", line)
    assert json.loads((sweep.folder / "trials/by-hand/results.json").read_text()) == {"score": 1.5}
    (project.folder / "base.json").unlink()  # best.yaml has its content
    again = TrialSpace(read_config(sweep.folder / "best.yaml").sweeps["s-best"], "no dataset")
    assert list(again.trials) == [sweep.trials("score")["trial"][1.5]]
