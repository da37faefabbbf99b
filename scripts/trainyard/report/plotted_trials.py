"""The trials of a sweep with what ranks them: the values, colors and scale of the metric in all plots."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Final

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm, Normalize, to_rgba
from matplotlib.ticker import PercentFormatter

from trainyard.config.sweep import is_seed
from trainyard.config.trial_status import TrialStatus
from trainyard.report import style
from trainyard.report.style import readable_metric
from trainyard.results.ranking import Ranking, describe_best

BAR_HEIGHT: Final = 0.7  # inches of a color bar below axes
MAX_TITLE: Final = 180  # characters, above which a title names no key instead of all


class PlottedTrials:
    """The trials of a sweep, its varied keys, and the metric that ranks the trials.

    In `table`, trials.csv, a missing value of a key that is no number is the name `(none)`. `log` says of each key
    whether its scale is logarithmic, if that is known.
    """

    def __init__(
        self, table: pd.DataFrame, keys: Sequence[str], ranking: Ranking, log: Mapping[str, bool | None] | None = None
    ) -> None:
        self.table, self.keys, self.ranking, self.log = table, keys, ranking, log or {}
        self.settings = [key for key in keys if not is_seed(key)]  # the varied keys that one chooses
        # The metric of each trial; NaN without one that an axis can show.
        self.values: pd.Series[float] = style.within_axes(table["trial"].map(ranking.scores).astype(float))
        known = self.values.dropna()
        self.finished = table[(table["status"] == TrialStatus.FINISHED) & self.values.notna()]
        self.stopped = table[(table["status"] == TrialStatus.STOPPED) & self.values.notna()]  # early
        best = ranking.best_trial  # with seeds, of the configuration with the best mean
        rows = table[table["trial"] == best.trial] if best else table.head(0)
        self.best: pd.Series[Any] | None = rows.iloc[0] if len(rows) else None
        self.label = readable_metric(ranking.metric)
        has_epochs = any(value.epoch is not None for value in ranking.finished.values())
        self.value_label = f"{self.label} (last epoch)" if has_epochs else self.label
        self.is_minimized = ranking.mode == "min"
        self.direction = f"{self.value_label} ({'lower' if self.is_minimized else 'higher'} is better)"
        self.is_percent = style.are_fractions(ranking.metric, known)
        self.is_log = not self.is_percent and len(known) > 0 and style.is_log_scale(known)
        # The range of the metric that is shown: from the best value to the worst one that is no outlier.
        low, high = style.fences(known, is_log=self.is_log)
        self.limits = (float(known.min()), high) if self.is_minimized else (low, float(known.max()))
        self.outlier_count = int((~known.between(*self.limits)).sum())
        # The better, the darker.
        self.colors = style.SEQUENCE if self.is_minimized else style.SEQUENCE.reversed()
        self.norm = (LogNorm if self.is_log else Normalize)(*self.limits, clip=True)

    def main_keys(self, most: int) -> list[str]:
        """The varied keys, or of more than `most`, those with the most values."""
        counts = {key: self.table[key].astype(str).nunique() for key in self.keys}
        kept = sorted(counts, key=lambda key: -counts[key])[:most]
        return [key for key in self.keys if key in kept]

    def format_metric(self, value: float) -> str:
        """A value of the metric as text."""
        return f"{value:.1%}" if self.is_percent else f"{value:.4g}"

    def format_axis(self, axis: Any) -> None:
        """Show the values of the metric on an axis in percent, if they are fractions."""
        if self.is_percent:
            axis.set_major_formatter(PercentFormatter(1))

    def describe_best(self) -> str:
        """The best value and all values of its keys, or, if these are too many, its trial."""
        if self.best is None:
            undecided = "several metrics, and none ranks the trials: set `metric`"
            return undecided if self.ranking.candidates else f"no trial has finished with {self.label}"
        what, has_seeds = describe_best(self.ranking, metric=self.label), self.ranking.has_seeds
        value = self.format_metric(self.values[self.best.name])
        best = self.ranking.best_trial
        when = best.value.when if best and best.value else ""
        start = f"{what}{' over seeds; its best trial' * has_seeds}: {value}{when}"
        names = style.short_names(self.keys)
        settings = ", ".join(f"{names[key]} = {self._best_value(key)}" for key in self.keys)
        title = f"{start}, with {settings}" if when else f"{start} at {settings}"
        return title if self.keys and len(title) <= MAX_TITLE else f"{start} by trial {self.best['trial']}"

    def _best_value(self, key: str) -> str:
        """The value of a key of the best trial; of a long name, what distinguishes it from the others."""
        assert self.best is not None
        value, column = self.best[key], self.table[key]
        if style.is_numeric(column):
            return style.format_value(value)
        return style.distinct_names(column.astype(str), 24)[str(value)]

    @cached_property
    def colored_key(self) -> str | None:
        """The varied key whose values have colors in plots; None if the metric has, since there are too many."""
        if len(self.keys) != 1:
            return None
        values = self.table[self.keys[0]]
        return self.keys[0] if style.is_numeric(values) or values.astype(str).nunique() <= len(style.COLORS) else None

    def colors_of(self, values: "pd.Series[float]") -> Any:
        """The colors of some values of the metric, shape (n, 4); gray without a value."""
        if self.values.nunique() < 2:
            return np.tile(self.colors(0.5), (len(values), 1))
        faces = self.colors(np.asarray(self.norm(values.fillna(self.limits[0]))))
        faces[values.isna()] = to_rgba(style.UNKNOWN)
        return faces

    def add_colorbar(self, axes: Axes, *, below: bool = False) -> None:
        """Add a color bar of the metric beside or `below` axes, unless all trials have the same value."""
        if self.values.nunique() < 2:
            return
        figure = style.figure_of(axes)
        if below:
            figure.set_figheight(figure.get_figheight() + BAR_HEIGHT)
        place: dict[str, Any] = {"location": "bottom", "aspect": 60, "shrink": 0.6} if below else {}
        bar = figure.colorbar(ScalarMappable(self.norm, self.colors), ax=axes, label=self.direction, **place)
        self.format_axis(bar.ax.xaxis if below else bar.ax.yaxis)
