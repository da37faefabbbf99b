"""Where two values of a key make trials report the same, the answer says that the key has no effect."""

import pytest
from sweep_journals import session_of
from trainyard.config.load import check_config
from trainyard.config.trial_status import TrialStatus
from trainyard.planning.history import read_state
from trainyard.planning.journal import Ended, Epoch, Started
from trainyard.results.answer import answer_sweep
from trainyard.results.effects import describe_effects, find_identical
from trainyard.results.ranking import rank_sweep

LOSSES = [0.693147, 0.512384, 0.431877]
OTHERS = [0.693147, 0.512384, 0.431876]


def swept(results, *curves, metric="loss", **sweep):
    """The state of a sweep whose trials report these values; a row may have several."""
    whole = {"function": "os:getcwd", "metric": metric, "args": {"seed": 1}, **sweep}
    if "trees" in sweep:
        whole = {"dataset": "d", "metric": metric, **sweep}
    sweep = check_config({"datasets": {"d": {"source": "digits"}}, "sweeps": {"s": whole}}).sweeps["s"]
    with session_of(results / "sweeps/s") as journal:
        for number, (trial, curve) in enumerate(zip(read_state(sweep, "s", results).trials, curves, strict=True)):
            rows = [each if isinstance(each, dict) else {metric: each} for each in curve]
            rows = [row | {"epoch_seconds": 1.0 + number + epoch / 7} for epoch, row in enumerate(rows)]
            journal.record(Started(trial=trial, attempt=1))
            for epoch, row in enumerate(rows, start=1):
                journal.record(Epoch(trial=trial, attempt=1, metrics={"epoch": epoch, **row}))
            end = {"status": TrialStatus.FINISHED, "metrics": rows[-1], "seconds": 1.0 + number}
            journal.record(Ended(trial=trial, attempt=1, **end))
    return read_state(sweep, "s", results)


def effects(state):
    ranking = rank_sweep(state)
    return describe_effects(ranking, find_identical(state, ranking))


def test_a_key_whose_values_make_trials_report_the_same_has_no_effect(tmp_path):
    state = swept(tmp_path, LOSSES, LOSSES, grid={"amp": [True, False]})
    on, off = state.trials
    line = f"`amp` has no effect: trials {on} and {off} are identical in all that they report, times aside"
    assert answer_sweep(state).lines[-1] == line
    assert answer_sweep(state).deciding == "", "new seeds would not decide it"


def test_a_key_with_an_effect_is_not_named(tmp_path):
    state = swept(tmp_path, LOSSES, OTHERS, grid={"amp": [True, False]})
    assert effects(state) == []
    assert answer_sweep(state).deciding.startswith("To decide between the first 2: run 3 new ")


def test_of_several_keys_the_one_without_effect_is_named_once(tmp_path):
    others = [each / 2 for each in LOSSES]
    state = swept(tmp_path, LOSSES, LOSSES, others, others, grid={"lr": [0.1, 0.2], "amp": [True, False]})
    (line,) = effects(state)
    assert line.startswith("`amp` has no effect: trials ")


def test_an_effect_in_some_trials_is_one(tmp_path):
    """Without dropout in the model, its rate does nothing."""
    others, further = ([each / part for each in LOSSES] for part in (2, 3))
    state = swept(tmp_path, LOSSES, LOSSES, others, further, grid={"net": ["a", "b"], "dropout": [0.1, 0.2]})
    (line,) = effects(state)
    assert line.endswith(" are identical in all that they report, times aside, although they differ in dropout")


def test_a_seed_that_is_never_used_is_named(tmp_path):
    state = swept(tmp_path, LOSSES, LOSSES, LOSSES, repeats=3)
    assert [line.partition(":")[0] for line in effects(state)] == ["`seed` has no effect"]


@pytest.mark.parametrize(
    ("curve", "numbers"),
    [
        ([0.9], "1 number"),
        ([{"val_accuracy": 0.9, "parameters": 25_557_032}], "2 numbers"),
        ([0.98, 0.99, 1.0], "3 numbers"),
        ([44 / 45], "1 number"),
        ([0.9667, 0.9333], "2 numbers"),
        ([41 / 45, 43 / 45, 44 / 45], "3 numbers"),
    ],
)
def test_values_that_may_be_equal_by_chance_prove_nothing(tmp_path, curve, numbers):
    """Accuracies on 30 images, or rounded to two digits."""
    state = swept(tmp_path, curve, curve, grid={"amp": [True, False]}, metric="val_accuracy")
    on, off = state.trials
    assert effects(state) == [
        f"`amp` may have no effect: trials {on} and {off} report the same {numbers}, which may be chance: report more "
        "digits, or more epochs"
    ]
    assert "run 3 new seeds" in answer_sweep(state).deciding


@pytest.mark.parametrize(
    ("trees", "is_advised"),
    [
        ({}, False),
        ({"subsample": 1.0}, False),
        ({"colsample_bytree": 0.5}, True),
        ({"library": "lightgbm", "subsample": 0.5}, False),  # which takes effect with subsample_freq
        ({"library": "lightgbm", "subsample": 0.5, "subsample_freq": 1}, True),
        ({"library": "lightgbm", "feature_fraction": 0.5}, True),
    ],
)
def test_new_seeds_of_trees_are_advised_if_rows_or_columns_are_drawn(tmp_path, trees, is_advised):
    state = swept(tmp_path, [0.92], [0.91], trees=trees, grid={"max_depth": [3, 4]}, metric="val_accuracy")
    assert ("run 3 new seeds" in answer_sweep(state).deciding) == is_advised


def test_where_the_speed_ranks_equal_results_are_wanted(tmp_path):
    rows = [[{"loss": each, "images_per_second": 100.0 + speed} for each in LOSSES] for speed in (1, 2)]
    assert effects(swept(tmp_path, *rows, grid={"amp": [True, False]}, metric="images_per_second")) == []


def test_a_key_whose_other_values_differ_has_an_effect(tmp_path):
    """Two of three equal the best by chance."""
    state = swept(tmp_path, [0.9], [0.8], [0.9], grid={"lr": [1, 2, 3]}, metric="val_accuracy")
    assert effects(state) == []


@pytest.mark.parametrize("name", ["amp", "use_amp"])
def test_what_repeats_the_setting_is_no_result(tmp_path, name):
    """The program reports its own options beside its metrics."""
    rows = [[{"loss": each, name: float(is_on)} for each in LOSSES] for is_on in (True, False)]
    state = swept(tmp_path, *rows, grid={"amp": [True, False]})
    (line,) = effects(state)
    assert line.startswith("`amp` has no effect: ")


def test_a_result_that_equals_a_setting_in_some_trials_is_one(tmp_path):
    rows = [[{"loss": each, "score": score} for each in LOSSES] for score in (1.0, 3.0)]
    assert effects(swept(tmp_path, *rows, grid={"layers": [1, 2]})) == []
