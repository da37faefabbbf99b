"""What a trial costs: seconds from the journal's evidence, or a relative cost before there is any."""

import ast
import operator
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np

from trainyard.errors import UserError
from trainyard.trials import Trial, value_at


class CostError(UserError):
    """A cost expression that cannot be worked out."""


def predict_seconds(trials: Sequence[Trial], evidence: Sequence[tuple[Trial, float]]) -> list[float] | None:
    """Expected seconds of each trial, by a least-squares line over the varied numbers of the trials that finished.

    A sweep over depth comes out linear in depth. With too few different trials for a line, all cost the median;
    without evidence the answer is None. No prediction is below half the shortest duration seen.
    """
    if not evidence:
        return None
    seconds = np.array([duration for _, duration in evidence])
    keys = _numeric_keys([trial for trial, _ in evidence] + list(trials))
    known = _features([trial for trial, _ in evidence], keys)
    if len(np.unique(known, axis=0)) <= len(keys) or not keys:
        return [statistics.median(seconds)] * len(trials)
    weights, *_ = np.linalg.lstsq(known, seconds, rcond=None)
    predicted = _features(trials, keys) @ weights
    return [float(value) for value in np.maximum(predicted, seconds.min() / 2)]


def _numeric_keys(trials: Sequence[Trial]) -> list[str]:
    """Keys that are a number in every trial, and not the same in all."""
    keys = dict.fromkeys(key for trial in trials for key in trial.values)
    columns = {key: [trial.values.get(key) for trial in trials] for key in keys}
    return [
        key
        for key, column in columns.items()
        if all(isinstance(value, (int, float)) for value in column) and len(set(column)) > 1
    ]


def _features(trials: Sequence[Trial], keys: list[str]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """A row [1, value of each key] per trial."""
    return np.array([[1.0, *(float(trial.values[key]) for key in keys)] for trial in trials])


_OPERATORS: dict[type[ast.AST], Any] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
    ast.USub: operator.neg,
}


def relative_cost(expression: str, trial: Trial) -> float:
    """The value of a sweep's `cost:` for a trial: arithmetic on numbers and keys, as in `epochs * model_args.blocks`.

    Raises:
        CostError: it is not arithmetic, or a key is not a number.
    """
    try:
        return float(_evaluate(ast.parse(expression, mode="eval").body, trial.spec.model_dump()))
    except (SyntaxError, TypeError, ZeroDivisionError, OverflowError) as error:
        raise CostError(f"cost {expression!r} cannot be worked out: {error}") from None


def _evaluate(node: ast.AST, spec: dict[str, Any]) -> Any:
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        return node.value
    if isinstance(node, (ast.Name, ast.Attribute)):
        key = ast.unparse(node)
        value = value_at(spec, key)
        if not isinstance(value, (int, float)):
            raise TypeError(f"{key} is {value!r}, not a number")
        return value
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_evaluate(node.left, spec), _evaluate(node.right, spec))
    if isinstance(node, ast.UnaryOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_evaluate(node.operand, spec))
    raise TypeError(f"{ast.unparse(node)} is neither a number, a key nor one of + - * / **")
