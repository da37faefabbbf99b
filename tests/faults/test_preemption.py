"""At SIGTERM, trainings and trials save their state within a step, and the next run goes on from there."""

import signal

import pandas as pd
import pytest
from slurm_cluster.waiting import PATIENCE_SECONDS, wait_until
from yard import TINY, Yard

# A model that writes a line per step and rank. From step `waits_at` on, each step waits until there is a file `go`.
STEPS = """
import os, time
from pathlib import Path
import torch
from trainyard.training.models import SmallConvNet

HERE = Path(__file__).parent

class Gated(SmallConvNet):
    def forward(self, images):
        images = torch.nn.functional.dropout(images, 0.1, self.training)  # uses the generator of this rank
        if self.training and images.abs().unique().numel() > 4:  # the images of the warm-up are black
            steps = HERE / f"steps-{self.name}-{os.environ.get('RANK', 0)}"
            with open(steps, "a") as file:
                file.write("step\\n")
            while len(steps.read_text().splitlines()) >= self.waits_at and not (HERE / "go").exists():
                time.sleep(0.02)
        return super().forward(images)

def build(*, channels, classes, waits_at=1000, name=""):
    model = Gated(channels=channels, classes=classes, width=4)
    model.waits_at, model.name = waits_at, name
    return model
"""
# Eight steps per epoch.
TRAIN = {"model": "gated:build", "batch_size": 8, "epochs": 3, "lr": 0.01, "augment": {"flip": True, "crop_padding": 1}}
NOISE = {"seconds", "images_per_second", "step_ms_p50", "step_ms_p95", "data_wait_fraction"}


@pytest.fixture
def gated(yard: Yard) -> Yard:
    (yard.folder / "gated.py").write_text(STEPS)
    return yard


def scale_config(scale: str, *, waits_at: int, batch: int) -> dict:
    train = {**TRAIN, "batch_size": batch, "model_args": {"waits_at": waits_at}}
    return {**TINY, "scaling": {"s": {"dataset": "tiny", "train": train, "scales": [scale]}}}


def steps_of(yard: Yard, name: str = "", rank: int = 0) -> int:
    path = yard.folder / f"steps-{name}-{rank}"
    return len(path.read_text().splitlines()) if path.exists() else 0


def history(yard: Yard, scale: str) -> list[dict]:
    table = pd.read_csv(yard.results / f"scaling/s/{scale}/history.csv")
    return table.drop(columns=list(NOISE)).to_dict("records")


def test_a_training_stops_within_a_step_and_resumes_bit_identically(gated):
    """The signal arrives in the middle of the second epoch."""
    scale = "1x2"
    gated.write(scale_config(scale, waits_at=12, batch=4))
    gated.stage()
    command = gated.script("train", "--study", "s", "--scale", scale)
    first = gated.start(*command)
    wait_until(lambda: steps_of(gated) == 12, what="twelve steps", while_running=first)
    first.send_signal(signal.SIGTERM)
    (gated.folder / "go").touch()
    output, _ = first.communicate(timeout=PATIENCE_SECONDS)
    assert first.returncode == 1, output
    assert "stopped by a signal, in epoch 2 of 3, after step " in output
    assert "the same command continues from here" in output
    assert "Traceback" not in output
    taken = steps_of(gated)
    assert taken < 24, "it has not finished"
    done = gated.run(*command)
    assert f"continuing after epoch {taken // 8} and step {taken % 8}, from" in done.stdout
    assert steps_of(gated) == 24, "no step is repeated"
    disturbed = history(gated, scale)
    for path in gated.folder.glob("steps-*"):
        path.unlink()
    gated.results.joinpath("scaling").rename(gated.folder / "before")
    gated.run(*command)
    assert history(gated, scale) == disturbed
