"""The program that writes TensorBoard's event files."""

import json
import os
import shlex
import subprocess
import sys

from project import ROOT


def test_nothing_that_writes_event_files_imports_torch():
    code = "import sys, trainyard.report.tensorboard; print('torch' in sys.modules, 'tensorflow' in sys.modules)"
    path = os.environ | {"PYTHONPATH": str(ROOT / "scripts")}
    assert subprocess.check_output([sys.executable, "-c", code], env=path, text=True).split() == ["False", "False"]


def test_the_command_that_shows_the_curves_works_with_spaces_in_paths(tmp_path):
    config = {"sweeps": {"mine": {"command": "train {lr}", "grid": {"lr": [0.1, 0.2]}}}}
    (tmp_path / "my.yaml").write_text(json.dumps(config))
    call = [sys.executable, ROOT / "scripts/event_files.py", "--config", "my.yaml", "--results", "my results"]
    output = subprocess.check_output(call, cwd=tmp_path, env=os.environ | {"PWD": str(tmp_path)}, text=True)
    command = next(line for line in output.splitlines() if "--logdir" in line).partition("curves: ")[2]
    assert shlex.split(command)[1:] == ["--logdir", "my results/tensorboard"]
