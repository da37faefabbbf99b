"""The common style of all plots: suitable for papers, for grayscale printing and for color-blind readers."""

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

# Okabe and Ito 2008: colors that color-blind readers can tell apart, without yellow, which is too light for a line.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
SEQUENCE = ListedColormap(mpl.colormaps["viridis"](np.linspace(0.04, 0.94, 256)), "viridis without its ends")
FAILED = "#D55E00"
IDLE = "#EDEDED"
UNKNOWN = "#888888"
MAX_TICK_LABELS = 32
MANY = 1000  # with more marks, an SVG contains them as an image: as a shape, each takes 150 bytes or more
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
    "axes.prop_cycle": cycler(color=list(COLORS)),
    "svg.fonttype": "none",
    "svg.hashsalt": "trainyard",  # the same data give the same file
}


def save(
    painter: Callable[..., None],
    path: Path,
    *,
    size: tuple[float, float] | None = None,
    panels: tuple[int, int] = (1, 1),
) -> None:
    """Write one figure in the common style as `path`.svg and `path`.png, atomically.

    `painter` gets the axes of all panels, row by row, and draws into them. `size` is in inches.
    """
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=size)
        painter(*figure.subplots(*panels, squeeze=False).flat)
        for suffix in ("svg", "png"):
            content = io.BytesIO()
            figure.savefig(content, format=suffix, metadata={"Date": None} if suffix == "svg" else None)
            with atomic_write(path.with_suffix(f".{suffix}"), "wb") as file:
                file.write(content.getvalue())


def draw_bars(
    axes: Axes,
    lanes: Any,
    starts: Any,
    ends: Any,
    *,
    color: Any,
    height: Any = 1.0,
    edge: float = 0.6,
    hatch: str | None = None,
) -> None:
    """Draw horizontal bars as one artist, centered on `lanes`, four fifths of `height` high.

    `color` is one color, or one for each bar. Bars wider than two pixels have white edges; on narrower bars these would
    cover the face, so their edges have the color of the face.
    """
    if not np.size(lanes):
        return
    lanes, starts, ends, height = map(
        partial(np.asarray, dtype=float), np.broadcast_arrays(lanes, starts, ends, height)
    )
    low, high = lanes - 0.4 * height, lanes + 0.4 * height
    corners = np.stack([starts, low, starts, high, ends, high, ends, low], axis=-1)
    span, pixels = ends.max(initial=0) - starts.min(initial=0), axes.get_window_extent().size
    is_wide = ((ends - starts) * pixels[0] > 2 * span) & (np.ptp(lanes) < pixels[1] / 2 * height)
    faces = np.broadcast_to(to_rgba_array(color), (len(corners), 4))
    bars = PolyCollection(
        list(corners.reshape(-1, 4, 2)),
        facecolors=faces,
        edgecolors=np.where(is_wide[:, None], to_rgba("white"), faces),
        linewidths=np.where(is_wide, edge, min(edge, 0.2)),
        antialiaseds=is_wide,
        hatch=hatch,
        rasterized=len(corners) > MANY,
        zorder=2,
    )
    bars.sticky_edges.x.append(0)
    axes.add_collection(bars)
    axes.autoscale_view()


def label_lanes(axes: Axes, names: Sequence[str]) -> None:
    """Label the lanes of bars, the first one at the top; with many lanes, only some."""
    step = -(-len(names) // MAX_TICK_LABELS)
    axes.set_yticks(range(0, len(names), step), list(names)[::step])
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)


def limit_tick_labels(axes: Axes, values: pd.Series) -> None:
    """Label only some of many names on the x axis."""
    if values.nunique() > MAX_TICK_LABELS:
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))


def write_in_center(axes: Axes, text: str) -> None:
    """Write a text in the center of otherwise empty axes."""
    axes.text(0.5, 0.5, text, ha="center", va="center", transform=axes.transAxes)


def readable_name(key: str) -> str:
    """The label of a config key or column on an axis."""
    known = {
        "val_accuracy": "validation accuracy",
        "train_accuracy": "training accuracy",
        "val_loss": "validation loss",
        "train_loss": "training loss",
        "images_per_second": "images per second",
        "lr": "learning rate",
    }
    return known.get(key, key.split(".")[-1].replace("_", " "))


def color_map(values: pd.Series, *, log: bool | None = None) -> Callable[[Any], Any]:
    """A function from a value of a varied key to its color: on a scale for numbers, from the palette for names."""
    if is_numeric(values):
        norm = color_norm(values, log=log)
        return lambda value: SEQUENCE(float(norm(value)))
    names = {name: COLORS[index % len(COLORS)] for index, name in enumerate(dict.fromkeys(values.astype(str)))}
    return lambda value: names.get(str(value), UNKNOWN)


def color_norm(values: pd.Series, *, log: bool | None = None) -> Normalize:
    """The normalization of numbers to the range of a color map."""
    return (LogNorm if is_log_scale(values, log) else Normalize)(values.min(), values.max())


def is_log_scale(values: pd.Series, declared: bool | None = None) -> bool:
    """Whether the scale of positive numbers is logarithmic: as declared, or else if they span two decades."""
    if declared is None:
        declared = bool(values.max() > 99 * values.min())
    return bool(declared and values.min() > 0)


def are_fractions(metric: str, values: pd.Series) -> bool:
    """Whether a metric can be shown in percent: it is an accuracy, and no value is above 1."""
    return metric.endswith("accuracy") and bool(values.dropna().between(0, 1).all())


def fill_missing(values: pd.Series) -> pd.Series:
    """The values of a key, with the name `(none)` for missing values unless all others are numbers."""
    return values if is_numeric(values) else values.astype(object).fillna("(none)")


def is_numeric(values: pd.Series) -> bool:
    """Whether a column contains numbers, rather than names or booleans."""
    return bool(pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values))


def text_color(face: Any) -> str:
    """Black or white, whichever is legible on a face of this color."""
    red, green, blue, _ = to_rgba(face)
    return "black" if 0.299 * red + 0.587 * green + 0.114 * blue > 0.55 else "white"


def format_value(value: Any) -> str:
    """A value in at most 12 characters."""
    return f"{value:.4g}" if isinstance(value, (int, float, np.number)) else str(value)[:12]
