"""The trials of a sweep with what ranks them: the values, colors and scale of the metric in all plots."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pandas as pd
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm, Normalize
from matplotlib.ticker import PercentFormatter

from trainyard.config.trial_status import TrialStatus
from trainyard.planning.history import History
from trainyard.planning.trial_value import describe_score
from trainyard.report import style
from trainyard.report.style import readable_metric
from trainyard.results.ranking import Ranking, describe_best

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import XAxis, YAxis

BAR_HEIGHT: Final = 0.7  # inches of a color bar below axes
MAX_FACETS: Final = 9
MAX_TITLE: Final = 180  # characters, above which a title names no key instead of all


class PlottedTrials:
    """The trials of a sweep, its varied keys, and the metric that ranks the trials.

    In `table`, trials.csv, a missing value of a key that is no number is the name `(none)`. `log` says of each key
    whether its scale is logarithmic, if that is known. `paired` has the name of keys that vary only together.
    """

    def __init__(
        self,
        table: pd.DataFrame,
        keys: Sequence[str],
        ranking: Ranking,
        log: Mapping[str, bool | None] | None = None,
        paired: Mapping[str, str] | None = None,
    ) -> None:
        self.table = table
        self.keys = keys
        self.ranking = ranking
        self.log = log or {}
        self.settings: dict[str, list[str]] = {}  # the varied keys that one chooses, by name: those that vary together
        for key in keys:
            if ranking.is_setting(key):
                self.settings.setdefault((paired or {}).get(key, key), []).append(key)
        # The metric of each trial; NaN without one that an axis can show.
        self.values: pd.Series[float] = style.within_axes(table["trial"].map(ranking.scores).astype(float))
        reported = self.values.dropna()
        self.finished = table[(table["status"] == TrialStatus.FINISHED) & self.values.notna()]
        self.stopped = table[(table["status"] == TrialStatus.STOPPED) & self.values.notna()]  # early
        best = ranking.best_trial  # with seeds, of the configuration with the best mean
        rows = table[table["trial"] == best.trial] if best else table.head(0)
        self.best: pd.Series[Any] | None = rows.iloc[0] if len(rows) else None
        self.label = readable_metric(ranking.metric)
        has_epochs = any(value.epoch is not None for value in ranking.finished.values())
        self.value_label = f"{self.label} ({describe_score(ranking.score)})" if has_epochs else self.label
        self.is_minimized = ranking.mode == "min"
        better = "lower" if self.is_minimized else "higher"
        self.direction = f"{self.value_label} ({better} is better)"
        self.is_percent = style.are_fractions(ranking.metric, reported)
        self.is_log = not self.is_percent and len(reported) > 0 and style.is_log_scale(reported)
        # The range of the metric that is shown: from the best value to the worst one that is no outlier.
        low, high = style.fences(reported, is_log=self.is_log)
        self.limits = (float(reported.min()), high) if self.is_minimized else (low, float(reported.max()))
        self.outlier_count = int((~reported.between(*self.limits)).sum())
        # The better, the darker.
        self.colors = style.SEQUENCE if self.is_minimized else style.SEQUENCE.reversed()
        self.norm = (LogNorm if self.is_log else Normalize)(*self.limits, clip=True)

    def main_keys(self, most: int) -> list[str]:
        """The varied keys, or of more than `most`, those with the most values."""
        counts = {key: self.table[key].astype(str).nunique() for key in self.keys}
        kept = sorted(counts, key=lambda key: -counts[key])[:most]
        return [key for key in self.keys if key in kept]

    def facet_keys(self) -> list[str]:
        """The keys that get a panel: all, or those with the most values; without any, the trial."""
        if self.values.isna().all():
            return ["trial"]
        return self.main_keys(MAX_FACETS) or ["trial"]

    def format_metric(self, value: float) -> str:
        """A value of the metric as text."""
        return f"{value:.1%}" if self.is_percent else f"{value:.4g}"

    def set_metric_axis(self, axis: "XAxis | YAxis") -> None:
        """Show the metric on an axis: in percent if it is a fraction, logarithmic if it spans decades."""
        if self.is_percent:
            axis.set_major_formatter(PercentFormatter(1))
        elif self.is_log:
            style.set_log_scale(axis, self.values.clip(*self.limits))

    def describe_best(self) -> str:
        """The best value and all values of its keys, or, if these are too many, its trial."""
        if self.best is None:
            undecided = "several metrics, and none ranks the trials: set `metric`"
            return undecided if self.ranking.candidates else f"no trial has finished with {self.label}"
        what = describe_best(self.ranking, metric=self.label)
        has_seeds = self.ranking.has_seeds
        value = self.format_metric(self.values[self.best.name])
        when = self.ranking.best_trial.when if self.ranking.best_trial else ""
        if has_seeds and not self.ranking.average:
            what += f" over {self.ranking.over}"
        if has_seeds:
            what += "; its best trial"
        start = f"{what}: {value}{when}"
        names = style.short_names(self.keys)
        settings = ", ".join(f"{names[key]} = {self._best_value(key)}" for key in self.keys)
        title = f"{start}, with {settings}" if when else f"{start} at {settings}"
        return title if self.keys and len(title) <= MAX_TITLE else f"{start} by trial {self.best['trial']}"

    def _best_value(self, key: str) -> str:
        """The value of a key of the best trial; of a long name, what distinguishes it from the others."""
        assert self.best is not None
        value = self.best[key]
        column = self.table[key]
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

    @cached_property
    def _key_colors(self) -> ScalarMappable:
        """The color map of `colored_key`, whose values are numbers."""
        values = self.table[self.colored_key]
        return ScalarMappable(style.norm_of(values, self.log.get(str(self.colored_key))), style.SEQUENCE)

    @cached_property
    def metric_colors(self) -> Any:
        """The color of each trial by its metric, shape (n, 4); gray without a value."""
        if self.values.nunique() < 2:
            return np.tile(self.colors(0.5), (len(self.values), 1))
        return self.colors(self.norm(self.values.to_numpy()))

    @cached_property
    def trial_colors(self) -> dict[str, Any]:
        """The color of each trial: by its value of `colored_key`, or else by its metric."""
        colors = self.metric_colors
        if self.colored_key:
            values = self.table[self.colored_key]
            if style.is_numeric(values):
                colors = self._key_colors.to_rgba(values.astype(float))
            else:
                names = values.astype(str)
                colors = names.map(dict(zip(names.unique(), style.COLORS, strict=False)))
        return dict(zip(self.table["trial"], colors, strict=True))

    def add_key_colorbar(self, axes: "Axes") -> None:
        """Add a color bar of `colored_key` beside axes, if its values are different numbers."""
        values = self.table[self.colored_key]
        if style.is_numeric(values) and values.nunique() > 1:
            label = style.readable_name(str(self.colored_key))
            style.figure_of(axes).colorbar(self._key_colors, ax=axes, label=label)

    def add_colorbar(self, axes: "Axes", *, below: bool = False) -> None:
        """Add a color bar of the metric beside or `below` axes, unless all trials have the same value."""
        if self.values.nunique() < 2:
            return
        figure = style.figure_of(axes)
        if below:
            figure.set_figheight(figure.get_figheight() + BAR_HEIGHT)
        place: dict[str, Any] = {"location": "bottom", "aspect": 60, "shrink": 0.6} if below else {}
        unit = PercentFormatter(1) if self.is_percent else None
        figure.colorbar(ScalarMappable(self.norm, self.colors), ax=axes, label=self.direction, format=unit, **place)


def rank_trials(state: History, trials: pd.DataFrame, ranking: Ranking) -> PlottedTrials:
    """The trials of a sweep as its plots show them, ranked, by the keys that differ."""
    keys = [key for key in state.varied_keys if key not in state.constant_keys]
    names = {key: trials[key].convert_dtypes().astype(object) for key in keys if not ranking.is_setting(key)}
    shown = trials.assign(**{key: style.fill_missing(names.get(key, trials[key])) for key in keys})
    return PlottedTrials(shown, keys, ranking, {key: state.sweep.is_log(key) for key in keys}, state.sweep.paired)
