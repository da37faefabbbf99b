"""Tree models: real fits, saved in the formats of their libraries."""

import json
import logging
import os
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from project import ROOT
from trainyard.config.config import Trees
from trainyard.config.datasets import Digits, Table
from trainyard.data.staging import stage
from trainyard.programs.function import Context
from trainyard.programs.user_environment import code_record
from trainyard.trees import boosting
from trainyard.utils import terminal
from trainyard.utils.errors import UserError

STUDY = Trees(dataset="d", rounds=20)


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    return stage(Digits(source="digits"), tmp_path_factory.mktemp("digits"))


def staged_table(folder, table, target="price"):
    table.to_csv(folder / "table.csv", index=False)
    return stage(Table(source="table", path=str(folder / "table.csv"), target=target), folder / "staged")


def opened(name, folder):
    """A saved model, opened by its own library."""
    import lightgbm  # these take a second
    import xgboost

    if name == "xgboost":
        return xgboost.Booster(model_file=folder / "xgboost.ubj")
    return lightgbm.Booster(model_file=folder / "lightgbm.txt")


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


def test_waiting_threads_leave_the_cpu_to_others():
    """With the default, each barrier of two threads on a busy CPU takes a time slice of the scheduler."""
    code = "from trainyard.trees import boosting; import lightgbm"
    paths = {"PYTHONPATH": str(ROOT / "scripts"), "OMP_DISPLAY_ENV": "true"}
    kept = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=kept | paths, capture_output=True, text=True, check=True)
    assert "OMP_WAIT_POLICY = 'PASSIVE'" in done.stderr


@pytest.mark.parametrize("name", ["xgboost", "lightgbm"])
def test_images_are_classified(digits, tmp_path, name):
    session = code_record(STUDY, config="0123abcd")
    row = boosting.fit(STUDY, name, digits, tmp_path, threads=2, session=session)
    (kept,) = json.loads((tmp_path / f"{name}.json").read_text())["sessions"]
    assert (kept["code"], kept["config"]) == (session["code"], "0123abcd")
    assert sorted(kept["versions"]) == sorted(["python", "trainyard", name])
    assert row["metric"] == "accuracy"
    assert 0.9 < row["val"] <= row["train"] <= 1
    assert row["threads"] == 2


@pytest.mark.parametrize("name", ["xgboost", "lightgbm"])
def test_regression_on_a_table_with_text_columns(prices, tmp_path, name):
    row = boosting.fit(STUDY.model_copy(update={"rounds": 60}), name, prices, tmp_path, threads=1)
    assert row["metric"] == "rmse"
    assert 0 < row["val"] < 0.3, "the noise is 0.05, the spread of prices 1"


@pytest.mark.parametrize("name", ["xgboost", "lightgbm"])
def test_a_column_of_booleans_with_missing_values_is_fitted(tmp_path, name):
    generator = np.random.default_rng(0)
    table = pd.DataFrame({"old": generator.choice(np.array([True, False, None]), 300)})
    table["price"] = (table["old"] == True) + generator.normal(scale=0.05, size=300)  # noqa: E712
    row = boosting.fit(STUDY, name, staged_table(tmp_path, table), tmp_path / "models", threads=1)
    assert row["val"] < 0.2, "the spread of prices is 0.5"


def test_saved_models_open_in_their_own_libraries_and_predict_the_same(digits, tmp_path):
    import xgboost

    study = STUDY.model_copy(update={"rounds": 4})
    rows = {name: boosting.fit(study, name, digits, tmp_path, threads=2) for name in ("xgboost", "lightgbm")}
    images, labels = digits.split("val").images.reshape(360, -1), digits.split("val").labels
    predicted = {
        "xgboost": opened("xgboost", tmp_path).predict(xgboost.DMatrix(images)).argmax(1),
        "lightgbm": opened("lightgbm", tmp_path).predict(images).argmax(1),
    }
    for name, row in rows.items():
        assert np.mean(predicted[name] == labels) == row["val"]


def test_a_model_is_fitted_once_and_again_with_other_settings(digits, tmp_path):
    first = boosting.fit(STUDY, "xgboost", digits, tmp_path, threads=1)
    assert boosting.fit(STUDY, "xgboost", digits, tmp_path, threads=2) == first
    assert boosting.fit(STUDY.model_copy(update={"rounds": 4}), "xgboost", digits, tmp_path, threads=2)["threads"] == 2


def test_the_rounds_of_the_table_are_those_of_the_model(digits, tmp_path):
    study = Trees(dataset="d", rounds=5, params={"xgboost": {"n_estimators": 2, "n_jobs": 1}})
    row = boosting.fit(study, "xgboost", digits, tmp_path, threads=2)
    assert (row["rounds"], row["threads"]) == (2, 1)


@pytest.mark.parametrize(
    ("rounds", "threads", "seed"),
    [
        ("n_estimators", "n_jobs", "random_state"),
        ("num_iterations", "num_threads", "seed"),
        ("num_boost_round", "nthread", "random_seed"),
        ("n_iter", "nthreads", "seed"),
    ],
)
def test_lightgbm_takes_all_names_of_parameters_as_if_called_by_hand(digits, tmp_path, rounds, threads, seed):
    import lightgbm

    params = {rounds: 3, threads: 1, seed: 7, "bagging_fraction": 0.5, "bagging_freq": 1}
    study = Trees(dataset="d", rounds=9, params={"lightgbm": params})
    row = boosting.fit(study, "lightgbm", digits, tmp_path, threads=2)
    assert (row["rounds"], row["threads"]) == (3, 1)
    images, labels = digits.split("train").images.reshape(1437, -1), digits.split("train").labels
    by_hand = lightgbm.train(
        {"objective": "multiclass", "num_class": 10, "verbosity": -1, **params}, lightgbm.Dataset(images, labels)
    )
    saved = opened("lightgbm", tmp_path)
    assert saved.num_trees() == by_hand.num_trees() == 30, "one of each class per round"
    assert np.array_equal(saved.predict(images), by_hand.predict(images))


@pytest.mark.parametrize(
    "params", [{"eta": 0.5}, {"shrinkage_rate": 0.5}, {"l2_regularization": 50.0}, {"max_leaf": 3}, {"min_data": 90}]
)
def test_no_name_of_a_parameter_loses_to_a_default(digits, tmp_path, params):
    """LightGBM's interface for scikit-learn passes `learning_rate=0.1`, which wins over a user's `eta`."""
    import lightgbm

    study = Trees(dataset="d", rounds=3, params={"lightgbm": {**params, "n_jobs": 1}})
    boosting.fit(study, "lightgbm", digits, tmp_path, threads=1)
    images, labels = digits.split("train").images.reshape(1437, -1), digits.split("train").labels
    settings = {"objective": "multiclass", "num_class": 10, "verbosity": -1, "seed": 0, "num_threads": 1, **params}
    by_hand = lightgbm.train(settings, lightgbm.Dataset(images, labels), num_boost_round=3)
    saved = opened("lightgbm", tmp_path)
    assert np.array_equal(saved.predict(images), by_hand.predict(images))


@pytest.mark.parametrize(("threads", "seed"), [("n_jobs", "random_state"), ("nthread", "seed")])
def test_xgboost_takes_all_names_of_parameters_as_if_called_by_hand(digits, tmp_path, threads, seed):
    import xgboost

    params = {threads: 1, seed: 7, "subsample": 0.5, "eta": 0.5, "lambda": 5, "alpha": 1, "min_split_loss": 0.1}
    study = Trees(dataset="d", rounds=9, params={"xgboost": {**params, "num_boost_round": 3}})
    row = boosting.fit(study, "xgboost", digits, tmp_path, threads=2)
    assert (row["rounds"], row["threads"]) == (3, 1)
    images, labels = digits.split("train").images.reshape(1437, -1), digits.split("train").labels
    data = xgboost.DMatrix(images, labels)
    by_hand = xgboost.train({"objective": "multi:softprob", "num_class": 10, **params}, data, num_boost_round=3)
    saved = opened("xgboost", tmp_path)
    assert np.allclose(saved.predict(data), by_hand.predict(data))


@pytest.mark.parametrize(
    ("name", "params", "message"),
    [
        ("xgboost", {"max_dept": 3}, "xgboost does not use the parameter 'max_dept': did you mean 'max_depth'?"),
        ("xgboost", {"max_dept": 3, "verbosity": 0, "validate_parameters": False}, "did you mean 'max_depth'"),
        (
            "xgboost",
            {"booster": "gblinear", "max_depth": 3},
            "xgboost does not use the parameter 'max_depth': it has no effect with the others",
        ),
        ("xgboost", {"tree_metod": "hist"}, "did you mean 'tree_method'?"),
        ("xgboost", {"eta": 0.1, "learning_rate": 0.2}, "xgboost: eta and learning_rate are one parameter"),
        ("xgboost", {"device": "cuda"}, "xgboost: device: cuda: this job has no GPU: remove it, or"),
        ("xgboost", {"device": "gpu:0"}, "xgboost: this build (xgboost-cpu) uses no GPU: install the package xgboost"),
        ("lightgbm", {"device_type": "GPU"}, "lightgbm: device_type: GPU: this job has no GPU"),
        ("lightgbm", {"eta": 0.1, "shrinkage_rate": 0.2}, "lightgbm: eta and shrinkage_rate are one parameter"),
        ("xgboost", {"objective": "multi:softprob", "etaa": 3}, "does not use the parameter 'etaa'"),
        ("xgboost", {"n_jobs": 1, "nthread": 2}, "xgboost: n_jobs and nthread are one parameter: give it once"),
        ("lightgbm", {"num_leavs": 3}, "lightgbm does not use the parameter 'num_leavs': did you mean 'num_leaves'?"),
        ("lightgbm", {"nrounds": 3, "n_iter": 2}, "lightgbm: nrounds and n_iter are one parameter"),
    ],
)
def test_a_parameter_that_a_library_does_not_use_is_an_error(digits, tmp_path, name, params, message):
    study = Trees(dataset="d", rounds=1, params={name: params})
    with pytest.raises(UserError) as error:
        boosting.fit(study, name, digits, tmp_path, threads=1)
    assert message in str(error.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("xgboost", {"eta": 0.1, "lambda": 2, "reg_alpha": 1, "gamma": 0.1, "colsample_bytree": 0.5, "max_bin": 64,
                     "tree_method": "hist", "grow_policy": "lossguide", "device": "cpu", "importance_type": "gain",
                     "eval_metric": "mlogloss", "objective": "multi:softprob", "num_parallel_tree": 2}),
        ("lightgbm", {"boosting": "dart", "sub_feature": 0.5, "reg_lambda": 2, "lambda_l1": 1,
                      "class_weight": "balanced", "importance_type": "gain",
                      "subsample_for_bin": 1000, "device": "cpu", "metric": "None"}),
    ],
)  # fmt: skip
def test_parameters_under_all_names_of_a_library_are_no_mistakes(name, params):
    assert boosting.find_mistakes(name, params) == []


def test_early_stopping_is_that_of_the_libraries(digits, tmp_path):
    import lightgbm
    import xgboost

    study = Trees(dataset="d", rounds=200, early_stopping=3)
    rows = {name: boosting.fit(study, name, digits, tmp_path, threads=1) for name in ("xgboost", "lightgbm")}
    (images, labels), (held, held_labels) = (
        (split.images.reshape(len(split.labels), -1), split.labels) for split in map(digits.split, ("train", "val"))
    )
    train, val = xgboost.DMatrix(images, labels), xgboost.DMatrix(held, held_labels)
    settings = {"objective": "multi:softprob", "num_class": 10, "nthread": 1}
    by_hand = xgboost.train(settings, train, 200, evals=[(val, "v")], early_stopping_rounds=3, verbose_eval=False)
    assert rows["xgboost"]["best_iteration"] == rows["xgboost"]["rounds"] == by_hand.best_iteration + 1 < 190
    saved = opened("xgboost", tmp_path)
    assert np.array_equal(saved.predict(val), by_hand.predict(val, iteration_range=(0, by_hand.best_iteration + 1)))
    train, settings = lightgbm.Dataset(images, labels), {"objective": "multiclass", "num_class": 10, "verbosity": -1}
    settings |= {"num_threads": 1, "early_stopping_round": 3}
    by_hand = lightgbm.train(settings, train, 200, [lightgbm.Dataset(held, held_labels, reference=train)])
    assert rows["lightgbm"]["best_iteration"] == rows["lightgbm"]["rounds"] == by_hand.best_iteration < 190
    assert np.array_equal(opened("lightgbm", tmp_path).predict(held), by_hand.predict(held))


def test_cross_validation_is_that_of_scikit_learn(digits, tmp_path):
    from sklearn.model_selection import StratifiedKFold, cross_val_score
    from xgboost import XGBClassifier

    row = boosting.fit(Trees(dataset="d", rounds=4, folds=3), "xgboost", digits, tmp_path, threads=1)
    images, labels = digits.split("train").images.reshape(1437, -1), digits.split("train").labels
    parts = StratifiedKFold(3, shuffle=True, random_state=0)
    scores = cross_val_score(XGBClassifier(n_estimators=4, n_jobs=1, random_state=0), images, labels, cv=parts)
    assert (row["cv"], row["cv_deviation"]) == (pytest.approx(scores.mean()), pytest.approx(scores.std(ddof=1)))


@pytest.mark.parametrize("name", ["xgboost", "lightgbm"])
def test_the_rows_of_a_fold_do_not_choose_the_rounds_that_predict_them(prices, tmp_path, name):
    stopped, fixed = tmp_path / "stopped", tmp_path / "fixed"
    row = boosting.fit(Trees(dataset="d", rounds=99, folds=3, early_stopping=3), name, prices, stopped, threads=1)
    assert row["best_iteration"] == row["rounds"] < 99
    same = boosting.fit(Trees(dataset="d", rounds=row["rounds"], folds=3), name, prices, fixed, threads=1)
    assert (row["cv"], row["cv_deviation"]) == (same["cv"], same["cv_deviation"])


@pytest.mark.parametrize("name", ["xgboost", "lightgbm"])
def test_log_loss_and_auc_are_those_of_scikit_learn(digits, patients, tmp_path, name):
    import xgboost
    from sklearn.metrics import log_loss, roc_auc_score

    for staged in (digits, patients):
        row = boosting.fit(STUDY.model_copy(update={"rounds": 3}), name, staged, tmp_path / staged.digest, threads=1)
        data, saved = boosting.tabular(staged), opened(name, tmp_path / staged.digest)
        rows = xgboost.DMatrix(data.val, enable_categorical=True) if name == "xgboost" else data.val
        found = saved.predict(rows)
        assert row["val_log_loss"] == pytest.approx(log_loss(data.val_target, found), rel=1e-5)
        assert row["val_auc"] == pytest.approx(roc_auc_score(data.val_target, found, multi_class="ovr"), rel=1e-5)


@pytest.mark.parametrize("weights", ["balanced", {"ill": 4.0}])
@pytest.mark.parametrize("name", ["xgboost", "lightgbm"])
def test_classes_are_weighted_as_by_hand(patients, tmp_path, name, weights):
    from lightgbm import LGBMClassifier
    from sklearn.utils.class_weight import compute_sample_weight
    from xgboost import XGBClassifier

    data = boosting.tabular(patients)
    plain = boosting.fit(STUDY, name, patients, tmp_path, threads=1)
    row = boosting.fit(Trees(dataset="d", rounds=20, class_weights=weights), name, patients, tmp_path, threads=1)
    given = weights if weights == "balanced" else {0: 1.0, 1: 4.0}
    by_hand = {
        "xgboost": XGBClassifier(n_estimators=20, n_jobs=1, random_state=0),
        "lightgbm": LGBMClassifier(n_estimators=20, n_jobs=1, random_state=0, verbosity=-1),
    }[name].fit(data.train, data.train_target, sample_weight=compute_sample_weight(given, data.train_target))
    assert row["val"] == by_hand.score(data.val, data.val_target)
    assert row["val_log_loss"] != plain["val_log_loss"]


@pytest.mark.parametrize("weights", ["balanced", {"ill": 4.0}])
def test_numbers_have_no_class_weights(prices, tmp_path, weights):
    study = Trees(dataset="d", class_weights=weights)
    with pytest.raises(UserError, match="class_weights are for classes, but the target of this dataset is a number"):
        boosting.fit(study, "lightgbm", prices, tmp_path, threads=1)


def test_an_objective_without_probabilities_has_no_log_loss(patients, tmp_path):
    study = Trees(dataset="d", rounds=9, params={"xgboost": {"objective": "binary:logitraw"}})
    row = boosting.fit(study, "xgboost", patients, tmp_path, threads=1)
    assert row["val"] > 0.5
    assert (row["val_log_loss"], row["val_auc"]) == (None, None)


def test_a_class_that_does_not_exist_has_no_weight(patients, tmp_path):
    study = Trees(dataset="d", class_weights={"il": 4})
    with pytest.raises(UserError, match="class_weights: there is no class 'il'; did you mean 'ill'"):
        boosting.fit(study, "xgboost", patients, tmp_path, threads=1)


@pytest.mark.parametrize("name", ["xgboost", "lightgbm"])
def test_a_long_fit_tells_its_progress(digits, tmp_path, name, monkeypatch, caplog):
    monkeypatch.setattr(terminal, "LINE_SECONDS", 0.0)
    with caplog.at_level(logging.INFO):
        boosting.fit(Trees(dataset="d", rounds=3, folds=2), name, digits, tmp_path, threads=2)
    lines = [record.message for record in caplog.records if "rounds" in record.message]
    assert len(lines) == 9, "rounds of the model and of two folds"
    assert lines[-1].startswith(f"{name}: 9 of 9 rounds, ")


@pytest.mark.parametrize("name", ["xgboost", "lightgbm"])
def test_importances_are_shares_of_the_gain_that_the_library_reports(prices, digits, tmp_path, name):
    for staged in (prices, digits):
        boosting.fit(STUDY, name, staged, tmp_path, threads=1)
        rows = boosting.importances(tmp_path, [name])
        shares = [row["importance"] for row in rows]
        assert sum(shares) == pytest.approx(1)
        assert shares == sorted(shares, reverse=True)
        model = opened(name, tmp_path)
        if name == "xgboost":
            gains = model.get_score(importance_type="total_gain")
        else:
            gains = dict(zip(model.feature_name(), model.feature_importance("gain"), strict=True))
        best = max(gains, key=gains.get)
        assert shares[0] == pytest.approx(gains[best] / sum(gains.values()))
        if staged is prices:
            assert [row["feature"] for row in rows] == ["size", "street"]
        else:
            number = int(best.removeprefix("f").removeprefix("Column_"))
            assert rows[0]["feature"] == f"pixel {number // 8},{number % 8}"


def test_a_linear_model_has_no_importances(digits, tmp_path):
    study = Trees(dataset="d", rounds=2, params={"xgboost": {"booster": "gblinear"}})
    assert boosting.fit(study, "xgboost", digits, tmp_path, threads=1)["val"] > 0.5
    assert boosting.importances(tmp_path, ["xgboost"]) == []


def test_a_linear_model_keeps_its_rounds_after_the_best_one(patients, tmp_path):
    """XGBoost cannot leave them out, and predicts with them, too."""
    import xgboost

    params = {"booster": "gblinear", "updater": "coord_descent"}
    study = Trees(dataset="d", rounds=200, early_stopping=3, folds=3, params={"xgboost": params})
    row = boosting.fit(study, "xgboost", patients, tmp_path / "stopped", threads=1)
    assert row["best_iteration"] + 3 == row["rounds"] < 200
    fixed = Trees(dataset="d", rounds=row["rounds"], folds=3, params={"xgboost": params})
    same = boosting.fit(fixed, "xgboost", patients, tmp_path / "fixed", threads=1)
    assert [row[key] for key in ("val", "val_log_loss", "cv")] == [same[key] for key in ("val", "val_log_loss", "cv")]
    data = boosting.tabular(patients)
    found = opened("xgboost", tmp_path / "stopped").predict(xgboost.DMatrix(data.val))
    assert row["val"] == np.mean((found > 0.5) == data.val_target)


def test_a_trial_of_a_sweep_is_a_fit_of_a_study(digits, tmp_path):
    arguments = {"model": "lightgbm", "rounds": 4, "folds": 2, "num_leaves": 7}
    context = Context("t", 1, tmp_path / "trial", tmp_path / "checkpoints", digits.folder, cpus=2)
    metrics = boosting.fit_trial(arguments, context)
    study = Trees(dataset="d", rounds=4, folds=2, params={"lightgbm": {"num_leaves": 7}})
    row = boosting.fit(study, "lightgbm", digits, tmp_path / "study", threads=2)
    named = {"train_accuracy": "train", "val_accuracy": "val", "cv_accuracy": "cv", "val_log_loss": "val_log_loss"}
    assert {name: metrics[name] for name in named} == {name: row[key] for name, key in named.items()}
    assert (metrics["rounds"], metrics["threads"]) == (4, 2)
    assert "seconds" not in metrics, "a trial measures its own"
    assert (tmp_path / "trial/lightgbm.txt").exists()


@pytest.mark.parametrize(
    ("name", "params"), [("lightgbm", {"verbosity": 0}), ("xgboost", {"enable_categorical": False})]
)
def test_parameters_replace_those_that_trainyard_sets(digits, tmp_path, name, params):
    study = Trees(dataset="d", rounds=1, params={name: params})
    assert boosting.fit(study, name, digits, tmp_path, threads=1)["val"] > 0.5


@pytest.mark.parametrize("name", ["xgboost", "lightgbm"])
def test_a_class_without_training_images_keeps_its_number(tmp_path, name):
    """As the classes of EMNIST's letters, which are counted from 1."""
    staged = stage(Digits(source="digits"), tmp_path / "staged")
    for split in ("train", "val"):
        labels = staged.split(split).labels
        np.save(tmp_path / "staged" / f"{split}-labels.npy", labels + 1)
    row = boosting.fit(STUDY.model_copy(update={"rounds": 3}), name, staged, tmp_path / "models", threads=1)
    assert row["val"] > 0.8


@pytest.mark.parametrize("name", ["xgboost", "lightgbm"])
def test_the_names_of_columns_may_have_any_characters(tmp_path, name):
    generator = np.random.default_rng(0)
    names = ["size [m]", "size {m}", "<5", "a:b", 'c, "d"']
    table = pd.DataFrame(generator.uniform(size=(300, 5)), columns=names).assign(price=generator.uniform(size=300))
    row = boosting.fit(STUDY, name, staged_table(tmp_path, table), tmp_path / "models", threads=1)
    assert row["train"] < row["val"]


@pytest.mark.parametrize("name", ["xgboost", "lightgbm"])
@pytest.mark.parametrize("names", [["a b", "a_b", "a[b"], ["a_", "a__2", "a:"]])
def test_columns_with_similar_names_are_different_features(tmp_path, name, names):
    """LightGBM replaces spaces by underscores."""
    table = pd.DataFrame(np.random.default_rng(0).uniform(size=(60, 4)), columns=[*names, "price"])
    staged = staged_table(tmp_path, table)
    assert boosting.fit(STUDY, name, staged, tmp_path / "models", threads=1)["train"] < 1


def test_probabilities_of_two_classes_are_scored(tmp_path):
    """With this objective, XGBoost returns a column for each of two classes, but one number for each of three."""
    table = pd.DataFrame({"x": np.arange(60.0), "y": ["low"] * 30 + ["high"] * 30})
    staged = staged_table(tmp_path, table, "y")
    study = Trees(dataset="d", rounds=5, params={"xgboost": {"objective": "multi:softprob", "num_class": 2}})
    assert boosting.fit(study, "xgboost", staged, tmp_path / "models", threads=1)["val"] > 0.9


def test_invalid_parameters_of_a_library_are_explained(digits, tmp_path):
    study = Trees(dataset="d", params={"xgboost": {"max_depth": "deep"}})
    with pytest.raises(UserError, match="xgboost"):
        boosting.fit(study, "xgboost", digits, tmp_path, threads=1)
    assert list(tmp_path.iterdir()) == []


def test_rounds_that_are_left_to_xgboost_are_its_own(digits, tmp_path):
    study = Trees(dataset="d", rounds=3, params={"xgboost": {"n_estimators": None, "max_depth": 1}})
    assert boosting.fit(study, "xgboost", digits, tmp_path, threads=2)["rounds"] == 100


def test_an_error_of_xgboost_itself_is_one_line(tmp_path):
    table = pd.DataFrame({"ratio": [np.inf, *np.arange(99)], "price": np.arange(100) / 2})
    staged = staged_table(tmp_path, table)
    message = r"^xgboost cannot be fitted with {.*}: Check failed: valid: Input data contains `inf` [^\n]*set to `inf`$"
    with pytest.raises(UserError, match=message):
        boosting.fit(STUDY, "xgboost", staged, tmp_path / "models", threads=1)
