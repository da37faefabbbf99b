"""Linked charts of the trials of a sweep for its web page: its metric against each varied key, and its curves."""

import json
from typing import Any, Final

import pandas as pd

from trainyard.config.trial_status import TrialStatus
from trainyard.report import style
from trainyard.report.plotted_trials import PlottedTrials
from trainyard.report.style import STOPPED, is_numeric, readable_metric

SIZE: Final = {"width": 250, "height": 200}  # pixels
MAX_CURVES: Final = 200  # of the best trials: with more, none can be told from the others
MAX_POINTS: Final = 50  # of a curve
LINEAR: Final[dict[str, Any]] = {"zero": False, "padding": 10}
LOG: Final[dict[str, Any]] = {"type": "log", "padding": 10, "nice": False}


def trial_charts(ranked: PlottedTrials, epochs: pd.DataFrame, curve: str) -> dict[str, Any]:
    """A specification in Vega-Lite; {} if no trial has a value of the metric. Trials are expected best first.

    In the charts of keys, dragging selects the trials of an area (parameter `brush`), and hovering marks one (`hover`).
    Parameter `ink` is the color of texts, `tone` that of trials.
    """
    if ranked.values.isna().all():
        return {}
    keys, names = ranked.facet_keys(), style.short_names(ranked.keys)
    fields = {key: f"key_{number}" for number, key in enumerate(keys)}  # a dot in a name would be one of JavaScript
    table = ranked.table
    configurations = {
        trial.trial: number for number, each in enumerate(ranked.ranking.configurations) for trial in each.trials
    }
    trials = pd.DataFrame({
        "trial": table["trial"], "metric": ranked.values, "status": table["status"],
        "configuration": table["trial"].map(configurations),
        "is_best": table["trial"] == (None if ranked.best is None else ranked.best["trial"]),
        **{fields[key]: table[key] if is_numeric(table[key]) else table[key].astype(str) for key in keys},
    }).dropna(subset="metric")  # fmt: skip
    number_format = ".1%" if ranked.is_percent else ".4~g"
    value = {"field": "metric", "type": "quantitative", "title": ranked.value_label}
    told = [
        {"field": "trial", "type": "nominal"},
        *({"field": fields[key], "title": names.get(key, key)} for key in keys if key != "trial"),
        value | {"format": number_format},
        {"field": "status", "type": "nominal"},
    ]
    scale = LOG if ranked.is_log else LINEAR
    scale = scale | ({"domain": list(ranked.limits)} if ranked.outlier_count else {})
    y = value | {"scale": scale, "axis": {"format": number_format}}
    panels = []
    for key in keys:
        column = table[key]
        x: dict[str, Any] = {"field": fields[key], "title": names.get(key, key)}
        if is_numeric(column) and column.nunique() > 1:
            is_log = style.is_log_scale(column.dropna(), ranked.log.get(key))
            x |= {"type": "quantitative", "scale": LOG if is_log else LINEAR}
        else:
            x |= {"type": "nominal", "sort": None, "axis": {"labelAngle": -30}}
        intervals = [_intervals(x, y)] if ranked.ranking.has_seeds and ranked.ranking.is_setting(key) else []
        panels.append({**SIZE, "layer": [*intervals, _points({"x": x, "y": y, "tooltip": told})]})
    data = {"trials": _records(trials)}
    if curve in epochs and not epochs["trial"].is_unique:
        points = _thin(epochs, curve, list(trials["trial"]))
        data["curves"] = _records(points)
        is_log = style.is_log_scale(points["value"], curve.endswith("loss") or None)
        title = f"of the best {MAX_CURVES} trials" if len(trials) > MAX_CURVES else ""
        panels.append(_curves(curve, told, title, LOG if is_log else LINEAR))
    axis = {"gridOpacity": 0.3, "labelLimit": 90, "titleLimit": 240, "labelOverlap": "greedy", "labelSeparation": 6}
    config = {"axis": axis, "view": {"stroke": None}}
    return {"datasets": data, "data": {"name": "trials"}, "concat": panels, "config": config}


def _points(encoding: dict[str, Any]) -> dict[str, Any]:
    """A layer with a point for each trial, and a ring around that of the best one."""
    marked, best = {"param": "hover", "empty": False}, {"test": "datum.is_best"}
    stopped = {"test": f"datum.status === '{TrialStatus.STOPPED}'", "value": STOPPED}
    return {
        "params": [
            {"name": "brush", "select": {"type": "interval", "resolve": "intersect"}},
            {"name": "hover", "select": {"type": "point", "fields": ["trial"], "on": "mouseover", "clear": "mouseout"}},
        ],
        "mark": {"type": "point", "filled": True, "clip": True, "strokeWidth": 2},
        "encoding": {
            **encoding,
            "color": {"condition": stopped, "value": {"expr": "tone"}},
            "stroke": {"condition": best | {"value": {"expr": "ink"}}, "value": None},
            "opacity": {"condition": {"param": "brush", "value": 0.8}, "value": 0.12},
            "size": {"condition": [marked | {"value": 200}, best | {"value": 120}], "value": 40},
        },
    }


def _intervals(x: dict[str, Any], y: dict[str, Any]) -> dict[str, Any]:
    """A layer with the mean of each configuration, plus and minus the standard deviation over its seeds."""
    means = [{"op": "mean", "field": "metric", "as": "mean"}, {"op": "stdev", "field": "metric", "as": "deviation"}]
    limits = {"low": "datum.mean - datum.deviation", "high": "datum.mean + datum.deviation"}
    return {
        "transform": [
            {"aggregate": means, "groupby": ["configuration", x["field"]]},
            *({"calculate": formula, "as": name} for name, formula in limits.items()),
        ],
        "mark": {"type": "rule", "clip": True, "opacity": 0.6, "stroke": {"expr": "ink"}},
        "encoding": {"x": x, "y": y | {"field": "low"}, "y2": {"field": "high"}},
    }


def _curves(curve: str, told: list[dict[str, Any]], title: str, scale: dict[str, Any]) -> dict[str, Any]:
    """A chart with a curve for each trial: dark if it is selected, thick if the pointer is on the trial."""
    fields = [each["field"] for each in told if each["field"] != "trial"]
    marked = {"param": "hover", "empty": False}
    return {
        **SIZE,
        "title": title,
        "data": {"name": "curves"},
        "transform": [{"lookup": "trial", "from": {"data": {"name": "trials"}, "key": "trial", "fields": fields}}],
        "mark": {"type": "line"},
        "encoding": {
            "x": {"field": "epoch", "type": "quantitative", "axis": {"tickMinStep": 1, "format": "d"}},
            "y": {"field": "value", "type": "quantitative", "title": readable_metric(curve), "scale": scale},
            "detail": {"field": "trial", "type": "nominal"},
            "color": {"condition": marked | {"value": {"expr": "ink"}}, "value": {"expr": "tone"}},
            "strokeWidth": {"condition": marked | {"value": 3}, "value": 1.2},
            "opacity": {"condition": [marked | {"value": 1}, {"param": "brush", "value": 0.6}], "value": 0.06},
            "tooltip": told,
        },
    }


def _thin(epochs: pd.DataFrame, curve: str, trials: list[str]) -> pd.DataFrame:
    """Some points of the curves of the first of these trials; the last point of each is one of them."""
    shown = epochs[epochs["trial"].isin(trials[:MAX_CURVES])][["trial", "epoch", curve]]
    shown = shown.assign(value=style.within_axes(shown[curve].astype(float))).dropna(subset="value")
    longest = shown["trial"].value_counts().max()
    from_end = shown.groupby("trial").cumcount(ascending=False)
    return shown[from_end % -(-longest // MAX_POINTS) == 0][["trial", "epoch", "value"]]


def _records(table: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows of a table as JSON has them, with null for missing values."""
    return list(json.loads(table.to_json(orient="records")))
