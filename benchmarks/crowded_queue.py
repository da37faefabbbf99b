"""Simulated: a sweep in the queue of a busy cluster, as one job of all its GPUs, as eight jobs, and as an array.

python benchmarks/crowded_queue.py [--seeds 5] [--trials 200] [--picture benchmarks/crowded_queue]

The queue has EASY backfill and the jobs of others (tools/simulated_cluster/queue.py and trace.py); time, Ray and trials
are simulated. In each of Trainyard's jobs runs the driver of a sweep as it is, with its plan, claims, packer and
walltimes; work that is left at a walltime is submitted again. Claims take no time here (claims.py measures it).
"""

import argparse
import os
import statistics
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

from common import ROOT, print_table

sys.path[:0] = [str(ROOT / "tools")]

from simulated_cluster.cluster import Conditions  # noqa: E402
from simulated_cluster.queued_sweep import QueuedOutcome, Shape, Site, run_array, run_jobs  # noqa: E402
from simulated_cluster.sweep import Work  # noqa: E402
from simulated_cluster.trace import HOUR, generate_trace  # noqa: E402

GPUS, JOBS = 64, 4000  # of the cluster; of others
LOADS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
LONG, SHORT = 24 * 60, 4 * 60  # minutes: limits of the walltime
CONDITIONS = Conditions(checkpoint_seconds=600.0)

ROWS: dict[str, Callable[..., QueuedOutcome]] = {
    "one job of 8 GPUs": partial(run_jobs, shape=Shape(1, 8, LONG)),
    "one job of 8 GPUs, at most 4 h": partial(run_jobs, shape=Shape(1, 8, SHORT)),
    "eight jobs of 1 GPU": partial(run_jobs, shape=Shape(8, 1, LONG)),
    "eight jobs of 1 GPU, at most 4 h": partial(run_jobs, shape=Shape(8, 1, SHORT)),
    "array, 8 tasks at a time": partial(run_array, at_most=8),
    "array, all tasks at once": partial(run_array, at_most=10_000),
}
STYLES = ("C0-", "C0--", "C1-", "C1--", "C2--", "C2-")  # of the rows: color and line


def simulate(name: str, work: Work, load: float, seed: int) -> QueuedOutcome:
    """One sweep of a row."""
    site = Site(GPUS, generate_trace(GPUS, load, jobs=JOBS, seed=seed))
    return ROWS[name](work, site=site, conditions=CONDITIONS, seed=seed)


def main() -> None:
    """Print the tables, and draw the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5, help="simulated sweeps per cell (default: 5)")
    parser.add_argument("--trials", type=int, default=200, help="of 20 sizes (default: 200)")
    parser.add_argument("--picture", type=Path, help="write this file as .svg and .png")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes (default: one per CPU core)")
    arguments = parser.parse_args()
    work = Work(trials=arguments.trials, sizes=20, median_seconds=HOUR / 3, max_seconds=4 * HOUR)
    with ProcessPoolExecutor(arguments.jobs) as pool:
        futures = {
            (name, load): [pool.submit(simulate, name, work, load, seed) for seed in range(arguments.seeds)]
            for name in ROWS
            for load in LOADS
        }
        found = {cell: [each.result() for each in own] for cell, own in futures.items()}
    header = ["", *(f"load {load:.0%}" for load in LOADS)]
    for title, value in MEASURES.items():
        rows = [[name, *(_cell(list(map(value, found[name, load]))) for load in LOADS)] for name in ROWS]
        print(f"\n{title}\n")
        print_table(header, rows)
    if arguments.picture:
        draw(found, arguments.picture)


MEASURES: dict[str, Callable[[QueuedOutcome], float]] = {
    "Hours from the submission to the end of the last trial": lambda each: each.last / HOUR,
    "Hours from the submission to the first trial": lambda each: each.first / HOUR,
    "GPU-hours idle": lambda each: each.idle / HOUR,
}


def _cell(values: list[float]) -> str:
    return f"{statistics.median(values):.1f} ({min(values):.1f} to {max(values):.1f})"


def draw(found: dict[tuple[str, float], list[QueuedOutcome]], path: Path) -> None:
    """Draw the medians of the measures over the load."""
    from matplotlib.axes import Axes
    from trainyard.report import style

    def paint(*axes: Axes) -> None:
        for axis, (title, value) in zip(axes, MEASURES.items(), strict=True):
            for name, line in zip(ROWS, STYLES, strict=True):
                medians = [statistics.median(map(value, found[name, load])) for load in LOADS]
                axis.plot([100 * load for load in LOADS], medians, line, label=name)
            axis.set_title(title, fontsize=9)
            axis.set_xlabel("load by others (%)")
            axis.set_ylim(bottom=0)
        axes[0].legend(fontsize=8)

    style.save(paint, path, size=(12.0, 3.6), panels=(1, len(MEASURES)))


if __name__ == "__main__":
    main()
