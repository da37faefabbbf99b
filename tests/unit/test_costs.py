"""What trials will take: from durations that were measured, with an interval that holds; before, by expressions."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trainyard.costs import predict
from trainyard.sweepspec import Sweep
from trainyard.trials import CostError, expand, relative_cost


def trials(**grid):
    return expand(Sweep(dataset="d", grid={key.replace("__", "."): values for key, values in grid.items()})).trials


DEPTHS = trials(model_args__blocks=list(range(4, 81, 4)))


def took(trial, per_block=0.2125, start=0.3):
    return start + per_block * trial.values["model_args.blocks"]


def errors(wanted, evidence, law):
    """Of the predictions, relative."""
    true = np.array([law(trial) for trial in wanted])
    return np.abs(predict(wanted, evidence).seconds / true - 1)


@pytest.mark.parametrize("known", [2, 3, 5, 10])
def test_a_sweep_over_depth_comes_out_linear(known):
    evidence = [(trial, took(trial)) for trial in DEPTHS[:known]]
    assert errors(DEPTHS[known:], evidence, took).max() < 1e-6


def test_noise_does_not_bend_it():
    generator = np.random.default_rng(0)
    evidence = [(trial, took(trial) * (1 + 0.05 * generator.standard_normal())) for trial in DEPTHS[::3]]
    assert errors(DEPTHS, evidence, took).max() < 0.1


def test_of_several_numbers_the_one_that_matters_is_found():
    every = expand(Sweep(dataset="d", trials=[{"model_args.blocks": 4 * n, "seed": n * 7 % 11, "lr": 0.1 / n}
                                              for n in range(1, 11)])).trials  # fmt: skip
    evidence = [(trial, took(trial) * factor) for trial, factor in zip(every, (1.01, 0.99, 1.02, 1.0), strict=False)]
    assert errors(every, evidence, took).max() < 0.1


def test_epochs_and_depth_multiply():
    def law(trial):
        return 0.5 + 0.1 * trial.values["epochs"] * trial.values["model_args.blocks"]

    every = trials(epochs=[1, 2, 4, 8], model_args__blocks=[4, 8, 16, 32])
    some = np.random.default_rng(0).permutation(len(every))
    evidence = [(every[index], law(every[index])) for index in some[:7]]
    assert errors(every, evidence, law).max() < 0.01


def test_a_name_counts_by_itself():
    def law(trial):
        return {"cnn": 2.0, "resnet": 7.0, "resnet50": 60.0}[trial.values["model"]] + trial.values["epochs"]

    every = trials(model=["cnn", "resnet", "resnet50"], epochs=[1, 2, 3, 4])
    evidence = [(trial, law(trial)) for trial in every if trial.values["epochs"] < 3]
    assert errors(every, evidence, law).max() < 0.01


def test_without_evidence_nothing_is_predicted():
    assert predict(DEPTHS, []) is None


def test_one_duration_is_all_that_is_known():
    found = predict(DEPTHS, [(DEPTHS[3], 5.0)])
    assert found.seconds == pytest.approx([5.0] * len(DEPTHS))
    low, high = np.quantile(found.draws[:, 0], (0.05, 0.95))
    assert low < 4 < 6 < high, "and it is known to be little"


def test_what_has_nothing_to_do_with_the_keys_is_the_mean():
    generator = np.random.default_rng(0)
    every = trials(lr=list(np.linspace(0.01, 0.3, 30)))
    evidence = [(trial, 10 * (1 + 0.1 * generator.standard_normal())) for trial in every[:12]]
    mean = np.mean([seconds for _, seconds in evidence])
    assert predict(every[12:], evidence).seconds == pytest.approx([mean] * 18, rel=0.01)


def test_an_expression_of_the_users_is_taken_where_it_fits_best():
    def law(trial):
        return trial.values["model_args.blocks"] ** 2

    evidence = [(trial, law(trial) * factor) for trial, factor in zip(DEPTHS[:3], (1.01, 0.99, 1.0), strict=True)]
    relative = [law(trial) for trial in (*DEPTHS, *DEPTHS[:3])]
    found = predict(DEPTHS, evidence, relative=relative).seconds
    assert np.abs(found / np.array([law(trial) for trial in DEPTHS]) - 1).max() < 0.1


def test_no_prediction_is_absurdly_short():
    every = trials(epochs=[1, 2, 3, 100])
    known = [(trial, 10.0 - trial.values["epochs"]) for trial in every[:3]]
    found = predict(every, known)
    assert found.seconds[3] == pytest.approx(3.5), "half of the shortest seen"
    assert found.draws.min() >= 3.5


def test_the_interval_holds_in_about_nine_of_ten_cases():
    """Of 200 sweeps with noise of 10 %, each predicted from six of its trials: the sum of the rest."""
    inside = 0
    for seed in range(200):
        generator = np.random.default_rng(seed)
        seconds = [took(trial) * (1 + 0.1 * generator.standard_normal()) for trial in DEPTHS]
        some = generator.permutation(len(DEPTHS))
        found = predict([DEPTHS[i] for i in some[6:]], [(DEPTHS[i], seconds[i]) for i in some[:6]])
        low, high = np.quantile(found.draws.sum(axis=1), (0.05, 0.95))
        inside += low <= sum(seconds[i] for i in some[6:]) <= high
    assert 165 <= inside <= 196


@given(st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=30))
@settings(deadline=None)
def test_whatever_was_measured_predictions_are_positive_and_finite(seconds):
    found = predict(DEPTHS, list(zip(DEPTHS * 2, seconds, strict=False)))
    assert np.isfinite(found.seconds).all()
    assert np.isfinite(found.draws).all()
    assert found.seconds.min() >= min(seconds) / 2


def test_ten_thousand_trials_are_predicted_in_no_time():
    every = trials(lr=list(np.linspace(0.01, 0.3, 10_000)))
    found = predict(every, [(trial, 3.0) for trial in every[:100]])
    assert found.draws.shape == (20, 10_000)


@pytest.mark.parametrize("expression", ["lr.x", "__import__('os')", "model", "1 +", "epochs / 0", "epochs if 1 else 2"])
def test_a_cost_that_is_not_arithmetic_is_refused(expression):
    trial = expand(Sweep(dataset="d", trials=[{}])).trials[0]
    with pytest.raises(CostError, match="cannot be evaluated"):
        relative_cost(expression, trial)
