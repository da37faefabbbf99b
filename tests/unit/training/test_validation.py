"""The batches of the validation."""

from functools import partial
from types import SimpleNamespace

import pytest
import torch
from trainyard.training import trainer
from trainyard.training.process_group import Group, single_process
from trainyard.training.trainer import Validation


@pytest.fixture
def launched():
    """The batches that the host has launched on a GPU that a test makes believe."""
    return []


@pytest.fixture(autouse=True)
def waited(monkeypatch, launched):
    """How many batches had been launched at each moment for which the host waited."""
    moments = []
    monkeypatch.setattr(
        trainer, "moment", lambda device: SimpleNamespace(synchronize=partial(moments.append, len(launched)))
    )
    monkeypatch.setattr(trainer, "synchronize", lambda device: None)
    return moments


@pytest.mark.parametrize(
    ("device", "fits", "first", "second"),
    [("cpu", 100, [4] * 5, [2] * 10), ("cuda:0", 100, [16, 4], [8, 8, 4]), ("cuda:0", 8, [16, 8, 8, 4], [8, 8, 4])],
)
def test_batches_are_larger_than_those_of_the_training_on_a_gpu_as_far_as_they_fit(device, fits, first, second):
    """20 images, after micro-batches of 4 and of 2."""
    split = type("Split", (), {"__len__": lambda self: 20, "batches": lambda self, order: (each for each in order)})()
    objective = SimpleNamespace(begin_validation=lambda device: torch.zeros(()))
    used = []

    def measure(images):
        used.append(len(images))
        if len(images) > fits:
            raise torch.OutOfMemoryError("out of memory")
        return torch.tensor(float(len(images)))

    validating = Validation(split, objective, Group(0, 0, 1, torch.device(device)))
    for micro, expected in ((4, first), (2, second)):
        assert validating.sums(measure, micro=micro) == 20
        assert used == expected
        used.clear()


@pytest.mark.parametrize(
    ("message", "expected"), [("CUDA error: out of memory", [4, 2, 1]), ("wrong labels", [4])], ids=["memory", "other"]
)
def test_an_error_that_smaller_batches_do_not_help_is_raised(message, expected):
    split = type("Split", (), {"__len__": lambda self: 20, "batches": lambda self, order: (each for each in order)})()
    used = []

    def measure(images):
        used.append(len(images))
        raise RuntimeError(message)

    validating = Validation(split, SimpleNamespace(begin_validation=lambda device: torch.zeros(())), single_process())
    with pytest.raises(RuntimeError, match=message):
        validating.sums(measure, micro=4)
    assert used == expected


def test_the_host_is_ahead_of_a_gpu_by_one_batch(launched, waited):
    """So that it sees a request to stop in time: it could launch a whole validation before the GPU begins it."""
    split = type("Split", (), {"__len__": lambda self: 6, "batches": lambda self, order: (each for each in order)})()
    validating = Validation(split, SimpleNamespace(begin_validation=lambda device: torch.zeros(())), single_process())
    ahead = []

    def measure(images):
        ahead.append(len(launched) - max(waited, default=0))
        launched.append(images)
        return torch.tensor(1.0)

    assert validating.sums(measure, micro=1) == 6
    assert ahead == [0, 1, 1, 1, 1, 1]
    assert validating.sums(measure, micro=1, must_stop=lambda: len(launched) == 8) is None
