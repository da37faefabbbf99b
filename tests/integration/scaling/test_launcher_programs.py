"""How the programs end that launch ranks and scripts."""

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
from project import ROOT
from trainyard.cluster import host
from trainyard.config.scaling import ScriptScaling
from trainyard.scaling.launchers import STEP, TRAIN, NodeStep
from trainyard.scaling.user_script import UserScript
from trainyard.utils.errors import FinalError, UserError
from trainyard.utils.files import write_json
from trainyard.utils.import_path import SCRIPTS, helper_command


@pytest.mark.parametrize("rank", [{}, {"RANK": "0", "WORLD_SIZE": "1"}], ids=["plain", "RANK of another launcher"])
def test_train_is_the_launcher_unless_torchrun_has_started_it(tmp_path, rank):
    config = "{datasets: {d: {source: digits}}, scaling: {s: {dataset: d, train: {model: cnn}, scales: [2x1]}}}"
    (tmp_path / "config.yaml").write_text(config)
    command = [sys.executable, str(TRAIN), "--config", "config.yaml", "--study", "s", "--scale", "2x1"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")} | rank
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "scale 2x1 needs 2 nodes, but this is not a Slurm job" in done.stdout


def test_a_killed_agent_has_the_exit_code_of_a_shell(tmp_path):
    """`sys.exit` would make 247 of -9, which docs/troubleshooting.md does not have."""
    program = (
        "from unittest import mock; from trainyard.scaling import launchers; "
        "line = ['/bin/sh', '-c', 'kill -KILL $$']; "
        "mock.patch.object(launchers, 'training_command', return_value=line).start(); "
        "raise SystemExit(launchers.launch('1x1', []))"
    )
    environment = os.environ | {"PYTHONPATH": str(SCRIPTS)}
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env=environment, check=False)
    assert done.returncode == 128 + signal.SIGKILL


def test_a_killed_launcher_of_a_script_has_the_exit_code_of_a_shell(tmp_path):
    write_json(tmp_path / STEP, asdict(NodeStep(nodes=[host.node_name()], telemetry=str(tmp_path))))
    line = [*helper_command("scaling.node_step"), str(tmp_path), "/bin/sh", "-c", "kill -KILL $$"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    done = subprocess.run(line, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 128 + signal.SIGKILL, done.stderr


def test_a_script_in_a_folder_of_its_own_is_found_with_its_modules_and_the_files_of_its_launcher(
    tmp_path, monkeypatch, handlers
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "package").mkdir()
    (tmp_path / "package/train.py").write_text("import os, package\nopen(f\"model-{os.environ['RANK']}.pt\", 'w')\n")
    (tmp_path / "one.yaml").write_text("{distributed_type: 'NO', num_machines: 1, num_processes: 1}")
    options = {"launcher": ["accelerate", "--config_file", "one.yaml"]}
    study = ScriptScaling(script="package/train.py", scales=["1x2"], env=sys.executable, workdir="trial", **options)
    UserScript(study, "1x2", Path("results"), tmp_path).run()
    assert sorted(each.name for each in tmp_path.glob("results/1x2/out/*/*.pt")) == ["model-0.pt", "model-1.pt"]
    assert {each.name for each in tmp_path.iterdir()} == {"package", "one.yaml", "results"}


def test_a_script_that_knows_only_wandb_has_its_settings_and_reports(tmp_path, monkeypatch, handlers):
    monkeypatch.chdir(tmp_path)
    shutil.copy(ROOT / "tests/wandb_stand_in/wandb.py", tmp_path)
    (tmp_path / "train.py").write_text(
        "import wandb\nwandb.init()\nfor epoch in (1, 2):\n"
        "    wandb.log({'epoch': epoch, 'val_loss': wandb.config.lr * epoch, 'images_per_second': 10})\n"
    )
    options = {"metrics": "wandb", "args": {"lr": 0.5}}
    study = ScriptScaling(script="train.py", scales=["1x1"], env=sys.executable, **options)
    UserScript(study, "1x1", Path("results/s"), tmp_path).run()
    summary = json.loads((tmp_path / "results/s/1x1/summary.json").read_text())
    assert (summary["val_loss"], summary["images_per_second"]) == (1.0, 10)


def test_the_error_of_a_script_is_its_exception_and_not_the_report_of_its_launcher(tmp_path, handlers):
    script = tmp_path / "train.py"
    script.write_text("import os\nif os.environ['RANK'] == '0':\n    raise ValueError('no such model')\n")
    study = ScriptScaling(script=str(script), scales=["1x2"], env=sys.executable)
    with pytest.raises(UserError, match=r"the script failed: exit code 1: ValueError: no such model; its output is"):
        UserScript(study, "1x2", tmp_path, tmp_path).run()


# Each rank prints its loss and the throughput of its own GPU, which is a little lower with two. As in DDP, none begins
# a step before all have ended the one before.
PER_RANK = """
import os
import pathlib
import time
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
folder = pathlib.Path(__file__).parent
for step in (1, 2, 3):
    (folder / f"{step}-{rank}").touch()
    while len(list(folder.glob(f"{step}-*"))) < world:
        time.sleep(0.01)
    print(f"LABELstep {step}: loss {4 / step + rank:.2f}, {1000 / world**0.1:.1f} img/s", flush=True)
"""


@pytest.mark.parametrize("label", ["", "[rank{rank}]: "])
def test_a_throughput_that_each_rank_prints_is_not_taken_for_that_of_all(tmp_path, monkeypatch, handlers, label):
    """The speedup was 0.95."""
    script = tmp_path / "train.py"
    script.write_text(PER_RANK.replace("LABEL", label))
    pattern = "step (?P<epoch>{number}): loss (?P<train_loss>{number}), (?P<images_per_second>{number}) img/s"
    metrics = {"pattern": pattern}
    options = {"script": str(script), "scales": ["1x1", "1x2"], "env": sys.executable, "metrics": metrics}
    with pytest.raises(FinalError, match="is it that of one GPU or of all\\? Set `per: gpu` or `per: all`"):
        UserScript(ScriptScaling(**options), "1x2", tmp_path, tmp_path).run()
    script.unlink()  # it is not run again
    for per, expected in (("gpu", 2 * 933.0), ("all", 933.0)):
        UserScript(ScriptScaling(**options, per=per), "1x2", tmp_path, tmp_path).run()
        summary = json.loads((tmp_path / "1x2/summary.json").read_text())
        assert summary["images_per_second"] == pytest.approx(expected)
        assert summary["train_loss"] == pytest.approx(1.33 if label else 1.83)
        assert summary["epochs"] == 3
