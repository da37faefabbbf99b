"""FLOPs before evidence: counted on the meta device, by hand where that is possible, and what they order."""

import pytest
from sweep_journals import session_of
from trainyard.config.load import check_config
from trainyard.data.staged import Staged
from trainyard.data.staging import stage
from trainyard.kinds import trial_flops
from trainyard.planning.plan import plan_sweep

COUNT_FLOPS = "trainyard.training.gpu_utilization.count_flops"


@pytest.fixture
def plan(tmp_path):
    """From changes of a sweep to its plan, on 8x8 images of three channels and ten classes."""
    data = {"source": "synthetic", "images": 64, "val_images": 24, "height": 8, "width": 8, "channels": 3}

    def planned(**sweep):
        config = check_config({"datasets": {"tiny": data}, "sweeps": {"s": {"dataset": "tiny", **sweep}}})
        stage(config.datasets["tiny"], tmp_path / "data/tiny")
        return plan_sweep(config, "s", tmp_path)

    return planned


def counted(plan, tmp_path):
    flops = trial_flops.count_trial_flops(plan, Staged(tmp_path / "data/tiny"))
    return {tuple(plan.state.trials[name].values.values()): value for name, value in flops.items()}


def test_each_block_of_a_resnet_adds_what_its_convolutions_take(plan, tmp_path):
    """Two 3x3 convolutions of 4 to 4 channels on 8x8 pixels: 2 x 64 x 4 x 4 x 9 products and as many sums."""
    sweep = {"train": {"model": "resnet", "model_args": {"width": 4}}, "grid": {"model_args.blocks": [1, 2, 5]}}
    flops = counted(plan(**sweep), tmp_path)
    block = 2 * (2 * 64 * 4 * 4 * 9) * 3  # forward once, backward twice as much
    assert flops[2,] - flops[1,] == pytest.approx(block)
    assert flops[5,] - flops[2,] == pytest.approx(3 * block)


def test_the_longest_comes_first_and_slots_are_chosen_by_it(plan, tmp_path):
    sweep = {"train": {"model": "resnet", "model_args": {"width": 4}}, "slots": {"gpus_per_node": 4}, "goal": "fastest",
             "grid": {"model_args.blocks": [1, 9, 2, 5], "epochs": [1, 3]}}  # fmt: skip
    before = plan(**sweep)
    assert trial_flops.is_needed(before)
    with session_of(tmp_path / "sweeps/s") as journal:
        journal.append("work", flops=trial_flops.count_trial_flops(before, Staged(tmp_path / "data/tiny")))
    after = plan(**sweep)
    order = [tuple(after.state.trials[name].values.values()) for name in after.forecast.pending]
    assert order[:2] == [(9, 3), (5, 3)]
    assert order[-1] == (1, 1)
    assert not trial_flops.is_needed(after), "they are counted once"
    assert after.predicted_seconds is None, "FLOPs are no seconds"
    assert (before.slots.count, after.slots.count) == (4, 3), "the longest takes a third of all"


def test_where_models_are_the_same_none_is_built(plan, tmp_path, monkeypatch):
    monkeypatch.setattr(COUNT_FLOPS, lambda *_, **__: pytest.fail("no model has to be looked at"))
    flops = counted(plan(grid={"epochs": [1, 4], "lr": [0.1, 0.2]}), tmp_path)
    assert flops[4, 0.1] == 4 * flops[1, 0.2]


def test_of_many_models_some_are_counted_and_the_others_follow(plan, tmp_path, monkeypatch):
    asked = []

    def count_flops(spec, **_):
        asked.append(spec)
        return (1000.0 + 10 * spec.model_args["blocks"]) * trial_flops.FORWARD

    monkeypatch.setattr(COUNT_FLOPS, count_flops)
    grid = {"model_args.blocks": {"start": 1, "stop": 500}}
    flops = counted(plan(train={"model": "resnet", "epochs": 2}, grid=grid), tmp_path)
    assert len(asked) == trial_flops.COUNTED
    assert flops == pytest.approx({(blocks,): 2 * (1000.0 + 10 * blocks) for blocks in range(1, 501)}, rel=0.06)


def test_own_models_are_not_built_and_time_is_limited(plan, tmp_path):
    """Their code may do anything, and GPUs are waiting."""
    trials = plan(train={"model": "no_such_module:build"}, grid={"model_args.size": [1, 2]})
    staged = Staged(tmp_path / "data/tiny")
    assert trial_flops.count_trial_flops(trials, staged) == {}
    blocks = plan(train={"model": "resnet"}, grid={"model_args.blocks": [1, 2]})
    assert len(trial_flops.count_trial_flops(blocks, staged)) == 2
    assert trial_flops.count_trial_flops(blocks, staged, seconds=0) == {}


def test_a_model_that_cannot_be_counted_leaves_the_order_as_it_is(plan, tmp_path, monkeypatch):
    monkeypatch.setattr(COUNT_FLOPS, lambda *_, **__: None)
    assert counted(plan(train={"model": "resnet"}, grid={"model_args.blocks": [1, 2]}), tmp_path) == {}


def test_evidence_or_a_cost_of_the_users_own_count_more(plan):
    grid = {"model_args.blocks": [1, 2]}
    assert not trial_flops.is_needed(plan(train={"model": "resnet"}, grid=grid, cost="model_args.blocks"))
    assert not trial_flops.is_needed(plan(train={"model": "resnet"}, grid=grid), slots=2), "all begin at once"
