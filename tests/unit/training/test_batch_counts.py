"""Counting batches together changes no number, and launches one operation."""

import copy

import pytest
import torch
from loops import SPEC, assert_equal_states, changed, train
from operations import Operations
from trainyard.training import trainer
from trainyard.training.networks.batch_counts import count_batches_together
from trainyard.training.networks.models import ResNet


@pytest.mark.parametrize("values", [{"activation_checkpointing": True}, {"accumulation": 2, "batch_size": 8}])
def test_results_and_buffers_are_those_of_counting_apart(data, monkeypatch, values):
    spec = changed(SPEC, epochs=2, **values)
    rows, state = train(spec, data)
    monkeypatch.setattr(trainer, "count_batches_together", lambda model: None)
    apart, expected = train(spec, data)
    assert rows == apart
    assert_equal_states(state, expected)
    assert list(state) == list(expected)
    assert state["1.num_batches_tracked"] == 2 * 4 * spec.accumulation


def test_all_layers_are_counted_by_one_operation():
    model, images = ResNet(channels=3, classes=2, blocks=2, width=4), torch.zeros(2, 3, 4, 4)
    with Operations() as apart:
        model(images)
    count_batches_together(model)
    with Operations() as together:
        model(images)
    assert apart.names.count("aten.add_") == 5
    assert together.names == ["aten._foreach_add_", *(name for name in apart.names if name != "aten.add_")]


def test_layers_in_evaluation_mode_and_copies_of_the_model_are_not_counted():
    model = ResNet(channels=3, classes=2, blocks=1, width=4)
    count_batches_together(model)
    copy.deepcopy(model)(torch.zeros(2, 3, 4, 4))
    model[1].eval()  # as a frozen layer
    model(torch.zeros(2, 3, 4, 4))
    model.eval()(torch.zeros(2, 3, 4, 4))
    counts = {name: int(count) for name, count in model.named_buffers() if "tracked" in name}
    assert counts == {"1.num_batches_tracked": 0, "3.norm1.num_batches_tracked": 1, "3.norm2.num_batches_tracked": 1}
