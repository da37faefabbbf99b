"""tools/gpu_check.py runs without a GPU at toy size, so that it keeps up with the code."""

import json
import os
import subprocess
import sys

from yard import ROOT


def test_the_checks_run_without_a_gpu(tmp_path):
    command = [
        sys.executable,
        str(ROOT / "tools/gpu_check.py"),
        "one",
        "data",
        "bad_loss",
        "syncs",
        "--out",
        str(tmp_path),
    ]
    done = subprocess.run(command, env=os.environ | {"CUDA_VISIBLE_DEVICES": ""}, text=True, capture_output=True)
    assert done.returncode == 0, done.stdout + done.stderr
    checks = json.loads((tmp_path / "gpu_check_one.json").read_text())["checks"]
    assert [(name, result) for name, result, _ in checks] == [
        ("data path resident", "PASS"),
        ("data path mapped", "PASS"),
        ("data path loaded", "PASS"),
        ("bad loss", "PASS"),
        ("host syncs", "info"),
    ]
