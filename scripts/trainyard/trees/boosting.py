"""Gradient-boosted trees on a staged dataset: XGBoost and LightGBM."""

import difflib
import json
import logging
import os
import re
import time
import warnings
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from trainyard.config.config import Trees
from trainyard.config.trials import fit_digest
from trainyard.data.staged import TARGET, DataError, Staged, StagedImageMeta, TableMeta
from trainyard.utils.errors import UserError
from trainyard.utils.files import atomic_write, write_json

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


def tabular(staged: Staged) -> Tabular:
    """A staged dataset as a table; images are flattened to height x width x channels columns."""
    if isinstance(staged.meta, StagedImageMeta):
        train, val = staged.split("train"), staged.split("val")
        rows = [split.images.reshape(len(split.images), -1) for split in (train, val)]
        return Tabular(rows[0], np.array(train.labels), rows[1], np.array(val.labels), "classification")
    import pandas as pd

    task = staged.require(TableMeta).task
    frames = [pd.read_parquet(staged.folder / f"{name}.parquet") for name in ("train", "val")]
    targets = [frame.pop(TARGET).to_numpy() for frame in frames]
    for frame in frames:
        frame.columns = _accepted_names(map(str, frame.columns))
    return Tabular(frames[0], targets[0], frames[1], targets[1], task)


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


def fit(study: Trees, name: str, staged: Staged, folder: Path, *, threads: int) -> dict[str, Any]:
    """Fit one model and save it in its library's format, unless an identical fit exists.

    Returns:
        A row of `trees.csv`. `metric` names the metric of `train` and `val`: accuracy (a fraction) or RMSE.
    """
    params = study.params.get(name, {})  # type: ignore[call-overload]
    identity = fit_digest(study, name, staged.digest)
    receipt = folder / f"{name}.json"
    if receipt.exists() and (known := json.loads(receipt.read_text()))["identity"] == identity:
        log.info("%s: already fitted", name)
        return dict(known["row"])
    row = _fit(name, params, study, tabular(staged), folder, threads)
    write_json(receipt, {"identity": identity, "row": row})
    return row


def _fit(name: str, params: dict[str, Any], study: Trees, data: Tabular, folder: Path, threads: int) -> dict[str, Any]:
    if mistakes := find_mistakes(name, params):
        raise UserError("; ".join(mistakes))
    defaults = {"n_estimators": study.rounds, "n_jobs": threads, "random_state": 0}
    settings = defaults | {_main_name(name, key): value for key, value in params.items()}
    target: Array = data.train_target
    classes: Array | None = None
    if data.task == "classification":  # XGBoost refuses numbers of classes with a gap: of a class without training rows
        classes, target = np.unique(target, return_inverse=True)
    started = time.perf_counter()
    try:
        model = _new_model(name, data.task, settings)
        model.fit(data.train, target)
    except (ValueError, TypeError) as error:
        raise UserError(f"{name} cannot be fitted with {settings}: {_reason(error)}") from error
    except Exception as error:  # each library has its own error classes
        if type(error).__module__.split(".")[0] not in ("xgboost", "lightgbm"):
            raise
        raise DataError(f"{name} does not accept the data or its parameters: {_reason(error)}") from error
    seconds = time.perf_counter() - started
    score = accuracy if data.task == "classification" else rmse
    if name == "xgboost":
        booster, suffix = model.get_booster(), "ubj"
        content, rounds = bytes(booster.save_raw(suffix)), booster.num_boosted_rounds()
        used = int(json.loads(booster.save_config())["learner"]["generic_param"]["nthread"])
    else:
        booster, suffix = model.booster_, "txt"
        content, rounds = booster.model_to_string().encode(), booster.current_iteration()
        used = int(booster.params["num_threads"])
    with atomic_write(folder / f"{name}.{suffix}", "wb") as file:
        file.write(content)
    return {
        "model": name,
        "metric": score.__name__,
        "train": score(data.train_target, _decode(model.predict(data.train), classes)),
        "val": score(data.val_target, _decode(model.predict(data.val), classes)),
        "seconds": seconds,
        "threads": used if used > 0 else threads,  # 0 or less: all available
        "rounds": int(rounds),
        "file": f"{name}.{suffix}",
    }


def _decode(predicted: Any, classes: Array | None) -> Array:
    """Predicted values, or the classes that are predicted by position, int (N,), or by a column for each."""
    if classes is None:
        return np.asarray(predicted)
    positions = predicted.argmax(axis=1) if predicted.ndim == 2 else predicted
    return np.asarray(classes[positions])


def _new_model(name: str, task: str, settings: dict[str, Any]) -> Any:
    """A model of a library with the interface of scikit-learn."""
    if name == "xgboost":
        from xgboost import XGBClassifier, XGBRegressor

        return (XGBClassifier if task == "classification" else XGBRegressor)(**{"enable_categorical": True, **settings})
    from lightgbm import LGBMClassifier, LGBMRegressor

    return (LGBMClassifier if task == "classification" else LGBMRegressor)(**{"verbosity": -1, **settings})


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
    """Parameters that a library does not use, or that Trainyard sets and that have two names here; each in words.

    The libraries ignore them with a warning at most. Their values are checked when the model is fitted.
    """
    unknown, known = (_unknown_to_xgboost if name == "xgboost" else _unknown_to_lightgbm)(params)
    mistakes = []
    for each in unknown:
        close = difflib.get_close_matches(each, known, n=1)
        hint = f"did you mean {close[0]!r}?" if close else "see its documentation"
        if each in known:
            hint = "it has no effect with the others"
        elif each in _ROUNDS:
            hint = "the number of boosting rounds is `rounds`"
        mistakes.append(f"{name} does not use the parameter {each!r}: {hint}")
    mains = [_main_name(name, each) for each in params]
    twice = [each for each in params if mains.count(_main_name(name, each)) > 1]
    return mistakes + [f"{name}: {' and '.join(twice)} are one parameter: give it once"] * bool(twice)


def _unknown_to_xgboost(params: Mapping[str, Any]) -> tuple[list[str], Iterable[str]]:
    """The parameters that XGBoost does not use, by its own warning in a training on four rows, and those it has.

    None of them if such a training is not possible.
    """
    import xgboost

    model = xgboost.XGBClassifier(**params)
    checked = {**model.get_xgb_params(), "validate_parameters": True, "verbosity": 1}
    if str(checked.get("objective")).startswith("multi:"):
        checked.setdefault("num_class", 2)
    known, rows = [*xgboost.XGBModel().get_params(), *_XGBOOST_ALIASES], np.arange(8.0).reshape(4, 2)
    with warnings.catch_warnings(record=True) as caught, suppress(ValueError, TypeError):  # XGBoost's are ValueErrors
        warnings.simplefilter("always")
        xgboost.train(checked, xgboost.DMatrix(rows, [0, 1, 0, 1]), num_boost_round=1)
    found = (re.search(r"Parameters: \{(.*)\} are not used", str(each.message)) for each in caught)
    unused = {name for match in found if match for name in re.findall('"([^"]+)"', match[1])}
    return [name for name in params if name in unused], known


def _unknown_to_lightgbm(params: Mapping[str, Any]) -> tuple[list[str], Iterable[str]]:
    """The parameters that LightGBM does not have, and those it has."""
    import lightgbm

    aliases = _lightgbm_aliases()
    known = {*lightgbm.LGBMModel().get_params(), *aliases, *(each for names in aliases.values() for each in names)}
    return [name for name in params if name not in known], sorted(known)


# The names that Trainyard sets, of which the wrappers for scikit-learn let one name win if there are two.
_XGBOOST_ALIASES: Final = {"nthread": "n_jobs", "seed": "random_state"}
_ROUNDS: Final = ("num_boost_round", "num_round", "num_rounds", "nrounds")  # of XGBoost's other interfaces
_LIGHTGBM_NAMES: Final = {"num_iterations": "n_estimators", "num_threads": "n_jobs", "seed": "random_state"}


def _main_name(name: str, parameter: str) -> str:
    """The name under which Trainyard sets a parameter, for any of its names."""
    if name == "xgboost":
        return _XGBOOST_ALIASES.get(parameter, parameter)
    aliases = _lightgbm_aliases()
    return next((ours for main, ours in _LIGHTGBM_NAMES.items() if parameter in (main, *aliases[main])), parameter)


def _lightgbm_aliases() -> dict[str, list[str]]:
    """All parameters of LightGBM with their aliases, as it lists them."""
    from lightgbm.basic import _ConfigAliases

    return dict(_ConfigAliases._get_all_param_aliases())
