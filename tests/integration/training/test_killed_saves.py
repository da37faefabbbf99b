"""A process that is killed while it saves a checkpoint."""

import os
import signal
import subprocess
import sys
import time

import pytest
from project import ROOT
from trainyard.training.checkpoints import CheckpointStore

# Saves 8 MB repeatedly, and prints a line after each checkpoint.
SAVER = """
import sys, torch
from pathlib import Path
from trainyard.training.checkpoints import CheckpointStore
store, state = CheckpointStore(Path(sys.argv[1])), {"weights": torch.rand(2_000_000)}
for epoch in range(1, 10_000):
    store.save(state | {"epoch": epoch}, epoch=epoch)
    print(epoch, flush=True)
"""


@pytest.mark.parametrize("delay_seconds", [0.003, 0.011, 0.02])
def test_a_kill_during_a_save_leaves_the_previous_checkpoint_intact(tmp_path, delay_seconds):
    environment = os.environ | {"PYTHONPATH": str(ROOT / "scripts")}
    command = [sys.executable, "-c", SAVER, str(tmp_path)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as saver:
        saved = [int(saver.stdout.readline()) for _ in range(3)][-1]
        time.sleep(delay_seconds)
        saver.send_signal(signal.SIGKILL)
    assert CheckpointStore(tmp_path).latest()["epoch"] >= saved
