"""Parallel coordinates: all varied keys and the metric of a sweep in one plot."""

import textwrap
from collections.abc import Callable
from functools import partial
from typing import Final

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.axis import YAxis
from matplotlib.colors import to_rgba
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from trainyard.config.trial_status import ENDED
from trainyard.report import style
from trainyard.report.plotted_trials import PlottedTrials
from trainyard.report.style import FAILED, MANY, STOPPED
from trainyard.utils.text import count_of

MAX_KEYS: Final = 8
MAX_TICKS: Final = 16  # of an axis
MIN_JITTERED: Final = 50  # trials, above which lines that would coincide are moved a little
JITTER: Final = 0.008
MISSING: Final = -0.12  # the height of missing values, below the axes
STRIP: Final = 0.025  # half the width of the colors along the axis of the metric
BEST_WIDTH: Final = 2.2


def plot_parallel(axes: Axes, ranked: PlottedTrials) -> None:
    """A line per trial through its values of the varied keys to its metric: the better, the darker, the best on top.

    The axis of the metric has the best value at the top. Trials that were stopped early are gray, because their metric
    is from fewer epochs. Trials without the metric end below its axis.
    """
    ended = ranked.table[ranked.table["status"].isin(ENDED)]
    keys = ranked.main_keys(MAX_KEYS)
    ranked = PlottedTrials(ended, ranked.keys, ranked.ranking, ranked.log)
    if ranked.values.isna().all():
        style.write_in_center(axes, ranked.describe_best())
        return
    heights = []
    for column, key in enumerate(keys):
        values = ranked.table[key]
        set_ticks = partial(style.set_key_axis, values=values, log=ranked.log.get(key), space=MAX_TICKS)
        heights.append(_draw_scale(axes, column, values, set_ticks))
    metric = ranked.values.clip(*ranked.limits)  # what is far worse is at the bottom
    heights.append(_draw_scale(axes, len(keys), metric, ranked.set_metric_axis, is_turned=ranked.is_minimized))
    if metric.nunique() > 1:
        colors = np.linspace(1, 0, 256)[:, np.newaxis]
        sides = (len(keys) - STRIP, len(keys) + STRIP)
        axes.imshow(colors, cmap=style.SEQUENCE, extent=(*sides, 0, 1), origin="lower", aspect="auto")
    _draw_trials(axes, np.stack(heights, axis=-1), ranked)
    axes.set_xlim(-0.1, len(keys) + 0.45)
    axes.set_ylim(min(-0.04, float(np.min(heights)) - 0.06), 1.04)
    names = style.short_names(keys)
    labels = [*(names[key] for key in keys), ranked.direction]
    width = max(8, 90 // len(labels))
    axes.set_xticks(range(len(labels)), [textwrap.fill(label, width, break_long_words=False) for label in labels])
    axes.tick_params(axis="x", length=0)
    axes.set_yticks([])
    axes.grid(visible=False)
    axes.spines[["left", "bottom"]].set_visible(False)
    title = ranked.describe_best()
    if ranked.outlier_count:
        title += f"; at the bottom: {count_of(ranked.outlier_count, 'trial')} far worse"
    if hidden := len(ranked.keys) - len(keys):
        title += f"; not shown: {count_of(hidden, 'key')} with fewer values"
    style.set_title(axes, title)


def _draw_scale(
    axes: Axes, column: int, values: pd.Series, set_ticks: Callable[[YAxis], None], *, is_turned: bool = False
) -> NDArray[np.float64]:
    """Draw the axis of a key or of the metric from 0 to 1; returns the height of each trial.

    `is_turned`: with the lowest value at the top.
    """
    numbers = style.to_numbers(values)
    scale = axes.inset_axes((column, 0, 0.001, 1), transform=axes.transData)
    scale.plot(numbers, linestyle="none")  # sets the limits
    scale.margins(y=0)
    scale.yaxis.set_inverted(is_turned)
    scale.yaxis.tick_right()
    set_ticks(scale.yaxis)
    scale.set_xticks([])
    scale.grid(visible=False)
    scale.patch.set_visible(False)
    scale.tick_params(labelsize=8)
    box = {"facecolor": "white", "alpha": 0.75, "edgecolor": "none", "pad": 0.6}
    for label in scale.get_yticklabels():
        label.set_bbox(box)
    if numbers.isna().any():
        style.annotate(axes, "none", (column, MISSING), (6, 0), va="center", bbox=box)
    points = np.column_stack([np.zeros(len(numbers)), numbers])
    heights: NDArray[np.float64] = (scale.transScale + scale.transLimits).transform(points)[:, 1]
    heights[np.isnan(heights)] = MISSING
    return heights


def _draw_trials(axes: Axes, heights: NDArray[np.float64], ranked: PlottedTrials) -> None:
    """Draw a line per trial; heights have the shape (trials, axes)."""
    index = ranked.table.index
    has_failed = ranked.values.isna().to_numpy()
    has_stopped = index.isin(ranked.stopped.index)
    colors = np.array(ranked.metric_colors)
    handles = []
    for chosen, color, label in ((has_failed, FAILED, "failed or diverged"), (has_stopped, STOPPED, "stopped early")):
        colors[chosen] = to_rgba(color)
        if chosen.any():
            handles.append(Line2D([], [], color=color, label=label))
    count = len(heights)
    if count > MIN_JITTERED:
        heights = heights + np.random.default_rng(0).uniform(-JITTER, JITTER, heights.shape)
    worth = (-ranked.values if ranked.is_minimized else ranked.values).fillna(-np.inf)
    order = np.lexsort([worth, ~(has_failed | has_stopped)])  # the best last, on top
    lines = [np.column_stack([range(len(line)), line]) for line in heights[order]]
    alpha = max(0.05, min(0.9, (60 / count) ** 0.5))
    style.add_lines(axes, lines, colors=colors[order], alpha=alpha, many=count > MANY)
    if ranked.best is not None:
        row = heights[index.get_loc(ranked.best.name)]
        handles.append(axes.plot(row, color="black", linewidth=BEST_WIDTH, marker="o", zorder=3, label="best")[0])
    style.legend_below(axes, handles)
