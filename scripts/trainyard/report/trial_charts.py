"""What the charts of a sweep's page show, which `templates/charts.js` draws: its trials, their curves, and its jobs."""

import json
from typing import Any, Final

import pandas as pd

from trainyard.report import style
from trainyard.report.cost_plots import PART_COLORS, requested_parts
from trainyard.report.importance import MIN_EXPLAINED, measure_importance, why_unknown
from trainyard.report.plotted_trials import PlottedTrials
from trainyard.report.style import is_numeric, readable_metric
from trainyard.report.timeline_plots import lay_out
from trainyard.results import SweepResults
from trainyard.results.sweep_tables import MIN_FOR_MEDIAN, describe_prediction_errors, predicted_attempts

MIN_TRIALS: Final = 5  # with a value: of fewer, a chart tells no more than the table
MAX_TRIALS: Final = 1000  # the best ones: 0.4 MB, which a browser reads before it shows any
MAX_CURVES: Final = 200  # of the best trials: with more, none can be told from the others
MAX_POINTS: Final = 50  # of a curve
OUTCOMES: Final = {"finished": style.COLORS[0], "stopped": style.STOPPED, "failed": style.FAILED}


def trial_charts(ranked: PlottedTrials, tables: SweepResults, curve: str) -> dict[str, Any]:
    """The trials with their values of the metric, best first, and their curves; {} if too few have a value."""
    table = ranked.table
    names = style.short_names(ranked.keys)
    ends = tables.timeline.groupby("trial")["end"].max()
    places = {trial.trial: place for place, trial in enumerate(ranked.ranking.trials)}
    configurations = dict[str, int]()
    for number, configuration in enumerate(ranked.ranking.configurations):
        configurations |= {trial.trial: number for trial in configuration.trials}
    keys = ranked.facet_keys()
    fields = {key: f"key_{number}" for number, key in enumerate(keys)}  # a dot in a name would be one of JavaScript
    trials = pd.DataFrame({
        "trial": table["trial"], "metric": ranked.values, "status": table["status"], "end": table["trial"].map(ends),
        "configuration": table["trial"].map(configurations),
        "is_best": table["trial"] == (None if ranked.best is None else ranked.best["trial"]),
        **{fields[key]: table[key] if is_numeric(table[key]) else table[key].astype(str) for key in keys},
    }).dropna(subset="metric").sort_values("end", kind="stable")  # fmt: skip
    if len(trials) < MIN_TRIALS:
        return {}
    finished = trials["metric"].where(trials.index.isin(ranked.finished.index))
    trials["order"] = range(1, len(trials) + 1)
    trials["record"] = (finished.cummin() if ranked.is_minimized else finished.cummax()).ffill()
    trials = trials.sort_values("trial", key=lambda names: names.map(places)).head(MAX_TRIALS)
    epochs = tables.epochs
    points = pd.DataFrame(columns=["value"])  # some of each curve, of which the last is one
    if curve in epochs and not epochs["trial"].is_unique:
        shown = epochs[epochs["trial"].isin(trials["trial"].head(MAX_CURVES))][["trial", "epoch", curve]]
        shown = shown.assign(value=style.within_axes(shown[curve].astype(float))).dropna(subset="value")
        longest = shown["trial"].value_counts().max()
        from_end = shown.groupby("trial").cumcount(ascending=False)
        points = shown[from_end % -(-longest // MAX_POINTS) == 0][["trial", "epoch", "value"]]
    return {
        "trials": _records(trials.drop(columns="end")),
        "keys": [
            {
                "field": fields[key],
                "title": names.get(key, key),
                "numeric": is_numeric(table[key]) and table[key].nunique() > 1,
                "log": is_numeric(table[key]) and style.is_log_scale(table[key].dropna(), ranked.log.get(key)),
                "spread": ranked.ranking.has_seeds and ranked.ranking.is_setting(key),
            }
            for key in keys
        ],
        "metric": ranked.value_label,
        "mode": ranked.ranking.mode,
        "percent": ranked.is_percent,
        "log": ranked.is_log,
        "domain": list(ranked.limits) if ranked.outlier_count else None,
        "importance": _importance(ranked),
        "curves": _records(points),
        "curve": readable_metric(curve),
        "curve_log": len(points) > 0 and style.is_log_scale(points["value"], curve.endswith("loss") or None),
        "left_out": MAX_CURVES if len(trials) > MAX_CURVES else 0,
    }


def _importance(ranked: PlottedTrials) -> list[dict[str, Any]]:
    """How much of the variance of the metric each key explains, the most first; [] if that is not known."""
    forest = None if why_unknown(ranked) else measure_importance(ranked)
    if forest is None or forest.explained < MIN_EXPLAINED:
        return []
    names = style.short_names(list(ranked.settings))
    shares = forest.shares.sort_values("mean", ascending=False)
    return [
        {"key": names[key], "share": max(0.0, share), "error": error}
        for key, share, error in zip(shares.index, shares["mean"], shares["error"], strict=True)
    ]


def job_charts(tables: SweepResults, unit: str) -> dict[str, Any]:
    """The attempts on their slots, what was requested for what, and predictions; {} before a trial has started."""
    timeline = tables.timeline.dropna(subset="slot")
    if timeline.empty:
        return {}
    layout = lay_out(timeline, tables.jobs)
    attempts = layout.attempts.tail(MAX_TRIALS)
    predicted = predicted_attempts(tables.timeline)
    shown = predicted if len(predicted) >= MIN_FOR_MEDIAN else predicted.head(0)
    parts = requested_parts(tables.strategies, tables.jobs)
    outcomes = dict.fromkeys(attempts["outcome"], style.UNKNOWN)
    strategies = tables.strategies["strategy"].str.replace("_", " ")
    bars = parts.assign(strategy=strategies).melt("strategy", var_name="part", value_name="seconds")
    bars["place"] = bars["part"].map(list(parts).index)
    return {
        "lanes": layout.lanes,
        "attempts": _records(attempts[["trial", "outcome", "lane", "begin", "stop"]]),
        "outcomes": [(name, OUTCOMES.get(name, color)) for name, color in outcomes.items()],
        "axis": layout.axis,
        "parts": _records(bars),
        "colors": [(part, PART_COLORS[part]) for part in parts if parts[part].any()],
        "charged": f"{unit}-seconds",
        "predictions": _records(shown.assign(predicted=shown["expected_seconds"])[["trial", "predicted", "measured"]]),
        "errors": describe_prediction_errors(shown),
    }


def _records(table: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows of a table as JSON has them, with null for missing values."""
    return list(json.loads(table.to_json(orient="records")))
