"""All plots of one dataset or study, drawn from its tables."""

from functools import partial
from pathlib import Path

from trainyard.config.config import Config
from trainyard.config.trials import main_key, varied_keys
from trainyard.data.staged import Staged
from trainyard.planning.plan import plan_sweep, read_state
from trainyard.report import data_plots, scaling_plots, style, sweep_plots, tree_plots
from trainyard.report.sweep_tables import find_ranking_metric
from trainyard.utils.csv_files import read_table

MAX_LANES = 32  # slots that get a lane of full height


def draw_plots(config: Config, kind: str, name: str, results: Path) -> Path:
    """Draw all plots of a dataset (kind `data`) or study as SVG and PNG; return their folder."""
    source, target = results / kind / name, results / "plots" / kind / name
    draw = {"data": _draw_data, "sweeps": _draw_sweep, "scaling": _draw_scaling, "trees": _draw_trees}[kind]
    draw(config, name, source, target)
    return target


def draw_plan(config: Config, name: str, results: Path, *, limit_minutes: float, limit_gpus: float) -> None:
    """Draw the planned schedule of a sweep, if trials are pending."""
    plan = plan_sweep(config, name, results, limit_minutes=limit_minutes, limit_gpus=limit_gpus)
    if plan.forecast.pending:
        size = (8, 1.4 + 0.4 * min(plan.request.slots.count, MAX_LANES))
        style.save(partial(sweep_plots.plot_schedule, plan=plan), results / "plan" / name, size=size)


def _draw_data(config: Config, name: str, source: Path, target: Path) -> None:
    staged = Staged(source)
    lines = -(-min(data_plots.MAX_IMAGES, len(staged.split("train").labels)) // data_plots.COLUMNS)
    grid = partial(data_plots.plot_samples, split=staged.split("train"), meta=staged.meta)
    style.save(grid, target / "samples", size=(8, 0.5 + lines))
    style.save(partial(data_plots.plot_class_balance, meta=staged.meta), target / "classes")


def _draw_sweep(config: Config, name: str, source: Path, target: Path) -> None:
    tables = ("trials", "timeline", "epochs", "strategies", "jobs")
    trials, timeline, epochs, strategies, jobs = (read_table(source / f"{table}.csv") for table in tables)
    state = read_state(config.sweeps[name], name, source.parents[1])
    keys, key = varied_keys(list(state.trials.values())), main_key(list(state.trials.values()))
    for varied in keys:
        trials[varied], epochs[varied] = style.fill_missing(trials[varied]), style.fill_missing(epochs[varied])
    metric, mode = find_ranking_metric(state, trials)
    log_scale = state.sweep.is_log(key)
    slots, count = timeline["slot"].nunique(), len(trials)
    gantt = partial(sweep_plots.plot_gantt, timeline=timeline, trials=trials, jobs=jobs, key=key, log=log_scale)
    style.save(gantt, target / "gantt", size=(8, 1.4 + 0.4 * min(slots, MAX_LANES)))
    packing = partial(sweep_plots.plot_packing, timeline=timeline, trials=trials, jobs=jobs, strategies=strategies)
    style.save(packing, target / "packing", size=(8, min(12.0, 2 + 0.12 * (count + slots))))
    style.save(partial(sweep_plots.plot_waste, strategies=strategies), target / "waste", size=(8, 3))
    style.save(partial(sweep_plots.plot_predictions, timeline=timeline, jobs=jobs), target / "prediction")
    joined = keys == [key] and not (state.sweep.sample or state.sweep.search)
    metric_plot = partial(sweep_plots.plot_metric, trials=trials, key=key, metric=metric, mode=mode)
    style.save(partial(metric_plot, log=log_scale, joined=joined), target / "metric")
    curve = "val_loss" if "val_loss" in epochs else metric
    style.save(partial(sweep_plots.plot_epochs, epochs=epochs, key=key, metric=curve, log=log_scale), target / "loss")


def _draw_scaling(config: Config, name: str, source: Path, target: Path) -> None:
    scales, scaling = config.scaling[name].scales, read_table(source / "scaling.csv")
    histories = [(scale, read_table(source / scale / "history.csv")) for scale in scales]
    samples = {scale: scaling_plots.read_telemetry(source / scale) for scale in scales}
    style.save(partial(scaling_plots.plot_speedup, scaling=scaling), target / "speedup", size=(9, 3.8), panels=(1, 2))
    losses = partial(scaling_plots.plot_losses, histories=histories, scaling=scaling)
    style.save(losses, target / "loss", size=(9, 3.8), panels=(1, 2))
    style.save(partial(scaling_plots.plot_steps, scaling=scaling), target / "steps")
    on_gpu = bool((scaling["device"] != "cpu").all())
    telemetry = partial(scaling_plots.plot_telemetry, samples=samples, on_gpu=on_gpu)
    style.save(telemetry, target / "telemetry", size=(2 + 2.6 * len(scales), 5), panels=(2, len(scales)))


def _draw_trees(config: Config, name: str, source: Path, target: Path) -> None:
    trees = read_table(source / "trees.csv")
    style.save(partial(tree_plots.plot_scores, trees=trees), target / "scores", size=(6.4, 1.6 + 0.7 * len(trees)))
