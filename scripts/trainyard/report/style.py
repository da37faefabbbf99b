"""Pictures from tables, in one style: that of a paper, legible in grey and to the colour-blind."""

import io
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import ListedColormap, LogNorm, Normalize, to_rgba, to_rgba_array
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from trainyard.utils.files import atomic_write

# Okabe and Ito 2008: eight colours that the colour-blind can tell apart, less yellow, which is too light for a line.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
SEQUENCE = ListedColormap(mpl.colormaps["viridis"](np.linspace(0.04, 0.94, 256)), "viridis without its ends")
FAILED = "#D55E00"
IDLE = "#EDEDED"
UNKNOWN = "#888888"
LANE_NAMES = 32  # that an axis has room for
MANY = 1000  # marks, above which an SVG holds them as an image: each takes 150 bytes or more as a shape
STYLE: Any = {
    "figure.figsize": (6.4, 3.8),
    "figure.dpi": 150,
    "figure.constrained_layout.use": True,
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E4E4E4",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "lines.markersize": 5,
    "axes.prop_cycle": cycler(color=list(COLOURS)),
    "svg.fonttype": "none",
    "svg.hashsalt": "trainyard",  # the same data give the same file
}


def draw(
    painter: Callable[..., None],
    path: Path,
    *,
    size: tuple[float, float] | None = None,
    panels: tuple[int, int] = (1, 1),
) -> None:
    """Let `painter` paint one picture in the common style, and write it as `path`.svg and `path`.png, atomically.

    It is given the axes of each panel, row by row.
    """
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=size)
        painter(*figure.subplots(*panels, squeeze=False).flat)
        for suffix in ("svg", "png"):
            content = io.BytesIO()
            figure.savefig(content, format=suffix, metadata={"Date": None} if suffix == "svg" else None)
            with atomic_write(path.with_suffix(f".{suffix}"), "wb") as file:
                file.write(content.getvalue())


def bars(
    axes: Axes,
    lanes: Any,
    begins: Any,
    ends: Any,
    *,
    colour: Any,
    height: Any = 1.0,
    edge: float = 0.6,
    hatch: str | None = None,
) -> None:
    """Draw horizontal bars as one artist; `colour` is that of all, or one for each. Of `height`, four fifths are seen.

    Bars of less than two pixels have no white edges, which would cover them, but edges by which they can be seen.
    """
    if not np.size(lanes):
        return
    lanes, begins, ends, height = map(
        partial(np.asarray, dtype=float), np.broadcast_arrays(lanes, begins, ends, height)
    )
    low, high = lanes - 0.4 * height, lanes + 0.4 * height
    corners = np.stack([begins, low, begins, high, ends, high, ends, low], axis=-1)
    span, pixels = ends.max(initial=0) - begins.min(initial=0), axes.get_window_extent().size
    is_seen = ((ends - begins) * pixels[0] > 2 * span) & (np.ptp(lanes) < pixels[1] / 2 * height)
    faces = np.broadcast_to(to_rgba_array(colour), (len(corners), 4))
    drawn = PolyCollection(
        list(corners.reshape(-1, 4, 2)),
        facecolors=faces,
        edgecolors=np.where(is_seen[:, None], to_rgba("white"), faces),
        linewidths=np.where(is_seen, edge, min(edge, 0.2)),
        antialiaseds=is_seen,
        hatch=hatch,
        rasterized=len(corners) > MANY,
        zorder=2,
    )
    drawn.sticky_edges.x.append(0)
    axes.add_collection(drawn)
    axes.autoscale_view()


def name_lanes(axes: Axes, names: Sequence[str]) -> None:
    """Name the lanes of bars from above, not each of them where there are many."""
    step = -(-len(names) // LANE_NAMES)
    axes.set_yticks(range(0, len(names), step), list(names)[::step])
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)


def thin_names(axes: Axes, values: pd.Series) -> None:
    """Let the x axis name only some of its names where there are many."""
    if values.nunique() > LANE_NAMES:
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))


def label(key: str) -> str:
    """A config key or column as a person would write it on an axis."""
    known = {
        "val_accuracy": "validation accuracy",
        "train_accuracy": "training accuracy",
        "val_loss": "validation loss",
        "train_loss": "training loss",
        "images_per_second": "images per second",
        "lr": "learning rate",
    }
    return known.get(key, key.split(".")[-1].replace("_", " "))


def colours(values: pd.Series, *, log: bool | None = None) -> Callable[[Any], Any]:
    """From a value of a varied key to its colour: along a scale for numbers, from the palette for names."""
    if is_number(values):
        scale = colour_scale(values, log=log)
        return lambda value: SEQUENCE(float(scale(value)))
    names = {name: COLOURS[index % len(COLOURS)] for index, name in enumerate(dict.fromkeys(values.astype(str)))}
    return lambda value: names.get(str(value), UNKNOWN)


def colour_scale(values: pd.Series, *, log: bool | None = None) -> Normalize:
    """What maps numbers to the range of a scale of colours."""
    return (LogNorm if on_log_scale(values, log) else Normalize)(values.min(), values.max())


def on_log_scale(values: pd.Series, declared: bool | None = None) -> bool:
    """Whether numbers are shown on a logarithmic scale: as was declared, or else if they span two decades."""
    if declared is None:
        declared = bool(values.max() > 99 * values.min())
    return bool(declared and values.min() > 0)


def are_fractions(metric: str, values: pd.Series) -> bool:
    """Whether values of a metric can be shown in percent: an accuracy, and none above 1."""
    return metric.endswith("accuracy") and bool(values.dropna().between(0, 1).all())


def named(values: pd.Series) -> pd.Series:
    """The values of a key, those that are empty in the table under a name, unless all others are numbers."""
    return values if is_number(values) else values.astype(object).fillna("(none)")


def is_number(values: pd.Series) -> bool:
    """Whether a column is a scale, rather than names or truths."""
    return bool(pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values))


def readable(face: Any) -> str:
    """The colour of a text on a face of this colour."""
    red, green, blue, _ = to_rgba(face)
    return "black" if 0.299 * red + 0.587 * green + 0.114 * blue > 0.55 else "white"


def short(value: Any) -> str:
    """A value in few letters."""
    return f"{value:.4g}" if isinstance(value, (int, float, np.number)) else str(value)[:12]
