"""The derived tables of one study."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pandas as pd

from trainyard.config.config import Config
from trainyard.planning.history import History, read_state
from trainyard.results.accounting import compare_strategies, fetch_records, jobs_table, strategies_table
from trainyard.results.answer import answer_sweep
from trainyard.results.best_config import write_best
from trainyard.results.provenance import describe_difference, read_sessions
from trainyard.results.sweep_tables import ranking_table
from trainyard.scaling.speedups import as_markdown, recommendation, scaling_table, tables_to_paste
from trainyard.utils.csv_files import write_table
from trainyard.utils.errors import MissingResultError
from trainyard.utils.files import atomic_write

log = logging.getLogger("tables")

TABLES_TO_PASTE: Final = ("gpus", "nodes")  # files


def write_tables(config: Config, kind: str, name: str, results: Path) -> None:
    """Write the tables of a study that are made from those of its runs.

    Raises:
        MissingResultError: a table of its runs does not exist.
    """
    write = {"sweeps": _write_sweep, "scaling": _write_scaling}[kind]
    write(config, name, results)


def _write_sweep(config: Config, name: str, results: Path) -> None:
    state = read_state(config.sweeps[name], name, results)
    trials = state.folder / "trials.csv"
    if not trials.exists():
        raise MissingResultError(trials)
    answer = answer_sweep(state)
    for table, frame in cost_tables(state, fetch_records(state.sessions)).items():
        write_table(frame, state.folder / f"{table}.csv")
    write_best(config, state, answer)
    write_table(ranking_table(answer.ranking), state.folder / "ranking.csv")


def cost_tables(state: History, records: Mapping[str, Any]) -> dict[str, pd.DataFrame]:
    """The tables strategies.csv and jobs.csv of a sweep, by name, with Slurm's accounting of its jobs."""
    sessions = state.sessions
    return {
        "strategies": strategies_table(compare_strategies(state, sessions, records), state.sweep.slots.unit),
        "jobs": jobs_table(state, sessions, records),
    }


def _write_scaling(config: Config, name: str, results: Path) -> None:
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
