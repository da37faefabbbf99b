"""A check of trainings that share the GPU through MPS.

This module is also the program of a training: `python -m gpu_check.sharing` prints the loss of an epoch.
"""

import os
import subprocess
import sys
from pathlib import Path

import torch
from trainyard.cluster.gpus import CONTROL, PIPES, run_mps

from gpu_check.report import Report
from gpu_check.rig import SMALL, Rig, start

TRAINING_SECONDS = 120
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


if __name__ == "__main__":
    found = Rig(torch.device("cuda", 0), Report(Path(os.devnull), seconds=TRAINING_SECONDS))
    print(next(start(SMALL, found.images(count=6400, val_count=64)).epochs()).train_loss)
