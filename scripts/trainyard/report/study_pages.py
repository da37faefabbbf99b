"""The page of one study: its answer, charts and tables."""

import os
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Final
from urllib.parse import quote

import pandas as pd

from trainyard.config.config import Config
from trainyard.planning.history import History, read_state
from trainyard.report.overview import SCALE_COLUMNS, scale_rows, scaling_summary, sweep_summary
from trainyard.report.pages import MAX_ROWS, Charts, Part, ReportTable, StudyPage, write_page
from trainyard.report.plotted_trials import rank_trials
from trainyard.report.study_tables import cost_tables
from trainyard.report.style import readable_column, short_names
from trainyard.report.trial_charts import job_charts, trial_charts
from trainyard.results import SweepResults, load_sweep
from trainyard.results.accounting import fetch_records
from trainyard.results.answer import Answer, answer_sweep
from trainyard.results.best_config import folder_of, trial_line
from trainyard.results.ranking import Ranking
from trainyard.results.sweep_tables import (
    curve_column,
    epochs_table,
    metric_column,
    ranking_table,
    stopping_table,
    summarize_savings,
    timeline_table,
    trials_table,
)
from trainyard.utils.csv_files import read_table
from trainyard.utils.errors import MissingResultError
from trainyard.utils.text import format_time

CHARTS_HINT: Final = (
    "Point at a trial for its values and its curve. Drag over points to select trials: the table below has only these, "
    "and with selections in several charts, those in all of them. A click beside a selection ends it."
)
JOB_COLUMNS: Final = (
    "job", "node", "start", "slots", "finished", "failed", "interrupted", "predicted_seconds", "measured_seconds",
    "requested_seconds", "elapsed_seconds", "wait_seconds", "code"
)  # fmt: skip
REPEATS: Final = ("repeats", "speedup_low", "speedup_high", "train_seconds_spread", "images_per_second_spread")


def write_study_page(config: Config, kind: str, name: str, results: Path) -> Path:
    """Write the page of a study from its tables, and return it.

    Raises:
        MissingResultError: a table of a sweep does not exist.
    """
    page = results / "tables" / kind / f"{name}.html"
    if kind == "sweeps":
        state = read_state(config.sweeps[name], name, results)
        tables = load_sweep(state.folder, text=state.keys_with_text)
        study = _sweep_study(config, state, answer_sweep(state), tables, page)
    else:
        study = scaling_study(config, name, results)
    write_page([study], page)
    return page


def current_study(config: Config, name: str, results: Path, page: Path | None) -> StudyPage:
    """A sweep on a page of the report as its journal has it now, whether its tables are written or not."""
    state = read_state(config.sweeps[name], name, results)
    answer = answer_sweep(state)
    frames = {
        "trials": trials_table(state, answer.ranking),
        "epochs": epochs_table(state),
        "timeline": timeline_table(state),
        "ranking": ranking_table(answer.ranking),
        # A live page does not ask Slurm's accounting again and again.
        **cost_tables(state, fetch_records(state.sessions) if page else {}),
    }
    # As files have them: values of keys may be lists.
    tables = {
        name: read_table(StringIO(frame.to_csv(index=False)), state.keys_with_text) for name, frame in frames.items()
    }
    return _sweep_study(config, state, answer, SweepResults(name, **tables), page)


def _sweep_study(config: Config, state: History, answer: Answer, tables: SweepResults, page: Path | None) -> StudyPage:
    """A sweep on a page: its answer, charts and tables, and how it ran."""
    summary = sweep_summary(config, state, answer, tables)
    ranking = answer.ranking
    sweep = state.sweep
    parts = dict[str, Part]()
    curve = curve_column(tables.epochs, [ranking.metric, "val_loss"], state.varied_keys)
    if charts := trial_charts(rank_trials(state, tables.trials, ranking), tables, curve):
        parts |= {"Charts": CHARTS_HINT, "": Charts("chartSpec", charts)}
    if ranking.has_seeds:
        ends = ("best", "epoch", "epochs", "at_best_epoch", "best_epoch")
        mean = f"{ranking.metric}_mean"
        left_out = {"trials", *(f"{ranking.metric}_{end}" for end in ends)}
        left_out |= set() if tables.ranking["is_incomplete"].any() else {"is_incomplete"}
        columns = dict.fromkeys(["place", mean, f"{ranking.metric}_deviation", "n", *tables.ranking])
        means = tables.ranking[[name for name in columns if name not in left_out]]
        best = 0 if ranking.best_trial else None
        parts[f"Configurations: means over {ranking.over}"] = ReportTable(_readable(means, state), best)
    arranged = _arrange_trials(tables.trials, ranking)
    parts["Trials"] = replace(arranged, frame=_readable(arranged.frame, state))
    if sweep.stop:
        rows = stopping_table(state)
        parts |= {"Stopped early": ReportTable(_readable(rows, state)), "Saved": summarize_savings(state, rows)}
    operations = dict[str, Part]()
    if spec := job_charts(tables, state.counted_unit):
        shown = tables.jobs[list(JOB_COLUMNS)].assign(start=tables.jobs["start"].map(format_time))
        operations = {"": Charts("jobSpec", spec), "Jobs": ReportTable(_readable(shown, state))}
    links = dict[str, tuple[str, str]]()  # from a page in a file to the folder of a trial, and the trial's command
    for name in arranged.frame["trial"].head(MAX_ROWS):
        if name in state.trials:
            trial = folder_of(state, name)
            link = quote(os.path.relpath(trial, page.parent)) if page and trial.exists() else ""
            links[name] = link, trial_line(state, name) or ""
    return replace(
        summary,
        parts=parts,
        operations=operations,
        pictures=summary.pictures if ranking.objectives else {},
        trials=links,
    )


def _readable(table: pd.DataFrame, state: History) -> pd.DataFrame:
    """A table with headers for readers, by which its columns still differ."""
    keys = short_names(state.varied_keys)
    names = short_names(list(table), readable=lambda name: keys.get(name) or readable_column(name))
    return table.rename(columns=names)


def _arrange_trials(trials: pd.DataFrame, ranking: Ranking) -> ReportTable:
    """The trials in the order of the ranking, the best one highlighted; the ranking metric follows the status."""
    ranked = [trial.trial for each in ranking.configurations for trial in each.trials]
    places = {trial: place for place, trial in enumerate(ranked)}
    ordered = trials.sort_values("trial", key=lambda names: names.map(places), kind="stable")
    columns = list(trials)
    scored = f"{ranking.metric}_score"
    metric = scored if scored in columns else metric_column(trials, ranking.metric)
    if metric in columns:
        columns.remove(metric)
        columns.insert(1, metric)
    equal = [name for name in ("attempts", "accumulation", "epoch") if name in trials and trials[name].nunique() < 2]
    if trials["attempts"].max() < 2:
        equal.append("attempts")
    kept = [name for name in columns if name not in equal]
    best = places[ranking.best_trial.trial] if ranking.best_trial else None
    return ReportTable(ordered[kept], best, has_trials=True)


def scaling_study(config: Config, name: str, results: Path) -> StudyPage:
    """A scaling study on a page: its advice, and one table with a column per scale."""
    summary = scaling_summary(config, name, results)
    try:
        table = read_table(results / "scaling" / name / "scaling.csv")
    except MissingResultError:
        return summary
    shown = {*SCALE_COLUMNS, "recommended"}
    if table["repeats"].max() <= 1:
        shown |= {*REPEATS}
    return replace(summary, more_rows=scale_rows(table, [column for column in table if column not in shown]))
