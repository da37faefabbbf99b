"""All plots of one dataset or study, drawn from its tables."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from trainyard.config.config import Config
from trainyard.data.staged import Staged, StagedImageMeta
from trainyard.planning.history import read_state
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
from trainyard.report.plotted_trials import rank_trials
from trainyard.results import load_sweep
from trainyard.results.ranking import rank_sweep
from trainyard.results.sweep_tables import curve_column
from trainyard.utils.csv_files import read_table

WIDTH: Final = 8.0  # inches


def draw_plots(config: Config, kind: str, name: str, results: Path) -> Path:
    """Draw all plots of a dataset (kind `data`) or study as SVG and PNG; return their folder."""
    source = results / kind / name
    target = results / "plots" / kind / name
    draw = {"data": _draw_data, "sweeps": _draw_sweep, "scaling": _draw_scaling}[kind]
    draw(config, name, source, target)
    return target


def _draw_data(config: Config, name: str, source: Path, target: Path) -> None:
    staged = Staged(source)
    meta = staged.require(StagedImageMeta)
    split = staged.split("train")
    lines = -(-min(data_plots.MAX_IMAGES, len(split.labels)) // data_plots.COLUMNS)
    style.save(data_plots.plot_samples, target / "samples", size=(WIDTH, 0.5 + lines), split=split, meta=meta)
    style.save(data_plots.plot_class_balance, target / "classes", meta=meta)


def _draw_sweep(config: Config, name: str, source: Path, target: Path) -> None:
    state = read_state(config.sweeps[name], name, source.parents[1])
    tables = load_sweep(source, text=state.keys_with_text)
    timeline = tables.timeline
    jobs = tables.jobs
    ranked = rank_trials(state, tables.trials, rank_sweep(state))

    def save(plot: str, painter: Callable[..., None], **options: Any) -> None:
        style.save(painter, target / plot, **options)

    save("gantt", timeline_plots.plot_gantt, size=(WIDTH, 3), timeline=timeline, jobs=jobs, ranked=ranked)
    unit = state.counted_unit
    save("waste", cost_plots.plot_waste, size=(WIDTH, 3), jobs=jobs, strategies=tables.strategies, unit=unit)
    save("prediction", cost_plots.plot_predictions, timeline=timeline, jobs=jobs)
    joined = len(ranked.keys) == 1 and not (state.sweep.sample or state.sweep.search)
    grid = metric_plots.facet_grid(len(ranked.facet_keys()))
    save("metric", metric_plots.plot_metric, **_facets(grid, 3.8, 2.3), ranked=ranked, joined=joined)
    wanted = plots_of(config, "sweeps", name)
    if "front" in wanted:
        grid = metric_plots.facet_grid(len(metric_plots.front_pairs(ranked.ranking)))
        save("front", metric_plots.plot_front, **_facets(grid, 4.2, 2.9), ranking=ranked.ranking)
    if "parallel" in wanted:
        save("parallel", parallel_plot.plot_parallel, size=(WIDTH, 4.2), ranked=ranked)
    if "importance" in wanted:
        save("importance", importance.plot_importance, ranked=ranked)
    curve = curve_column(tables.epochs, [ranked.ranking.metric, "val_loss"], state.varied_keys)
    save("loss", metric_plots.plot_epochs, size=(WIDTH, 4), epochs=tables.epochs, ranked=ranked, curve=curve)


def _facets(grid: tuple[int, int], height: float, row_height: float) -> dict[str, Any]:
    """The size and the panels of a figure: `height` of one in a column, `row_height` of each row of several."""
    rows, columns = grid
    return {"size": (6.4, height) if columns == 1 else (WIDTH, 1.3 + row_height * rows), "panels": grid}


def _draw_scaling(config: Config, name: str, source: Path, target: Path) -> None:
    scales = config.scaling[name].scales
    scaling = read_table(source / "scaling.csv")
    histories = [(scale, read_table(source / scale / "history.csv")) for scale in scales]
    shown = scales[: scaling_plots.MAX_TELEMETRY]
    samples = {scale: scaling_plots.read_telemetry(source / scale) for scale in shown}
    style.save(scaling_plots.plot_speedup, target / "speedup", size=(WIDTH, 4.2), panels=(1, 2), scaling=scaling)
    size = (WIDTH, 3.8)
    style.save(
        scaling_plots.plot_losses, target / "loss", size=size, panels=(1, 2), histories=histories, scaling=scaling
    )
    style.save(scaling_plots.plot_steps, target / "steps", size=size, scaling=scaling)
    on_gpu = bool((scaling["device"] != "cpu").all())
    size = (WIDTH, 1 + 1.3 * len(shown))
    panels = (len(shown), 2)
    style.save(
        scaling_plots.plot_telemetry, target / "telemetry", size=size, panels=panels, samples=samples, on_gpu=on_gpu
    )
