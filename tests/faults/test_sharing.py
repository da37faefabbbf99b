"""`gpus_per_trial: auto`: the first trials have one GPU each and determine how many others share one."""

import pandas as pd
import pytest
from trainyard.packing.gpu_sharing import GpuUse, trials_per_gpu
from trainyard.utils.jsonl import read_events
from yard import TINY

# A fake NVML with one GPU, for the driver of the sweep and its workers.
NVML = """
class NVMLError(Exception): pass
class NVMLError_NotSupported(NVMLError): pass
NVML_TEMPERATURE_GPU = 0
def nvmlInit(): pass
def nvmlShutdown(): pass
def nvmlDeviceGetCount(): return 1
"""
# A model that reports the use of a fake GPU of 10,000 MiB, as set in its arguments.
FAKE_GPU = """
import time
from contextlib import contextmanager
from trainyard.training import telemetry
from trainyard.training.models import SmallConvNet

def build(*, channels, classes, mib, busy, seconds=1.0):
    class Gpu:
        def sample(self):
            return ["fake", mib, 10000, busy, "", ""]

    @contextmanager
    def visible_gpus():
        yield [Gpu()]

    telemetry.visible_gpus = visible_gpus
    time.sleep(seconds)
    return SmallConvNet(channels=channels, classes=classes, width=4)
"""
SHARES = [
    ([GpuUse(2000, 10000, 0.2)], 4, 4),  # memory for 4.5 trials, time for 5
    ([GpuUse(2000, 10000, 0.2), GpuUse(4000, 10000, 0.2)], 4, 2),  # limited by the largest
    ([GpuUse(2000, 10000, 0.2), GpuUse(1000, 10000, 0.5)], 4, 2),  # limited by the busiest
    ([GpuUse(2000, 10000, 0.98)], 4, 1),  # no time is left for others
    ([GpuUse(9500, 10000, 0.1)], 4, 1),  # memory for one
    ([GpuUse(100, 10000, 0.01)], 3, 3),  # limited by the CPUs
    ([], 4, 1),
]


@pytest.mark.parametrize(("uses", "most", "count"), SHARES)
def test_as_many_trials_share_a_gpu_as_its_memory_and_time_allow(uses, most, count):
    assert trials_per_gpu(uses, limit=most) == count


@pytest.fixture
def fake_gpu(yard):
    """A yard where each process has a fake GPU."""
    (yard.folder / "pynvml.py").write_text(NVML)
    (yard.folder / "fake_gpu.py").write_text(FAKE_GPU)
    return yard


def config(*, count, retrain=0, **model_args):
    train = {"model": "fake_gpu:build", "model_args": model_args, "batch_size": 32}
    slots = {"gpus_per_node": 2, "gpus_per_trial": "auto", "trials_per_gpu": 3}
    sweep = {"dataset": "tiny", "train": train, "grid": {"seed": list(range(count))}, "slots": slots}
    return {**TINY, "sweeps": {"s": {**sweep, "retrain": retrain}}}


def events_of(yard):
    return read_events(yard.results / "sweeps/s/journal.jsonl")


def started(yard):
    return [(event["gpus_per_trial"], event["slot"]) for event in events_of(yard) if event["event"] == "started"]


def test_the_first_trials_are_measured_and_the_others_share_gpus(fake_gpu):
    fake_gpu.write(config(count=8, mib=4000, busy=30))
    fake_gpu.stage()
    done = fake_gpu.run(*fake_gpu.script("sweep", "--sweep", "s"))
    assert "requests 2 slots of 1 (for now) GPU" in done.stdout
    assert "2 trials share a GPU from now on: the largest used 4000 of 10000 MiB at the peak, busy 30%" in done.stdout
    runs = started(fake_gpu)
    assert {share for share, _ in runs[:2]} == {1}, "a GPU each"
    assert {slot for _, slot in runs[:2]} <= {0, 1}
    assert {share for share, _ in runs[2:]} == {0.5}
    assert {slot for _, slot in runs[2:]} <= {0, 1, 2, 3}
    shares = [event for event in events_of(fake_gpu) if event["event"] == "share"]
    assert [event["slots"] for event in shares] == [4], "two on each of two GPUs"
    assert (pd.read_csv(fake_gpu.results / "sweeps/s/trials.csv")["status"] == "finished").all()

    fake_gpu.write(config(count=8, retrain=1, mib=4000, busy=30))
    again = fake_gpu.run(*fake_gpu.script("sweep", "--sweep", "s"))
    assert "requests 4 slots of 0.5 GPU" in again.stdout, "the measurement is kept"
    assert {share for share, _ in started(fake_gpu)[8:]} == {0.5}


def test_without_a_gpu_each_trial_has_its_own_slot_and_the_log_says_so(yard):
    (yard.folder / "fake_gpu.py").write_text(FAKE_GPU)
    yard.write(config(count=3, mib=1, busy=1, seconds=0))
    yard.stage()
    done = yard.run(*yard.script("sweep", "--sweep", "s"))
    assert "gpus_per_trial: auto is 1 here, because there is no GPU" in done.stdout
    assert {share for share, _ in started(yard)} == {1}
    assert "share" not in {event["event"] for event in events_of(yard)}
