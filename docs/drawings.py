"""Draw flow.svg and layers.svg of docs/architecture.md: `python docs/drawings.py`, or `make docs`.

`--png FOLDER` writes PNGs there instead, to look at. The layers and their descriptions are read from `pyproject.toml`
and from the docstring of each package, so the drawing follows the code.
"""

import argparse
import ast
import tomllib
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Rectangle

ROOT = Path(__file__).parents[1]
INK, GREY, PAPER, BLUE = "#222222", "#777777", "#ffffff", "#2b6cb0"
DATA, SWEEPS, SCALING, REPORT = "#dbe9f6", "#fde3c8", "#dcefd9", "#f0f0f0"  # faces of boxes
TRIALS = ("#e6803c", "#f0a468", "#f7c79b")  # the longest trial of a slot first
RANK = "#8fc98a"
COLUMNS = {  # heading: left edge and width, in inches
    "config.yaml": (0.2, 1.45),
    "before submission": (2.05, 1.85),
    "Slurm job": (4.55, 2.5),
    "durable state": (7.5, 1.9),
    "declared output": (9.85, 1.75),
    "report": (12.05, 1.5),
}
CONFIG, PLAN, JOB, STATE, OUTPUT, PAGES = COLUMNS.values()
Column = tuple[float, float]


def canvas(width: float, height: float) -> tuple[Figure, Axes]:
    """An empty figure with axes in inches, the origin at the bottom left."""
    figure = Figure(figsize=(width, height), facecolor=PAPER)
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(0, height))
    axes.set_axis_off()
    return figure, axes


def box(axes: Axes, column: Column, y: float, height: float, face: str, text: str) -> None:
    """A rounded box in a column, `y` at the middle of its height; the first line of its text is its title."""
    (x, width), (title, *lines) = column, text.splitlines()
    style = "round,pad=0,rounding_size=0.08"
    axes.add_patch(FancyBboxPatch((x, y - height / 2), width, height, boxstyle=style, fc=face, ec=INK, lw=0.8))
    top = y + height / 2 - 0.2
    axes.text(x + 0.12, top, title, fontsize=9.5, weight="bold", color=INK, va="center")
    for number, line in enumerate(lines, start=1):
        axes.text(x + 0.12, top - 0.185 * number, line, fontsize=7.8, color=INK, va="center")


def arrow(axes: Axes, *points: tuple[float, float], color: str = INK) -> None:
    """A polyline whose last segment ends in an arrowhead."""
    *_, before, end = points
    axes.plot(*zip(*points[:-1], strict=True), color=color, lw=1.1)
    style = {"arrowstyle": "-|>,head_width=0.18,head_length=0.35", "color": color, "lw": 1.1}
    axes.annotate("", xy=end, xytext=before, arrowprops=style | {"shrinkA": 0, "shrinkB": 0})


def across(axes: Axes, y: float, *columns: Column) -> None:
    """Arrows at height `y` from each column to the next."""
    for (left, width), (right, _) in pairwise(columns):
        arrow(axes, (left + width, y), (right, y))


def note(axes: Axes, x: float, y: float, text: str, color: str = INK) -> None:
    """A word on an arrow, its middle at (x, y)."""
    axes.text(x, y, text, fontsize=7.8, style="italic", color=color, va="center", ha="center")


def slots(axes: Axes, x: float, y: float) -> None:
    """Three slots with the trials that each runs, one after another."""
    for row, widths in enumerate([(1.0, 0.45, 0.3), (0.85, 0.55, 0.35), (0.7, 0.6, 0.45)]):
        left, bottom = x + 0.42, y + 0.26 * (2 - row)
        axes.text(left - 0.05, bottom + 0.1, f"slot {row}", fontsize=6.8, ha="right", va="center", color=INK)
        for width, color in zip(widths, TRIALS, strict=True):
            axes.add_patch(Rectangle((left, bottom), width - 0.03, 0.2, fc=color, ec=INK, lw=0.5))
            left += width


def ranks(axes: Axes, x: float, y: float) -> None:
    """Two nodes, each with a torchrun that runs two ranks."""
    for node in range(2):
        left = x + 1.12 * node
        axes.add_patch(Rectangle((left, y), 1.04, 0.52, fc=PAPER, ec=INK, lw=0.5))
        axes.text(left + 0.52, y + 0.41, f"torchrun, node {node}", fontsize=6.8, ha="center", va="center", color=INK)
        for rank in range(2):
            corner = (left + 0.05 + 0.48 * rank, y + 0.06)
            axes.add_patch(Rectangle(corner, 0.46, 0.22, fc=RANK, ec=INK, lw=0.5))
            name = f"rank {2 * node + rank}"
            axes.text(corner[0] + 0.23, corner[1] + 0.1, name, fontsize=6.8, ha="center", va="center", color=INK)


def flow() -> Figure:
    """How data and trials flow from the config to the report."""
    figure, axes = canvas(13.75, 6.35)
    data, sweeps, scaling = heights = (5.3, 3.35, 1.2)
    for heading, (left, width) in COLUMNS.items():
        place = (left + width / 2, 6.1)
        axes.text(*place, heading, fontsize=10.5, color=GREY, ha="center", va="center", weight="bold")
    draw_datasets(axes, data)
    draw_sweeps(axes, sweeps)
    draw_scaling(axes, scaling)
    text = "tables, plots\nresults/tables/*.html,\nresults/plots/*.svg\nand *.png\n\nreport.html holds\nthem all"
    box(axes, PAGES, 3.05, 5.3, REPORT, text)
    for y in heights:
        across(axes, y, JOB, STATE, OUTPUT, PAGES)
    # Every job reads the staged files: a line from them down the left side of the jobs, with a branch to each.
    (job, job_width), x = JOB, STATE[0] + STATE[1] / 2
    for y in (sweeps + 0.45, scaling + 0.45):
        arrow(axes, (x, data - 0.4), (x, 4.55), (job - 0.28, 4.55), (job - 0.28, y), (job, y), color=BLUE)
    note(axes, job + job_width / 2, 4.67, "mapped into memory, or copied to the node's disk", BLUE)
    return figure


def draw_datasets(axes: Axes, y: float) -> None:
    """From the source of a dataset to the staged files."""
    box(axes, CONFIG, y, 0.8, DATA, "datasets\nsource: imagefolder,\ntorchvision, table, ...")
    box(axes, JOB, y, 0.8, DATA, "stage\ndecodes the source on all CPUs,\nshard by shard")
    box(axes, STATE, y, 0.8, DATA, "staged files\nuint8 .npy, or .parquet;\nfinished shards")
    box(axes, OUTPUT, y, 0.8, DATA, "meta.json\ncounts, classes, digests")
    across(axes, y, CONFIG, JOB)


def draw_sweeps(axes: Axes, y: float) -> None:
    """From the trials of a sweep to its tables, and from its journal back to the plan."""
    box(axes, CONFIG, y, 0.8, SWEEPS, "sweeps\ngrid, trials, sample,\nsearch, stop, slots")
    plan = "trials, then plan\neach trial has an identity;\npending trials, predicted\ndurations, number of slots,"
    box(axes, PLAN, y, 1.3, SWEEPS, plan + "\nwalltime")
    box(axes, JOB, y, 1.7, SWEEPS, "sweep\nthe driver feeds one worker per slot\n(Ray actor), longest trials first")
    slots(axes, JOB[0] + 0.15, y - 0.7)
    journal = "sessions/*.jsonl\nan event per line: started,\nepoch, finished, failed, ...;"
    box(axes, STATE, y, 1.3, SWEEPS, journal + "\ncheckpoints of long trials,\noutput of programs")
    tables = "trials.csv\ntimeline.csv, epochs.csv;\nfrom these and from sacct:\nstrategies.csv, jobs.csv"
    box(axes, OUTPUT, y, 1.3, SWEEPS, tables)
    across(axes, y, CONFIG, PLAN, JOB)
    (left, right), below = (each[0] + each[1] / 2 for each in (PLAN, STATE)), y - 1.05
    arrow(axes, (right, y - 0.65), (right, below), (left, below), (left, y - 0.65))
    note(axes, JOB[0] + JOB[1] / 2, below - 0.12, "which trials are finished, and how long they took")


def draw_scaling(axes: Axes, y: float) -> None:
    """From the scales of a scaling study to its table."""
    box(axes, CONFIG, y, 0.8, SCALING, "scaling\nscales: 1x1, 1x8, 4x2;\ntrain or script")
    box(axes, PLAN, y, 0.8, SCALING, "one job per scale\npredicted from the scales\nthat have finished")
    box(axes, JOB, y, 1.5, SCALING, "train\na launcher on every node,\na rank on every GPU")
    ranks(axes, JOB[0] + 0.17, y - 0.62)
    box(axes, STATE, y, 0.8, SCALING, "checkpoints\nthe last two and the best;\ntelemetry")
    box(axes, OUTPUT, y, 1.0, SCALING, "summary.json\nhistory.csv per scale;\nfrom all scales:\nscaling.csv")
    across(axes, y, CONFIG, PLAN, JOB)


def layers() -> Figure:
    """The packages of the library on their layers, the highest first."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    floors = next(each["layers"] for each in contracts if each["type"] == "layers")
    rows = [[name.strip() for name in floor.split("|")] for floor in floors]
    top = 0.34 * sum(map(len, rows)) + 0.14 * len(rows) + 0.1
    figure, axes = canvas(9.4, top + 0.05)
    y = top
    for packages in rows:
        height = 0.34 * len(packages) + 0.06
        y -= height + 0.08
        axes.add_patch(Rectangle((0.15, y), 8.6, height, fc=DATA, ec=INK, lw=0.8))
        draw_floor(axes, y + height - 0.03, packages)
    arrow(axes, (9.05, top - 0.1), (9.05, 0.15), color=GREY)
    axes.text(9.2, top / 2, "imports", fontsize=9, color=GREY, rotation=270, ha="center", va="center")
    return figure


def draw_floor(axes: Axes, top: float, packages: Sequence[str]) -> None:
    """The packages of a layer and what each is for, from above."""
    for index, package in enumerate(packages):
        y = top - 0.34 * (index + 0.5)
        axes.text(0.3, y, package, fontsize=10, weight="bold", color=INK, va="center")
        axes.text(1.6, y, described(package), fontsize=9.5, color=INK, va="center")


def described(package: str) -> str:
    """The first line of a package's docstring, without its full stop."""
    text = (ROOT / "scripts/trainyard" / package / "__init__.py").read_text()
    return (ast.get_docstring(ast.parse(text)) or "").splitlines()[0].rstrip(".")


def main() -> None:
    """Write both drawings."""
    parser = argparse.ArgumentParser(description="Draw flow.svg and layers.svg of docs/architecture.md.")
    parser.add_argument("--png", type=Path, metavar="FOLDER", help="write PNGs here instead")
    folder = parser.parse_args().png
    mpl.rcParams["svg.hashsalt"] = "trainyard"  # the same bytes for the same drawing
    for name, figure in {"flow": flow(), "layers": layers()}.items():
        if folder:
            folder.mkdir(parents=True, exist_ok=True)
            figure.savefig(folder / f"{name}.png", dpi=130)
        else:
            figure.savefig(ROOT / f"docs/{name}.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
