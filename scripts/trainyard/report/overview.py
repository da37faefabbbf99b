"""The report's first page: what each study found, what it cost and wasted, what failed, and what to do next."""

import base64
import json
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, Final

import pandas as pd

from trainyard.checks.script_checks import describe_spoiled_results
from trainyard.config.config import Config
from trainyard.planning.history import History, is_trained, read_state
from trainyard.report.pages import StudyPage, format_number, render
from trainyard.report.plot_list import PLOT_LABELS
from trainyard.report.style import readable_column
from trainyard.report.sweep_facts import answer_rows, list_failures, list_next_steps, sweep_facts
from trainyard.results import SweepResults, load_sweep
from trainyard.results.accounting import describe_cost
from trainyard.results.answer import Answer, answer_sweep
from trainyard.results.completeness import summarize_sweep
from trainyard.results.provenance import (
    describe_difference,
    describe_mismatch,
    describe_origin,
    read_sessions,
    sessions_of_results,
)
from trainyard.scaling.speedups import recommendation
from trainyard.utils.csv_files import read_table
from trainyard.utils.errors import MissingResultError
from trainyard.utils.files import atomic_write
from trainyard.utils.text import count_of, format_duration, format_time

SCALE_COLUMNS: Final = (
    "scale", "verdict", "train_seconds", "images_per_second", "speedup", "efficiency", "gpu_hours", "cost"
)  # fmt: skip
NO_RESULT: Final = "no result yet"
MISSING: Final = "tables and plots: run the same command again, which does what is left"


def write_overview(config: Config, results: Path) -> Path:
    """Write the first page of the report, from the tables and plots of all studies, as far as they exist; return it."""
    path = results / "overview.html"
    with atomic_write(path) as file:
        file.write(render("overview.html.jinja2", studies=list(summarize_studies(config, results))))
    return path


def summarize_studies(config: Config, results: Path) -> Iterator[StudyPage]:
    """The summaries of all studies of the config; an unfinished study's says what is missing."""
    for name, sweep in config.sweeps.items():
        state = read_state(sweep, name, results)
        try:
            tables = load_sweep(results / "sweeps" / name)
        except MissingResultError:
            tables = None
        yield sweep_summary(config, state, answer_sweep(state), tables)
    for name in config.scaling:
        yield scaling_summary(config, name, results)


def sweep_summary(config: Config, state: History, answered: Answer, tables: SweepResults | None) -> StudyPage:
    """The summary of a sweep; without its tables, it says that they are missing."""
    name = state.name
    results = state.folder.parents[1]
    answer, *more = answered.lines
    more += describe_spoiled_results(state.sweep)
    facts = {"so far": summarize_sweep(state).partition(": ")[2], "missing": MISSING}
    if tables:
        facts = sweep_facts(tables)
    sessions = sessions_of_results(state).values()
    if code := describe_mismatch(state) or describe_origin(next(iter(sessions), None)):
        facts["code"] = code
    return StudyPage(
        f"Sweep {name}",
        answer,
        facts,
        describe_cost(state, config.pricing),
        list_failures(state),
        list_next_steps(state, answered),
        more,
        rows=answer_rows(answered.ranking),
        pictures=_pictures(results, "sweeps", name, "front" if answered.ranking.objectives else "metric"),
    )


def scaling_summary(config: Config, name: str, results: Path) -> StudyPage:
    """The summary of a scaling study, as far as its scales are trained."""
    study = config.scaling[name]
    folder = results / "scaling" / name
    title = f"Scaling {name}"
    done = {
        scale: paths
        for scale, paths in study.summaries(folder).items()
        if all(is_trained(study, run, folder, results) for run in study.runs(scale))
    }
    so_far = f"{len(done)} of {count_of(len(study.scales), 'scale')} trained"
    if done:
        so_far += f": {', '.join(done)}"
    left = {"so far": so_far, "missing": MISSING}
    try:
        measured = read_table(folder / "scaling.csv")
    except MissingResultError:
        return StudyPage(title, NO_RESULT, left)
    table = measured[measured["scale"].isin(done)]  # the others are trained again, or are no longer in the config
    if table.empty:
        return StudyPage(title, NO_RESULT, left)
    seconds_of = {
        scale: sum(json.loads(path.read_text())["train_seconds"] for path in paths) for scale, paths in done.items()
    }
    spent_seconds = table["scale"].map(seconds_of)
    repeats = spent_seconds / table["train_seconds"]  # the table has medians over the repeats
    sessions = read_sessions(done)
    code = describe_difference("scales ran", sessions) or describe_origin(next(chain(*sessions.values()), None))
    hours = (table["gpu_hours"] * repeats).sum()
    cost = (table["cost"] * repeats).sum()
    spent = f"{hours:,.3g} GPU-hours" if hours else "no GPU time"
    if cost:
        spent += f", {cost:,.2f}"
    ended = format_time(max(path.stat().st_mtime for path in chain(*done.values())))
    seconds = format_duration(spent_seconds.sum())
    ran = f"{count_of(len(table), 'scale')}, {study.mode} scaling, {seconds} of training, until {ended}"
    return StudyPage(
        title,
        recommendation(measured),
        {"ran": ran, **(left if len(table) < len(study.scales) else {}), **({"code": code} if code else {})},
        spent,
        rows=scale_rows(table, [name for name in SCALE_COLUMNS if name in table]),
        pictures=_pictures(results, "scaling", name, *PLOT_LABELS["scaling"]),
    )


def scale_rows(table: pd.DataFrame, columns: Iterable[str]) -> list[list[str]]:
    """Rows of a small table with a column per scale: the values of these columns, unless all are empty."""
    return [[readable_column(name), *map(_format_cell, table[name])] for name in columns if table[name].notna().any()]


def _format_cell(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "" if pd.isna(value) else format_number(value)


def _pictures(results: Path, kind: str, name: str, *plots: str) -> dict[str, str]:
    """Those of these plots that exist, as data URIs by what they show."""
    paths = {PLOT_LABELS[kind][plot]: results / "plots" / kind / name / f"{plot}.png" for plot in plots}
    return {
        label: f"data:image/png;base64,{base64.b64encode(path.read_bytes()).decode()}"
        for label, path in paths.items()
        if path.exists()
    }
