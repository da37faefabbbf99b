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
