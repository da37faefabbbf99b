"""`gpus_per_trial: auto`: the first trials are measured, and determine how many of the others share a GPU."""

from pathlib import Path

import pandas as pd
import pytest
from project import FAKE_MPS, TINY
from sweep_journals import read_records

pytestmark = pytest.mark.slow

# A fake NVML with one GPU, for the driver of the sweep and its workers.
NVML = """
class NVMLError(Exception): pass
class NVMLError_NotSupported(NVMLError): pass
class NVMLError_NotFound(NVMLError): pass
NVML_TEMPERATURE_GPU = 0
def nvmlInit(): pass
def nvmlShutdown(): pass
def nvmlDeviceGetCount(): return 1
def nvmlDeviceGetHandleByIndex(index): raise NVMLError_NotSupported
"""
# A model that reports the use of a fake GPU of 10,000 MiB, and whose building takes long without computing.
FAKE_GPU = """
import os, time
from contextlib import contextmanager
from trainyard.training import telemetry
from trainyard.training.models import SmallConvNet

def build(*, channels, classes, mib):
    class Gpu:
        def sample(self):
            return ["fake", mib, 10000, 98, "", ""]

    @contextmanager
    def visible_gpus():
        yield [Gpu()]

    telemetry.visible_gpus = visible_gpus
    with open("mps-of-trials", "a") as file:
        print(os.environ.get("CUDA_MPS_PIPE_DIRECTORY"), file=file)
    time.sleep(1)
    return SmallConvNet(channels=channels, classes=classes, width=4)
"""
# The driver, which measures each number of trials for a few seconds only, and takes the larger one however busy the
# machine is: tests/unit/packing/test_gpu_fraction.py is about the decision.
QUICK = """
import runpy, sys
sys.path.insert(0, str(sys.argv[1]))
from trainyard.packing import gpu_fraction
gpu_fraction.MEASURED_SECONDS = 3.0
gpu_fraction.MIN_GAIN = 0.0
sys.argv = sys.argv[2:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.fixture
def fake_gpu(project):
    """A project where each process has a fake GPU."""
    (project.folder / "pynvml.py").write_text(NVML)
    (project.folder / "fake_gpu.py").write_text(FAKE_GPU)
    return project


def config(*, count, mps="off", **model_args):
    train = {"model": "fake_gpu:build", "model_args": model_args, "batch_size": 32}
    slots = {"gpus_per_node": 1, "gpus_per_trial": "auto", "mps": mps}
    return {**TINY, "sweeps": {"s": {"dataset": "tiny", "train": train, "grid": {"seed": list(range(count))},
                                     "slots": slots}}}  # fmt: skip


def events_of(project):
    return read_records(project.results / "sweeps/s")


def started(project):
    return [(event["gpus_per_trial"], event["slot"]) for event in events_of(project) if event["event"] == "started"]


def test_trials_share_gpus_as_far_as_more_of_them_end_and_fit(fake_gpu):
    fake_gpu.write(config(count=16, mib=4000, mps="auto"))
    fake_gpu.stage()
    control = fake_gpu.folder / "bin/nvidia-cuda-mps-control"
    control.parent.mkdir()
    control.write_text(FAKE_MPS)
    control.chmod(0o755)
    fake_gpu.environment |= {
        "PATH": f"{control.parent}:{fake_gpu.environment['PATH']}",
        "FAKE_MPS_LOG": str(fake_gpu.folder / "mps.log"),
    }
    python, *script = fake_gpu.script("sweep", "--sweep", "s")
    done = fake_gpu.run(python, "-c", QUICK, str(fake_gpu.root / "scripts"), *script)
    assert "requests 1 slot of 1 (for now) GPU" in done.stdout
    (share,) = (event for event in events_of(fake_gpu) if event["event"] == "share")
    assert "; the largest used 4000 of 10000 MiB)" in share["why"], "which is why four were not tried"
    assert f"gpus_per_trial: auto: {share['why']}" in done.stdout
    assert (share["slots"], share["gpus_per_trial"], list(share["throughput"])) == (2, 0.5, ["1", "2"])
    runs = started(fake_gpu)
    shared = [gpus for gpus, _ in runs].index(0.5)
    assert 0 < shared < len(runs) - 2
    assert set(runs[:shared]) == {(1, 0)}, "alone on the GPU at first"
    assert set(runs[shared:]) == {(0.5, 0), (0.5, 1)}
    assert (pd.read_csv(fake_gpu.results / "sweeps/s/trials.csv")["status"] == "finished").all()

    (pipes,) = set((fake_gpu.folder / "mps-of-trials").read_text().splitlines())
    assert "/ty-mps-" in pipes
    assert not Path(pipes).exists()
    assert (fake_gpu.folder / "mps.log").read_text() == "start\nquit\n", "MPS runs as long as the sweep"

    fake_gpu.write(config(count=17, mib=4000, mps="auto"))
    again = fake_gpu.run(*fake_gpu.script("sweep", "--sweep", "s"))
    assert "requests 2 slots of 0.5 GPU" in again.stdout, "the measurement is kept"
    assert share["why"] in again.stdout
    assert started(fake_gpu)[16:] == [(0.5, 0)]
