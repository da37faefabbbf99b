"""All tables of one study, and their page for the report."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import pandas as pd

from trainyard.checks.script_checks import describe_spoiled_results
from trainyard.config.config import Config
from trainyard.planning.accounting import compare_strategies, fetch_records, jobs_table, strategies_table
from trainyard.planning.history_files import read_state
from trainyard.report.pages import MAX_ROWS, Part, Parts, ReportTable, write_page
from trainyard.report.plotted_trials import rank_trials
from trainyard.report.trial_charts import trial_charts
from trainyard.results.answer import answer_sweep
from trainyard.results.best_config import write_best
from trainyard.results.provenance import describe_difference, read_sessions
from trainyard.results.ranking import Ranking
from trainyard.results.sweep_tables import (
    RESERVED,
    curve_column,
    metric_column,
    stopping_table,
    summarize_savings,
    write_ranking,
)
from trainyard.scaling.speedups import as_markdown, recommendation, scaling_table, tables_to_paste
from trainyard.utils.csv_files import read_table, write_table
from trainyard.utils.files import atomic_write
from trainyard.utils.text import format_time

log = logging.getLogger("tables")

# Of scaling.csv: groups of columns, each narrow enough for a screen.
QUALITY: Final = "Quality"
REPEATS: Final = "Repeats"
GROUPS: Final[Mapping[str, Sequence[str]]] = {
    "Verdict": ("verdict", "gpus", "train_seconds", "images_per_second", "throughput_scaling", "speedup", "efficiency"),
    "Cost": ("gpu_hours", "gpu_hours_increase", "cost", "cost_per_million_images", "energy_kwh"),
    QUALITY: ("epochs", "global_batch", "lr", "train_loss", "train_accuracy", "val_loss", "val_accuracy"),
    "Where a step's time goes": ("step_ms_p50", "step_ms_p95", "data_wait_fraction", "exposed_comm_fraction",
                                 "epoch_start_seconds"),
    "What was measured": ("program", "measured_steps", "measured_in"),
    "Batches and gradients": ("micro_batch", "accumulation", "gradient_mib"),
    "Memory": ("gpu0_peak_mib", "gpu0_avg_mib", "gpu0_mode_mib", "max_memory_allocated_mib", "memory_avg_scaling",
               "cpu_rss_peak_mib"),
    "Time besides training": ("startup_seconds", "warmup_seconds", "checkpoint_seconds"),
    "Hardware": ("nodes", "device", "precision", "gpu_peak", "tflops_per_gpu", "mfu"),
    REPEATS: ("repeats", "speedup_low", "speedup_high", "train_seconds_spread", "images_per_second_spread"),
}  # fmt: skip

TABLES_TO_PASTE: Final = {"gpus": "By GPUs of one node", "nodes": "By nodes"}  # by file


def write_tables(config: Config, kind: str, name: str, results: Path) -> Path:
    """Write the derived tables of a study, and its page; return the page."""
    make = {"sweeps": _write_sweep, "scaling": _write_scaling}[kind]
    parts = make(config, name, results)
    page = results / "tables" / kind / f"{name}.html"
    write_page(parts, page, title=f"{kind}: {name}")
    return page


def _write_sweep(config: Config, name: str, results: Path) -> Parts:
    folder = results / "sweeps" / name
    state = read_state(config.sweeps[name], name, results)
    sessions = state.sessions
    records = fetch_records(sessions)
    strategies = strategies_table(compare_strategies(state, sessions, records), state.sweep.slots.unit)
    jobs = jobs_table(state, sessions, records)
    write_table(strategies, folder / "strategies.csv")
    write_table(jobs, folder / "jobs.csv")
    stopped: dict[str, Part] = {}
    if state.sweep.stop:
        rows = stopping_table(state)
        stopped = {"Stopped early": ReportTable(rows), "What early stopping saved": summarize_savings(state, rows)}
    trials = read_table(folder / "trials.csv", text=state.keys_with_text)
    answer = answer_sweep(state)
    ranking = answer.ranking
    write_best(config, state, answer)
    configurations = write_ranking(ranking, folder)
    if state.counted_unit == "CPU":  # the columns about GPUs are 0
        strategies, jobs = (table[[name for name in table if "gpu" not in name]] for table in (strategies, jobs))
    elif state.counted_unit == "slot":
        jobs = jobs.drop(columns="gpus")  # their number is in `slots`
        strategies, jobs = (
            table.rename(columns=lambda name: name.replace("gpu", "slot")) for table in (strategies, jobs)
        )
    arranged, epochs = _arrange_trials(trials, ranking), read_table(folder / "epochs.csv")
    curve = curve_column(epochs, [ranking.metric, "val_loss"], state.varied_keys)
    charted = rank_trials(state, arranged.frame.head(MAX_ROWS), ranking)
    spec = trial_charts(charted, epochs, curve)
    best = 0 if ranking.best_trial else None
    turned = strategies.set_index("strategy").T.rename_axis(index=None, columns=None).reset_index(names="measure")
    return {
        "": "; ".join([*answer.lines, *describe_spoiled_results(state.sweep)]),
        **(
            {f"Configurations: means over {ranking.over}": ReportTable(configurations, best)}
            if ranking.has_seeds
            else {}
        ),
        **({"Trials compared": spec} if spec else {}),
        "Trials": arranged,
        **stopped,
        "Cost, compared with other strategies": ReportTable(turned),
        "Jobs: planned and measured": ReportTable(
            jobs.assign(start=jobs["start"].map(format_time)).drop(columns="session")
        ),
    }


def _arrange_trials(trials: pd.DataFrame, ranking: Ranking) -> ReportTable:
    """The trials in the order of the ranking, the best one highlighted; the ranking metric follows the status."""
    ranked = [trial.trial for each in ranking.configurations for trial in each.trials]
    places = {trial: place for place, trial in enumerate(ranked)}
    ordered = trials.sort_values("trial", key=lambda names: names.map(places), kind="stable")
    columns, scored = list(trials), f"{ranking.metric}_score"
    metric = scored if scored in columns else metric_column(trials, ranking.metric)
    if metric in columns and metric not in RESERVED:
        columns.remove(metric)
        columns.insert(columns.index("status") + 1, metric)
    return ReportTable(ordered[columns], best=places[ranking.best_trial.trial] if ranking.best_trial else None)


def _write_scaling(config: Config, name: str, results: Path) -> Parts:
    folder, study = results / "scaling" / name, config.scaling[name]
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
    return {"": advice, **group_scales(table), **{TABLES_TO_PASTE[kind]: ReportTable(pasted[kind]) for kind in pasted}}


def group_scales(scaling: pd.DataFrame) -> dict[str, ReportTable]:
    """The columns of scaling.csv by group, each with the scale first; the recommended scale is highlighted.

    Own metrics follow the columns of `Quality`. A group without a value is omitted, and `Repeats` if there are none.
    """
    best = next((index for index, flag in enumerate(scaling["recommended"]) if flag), None)
    grouped = {"scale", "recommended", *(column for columns in GROUPS.values() for column in columns)}
    own = [name for name in scaling if name not in grouped]
    groups = {name: [*columns, *own] if name == QUALITY else columns for name, columns in GROUPS.items()}
    frames = {name: scaling[["scale", *columns]] for name, columns in groups.items()}
    filled = {name for name, frame in frames.items() if frame.drop(columns="scale").notna().any(axis=None)}
    filled -= {REPEATS} if scaling["repeats"].max() <= 1 else set()
    return {name: ReportTable(frame, best) for name, frame in frames.items() if name in filled}
