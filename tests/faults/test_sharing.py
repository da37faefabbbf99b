"""Trials that share a GPU through MPS, which runs as long as their sweep."""

from pathlib import Path

import pytest
from project import FAKE_MPS, TINY
from sweep_journals import read_records

pytestmark = pytest.mark.slow

MODEL = """
import os
from trainyard.training.models import SmallConvNet

def build(*, channels, classes):
    with open("mps-of-trials", "a") as file:
        print(os.environ.get("CUDA_MPS_PIPE_DIRECTORY"), file=file)
    return SmallConvNet(channels=channels, classes=classes, width=4)
"""


def test_trials_that_share_a_gpu_see_mps_which_ends_with_the_sweep(project):
    (project.folder / "own_model.py").write_text(MODEL)
    train = {"model": "own_model:build", "batch_size": 32}
    slots = {"gpus_per_node": 1, "gpus_per_trial": 0.5, "mps": "auto"}
    sweep = {"dataset": "tiny", "train": train, "grid": {"seed": [0, 1, 2, 3]}, "slots": slots}
    project.write({**TINY, "sweeps": {"s": sweep}})
    project.stage()
    control = project.folder / "bin/nvidia-cuda-mps-control"
    control.parent.mkdir()
    control.write_text(FAKE_MPS)
    control.chmod(0o755)
    project.environment |= {
        "PATH": f"{control.parent}:{project.environment['PATH']}",
        "FAKE_MPS_LOG": str(project.folder / "mps.log"),
    }
    project.run(*project.script("sweep", "--sweep", "s"))
    events = read_records(project.results / "sweeps/s")
    assert {(each["gpus_per_trial"], each["slot"]) for each in events if each["event"] == "started"} == {
        (0.5, 0),
        (0.5, 1),
    }
    (pipes,) = set((project.folder / "mps-of-trials").read_text().splitlines())
    assert "/ty-mps-" in pipes
    assert not Path(pipes).exists()
    assert (project.folder / "mps.log").read_text() == "start\nquit\n", "MPS runs as long as the sweep"
