"""What trials will take: from durations that were measured, with an interval that holds; before, by expressions."""

import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trainyard.config.sweep import CommandSweep, TrainSweep
from trainyard.config.trials import CostError, Trial, expand, relative_cost
from trainyard.config.user_programs import UserProgram
from trainyard.planning.duration_model import predict


def trials(**grid):
    return expand(TrainSweep(dataset="d", grid={key.replace("__", "."): values for key, values in grid.items()})).trials


DEPTHS = trials(model_args__blocks=list(range(4, 81, 4)))


def took(trial, per_block=0.2125, start=0.3):
    return start + per_block * trial.values["model_args.blocks"]


def errors(wanted, evidence, law):
    """Of the predictions, relative."""
    true = np.array([law(trial) for trial in wanted])
    return np.abs(predict(wanted, evidence).seconds / true - 1)


@pytest.mark.parametrize("known", [3, 5, 10])
@pytest.mark.parametrize("step", [1, -1], ids=["shortest first", "longest first"])
def test_a_sweep_over_depth_comes_out_linear(known, step):
    order = DEPTHS[::step]
    evidence = [(trial, took(trial)) for trial in order[:known]]
    assert errors(order[known:], evidence, took).max() < 0.2


def test_a_cost_that_grows_with_the_square_of_a_key_comes_out_as_such():
    def law(trial):
        return 0.01 * trial.values["model_args.blocks"] ** 2

    evidence = [(trial, law(trial)) for trial in DEPTHS[:-9:-1]]
    assert errors(DEPTHS, evidence, law).max() < 0.3
    assert errors(DEPTHS[4:], evidence, law).max() < 0.1


def test_noise_does_not_bend_it():
    generator = np.random.default_rng(0)
    evidence = [(trial, took(trial) * (1 + 0.05 * generator.standard_normal())) for trial in DEPTHS[::3]]
    assert errors(DEPTHS, evidence, took).max() < 0.1


def test_of_several_numbers_the_one_that_matters_is_found():
    every = expand(
        TrainSweep(
            dataset="d", trials=[{"model_args.blocks": 4 * n, "seed": n * 7 % 11, "lr": 0.1 / n} for n in range(1, 11)]
        )
    ).trials
    evidence = [(trial, took(trial) * factor) for trial, factor in zip(every, (1.01, 0.99, 1.02, 1.0), strict=False)]
    assert errors(every, evidence, took).max() < 0.1


def test_epochs_and_depth_multiply():
    def law(trial):
        return 0.1 * trial.values["epochs"] * trial.values["model_args.blocks"]

    every = trials(epochs=[1, 2, 4, 8], model_args__blocks=[4, 8, 16, 32])
    some = np.random.default_rng(0).permutation(len(every))
    evidence = [(every[index], law(every[index])) for index in some[:7]]
    assert errors(every, evidence, law).max() < 0.1


def test_a_name_counts_by_itself():
    def law(trial):
        return {"cnn": 2.0, "resnet": 7.0, "resnet50": 60.0}[trial.values["model"]] * trial.values["epochs"]

    every = trials(model=["cnn", "resnet", "resnet50"], epochs=[1, 2, 3, 4])
    evidence = [(trial, law(trial)) for trial in every if trial.values["epochs"] < 3]
    assert errors(every, evidence, law).max() < 0.1


def test_what_was_seen_of_one_of_many_names_holds_for_it_and_tells_little_of_the_others():
    every = trials(model_args__name=[f"n{number:02}" for number in range(40)], seed=[1, 2, 3])
    law = dict(
        zip((f"n{number:02}" for number in range(40)), np.random.default_rng(0).uniform(10, 40, 40), strict=True)
    )
    known = [trial for trial in every[:60] if trial.values["seed"] < 3]
    found = predict(every[2:], [(trial, law[trial.values["model_args.name"]]) for trial in known])
    own = [law[trial.values["model_args.name"]] for trial in every[2:]]
    seen = [index for index, trial in enumerate(every[2:60]) if trial.values["seed"] == 3]
    assert np.abs(found.seconds[seen] / np.array(own)[seen] - 1).max() < 0.05
    low, high = np.quantile(found.draws[:, -1], (0.05, 0.95))
    assert low < 15, "a name that was not seen may be any of them"
    assert high > 33


def test_trials_of_which_the_evidence_says_the_same_are_expected_to_take_the_same():
    """Otherwise, chance decided in which order they start, and not the config."""
    every = trials(model_args__name=["a", "b", "c", "d"], seed=[1, 2, 3])
    found = predict(every[1:], [(every[0], 3.0)]).seconds
    assert len(set(found[:2])) == len(set(found[2:])) == 1
    assert found == pytest.approx([3.0] * 11, rel=0.3)


def test_without_evidence_nothing_is_predicted():
    assert predict(DEPTHS, []) is None


def test_one_duration_is_all_that_is_known():
    found = predict(DEPTHS, [(DEPTHS[3], 5.0)])
    low, high = np.quantile(found.draws[:, -1], (0.05, 0.95))
    assert low < 5.5, "blocks may not matter"
    assert high > 80 / 16 * 5, "or all may go with them"


@pytest.mark.parametrize("further", [{"batch_size": [32, 64, 128]}, {"ema_decay": [0.9, 0.99], "epochs": [2, 4]}])
def test_after_one_trial_the_others_are_not_expected_to_take_longer_by_each_of_several_keys(further):
    """It has the least of all values; each key may lengthen the others, but most lengthen none."""
    every = trials(lr=[0.001, 0.01, 0.1], **further)
    found = predict(every[1:], [(every[0], 10.0)])
    assert found.seconds.mean() == pytest.approx(10.0, rel=0.3)
    assert np.quantile(found.draws.sum(axis=1), 0.95) > 2 * 10.0 * len(every[1:]), "or they may"


def test_after_one_trial_larger_values_of_the_only_key_are_expected_to_take_longer():
    first, *others = trials(model_args__blocks=[1, 4, 8])
    expected = predict(others, [(first, 0.3)]).seconds
    assert expected[0] < expected[1]


def test_one_duration_and_the_relative_cost_tell_what_all_take():
    relative = [took(trial, start=0) for trial in (*DEPTHS, DEPTHS[-1])]
    found = predict(DEPTHS, [(DEPTHS[-1], 17.0)], relative=relative)
    assert found.seconds == pytest.approx([took(trial, start=0) for trial in DEPTHS], rel=0.2)
    low, high = np.quantile(found.draws.sum(axis=1), (0.05, 0.95))
    assert low < 178.5 < high < 1.8 * 178.5, "some of the others may be stragglers"


def test_a_trial_that_is_far_longer_than_all_before_is_told_apart():
    """Three short ones, and one of two hours. What is unusual is not impossible, least of all what `cost:` says."""
    every = trials(epochs=[5, 6, 7, 72000])
    evidence = [(trial, 0.1 * trial.values["epochs"]) for trial in every[:3]]
    relative = [trial.values["epochs"] for trial in (every[3], *every[:3])]
    assert predict(every[3:], evidence, relative=relative).seconds == pytest.approx([7200], rel=0.1)
    assert np.quantile(predict(every[3:], evidence).draws, 0.95) > 7200


@pytest.mark.parametrize("key", ["seed", "model_args__seed"])
def test_seeds_do_not_lengthen_a_trial(key):
    every = trials(**{key: list(range(1, 1001))})
    found = predict(every[1:], [(every[0], 2.0)])
    assert found.seconds == pytest.approx([2.0] * 999, rel=0.05)
    assert np.quantile(found.draws.sum(axis=1), 0.95) < 1.7 * 2 * 999


@pytest.mark.parametrize("extreme", [1e308, -1e308, 5e-324, 10**400])
def test_numbers_that_cannot_be_computed_with_are_taken_as_they_are(extreme):
    def made(value):
        return Trial(UserProgram(function="a:b", args={"x": value}), {"x": value})

    found = predict([made(extreme), made(1)], [(made(2), 3.0), (made(3), 3.1)], relative=[math.inf, 1, 2, 3])
    assert np.isfinite(found.draws).all()


def test_what_has_nothing_to_do_with_the_keys_is_the_mean():
    generator = np.random.default_rng(0)
    every = trials(lr=list(np.linspace(0.01, 0.3, 30)))
    evidence = [(trial, 10 * (1 + 0.1 * generator.standard_normal())) for trial in every[:12]]
    mean = np.mean([seconds for _, seconds in evidence])
    assert predict(every[12:], evidence).seconds == pytest.approx([mean] * 18, rel=0.02)


def test_an_expression_of_the_users_is_taken_where_it_fits_best():
    def law(trial):
        return trial.values["model_args.blocks"] ** 2

    evidence = [(trial, law(trial) * factor) for trial, factor in zip(DEPTHS[:3], (1.01, 0.99, 1.0), strict=True)]
    relative = [law(trial) for trial in (*DEPTHS, *DEPTHS[:3])]
    found = predict(DEPTHS, evidence, relative=relative).seconds
    assert np.abs(found / np.array([law(trial) for trial in DEPTHS]) - 1).max() < 0.1


def test_of_stragglers_the_others_are_told_apart():
    """One of six trials takes three times as long: that is no reason to expect it of the rest, but of some."""
    relative = [took(trial) for trial in (*DEPTHS, *DEPTHS[::3])]
    evidence = [(trial, took(trial) * (3 if index == 2 else 1)) for index, trial in enumerate(DEPTHS[::3])]
    found = predict(DEPTHS, evidence, relative=relative)
    assert np.abs(found.seconds / np.array(relative[: len(DEPTHS)]) - 1).max() < 0.1
    share = (found.draws > 1.5 * found.seconds).mean()
    assert 0.01 < share < 0.15


def test_the_interval_holds_in_about_nine_of_ten_cases():
    """Of 100 sweeps with noise of 10 %, each predicted from six of its trials: the sum of the rest."""
    inside = 0
    for seed in range(100):
        generator = np.random.default_rng(seed)
        seconds = [took(trial) * (1 + 0.1 * generator.standard_normal()) for trial in DEPTHS]
        some = generator.permutation(len(DEPTHS))
        found = predict([DEPTHS[i] for i in some[6:]], [(DEPTHS[i], seconds[i]) for i in some[:6]])
        low, high = np.quantile(found.draws.sum(axis=1), (0.05, 0.95))
        inside += low <= sum(seconds[i] for i in some[6:]) <= high
    assert 82 <= inside <= 99


@given(st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=30))
@settings(deadline=None)
def test_whatever_was_measured_predictions_are_positive_and_finite(seconds):
    found = predict(DEPTHS, list(zip(DEPTHS * 2, seconds, strict=False)))
    assert np.isfinite(found.seconds).all()
    assert np.isfinite(found.draws).all()
    assert found.seconds.min() > 0
    assert found.draws.min() > 0


def test_ten_thousand_trials_are_predicted_in_no_time():
    every = trials(lr=list(np.linspace(0.01, 0.3, 10_000)))
    found = predict(every, [(trial, 3.0) for trial in every[:100]])
    assert found.draws.shape == (20, 10_000)


@pytest.mark.parametrize("grid", [{"name": [f"s{number}" for number in range(1000)], "seed": [1, 2, 3]},
                                  {"name": [f"{number}.csv" for number in range(10_000)]},
                                  {"name": ["a prompt " * 2000, *range(1999)]}])  # fmt: skip
def test_thousands_of_names_take_no_column_each(grid):
    command = "python3 program.py " + " ".join(f"{{{key}}}" for key in grid)
    every = expand(CommandSweep(command=command, grid=grid)).trials
    half = len(every) // 2
    tracemalloc.start()
    found = predict(every[half:], [(trial, 3.0 + index % 7) for index, trial in enumerate(every[:half])])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.seconds.min() > 2
    assert peak < 60e6, "a column for each, or texts in an array, would take far more"


@pytest.mark.parametrize("odd", [float("inf"), float("nan"), -1, 0, None, True, "auto"])
def test_values_that_have_no_logarithm_are_taken_as_they_are(odd):
    every = expand(
        CommandSweep(command="python3 program.py {x}", trials=[{"x": x} for x in (odd, 1, 2, 3, 4, 5)])
    ).trials
    found = predict(every, [(trial, 3.0) for trial in every[:4]])
    assert found.seconds == pytest.approx([3.0] * 6, rel=0.1)


@pytest.mark.parametrize("expression", ["lr.x", "__import__('os')", "model", "1 +", "epochs / 0", "epochs if 1 else 2"])
def test_a_cost_that_is_not_arithmetic_is_refused(expression):
    trial = expand(TrainSweep(dataset="d", trials=[{}])).trials[0]
    with pytest.raises(CostError, match="cannot be evaluated"):
        relative_cost(expression, trial)
