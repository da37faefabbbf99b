"""The plots of a sweep's metrics: against each varied key, over epochs, and several objectives against each other."""

import itertools
from typing import Any, Final

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba_array
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, PercentFormatter
from numpy.typing import NDArray

from trainyard.report import style
from trainyard.report.plotted_trials import MAX_FACETS, PlottedTrials
from trainyard.report.style import COLORS, MANY, STOPPED, is_numeric, readable_metric, readable_name
from trainyard.results.ranking import Ranking, describe_ranking
from trainyard.utils.text import count_of

SCATTER: Final = 0.12  # by which points of the same name are moved, as a share of the distance of two names
MAX_MEDIANS: Final = 40  # values of a key, above which their medians are not shown


def facet_grid(count: int) -> tuple[int, int]:
    """Rows and columns for a number of panels."""
    columns = 2 if count == 4 else min(count, 3)
    return -(-count // columns), columns


def plot_metric(*panels: Axes, ranked: PlottedTrials, joined: bool = False) -> None:
    """The metric against each varied key: a point per finished trial, a hollow one if it was stopped early.

    The best trial has a ring. Where three trials share each value of a key, dashes are their medians, which a line
    joins if the key explains most of the differences; with several seeds, each configuration has an interval instead.
    With `joined`, a line joins the trials in the order of the key.
    """
    keys = ranked.facet_keys()
    for axes in panels[len(keys) :]:
        axes.remove()
    if ranked.values.isna().all():
        style.write_in_center(panels[0], ranked.describe_best())
        return
    names = style.short_names(ranked.keys)
    for number, (axes, key) in enumerate(zip(panels, keys, strict=False)):
        _plot_points(axes, ranked, key)
        if ranked.ranking.has_seeds and ranked.ranking.is_setting(key):
            _plot_spread(axes, ranked, key)
        else:
            _plot_medians(axes, ranked.finished[key], ranked.values, ranked.limits)
        if joined and is_numeric(ranked.finished[key]) and ranked.finished[key].is_unique:
            ordered = ranked.finished.sort_values(key)
            y = ranked.values[ordered.index]
            axes.plot(ordered[key], y, "-", color=COLORS[0], linewidth=0.8, alpha=0.5, rasterized=len(ordered) > MANY)
        values = ranked.table[key]
        letters = style.LETTERS_PER_INCH * axes.get_position().width * style.figure_of(axes).get_figwidth()
        style.set_key_axis(axes.xaxis, values, log=ranked.log.get(key), space=letters)
        if not is_numeric(values):
            axes.set_xlim(-0.5, values.astype(str).nunique() - 0.5)
        axes.set_xlabel(names.get(key, key))
        ranked.set_metric_axis(axes.yaxis)
        if ranked.outlier_count:  # values that are far worse than the others are left out
            _limit(axes, *ranked.limits)
        if number % facet_grid(len(keys))[1] == 0:
            axes.set_ylabel(ranked.value_label)
    style.set_title(panels[0], ranked.describe_best() + _describe_hidden(ranked, keys))
    handles: dict[str, Any] = {}
    for axes in panels[: len(keys)]:
        artists, labels = axes.get_legend_handles_labels()
        handles |= zip(labels, artists, strict=True)
    style.legend_below(panels[0], handles.values())


def _describe_hidden(ranked: PlottedTrials, keys: list[str]) -> str:
    """What the panels leave out, as the end of a title."""
    hidden = []
    if ranked.outlier_count:
        hidden.append(f"{count_of(ranked.outlier_count, 'trial')} far worse")
    if partly := [style.readable_name(key) for key in keys if ranked.table[key].isna().any()]:
        hidden.append(f"trials without {' or '.join(partly)}")
    if (fewer := len(ranked.keys) - len(keys)) > 0:
        hidden.append(f"{count_of(fewer, 'key')} with fewer values")
    return f"; not shown: {' and '.join(hidden)}" if hidden else ""


def _plot_points(axes: Axes, ranked: PlottedTrials, key: str) -> None:
    finished = ranked.finished
    stopped = ranked.stopped
    as_image = len(finished) + len(stopped) > MANY
    size = 2 if as_image else 5
    alpha = max(0.3, min(0.8, (60 / (1 + len(finished))) ** 0.5))
    shape: dict[str, Any] = {"markersize": size, "rasterized": as_image, "linestyle": "none", "marker": "o"}
    x = style.to_numbers(ranked.table[key])
    y = ranked.values
    if not is_numeric(ranked.table[key]):
        x += np.random.default_rng(0).uniform(-SCATTER, SCATTER, len(x)) * (len(x) > 2 * x.nunique())
    if len(stopped):
        hollow = {"alpha": 0.75 * alpha, "color": STOPPED, "fillstyle": "none"}
        axes.plot(x[stopped.index], y[stopped.index], label="stopped early", **shape, **hollow)
    if ranked.best is not None:
        best = [ranked.best.name]
        axes.plot(x[finished.index], y[finished.index], label="finished", alpha=alpha, color=COLORS[0], **shape)
        axes.plot(x[best], y[best], "o", markersize=10, fillstyle="none", color="black", label="best")


def _plot_spread(axes: Axes, ranked: PlottedTrials, key: str) -> None:
    """Draw the mean of each configuration, plus and minus the standard deviation over its seeds."""
    (low, high), ranking = ranked.limits, ranked.ranking
    x = style.to_numbers(ranked.table[key]).set_axis(ranked.table["trial"])
    rows = list[tuple[float, float, float]]()
    for configuration in ranking.counting:
        best = configuration.best_trial(ranking.mode)
        mean = configuration.mean
        if best and mean is not None and low <= mean <= high:
            rows.append((x[best.trial], mean, configuration.deviation or 0.0))
    places, means, deviations = np.array(rows, dtype=float).reshape(-1, 3).T
    shape: dict[str, Any] = {"linestyle": "none", "marker": "_", "markersize": 10, "color": "#333333"}
    axes.errorbar(
        places, means, deviations, label=f"mean ± standard deviation over {ranking.over}", elinewidth=1, **shape
    )


def _plot_medians(axes: Axes, values: pd.Series, metric: "pd.Series[float]", limits: tuple[float, float]) -> None:
    """Draw the median of the metric at each value of a key, if the values have three trials each on average."""
    x = style.to_numbers(values)
    count = x.nunique()
    if not 1 < count <= min(MAX_MEDIANS, len(x) / 3):
        return
    medians = metric[x.index].groupby(x).median()
    medians = medians[medians.between(*limits)]
    # The share of the variance that lies between the values of the key, corrected for their number.
    clipped = metric[x.index].clip(*limits)
    within = clipped - clipped.groupby(x).transform("mean")
    unexplained = (within**2).sum() / max(1, len(x) - count)
    explains_most = unexplained < 0.5 * clipped.var()  # otherwise another key or chance does
    line = "-" if is_numeric(values) and explains_most else "none"
    shape: dict[str, Any] = {"marker": "_", "markersize": 14, "markeredgewidth": 2, "color": "#333333"}
    axes.plot(medians.index, medians, linestyle=line, linewidth=0.8, label="median at each value", **shape)


def _limit(axes: Axes, low: float, high: float) -> None:
    """Show the values from `low` to `high` on the y axis, and a margin."""
    if axes.get_yscale() == "log":
        axes.set_ylim(low / (high / low) ** 0.05, high * (high / low) ** 0.05)
    else:
        axes.set_ylim(low - 0.05 * (high - low), high + 0.05 * (high - low))


def plot_epochs(axes: Axes, epochs: pd.DataFrame, ranked: PlottedTrials, curve: str) -> None:
    """A metric over epochs: a line per trial; the best trial's is black.

    The color of the others stands for the value of the key, or for the metric if there are several keys or many names.
    """
    epochs = epochs[style.within_axes(epochs[curve].astype(float)).notna()] if curve in epochs else epochs.head(0)
    if epochs.empty or epochs["trial"].is_unique:
        style.write_in_center(axes, "no curves: no trial has reported a metric of several epochs")
        return
    trials = epochs["trial"].unique()
    if ranked.colored_key:
        ranked.add_key_colorbar(axes)
        _name_colors(axes, ranked.table[ranked.colored_key])
    else:
        ranked.add_colorbar(axes)
    _draw_lines(axes, epochs, curve, to_rgba_array([ranked.trial_colors[trial] for trial in trials]))
    if ranked.best is not None and len(trials) > 1:
        rows = epochs[epochs["trial"] == ranked.best["trial"]]
        axes.plot(rows["epoch"], rows[curve], color="black", marker="o", markersize=3, zorder=3, label="best trial")
        axes.legend(loc="best" if len(trials) <= MANY else "upper right")
    if curve.endswith("loss") and (epochs[curve] > 0).all():
        style.set_log_scale(axes.yaxis, epochs[curve])
    elif style.are_fractions(curve, epochs[curve]):
        axes.yaxis.set_major_formatter(PercentFormatter(1))
    else:
        low, high = style.fences(epochs[curve], is_log=False)
        if high > low:
            _limit(axes, low, high)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.set_xlabel("epoch")
    axes.set_ylabel(readable_metric(curve))


def front_pairs(ranking: Ranking) -> list[tuple[str, str]]:
    """The pairs of objectives that get a panel of `plot_front`."""
    return list(itertools.combinations(ranking.objectives, 2))[:MAX_FACETS]


def plot_front(*panels: Axes, ranking: Ranking) -> None:
    """The objectives of each configuration against each other, with their Pareto front; all as means over seeds.

    Some on it have their place, as in the answer. With two objectives, a line is the border of what is worse.
    """
    pairs = front_pairs(ranking)
    front = set(ranking.front)
    for axes in panels[len(pairs) :]:
        axes.remove()
    if not front:
        style.write_in_center(panels[0], "no trial has finished with all objectives and within the constraints")
        return
    others = [each for each in ranking.best(None) if each not in front]
    groups = {"not within the constraints": ranking.infeasible, "worse": others, "Pareto front": ranking.front}
    tables = {
        label: pd.DataFrame([each.means for each in configurations]).apply(style.within_axes)
        for label, configurations in groups.items()
        if configurations
    }
    table = pd.concat(tables)
    marks = [{"color": STOPPED, "fillstyle": "none"}, {"color": STOPPED}, {"color": COLORS[0]}]
    shape: dict[str, Any] = {"markersize": 2, "rasterized": True} if len(table) > MANY else {"markersize": 5}
    for axes, (vertical, horizontal) in zip(panels, pairs, strict=False):
        for label, mark in zip(groups, marks, strict=True):
            if label in tables:
                points = tables[label]
                axes.plot(points[horizontal], points[vertical], "o", label=label, **shape, **mark)
        if len(pairs) == 1:
            step = "steps-post" if ranking.objectives[horizontal] == "min" else "steps-pre"
            border = tables["Pareto front"].sort_values(horizontal)
            axes.plot(border[horizontal], border[vertical], color=COLORS[0], linewidth=0.8, drawstyle=step)
        for place, each in ranking.spread_of_front.items():
            style.annotate(axes, str(place), (each.means[horizontal], each.means[vertical]), (5, 4))
        for axis, name in ((axes.xaxis, horizontal), (axes.yaxis, vertical)):
            better = "lower" if ranking.objectives[name] == "min" else "higher"
            axis.set_label_text(f"{readable_metric(name)} ({better} is better)")
            if style.are_fractions(name, table[name]):
                axis.set_major_formatter(PercentFormatter(1))
            elif style.is_log_scale(table[name]):
                style.set_log_scale(axis, table[name])
    style.set_title(panels[0], describe_ranking(ranking)[0].replace("$", r"\$"))
    style.legend_below(panels[0], panels[0].get_legend_handles_labels()[0])


def _name_colors(axes: Axes, values: pd.Series) -> None:
    """Explain the colors of the values of a key that are no numbers, in a legend."""
    if is_numeric(values):
        return
    names = style.distinct_names(values.astype(str), 24).values()
    handles = [
        Line2D([], [], color=color, marker="o", markersize=3, label=name)
        for name, color in zip(names, COLORS, strict=False)
    ]
    title = readable_name(str(values.name))
    style.figure_of(axes).legend(handles=handles, title=title, loc="outside right upper")


def _draw_lines(axes: Axes, epochs: pd.DataFrame, metric: str, colors: NDArray[np.float64]) -> None:
    """A line per trial, all in one artist; the more lines, the paler they are. Colors have the shape (trials, 4).

    Many points are drawn without markers, and many lines in random order, so that the last values of the key do not
    cover the others.
    """
    trial = pd.factorize(epochs["trial"])[0]
    order = np.argsort(trial, kind="stable")
    points = epochs[["epoch", metric]].to_numpy(float)[order]
    lines = np.split(points, 1 + np.flatnonzero(np.diff(trial[order])))
    many = len(lines) > MANY
    alpha = max(0.05, min(1.0, (100 / len(lines)) ** 0.5))
    order = np.random.default_rng(0).permutation(len(lines)) if many else np.arange(len(lines))
    style.add_lines(axes, [lines[index] for index in order], colors=colors[order], alpha=alpha, many=many)
    if len(points) <= MANY:
        axes.scatter(epochs["epoch"], epochs[metric], s=9, c=colors[trial], alpha=alpha, linewidths=1, zorder=2)
    axes.autoscale_view()
