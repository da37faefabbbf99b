"""The report's first page: what each study found, what it cost and wasted, what failed, and what to do next."""

import base64
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Final

import pandas as pd

from trainyard.checks.script_checks import describe_spoiled_results
from trainyard.config.config import Config
from trainyard.planning.accounting import describe_cost
from trainyard.planning.history_files import is_trained, read_state
from trainyard.report.pages import format_number, write_template
from trainyard.report.sweep_facts import list_failures, list_next_steps, sweep_facts
from trainyard.results import load_sweep
from trainyard.results.answer import answer_sweep
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
from trainyard.utils.text import count_of, format_duration, format_time

SCALE_COLUMNS = {"scale": "scale", "train_seconds": "training (s)", "images_per_second": "images/s",
                 "speedup": "speedup", "efficiency": "efficiency", "gpu_hours": "GPU-hours",
                 "cost": "cost"}  # fmt: skip
NO_RESULT: Final = "no result yet"
MISSING: Final = "tables and plots: run the same command again, which does what is left"


@dataclass(frozen=True)
class Summary:
    """What the first page says of one study."""

    title: str
    answer: str
    facts: Mapping[str, str]  # by label
    cost: str = ""
    failures: Sequence[str] = ()
    next_steps: Sequence[str] = ()
    more: Sequence[str] = ()  # how sure the answer is, and the runner-up
    rows: Sequence[Sequence[str]] = ()  # of a small table, whose first row is its header
    picture: str = ""  # a PNG as a data URI
    about_picture: str = ""


def write_overview(config: Config, results: Path) -> Path:
    """Write the first page of the report, from the tables and plots of all studies, as far as they exist; return it."""
    path = results / "overview.html"
    write_template("overview.html.jinja2", path, studies=list(summarize_studies(config, results)))
    return path


def summarize_studies(config: Config, results: Path) -> Iterator[Summary]:
    """The summaries of all studies of the config; an unfinished study's says what is missing."""
    for name in config.sweeps:
        yield _summarize_sweep(config, name, results)
    for name in config.scaling:
        yield _summarize_scaling(config, name, results)


def _summarize_sweep(config: Config, name: str, results: Path) -> Summary:
    state = read_state(config.sweeps[name], name, results)
    answered = answer_sweep(state)
    answer, *more = answered.lines
    more += describe_spoiled_results(state.sweep)
    plot, about_plot = "metric", "the metric of each trial against the keys that vary"
    if answered.ranking.objectives:
        plot, about_plot = "front", "the objectives of each configuration against each other"
    cost = describe_cost(state, config.pricing)
    try:
        facts = sweep_facts(load_sweep(results / "sweeps" / name))
    except MissingResultError:
        facts = {"so far": summarize_sweep(state).partition(": ")[2], "missing": MISSING}
    sessions = sessions_of_results(state).values()
    if code := describe_mismatch(state) or describe_origin(next(iter(sessions), None)):
        facts["code"] = code
    picture = _embed_picture(results / "plots/sweeps" / name / f"{plot}.png")
    failures, steps = list_failures(state), list_next_steps(state, answered)
    return Summary(
        f"Sweep {name}", answer, facts, cost, failures, steps, more=more, picture=picture, about_picture=about_plot
    )


def _summarize_scaling(config: Config, name: str, results: Path) -> Summary:
    study, folder, title = config.scaling[name], results / "scaling" / name, f"Scaling {name}"
    done = {
        scale: paths
        for scale, paths in study.summaries(folder).items()
        if all(is_trained(study, run, folder, results) for run in study.runs(scale))
    }
    so_far = f"{len(done)} of {count_of(len(study.scales), 'scale')} trained" + ": " * bool(done) + ", ".join(done)
    left = {"so far": so_far, "missing": MISSING}
    try:
        measured = read_table(folder / "scaling.csv")
    except MissingResultError:
        return Summary(title, NO_RESULT, left)
    table = measured[measured["scale"].isin(done)]  # the others are trained again, or are no longer in the config
    if table.empty:
        return Summary(title, NO_RESULT, left)
    seconds_of = {
        scale: sum(json.loads(path.read_text())["train_seconds"] for path in paths) for scale, paths in done.items()
    }
    spent_seconds = table["scale"].map(seconds_of)
    repeats = spent_seconds / table["train_seconds"]  # the table has medians over the repeats
    hours, cost = (table["gpu_hours"] * repeats).sum(), (table["cost"] * repeats).sum()
    spent = f"{hours:,.3g} GPU-hours" + (f", {cost:,.2f}" if cost else "") if hours else "no GPU time"
    seconds, ended = format_duration(spent_seconds.sum()), _ended(chain(*done.values()))
    ran = f"{count_of(len(table), 'scale')}, {study.mode} scaling, {seconds} of training, {ended}"
    return Summary(
        title,
        recommendation(measured),
        {"ran": ran, **(left if len(table) < len(study.scales) else {}), **_code(done)},
        spent,
        rows=_scale_rows(table),
        picture=_embed_picture(results / "plots/scaling" / name / "speedup.png"),
        about_picture="speedup and efficiency against the number of GPUs",
    )


def _code(results: Mapping[str, Iterable[Path]]) -> dict[str, str]:
    """The fact with which commits and versions scales ran, if that is known."""
    sessions = read_sessions(results)
    code = describe_difference("scales ran", sessions) or describe_origin(next(chain(*sessions.values()), None))
    return {"code": code} if code else {}


def _ended(paths: Iterable[Path]) -> str:
    """When the last of these files was written."""
    return f"until {format_time(max(path.stat().st_mtime for path in paths))}"


def _scale_rows(table: pd.DataFrame) -> list[list[str]]:
    """The header and rows of a small table of scales, without empty columns."""
    shown = table[list(SCALE_COLUMNS)].dropna(axis="columns", how="all")
    cells = [
        [value if isinstance(value, str) else "" if pd.isna(value) else format_number(value) for value in row]
        for row in shown.to_numpy()
    ]
    return [[SCALE_COLUMNS[name] for name in shown], *cells]


def _embed_picture(path: Path) -> str:
    """A PNG as a data URI; "" if it does not exist."""
    return f"data:image/png;base64,{base64.b64encode(path.read_bytes()).decode()}" if path.exists() else ""
