"""Optimizers and schedules: torch's own."""

import pytest
import torch
from trainyard.config.train import Schedule, Train
from trainyard.training import optimizers
from trainyard.training.models import SmallConvNet


@pytest.mark.parametrize(
    ("name", "kind"), [("sgd", torch.optim.SGD), ("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW)]
)
def test_optimizers_step_as_those_of_torch(name, kind):
    spec = Train(optimizer=name, lr=0.1, weight_decay=0.01, nesterov=name == "sgd")
    momentum = {"momentum": 0.9, "nesterov": True} if name == "sgd" else {}

    def plain(model):
        return kind(model.parameters(), 0.1, weight_decay=0.01, fused=True, **momentum)

    results = []
    for make in (lambda model: optimizers.build_optimizer(spec, model), plain):
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 3)
        optimizer = make(model)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(2, 3)).pow(2).sum().backward()
            optimizer.step()
        results.append(model.weight)
    assert torch.equal(*results)


@pytest.mark.parametrize(
    ("schedule", "factors"),
    [
        (Schedule(), [1, 1, 1, 1]),
        (Schedule(name="step", step_size=1, gamma=0.1), [1, 1, 0.1, 0.1]),
        (Schedule(name="cosine"), [1, 0.853553, 0.5, 0.146447]),
        (Schedule(name="cosine", warmup_fraction=0.5), [1 / 3, 2 / 3, 1, 0.5]),
    ],
)
def test_schedules_follow_their_formulas(schedule, factors):
    factor = optimizers.lr_factor(schedule, steps=2, epochs=2)
    assert [factor(step) for step in range(4)] == pytest.approx(factors, abs=1e-6)


def test_decay_all_false_excludes_biases_and_normalization_layers():
    model = torch.nn.Sequential(SmallConvNet(channels=1, classes=2, width=2), torch.nn.BatchNorm1d(2))
    decayed, spared = optimizers.build_optimizer(Train(weight_decay=0.1, decay_all=False), model).param_groups
    assert (decayed["weight_decay"], spared["weight_decay"]) == (0.1, 0.0)
    assert {parameter.ndim for parameter in spared["params"]} == {1}
    assert len(decayed["params"]) == 4
    assert len(spared["params"]) == 6
