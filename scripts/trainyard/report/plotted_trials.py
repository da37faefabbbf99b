"""The trials of a sweep with what ranks them: the values, colors and scale of the metric in all plots."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Colormap, LogNorm, Normalize, to_rgba
from matplotlib.ticker import PercentFormatter

from trainyard.config.trial_status import ENDED, TrialStatus
from trainyard.report import style
from trainyard.report.style import readable_metric
from trainyard.results.ranking import Ranking, describe_best, is_seed

BAR_HEIGHT: Final = 0.7  # inches of a color bar below axes
MAX_TITLE: Final = 180  # characters, above which a title names no key instead of all


@dataclass(frozen=True)
class PlottedTrials:
    """The trials of a sweep, its varied keys, and the metric that ranks the trials."""

    table: pd.DataFrame  # trials.csv; a missing value of a key that is no number is the name `(none)`
    keys: Sequence[str]
    ranking: Ranking
    log: Mapping[str, bool | None] = field(default_factory=dict)  # by key: whether its scale is logarithmic, if known

    @cached_property
    def values(self) -> "pd.Series[float]":
        """The metric of each trial; NaN without one that an axis can show."""
        return style.within_axes(self.table["trial"].map(self.ranking.scores).astype(float))

    @property
    def settings(self) -> list[str]:
        """The varied keys that one chooses: all but seeds."""
        return [key for key in self.keys if not is_seed(key)]

    def main_keys(self, most: int) -> list[str]:
        """The varied keys, or of more than `most`, those with the most values."""
        counts = {key: self.table[key].astype(str).nunique() for key in self.keys}
        kept = sorted(counts, key=lambda key: -counts[key])[:most]
        return [key for key in self.keys if key in kept]

    @property
    def finished(self) -> pd.DataFrame:
        """The finished trials that have the metric."""
        return self.table[(self.table["status"] == TrialStatus.FINISHED) & self.values.notna()]

    @property
    def stopped(self) -> pd.DataFrame:
        """The trials that were stopped early and have the metric."""
        return self.table[(self.table["status"] == TrialStatus.STOPPED) & self.values.notna()]

    @property
    def lost(self) -> pd.DataFrame:
        """The trials that ended without the metric: they failed, diverged or reported nothing."""
        return self.table[self.table["status"].isin(ENDED) & self.values.isna()]

    @property
    def ended(self) -> "PlottedTrials":
        """The trials without those that have not run."""
        return replace(self, table=self.table[self.table["status"].isin(ENDED)])

    @cached_property
    def best(self) -> "pd.Series[Any] | None":
        """The row of the best trial: with seeds, of the best one of the configuration with the best mean."""
        best = self.ranking.best_trial
        rows = self.table[self.table["trial"] == best.trial] if best else self.table.head(0)
        return rows.iloc[0] if len(rows) else None

    @property
    def is_minimized(self) -> bool:
        """Whether a smaller metric is better."""
        return self.ranking.mode == "min"

    @property
    def is_percent(self) -> bool:
        """Whether the metric is shown in percent."""
        return style.are_fractions(self.ranking.metric, self.values)

    @property
    def is_log(self) -> bool:
        """Whether the scale of the metric is logarithmic."""
        return not self.is_percent and self.values.notna().any() and style.is_log_scale(self.values.dropna())

    @cached_property
    def limits(self) -> tuple[float, float]:
        """The range of the metric that is shown: from the best value to the worst one that is no outlier."""
        values = self.values.dropna()
        low, high = style.fences(values, is_log=self.is_log)
        return (float(values.min()), high) if self.is_minimized else (low, float(values.max()))

    @property
    def outlier_count(self) -> int:
        """The trials whose metric is worse than `limits`."""
        low, high = self.limits
        return int(((self.values < low) | (self.values > high)).sum())

    @property
    def label(self) -> str:
        """The metric on an axis."""
        return readable_metric(self.ranking.metric)

    @property
    def direction(self) -> str:
        """The metric, and which values are better."""
        return f"{self.label} ({'lower' if self.is_minimized else 'higher'} is better)"

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
        start = f"{what}{' over seeds; its best trial' * has_seeds}: {value}"
        names = style.short_names(self.keys)
        title = f"{start} at " + ", ".join(f"{names[key]} = {self._best_value(key)}" for key in self.keys)
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

    # ---- colors: the better, the darker

    @property
    def colors(self) -> Colormap:
        """The color map of the metric."""
        return style.SEQUENCE if self.is_minimized else style.SEQUENCE.reversed()

    @property
    def norm(self) -> Normalize:
        """The normalization of the metric for its color map."""
        return (LogNorm if self.is_log else Normalize)(*self.limits, clip=True)

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
