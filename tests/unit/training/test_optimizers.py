"""Optimizers and schedules: torch's own."""

import pytest
import torch
from loops import SPEC, changed, start
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


@pytest.mark.parametrize("nesterov", [False, True])
def test_a_first_step_that_overflows_leaves_no_garbage_in_the_momentum(data, nesterov, monkeypatch):
    """Torch's fused SGD allocates its momentum in the first step, and does not write it if loss scaling skips it.

    Uninitialized memory is filled with NaN here.
    """
    training = start(changed(SPEC, precision="fp16", nesterov=nesterov, epochs=2, deterministic=True), data)
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
    training.state.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24)
    rows = list(training.epochs())
    assert training.state.scaler.get_scale() < 2.0**24, "a step was skipped"
    assert all(parameter.isfinite().all() for parameter in training.module.parameters())
    assert all(state["momentum_buffer"].isfinite().all() for state in training.state.optimizer.state.values())
    assert len(rows) == 2


def test_momentum_is_also_created_for_what_a_checkpoint_has_none(data):
    """A parameter without a gradient so far, of which earlier versions have saved no momentum."""
    training = start(SPEC, data)
    optimizer = training.state.optimizer
    next(training.epochs())
    state = training.state.state_dict()
    saved = state["optimizer"]["state"]
    del saved[0]
    training.state.load_state_dict(state)
    first, *others = (
        optimizer.state[parameter]["momentum_buffer"] for parameter in optimizer.param_groups[0]["params"]
    )
    assert not first.any()
    assert all(map(torch.equal, others, (each["momentum_buffer"] for each in saved.values())))


@pytest.mark.parametrize("options", [{"optimizer": "adam"}, {"momentum": 0.0}, {"freeze": ["head"]}])
def test_only_sgd_with_momentum_has_momentum_beforehand_and_only_of_trained_parameters(options):
    spec = Train(**options)
    model = torch.nn.ModuleDict({"head": torch.nn.Linear(2, 2), "tail": torch.nn.Linear(2, 2)})
    if spec.freeze:
        model["head"].requires_grad_(False)
    optimizer = optimizers.build_optimizer(spec, model)
    assert set(optimizer.state) == (set(model["tail"].parameters()) if spec.freeze else set())
