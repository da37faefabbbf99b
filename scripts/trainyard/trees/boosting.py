"""Gradient-boosted trees on a staged dataset: XGBoost and LightGBM."""

import json
import logging
import os
import re
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import numpy as np

from trainyard.cluster.gpus import has_gpu
from trainyard.config.config import TreeModel, Trees, gpu_parameter
from trainyard.config.trials import fit_digest
from trainyard.data.staged import TARGET, DataError, Staged, StagedImageMeta, TableMeta
from trainyard.programs.function import Context
from trainyard.utils.errors import UserError
from trainyard.utils.files import atomic_write, write_json
from trainyard.utils.terminal import show_progress
from trainyard.utils.text import suggest

Array = np.ndarray[Any, np.dtype[Any]]
_REFUSED: Final = re.compile(r'[][{}<":,]')  # in the name of a feature, by XGBoost or LightGBM
log = logging.getLogger(__name__)

# OpenMP threads that wait in a loop take CPU time from the threads they wait for, if other processes use it, too:
# LightGBM then took 86 s for what takes 1 s. Libraries read this when they are loaded, which is later.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


@dataclass(frozen=True)
class Tabular:
    """Features (N rows, an array or a data frame) and targets (N) of both splits."""

    train: Any
    train_target: Array
    val: Any
    val_target: Array
    task: str  # classification or regression
    features: list[str]
    classes: list[str]  # names, by number; empty for regression

    def weigh(self, weights: str | Mapping[str, float]) -> Array:
        """The weight of each training row, by its class."""
        if not self.classes:
            raise UserError("class_weights are for classes, but the target of this dataset is a number: remove them")
        if isinstance(weights, str):
            from sklearn.utils.class_weight import compute_sample_weight

            return np.asarray(compute_sample_weight(weights, self.train_target))
        if unknown := [name for name in weights if name not in self.classes]:
            raise UserError(f"class_weights: there is no class {unknown[0]!r}; {suggest(unknown[0], self.classes)}")
        return np.array([weights.get(name, 1.0) for name in self.classes])[self.train_target]


def tabular(staged: Staged) -> Tabular:
    """A staged dataset as a table; images are flattened to height x width x channels columns."""
    if isinstance(staged.meta, StagedImageMeta):
        train, val = staged.split("train"), staged.split("val")
        rows = [split.images.reshape(len(split.images), -1) for split in (train, val)]
        height, width, channels = staged.meta.shape
        places = np.ndindex((height, width, channels)[: 2 if channels == 1 else 3])
        names = [f"pixel {','.join(map(str, place))}" for place in places]
        labels = np.array(train.labels), np.array(val.labels)
        return Tabular(rows[0], labels[0], rows[1], labels[1], "classification", names, staged.meta.classes)
    import pandas as pd

    task = staged.require(TableMeta).task
    frames = [pd.read_parquet(staged.folder / f"{name}.parquet") for name in ("train", "val")]
    targets = [frame.pop(TARGET).to_numpy() for frame in frames]
    for frame in frames:
        frame.columns = _accepted_names(map(str, frame.columns))
    names, classes = [str(name) for name in staged.require(TableMeta).columns], staged.meta.classes
    return Tabular(frames[0], targets[0], frames[1], targets[1], task, names, classes)


def _accepted_names(columns: Iterable[str]) -> list[str]:
    """Names of features that both libraries accept, as `size _m_` for `size [m]`; each of them once.

    LightGBM takes a space for an underscore.
    """
    names = dict[str, str]()  # by what LightGBM makes of them
    for column in columns:
        name = _REFUSED.sub("_", column)
        while name.replace(" ", "_") in names:
            name += f"_{len(names)}"
        names[name.replace(" ", "_")] = name
    return list(names.values())


def fit_trial(config: Mapping[str, Any], context: Context) -> dict[str, float]:
    """Fit one model as a trial of a sweep: the `function` of a sweep over parameters of tree models.

    The arguments are `model` (`xgboost` by default), the options of a tree study, and parameters of the library. The
    metrics are the columns of `trees.csv`, as `train_accuracy`, `val_accuracy` or `val_rmse`, `val_log_loss`, `rounds`.
    """
    if context.dataset is None:
        raise UserError("a sweep over tree models needs a `dataset`")
    study = Trees.of_trial(config)
    row = fit(study, study.models[0], Staged(context.dataset), context.trial_dir, threads=context.cpus)
    named = {"train": f"train_{row['metric']}", "val": f"val_{row['metric']}", "cv": f"cv_{row['metric']}"}
    numbers = {key: value for key, value in row.items() if isinstance(value, (int, float)) and key != "seconds"}
    return {named.get(key, key): value for key, value in numbers.items()}


def fit(
    study: Trees, name: TreeModel, staged: Staged, folder: Path, *, threads: int, session: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Fit one model and save it in its library's format, unless an identical fit exists.

    The `session`, as of `code_record`, is kept beside it, with the version of the library.

    Returns:
        A row of `trees.csv`. `metric` names the metric of `train` and `val`: accuracy (a fraction) or RMSE.

    Raises:
        UserError: the library does not accept the parameters, or they choose a GPU and there is none.
        DataError: it does not accept the data.
    """
    identity = fit_digest(study, name, staged.digest)
    receipt = folder / f"{name}.json"
    known = json.loads(receipt.read_text()) if receipt.exists() else {}
    if known.get("identity") == identity and "importances" in known:  # an earlier version did not measure them
        log.info("%s: already fitted", name)
        return dict(known["row"])
    mistakes = find_mistakes(name, study.given(name))
    if (device := gpu_parameter(study.given(name))) and not has_gpu():
        mistakes.append(f"{name}: {device}: this job has no GPU: remove it, or fit on a node with a GPU")
    if mistakes:
        raise UserError("; ".join(mistakes))
    names = _names(name)
    settings = {"n_estimators": study.rounds, "n_jobs": threads, "random_state": 0}
    if study.early_stopping:
        settings[names["early_stopping_rounds"]] = study.early_stopping
    settings |= {names.get(key, key): value for key, value in study.given(name).items()}
    row, shares = _fit(study, name, settings, tabular(staged), folder)
    library = {name: import_module(name).__version__}
    sessions = [session | {"versions": session["versions"] | library}] if session else []
    write_json(receipt, {"identity": identity, "row": row, "importances": shares, "sessions": sessions})
    return row


def importances(folder: Path, names: Iterable[str]) -> list[dict[str, Any]]:
    """The rows of `importances.csv` from the models that are fitted in a folder, the most important features first."""
    found = {name: json.loads((folder / f"{name}.json").read_text())["importances"] for name in names}
    return [
        {"model": name, "feature": feature, "importance": share}
        for name, shares in found.items()
        for feature, share in sorted(shares.items(), key=lambda item: -item[1])
    ]


def _fit(
    study: Trees, name: str, settings: dict[str, Any], data: Tabular, folder: Path
) -> tuple[dict[str, Any], dict[str, float]]:
    """Fit a model and save it; returns its row of the table, and the importances of its features."""
    score = accuracy if data.task == "classification" else rmse
    started, rounds = time.perf_counter(), settings["n_estimators"] or 0  # None, for XGBoost's default, if so given
    with _explained(name, settings), show_progress(name, rounds * (1 + (study.folds or 0)), unit="rounds") as advance:
        model = _train(study, name, settings, data, advance)
        seconds, saved = time.perf_counter() - started, model.saved()
        if model.best_iteration:  # the rows of a fold must not choose the rounds by which they are predicted
            settings |= {"n_estimators": saved.rounds, _names(name)["early_stopping_rounds"]: None}
        parts = _folds(data, study.folds)
        folds = [
            score(each.val_target, _train(study, name, settings, each, advance).predict(each.val)) for each in parts
        ]
    with atomic_write(folder / saved.file, "wb") as file:
        file.write(saved.content)
    row = {
        "model": name,
        "metric": score.__name__,
        "train": score(data.train_target, model.predict(data.train)),
        "val": score(data.val_target, model.predict(data.val)),
        "seconds": seconds,
        "threads": saved.threads if saved.threads > 0 else settings["n_jobs"],  # 0 or less: all available
        "rounds": saved.rounds,
        "file": saved.file,
        "best_iteration": model.best_iteration,
    }
    if data.task == "classification":
        splits = {"train": (data.train, data.train_target), "val": (data.val, data.val_target)}
        for split, (rows, truth) in splits.items():
            row |= {f"{split}_{key}": value for key, value in model.score_probabilities(rows, truth).items()}
    if folds:
        row |= {"cv": float(np.mean(folds)), "cv_deviation": float(np.std(folds, ddof=1))}
    return row, saved.importances


def _folds(data: Tabular, count: int | None) -> Iterator[Tabular]:
    """The training rows, split anew for each fold of a cross-validation."""
    from sklearn.model_selection import KFold, StratifiedKFold

    splitter = StratifiedKFold if data.task == "classification" else KFold
    parts = splitter(count, shuffle=True, random_state=0).split(data.train, data.train_target) if count else ()
    for _, held in parts:
        is_held = np.isin(np.arange(len(data.train_target)), held)
        yield replace(
            data,
            train=data.train[~is_held],
            train_target=data.train_target[~is_held],
            val=data.train[is_held],
            val_target=data.train_target[is_held],
        )


@contextmanager
def _explained(name: str, settings: dict[str, Any]) -> Iterator[None]:
    """Raise errors of a library in one line."""
    try:
        yield
    except (ValueError, TypeError) as error:
        raise UserError(f"{name} cannot be fitted with {settings}: {_reason(error)}") from error
    except Exception as error:  # each library has its own error classes
        if type(error).__module__.split(".")[0] not in ("xgboost", "lightgbm"):
            raise
        raise DataError(f"{name} does not accept the data or its parameters: {_reason(error)}") from error


def _train(
    study: Trees, name: str, settings: dict[str, Any], data: Tabular, advance: Callable[[int], None]
) -> "_Fitted":
    """A model of a library with the interface of scikit-learn, fitted to the training rows; `advance` is told rounds.

    XGBoost refuses numbers of classes with a gap, as of a class without training rows.
    """
    target, classes, options = data.train_target, None, dict[str, Any]()
    if data.task == "classification":
        classes, target = np.unique(target, return_inverse=True)
    if study.class_weights is not None:
        options["sample_weight"] = data.weigh(study.class_weights)
    model: Any
    if name == "xgboost":
        from xgboost import XGBClassifier, XGBRegressor
        from xgboost.callback import TrainingCallback

        class Rounds(TrainingCallback):
            def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
                advance(1)
                return False

        kind = XGBRegressor if classes is None else XGBClassifier
        model = kind(**{"enable_categorical": True, "callbacks": [Rounds()], **settings})
        options["verbose"] = False
    else:
        from lightgbm import LGBMClassifier, LGBMRegressor

        model = (LGBMRegressor if classes is None else LGBMClassifier)(**{"verbosity": -1, **settings})
        options["callbacks"] = [lambda env: advance(1)]
    if settings.get(_names(name)["early_stopping_rounds"]):
        rows, held = data.val, data.val_target
        if classes is not None:
            is_known = np.isin(held, classes)
            rows, held = rows[is_known], np.searchsorted(classes, held[is_known])
        options |= {"eval_set": [(rows, held)]} if name == "xgboost" else {"eval_X": rows, "eval_y": held}
    return _Fitted(model.fit(data.train, target, **options), classes, data.features)


@dataclass(frozen=True)
class _Saved:
    """A fitted model in its library's format, and what the library says of it."""

    file: str
    content: bytes
    rounds: int
    threads: int
    importances: dict[str, float]  # the share of the total gain of all splits, by feature; of those that are used


@dataclass(frozen=True)
class _Fitted:
    """A fitted model with the interface of scikit-learn, whose classes are positions in `classes`."""

    model: Any
    classes: Array | None
    features: list[str]

    @property
    def best_iteration(self) -> int | None:
        """The number of rounds up to the best one; None without early stopping."""
        if hasattr(self.model, "get_booster"):
            found = getattr(self.model, "best_iteration", None)  # counted from 0
            return None if found is None else found + 1
        return self.model.best_iteration_ or None

    def predict(self, rows: Any) -> Array:
        """Predicted values or classes (N,)."""
        predicted = np.asarray(self.model.predict(rows))
        if self.classes is None:
            return predicted
        return np.asarray(self.classes[predicted.argmax(axis=1) if predicted.ndim == 2 else predicted])

    def score_probabilities(self, rows: Any, truth: Array) -> dict[str, float | None]:
        """Log-loss and AUC (of several classes the mean of each against the rest), as scikit-learn defines them.

        None if the objective gives no probabilities, or a class has no rows: neither is then defined.
        """
        from sklearn.metrics import log_loss, roc_auc_score

        assert self.classes is not None
        found: Array = np.asarray(self.model.predict_proba(rows))
        is_distribution = found.shape == (len(truth), len(self.classes)) and np.allclose(found.sum(axis=1), 1)
        if not is_distribution or found.min() < 0 or not np.isin(truth, self.classes).all() or len(self.classes) < 2:
            return {"log_loss": None, "auc": None}
        loss, auc = float(log_loss(truth, found, labels=self.classes)), None
        if len(np.unique(truth)) == len(self.classes):
            scores = found[:, 1] if len(self.classes) == 2 else found
            auc = float(roc_auc_score(truth, scores, multi_class="ovr", labels=self.classes))
        return {"log_loss": loss, "auc": auc}

    def saved(self) -> _Saved:
        """The model up to its best round."""
        if not hasattr(self.model, "get_booster"):
            booster, gains = self.model.booster_, self.model.booster_.feature_importance("gain")
            content, threads = booster.model_to_string().encode(), int(booster.params["num_threads"])
            return _Saved("lightgbm.txt", content, booster.current_iteration(), threads, self._shares(gains))
        booster, gains = self.model.get_booster(), []
        threads = int(json.loads(booster.save_config())["learner"]["generic_param"]["nthread"])
        if self.model.booster != "gblinear":  # which has no splits, and predicts with all of its rounds
            if self.best_iteration and self.best_iteration < booster.num_boosted_rounds():
                booster = booster[: self.best_iteration]
            by_name = booster.get_score(importance_type="total_gain")
            names = booster.feature_names or [f"f{number}" for number in range(len(self.features))]
            gains = [by_name.get(name, 0.0) for name in names]
        return _Saved("xgboost.ubj", bytes(booster.save_raw("ubj")), booster.num_boosted_rounds(), threads,
                      self._shares(gains))  # fmt: skip

    def _shares(self, gains: Iterable[float]) -> dict[str, float]:
        found = {name: float(gain) for name, gain in zip(self.features, gains, strict=False) if gain > 0}
        total = sum(found.values())
        return {name: gain / total for name, gain in found.items()}


def _reason(error: Exception) -> str:
    """The message of a library in one line, without the stack trace that XGBoost adds, and the place in its source."""
    text = " ".join(str(error).partition("Stack trace")[0].split())
    return re.sub(r"^\[[\d:]+\] \S+:\d+: ", "", text)


def accuracy(truth: Array, predicted: Array) -> float:
    """Fraction of correct predictions."""
    return float(np.mean(truth == predicted))


def rmse(truth: Array, predicted: Array) -> float:
    """Root mean squared error, in the unit of the target."""
    return float(np.sqrt(np.mean((truth - predicted) ** 2)))


def find_mistakes(name: str, params: Mapping[str, Any]) -> list[str]:
    """Parameters that a library does not use or that have two names here, and GPUs that it cannot use; in words.

    The libraries ignore them with a warning at most. Their values are checked when the model is fitted.
    """
    names = _names(name)
    mains = [names.get(each, each) for each in params]
    unknown = _unused_by_xgboost(params) if name == "xgboost" else [each for each in params if each not in names]
    mistakes = []
    for each in unknown:
        hint = suggest(each, names, otherwise="see its documentation")
        if each in names:
            hint = "it has no effect with the others"
        mistakes.append(f"{name} does not use the parameter {each!r}: {hint}")
    if twice := [each for each, main in zip(params, mains, strict=True) if mains.count(main) > 1]:
        mistakes.append(f"{name}: {' and '.join(twice)} are one parameter: give it once")
    if name == "xgboost" and gpu_parameter(params):
        import xgboost

        if not xgboost.build_info()["USE_CUDA"]:
            mistakes.append("xgboost: this build (xgboost-cpu) uses no GPU: install the package xgboost in its place")
    return mistakes


def _unused_by_xgboost(params: Mapping[str, Any]) -> list[str]:
    """The parameters that XGBoost does not use, by its own warning in a training on four rows.

    None of them if such a training is not possible.
    """
    import xgboost

    names = {_names("xgboost").get(each, each): each for each in params}
    checked = xgboost.XGBClassifier(**{name: params[each] for name, each in names.items()}).get_xgb_params()
    checked |= {"validate_parameters": True, "verbosity": 1, "device": "cpu"}
    if str(checked.get("objective")).startswith("multi:"):
        checked.setdefault("num_class", 2)
    rows = np.arange(8.0).reshape(4, 2)
    with warnings.catch_warnings(record=True) as caught, suppress(ValueError, TypeError):  # XGBoost's are ValueErrors
        warnings.simplefilter("always")
        xgboost.train(checked, xgboost.DMatrix(rows, [0, 1, 0, 1]), num_boost_round=1)
    found = (re.search(r"Parameters: \{(.*)\} are not used", str(each.message)) for each in caught)
    unused = {name for match in found if match for name in re.findall('"([^"]+)"', match[1])}
    return [each for name, each in names.items() if name in unused]


# Of XGBoost's other interfaces, to that for scikit-learn; as its documentation lists them.
_XGBOOST_ALIASES: Final = {
    "eta": "learning_rate", "min_split_loss": "gamma", "lambda": "reg_lambda", "alpha": "reg_alpha",
    "nthread": "n_jobs", "seed": "random_state",
    **dict.fromkeys(("num_boost_round", "num_round", "num_rounds", "nrounds"), "n_estimators"),
}  # fmt: skip


@cache
def _names(library: str) -> dict[str, str]:
    """All names of a library's parameters, each with the one that its interface for scikit-learn has for it, if any.

    LightGBM's passes all its defaults, which win over another name for the same parameter, as `eta`.
    """
    if library == "xgboost":
        import xgboost

        return {name: name for name in xgboost.XGBModel().get_params()} | _XGBOOST_ALIASES
    import lightgbm
    from lightgbm.basic import _ConfigAliases

    own = lightgbm.LGBMModel().get_params()
    names = {name: name for name in own}
    for main, aliases in _ConfigAliases._get_all_param_aliases().items():
        same = [main, *aliases]
        names |= dict.fromkeys(same, next((each for each in same if each in own), main))
    return names
