"""All tables of one study, and their page for the report."""

import logging
from pathlib import Path

import pandas as pd

from trainyard.config.config import Config
from trainyard.planning.accounting import compare_strategies, fetch_records, jobs_table, strategies_table
from trainyard.planning.plan import read_state
from trainyard.report.html_page import write_page
from trainyard.report.sweep_tables import ranking_table, stopping_table, summarize_savings
from trainyard.results.answer import describe_ranking, write_best
from trainyard.results.ranking import rank_sweep
from trainyard.scaling.table import recommendation, scaling_table
from trainyard.utils.csv_files import read_table, write_parquet, write_table
from trainyard.utils.text import format_time

log = logging.getLogger("tables")
Page = dict[str, pd.DataFrame | str]  # headings, and what is below them


def write_tables(config: Config, kind: str, name: str, results: Path) -> Path:
    """Write the derived tables of a study, its page, and if configured, Parquet files; return the page."""
    make = {"sweeps": _write_sweep, "scaling": _write_scaling, "trees": _read_trees}[kind]
    folder = results / kind / name
    parts = make(config, name, results)
    if config.tables.parquet:
        for path in folder.rglob("*.csv"):
            if path.parent.name != "telemetry":
                write_parquet(path)
    page = results / "tables" / kind / f"{name}.html"
    write_page(parts, page, title=f"{kind}: {name}")
    return page


def _write_sweep(config: Config, name: str, results: Path) -> Page:
    folder = results / "sweeps" / name
    state = read_state(config.sweeps[name], name, results)
    sessions = state.sessions
    records = fetch_records(sessions)
    strategies = strategies_table(compare_strategies(state, sessions, records))
    jobs = jobs_table(state, sessions, records)
    write_table(strategies, folder / "strategies.csv")
    write_table(jobs, folder / "jobs.csv")
    stopped: Page = {}
    if state.sweep.stop:
        rows = stopping_table(state)
        stopped = {"Stopped early": rows, "What early stopping saved": summarize_savings(state, rows)}
    trials = read_table(folder / "trials.csv")
    ranking = rank_sweep(state)
    write_best(config, state, ranking)
    write_table(configurations := ranking_table(ranking), folder / "ranking.csv")
    turned = strategies.set_index("strategy").T.rename_axis(index=None, columns=None).reset_index(names="")
    return {
        "": "; ".join(describe_ranking(ranking)),
        **({"Configurations: means over seeds": configurations} if ranking.has_seeds else {}),
        "Trials": trials,
        **stopped,
        "Cost, compared with other strategies": turned,
        "Jobs: planned and measured": jobs.assign(start=jobs["start"].map(format_time)),
    }


def _write_scaling(config: Config, name: str, results: Path) -> Page:
    folder, study = results / "scaling" / name, config.scaling[name]
    runs = {scale: [folder / run for run in study.runs(scale)] for scale in study.scales}
    table = scaling_table(runs, mode=study.mode, gpu_hour=config.pricing.gpu_hour)
    write_table(table, folder / "scaling.csv")
    advice = recommendation(table)
    log.info("%s", advice)
    return {"": advice, "Scales": table}


def _read_trees(config: Config, name: str, results: Path) -> Page:
    return {"": read_table(results / "trees" / name / "trees.csv")}
