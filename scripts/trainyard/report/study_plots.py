"""All plots of one dataset or study, drawn from its tables."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from trainyard.config.config import Config
from trainyard.config.sweep import is_seed
from trainyard.config.trials import varied_keys
from trainyard.data.staged import Staged, StagedImageMeta
from trainyard.planning.plan import Plan, read_state
from trainyard.planning.sweep_state import SweepState
from trainyard.report import (
    cost_plots,
    data_plots,
    importance,
    metric_plots,
    parallel_plot,
    scaling_plots,
    style,
    timeline_plots,
)
from trainyard.report.plot_list import plots_of
from trainyard.report.plotted_trials import PlottedTrials
from trainyard.report.sweep_tables import counted_unit, curve_column
from trainyard.results.ranking import Ranking, rank_sweep
from trainyard.utils.csv_files import read_table
from trainyard.utils.text import count_of, format_precise_duration

WIDTH: Final = 8.0  # inches
MAX_FEATURES: Final = 15  # of a tree model whose importances are shown


def draw_plots(config: Config, kind: str, name: str, results: Path) -> Path:
    """Draw all plots of a dataset (kind `data`) or study as SVG and PNG; return their folder."""
    source, target = results / kind / name, results / "plots" / kind / name
    draw = {"data": _draw_data, "sweeps": _draw_sweep, "scaling": _draw_scaling, "trees": _draw_trees}[kind]
    draw(config, name, source, target)
    return target


def draw_plan(plan: Plan, results: Path) -> None:
    """Draw the planned schedule of a sweep, if trials are pending."""
    if plan.forecast.pending:
        size = (WIDTH, style.lanes_height(plan.request.slot_count))
        style.save(partial(timeline_plots.plot_schedule, plan=plan), results / "plan" / plan.state.name, size=size)


def _draw_data(config: Config, name: str, source: Path, target: Path) -> None:
    staged = Staged(source)
    meta, split = staged.require(StagedImageMeta), staged.split("train")
    lines = -(-min(data_plots.MAX_IMAGES, len(split.labels)) // data_plots.COLUMNS)
    grid = partial(data_plots.plot_samples, split=split, meta=meta)
    style.save(grid, target / "samples", size=(WIDTH, 0.5 + lines))
    style.save(partial(data_plots.plot_class_balance, meta=meta), target / "classes")


def _draw_sweep(config: Config, name: str, source: Path, target: Path) -> None:
    tables = ("trials", "timeline", "epochs", "strategies", "jobs")
    trials, timeline, epochs, strategies, jobs = (read_table(source / f"{table}.csv") for table in tables)
    state = read_state(config.sweeps[name], name, source.parents[1])
    ranked, unit = rank_trials(state, trials, rank_sweep(state)), state.sweep.slots.unit
    if unit == "CPU":
        timeline = timeline.assign(gpus_per_trial=state.sweep.slots.units_per_trial)
        strategies, jobs = map(_cpus_as_gpus, (strategies, jobs))
    slots = timeline_plots.held_slots(timeline, jobs)["slot"].nunique()
    gantt = partial(timeline_plots.plot_gantt, timeline=timeline, jobs=jobs, ranked=ranked)
    style.save(gantt, target / "gantt", size=(WIDTH, style.lanes_height(slots)))
    charged = {"strategies": strategies, "unit": counted_unit(unit, timeline)}
    packing = partial(cost_plots.plot_packing, timeline=timeline, trials=trials, jobs=jobs, **charged)
    style.save(packing, target / "packing", size=(WIDTH, min(5.6, 2 + 0.12 * (len(trials) + slots))))
    style.save(partial(cost_plots.plot_waste, jobs=jobs, **charged), target / "waste", size=(WIDTH, 3))
    style.save(partial(cost_plots.plot_predictions, timeline=timeline, jobs=jobs), target / "prediction")
    joined = len(ranked.keys) == 1 and not (state.sweep.sample or state.sweep.search)
    rows, columns = metric_plots.facet_grid(len(metric_plots.facet_keys(ranked)))
    size = (6.4, 3.8) if columns == 1 else (WIDTH, 1.3 + 2.3 * rows)
    metric = partial(metric_plots.plot_metric, ranked=ranked, joined=joined)
    style.save(metric, target / "metric", size=size, panels=(rows, columns))
    wanted = plots_of(config, "sweeps", name)
    if "front" in wanted:
        rows, columns = metric_plots.facet_grid(len(metric_plots.front_pairs(ranked.ranking)))
        size = (6.4, 4.2) if columns == 1 else (WIDTH, 1.3 + 2.9 * rows)
        front = partial(metric_plots.plot_front, ranking=ranked.ranking)
        style.save(front, target / "front", size=size, panels=(rows, columns))
    if "parallel" in wanted:
        style.save(partial(parallel_plot.plot_parallel, ranked=ranked), target / "parallel", size=(WIDTH, 4.2))
    if "importance" in wanted:
        style.save(partial(importance.plot_importance, ranked=ranked), target / "importance")
    keys = varied_keys(list(state.trials.values()))
    curve = curve_column(epochs, [ranked.ranking.metric, "val_loss"], keys)
    losses = partial(metric_plots.plot_epochs, epochs=epochs, ranked=ranked, curve=curve)
    style.save(losses, target / "loss", size=(WIDTH, 4))


def rank_trials(state: SweepState, trials: pd.DataFrame, ranking: Ranking) -> PlottedTrials:
    """The trials of a sweep as its plots show them, ranked, by the keys that differ."""
    keys = [key for key in varied_keys(list(state.trials.values())) if key not in state.constant_keys]
    names = {key: trials[key].convert_dtypes().astype(object) for key in keys if is_seed(key)}  # no quantities
    shown = trials.assign(**{key: style.fill_missing(names.get(key, trials[key])) for key in keys})
    return PlottedTrials(shown, keys, ranking, {key: state.sweep.is_log(key) for key in keys})


def _cpus_as_gpus(table: pd.DataFrame) -> pd.DataFrame:
    """The table of a sweep without GPUs with its CPUs where others have GPUs, so that the same code draws it."""
    names = {name: name.replace("cpu", "gpu") for name in table if "cpu" in name}
    return table.drop(columns=list(names.values())).rename(columns=names)


def _draw_scaling(config: Config, name: str, source: Path, target: Path) -> None:
    scales, scaling = config.scaling[name].scales, read_table(source / "scaling.csv")
    histories = [(scale, read_table(source / scale / "history.csv")) for scale in scales]
    shown = scales[: scaling_plots.MAX_TELEMETRY]
    samples = {scale: scaling_plots.read_telemetry(source / scale) for scale in shown}
    speedup = partial(scaling_plots.plot_speedup, scaling=scaling)
    style.save(speedup, target / "speedup", size=(WIDTH, 4.2), panels=(1, 2))
    losses = partial(scaling_plots.plot_losses, histories=histories, scaling=scaling)
    style.save(losses, target / "loss", size=(WIDTH, 3.8), panels=(1, 2))
    style.save(partial(scaling_plots.plot_steps, scaling=scaling), target / "steps", size=(WIDTH, 3.8))
    on_gpu = bool((scaling["device"] != "cpu").all())
    telemetry = partial(scaling_plots.plot_telemetry, samples=samples, on_gpu=on_gpu)
    style.save(telemetry, target / "telemetry", size=(WIDTH, 1 + 1.3 * len(shown)), panels=(len(shown), 2))


def _draw_trees(config: Config, name: str, source: Path, target: Path) -> None:
    trees = read_table(source / "trees.csv")
    style.save(partial(plot_scores, trees=trees), target / "scores", size=(6.4, 1.6 + 0.7 * len(trees)))
    models, shares = trees["model"].tolist(), read_table(source / "importances.csv")
    bars = partial(plot_feature_importances, models=models, shares=shares)
    rows = min(MAX_FEATURES, shares["model"].value_counts().max() if len(shares) else 0)
    style.save(bars, target / "importance", size=(WIDTH, 1.4 + 0.2 * rows), panels=(1, len(models)))


def plot_scores(axes: Axes, trees: pd.DataFrame) -> None:
    """Training and validation score of every tree model; its label contains the seconds of the fit."""
    rows = np.arange(len(trees))
    for offset, split, color in ((-0.17, "train", style.COLORS[4]), (0.17, "val", style.COLORS[0])):
        name = {"train": "training", "val": "validation"}[split]
        bars = axes.barh(rows + offset, trees[split], height=0.32, color=color, label=name)
        axes.bar_label(bars, fmt="{:.4g}", padding=3, fontsize=8)
    labels = [
        f"{row.model}\n{format_precise_duration(row.seconds)}, {count_of(row.threads, 'thread')}"
        for row in trees.itertuples()
    ]
    style.label_rows(axes, labels)
    axes.margins(x=0.12)
    axes.set_xlabel({"accuracy": "accuracy", "rmse": "RMSE (in the target's unit)"}[trees["metric"].iloc[0]])
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, 1.14), ncols=2)


def plot_feature_importances(*panels: Axes, models: Sequence[str], shares: pd.DataFrame) -> None:
    """The most important features of every tree model, by their share of the gain of all splits."""
    for axes, model in zip(panels, models, strict=True):
        used = shares[shares["model"] == model]
        top = used.nlargest(MAX_FEATURES, "importance")
        axes.set_title(model)
        if used.empty:
            style.write_in_center(axes, "no importances: the model has no splits")
            continue
        axes.barh(np.arange(len(top)), top["importance"], height=0.6, color=style.COLORS[4])
        style.label_rows(axes, [style.shorten(str(name), 24) for name in top["feature"]])
        axes.xaxis.set_major_formatter(PercentFormatter(1))
        axes.set_xlabel(f"share of the gain of all splits\n({len(top)} of {count_of(len(used), 'feature')} in use)")
