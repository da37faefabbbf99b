"""The check of Trainyard's own programs: stage, and train a scaling study with torchrun, telemetry and summary."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

from gpu_check.rig import Rig

SCRIPTS = Path(__file__).parents[2] / "scripts"
TIMEOUT_SECONDS = 150
EPOCHS = 3
SHOWN = ("images_per_second", "step_ms_p50", "data_wait_fraction", "mfu", "gpu0_peak_mib",
         "startup_seconds", "warmup_seconds", "train_seconds", "checkpoint_seconds", "device")  # fmt: skip


def check_programs(rig: Rig) -> None:
    """The programs stage a dataset and train on it, and write a summary."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "config.yaml").write_text(yaml.safe_dump(_config(rig)))
        for program, *options in (("stage", "--dataset", "d"), ("train", "--study", "s", "--scale", "1x1")):
            timeout = max(1.0, min(TIMEOUT_SECONDS, rig.report.remaining_seconds))
            if run_program(rig, folder, program, *options, timeout=timeout) is None:
                return
        summary = json.loads((folder / "results/scaling/s/1x1/summary.json").read_text())
        passed = summary["device"] == rig.gpu_name and summary["epochs"] == EPOCHS
        rig.report.check("programs", passed, {name: summary[name] for name in SHOWN})


def run_program(rig: Rig, folder: Path, program: str, *options: str, timeout: float) -> str | None:
    """The output of a program of Trainyard on the config in a folder; None if it has failed, which is reported."""
    command = [sys.executable, str(SCRIPTS / f"{program}.py"), "--config", "config.yaml", *options]
    done = subprocess.run(command, cwd=folder, text=True, capture_output=True, timeout=timeout)
    if done.returncode == 0:
        return done.stdout
    rig.report.check(f"program {program}", False, (done.stdout + done.stderr)[-600:])
    return None


def _config(rig: Rig) -> dict[str, Any]:
    images = rig.size(
        {"images": 20_000, "val_images": 1000, "height": 64, "width": 64},
        {"images": 64, "val_images": 16, "height": 8, "width": 8},
    )
    train = rig.size({"model": "resnet50", "batch_size": 512, "precision": "bf16"}, {"batch_size": 16})
    study = {"dataset": "d", "train": {**train, "epochs": EPOCHS}, "scales": ["1x1"], "cpus_per_gpu": rig.size(8, 1)}
    return {"datasets": {"d": {"source": "synthetic", "classes": 20, **images}}, "scaling": {"s": study}}
