"""`init.py` on scripts: it runs them for a moment, overwrites nothing, and what it writes passes `check.py`."""

import sys

import pytest
from project import ROOT
from trainyard.config.parser import read_file

OPTIONS = """
import argparse, sys, time
from pathlib import Path
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
"""
# It prints a metric and would go on for an hour; it overwrites what the user has, if it runs there.
LONG = f"""{OPTIONS}
args = parser.parse_args()
Path("model.pt").write_text("overwritten")
print("epoch 1 train loss 0.5", flush=True)
print("epoch 1 val acc", args.lr, flush=True)
time.sleep(3600)
"""
# Its metrics are in a file in the folder that it is given, and it reads a file of the user and a module beside it.
QUIET = f"""{OPTIONS}
import helper
parser.add_argument("--data-dir", default="data")
parser.add_argument("--output_dir", default="out")
args = parser.parse_args()
rows = Path(args.data_dir, "rows.txt").read_text()
Path(args.output_dir, "log.txt").write_text('{{"epoch": 1, "lr": 0.1, "val_accuracy": 0.5}}\\n')
"""
# Its metrics are in event files, in a folder that is named after the time of the run.
EVENTS = f"""{OPTIONS}
from torch.utils.tensorboard import SummaryWriter
args = parser.parse_args()
with SummaryWriter() as writer:
    writer.add_scalar("train/loss", 0.7, 1)
    writer.add_scalar("val/accuracy", 0.5, 1)
"""


@pytest.fixture
def init(project):
    """Runs `init.py`, and `check.py` on what it has written."""

    def run(script, *options, name="train.py"):
        (project.folder / name).write_text(script)
        done = project.run(sys.executable, str(ROOT / "scripts/init.py"), *options)
        assert project.run(sys.executable, str(ROOT / "scripts/check.py"), "--quiet").stdout == ""
        return done.stdout, next(iter(read_file(project.folder / "trainyard.yaml")["sweeps"].values()))

    return run


def test_a_script_runs_until_it_prints_a_metric_and_overwrites_nothing(project, init):
    (project.folder / "model.pt").write_text("mine")
    output, sweep = init(LONG)
    assert "its metrics: epoch 1 val acc 0.1, to be ranked by val_acc" in output
    assert sweep["metrics"]["pattern"] == "epoch (?P<epoch>{number}) val acc (?P<val_acc>{number})"
    assert sweep["workdir"] == "trial", "it writes model.pt"
    assert {path.name for path in project.folder.iterdir()} == {"train.py", "model.pt", "trainyard.yaml"}
    assert (project.folder / "model.pt").read_text() == "mine"


def test_metrics_are_found_in_a_file_of_a_script_that_prints_nothing(project, init):
    (project.folder / "data").mkdir()
    (project.folder / "data/rows.txt").touch()
    (project.folder / "helper.py").touch()
    _, sweep = init(QUIET, "main.py", name="main.py")
    assert sweep["command"] == "python main.py {args} --output_dir {trial_dir}"
    assert (sweep["metrics"], sweep["metric"]) == ({"file": "log.txt"}, "val_accuracy")


def test_metrics_are_found_in_event_files_of_tensorboard(init):
    output, sweep = init(EVENTS)
    assert "its metrics: event files of TensorBoard, to be ranked by val/accuracy" in output
    assert (sweep["metrics"], sweep["metric"]) == ({"tensorboard": "**"}, "val/accuracy")
    assert sweep["workdir"] == "trial", "it writes runs/"


@pytest.mark.parametrize(
    ("script", "options", "message"),
    [
        (f"{OPTIONS}\nargs = parser.parse_args()\nraise ValueError('no GPU')", [], "ValueError: no GPU (python: /"),
        (f"{OPTIONS}\nargs = parser.parse_args()\nprint('done')", [], "has no loss or accuracy"),
        (f"{OPTIONS}\nparser.add_argument('--data', required=True)", [], "is not run: it requires --data"),
        (f"{OPTIONS}\nPath('ran').touch()", ["--no-run"], "wrote trainyard.yaml"),
    ],
    ids=["it fails", "it prints no metrics", "it needs data", "it shall not run"],
)
def test_without_metrics_the_config_says_what_to_fill_in(project, init, script, options, message):
    output, sweep = init(script, *options)
    assert message in output
    assert "metrics" not in sweep
    assert "TODO: say where its metrics are" in (project.folder / "trainyard.yaml").read_text()
    checked = project.run(sys.executable, str(ROOT / "scripts/check.py")).stdout
    assert "warning  without metrics, trials are ranked by their seconds" in checked
    assert not (project.folder / "ran").exists()


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "name your training script, as in `"),
        ({"train.py": OPTIONS, "trainyard.yaml": "mine"}, "trainyard.yaml exists, and no file is overwritten"),
        ({"train.py": "print(1)"}, "train.py has no option that a sweep usually varies"),
    ],
)
def test_what_cannot_be_done_is_said(project, files, message):
    for name, text in files.items():
        (project.folder / name).write_text(text)
    done = project.run(sys.executable, str(ROOT / "scripts/init.py"), check=False)
    assert (done.returncode, message in done.stdout) == (1, True), done.stdout
    assert {path.name: path.read_text() for path in project.folder.iterdir()} == files


def test_on_a_cluster_the_profile_is_written_unless_there_is_one(slurm, project, init):
    slurm.prints("sinfo", "gpu*|up|2:00:00|4|8|64000|gpu:a100:2|(null)")
    slurm.prints("sacctmgr", "lab|normal")
    for before in (False, True):
        (project.folder / "trainyard.yaml").unlink(missing_ok=True)
        output, _ = init(OPTIONS, "--no-run")
        path = project.folder / "profiles/slurm/config.yaml"
        assert ("wrote profiles/slurm/config.yaml" in output) is not before
        settings = read_file(path)["default-resources"]
        assert (settings["slurm_account"], settings["slurm_partition"]) == ("lab", "gpu")


@pytest.mark.parametrize("files", [{}, {"train.py": "print(1)"}, {"train.py": OPTIONS, "trainyard.yaml": "mine"}])
def test_on_a_cluster_the_profile_is_written_also_for_a_config_by_hand(slurm, project, files):
    slurm.prints("sinfo", "gpu*|up|2:00:00|4|8|64000|gpu:a100:2|(null)")
    slurm.prints("sacctmgr", "lab|normal")
    for name, text in files.items():
        (project.folder / name).write_text(text)
    done = project.run(sys.executable, str(ROOT / "scripts/init.py"), check=False)
    assert "wrote profiles/slurm/config.yaml" in done.stdout
