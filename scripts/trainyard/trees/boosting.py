"""A trial that fits gradient-boosted trees to a staged dataset, by XGBoost or LightGBM."""

import ctypes
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from trainyard.config.trees import Trees
from trainyard.data.staged import TARGET, Staged, StagedImageMeta, TableMeta
from trainyard.programs.function import Context
from trainyard.utils.csv_files import write_table
from trainyard.utils.errors import UserError
from trainyard.utils.files import atomic_write
from trainyard.utils.text import suggest

Array = np.ndarray[Any, np.dtype[Any]]
_REFUSED: Final = re.compile(r'[][{}<":,]')  # in the name of a feature, by XGBoost or LightGBM
# What a library says of a parameter that it does not use as given. It goes on with another model.
_COMPLAINT: Final = re.compile(r"are not used|Unknown parameter|will be ignored|Device is changed from GPU to CPU")

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

    def folds(self, count: int) -> Iterator["Tabular"]:
        """The training rows, split anew for each fold of a cross-validation."""
        from sklearn.model_selection import KFold, StratifiedKFold

        splitter = StratifiedKFold if self.classes else KFold
        for _, held in splitter(count, shuffle=True, random_state=0).split(self.train, self.train_target):
            is_held = np.isin(np.arange(len(self.train_target)), held)
            yield replace(
                self,
                train=self.train[~is_held],
                train_target=self.train_target[~is_held],
                val=self.train[is_held],
                val_target=self.train_target[is_held],
            )


def tabular(staged: Staged) -> Tabular:
    """A staged dataset as a table; images are flattened to height x width x channels columns."""
    if isinstance(staged.meta, StagedImageMeta):
        train = staged.split("train")
        val = staged.split("val")
        rows = [split.images.reshape(len(split.images), -1) for split in (train, val)]
        height, width, channels = staged.meta.shape
        places = np.ndindex((height, width, channels)[: 2 if channels == 1 else 3])
        names = [f"pixel {','.join(map(str, place))}" for place in places]
        labels = np.array(train.labels), np.array(val.labels)
        return Tabular(rows[0], labels[0], rows[1], labels[1], names, staged.meta.classes)
    import pandas as pd

    columns = staged.require(TableMeta).columns
    frames = [pd.read_parquet(staged.folder / f"{name}.parquet") for name in ("train", "val")]
    targets = [frame.pop(TARGET).to_numpy() for frame in frames]
    for frame in frames:
        frame.columns = _accepted_names(map(str, frame.columns))
    names = [str(name) for name in columns]
    return Tabular(frames[0], targets[0], frames[1], targets[1], names, staged.meta.classes)


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


def fit_trial(spec: Trees, context: Context) -> dict[str, float]:
    """Fit trees as a trial of a sweep, and leave the model and `importances.csv` in the trial's folder.

    The metrics of the validation rows are reported after each round; those of the whole fit are returned.

    Raises:
        UserError: the library does not accept the data or the parameters.
    """
    assert context.dataset is not None
    data = tabular(Staged(context.dataset))

    def check_time() -> None:
        if context.time_is_up:
            context.interrupt()

    rounds = 0

    def report(predicted: Array) -> None:
        nonlocal rounds
        rounds += 1
        check_time()
        context.report(**{f"val_{name}": value for name, value in score(data, data.val_target, predicted).items()})

    with _errors_of(spec):
        fitted = _fit(spec, data, context.cpus, after_round=report)
        metrics: dict[str, float] = {"rounds": rounds, "threads": context.cpus}
        if fitted.best_round:  # the rows of a fold must not choose the rounds by which they are predicted
            metrics["best_round"] = fitted.best_round
            spec = spec.model_copy(update={"rounds": fitted.best_round, "early_stopping": None})
        for split, rows, truth in (("train", data.train, data.train_target), ("val", data.val, data.val_target)):
            predicted = fitted.predict(rows)
            scores = score(data, truth, predicted) | score_ranks(data, truth, predicted)
            metrics |= {f"{split}_{name}": value for name, value in scores.items()}
        if spec.folds:
            metrics |= _cross_validate(spec, data, context.cpus, check_time=check_time)
    with atomic_write(context.trial_dir / fitted.file, "wb") as file:
        file.write(fitted.content)
    _write_importances(data.features, fitted.gains, context.trial_dir / "importances.csv")
    return metrics


def _cross_validate(spec: Trees, data: Tabular, threads: int, *, check_time: Callable[[], None]) -> dict[str, float]:
    """Mean and standard deviation of the accuracy, or of the RMSE, over the folds; empty if it is not defined."""
    assert spec.folds is not None
    metric = "accuracy" if data.classes else "rmse"
    values = list[float]()
    for fold in data.folds(spec.folds):
        fitted = _fit(spec, fold, threads, after_round=lambda predicted: check_time())
        scores = score(fold, fold.val_target, fitted.predict(fold.val))
        if metric in scores:
            values.append(scores[metric])
    if not values:
        return {}
    return {f"cv_{metric}": float(np.mean(values)), "cv_deviation": float(np.std(values, ddof=1))}


def _write_importances(features: list[str], gains: Iterable[float], path: Path) -> None:
    """Write the share of each feature in the total gain of all splits, the largest first; of those that are used."""
    import pandas as pd

    table = pd.DataFrame({"feature": features, "importance": list(gains)})
    table = table[table["importance"] > 0].sort_values("importance", ascending=False, kind="stable")
    table["importance"] /= table["importance"].sum()
    write_table(table, path)


# ---- the libraries


@dataclass(frozen=True)
class Fitted:
    """A fitted model up to its best round, in its library's format."""

    file: str
    content: bytes
    best_round: int | None  # with early stopping: the last one that is kept
    gains: list[float]  # of all splits, by feature
    predict: Callable[[Any], Array]  # of rows: values, or probabilities as in `score`


# By library: for a number, two classes, and several.
_OBJECTIVES: Final = {
    "xgboost": ("reg:squarederror", "binary:logistic", "multi:softprob"),
    "lightgbm": ("regression", "binary", "multiclass"),
}


@dataclass(frozen=True)
class _Fit:
    """A model to fit."""

    spec: Trees
    data: Tabular
    parameters: dict[str, Any]  # of the kind of its target
    threads: int
    weights: Array | None  # of the training rows
    # Is called after each round with what the model predicts of the validation rows; has no metric for the library.
    evaluate: Callable[[Array, Any], list[Any]]


def _fit(spec: Trees, data: Tabular, threads: int, *, after_round: Callable[[Array], None]) -> Fitted:
    """Fit a model; `after_round` gets what it predicts of the validation rows."""
    weights = None if spec.class_weights is None else data.weigh(spec.class_weights)
    number, binary, several = _OBJECTIVES[spec.library]
    parameters: dict[str, Any] = {"objective": binary if data.classes else number}
    if len(data.classes) > 2:
        parameters = {"objective": several, "num_class": len(data.classes)}

    def evaluate(predicted: Array, _: Any) -> list[Any]:
        _check_complaints()
        after_round(predicted)
        return []

    fit = _fit_xgboost if spec.library == "xgboost" else _fit_lightgbm
    return fit(_Fit(spec, data, parameters, threads, weights, evaluate))


def _fit_xgboost(job: _Fit) -> Fitted:
    import xgboost

    spec = job.spec
    data = job.data
    fixed = {"nthread": job.threads, "seed": spec.seed, "validate_parameters": True, "verbosity": 1}

    def matrix(rows: Any, **options: Any) -> Any:
        return xgboost.DMatrix(rows, enable_categorical=True, nthread=job.threads, **options)

    _listen(xgboost.core._LIB.XGBRegisterLogCallback)
    booster = xgboost.train(
        {**job.parameters, **spec.parameters, **fixed},
        matrix(data.train, label=data.train_target, weight=job.weights),
        spec.rounds,
        evals=[(matrix(data.val, label=data.val_target), "val")],
        custom_metric=job.evaluate,
        early_stopping_rounds=spec.early_stopping,
        verbose_eval=False,
    )
    best = None
    gains = dict[str, Any]()
    if spec.early_stopping:
        best = booster.best_iteration + 1  # it counts from 0
        booster = booster[:best]
    if spec.parameters.get("booster") != "gblinear":  # which has no splits
        gains = booster.get_score(importance_type="total_gain")
    names = booster.feature_names or [f"f{number}" for number in range(len(data.features))]
    return Fitted(
        file="xgboost.ubj",
        content=bytes(booster.save_raw("ubj")),
        best_round=best,
        gains=[gains.get(name, 0.0) for name in names],
        predict=lambda rows: booster.predict(matrix(rows)),
    )


def _fit_lightgbm(job: _Fit) -> Fitted:
    import lightgbm

    spec = job.spec
    data = job.data
    # By default, it measures which of two ways to sum is faster, and their sums differ.
    repeatable = {"deterministic": True, "force_col_wise": "force_row_wise" not in spec.parameters}
    fixed = {"num_threads": job.threads, "seed": spec.seed, "verbosity": 0}

    _listen(lightgbm.basic._LIB.LGBM_RegisterLogCallback)  # type: ignore[attr-defined]
    train = lightgbm.Dataset(data.train, data.train_target, weight=job.weights)
    callbacks = list[Any]()
    if spec.early_stopping:
        callbacks.append(lightgbm.early_stopping(spec.early_stopping, first_metric_only=True, verbose=False))
    booster = lightgbm.train(
        {**job.parameters, **repeatable, **spec.parameters, **fixed},
        train,
        spec.rounds,
        valid_sets=[lightgbm.Dataset(data.val, data.val_target, reference=train)],
        feval=job.evaluate,
        callbacks=callbacks,
    )
    return Fitted(
        file="lightgbm.txt",
        content=booster.model_to_string().encode(),
        best_round=booster.best_iteration if spec.early_stopping else None,
        gains=list(booster.feature_importance("gain")),
        predict=lambda rows: np.asarray(booster.predict(rows)),
    )


_heard: Final[list[str]] = []  # what a library has logged since the last check
_hear: Final = ctypes.CFUNCTYPE(None, ctypes.c_char_p)(lambda message: _heard.append(message.decode(errors="replace")))


def _listen(register: Callable[[Any], int]) -> None:
    """Hear what a library logs from now on in this thread. Each trial has a thread, and each thread a callback."""
    _heard.clear()
    register(_hear)


def _check_complaints() -> None:
    """Raise a ValueError if a library uses a parameter otherwise than given, of which it only warns."""
    for message in _heard:
        if _COMPLAINT.search(message):
            raise ValueError(message)
    _heard.clear()


@contextmanager
def _errors_of(spec: Trees) -> Iterator[None]:
    """Raise the errors of a library in one line."""
    try:
        yield
    except Exception as error:
        if not isinstance(error, (ValueError, TypeError)) and type(error).__module__.split(".")[0] != "lightgbm":
            raise
        reason = " ".join(str(error).partition("Stack trace")[0].split())
        reason = re.sub(r"^\[[\d:]+\] (WARNING: )?\S+:\d+: |^\[LightGBM\] \[Warning\] ", "", reason)  # its source
        raise UserError(f"{spec.library} cannot be fitted with {spec.parameters}: {reason.rstrip('.')}") from error


# ---- scores


def score(data: Tabular, truth: Array, predicted: Array) -> dict[str, float]:
    """Accuracy and log-loss, or the RMSE (in the unit of the target), of what a model predicts, as far as defined.

    It predicts values, probabilities (N, classes), those of the second of two classes (N), or with some objectives
    numbers of classes (N) or margins.
    """
    if not data.classes:
        return {"rmse": float(np.sqrt(np.mean((truth - predicted) ** 2)))}
    if predicted.ndim == 1 and len(data.classes) > 2:
        return {"accuracy": float(np.mean(predicted == truth))}
    by_class = _by_class(predicted)
    if by_class is None:
        return {}
    scores = {"accuracy": float(np.mean(by_class.argmax(axis=1) == truth))}
    if _are_probabilities(by_class):
        likelihoods = by_class[np.arange(len(truth)), truth].clip(np.finfo(by_class.dtype).eps)
        scores["log_loss"] = float(-np.mean(np.log(likelihoods)))
    return scores


def score_ranks(data: Tabular, truth: Array, predicted: Array) -> dict[str, float]:
    """The AUC, of several classes the mean of each against the rest; empty if a class has no rows."""
    from sklearn.metrics import roc_auc_score

    by_class = _by_class(predicted) if data.classes else None
    if by_class is None or not _are_probabilities(by_class) or len(np.unique(truth)) != by_class.shape[1]:
        return {}
    return {
        "auc": float(roc_auc_score(truth, by_class[:, 1] if by_class.shape[1] == 2 else by_class, multi_class="ovr"))
    }


def _by_class(predicted: Array) -> Array | None:
    """A column for each class; None for margins of two classes."""
    if predicted.ndim == 2:
        return predicted
    return np.stack([1 - predicted, predicted], axis=1) if 0 <= predicted.min() <= predicted.max() <= 1 else None


def _are_probabilities(found: Array) -> bool:
    return bool(np.allclose(found.sum(axis=1), 1) and found.min() >= 0)
