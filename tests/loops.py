"""What tests of the training loop share: a staged dataset, a small training in this process, and comparisons."""

from pathlib import Path

import pytest
import torch
from trainyard.config.datasets import Synthetic
from trainyard.config.train import Schedule, Training
from trainyard.data.staged import Staged
from trainyard.data.staging import stage
from trainyard.training.loaders import InputData, load_input_data
from trainyard.training.process_group import single_process
from trainyard.training.sampler import batch_sizes
from trainyard.training.trainer import Trainer, TrainingInterrupted

SPEC = Training(
    model="resnet",
    model_args={"blocks": 2, "width": 4},
    epochs=4,
    batch_size=16,
    lr=0.05,
    schedule=Schedule(name="cosine", warmup_fraction=0.2),
)
LEARNER = Training(model="cnn", model_args={"width": 8}, epochs=6, batch_size=16, optimizer="adam", lr=0.01)


class GpuOnPaper(str):
    """A GPU to the code that asks for the type of its device, whose tensors are in host memory."""

    __slots__ = ()
    type = "cuda"


GPU_ON_PAPER = GpuOnPaper("cpu")


def stage_images(folder: Path) -> Staged:
    """70 training images and 23 validation images of 8x8 pixels, which no batch size of the tests divides."""
    torch.set_num_threads(1)
    return stage(Synthetic(source="synthetic", images=70, val_images=23, height=8, width=8), folder)


def load_images(staged: Staged) -> InputData:
    return load_input_data(staged, torch.device("cpu"))


def changed(spec, **values):
    """The spec with other values; None removes a value."""
    kept = {name: value for name, value in spec if name in spec.model_fields_set and values.get(name, 0) is not None}
    return Training.model_validate(kept | {name: value for name, value in values.items() if value is not None})


def start(spec, data, *, mode="weak", **options):
    return Trainer(spec, data, single_process(), batch=batch_sizes(spec, mode=mode), **options)


def train(spec, data, *, epochs=None, **options):
    """The metrics of every epoch up to `epochs`, and the final parameters."""
    training = start(spec, data, **options)
    for row in training.epochs():
        if row.epoch == epochs:
            break
    return [numbers(row) for row in training.history], training.module.state_dict()


def numbers(row):
    """An epoch without its time measurements."""
    timings = ("images_per_second", "step_ms_p50", "step_ms_p95", "data_wait_fraction")
    return {name: value for name, value in row.as_row().items() if name not in timings and "seconds" not in name}


def assert_equal_states(one, other):
    assert all(torch.equal(one[name], other[name]) for name in one)


def assert_close(one, other, tolerance=1e-5):
    """Gradients summed in another order differ in the last of float32's seven digits, and steps add that up."""
    assert all(row == pytest.approx(same, abs=tolerance) for row, same in zip(one, other, strict=True))


def stop_within_second_epoch(running: Trainer) -> None:
    """Train one epoch, and let the clock stop the training in the next one."""
    epochs = running.epochs()
    next(epochs)
    running.deadline = 0.0
    with pytest.raises(TrainingInterrupted):
        next(epochs)
