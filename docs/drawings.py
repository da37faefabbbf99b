"""Draw flow.svg and layers.svg of docs/architecture.md: `python docs/drawings.py`, or `make docs`.

With `--png FOLDER`, write PNGs there instead, to look at. The layers and their descriptions are read from
`pyproject.toml` and from the docstring of each package, so that the drawing cannot contradict the code.
"""

import argparse
import ast
import tomllib
from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Rectangle

ROOT = Path(__file__).parents[1]
INK, GREY, PAPER = "#222222", "#777777", "#ffffff"
DATA, SWEEP, SCALING, TREES, REPORT = "#dbe9f6", "#fde3c8", "#dcefd9", "#ebe1f2", "#f0f0f0"  # faces of boxes
TRIALS = ("#e6803c", "#f0a468", "#f7c79b", "#fbdcbf")  # bars of trials, the longest one first


def canvas(width: float, height: float) -> tuple[Figure, Axes]:
    """An empty figure with axes in inches, the origin at the bottom left."""
    figure = Figure(figsize=(width, height), facecolor=PAPER)
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(0, height))
    axes.set_axis_off()
    return figure, axes


def box(
    axes: Axes, x: float, y: float, width: float, height: float, face: str, title: str, lines: Sequence[str] = ()
) -> None:
    """A rounded box with its lower left corner at (x, y): a title, and lines below it."""
    shape = FancyBboxPatch((x, y), width, height, boxstyle="round,pad=0,rounding_size=0.08", fc=face, ec=INK, lw=0.8)
    axes.add_patch(shape)
    top = y + height - 0.2
    axes.text(x + 0.12, top, title, fontsize=9.5, weight="bold", color=INK, va="center")
    for number, line in enumerate(lines, start=1):
        axes.text(x + 0.12, top - 0.185 * number, line, fontsize=7.8, color=INK, va="center")


def arrow(axes: Axes, points: Sequence[tuple[float, float]], text: str = "", at: tuple[float, float] = (0, 0)) -> None:
    """A polyline whose last segment ends in an arrowhead."""
    *_, before, end = points
    axes.plot(*zip(*points[:-1], strict=True), color=INK, lw=1.1, solid_capstyle="butt")
    style = {"arrowstyle": "-|>,head_width=0.18,head_length=0.35", "color": INK, "lw": 1.1, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", xy=end, xytext=before, arrowprops=style)
    if text:
        axes.text(*at, text, fontsize=7.8, style="italic", color=INK, va="center", ha="center",
                  bbox={"fc": PAPER, "ec": "none", "pad": 1})  # fmt: skip


def slots(axes: Axes, x: float, y: float) -> None:
    """Three slots with the trials that each runs, one after another."""
    for row, widths in enumerate([(1.0, 0.45, 0.3), (0.85, 0.55, 0.35), (0.7, 0.6, 0.45)]):
        left, bottom = x + 0.42, y + 0.26 * (2 - row)
        axes.text(left - 0.05, bottom + 0.1, f"slot {row}", fontsize=6.8, ha="right", va="center", color=INK)
        for width, colour in zip(widths, TRIALS, strict=False):
            axes.add_patch(Rectangle((left, bottom), width - 0.03, 0.2, fc=colour, ec=INK, lw=0.5))
            left += width


def ranks(axes: Axes, x: float, y: float) -> None:
    """Two nodes, each with a torchrun that runs two ranks."""
    for node in range(2):
        left = x + 1.12 * node
        axes.add_patch(Rectangle((left, y), 1.04, 0.52, fc=PAPER, ec=INK, lw=0.5))
        axes.text(left + 0.52, y + 0.41, f"torchrun, node {node}", fontsize=6.8, ha="center", va="center", color=INK)
        for rank in range(2):
            place = (left + 0.05 + 0.48 * rank, y + 0.06)
            axes.add_patch(Rectangle(place, 0.46, 0.22, fc="#8fc98a", ec=INK, lw=0.5))
            name = f"rank {2 * node + rank}"
            axes.text(place[0] + 0.23, place[1] + 0.1, name, fontsize=6.8, ha="center", va="center", color=INK)


COLUMNS = {  # heading: left edge and width
    "config.yaml": (0.2, 1.45),
    "before submission": (2.05, 1.95),
    "Slurm job": (4.4, 2.5),
    "durable state": (7.4, 1.9),
    "declared output": (9.75, 1.75),
    "report": (11.95, 1.5),
}


def flow() -> Figure:
    """How data and trials flow from the config to the report."""
    figure, axes = canvas(13.65, 7.45)
    (c, cw), (p, pw), (j, jw), (d, dw), (o, ow), (r, rw) = COLUMNS.values()
    for heading, (left, width) in COLUMNS.items():
        axes.text(left + width / 2, 7.2, heading, fontsize=10.5, color=GREY, ha="center", va="center", weight="bold")
    middle = {"data": 6.4, "sweeps": 4.45, "scaling": 2.3, "trees": 0.75}

    # Datasets
    y = middle["data"]
    box(axes, c, y - 0.4, cw, 0.8, DATA, "datasets", ["source: imagefolder,", "torchvision, table, ..."])
    box(axes, j, y - 0.4, jw, 0.8, DATA, "stage", ["decodes the source on all CPUs,", "shard by shard"])
    box(axes, d, y - 0.4, dw, 0.8, DATA, "staged files", ["uint8 .npy or .parquet;", "finished shards"])
    box(axes, o, y - 0.4, ow, 0.8, DATA, "meta.json", ["counts, classes, digests"])

    # Sweeps
    y = middle["sweeps"]
    box(axes, c, y - 0.4, cw, 0.8, SWEEP, "sweeps", ["grid, trials, sample,", "search, stop, slots"])
    box(axes, p, y - 0.65, pw, 1.3, SWEEP, "trials, then plan",
        ["each trial has an identity;", "pending trials, predicted", "durations, number of slots,", "walltime"])  # fmt: skip
    box(axes, j, y - 0.85, jw, 1.7, SWEEP, "sweep",
        ["the driver feeds one worker per slot", "(Ray actor), longest trial first"])  # fmt: skip
    slots(axes, j + 0.15, y - 0.7)
    box(axes, d, y - 0.65, dw, 1.3, SWEEP, "journal.jsonl",
        ["an event per line: started,", "epoch, finished, failed, ...;", "checkpoints of long trials,", "output of programs"])  # fmt: skip
    box(axes, o, y - 0.65, ow, 1.3, SWEEP, "trials.csv",
        ["timeline.csv, epochs.csv;", "from these and from sacct:", "strategies.csv, jobs.csv"])  # fmt: skip

    # Scaling studies
    y = middle["scaling"]
    box(axes, c, y - 0.4, cw, 0.8, SCALING, "scaling", ["scales: 1x1, 1x8, 4x2;", "train or script"])
    box(axes, p, y - 0.4, pw, 0.8, SCALING, "one job per scale", ["predicted from the scales", "that have finished"])
    box(axes, j, y - 0.75, jw, 1.5, SCALING, "train", ["a launcher on every node,", "a rank on every GPU"])
    ranks(axes, j + 0.17, y - 0.62)
    box(axes, d, y - 0.4, dw, 0.8, SCALING, "checkpoints", ["the last two and the best;", "telemetry"])
    box(axes, o, y - 0.5, ow, 1.0, SCALING, "summary.json", ["history.csv per scale;", "from all scales:", "scaling.csv"])

    # Tree models
    y = middle["trees"]
    box(axes, c, y - 0.35, cw, 0.7, TREES, "trees", ["xgboost, lightgbm"])
    box(axes, j, y - 0.35, jw, 0.7, TREES, "fit_trees", ["one fit after another, on CPUs"])
    box(axes, d, y - 0.35, dw, 0.7, TREES, "models/", ["in their own formats"])
    box(axes, o, y - 0.35, ow, 0.7, TREES, "trees.csv", ["a row per model"])

    # From left to right
    for kind in ("data", "trees"):
        y = middle[kind]
        arrow(axes, [(c + cw, y), (j, y)])
    for kind in ("sweeps", "scaling"):
        y = middle[kind]
        arrow(axes, [(c + cw, y), (p, y)])
        arrow(axes, [(p + pw, y), (j, y)])
    for y in middle.values():
        arrow(axes, [(j + jw, y), (d, y)])
        arrow(axes, [(d + dw, y), (o, y)])
        arrow(axes, [(o + ow, y), (r, y)])
    box(axes, r, 0.4, rw, 6.4, REPORT, "tables, plots",
        ["results/tables/*.html,", "results/plots/*.svg", "and *.png", "", "report.html holds", "them all"])  # fmt: skip

    # The journal is evidence for the next plan; every job of the dataset reads the staged files.
    y = middle["sweeps"]
    arrow(axes, [(d + dw / 2, y - 0.65), (d + dw / 2, y - 1.05), (p + pw / 2, y - 1.05), (p + pw / 2, y - 0.65)],
          "what is finished and how long it took", (p + pw + 1.65, y - 1.05))  # fmt: skip
    x = d + dw / 2
    arrow(axes, [(x, middle["data"] - 0.4), (x, 5.65), (j + jw / 2, 5.65), (j + jw / 2, y + 0.85)],
          "mapped into memory; copied to the node's own disk", (j + jw / 2 + 1.15, 5.65))  # fmt: skip
    return figure


def layers() -> Figure:
    """The packages of the library on their layers, the highest first."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    floors = next(each["layers"] for each in contracts if each["type"] == "layers")
    rows = [[name.strip() for name in floor.split("|")] for floor in floors]
    count = sum(map(len, rows))
    figure, axes = canvas(9.6, 0.36 * count + 0.14 * len(rows) + 0.2)
    y = 0.36 * count + 0.14 * len(rows) + 0.05
    for number, packages in enumerate(rows):
        height = 0.36 * len(packages)
        y -= height + 0.14
        face = (DATA, PAPER)[number % 2]
        axes.add_patch(Rectangle((0.15, y), 9.3, height + 0.06, fc=face, ec=INK, lw=0.8))
        for index, package in enumerate(packages):
            place = y + height + 0.03 - 0.36 * (index + 0.5)
            axes.text(0.3, place, package, fontsize=10, weight="bold", color=INK, va="center")
            axes.text(1.6, place, described(package), fontsize=9.5, color=INK, va="center")
    return figure


def described(package: str) -> str:
    """The first line of a package's docstring, without its full stop."""
    text = (ROOT / "scripts/trainyard" / package / "__init__.py").read_text()
    return (ast.get_docstring(ast.parse(text)) or "").splitlines()[0].rstrip(".")


def main() -> None:
    """Write both drawings."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--png", type=Path, metavar="FOLDER", help="write PNGs here instead")
    folder = parser.parse_args().png
    mpl.rcParams |= {"svg.hashsalt": "trainyard"}  # the same bytes for the same drawing
    for name, figure in {"flow": flow(), "layers": layers()}.items():
        if folder:
            figure.savefig(folder / f"{name}.png", dpi=130)
        else:
            figure.savefig(ROOT / f"docs/{name}.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
