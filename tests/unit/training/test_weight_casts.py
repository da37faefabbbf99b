"""Casting weights together changes no number, and launches one operation in each direction."""

import copy

import pytest
import torch
from loops import SPEC, assert_equal_states, changed, train
from operations import Operations
from torch.nn.functional import cross_entropy
from trainyard.training import trainer
from trainyard.training.computation.weight_casts import cast_weights_together
from trainyard.training.networks.models import ResNet, SmallConvNet

LAYERED = {"model": "cnn", "model_args": {"width": 4}}  # with biases and linear layers


@pytest.mark.parametrize(
    "values",
    [
        {"precision": "bf16", "activation_checkpointing": True},
        {"precision": "bf16", "accumulation": 2, "batch_size": 8, "channels_last": True},
        {"precision": "fp16", "clip_norm": 1, **LAYERED},
        {"precision": "bf16", "freeze": ["0.*"], "ema_decay": 0.9, **LAYERED},
    ],
)
def test_results_are_those_of_autocast(data, monkeypatch, values):
    used = []
    monkeypatch.setattr(trainer, "cast_weights_together", lambda model: used.append(cast_weights_together(model)))
    spec = changed(SPEC, epochs=2, **values)
    rows, state = train(spec, data)
    assert len(used) == 1
    monkeypatch.setattr(trainer, "cast_weights_together", lambda model: None)
    apart, expected = train(spec, data)
    assert rows == apart
    assert_equal_states(state, expected)


def one_step(model):
    """The names of the operations of a forward and backward pass, and the gradients."""
    images, labels = torch.ones(2, 3, 8, 8), torch.zeros(2, dtype=torch.int64)
    with Operations() as operations:
        with torch.autocast("cpu", torch.bfloat16):
            loss = cross_entropy(model(images), labels)
        loss.backward()
    return operations.names, [parameter.grad for parameter in model.parameters()]


@pytest.mark.parametrize("kind", [ResNet, SmallConvNet])
def test_one_operation_casts_all_weights_and_one_their_gradients(kind):
    torch.manual_seed(0)
    model = kind(channels=3, classes=4, width=4)
    other = copy.deepcopy(model)
    cast_weights_together(other)
    (apart, expected), (together, gradients) = one_step(model), one_step(other)
    layers = [module for module in model.modules() if isinstance(module, (torch.nn.Conv2d, torch.nn.Linear))]
    assert together.count("aten._foreach_copy_") == 2
    assert together.count("aten._to_copy") <= 4, "the images, the logits and their gradient"
    assert apart.count("aten._to_copy") >= 2 * len(layers)
    assert all(torch.equal(one, same) for one, same in zip(gradients, expected, strict=True))


def test_a_model_can_be_copied_after_a_step_and_used_without_autocast():
    model = ResNet(channels=3, classes=4, blocks=1, width=4)
    cast_weights_together(model)
    one_step(model)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        twin[0].weight.zero_()
    assert one_step(twin)[1][0] is not model[0].weight.grad
    assert model.eval()(torch.ones(2, 3, 8, 8)).dtype == torch.float32
