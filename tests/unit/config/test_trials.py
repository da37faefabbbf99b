"""Trials: the same sweep gives the same ones, and an identity changes with what changes the result, only."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from trainyard.config import trials
from trainyard.config.load import check_config
from trainyard.config.scaling import split_scale
from trainyard.config.sweep import CommandSweep, Range, TrainSweep, is_seed
from trainyard.config.trials import constant_keys, expand, relative_cost
from trainyard.utils.errors import UserError


def keys_set_by(trials):
    """In order of first appearance."""
    return list(dict.fromkeys(key for trial in trials for key in trial.values))


def sweep(**fields):
    return TrainSweep.model_validate({"dataset": "digits", **fields})


def identities(made):
    return [trial.identity("data") for trial in expand(made).trials]


def test_a_grid_is_the_product_of_its_keys():
    made = sweep(grid={"lr": [0.1, 0.2], "model_args.blocks": {"start": 4, "stop": 12, "step": 4}})
    values = [trial.values for trial in expand(made).trials]
    assert len(values) == 6
    assert values[0] == {"lr": 0.1, "model_args.blocks": 4}
    assert values[-1] == {"lr": 0.2, "model_args.blocks": 12}


def test_nested_keys_leave_the_rest_of_the_base_alone():
    made = sweep(
        train={"model_args": {"width": 8}}, grid={"model_args.blocks": [1, 2]}, trials=[{"schedule.name": "step"}]
    )
    specs = [trial.spec for trial in expand(made).trials]
    assert [spec.model_args for spec in specs] == [{"width": 8, "blocks": 1}, {"width": 8, "blocks": 2}, {"width": 8}]
    assert specs[2].schedule.name == "step"


def test_the_same_configuration_is_one_trial():
    made = sweep(grid={"lr": [0.1, 0.2]}, trials=[{"lr": 0.2}, {"lr": 0.2, "momentum": 0.9}, {"lr": 0.3}])
    assert [trial.spec.lr for trial in expand(made).trials] == [0.1, 0.2, 0.3]


@pytest.mark.parametrize("key", ["seed", "trainer.seed", "manual_seed", "manualSeed", "RNG_SEED", "random_state"])
def test_seeds_of_scripts_have_several_names(key):
    """With `--manual_seed`, that of PyTorch's examples, the luckiest seed would be the best setting."""
    assert is_seed(key)
    made = CommandSweep.model_validate({"command": "python train.py {args}", "args": {key: 3}, "repeats": 2})
    assert [trial.values[key] for trial in expand(made).trials] == [3, 4]
    assert not any(map(is_seed, ("data_seed", "n_seeds", "seed_size", "speed")))


@pytest.mark.parametrize(
    ("command", "args"),
    [("train {args}", {"seed": 0, "random_state": 42}), ("train {seed} {random_state}", {"random_state": 42})],
)
def test_of_several_seeds_repeats_counts_the_one_with_this_name(command, args):
    made = CommandSweep.model_validate({"command": command, "args": args, "repeats": 2})
    assert [trial.values for trial in expand(made).trials] == [{"seed": 0}, {"seed": 1}]


def test_samples_are_the_same_for_the_same_seed_and_in_their_range():
    values = {"lr": {"low": 1e-4, "high": 0.1, "log": True}, "epochs": {"low": 1, "high": 9, "integer": True}}
    made = {seed: sweep(sample={"count": 30, "seed": seed, "values": values}) for seed in (0, 1)}
    assert identities(made[0]) == identities(made[0])
    assert identities(made[0]) != identities(made[1])
    for trial in expand(made[0]).trials:
        assert 1e-4 <= trial.spec.lr <= 0.1
        assert 1 <= trial.spec.epochs <= 9


MOMENTUM = {"optimizer": ["adam", "sgd"], "momentum": {"choices": [0.0, 0.9], "when": {"optimizer": "sgd"}}}


def test_a_key_with_a_condition_is_left_out_where_it_does_not_apply():
    of_momentum = {"choices": [True, False], "when": {"momentum": [0.9]}}
    nesterov = "optimizer_args.nesterov"
    found = [each.values for each in expand(sweep(grid={nesterov: of_momentum, **MOMENTUM})).trials]
    assert found == [
        {"optimizer": "adam"},
        {"optimizer": "sgd", "momentum": 0.0},
        {"optimizer": "sgd", "momentum": 0.9, nesterov: True},
        {"optimizer": "sgd", "momentum": 0.9, nesterov: False},
    ]
    drawn = [each.values for each in expand(sweep(sample={"count": 40, "values": MOMENTUM})).trials]
    assert sorted(map(str, drawn)) == sorted(map(str, [*found[:2], {"optimizer": "sgd", "momentum": 0.9}]))
    examples = [each.values for each in expand(sweep(search={"trials": 3, "values": MOMENTUM})).examples]
    assert {"optimizer": "sgd", "momentum": 0.0} in examples, "for the checks: each value occurs"
    assert {"optimizer": "sgd", "momentum": 0.9} in examples


@pytest.mark.parametrize("is_log", [False, True])
def test_integers_are_drawn_between_bounds_that_are_none(is_log):
    values = {"epochs": {"low": 1.4, "high": 3.6, "integer": True, "log": is_log}}
    assert {each.spec.epochs for each in expand(sweep(sample={"count": 60, "values": values})).trials} == {2, 3}
    assert [each.spec.epochs for each in expand(sweep(search={"trials": 9, "values": values})).examples] == [2, 3]


def test_draws_with_a_step_are_steps():
    values = {
        "lr": {"low": 0.1, "high": 0.65, "step": 0.2},
        "epochs": {"low": 2, "high": 9, "integer": True, "step": 3},
    }
    drawn = expand(sweep(sample={"count": 60, "values": values})).trials
    assert {each.spec.lr for each in drawn} == {0.1, 0.3, 0.5}
    assert {each.spec.epochs for each in drawn} == {2, 5, 8}


def test_repeats_run_each_configuration_with_further_seeds_and_the_first_one_is_the_single_trial():
    single = sweep(train={"seed": 4}, grid={"lr": [0.1, 0.2]})
    made = sweep(train={"seed": 4}, grid={"lr": [0.1, 0.2]}, repeats=3)
    assert [(each.spec.lr, each.spec.seed) for each in expand(made).trials] == [
        *[(0.1, 4), (0.2, 4)],
        *[(0.1, 5), (0.2, 5)],
        *[(0.1, 6), (0.2, 6)],
    ]
    assert identities(made)[:2] == identities(single)
    assert keys_set_by(expand(made).trials) == ["lr", "seed"] == made.varied_keys
    of_command = {"command": "./run {lr} --seed {seed}", "grid": {"lr": [1, 2]}}
    found = expand(CommandSweep.model_validate({**of_command, "repeats": 2})).trials
    assert [each.spec.args for each in found] == [{"lr": lr, "seed": seed} for seed in (0, 1) for lr in (1, 2)]


@pytest.mark.parametrize(
    ("fields", "wrong"),
    [
        ({"command": "./run {lr}", "grid": {"lr": [1]}}, "repeats needs your program's seed: give args: {seed: 0}"),
        ({"command": "./run {args}", "grid": {"seed": [1, 2]}}, "repeats varies the seed, as seed does: give one of"),
        ({"command": "./run {args}", "args": {"seed": "a"}, "grid": {"lr": [1]}}, "from seed, which is 'a'"),
    ],
)
def test_repeats_need_a_seed(fields, wrong):
    with pytest.raises(ValidationError) as caught:
        CommandSweep.model_validate({**fields, "repeats": 3})
    assert wrong in str(caught.value)


def test_further_seeds_of_the_best_need_a_seed_and_their_number():
    with pytest.raises(ValidationError) as caught:
        sweep(grid={"lr": [0.1]}, repeat_best=3)
    assert "repeat_best: 3 needs the number of seeds, such as repeats: 3" in str(caught.value)
    with pytest.raises(ValidationError) as caught:
        CommandSweep.model_validate({"command": "./run {lr}", "grid": {"lr": [1]}, "repeats": 2})
    assert "repeats needs your program's seed: give args: {seed: 0}" in str(caught.value)
    single, made = sweep(grid={"lr": [0.1, 0.2]}), sweep(grid={"lr": [0.1, 0.2]}, repeats=3, repeat_best=1)
    assert identities(made) == identities(single)


def test_adding_configurations_keeps_the_identities_of_the_others():
    before = identities(sweep(grid={"lr": [0.1, 0.2]}))
    after = identities(sweep(grid={"lr": [0.3, 0.2, 0.1]}, slots={"gpus_per_node": 8}, retries=5))
    assert set(before) < set(after)


@pytest.mark.parametrize(
    "change", [{"lr": 0.2}, {"epochs": 2}, {"model_args": {"blocks": 3}}, {"schedule": {"name": "cosine"}}, {"seed": 1}]
)
def test_what_changes_the_result_changes_the_identity(change):
    assert identities(sweep(trials=[{"lr": 0.1}])) != identities(sweep(trials=[{"lr": 0.1, **change}]))


@pytest.mark.parametrize(
    ("train", "key", "values"),
    [
        ({"schedule": {"name": "step", "step_size": 1}}, "schedule.gamma", [0.1, 0.5]),
        ({"optimizer_args": {"maximize": False}}, "optimizer_args.nesterov", [False, True]),
    ],
)
def test_arguments_of_torch_are_varied_and_are_part_of_the_identity(train, key, values):
    made = sweep(train=train, grid={key: values}, cost="schedule.gamma" if key == "schedule.gamma" else None)
    trials = expand(made).trials
    assert [each.values for each in trials] == [{key: value} for value in values]
    assert len(set(identities(made))) == 2
    if made.cost:
        assert [relative_cost(made.cost, each) for each in trials] == values


def test_the_data_are_part_of_the_identity():
    trial = expand(sweep(trials=[{}])).trials[0]
    assert trial.identity("one") != trial.identity("other")


def test_the_place_of_the_option_to_resume_is_not_part_of_the_identity():
    def own(command, **fields):
        made = CommandSweep.model_validate({"command": command, "grid": {"n": [1]}, **fields})
        return identities(made), made.spec_content

    assert own("x {n} {resume} | tee y", resume="-r") == own("x {n} | tee y")
    assert own(["x", "{resume}", "{n}"], resume="-r") == own(["x", "{n}"])
    assert own("x {n} {resume}", args={"resume": 1}) != own("x {n}")


def test_a_default_written_out_changes_nothing():
    assert identities(sweep(trials=[{}])) == identities(sweep(trials=[{"momentum": 0.9, "schedule.name": "constant"}]))


@settings(deadline=None)
@given(st.integers(-50, 50), st.integers(0, 40), st.integers(1, 7))
def test_a_range_has_every_value_up_to_and_including_its_stop(start, count, step):
    values = Range(start=start, stop=start + count * step, step=step).values()
    assert values == list(range(start, start + count * step + 1, step))


def test_a_range_of_fractions_has_the_numbers_one_would_write():
    assert Range(start=0.1, stop=0.5, step=0.1).values() == [0.1, 0.2, 0.3, 0.4, 0.5]
    assert Range(start=1e-05, stop=4e-05, step=1e-05).values() == [1e-05, 2e-05, 3e-05, 4e-05]
    assert Range(start=1, stop=2, step=0.5).values() == [1.0, 1.5, 2.0]
    assert [type(value) for value in Range(start=1, stop=2.5).values()] == [int, int]


@settings(deadline=None)
@given(st.integers(0, 300), st.integers(1, 40), st.integers(0, 40))
def test_a_range_that_starts_later_has_the_same_values(start, step, skipped):
    """Steps of thousandths, so that binary fractions would drift."""
    whole = Range(start=start / 1000, stop=4, step=step / 1000)
    first = whole.values()[skipped]
    assert Range(start=first, stop=4, step=step / 1000).values() == whole.values()[skipped:]


def test_varied_keys_are_those_that_some_trial_sets():
    made = sweep(grid={"lr": [0.1]}, trials=[{"epochs": 3}])
    assert keys_set_by(expand(made).trials) == ["lr", "epochs"]


@pytest.mark.parametrize(
    ("part", "constant"),
    [
        ({"trials": [{"lr": 0.1, "epochs": 3}, {"lr": 0.2, "epochs": 3}]}, {"epochs"}),
        ({"trials": [{"lr": 0.1, "epochs": 3}, {"lr": 0.2}]}, set()),
        ({"trials": [{"lr": 0.1, "epochs": 3}]}, set()),  # they are the only names that the trial has
        ({"grid": {"lr": [0.1, 0.2], "epochs": [3], "seed": {"start": 1, "stop": 1}}}, {"epochs", "seed"}),
        ({"grid": {"lr": [0.1, 0.2], "seed": {"start": 1, "stop": 2}}}, set()),
        ({"grid": {"lr": [0.1, 0.2], "epochs": [3]}, "trials": [{"lr": 0.3, "epochs": 3}]}, {"epochs"}),
        ({"grid": {"lr": [0.1, 0.2], "epochs": [3]}, "trials": [{"lr": 0.3, "epochs": 4}]}, set()),
        ({"grid": {"lr": [0.1, 0.2]}, "trials": [{"epochs": 4}]}, set()),
        ({"sample": {"count": 3, "values": {"lr": {"low": 0.1, "high": 1}, "epochs": [3, 3]}}}, {"epochs"}),
        ({"trials": [{"model_args": {"width": 4}, "lr": lr} for lr in (0.1, 0.2)]}, {"model_args"}),
        ({"grid": {"lr": [0.1, 0.2], "epochs": [30]}, "repeats": 3}, {"epochs"}),
        ({"grid": {"lr": [0.1, 0.2]}, "trials": [{"lr": 0.3, "epochs": 3}], "repeats": 3}, set()),
        ({"grid": {"lr": [0.1]}, "repeats": 3}, {"lr"}),  # trials differ in their seed
    ],
)
def test_a_key_with_the_same_value_in_all_trials_is_constant(part, constant):
    assert constant_keys(sweep(**part)) == constant


def test_trials_are_worked_out_once():
    made_of = CommandSweep.model_validate({"command": "true {seed}", "grid": {"seed": [1, 2, 3]}})
    named = [trials.expand(made_of).by_name(digest) for digest in ("a", "a", "b")]
    assert len(named[0]) == 3
    assert all(trial is named[1][name] for name, trial in named[0].items())
    assert not named[0].keys() & named[2].keys(), "another dataset makes other trials"
    named[0].clear()
    assert len(trials.expand(made_of).by_name("a")) == 3, "what was given out is the caller's own"


@pytest.mark.parametrize("run", ["2", "2x", "two", "0x1", "1x2x3", "1x2/3"])
def test_a_scale_that_is_none_is_explained(run):
    with pytest.raises(UserError, match="as in 2x4"):
        split_scale(run)


def test_a_scale_and_its_repeats_have_nodes_and_gpus():
    assert split_scale("12x4") == split_scale("12x4/repeat-3") == (12, 4)


# ---- pretrained weights


def test_a_file_of_weights_counts_by_its_content(tmp_path):
    """Not by its path: a copy is the same trial, and a changed file is another one."""

    def identity(path):
        return identities(sweep(train={"pretrained": str(path)}, trials=[{"lr": 0.1}]))

    for name, content in {"a": "PK weights", "copy": "PK weights", "b": "PK other weights"}.items():
        (tmp_path / f"{name}.pt").write_text(content)
    first = identity(tmp_path / "a.pt")
    assert identity(tmp_path / "copy.pt") == first
    assert identity(tmp_path / "b.pt") != first
    assert identities(sweep(trials=[{"lr": 0.1}])) != first
    (tmp_path / "a.pt").write_text("PK changed weights")
    assert identity(tmp_path / "a.pt") != first


def test_a_search_counts_a_file_of_weights_by_its_content_too(tmp_path):
    def content():
        search = {"trials": 2, "values": {"lr": {"low": 0.1, "high": 0.2}}}
        return sweep(train={"pretrained": str(tmp_path / "a.pt")}, search=search).spec_content

    (tmp_path / "a.pt").write_text("PK weights")
    before = content()
    (tmp_path / "a.pt").write_text("PK changed weights")
    assert content() != before


def test_weights_of_torchvision_count_by_their_name_and_are_found_in_all_trials():
    named = {"model": "resnet18", "pretrained": "IMAGENET1K_V1"}
    made = sweep(train=named, grid={"model": ["resnet18", "resnet50"], "pretrained": ["IMAGENET1K_V1", None]})
    assert len(set(identities(made))) == 4
    assert trials.published_weights(made) == [("resnet18", "IMAGENET1K_V1"), ("resnet50", "IMAGENET1K_V1")]


def test_a_default_that_depends_on_the_optimizer_is_the_same_training_as_its_value():
    def identity(**train):
        return identities(sweep(train=train, trials=[{}]))

    assert identity() == identity(lr=0.001, weight_decay=0)
    assert identity(optimizer="adamw") == identity(optimizer="adamw", weight_decay=0.01)
    assert identity(optimizer="adamw") != identity(optimizer="adamw", weight_decay=0)


def test_a_varied_section_is_shown_without_its_defaults():
    sweep = TrainSweep(dataset="d", grid={"augment": [{}, {"flip": True, "crop_padding": 0}], "augment.mixup": [0.0]})
    values = [trial.values for trial in expand(sweep).trials]
    assert values == [{"augment": {}, "augment.mixup": 0.0}, {"augment": {"flip": True}, "augment.mixup": 0.0}]


PAIRED = {"model": [{"name": "a", "lr": 0.1}, {"name": "b", "lr": 0.01}], "seed": [0, 1]}


def test_each_key_of_paired_values_is_a_column_and_what_a_trial_runs_is_the_mapping():
    sweep = CommandSweep(command="x {args}", grid=PAIRED)
    names = [{"model.name": name, "model.lr": lr, "seed": seed} for name, lr in [("a", 0.1), ("b", 0.01)]
             for seed in (0, 1)]  # fmt: skip
    assert [trial.values for trial in expand(sweep).trials] == names
    assert sweep.varied_keys == ["model.name", "model.lr", "seed"]
    assert expand(sweep).trials[3].spec.args == {"model": {"name": "b", "lr": 0.01}, "seed": 1}
    whole = CommandSweep(command="x {args}", grid={"model": {"choices": PAIRED["model"]}, "seed": [0, 1]})
    assert identities(sweep) == identities(whole)
    assert identities(sweep) == identities(CommandSweep(command="x {args}", trials=names)), "as best.yaml has them"


def test_a_key_that_only_some_mappings_have_is_left_out_in_the_others():
    sweep = CommandSweep(command="x {args}", grid={"optim": [{"name": "sgd", "momentum": 0.9}, {"name": "adam"}]})
    assert [trial.values.get("optim.momentum") for trial in expand(sweep).trials] == [0.9, None]
    assert constant_keys(sweep) == frozenset()


def test_mappings_that_replace_a_section_stay_one_value():
    sweep = CommandSweep(command="x {args}", grid=PAIRED, args={"model": {"depth": 2}})
    assert expand(sweep).trials[0].values == {"model": {"name": "a", "lr": 0.1}, "seed": 0}
    assert expand(sweep).trials[0].spec.args["model"] == {"name": "a", "lr": 0.1}


def test_mappings_with_numbers_as_keys_stay_whole():
    sweep = {"command": "true {args}", "grid": {"model": [{1: 2}, {3: 4}]}}
    trials = expand(check_config({"sweeps": {"s": sweep}}).sweeps["s"]).trials
    assert [each.values for each in trials] == [{"model": {1: 2}}, {"model": {3: 4}}]


@pytest.mark.parametrize(
    ("command", "grid", "message"),
    [
        ("x {args}", {"model.lr": [1]}, "grid has model.lr, which the mappings of model have: give one of the two"),
        ("x {model.name} {model.width} {seed}", {}, r"{model.width} has no value here: give one, or write {args}"),
    ],
)
def test_paired_values_that_cannot_be_meant_are_errors(command, grid, message):
    with pytest.raises(ValueError, match=message):
        raise expand(CommandSweep(command=command, grid=PAIRED | grid)).errors[0][1]
