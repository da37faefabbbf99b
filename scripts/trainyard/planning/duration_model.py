"""The predicted durations of trials, with their uncertainty, from the measured durations of others.

The logarithm of a duration is modeled as linear in terms of the varied keys, so that factors multiply:

    log seconds = a + sum of b * term(key) + effect of a text's value + noise

Terms of a number x are log x with b near 1 or near 2 (power laws) and log(x + offset) (a part that does not grow with
it); the relative cost (`cost:` or FLOPs) is one more number. Each choice of terms is a model: a Bayesian linear
regression with a normal-inverse-gamma prior, whose posterior and probability have closed forms (Murphy, Machine
Learning: A Probabilistic Perspective, 7.6.3). A prediction averages over the models by their posterior probabilities
(Hoeting et al., Bayesian Model Averaging: A Tutorial, 1999), so open questions widen the interval. The values of a text
are random effects: the effect of an observed value is shrunk towards the mean, the effect of a new value is drawn. Any
trial may be a straggler, which takes longer for reasons that no key explains.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from trainyard.config.trials import Trial

Matrix = NDArray[np.float64]
Groups = NDArray[np.intp]  # the group of each trial
Flags = NDArray[np.bool_]

# The priors:
NOISE: Final = 0.03  # standard deviation of a log duration
NOISE_TRIALS: Final = 3.0  # weight of this prior, in trials
POWERS: Final = ((1.0, 0.35), (2.0, 0.45))  # of a number: (exponent, share of the key's prior probability)
OFFSETS: Final = ((0.1, 0.1), (0.4, 0.07), (1.6, 0.03))  # (in geometric means of the number, share)
POWER_ERROR: Final = 0.1  # standard deviation of an exponent
COST_ERROR: Final = 0.05  # the same, of a relative cost
TEXT_ERROR: Final = 1.0  # standard deviation of the log durations of a text's values, if there are few
EFFECTS: Final = (4.0, 12.0)  # the same in units of the noise, if there are many
FEW: Final = 8
ODDS_COST: Final = 60.0  # that durations depend on the relative cost
ODDS_KEY: Final = 1.5  # that they depend on a key
ODDS_TEXT: Final = 6.0  # the same, if it is a text
ODDS_KEY_BESIDE_COST: Final = 0.05  # the same, if there is a relative cost
# Standard deviation of the log durations in a sweep; a key with a larger one is less probable,
USUAL_SPREAD: Final = 1.6
MAX_PENALTY: Final = 5.0  # by at most this in log odds, which evidence can overcome
ODDS_STRAGGLERS: Final = 0.75  # that a sweep has stragglers at all
STRAGGLERS: Final = (2.0, 40.0)  # if so: prior counts of stragglers and other trials (a Beta prior)
STRAGGLER: Final = (math.log(1.1), math.log(3.5))  # range of what a straggler adds to its log duration

LEVEL_ERROR: Final = 1e3  # standard deviation of the constant, which is unknown beforehand
LOG_RANGE: Final = math.log(1e5)  # limit of predictions below the shortest and above the longest measured duration
MIN_USUAL: Final = 0.5  # fraction of the evidence that is never taken for stragglers
MIN_EXCESS: Final = math.log(1.35)  # of a straggler, over its predicted log duration
MAX_SKEW: Final = 0.5  # limit of log(mean / median) of a duration
IRRELEVANT: Final = ("seed", "random_seed", "random_state")  # keys that never affect durations
MAX_NUMBER: Final = 1e100  # larger numbers are treated as text
MAX_TERMS: Final = 3  # of a model
BEAM: Final = 4  # models that the beam search extends by a term
MIN_PROBABILITY: Final = 1e-3  # of a model, relative to the most probable one
DRAWS: Final = 200  # samples of the durations
DRAWN: Final = 200_000  # limit of all sampled durations, to keep dry runs fast
MIN_DRAWS: Final = 20


@dataclass(frozen=True)
class Prediction:
    """Seconds of some trials: expected values, and equally probable samples."""

    seconds: Matrix  # (trials,)
    draws: Matrix  # (draws, trials)

    def lower_bounds(self) -> Matrix:
        """Seconds that each trial exceeds with 95 % probability (5 % quantiles)."""
        return np.quantile(self.draws, 0.05, axis=0)

    def longer_than(self, least: Sequence[float], most: Sequence[float]) -> "Prediction":
        """The prediction if each trial takes longer than `least` seconds; where this predicts less, up to `most`."""
        between = np.linspace(least, most, len(self.draws))
        return Prediction(
            np.where(self.seconds > least, self.seconds, between.mean(axis=0)),
            np.where(self.draws > least, self.draws, between),
        )


def predict(
    trials: Sequence[Trial], evidence: Sequence[tuple[Trial, float]], *, relative: Sequence[float] | None = None
) -> Prediction | None:
    """The predicted durations of trials, from the measured seconds of others; None without evidence.

    `relative` holds the relative costs of the trials, then of the evidence.
    """
    if not evidence:
        return None
    together = [*trials, *(trial for trial, _ in evidence)]
    logs = np.log(np.maximum([seconds for _, seconds in evidence], 1e-6))
    models = _models(list(_terms(together, relative)), logs, len(trials))
    weights = np.exp([model.log_probability for model in models] - max(model.log_probability for model in models))
    weights = np.where(weights < MIN_PROBABILITY, 0.0, weights) / weights[weights >= MIN_PROBABILITY].sum()
    draws = int(np.clip(DRAWN // max(len(trials), 1), MIN_DRAWS, DRAWS))
    shares = np.diff(np.round(np.cumsum(weights) * draws).astype(int), prepend=0)
    generator = np.random.default_rng(0)
    expected = sum(weight * model.expected() for model, weight in zip(models, weights, strict=True) if weight)
    drawn = [model.drawn(share, generator) for model, share in zip(models, shares, strict=True) if share]
    ends = logs.min() - LOG_RANGE, logs.max() + LOG_RANGE
    return Prediction(np.exp(np.clip(expected, *ends)), np.exp(np.clip(np.vstack(drawn), *ends)))


# ---- terms


@dataclass(frozen=True)
class _Term:
    """Columns with a coefficient each, or groups whose effects are random."""

    key: str
    log_odds: float  # that durations depend on it
    columns: Matrix  # (trials, coefficients)
    mean: float = 0.0  # of the coefficients, before there is evidence
    error: float = TEXT_ERROR  # their standard deviation
    groups: Groups | None = None
    effect: float = 0.0  # standard deviation among groups, in units of the noise


def _terms(trials: Sequence[Trial], relative: Sequence[float] | None) -> Iterator[_Term]:
    odds = ODDS_KEY
    if relative is not None and all(map(_is_number, relative)) and 0 < min(relative) < max(relative):
        yield from _number_terms("the relative cost", relative, ODDS_COST, COST_ERROR, ((1.0, 0.8),), usual=math.inf)
        odds = ODDS_KEY_BESIDE_COST
    for key in dict.fromkeys(key for trial in trials for key in trial.values):
        values: list[Any] = [trial.values.get(key) for trial in trials]
        if key.split(".")[-1] in IRRELEVANT:
            continue
        if not all(map(_is_number, values)):
            yield from _text_terms(key, list(map(str, values)), odds * ODDS_TEXT / ODDS_KEY)
        elif min(values) < max(values):
            yield from _number_terms(key, values, odds, POWER_ERROR, POWERS)
    whole = [str(trial.values) for trial in trials]
    if len(set(whole)) < len(whole):  # a configuration occurs twice
        yield from _text_terms("the whole configuration", whole, odds)


def _is_number(value: Any) -> bool:
    """Whether a value is a number, not a Boolean, and small enough that products do not overflow."""
    return (
        isinstance(value, (int, float))
        and not isinstance(value, bool)
        and (value == 0 or 1 / MAX_NUMBER < abs(value) < MAX_NUMBER)
    )


def _number_terms(
    key: str,
    values: Sequence[float],
    odds: float,
    error: float,
    powers: Sequence[tuple[float, float]],
    *,
    usual: float = USUAL_SPREAD,
) -> Iterator[_Term]:
    """Power laws, and proportions with an offset. Numbers that are not all positive are shifted to start at 0.

    A term that spreads the log durations by more than `usual` is less probable.
    """
    numbers = np.array(values, np.float64)
    columns, spread = [], 0.0
    if numbers.min() > 0:
        numbers = numbers / np.exp(np.log(numbers).mean())
        columns = [(np.log(numbers), power, share) for power, share in powers]
        spread = float(np.log(numbers).std()) / usual
    else:
        numbers = (numbers - numbers.min()) / (numbers - numbers.min()).mean()
    columns += [(np.log(numbers + offset), 1.0, share) for offset, share in OFFSETS]
    for column, power, share in columns:
        unusual = min((power * spread) ** 4 / 2, MAX_PENALTY)
        yield _Term(key, math.log(odds * share) - unusual, (column - column.mean())[:, None], power, error)


def _text_terms(key: str, texts: list[str], odds: float) -> Iterator[_Term]:
    """A coefficient for each of few values, or the random effects of many."""
    values = {text: number for number, text in enumerate(dict.fromkeys(texts))}  # an array would pad all texts
    groups = np.array([values[text] for text in texts], np.intp)
    if 1 < len(values) <= FEW:
        yield _Term(key, math.log(odds), (groups[:, None] == np.arange(len(values))).astype(np.float64))
    elif len(values) > FEW:
        none = np.empty((len(texts), 0))
        for effect in EFFECTS:
            yield _Term(key, math.log(odds / len(EFFECTS)), none, groups=groups, effect=effect)


# ---- models


def _models(terms: Sequence[_Term], logs: Matrix, wanted: int) -> list["_Model"]:
    """A beam search over models: without terms, with each one, then with one more than the most probable ones."""
    beam: list[tuple[int, ...]] = [()]
    found: dict[tuple[int, ...], _Model] = {(): _fitted((), logs, wanted)}
    for _ in range(MAX_TERMS):
        longer = [
            tuple(sorted((*some, place)))
            for some in beam
            for place, term in enumerate(terms)
            if _can_combine(term, [terms[each] for each in some])
        ]
        new = {some: _fitted([terms[place] for place in some], logs, wanted) for some in dict.fromkeys(longer)}
        found |= new
        beam = sorted(new, key=lambda some: -new[some].log_probability)[:BEAM]
    return list(found.values())


def _fitted(terms: Sequence[_Term], logs: Matrix, wanted: int) -> "_Model":
    """The model of some terms, without the trials that are probably stragglers."""
    most = max(1, len(logs) // 20)  # at a time
    best = _Model(terms, logs, wanted, np.ones(len(logs), bool))
    while best.usual.sum() - most >= max(1, MIN_USUAL * len(logs)) and best.left_out.max() > MIN_EXCESS:
        longest = np.argsort(-best.left_out)[:most]
        usual = best.usual.copy()
        usual[longest[best.left_out[longest] > MIN_EXCESS]] = False
        other = _Model(terms, logs, wanted, usual)
        if other.log_probability <= best.log_probability:
            break
        best = other
    return best


def _can_combine(term: _Term, others: Sequence[_Term]) -> bool:
    """Whether a model may combine a term with others: at most one per key, and one with groups."""
    grouped = term.groups is not None and any(other.groups is not None for other in others)
    return not grouped and term.key not in {other.key for other in others}


class _Model:
    """The posterior of a regression on some terms, from the trials that are not stragglers.

    All variances are in units of the variance of the noise, which is also unknown.
    """

    def __init__(self, terms: Sequence[_Term], logs: Matrix, wanted: int, usual: Flags) -> None:
        group = next((term for term in terms if term.groups is not None), None)
        trials = wanted + len(logs)
        columns = np.hstack([np.ones((trials, 1)), *(term.columns for term in terms)])
        groups = np.zeros(trials, np.intp) if group is None or group.groups is None else group.groups
        self.usual, self._columns, self._groups = usual, columns[:wanted], groups[:wanted]
        self._effect = group.effect if group else 0.0
        known = np.flatnonzero(usual) + wanted
        self._regress(terms, columns[known], logs[usual], groups[known], int(groups.max()) + 1)

    def _regress(self, terms: Sequence[_Term], columns: Matrix, logs: Matrix, groups: Groups, many: int) -> None:
        """Compute the posterior (Murphy, 7.69 to 7.73), and the model's log probability up to a constant."""
        widths = [term.columns.shape[1] for term in terms]
        means = np.repeat([logs.mean(), *(term.mean for term in terms)], [1, *widths])
        precision = (NOISE / np.repeat([LEVEL_ERROR, *(term.error for term in terms)], [1, *widths])) ** 2
        between = self._learn_groups(columns, logs, groups, many)
        columns = columns - (self._within[:, None] * self._group_columns)[groups]
        logs = logs - (self._within * self._group_logs)[groups]
        root = np.linalg.cholesky(columns.T @ columns + np.diag(precision))
        self._inverse: Matrix = np.linalg.inv(root)
        self._coefficients: Matrix = self._inverse.T @ (self._inverse @ (columns.T @ logs + precision * means))
        errors = logs - columns @ self._coefficients
        squares = float((errors**2).sum() + (precision * (self._coefficients - means) ** 2).sum())
        self._shape = (NOISE_TRIALS + len(logs) - 1) / 2
        self._rate = (NOISE_TRIALS * NOISE**2 + squares) / 2
        self.log_probability = (
            sum(term.log_odds for term in terms)
            + (np.log(precision).sum() - between) / 2
            - np.log(np.diag(root)).sum()
            + math.lgamma(self._shape)
            - self._shape * math.log(self._rate)
            - (len(logs) - 1) / 2 * math.log(2 * math.pi)
            + self._learn_stragglers()
        )
        leverage = ((columns @ self._inverse.T) ** 2).sum(axis=1)
        self.left_out = np.full(len(self.usual), -np.inf)  # the error of each trial, predicted from the others
        self.left_out[self.usual] = errors / np.maximum(1 - leverage, 1e-6)

    def _learn_groups(self, columns: Matrix, logs: Matrix, groups: Groups, many: int) -> float:
        """Compute the means of groups and how to remove them; return the log of the determinant.

        The covariance of a group of n trials is 1 + effect**2 (all ones), and its inverse root has a closed form.
        """
        sizes = np.bincount(groups, minlength=many)
        counts = np.maximum(sizes, 1)
        self._group_logs: Matrix = np.bincount(groups, logs, many) / counts
        sums = [np.bincount(groups, column, many) for column in columns.T]
        self._group_columns: Matrix = np.stack(sums, axis=1) / counts[:, None]
        extra = 1 + sizes * self._effect**2
        self._within: Matrix = 1 - 1 / np.sqrt(extra)
        self._shrink: Matrix = 1 - 1 / extra
        self._effect_error: Matrix = self._effect / np.sqrt(extra)
        return float(np.log(extra).sum())

    def _learn_stragglers(self) -> float:
        """Compute the probability of stragglers; return the log probability of those observed."""
        usual, seen = int(self.usual.sum()), int((~self.usual).sum())
        self._stragglers = STRAGGLERS[0] + seen, STRAGGLERS[1] + usual
        odds = math.log(ODDS_STRAGGLERS) + _log_beta(*self._stragglers) - _log_beta(*STRAGGLERS)
        if seen:
            self._straggle = 1.0
            return odds - seen * math.log(STRAGGLER[1] - STRAGGLER[0])
        self._straggle = 1 / (1 + math.exp(-odds))
        return math.log1p(math.exp(odds))

    def expected(self) -> Matrix:
        """The log of the mean duration of each requested trial, if it is not a straggler."""
        variance: Matrix = self._rate / self._shape * (1 + self._effect_error**2)[self._groups]
        typical: Matrix = self._typical(self._coefficients[None], np.zeros((1, 1)))[0]
        return typical + np.minimum(variance / 2, MAX_SKEW)

    def drawn(self, draws: int, generator: np.random.Generator) -> Matrix:
        """Sampled log durations of the requested trials: (draws, trials)."""
        noise = np.sqrt(self._rate / generator.gamma(self._shape, size=(draws, 1)))
        errors = generator.standard_normal((draws, len(self._inverse))) @ self._inverse
        effects = generator.standard_normal((draws, len(self._shrink)))
        logs = self._typical(self._coefficients + noise * errors, noise * effects)
        share = generator.beta(*self._stragglers, size=(draws, 1)) * (generator.random((draws, 1)) < self._straggle)
        longer = (generator.random(logs.shape) < share) * generator.uniform(*STRAGGLER, size=logs.shape)
        return logs + longer + noise * generator.standard_normal(logs.shape)

    def _typical(self, coefficients: Matrix, effects: Matrix) -> Matrix:
        """Log durations without noise, for coefficients (draws, columns) and errors of effects (draws, groups)."""
        shrunk = self._shrink * (self._group_logs - coefficients @ self._group_columns.T)
        return coefficients @ self._columns.T + (shrunk + self._effect_error * effects)[:, self._groups]


def _log_beta(first: float, second: float) -> float:
    return math.lgamma(first) + math.lgamma(second) - math.lgamma(first + second)
