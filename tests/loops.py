"""What tests of the training loop share: a small training, run in this process, and what of it must not change."""

from dataclasses import asdict

import torch
from trainyard.config.train import Schedule, Train
from trainyard.training.process_group import single_process
from trainyard.training.sampler import batch_sizes
from trainyard.training.trainer import Trainer

SPEC = Train(model="resnet", model_args={"blocks": 2, "width": 4}, epochs=4, batch_size=16, lr=0.05,
             schedule=Schedule(name="cosine", warmup_fraction=0.2))  # fmt: skip
LEARNER = Train(model="cnn", model_args={"width": 8}, epochs=6, batch_size=16, optimizer="adam", lr=0.01)


def changed(spec, **values):
    """The spec with other values, as if it had been written so."""
    kept = {name: value for name, value in spec if name in spec.model_fields_set and values.get(name, 0) is not None}
    return Train.model_validate(kept | {name: value for name, value in values.items() if value is not None})


def start(spec, data, **options):
    return Trainer(spec, data, single_process(), batch=batch_sizes(spec), **options)


def train(spec, data, *, epochs=None, **options):
    """The numbers of every epoch up to `epochs`, and the parameters at the end."""
    training = start(spec, data, **options)
    for row in training.epochs():
        if row.epoch == epochs:
            break
    return [numbers(row) for row in training.history], training.module.state_dict()


def numbers(row):
    """The part of an epoch that is not a measurement of time."""
    timings = ("seconds", "images_per_second", "step_ms_p50", "step_ms_p95", "data_wait_fraction")
    return {name: value for name, value in asdict(row).items() if name not in timings}


def assert_equal_states(one, other):
    assert all(torch.equal(one[name], other[name]) for name in one)
