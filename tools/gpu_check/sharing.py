"""Checks of trials that share the GPU: through MPS, and as many at a time as `gpus_per_trial: auto` finds best.

This module is also the program of a training: `python -m gpu_check.sharing` prints the loss of an epoch.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import yaml
from trainyard.cluster.gpus import CONTROL, PIPES, run_mps
from trainyard.planning.attempts import Fold

from gpu_check.programs import run_program
from gpu_check.report import Report
from gpu_check.rig import SMALL, Rig, start

TRAINING_SECONDS = 120
SWEEP_SECONDS = 480
TRIALS = 200  # of seconds each: a minute with 1, 2, 4 and 8 of them at a time, and some are left
LARGEST_DIFFERENCE = 0.01  # of the loss with MPS


def check_mps(rig: Rig) -> None:
    """The MPS daemon starts, serves a training, which has the loss that it has without, and ends."""
    without = _epoch_loss() if rig.has_gpu else 0.0
    with run_mps(True) as obstacle:
        if obstacle or not rig.has_gpu:
            rig.report.inform("MPS", obstacle or "needs a GPU")
            return
        daemon = Path(os.environ[PIPES], f"{CONTROL}.pid").read_text().strip()
        loss = _epoch_loss()
        asked = subprocess.run([CONTROL], input="get_server_list\n", text=True, capture_output=True, timeout=30)
    has_ended = not Path(f"/proc/{daemon}").exists()
    seen = f"loss {loss:.4f}, without MPS {without:.4f}; servers {asked.stdout.split()}, daemon ended: {has_ended}"
    passed = abs(loss - without) < LARGEST_DIFFERENCE and asked.stdout.strip() != "" and has_ended
    rig.report.check("MPS", passed, seen)


def _epoch_loss() -> float:
    command = [sys.executable, "-m", "gpu_check.sharing"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=environment, text=True, capture_output=True, timeout=TRAINING_SECONDS)
    if done.returncode:
        raise RuntimeError(done.stderr[-600:])
    return float(done.stdout.split()[-1])


def measure_auto_share(rig: Rig) -> None:
    """What `gpus_per_trial: auto` measures and chooses for small trials, without and with MPS."""
    if not rig.has_gpu:
        rig.report.inform("trials per GPU", "needs a GPU")
        return
    for mps in ("off", "auto"):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "config.yaml").write_text(yaml.safe_dump(_config(mps)))
            if run_program(rig, folder, "stage", "--dataset", "d", timeout=SWEEP_SECONDS) is None:
                return
            output = run_program(rig, folder, "sweep", "--sweep", "s", timeout=SWEEP_SECONDS)
            if output is None:
                return
            shares = list(Fold(folder / "results/sweeps/s").update().gpu_fractions.values())
            is_used = "MPS runs on" in output
            rig.report.add_row("trials per GPU", {"MPS": is_used, "decision": shares[0].why if shares else "none"})


def _config(mps: str) -> dict[str, Any]:
    images = {"images": 12_800, "val_images": 128, "height": 32, "width": 32}
    train = {"model": "resnet", "model_args": {"blocks": 8, "width": 32}, "batch_size": 128, "epochs": 2}
    slots = {"gpus_per_trial": "auto", "mps": mps}
    sweep = {"dataset": "d", "train": train, "grid": {"seed": list(range(TRIALS))}, "slots": slots}
    return {"datasets": {"d": {"source": "synthetic", **images}}, "sweeps": {"s": sweep}}


if __name__ == "__main__":
    found = Rig(torch.device("cuda", 0), Report(Path(os.devnull), seconds=TRAINING_SECONDS))
    print(next(start(SMALL, found.images(count=6400, val_count=64)).epochs()).train_loss)
