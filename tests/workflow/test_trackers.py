"""The examples of docs/trackers.md work with W&B and MLflow, offline, as written."""

import json
import shutil
import subprocess
import sys

import pytest
import yaml
from project import ROOT, TINY

pytestmark = pytest.mark.slow
FOLDER = ROOT / ".tools/trackers"
PYTHON = FOLDER / "bin/python"
EXAMPLES = "examples/trackers"
TRACKERS = ("wandb", "mlflow")

# What each tracker has recorded, read by itself: {trial: {step: loss}}. The argument is a folder.
READ = {
    "wandb": """
import struct
from pathlib import Path
from wandb.proto import wandb_internal_pb2 as pb

def records(content):
    # LevelDB's format of a log, in blocks of 32 KiB: CRC-32, length and type of each part of a record
    at, parts = 7, b""  # the first seven bytes identify the format
    while at + 7 <= len(content):
        if 2**15 - at % 2**15 < 7:
            at += 2**15 - at % 2**15
            continue
        crc, length, kind = struct.unpack_from("<IHB", content, at)
        parts += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # the whole record, or its last part
            yield pb.Record.FromString(parts)
            parts = b""

for path in sorted(Path(folder).rglob("run-*.wandb")):
    for record in records(path.read_bytes()):
        if record.WhichOneof("record_type") == "history":
            values = {item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
            if METRIC in values:
                add(path.stem.removeprefix("run-"), values["_step"], values[METRIC])
""",
    "mlflow": """
import mlflow
from pathlib import Path

for path in Path(folder).rglob("mlflow.db"):
    mlflow.set_tracking_uri(f"sqlite:///{path}")
    client = mlflow.MlflowClient()
    for run in mlflow.search_runs(experiment_names=["mine"], output_format="list"):
        for point in client.get_metric_history(run.info.run_id, METRIC):
            add(run.data.tags["trial"], point.step, point.value)
""",
}
READER = """
import json, sys
folder, METRIC, found = sys.argv[1], sys.argv[2], {}

def add(trial, step, value):
    assert step not in found.setdefault(trial, {}), "a point is there twice"
    found[trial][step] = value
"""


@pytest.fixture(scope="session")
def trackers():
    """An environment with the trackers, kept beside .venv."""
    uv = shutil.which("uv") or str(ROOT / ".tools/uv/bin/uv")
    subprocess.run([uv, "venv", "--quiet", "--allow-existing", "--python", sys.executable, str(FOLDER)], check=True)
    sync = [uv, "pip", "sync", "--quiet", "--require-hashes", "--python", str(PYTHON)]
    subprocess.run([*sync, str(ROOT / "envs/requirements-trackers.txt")], check=True)


@pytest.fixture
def recipes(project, trackers):
    """A folder with the examples, whose `python` has the trackers."""
    shutil.copytree(ROOT / EXAMPLES, project.folder / EXAMPLES)
    for config in (project.folder / EXAMPLES).glob("*.yaml"):
        config.write_text(config.read_text().replace(" python ", f" {PYTHON} "))
    home = {"WANDB_MODE": "offline", "MLFLOW_TRACKING_URI": "sqlite:///mlflow.db", "HOME": str(project.folder)}
    project.environment |= home
    return project


def test_the_page_has_what_the_examples_do():
    page = (ROOT / "docs/trackers.md").read_text()
    for tracker in TRACKERS:
        config = yaml.safe_load((ROOT / EXAMPLES / f"{tracker}.yaml").read_text())
        command = config["sweeps"][f"with-{tracker}"]["command"]
        assert command.replace(f"{EXAMPLES}/{tracker}_train.py", "train.py") in page


def recorded(project, tracker, folder, metric):
    reader = f"{READER}\n{READ[tracker]}\nprint('\\n' + json.dumps(found))"
    output = project.run(str(PYTHON), "-c", reader, str(folder), metric).stdout
    found = json.loads(output.splitlines()[-1])
    return {trial: {int(step): value for step, value in points.items()} for trial, points in found.items()}


def rows(project, sweep, metric):
    import pandas as pd

    table = pd.read_csv(project.results / "sweeps" / sweep / "epochs.csv")
    return {trial: dict(zip(group["epoch"], group[metric], strict=True)) for trial, group in table.groupby("trial")}


@pytest.mark.parametrize("tracker", TRACKERS)
def test_a_command_tracks_its_trial(recipes, tracker):
    recipes.config_file = recipes.folder / f"{EXAMPLES}/{tracker}.yaml"
    recipes.snakemake("--", "sweeps")
    found = recorded(recipes, tracker, recipes.results / f"sweeps/with-{tracker}/trials", "loss")
    expected = rows(recipes, f"with-{tracker}", "loss")
    assert len(expected) == 2
    assert found == {trial: pytest.approx(points, abs=1e-4) for trial, points in expected.items()}


def test_trials_of_trainyards_own_loop_are_tracked_once(recipes):
    recipes.write(TINY)
    recipes.stage()
    recipes.run(*recipes.script("sweep", "--sweep", "lr"))
    expected = rows(recipes, "lr", "val_loss")
    for tracker in TRACKERS:
        for _ in range(2):
            recipes.run(str(PYTHON), f"{EXAMPLES}/to_{tracker}.py", "results/sweeps/lr")
        found = recorded(recipes, tracker, recipes.folder, "val_loss")
        assert found == {trial: pytest.approx(points, rel=1e-6) for trial, points in expected.items()}


@pytest.mark.parametrize("tracker", TRACKERS)
def test_a_second_attempt_continues_the_run_of_its_trial(recipes, tracker):
    folder = recipes.folder / "trial"
    folder.mkdir()
    recipes.environment["MLFLOW_TRACKING_URI"] = f"sqlite:///{folder}/mlflow.db"
    directory = [] if tracker == "mlflow" else ["--dir", str(folder)]
    command = [str(PYTHON), f"{EXAMPLES}/{tracker}_train.py", "--lr", "0.1", "--trial", "abc", *directory]
    for _ in range(2):
        recipes.run(*command)
    if tracker == "mlflow":
        count = "import mlflow; print(len(mlflow.search_runs(experiment_names=['mine'], output_format='list')))"
    else:  # two files, which `wandb sync` joins by their ID
        count = "import glob; print(len({path.split('-')[-1] for path in glob.glob('trial/wandb/offline-run-*')}))"
    assert recipes.run(str(PYTHON), "-c", count).stdout.split()[-1] == "1"


# Scripts that know only W&B, and what each logs as `loss` in epoch 3 with lr 0.5.
UNEDITED = {
    "config of the module": """
import wandb
wandb.init()
for epoch in range(4):
    wandb.log({"epoch": epoch, "loss": wandb.config.lr * epoch, "weights": wandb.Histogram(np_histogram=([1], [0, 1]))})
""",
    "defaults, which the sweep replaces": """
import wandb
run = wandb.init(project="mine", config={"lr": 9.0, "layers": 1})
config = run.config
for epoch in range(4):
    run.log({"val": {"acc": epoch}, "loss": config["lr"] * epoch, "epoch": epoch})
run.finish()
""",
    "options and the config": """
import argparse, wandb
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=9.0)
parser.add_argument("--name", default="mine")
args = parser.parse_args()
with wandb.init(config=vars(args), name=args.name, tags=["a"]) as run:
    for epoch in range(4):
        wandb.log({"loss": wandb.config.lr * epoch}, step=epoch)
""",
    "a function that is called without an agent": """
import wandb
def train(config=None):
    with wandb.init(config=config):
        config = wandb.config
        for epoch in range(4):
            for batch in range(3):
                wandb.log({"batch": batch})
            wandb.log({"loss": config.lr * epoch, "epoch": epoch})
if __name__ == "__main__":
    train()
""",
}


def wandb_sweep(recipes, script, **options):
    """The trials of a sweep over a script that logs to the real wandb."""
    (recipes.folder / "train.py").write_text(script)
    sweep = {"command": f"{PYTHON} train.py", "metrics": "wandb", "metric": "loss", "slots": {"gpus_per_node": 0}}
    recipes.write({"sweeps": {"lr": sweep | {"grid": {"lr": [0.25, 0.5]}} | options}})
    recipes.run(*recipes.script("sweep", "--sweep", "lr"))
    import pandas as pd

    return pd.read_csv(recipes.results / "sweeps/lr/trials.csv").sort_values("lr")


@pytest.mark.parametrize("name", UNEDITED)
def test_a_script_that_knows_only_wandb_runs_unedited(recipes, name):
    trials = wandb_sweep(recipes, UNEDITED[name])
    assert set(trials["status"]) == {"finished"}
    assert trials["loss"].tolist() == [0.75, 1.5]
    for trial, points in rows(recipes, "lr", "loss").items():
        lr = float(trials.set_index("trial")["lr"][trial])
        assert {epoch: loss for epoch, loss in points.items() if loss == loss} == {n: lr * n for n in range(4)}
        (run,) = (recipes.results / "sweeps/lr/trials" / trial).glob("wandb/offline-run-*/run-*.wandb")
        assert run.stem == f"run-lr-{trial}"


def test_metrics_of_wandb_are_read_while_the_script_runs(recipes):
    script = """
import time, wandb
wandb.init()
for epoch in range(1, 1000):
    wandb.log({"epoch": epoch, "loss": wandb.config.lr})
    time.sleep(0.2 if wandb.config.lr == 0.5 else 0)
"""
    stop = {"method": "asha", "grace_period": 2, "reduction_factor": 2}
    trials = wandb_sweep(recipes, script, stop=stop, mode="min", slots={"gpus_per_node": 0, "cpus": 1})
    assert trials["status"].tolist() == ["finished", "stopped"]


def test_a_trial_that_resumes_continues_its_run_of_wandb(recipes):
    script = """
import os, pathlib, signal, wandb
state = pathlib.Path(os.environ["TRAINYARD_TRIAL_DIR"], "state.pt")
begin = int(state.read_text()) if state.exists() else 0
wandb.init()
for step in range(begin, 4):
    wandb.log({"loss": wandb.config.lr * step})
    state.write_text(str(step + 1))
    if step == 1:
        wandb.finish()
        os.kill(os.getpid(), signal.SIGKILL)
"""
    trials = wandb_sweep(recipes, script, checkpoint="*.pt", resume=" ")
    assert set(trials["attempts"]) == {2}
    for trial, points in rows(recipes, "lr", "loss").items():
        lr = float(trials.set_index("trial")["lr"][trial])
        assert points == {step: lr * step for step in range(4)}
        runs = (recipes.results / "sweeps/lr/trials" / trial).glob("wandb/offline-run-*/run-*.wandb")
        assert [run.stem for run in runs] == [f"run-lr-{trial}"] * 2
