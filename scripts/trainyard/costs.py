"""What trials will take: seconds with their uncertainty, from the journal's evidence; before there is any, proportions.

A duration is taken to be a sum of terms of the varied keys, with an error in proportion to it: a number counts as it
is, any other value by itself, and where there is evidence enough, numbers also by their products (epochs x blocks). Of
several such models, the one is taken that best predicts each duration from all the others (leave-one-out).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

import numpy as np
from numpy.typing import NDArray

from trainyard.trials import Trial

Matrix = NDArray[np.float64]

LEAST_ERROR: Final = 0.02  # of a duration: no two runs of a trial take exactly as long
UNKNOWN_ERROR: Final = 0.25  # where there is no more evidence than a model has terms
DRAWS: Final = 200  # of what the durations may be
DRAWN: Final = 200_000  # durations in all of them, at most: a dry run must not take long
LEAST_DRAWS: Final = 20
LEAST_FREEDOM: Final = 3  # with less, the draws would be anything
REPEATS: Final = 4  # of the fit, in which the expected durations settle
PENALTY: Final = 1.05  # a model with more terms must be better by this


@dataclass(frozen=True)
class Prediction:
    """Seconds of some trials: as expected, and as they may be instead, each draw as likely as another."""

    seconds: Matrix  # (trials,)
    draws: Matrix  # (draws, trials)


def predict(
    trials: Sequence[Trial], evidence: Sequence[tuple[Trial, float]], *, relative: Sequence[float] | None = None
) -> Prediction | None:
    """What trials will take, from the seconds that others took; None without evidence.

    `relative` are costs in proportion, of the trials and then of the evidence: they make a model of their own. No
    prediction is below half the shortest duration seen.
    """
    if not evidence:
        return None
    seconds = np.array([duration for _, duration in evidence])
    together = [*trials, *(trial for trial, _ in evidence)]
    models = [_Model(terms, seconds, len(trials)) for terms in _models(together, relative)]
    usable = [model for model in models if model.is_usable]
    best = usable[0]
    for model in usable[1:]:
        if model.error * PENALTY < best.error:
            best = model
    return best.prediction()


def _models(trials: Sequence[Trial], relative: Sequence[float] | None) -> Iterator[Matrix]:
    """Candidates, the simplest first: a row of terms per trial."""
    one = np.ones((len(trials), 1))
    yield one
    if relative is not None and np.ptp(relative) > 0:
        yield np.column_stack([one, relative])
    numbers, names = _columns(trials)
    for number in numbers:
        yield np.column_stack([one, number])
    if len(numbers) > 1 or names:
        yield np.column_stack([one, *numbers, *names])
    if len(numbers) > 1:
        products = [first * second for first, second in combinations(numbers, 2)]
        yield np.column_stack([one, *numbers, *names, *products])


def _columns(trials: Sequence[Trial]) -> tuple[list[Matrix], list[Matrix]]:
    """The varied keys as columns: numbers, and for each other value but the first, whether a trial has it."""
    numbers, names = [], []
    for key in dict.fromkeys(key for trial in trials for key in trial.values):
        column = [trial.values.get(key) for trial in trials]
        if all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in column):
            numbers.append(np.array(column, np.float64))
        else:
            texts = [str(value) for value in column]
            names += [np.array([text == value for text in texts], np.float64) for value in sorted(set(texts))[1:]]
    varied = [column for column in numbers if np.ptp(column) > 0]
    return varied, names


class _Model:
    """Least squares with errors in proportion to what is expected, found by repeating it (quasi-likelihood)."""

    def __init__(self, terms: Matrix, seconds: Matrix, wanted: int) -> None:
        scale = np.maximum(np.abs(terms).max(axis=0), 1e-12)
        self._wanted, self._known = terms[:wanted] / scale, terms[wanted:] / scale
        self._seconds, self._floor = seconds, seconds.min() / 2
        self._free = len(seconds) - terms.shape[1]  # degrees of freedom
        self.is_usable = self._free >= 0 and np.linalg.matrix_rank(self._known) == terms.shape[1]
        if self.is_usable:
            self._fit()

    def _fit(self) -> None:
        expected = np.full(len(self._seconds), self._seconds.mean())
        for _ in range(REPEATS):
            q, r = np.linalg.qr(self._known / expected[:, None])
            inverse = np.linalg.inv(r)
            weights = inverse @ (q.T @ (self._seconds / expected))
            errors = (self._seconds - self._known @ weights) / expected
            expected = np.maximum(self._known @ weights, self._floor)
        self._weights, self._inverse = weights, inverse
        if self._free == 0:  # every point is met, and nothing is known of the error
            self.error = self._deviation = UNKNOWN_ERROR
            return
        left_out = errors / (1 - np.minimum((q**2).sum(axis=1), 1 - 1e-9))
        self.error = float(np.sqrt(np.mean(left_out**2)))
        self._deviation = max(float(np.sqrt((errors**2).sum() / self._free)), LEAST_ERROR)

    def prediction(self) -> Prediction:
        """Expected seconds, and draws from what terms and single trials may be (Student's t)."""
        count, free = len(self._wanted), max(self._free, LEAST_FREEDOM)
        generator = np.random.default_rng(0)
        draws = int(np.clip(DRAWN // max(count, 1), LEAST_DRAWS, DRAWS))
        scale = self._deviation * np.sqrt(free / generator.chisquare(free, (draws, 1)))
        weights = self._weights + scale * (generator.standard_normal((draws, len(self._weights))) @ self._inverse.T)
        single = 1 + scale * generator.standard_normal((draws, count))
        expected = np.maximum(self._wanted @ self._weights, self._floor)
        return Prediction(expected, np.maximum(weights @ self._wanted.T * single, self._floor))
