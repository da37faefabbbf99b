"""Parallel coordinates: all varied keys and the metric of a sweep in one plot."""

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import LogNorm, Normalize
from matplotlib.lines import Line2D
from matplotlib.ticker import Locator, LogLocator, MaxNLocator
from numpy.typing import NDArray

from trainyard.config.trial_status import ENDED
from trainyard.report import style
from trainyard.report.plotted_trials import PlottedTrials
from trainyard.report.style import FAILED, MANY, STOPPED, is_numeric
from trainyard.utils.text import count_of

MAX_KEYS: Final = 8
MAX_TICKS: Final = 16
MAX_NUMBERS: Final = 8  # of an axis, each of which has a tick
MIN_JITTERED: Final = 50  # trials, above which lines that would coincide are moved a little
JITTER: Final = 0.008
MISSING: Final = -0.12  # the height of missing values, below the axes
NONE: Final = "none"
BEST_WIDTH: Final = 2.2


@dataclass(frozen=True)
class Coordinate:
    """One axis of parallel coordinates, from 0 at its bottom to 1 at its top."""

    heights: NDArray[np.float64]  # of each trial
    ticks: Sequence[tuple[float, str]]  # height and text


def plot_parallel(axes: Axes, ranked: PlottedTrials) -> None:
    """A line per trial through its values of the varied keys to its metric: the better, the darker, the best on top.

    The axis of the metric has the best value at the top. Trials that were stopped early are gray, because their metric
    is from fewer epochs. Trials without the metric end below its axis.
    """
    ended = ranked.table[ranked.table["status"].isin(ENDED)]
    keys = ranked.main_keys(MAX_KEYS)
    ranked = PlottedTrials(ended, ranked.keys, ranked.ranking, ranked.log)
    if len(ranked.keys) < 2 or ranked.values.isna().all():
        fewer = "varies one key: see the plot of the metric against it" if ranked.keys else "varies no key"
        style.write_in_center(axes, f"this sweep {fewer}" if len(ranked.keys) < 2 else ranked.describe_best())
        return
    columns = [key_coordinate(ranked.table[key], log=ranked.log.get(key)) for key in keys]
    columns.append(metric_coordinate(ranked))
    heights = np.stack([column.heights for column in columns], axis=-1)
    _draw_trials(axes, heights, ranked)
    for place, column in enumerate(columns):
        axes.plot([place, place], [0, 1], color="#444444", linewidth=1, zorder=2)
        for height, text in column.ticks:
            axes.plot([place, place + 0.02], [height, height], color="#444444", linewidth=1, zorder=4)
            box = {"facecolor": "white", "alpha": 0.75, "edgecolor": "none", "pad": 0.6}
            axes.text(place + 0.035, height, text, fontsize=8, va="center", zorder=4, bbox=box)
    if ranked.values.nunique() > 1:  # the color map along the axis of the metric
        ends = np.linspace(0, 1, 65)
        pieces = [[(len(keys), low), (len(keys), high)] for low, high in pairwise(ends)]
        shades = ranked.colors(1 - ends[:-1] if ranked.is_minimized else ends[:-1])
        axes.add_collection(LineCollection(pieces, colors=shades, linewidths=7, capstyle="butt", zorder=2))
    axes.set_xlim(-0.1, len(keys) + 0.45)
    axes.set_ylim(min(-0.04, float(heights.min()) - 0.06), 1.04)
    names = style.short_names(keys)
    labels = [_wrap(names[key], len(columns)) for key in keys]
    axes.set_xticks(range(len(columns)), [*labels, _wrap(ranked.direction, len(columns))])
    axes.tick_params(axis="x", length=0)
    axes.set_yticks([])
    axes.grid(visible=False)
    axes.spines[["left", "bottom"]].set_visible(False)
    title = ranked.describe_best()
    if hidden := len(ranked.keys) - len(keys):
        title += f"; not shown: {count_of(hidden, 'key')} with fewer values"
    style.set_title(axes, title)


def key_coordinate(values: pd.Series, *, log: bool | None = None) -> Coordinate:
    """The axis of a varied key: a scale of numbers, or evenly spaced names in the order of the trials.

    `log`: whether the scale is logarithmic; None: if the values span two decades.
    """
    if not is_numeric(values):
        return _name_coordinate(values.astype(str))
    if values.nunique() < 2:
        return _name_coordinate(values.map(style.format_value))
    return _number_coordinate(values.astype(float), style.norm_of(values, log))


def _name_coordinate(names: pd.Series) -> Coordinate:
    places, unique = pd.factorize(names)
    spaced = np.linspace(0, 1, len(unique)) if len(unique) > 1 else np.array([0.5])
    step = -(-len(unique) // MAX_TICKS)
    shown = style.distinct_names(unique, 16)
    ticks = [(spaced[place], shown[unique[place]]) for place in range(0, len(unique), step)]
    return Coordinate(spaced[places], ticks)


def _number_coordinate(
    values: "pd.Series[float]",
    norm: Normalize,
    *,
    is_turned: bool = False,
    write: Callable[[float], str] = style.format_value,
) -> Coordinate:
    """The axis of numbers; `is_turned`: with the lowest at the top."""

    def heights_of(numbers: Any) -> NDArray[np.float64]:
        upwards = np.ma.filled(norm(numbers), np.nan)
        return 1 - upwards if is_turned else upwards

    marks = np.unique(values.dropna())
    low = marks[0]
    high = marks[-1]
    if len(marks) > MAX_NUMBERS:
        locator: Locator = MaxNLocator(6)
        if isinstance(norm, LogNorm):
            locator = LogLocator(subs=(1, 2, 5) if high < 100 * low else (1,))
        marks = np.array([mark for mark in locator.tick_values(low, high) if low <= mark <= high])
    ticks: list[tuple[float, str]] = []
    for height, mark in zip(heights_of(marks).tolist(), marks, strict=True):
        if not ticks or abs(height - ticks[-1][0]) >= 1 / (1.5 * MAX_TICKS):  # texts do not overlap
            ticks.append((height, write(mark)))
    if values.isna().any():
        ticks.append((MISSING, NONE))
    return Coordinate(np.nan_to_num(heights_of(values.to_numpy(float)), nan=MISSING), ticks)


def metric_coordinate(ranked: PlottedTrials) -> Coordinate:
    """The axis of the metric, with the best value at the top; what is far worse is at its bottom."""
    clipped = ranked.values.clip(*ranked.limits)
    if clipped.nunique() < 2:
        text = ranked.format_metric(float(clipped.dropna().iloc[0]))
        return Coordinate(np.where(clipped.isna(), MISSING, 0.5), [(0.5, text)])

    def write(number: float) -> str:
        return f"{100 * number:.4g}%" if ranked.is_percent else style.format_value(number)

    column = _number_coordinate(clipped, ranked.norm, is_turned=ranked.is_minimized, write=write)
    if not ranked.outlier_count:
        return column
    worst = write(ranked.limits[1 if ranked.is_minimized else 0])
    ticks = [tick for tick in column.ticks if tick[0] == MISSING or tick[0] > 0.06]
    return Coordinate(column.heights, [(0.0, f"{worst} or worse"), *ticks])


def _draw_trials(axes: Axes, heights: NDArray[np.float64], ranked: PlottedTrials) -> None:
    """Draw a line per trial; heights have the shape (trials, axes)."""
    worth = (-ranked.values if ranked.is_minimized else ranked.values).to_numpy()
    index = ranked.table.index
    groups = {
        "failed or diverged": (ranked.values.isna(), FAILED),
        "stopped early": (index.isin(ranked.stopped.index), STOPPED),
        "": (index.isin(ranked.finished.index), ranked.metric_colors),
    }
    alpha = max(0.05, min(0.9, (60 / len(heights)) ** 0.5))
    handles = []
    if len(heights) > MIN_JITTERED:
        heights = heights + np.random.default_rng(0).uniform(-JITTER, JITTER, heights.shape)
    for name, (chosen, color) in groups.items():
        rows = np.flatnonzero(chosen)
        if not len(rows):
            continue
        rows = rows[np.argsort(worth[rows], kind="stable")]
        if name:
            handles.append(Line2D([], [], color=color, label=name))
        lines = [np.column_stack([range(len(line)), line]) for line in heights[rows]]
        style.add_lines(axes, lines, colors=color if name else color[rows], alpha=alpha, many=len(heights) > MANY)
    if ranked.best is not None:
        row = heights[index.get_loc(ranked.best.name)]
        handles.append(axes.plot(row, color="black", linewidth=BEST_WIDTH, marker="o", zorder=3, label="best")[0])
    style.legend_below(axes, handles)


def _wrap(text: str, columns: int) -> str:
    return textwrap.fill(text, max(8, 90 // columns), break_long_words=False)
