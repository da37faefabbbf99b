"""All tables of one study, and what its page shows."""

import logging
import os
from collections.abc import Mapping
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import pandas as pd

from trainyard.config.config import Config
from trainyard.planning.accounting import compare_strategies, fetch_records, jobs_table, strategies_table
from trainyard.planning.history import History
from trainyard.planning.history_files import read_state
from trainyard.report.cost_plots import cpus_as_gpus
from trainyard.report.overview import SCALE_COLUMNS, scale_rows, scaling_summary, sweep_summary
from trainyard.report.pages import MAX_ROWS, Charts, Part, ReportTable, StudyPage, write_page
from trainyard.report.plotted_trials import rank_trials
from trainyard.report.style import readable_column, short_names
from trainyard.report.trial_charts import job_charts, trial_charts
from trainyard.results import SweepResults, load_sweep
from trainyard.results.answer import Answer, answer_sweep
from trainyard.results.best_config import folder_of, trial_line, write_best
from trainyard.results.provenance import describe_difference, read_sessions
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
from trainyard.scaling.speedups import as_markdown, recommendation, scaling_table, tables_to_paste
from trainyard.utils.csv_files import read_table, write_table
from trainyard.utils.errors import MissingResultError
from trainyard.utils.files import atomic_write
from trainyard.utils.text import format_time

log = logging.getLogger("tables")

CHARTS_HINT: Final = (
    "Point at a trial for its values and its curve. Drag over points to select trials: the table below has only these, "
    "and with selections in several charts, those in all of them. A click beside a selection ends it."
)
JOB_COLUMNS: Final = (
    "job", "node", "start", "slots", "finished", "failed", "interrupted", "predicted_seconds", "measured_seconds",
    "requested_seconds", "elapsed_seconds", "wait_seconds", "code"
)  # fmt: skip
REPEATS: Final = ("repeats", "speedup_low", "speedup_high", "train_seconds_spread", "images_per_second_spread")

TABLES_TO_PASTE: Final = ("gpus", "nodes")  # files


def write_tables(config: Config, kind: str, name: str, results: Path) -> Path:
    """Write the derived tables of a study, and its page; return the page."""
    page = results / "tables" / kind / f"{name}.html"
    make = {"sweeps": _write_sweep, "scaling": _write_scaling}[kind]
    write_page([make(config, name, results, page)], page)
    return page


def _write_sweep(config: Config, name: str, results: Path, page: Path) -> StudyPage:
    folder = results / "sweeps" / name
    state = read_state(config.sweeps[name], name, results)
    trials = read_table(folder / "trials.csv", text=state.keys_with_text)
    answer = answer_sweep(state)
    for table, frame in _cost_tables(state, fetch_records(state.sessions)).items():
        write_table(frame, folder / f"{table}.csv")
    write_best(config, state, answer)
    write_table(ranking_table(answer.ranking), folder / "ranking.csv")
    return sweep_study(config, state, answer, replace(load_sweep(folder), trials=trials), page)


def _cost_tables(state: History, records: Mapping[str, Any]) -> dict[str, pd.DataFrame]:
    """The tables strategies.csv and jobs.csv of a sweep, by name, with Slurm's accounting of its jobs."""
    sessions = state.sessions
    return {
        "strategies": strategies_table(compare_strategies(state, sessions, records), state.sweep.slots.unit),
        "jobs": jobs_table(state, sessions, records),
    }


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
        **_cost_tables(state, fetch_records(state.sessions) if page else {}),
    }
    # As files have them: values of keys may be lists.
    tables = {
        name: read_table(StringIO(frame.to_csv(index=False)), state.keys_with_text) for name, frame in frames.items()
    }
    return sweep_study(config, state, answer, SweepResults(name, **tables), page)


def sweep_study(config: Config, state: History, answer: Answer, tables: SweepResults, page: Path | None) -> StudyPage:
    """A sweep on a page: its answer, charts and tables, and how it ran."""
    summary = sweep_summary(config, state, answer, tables)
    ranking = answer.ranking
    sweep = state.sweep
    strategies = tables.strategies
    jobs = tables.jobs
    if sweep.slots.unit == "CPU":
        strategies, jobs = map(cpus_as_gpus, (strategies, jobs))
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
    if spec := job_charts(tables, strategies, jobs, state.counted_unit):
        shown = jobs[list(JOB_COLUMNS)].assign(start=jobs["start"].map(format_time))
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


def _write_scaling(config: Config, name: str, results: Path, page: Path) -> StudyPage:
    folder = results / "scaling" / name
    study = config.scaling[name]
    runs = {scale: [folder / run for run in study.runs(scale)] for scale in study.scales}
    table = scaling_table(runs, mode=study.mode, gpu_hour=config.pricing.gpu_hour)
    write_table(table, folder / "scaling.csv")
    pasted = tables_to_paste(table)
    for kind in TABLES_TO_PASTE:
        path = folder / f"{kind}.md"
        if kind not in pasted:
            path.unlink(missing_ok=True)
            continue
        with atomic_write(path) as file:
            file.write(as_markdown(pasted[kind]))
    advice = recommendation(table)
    mismatch = describe_difference("scales ran", read_sessions(study.summaries(folder)))
    for line in filter(None, [advice, mismatch]):
        log.info("%s", line)
    return scaling_study(config, name, results)


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
