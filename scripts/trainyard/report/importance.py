"""The importance of a sweep's varied keys for its metric, and its plot."""

from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from trainyard.report import style
from trainyard.report.plot_list import trials_for_importance
from trainyard.report.plotted_trials import PlottedTrials
from trainyard.report.style import COLORS
from trainyard.utils.text import count_of

MAX_TRIALS: Final = 800  # a random selection of more trials would take longer and tell the same
MIN_EXPLAINED: Final = 0.1  # of the variance; below it, the forest has learned nothing that its keys could explain
FOLDS: Final = 5
REPEATS: Final = 5


@dataclass(frozen=True)
class Importance:
    """How much of the variance of the metric each varied key explains, by a model that predicts it from the keys."""

    explained: float  # R2 of the model on trials that it was not fitted to
    shares: pd.DataFrame  # index: key; columns mean and error (standard error of the mean over the folds)
    trials: int


def plot_importance(axes: Axes, ranked: PlottedTrials) -> None:
    """A bar per varied key, sorted by importance; or why there is none."""
    if reason := why_unknown(ranked):
        style.write_in_center(axes, f"no importance: {reason}")
        return
    forest = measure_importance(ranked)
    if forest.explained < MIN_EXPLAINED:
        text = f"no importance: from the varied keys, a random forest cannot predict\nthe {ranked.label} of a trial"
        style.write_in_center(axes, f"{text} (R² {forest.explained:.2f})")
        return
    names = style.short_names(list(ranked.settings))
    shares = forest.shares.sort_values("mean", ascending=False)
    style.figure_of(axes).set_figheight(1.5 + 0.35 * len(shares))
    axes.barh(
        range(len(shares)), shares["mean"].clip(lower=0), xerr=shares["error"], height=0.6, color=COLORS[4], capsize=3
    )
    style.label_lanes(axes, [names[key] for key in shares.index])
    axes.set_xlim(left=0)
    axes.xaxis.set_major_formatter(PercentFormatter(1))
    axes.set_xlabel(f"share of the variance of {ranked.label}")
    title = f"{forest.trials} trials, of which a random forest predicts {forest.explained:.0%} of the variance"
    style.set_title(axes, f"importance of the varied keys, from {title}")


def why_unknown(ranked: PlottedTrials) -> str:
    """Why the importance of keys cannot be known from these trials; "" if it can."""
    finished = ranked.finished
    values = ranked.values[ranked.finished.index]
    if len(ranked.settings) < 2:
        return "fewer than two keys are varied, without seeds"
    needed = trials_for_importance(len(ranked.settings))
    if len(finished) < needed:
        return f"{count_of(len(finished), 'trial')} finished, {needed} are needed"
    return f"all trials have the same {ranked.label}" if values.nunique() < 2 else ""


def measure_importance(ranked: PlottedTrials) -> Importance:
    """The importance of each key by permutation (Breiman 2001) of the trials that a random forest was not fitted to.

    Keys that vary only together are one, since nothing tells their effects apart.

    The trials are divided into five folds. A forest is fitted to four of them, and predicts the metric of the fifth,
    also with the values of one key shuffled among its trials. Half of what this adds to the mean squared error is the
    variance that the key explains, alone and together with other keys (its total effect, Jansen 1999). Outliers count
    as the worst value in `ranked.limits`.
    """
    from sklearn.ensemble import RandomForestRegressor
    from sklearn.inspection import permutation_importance
    from sklearn.model_selection import KFold

    rows = ranked.finished
    rows = rows.sample(MAX_TRIALS, random_state=0) if len(rows) > MAX_TRIALS else rows
    columns = [
        rows[keys[0]] if len(keys) == 1 else rows[keys].astype(str).sum(axis=1) for keys in ranked.settings.values()
    ]
    features = np.column_stack(list(map(style.to_numbers, columns)))
    metric = ranked.values[rows.index].clip(*ranked.limits).to_numpy()
    metric = np.log(metric) if ranked.is_log else metric
    errors = np.zeros(len(rows))
    shares = []
    for train, test in KFold(FOLDS, shuffle=True, random_state=0).split(features):
        forest = RandomForestRegressor(random_state=0).fit(features[train], metric[train])
        errors[test] = metric[test] - forest.predict(features[test])
        shuffled = permutation_importance(
            forest, features[test], metric[test], scoring="neg_mean_squared_error", n_repeats=REPEATS, random_state=0
        )
        shares.append(shuffled.importances / (2 * metric.var()))
    folds = np.stack(shares)  # folds, keys, repeats
    error = folds.mean(axis=2).std(axis=0, ddof=1) / FOLDS**0.5
    of_keys = pd.DataFrame({"mean": folds.mean(axis=(0, 2)), "error": error}, list(ranked.settings))
    return Importance(1 - float((errors**2).mean() / metric.var()), of_keys, len(rows))
