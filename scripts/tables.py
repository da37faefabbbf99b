"""Make the tables of a scaling study and the account of a sweep, and pages for the report from those of any study."""

import argparse
import logging
from pathlib import Path

import pandas as pd
from trainyard.cli import command_line
from trainyard.config.config import Config
from trainyard.config.load import read_config
from trainyard.planning.accounting import jobs_table, records_of, strategies_of, strategies_table
from trainyard.planning.plan import plan_sweep
from trainyard.report.html_page import write_page
from trainyard.report.sweep_tables import stopping_table, summarize_best, summarize_savings
from trainyard.scaling.table import recommendation, scaling_table
from trainyard.utils.csv_files import read_table, write_parquet, write_table
from trainyard.utils.text import format_time

log = logging.getLogger("tables")


def main(arguments: argparse.Namespace) -> None:
    """Write a study's tables, if it is not the study's own program that does, and its page."""
    config = read_config(arguments.config)
    command_line.section(config, arguments.kind, arguments.name)
    make = {"sweeps": _sweep, "scaling": _scaling, "trees": _trees}[arguments.kind]
    parts = make(config, arguments.name, arguments.results)
    if config.tables.parquet:
        for path in (arguments.results / arguments.kind / arguments.name).rglob("*.csv"):
            if path.parent.name != "telemetry":
                write_parquet(path)
    page = arguments.results / "tables" / arguments.kind / f"{arguments.name}.html"
    write_page(parts, page, title=f"{arguments.kind}: {arguments.name}")
    log.info("tables in %s, page %s", arguments.results / arguments.kind / arguments.name, page)


def _sweep(config: Config, name: str, results: Path) -> dict[str, pd.DataFrame | str]:
    folder = results / "sweeps" / name
    plan = plan_sweep(config, name, results)
    runs = plan.sessions
    records = records_of(runs)
    strategies = strategies_table(strategies_of(plan, runs, records))
    jobs = jobs_table(plan, runs, records)
    write_table(strategies, folder / "strategies.csv")
    write_table(jobs, folder / "jobs.csv")
    stopped = {}
    if plan.sweep.stop:
        rows = stopping_table(plan)
        stopped = {"Stopped early": rows, "What early stopping saved": summarize_savings(plan, rows)}
    trials = read_table(folder / "trials.csv")
    best = summarize_best(plan, trials)
    log.info("%s", best)
    turned = strategies.set_index("strategy").T.rename_axis(index=None, columns=None).reset_index(names="")
    return {
        "": best,
        "Trials": trials,
        **stopped,
        "What it cost, and would have cost otherwise": turned,
        "Its jobs, as planned and as they were": jobs.assign(start=jobs["start"].map(format_time)),
    }


def _scaling(config: Config, name: str, results: Path) -> dict[str, pd.DataFrame | str]:
    folder, study = results / "scaling" / name, config.scaling[name]
    runs = {scale: [folder / run for run in study.runs(scale)] for scale in study.scales}
    table = scaling_table(runs, mode=study.mode, gpu_hour=config.pricing.gpu_hour)
    write_table(table, folder / "scaling.csv")
    advice = recommendation(table)
    log.info("%s", advice)
    return {"": advice, "Scales": table}


def _trees(config: Config, name: str, results: Path) -> dict[str, pd.DataFrame | str]:
    return {"": read_table(results / "trees" / name / "trees.csv")}


def _arguments() -> argparse.Namespace:
    example = "python scripts/tables.py --config config/config.yaml --kind scaling --name width"
    parser = command_line.parser("Make the tables of a study.", example=example)
    parser.add_argument("--kind", required=True, choices=["sweeps", "scaling", "trees"], help="the config's section")
    parser.add_argument("--name", required=True, metavar="NAME", help="a name in that section of the config")
    return parser.parse_args()


if __name__ == "__main__":
    command_line.run(main, _arguments())
