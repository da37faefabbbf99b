"""The predicted durations of trials, with their uncertainty, from the measured durations of others.

The logarithm of a duration is modeled as a sum over the varied keys, so that factors multiply:

    log seconds = level + slope * log(offset + x**power) of a number x + effect of a text's value + noise

The relative cost (`cost:` or FLOPs) is one more number, and the GPU model one more text: the ratio of two models is
learnt from trials on both, and is uncertain without. Which keys have an effect, with which powers and offsets, how
much texts differ, and the noise are hypotheses: many are drawn at random and weighted by the likelihood of the evidence
under each, which is a ridge regression with normal priors of fixed widths. A sample of the durations is one of the
posterior of a hypothesis, by Matheron's rule (Wilson et al., Efficiently Sampling Functions from Gaussian Process
Posteriors, 2020). Any trial may be a straggler, which takes longer for reasons that no key explains.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from trainyard.config.trials import Trial
from trainyard.planning.order import centered_logs, key_columns

Array = NDArray[Any]

# The prior of a term: probability, power, and mean and standard deviation of its coefficients. The first: no effect
LEVEL: Final = np.array([(1.0, 1.0, 0.0, 3.0)])
COST: Final = np.array([(1.0, 1.0, 1.0, 0.08)])
NUMBER: Final = np.array([(0.3, 1.0, 0.0, 0.0), (0.2, 1.0, 1.0, 0.1), (0.2, 2.0, 1.0, 0.05), (0.3, 1.0, 0.0, 0.3)])
TEXT: Final = np.array([(0.1, 1.0, 0.0, 0.0), (0.1, 1.0, 0.0, 0.1), (0.3, 1.0, 0.0, 0.4), (0.5, 1.0, 0.0, 0.85)])
GPU_MODEL: Final = np.array([(0.2, 1.0, 0.0, 0.1), (0.8, 1.0, 0.0, 0.5)])  # two differ by a factor of 2, typically
BESIDE_COST: Final = np.array([(0.9, 1.0, 0.0, 0.0), (0.1, 1.0, 0.0, 0.3)])  # of any key, if there is a relative cost
OFFSETS: Final = (0.4, 0.1, -3.5, 0.0)  # where the mean is 1: probability, and with a cost; range of the log
NOISE: Final = (0.015, 0.05, 0.6)  # least, median, and standard deviation of its logarithm
STRAGGLERS: Final = (0.5, 3.0)  # prior counts of stragglers and other trials (a Beta prior)
EXCESS: Final = (0.75, 0.4)  # mean and standard deviation of what a straggler adds

LOG_RANGE: Final = np.log(1e5)  # limit of predictions below the shortest and above the longest measured duration
MAX_EVIDENCE: Final = 32  # trials, evenly spaced: more would take long and change little
HYPOTHESES: Final = (200, 600)  # fewer with more evidence
DRAWS: Final = (20, 200, 200_000)  # least and most samples of the durations, and limit of all, to keep dry runs fast


@dataclass(frozen=True)
class Prediction:
    """Seconds of some trials: expected values, and equally probable samples."""

    seconds: Array  # (trials,)
    draws: Array  # (draws, trials)

    @classmethod
    def of_any(cls, equally_probable: Sequence["Prediction"]) -> "Prediction":
        """The prediction if one of these holds, with as many draws of each."""
        means = np.mean([each.seconds for each in equally_probable], axis=0)
        return cls(means, np.concatenate([each.draws for each in equally_probable]))

    def lower_bounds(self) -> Array:
        """Seconds that each trial exceeds with 95 % probability (5 % quantiles)."""
        return np.quantile(self.draws, 0.05, axis=0)

    def upper_bounds(self) -> Array:
        """Seconds that each trial exceeds with 5 % probability (95 % quantiles)."""
        return np.quantile(self.draws, 0.95, axis=0)

    def longer_than(self, ran: Sequence[float], assumed: tuple[float, float]) -> "Prediction":
        """The prediction if each trial takes longer than the seconds that it ran until it was interrupted.

        `assumed` are the shortest and the longest duration of such a trial, relative to these seconds.
        """
        least = np.outer(np.linspace(*assumed, len(self.draws)), ran)
        return Prediction(np.maximum(self.seconds, least.mean(axis=0)), np.maximum(self.draws, least))


def predict(
    trials: Sequence[Trial],
    evidence: Sequence[tuple[Trial, float]],
    *,
    relative: Sequence[float] | None = None,
    gpu_models: Sequence[str] = (),
) -> Prediction | None:
    """The predicted durations of trials, from the measured seconds of others; None without evidence.

    `relative` holds the relative costs of the trials, then of the evidence; `gpu_models` are those on which they run.
    """
    if not evidence:
        return None
    # Shapes: t terms, h hypotheses, d draws, g groups (the values of a text), i and j trials of the evidence, n all
    wanted = len(trials)
    generator = np.random.default_rng(0)
    compared = wanted + np.unique(np.linspace(0, len(evidence) - 1, MAX_EVIDENCE).round().astype(int))
    logs = np.log([max(evidence[place - wanted][1], 1e-6) for place in compared])
    middle = np.median(logs)
    logs -= middle
    count = int(np.clip(HYPOTHESES[1] * (12 / len(logs)) ** 2, *HYPOTHESES))
    x, groups, prior = _draw_terms([*trials, *(trial for trial, _ in evidence)], relative, gpu_models, count, generator)
    power, mean, error, offset = prior
    noise = np.maximum(NOISE[0], NOISE[1] * np.exp(NOISE[2] * generator.standard_normal((count, 1))))

    columns = np.logaddexp(offset, power * x[..., compared]) - np.logaddexp(offset, 0.0)  # (t, h, i)
    same = (groups[:, compared, None] == groups[:, None, compared]).astype(np.float64)
    covariance = np.einsum("thi,thj,tij->hij", error * columns, error * columns, same)
    covariance += noise[:, :, None] ** 2 * np.eye(len(logs))
    residual = logs - (mean * columns).sum(axis=0)  # (h, i)
    log_odds = np.log(STRAGGLERS[0] / STRAGGLERS[1])
    late, inverse = _find_stragglers(covariance, residual, log_odds)
    residual -= EXCESS[0] * late
    fit = np.linalg.slogdet(inverse)[1] - np.einsum("hi,hij,hj->h", residual, inverse, residual)
    fit = fit / 2 + log_odds * late.sum(axis=1)
    weights = np.cumsum(np.exp(fit - fit.max()))
    draws = int(np.clip(DRAWS[2] // max(wanted, 1), *DRAWS[:2]))
    chosen = np.searchsorted(weights, (np.arange(draws) + 0.5) / draws * weights[-1])

    (power, mean, error, offset), of_evidence = prior[:, :, chosen], columns[:, chosen]
    noise = noise[chosen]
    late = late[chosen]
    coefficients = mean + error * generator.standard_normal((len(x), draws, groups.max() + 1))  # (t, d, g)
    drawn = (np.take_along_axis(coefficients, groups[:, None, compared], axis=2) * of_evidence).sum(axis=0)  # (d, i)
    drawn += noise * generator.standard_normal(late.shape) + late * generator.normal(*EXCESS, late.shape)
    pull = np.einsum("dij,dj->di", inverse[chosen], logs - drawn)
    of_group = (groups[:, compared, None] == np.arange(coefficients.shape[2])).astype(np.float64)
    coefficients += error**2 * ((pull * of_evidence) @ of_group)
    columns = np.logaddexp(offset, power * x[..., :wanted]) - np.logaddexp(offset, 0.0)  # (t, d, n)
    typical = (np.take_along_axis(coefficients, groups[:, None, :wanted], axis=2) * columns).sum(axis=0)
    # Draws of values that have not been seen would order by chance trials for which the evidence is the same.
    average = np.where(of_group.any(axis=1)[:, None], coefficients, mean)
    effects = np.take_along_axis(average, groups[:, None, :wanted], axis=2) * columns  # (t, d, n)
    expected = effects.sum(axis=0)
    # Of several keys that may lengthen a trial, one probably does; each by itself probably not.
    if len(evidence) == 1 and len(effects) > 2:  # the level, and several keys
        measured = np.take_along_axis(average, groups[:, None, compared], axis=2) * of_evidence
        expected = np.median(effects - measured, axis=1).sum(axis=0, keepdims=True)
    limits = middle + logs.min() - LOG_RANGE, middle + logs.max() + LOG_RANGE
    typical, expected = ((middle + each).clip(*limits) for each in (typical, expected))
    rate = generator.beta(STRAGGLERS[0] + late.sum(axis=1), STRAGGLERS[1] + (~late).sum(axis=1))[:, None]
    longer = (generator.random(typical.shape) < rate) * np.maximum(generator.normal(*EXCESS, typical.shape), 0.0)
    sampled = typical + longer + noise * generator.standard_normal(typical.shape)
    return Prediction(np.exp(np.median(expected, axis=0) + np.median(noise) ** 2 / 2), np.exp(sampled))


def _find_stragglers(covariance: Array, residual: Array, log_odds: float) -> tuple[Array, Array]:
    """The probable stragglers of each hypothesis, predicted from the other trials, and the inverse covariance."""
    late, inverse, (mean, error) = np.zeros(residual.shape, bool), np.linalg.inv(covariance), EXCESS
    for _ in range(2):  # the first ones may hide others
        usual = 1 / np.einsum("hii->hi", inverse)  # the variance, predicted from the others
        left_out = np.einsum("hij,hj->hi", inverse, residual - mean * late) * usual
        gain = left_out**2 / usual - (left_out - mean) ** 2 / (usual + error**2) - np.log1p(error**2 / usual)
        late = late | ((gain / 2 + log_odds > 0) & (left_out > 0))
        inverse = np.linalg.inv(covariance + error**2 * late[:, :, None] * np.eye(late.shape[1]))
    return late, inverse


def _draw_terms(
    trials: Sequence[Trial],
    relative: Sequence[float] | None,
    gpu_models: Sequence[str],
    count: int,
    generator: np.random.Generator,
) -> tuple[Array, Array, Array]:
    """The terms, (t, 1, n) and (t, n), and a number of hypotheses: power, mean, error, log offset, (4, t, h, 1)."""
    none = np.zeros(len(trials), np.intp)
    costs = centered_logs(relative) if relative is not None and 0 < min(relative) < max(relative) else None
    terms = [(none + 1.0, none, LEVEL), *([] if costs is None else [(np.array(costs), none, COST)])]
    for logs, texts in key_columns(trials):
        kind = TEXT if any(texts) else NUMBER
        terms.append((np.array(logs), np.array(texts, np.intp), kind if costs is None else BESIDE_COST))
    if len(models := list(dict.fromkeys(gpu_models))) > 1:
        terms.append((none + 1.0, np.array([models.index(each) for each in gpu_models], np.intp), GPU_MODEL))
    drawn = [prior[generator.choice(len(prior), count, p=prior[:, 0]), 1:] for _, _, prior in terms]
    power, mean, error = np.stack(drawn).transpose(2, 0, 1)[..., None]
    offset = generator.uniform(*OFFSETS[2:], mean.shape)
    offset[generator.random(mean.shape) > OFFSETS[costs is not None] * mean] = -np.inf
    x, groups = (np.stack([term[place] for term in terms]) for place in (0, 1))
    return x[:, None], groups, np.stack([power, mean, error, offset])
