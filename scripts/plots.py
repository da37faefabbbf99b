"""Draw the pictures of one study from its tables, as SVG and PNG."""

import argparse
import logging
from functools import partial
from pathlib import Path

from trainyard.cli import command_line
from trainyard.config.config import Config
from trainyard.config.load import read_config
from trainyard.config.trials import main_key, varied_keys
from trainyard.data.staged import Staged
from trainyard.planning.plan import plan_sweep
from trainyard.report import data_plots, scaling_plots, style, sweep_plots, tree_plots
from trainyard.report.sweep_tables import find_ranking_metric
from trainyard.utils.csv_files import read_table

log = logging.getLogger("plots")


def main(arguments: argparse.Namespace) -> None:
    """Draw what this kind of study has."""
    config = read_config(arguments.config)
    command_line.section(config, "datasets" if arguments.kind == "data" else arguments.kind, arguments.name)
    source = arguments.results / arguments.kind / arguments.name
    target = arguments.results / "plots" / arguments.kind / arguments.name
    {"data": _data, "sweeps": _sweep, "scaling": _scaling, "trees": _trees}[arguments.kind](
        config, arguments.name, source, target
    )
    log.info("pictures of %s %s are in %s", arguments.kind, arguments.name, target)


def _data(config: Config, name: str, source: Path, target: Path) -> None:
    staged = Staged(source)
    lines = -(-min(data_plots.SHOWN, len(staged.split("train").labels)) // data_plots.COLUMNS)
    grid = partial(data_plots.sample_grid, split=staged.split("train"), meta=staged.meta)
    style.draw(grid, target / "samples", size=(8, 0.5 + lines))
    style.draw(partial(data_plots.class_balance, meta=staged.meta), target / "classes")


def _sweep(config: Config, name: str, source: Path, target: Path) -> None:
    tables = ("trials", "timeline", "epochs", "strategies", "jobs")
    trials, timeline, epochs, strategies, jobs = (read_table(source / f"{table}.csv") for table in tables)
    plan = plan_sweep(config, name, source.parents[1])
    for key in varied_keys(list(plan.trials.values())):
        trials[key], epochs[key] = style.named(trials[key]), style.named(epochs[key])
    (metric, mode), key = find_ranking_metric(plan, trials), main_key(list(plan.trials.values()))
    log_scale = plan.sweep.is_log(key)
    slots, count = timeline["slot"].nunique(), len(trials)
    gantt = partial(sweep_plots.gantt, timeline=timeline, trials=trials, jobs=jobs, key=key, log=log_scale)
    style.draw(gantt, target / "gantt", size=(8, 1.4 + 0.4 * min(slots, 32)))
    packing = partial(sweep_plots.packing, timeline=timeline, trials=trials, jobs=jobs, strategies=strategies)
    style.draw(packing, target / "packing", size=(8, min(12.0, 2 + 0.12 * (count + slots))))
    style.draw(partial(sweep_plots.waste, strategies=strategies), target / "waste", size=(8, 3))
    style.draw(partial(sweep_plots.predictions, timeline=timeline, jobs=jobs), target / "prediction")
    joined = varied_keys(list(plan.trials.values())) == [key] and not (plan.sweep.sample or plan.sweep.search)
    against = partial(sweep_plots.metric_against, trials=trials, key=key, metric=metric, mode=mode)
    style.draw(partial(against, log=log_scale, joined=joined), target / "metric")
    curve = "val_loss" if "val_loss" in epochs else metric
    style.draw(partial(sweep_plots.curves, epochs=epochs, key=key, metric=curve, log=log_scale), target / "loss")


def _scaling(config: Config, name: str, source: Path, target: Path) -> None:
    scales, scaling = config.scaling[name].scales, read_table(source / "scaling.csv")
    histories = [(scale, read_table(source / scale / "history.csv")) for scale in scales]
    samples = {scale: scaling_plots.read_telemetry(source / scale) for scale in scales}
    style.draw(partial(scaling_plots.speedup, scaling=scaling), target / "speedup", size=(9, 3.8), panels=(1, 2))
    losses = partial(scaling_plots.losses, histories=histories, scaling=scaling)
    style.draw(losses, target / "loss", size=(9, 3.8), panels=(1, 2))
    style.draw(partial(scaling_plots.steps, scaling=scaling), target / "steps")
    on_gpu = bool((scaling["device"] != "cpu").all())
    telemetry = partial(scaling_plots.telemetry, samples=samples, on_gpu=on_gpu)
    style.draw(telemetry, target / "telemetry", size=(2 + 2.6 * len(scales), 5), panels=(2, len(scales)))


def _trees(config: Config, name: str, source: Path, target: Path) -> None:
    trees = read_table(source / "trees.csv")
    style.draw(partial(tree_plots.trees_scores, trees=trees), target / "scores", size=(6.4, 1.6 + 0.7 * len(trees)))


def _arguments() -> argparse.Namespace:
    example = "python scripts/plots.py --config config/config.yaml --kind sweeps --name depth"
    parser = command_line.parser("Draw the pictures of a study.", example=example)
    parser.add_argument("--kind", required=True, choices=["data", "sweeps", "scaling", "trees"], help="what of")
    parser.add_argument("--name", required=True, metavar="NAME", help="the name of a dataset or a study of that kind")
    return parser.parse_args()


if __name__ == "__main__":
    command_line.run(main, _arguments())
