"""Trials that fit trees: real fits, saved in the formats of their libraries."""

import os
import subprocess
import sys
import time
from functools import partial

import numpy as np
import pandas as pd
import pytest
from driven import drive
from project import ROOT
from trainyard.config.datasets import Digits, Table
from trainyard.config.trees import FIT_METRICS, Trees
from trainyard.config.trial_status import TrialStatus
from trainyard.data.staging import stage
from trainyard.programs.function import Context, run_function
from trainyard.trees import boosting

LIBRARIES = ("xgboost", "lightgbm")


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    return stage(Digits(source="digits"), tmp_path_factory.mktemp("digits"))


def staged_table(folder, table, target="price"):
    table.to_csv(folder / "table.csv", index=False)
    return stage(Table(source="table", path=str(folder / "table.csv"), target=target), folder / "staged")


@pytest.fixture(scope="module")
def prices(tmp_path_factory):
    folder = tmp_path_factory.mktemp("prices")
    generator = np.random.default_rng(0)
    table = pd.DataFrame({"size": generator.uniform(size=300), "street": generator.choice(["north", "south"], 300)})
    table["price"] = 3 * table["size"] + (table["street"] == "north") + generator.normal(scale=0.05, size=300)
    return staged_table(folder, table)


@pytest.fixture(scope="module")
def patients(tmp_path_factory):
    """A table of two classes of unequal size."""
    folder = tmp_path_factory.mktemp("patients")
    table = pd.DataFrame(np.random.default_rng(0).normal(size=(400, 3)), columns=["a", "b", "c"])
    noise = np.random.default_rng(1).normal(size=400)
    table["state"] = np.where(table["a"] + noise > 1.2, "ill", "healthy")
    return staged_table(folder, table, "state")


def run(staged, folder, *, stop_at=None, threads=2, deadline=np.inf, **settings):
    """The rows that a trial with these settings reports, and how it ends."""
    context = Context("t", 1, folder, folder / "checkpoints", staged.folder, cpus=threads, deadline=deadline)
    return drive(partial(run_function, boosting.fit_trial, Trees(**settings), context), stop_at=stop_at)


def fit(staged, folder, **settings):
    """The metrics of a trial with these settings."""
    _, end = run(staged, folder, **settings)
    assert end.status is TrialStatus.FINISHED, end.error
    assert end.metrics.keys() <= set(FIT_METRICS)
    return end.metrics


def error_of(staged, folder, **settings):
    _, end = run(staged, folder, **settings)
    assert end.status is TrialStatus.FAILED
    assert list(folder.iterdir()) == []
    return end.error


def opened(library, folder):
    """A saved model, opened by its own library."""
    import lightgbm  # these take a second
    import xgboost

    if library == "xgboost":
        return xgboost.Booster(model_file=folder / "xgboost.ubj")
    return lightgbm.Booster(model_file=folder / "lightgbm.txt")


def predicted_by_hand(library, params, rounds, data, rows):
    """What a model predicts that a user fits to the training rows with these parameters."""
    import lightgbm
    import xgboost

    if library == "xgboost":
        train = xgboost.DMatrix(data.train, data.train_target)
        settings = {"objective": "multi:softprob", "num_class": 10, **params}
        return xgboost.train(settings, train, rounds).predict(xgboost.DMatrix(rows))
    settings = {"objective": "multiclass", "num_class": 10, "verbosity": -1, "force_col_wise": True, **params}
    return lightgbm.train(settings, lightgbm.Dataset(data.train, data.train_target), rounds).predict(rows)


def test_waiting_threads_leave_the_cpu_to_others():
    """With the default, each barrier of two threads on a busy CPU takes a time slice of the scheduler."""
    code = "from trainyard.trees import boosting; import lightgbm"
    paths = {"PYTHONPATH": str(ROOT / "scripts"), "OMP_DISPLAY_ENV": "true"}
    kept = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=kept | paths, capture_output=True, text=True, check=True)
    assert "OMP_WAIT_POLICY = 'PASSIVE'" in done.stderr


@pytest.mark.parametrize("library", LIBRARIES)
def test_images_are_classified_on_the_cpus_of_the_slot(digits, tmp_path, library):
    rows, end = run(digits, tmp_path, library=library, rounds=20)
    assert [row["epoch"] for row in rows] == list(range(1, 21))
    assert 0.9 < end.metrics["val_accuracy"] <= end.metrics["train_accuracy"] <= 1
    assert (end.metrics["rounds"], end.metrics["threads"]) == (20, 2)
    last = {name: end.metrics[name] for name in ("val_accuracy", "val_log_loss")}
    assert {name: rows[-1][name] for name in last} == pytest.approx(last)


@pytest.mark.parametrize("library", LIBRARIES)
def test_regression_on_a_table_with_text_columns(prices, tmp_path, library):
    rows, end = run(prices, tmp_path, library=library, rounds=60)
    assert 0 < end.metrics["val_rmse"] < 0.3, "the noise is 0.05, the spread of prices 1"
    assert rows[0].keys() == {"epoch", "val_rmse"}
    assert rows[0]["val_rmse"] > rows[-1]["val_rmse"]


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_column_of_booleans_with_missing_values_is_fitted(tmp_path, library):
    generator = np.random.default_rng(0)
    table = pd.DataFrame({"old": generator.choice(np.array([True, False, None]), 300)})
    table["price"] = (table["old"] == True) + generator.normal(scale=0.05, size=300)  # noqa: E712
    metrics = fit(staged_table(tmp_path, table), tmp_path / "trial", library=library)
    assert metrics["val_rmse"] < 0.2, "the spread of prices is 0.5"


@pytest.mark.parametrize("library", LIBRARIES)
def test_saved_models_open_in_their_own_libraries_and_predict_the_same(digits, tmp_path, library):
    import xgboost

    metrics, data = fit(digits, tmp_path, library=library, rounds=4), boosting.tabular(digits)
    rows = xgboost.DMatrix(data.val) if library == "xgboost" else data.val
    predicted = opened(library, tmp_path).predict(rows).argmax(1)
    assert np.mean(predicted == data.val_target) == metrics["val_accuracy"]


@pytest.mark.parametrize(
    ("library", "params"),
    [
        ("xgboost", {"eta": 0.5, "lambda": 5, "alpha": 1, "min_split_loss": 0.1, "subsample": 0.5}),
        ("xgboost", {"learning_rate": 0.5, "reg_lambda": 5, "reg_alpha": 1, "gamma": 0.1, "subsample": 0.5}),
        ("lightgbm", {"learning_rate": 0.5, "num_leaves": 7, "bagging_fraction": 0.5, "bagging_freq": 1}),
        ("lightgbm", {"eta": 0.5, "max_leaf": 7, "sub_row": 0.5, "subsample_freq": 1, "min_data": 30}),
    ],
)
def test_parameters_have_the_names_of_their_library(digits, tmp_path, library, params):
    fit(digits, tmp_path, library=library, rounds=3, seed=7, threads=1, **params)
    data = boosting.tabular(digits)
    own = predicted_by_hand(library, {"seed": 7, "num_threads" if library == "lightgbm" else "nthread": 1, **params},
                            3, data, data.val)  # fmt: skip
    import xgboost

    saved = opened(library, tmp_path)
    assert np.allclose(saved.predict(xgboost.DMatrix(data.val) if library == "xgboost" else data.val), own)


@pytest.mark.parametrize("library", LIBRARIES)
def test_the_seed_decides_the_result(digits, tmp_path, library):
    drawn = {"subsample": 0.5} if library == "xgboost" else {"bagging_fraction": 0.5, "bagging_freq": 1}
    first, same, other = (fit(digits, tmp_path / str(number), library=library, rounds=5, seed=seed, **drawn)
                          for number, seed in enumerate((1, 1, 2)))  # fmt: skip
    assert first == same != other


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"max_dept": 3}, 'Parameters: { "max_dept" } are not used'),
        ({"max_dept": 3, "verbosity": 0, "validate_parameters": False}, 'Parameters: { "max_dept" } are not used'),
        ({"booster": "gblinear", "max_depth": 3}, 'Parameters: { "max_depth" } are not used'),
        ({"device": "cuda"}, "Device is changed from GPU to CPU"),
        ({"max_depth": "deep"}, "Invalid Parameter format for max_depth expect int but value='deep'"),
        ({"library": "lightgbm", "num_leavs": 3}, "Unknown parameter: num_leavs"),
        ({"library": "lightgbm", "num_leavs": 3, "verbosity": -1}, "Unknown parameter: num_leavs"),
        (
            {"library": "lightgbm", "eta": 0.1, "learning_rate": 0.2},
            "learning_rate is set=0.2, eta=0.1 will be ignored",
        ),
        ({"library": "lightgbm", "nthreads": 3}, "num_threads is set=2, nthreads=3 will be ignored"),
        ({"library": "lightgbm", "random_seed": 3}, "seed is set=0, random_seed=3 will be ignored"),
        ({"library": "lightgbm", "device": "cuda"}, "CUDA Tree Learner was not enabled in this build"),
    ],
)
def test_a_parameter_that_a_library_does_not_use_is_an_error_in_its_own_words(digits, tmp_path, params, message):
    error = error_of(digits, tmp_path, rounds=2, **params)
    assert error.startswith(f"{params.get('library', 'xgboost')} cannot be fitted with {{")
    assert message in error
    assert "\n" not in error


def test_early_stopping_is_that_of_the_libraries(digits, tmp_path):
    import lightgbm
    import xgboost

    data = boosting.tabular(digits)
    settings = {"objective": "multi:softprob", "num_class": 10, "nthread": 1}
    train, val = xgboost.DMatrix(data.train, data.train_target), xgboost.DMatrix(data.val, data.val_target)
    own = xgboost.train(settings, train, 200, evals=[(val, "v")], early_stopping_rounds=3, verbose_eval=False)
    metrics = fit(digits, tmp_path, rounds=200, early_stopping=3, threads=1)
    assert metrics["best_round"] == own.best_iteration + 1 == metrics["rounds"] - 3
    kept = own.predict(val, iteration_range=(0, own.best_iteration + 1))
    assert np.array_equal(opened("xgboost", tmp_path).predict(val), kept)
    assert metrics["val_accuracy"] == np.mean(kept.argmax(1) == data.val_target)
    settings = {"objective": "multiclass", "num_class": 10, "verbosity": -1, "num_threads": 1, "force_col_wise": True}
    train = lightgbm.Dataset(data.train, data.train_target)
    own = lightgbm.train(settings | {"early_stopping_round": 3}, train, 200,
                         [lightgbm.Dataset(data.val, data.val_target, reference=train)])  # fmt: skip
    metrics = fit(digits, tmp_path, library="lightgbm", rounds=200, early_stopping=3, threads=1)
    assert metrics["best_round"] == own.best_iteration == metrics["rounds"] - 3
    assert np.array_equal(opened("lightgbm", tmp_path).predict(data.val), own.predict(data.val))


@pytest.mark.parametrize("library", LIBRARIES)
def test_cross_validation_is_that_of_scikit_learn(digits, tmp_path, library):
    from sklearn.model_selection import StratifiedKFold

    metrics, data, scores = fit(digits, tmp_path, library=library, rounds=4, folds=3), boosting.tabular(digits), []
    for kept, held in StratifiedKFold(3, shuffle=True, random_state=0).split(data.train, data.train_target):
        fold = boosting.Tabular(data.train[kept], data.train_target[kept], None, None, [], [])
        found = predicted_by_hand(library, {"seed": 0}, 4, fold, data.train[held])
        scores.append(np.mean(found.argmax(1) == data.train_target[held]))
    assert metrics["cv_accuracy"] == pytest.approx(np.mean(scores))
    assert metrics["cv_deviation"] == pytest.approx(np.std(scores, ddof=1))


@pytest.mark.parametrize("library", LIBRARIES)
def test_the_rows_of_a_fold_do_not_choose_the_rounds_that_predict_them(prices, tmp_path, library):
    stopped = fit(prices, tmp_path / "stopped", library=library, rounds=99, folds=3, early_stopping=3)
    assert stopped["best_round"] < stopped["rounds"] < 99
    fixed = fit(prices, tmp_path / "fixed", library=library, rounds=stopped["best_round"], folds=3)
    assert (stopped["cv_rmse"], stopped["cv_deviation"]) == (fixed["cv_rmse"], fixed["cv_deviation"])


@pytest.mark.parametrize("library", LIBRARIES)
def test_log_loss_and_auc_are_those_of_scikit_learn(digits, patients, tmp_path, library):
    import xgboost
    from sklearn.metrics import log_loss, roc_auc_score

    for staged in (digits, patients):
        metrics = fit(staged, tmp_path / staged.digest, library=library, rounds=3)
        data, saved = boosting.tabular(staged), opened(library, tmp_path / staged.digest)
        found = saved.predict(xgboost.DMatrix(data.val) if library == "xgboost" else data.val)
        assert metrics["val_log_loss"] == pytest.approx(log_loss(data.val_target, found), rel=1e-5)
        assert metrics["val_auc"] == pytest.approx(roc_auc_score(data.val_target, found, multi_class="ovr"), rel=1e-5)


@pytest.mark.parametrize("weights", ["balanced", {"ill": 4.0}])
@pytest.mark.parametrize("library", LIBRARIES)
def test_classes_are_weighted_as_by_hand(patients, tmp_path, library, weights):
    from lightgbm import LGBMClassifier
    from sklearn.utils.class_weight import compute_sample_weight
    from xgboost import XGBClassifier

    data = boosting.tabular(patients)
    plain = fit(patients, tmp_path, library=library, rounds=20)
    metrics = fit(patients, tmp_path, library=library, rounds=20, class_weights=weights)
    given = weights if weights == "balanced" else {0: 1.0, 1: 4.0}
    by_hand = {
        "xgboost": XGBClassifier(n_estimators=20, n_jobs=1, random_state=0),
        "lightgbm": LGBMClassifier(n_estimators=20, n_jobs=1, random_state=0, verbosity=-1),
    }[library].fit(data.train, data.train_target, sample_weight=compute_sample_weight(given, data.train_target))
    assert metrics["val_accuracy"] == by_hand.score(data.val, data.val_target)
    assert metrics["val_log_loss"] != plain["val_log_loss"]


@pytest.mark.parametrize("weights", ["balanced", {"ill": 4.0}])
def test_numbers_have_no_class_weights(prices, tmp_path, weights):
    message = "class_weights are for classes, but the target of this dataset is a number"
    assert message in error_of(prices, tmp_path, class_weights=weights)


def test_a_class_that_does_not_exist_has_no_weight(patients, tmp_path):
    message = "class_weights: there is no class 'il'; did you mean 'ill'"
    assert message in error_of(patients, tmp_path, class_weights={"il": 4})


@pytest.mark.parametrize(
    ("objective", "names"),
    [("binary:hinge", {"val_accuracy", "val_log_loss", "val_auc"}), ("binary:logitraw", set())],
)
def test_only_what_an_objective_defines_is_scored(patients, tmp_path, objective, names):
    metrics = fit(patients, tmp_path, rounds=9, objective=objective, folds=2)
    assert {name for name in metrics if name.startswith("val_")} == names


def test_classes_that_are_predicted_by_number_are_scored(digits, tmp_path):
    metrics = fit(digits, tmp_path, rounds=9, objective="multi:softmax")
    assert metrics["val_accuracy"] > 0.8
    assert "val_log_loss" not in metrics


@pytest.mark.parametrize("library", LIBRARIES)
def test_importances_are_shares_of_the_gain_that_the_library_reports(prices, digits, tmp_path, library):
    for staged in (prices, digits):
        fit(staged, tmp_path, library=library, rounds=20)
        table = pd.read_csv(tmp_path / "importances.csv")
        assert table["importance"].sum() == pytest.approx(1)
        assert table["importance"].is_monotonic_decreasing
        model = opened(library, tmp_path)
        if library == "xgboost":
            gains = model.get_score(importance_type="total_gain")
        else:
            gains = dict(zip(model.feature_name(), model.feature_importance("gain"), strict=True))
        best = max(gains, key=gains.get)
        assert table["importance"][0] == pytest.approx(gains[best] / sum(gains.values()))
        if staged is prices:
            assert table["feature"].tolist() == ["size", "street"]
        else:
            number = int(best.removeprefix("f").removeprefix("Column_"))
            assert table["feature"][0] == f"pixel {number // 8},{number % 8}"


def test_a_linear_model_has_no_importances(digits, tmp_path):
    assert fit(digits, tmp_path, rounds=2, booster="gblinear")["val_accuracy"] > 0.5
    assert pd.read_csv(tmp_path / "importances.csv").empty


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_fit_ends_when_its_sweep_stops_it_or_the_time_is_up(digits, tmp_path, library):
    rows, end = run(digits, tmp_path, library=library, rounds=50, stop_at=3)
    assert (len(rows), end.status) == (3, TrialStatus.STOPPED)
    rows, end = run(digits, tmp_path, library=library, rounds=10_000, deadline=time.time())
    assert (rows, end.status, end.interrupts_itself) == ([], TrialStatus.INTERRUPTED, False)


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_class_without_training_images_keeps_its_number(tmp_path, library):
    """As the classes of EMNIST's letters, which are counted from 1."""
    staged = stage(Digits(source="digits"), tmp_path / "staged")
    for split in ("train", "val"):
        np.save(tmp_path / "staged" / f"{split}-labels.npy", staged.split(split).labels.clip(1))
    assert fit(staged, tmp_path / "trial", library=library, rounds=3)["val_accuracy"] > 0.8


@pytest.mark.parametrize("library", LIBRARIES)
def test_the_names_of_columns_may_have_any_characters(tmp_path, library):
    generator = np.random.default_rng(0)
    names = ["size [m]", "size {m}", "<5", "a:b", 'c, "d"']
    table = pd.DataFrame(generator.uniform(size=(300, 5)), columns=names).assign(price=generator.uniform(size=300))
    metrics = fit(staged_table(tmp_path, table), tmp_path / "trial", library=library, rounds=20)
    assert metrics["train_rmse"] < metrics["val_rmse"]


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("names", [["a b", "a_b", "a[b"], ["a_", "a__2", "a:"]])
def test_columns_with_similar_names_are_different_features(tmp_path, library, names):
    """LightGBM replaces spaces by underscores."""
    table = pd.DataFrame(np.random.default_rng(0).uniform(size=(60, 4)), columns=[*names, "price"])
    assert fit(staged_table(tmp_path, table), tmp_path / "trial", library=library)["train_rmse"] < 1


def test_an_error_of_xgboost_itself_is_one_line(tmp_path):
    table = pd.DataFrame({"ratio": [np.inf, *np.arange(99)], "price": np.arange(100) / 2})
    folder = tmp_path / "trial"
    folder.mkdir()
    error = error_of(staged_table(tmp_path, table), folder)
    assert error.startswith("xgboost cannot be fitted with {}: Check failed: valid: Input data contains `inf`")
    assert "\n" not in error
