"""Optimizers and schedules: torch's own."""

import inspect
import os
import subprocess
import sys

import pytest
import torch
from loops import SPEC, changed, numbers, start, train
from trainyard.config.train import Schedule, Train
from trainyard.training import optimizers
from trainyard.training.checkpoints import CheckpointStore
from trainyard.training.models import SmallConvNet
from trainyard.utils.errors import UserError


@pytest.mark.parametrize(
    ("name", "kind"), [("sgd", torch.optim.SGD), ("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW)]
)
def test_optimizers_step_as_those_of_torch(name, kind):
    momentum = {"momentum": 0.9} if name == "sgd" else {}
    further = {"nesterov": True} if name == "sgd" else {"betas": [0.8, 0.9], "amsgrad": True}
    spec = Train(optimizer=name, lr=0.1, weight_decay=0.01, optimizer_args=further)

    def plain(model):
        return kind(model.parameters(), 0.1, weight_decay=0.01, fused=True, **momentum, **further)

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


def test_a_training_that_compiles_nothing_does_not_import_the_compiler(tmp_path):
    """Neither when it starts nor when it continues: the import takes 1.5 s of CPU time, in each worker."""
    code = """
import sys
from pathlib import Path
from loops import LEARNER, SPEC, load_images, stage_images, start, stop_within_second_epoch, train
from trainyard.training.checkpoints import CheckpointStore
data = load_images(stage_images(Path("data")))
for spec in (SPEC, LEARNER):
    store = CheckpointStore(Path(spec.optimizer), {})
    stop_within_second_epoch(start(spec, data, store=store))
    train(spec, data, store=store)
assert "torch._dynamo" not in sys.modules
"""
    subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env={"PYTHONPATH": os.pathsep.join(sys.path)}, check=True
    )


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw"])
def test_without_options_an_optimizer_has_the_defaults_of_torch(name):
    signature = inspect.signature(getattr(torch.optim, {"sgd": "SGD", "adam": "Adam", "adamw": "AdamW"}[name]))
    group = optimizers.build_optimizer(Train(optimizer=name), torch.nn.Linear(3, 3)).param_groups[0]
    defaults = {key: signature.parameters[key].default for key in ("lr", "weight_decay")}
    assert {key: group[key] for key in defaults} == defaults
    undecayed = optimizers.build_optimizer(Train(optimizer=name, weight_decay=0), torch.nn.Linear(3, 3))
    assert undecayed.param_groups[0]["weight_decay"] == 0


@pytest.mark.parametrize(
    ("schedule", "factors"),
    [
        (Schedule(), [1, 1, 1, 1]),
        (Schedule(name="step", step_size=1, gamma=0.1), [1, 1, 0.1, 0.1]),
        (Schedule(name="cosine"), [1, 0.853553, 0.5, 0.146447]),
        (Schedule(name="step", step_size=1, warmup_fraction=0.25), [0.5, 1, 0.1, 0.1]),
        (Schedule(name="cosine", warmup_fraction=0.5), [1 / 3, 2 / 3, 1, 0.5]),
    ],
)
def test_schedules_follow_their_formulas(schedule, factors):
    factor = optimizers.lr_factor(schedule, steps=2, epochs=2, peak=0.5)
    assert [factor(step) for step in range(4)] == pytest.approx(factors, abs=1e-6)


SCHEDULES = {
    "onecycle": (Schedule(name="onecycle"),
                 lambda made: torch.optim.lr_scheduler.OneCycleLR(made, 0.1, 20, cycle_momentum=False)),
    "onecycle with arguments": (Schedule(name="onecycle", pct_start=0.5, div_factor=5, cycle_momentum=True),
                                lambda made: torch.optim.lr_scheduler.OneCycleLR(
                                    made, 0.1, 20, pct_start=0.5, div_factor=5)),
    "step": (Schedule(name="step", step_size=2, gamma=0.3),
             lambda made: torch.optim.lr_scheduler.StepLR(made, 10, 0.3)),
    "cosine": (Schedule(name="cosine", eta_min=0.01),
               lambda made: torch.optim.lr_scheduler.CosineAnnealingLR(made, 20, 0.01)),
    "polynomial": (Schedule(name="polynomial", power=2),
                   lambda made: torch.optim.lr_scheduler.PolynomialLR(made, 20, 2)),
}  # fmt: skip


@pytest.mark.parametrize("case", SCHEDULES)
def test_schedules_are_those_of_torch(case):
    schedule, by_hand = SCHEDULES[case]
    rates = []
    for build in (lambda made: optimizers.build_schedule(Train(epochs=4, schedule=schedule), made, 5), by_hand):
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], 0.1, momentum=0.9)
        stepped = build(optimizer)
        rates.append([])
        for _ in range(20):
            rates[-1].append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            stepped.step()
    assert rates[0] == pytest.approx(rates[1], rel=1e-6)


def test_a_polynomial_schedule_rises_linearly_before_it():
    optimizer = torch.optim.SGD([{"params": [torch.nn.Parameter(torch.ones(1))], "lr": 0.5}], 0.1)
    spec = Train(epochs=2, schedule=Schedule(name="polynomial", warmup_fraction=0.5))
    schedule, rates = optimizers.build_schedule(spec, optimizer, 2), []
    for _ in range(4):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert rates == pytest.approx([0.5 / 3, 1 / 3, 0.5, 0.25])


@pytest.mark.parametrize("rise", [0.0, 0.1, 0.5, 0.99])
@pytest.mark.parametrize(("name", "option"), [("onecycle", "pct_start"), ("polynomial", "warmup_fraction")])
@pytest.mark.parametrize("steps", [1, 2, 10])
def test_a_schedule_may_have_any_number_of_steps(name, option, rise, steps):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], 0.1)
    spec = Train(schedule=Schedule(name=name, **{option: rise}))
    schedule = optimizers.build_schedule(spec, optimizer, steps)
    for _ in range(steps):
        assert 0 < optimizer.param_groups[0]["lr"] <= 0.1
        optimizer.step()
        schedule.step()


MISTAKES = {
    "misspelt": ({"optimizer_args": {"nestrov": True}},
                 "optimizer_args: SGD got an unexpected keyword argument 'nestrov'; known: dampening, nesterov"),
    "of another optimizer": ({"optimizer": "adam", "optimizer_args": {"nesterov": True}}, "known: betas, eps, amsgrad"),
    "with an option of its own": ({"optimizer_args": {"lr": 0.1}}, "unexpected keyword argument 'lr'"),
    "without momentum": ({"momentum": 0, "optimizer_args": {"nesterov": True}}, "Nesterov momentum requires"),
    "too few": ({"optimizer": "adam", "optimizer_args": {"betas": [0.9]}}, "optimizer_args: list index out of range"),
    "out of range": ({"optimizer": "adam", "optimizer_args": {"betas": [2, 0.9]}}, "optimizer_args: Invalid beta"),
    "of another schedule": ({"schedule": {"name": "cosine", "gamma": 0.1}},
                            "schedule: CosineAnnealingLR got an unexpected keyword argument 'gamma'; "
                            "known: name, warmup_fraction, eta_min"),
    "missing": ({"schedule": {"name": "step"}}, "schedule: StepLR missing a required argument: 'step_size'"),
    "zero": ({"schedule": {"name": "step", "step_size": 0, "warmup_fraction": 0.5}}, "schedule: integer division"),
    "no fraction": ({"schedule": {"name": "onecycle", "pct_start": 3}}, "schedule: Expected float between 0 and 1"),
}  # fmt: skip


@pytest.mark.parametrize("case", MISTAKES)
def test_an_argument_that_torch_does_not_take_is_one_clear_error(case):
    options, message = MISTAKES[case]
    with pytest.raises(UserError) as error:
        optimizers.try_arguments(Train(**options))
    assert message in str(error.value)


@pytest.mark.parametrize("schedule", [{"name": "onecycle"}, {"name": "polynomial", "warmup_fraction": 0.3}])
def test_a_training_with_a_schedule_of_torch_resumes_bit_identically(data, tmp_path, schedule):
    spec = changed(SPEC, epochs=4, schedule=schedule, lr_scale={"*": 0.5})
    whole, weights = train(spec, data)
    first = start(spec, data, store=CheckpointStore(tmp_path, {}))
    for _, _ in zip(range(2), first.epochs(), strict=False):
        pass
    resumed = start(spec, data, store=CheckpointStore(tmp_path, {}))
    assert 1 <= len(resumed.history) < 4
    rows = [numbers(row) for row in resumed.epochs()]
    assert rows == whole[-len(rows) :]
    assert all(map(torch.equal, resumed.module.state_dict().values(), weights.values()))


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
    options = {"precision": "fp16", "optimizer_args": {"nesterov": nesterov}, "deterministic": True}
    training = start(changed(SPEC, epochs=2, **options), data)
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
    training.state.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24)
    rows = list(training.epochs())
    assert training.state.scaler.get_scale() < 2.0**24, "a step was skipped"
    assert all(parameter.isfinite().all() for parameter in training.module.parameters())
    assert all(state["momentum_buffer"].isfinite().all() for state in training.state.optimizer.state.values())
    assert len(rows) == 2


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"optimizer": "adam", "optimizer_args": {"amsgrad": True}}, ["head", "tail"]),
        ({"momentum": 0.0}, []),
        ({"freeze": ["head"]}, ["tail"]),
    ],
)
def test_all_but_sgd_without_momentum_has_its_state_beforehand_and_only_of_trained_parameters(options, parts):
    spec = Train(**options)
    model = torch.nn.ModuleDict({"head": torch.nn.Linear(2, 2), "tail": torch.nn.Linear(2, 2)})
    if spec.freeze:
        model["head"].requires_grad_(False)
    optimizer = optimizers.build_optimizer(spec, model)
    assert set(optimizer.state) == {parameter for part in parts for parameter in model[part].parameters()}
