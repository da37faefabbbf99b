"""What all plots share: the style sheet, colors, axes, labels, and how a figure is written."""

import io
import os
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.colors import ListedColormap, LogNorm, Normalize, to_rgba, to_rgba_array
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from trainyard.utils.files import atomic_write
from trainyard.utils.text import printable

if TYPE_CHECKING:  # tables are made without them, which take half a second to import
    from matplotlib.axes import Axes
    from matplotlib.axis import XAxis, YAxis
    from matplotlib.figure import Figure

STYLE = mpl.rc_params_from_file(Path(__file__).with_name("trainyard.mplstyle"), use_default_template=False)
COLORS = tuple(STYLE["axes.prop_cycle"].by_key()["color"])
FAILED = COLORS[1]
IDLE = "#EDEDED"
UNKNOWN = "#888888"
_VIRIDIS = ListedColormap(mpl.colormaps["viridis"](np.linspace(0.04, 0.94, 256)), "viridis without its ends")
SEQUENCE = _VIRIDIS.with_extremes(bad=UNKNOWN)
STOPPED = "#999999"
STARTING = COLORS[5]
IMAGE_DPI = 100  # of such an image
MARGIN = 1.4  # inches above and below the lanes of bars: title, ticks and label
FENCE = 3.0  # interquartile ranges
MIN_FENCED = 10  # with fewer values, none is an outlier
LINE = 0.19  # inches from one line of text to the next
LETTERS_PER_INCH = 12.5  # of a title
MAX_MARKS = 6  # numbers, each of which has a tick
LARGEST = 1e100  # that an axis shows; matplotlib fails if a power of ten above the largest value is infinite
DOTS = "\N{HORIZONTAL ELLIPSIS}"
MANY = 1000  # with more marks, an SVG contains them as an image: as a shape, each takes 150 bytes or more


def save(
    painter: Callable[..., None],
    path: Path,
    *,
    size: tuple[float, float] | None = None,
    panels: tuple[int, int] = (1, 1),
    **content: Any,
) -> None:
    """Write one figure in the common style as `path`.svg and `path`.png, atomically.

    `painter` gets the axes of all panels, row by row, and the `content` to draw into them. `size` is in inches.
    """
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    with mpl.rc_context(STYLE):
        layout = ConstrainedLayoutEngine()
        figure = Figure(figsize=size, layout=layout)
        painter(*figure.subplots(*panels, squeeze=False).flat, **content)
        layout.execute(figure)
        figure.set_layout_engine(None)  # with one, `savefig` draws a picture twice: first to place its axes
        for suffix in ("svg", "png"):
            buffer = io.BytesIO()
            options: Any = {"metadata": {"Date": None}, "dpi": IMAGE_DPI} if suffix == "svg" else {}
            figure.savefig(buffer, format=suffix, **options)
            with atomic_write(path.with_suffix(f".{suffix}"), "wb") as file:
                file.write(buffer.getvalue())


def draw_bars(
    axes: "Axes",
    lanes: "pd.Series[float]",
    starts: "pd.Series[float]",
    ends: "pd.Series[float]",
    *,
    color: Any,
    edge: float = 0.6,
    hatch: str | None = None,
) -> None:
    """Draw horizontal bars as one artist, centered on `lanes`, four fifths of a lane high.

    `color` is one color, or one for each bar. Bars wider than two pixels, on lanes of five, have white edges; on
    smaller bars these would cover the face, so their edges have the color of the face.
    """
    low = lanes - 0.4
    high = lanes + 0.4
    corners: Any = np.stack([starts, low, starts, high, ends, high, ends, low], axis=-1)
    span = ends.max() - starts.min()
    pixels = axes.get_window_extent().size
    is_wide = ((ends - starts) * pixels[0] > 2 * span).to_numpy() & (np.ptp(lanes) < pixels[1] / 5)
    faces = np.broadcast_to(to_rgba_array(color), (len(corners), 4))
    bars = PolyCollection(
        corners.reshape(-1, 4, 2),
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


def add_lines(axes: "Axes", lines: Sequence[Any], *, colors: Any, alpha: float, many: bool) -> None:
    """Draw lines, each an array of points, as one artist; in an SVG as an image if there are many."""
    axes.add_collection(
        LineCollection(lines, colors=colors, alpha=alpha, linewidths=1.2, rasterized=many, antialiaseds=not many)
    )


def legend_below(axes: "Axes", handles: Iterable[Any]) -> None:
    """Add a legend below all axes of a figure, in one line."""
    handles = list(handles)
    figure_of(axes).legend(handles=handles, loc="outside lower center", ncols=len(handles))


def figure_of(axes: "Axes") -> "Figure":
    """The figure of some axes."""
    return cast("Figure", axes.get_figure(root=True))


def lanes_height(lanes: int) -> float:
    """The height in inches of a figure with this many lanes of bars."""
    return MARGIN + min(0.4 * lanes, 4.6)


def label_lanes(axes: "Axes", names: Sequence[str]) -> None:
    """Label the lanes of bars, the first one at the top; if there are too many for the height, only some."""
    most = max(1, int((figure_of(axes).get_figheight() - MARGIN) / LINE))
    step = -(-len(names) // most)
    axes.set_yticks(range(0, len(names), step), list(names)[::step])
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)


def annotate(axes: "Axes", text: str, point: tuple[Any, Any], offset: tuple[float, float], **options: Any) -> None:
    """Write a small text beside a point, this many typographic points away."""
    axes.annotate(text, point, xytext=offset, textcoords="offset points", fontsize=8, **options)


def set_title(axes: "Axes", text: str) -> None:
    """Set the title of the figure, wrapped to its width."""
    figure = figure_of(axes)
    width = int(LETTERS_PER_INCH * figure.get_figwidth())
    lines = textwrap.fill(text.replace(" = ", "\xa0=\xa0"), width).replace("\xa0", " ")  # no break inside key = value
    figure.suptitle(lines, x=0.01, ha="left", fontsize=mpl.rcParams["axes.titlesize"])


def write_in_center(axes: "Axes", text: str) -> None:
    """Write a text instead of a plot; if the figure has nothing else, it becomes as low as the text."""
    figure = figure_of(axes)
    axes.text(0.5, 0.5, text, ha="center", va="center", transform=axes.transAxes)
    axes.set_axis_off()
    if len(figure.axes) == 1:
        figure.set_figheight(0.8 + LINE * (1 + text.count("\n")))


def time_unit(seconds: float) -> tuple[str, float]:
    """Name and length (in seconds) of the time unit for an axis of this length."""
    units = (("hours", 3600.0), ("minutes", 60.0))
    return next((unit for unit in units if seconds > 3 * unit[1]), ("seconds", 1.0))


def short_names(keys: Sequence[str], *, readable: Callable[[str], str] | None = None) -> dict[str, str]:
    """The label of each config key: without its section, unless another key would have the same label."""
    names = {key: (readable or readable_name)(key) for key in keys}
    count = Counter(names.values())
    return {key: name if count[name] == 1 else key for key, name in names.items()}


KNOWN_NAMES = {
    "val_accuracy": "validation accuracy",
    "train_accuracy": "training accuracy",
    "val_loss": "validation loss",
    "train_loss": "training loss",
    "images_per_second": "images per second",
    "lr": "learning rate",
    "gpus": "GPUs",
    "cpu_rss_peak_mib": "host memory peak (MiB)",
    "exposed_comm_fraction": "exposed communication",
}


def readable_name(key: str) -> str:
    """The label of a config key on an axis, without its section."""
    return KNOWN_NAMES.get(key, key.split(".")[-1].replace("_", " "))


def readable_metric(name: str) -> str:
    """The label of a metric on an axis. Programs report any name: `mAP@0.5` has no section, `$` begins no formula."""
    return KNOWN_NAMES.get(name, name.replace("_", " ").replace("$", r"\$"))


UNITS = {"seconds": "s", "ms": "ms", "mib": "MiB", "kwh": "kWh"}


def readable_column(name: str) -> str:
    """The header of a column of a table, with its unit at the end: `epoch_start_seconds` is `epoch start (s)`."""
    if name in KNOWN_NAMES:
        return KNOWN_NAMES[name]
    words = name.removeprefix("is_").split("_")
    shown = " ".join(word for word in words if word not in UNITS)
    unit = next((f" ({UNITS[word]})" for word in words if word in UNITS), "")
    return f"{shown}{unit}" if shown else name


def is_log_scale(values: pd.Series, declared: bool | None = None) -> bool:
    """Whether the scale of positive numbers is logarithmic: as declared, or else if they span two decades."""
    if declared is None:
        declared = bool(values.max() > 99.0 * values.min())
    return bool(declared and values.min() > 0)


def norm_of(values: "pd.Series[float]", declared: bool | None = None) -> Normalize:
    """The scale of some numbers, from their least to their greatest: linear or logarithmic, as `is_log_scale`."""
    return (LogNorm if is_log_scale(values, declared) else Normalize)(values.min(), values.max())


def set_log_scale(axis: "XAxis | YAxis", values: "pd.Series[float]") -> None:
    """Make an axis for these positive values logarithmic. matplotlib labels powers of ten, or writes 2 x 10^0."""
    axis.axes.set(**{f"{axis.axis_name}scale": "log"})
    low = values.min()
    high = values.max()
    if high < 100 * low:
        axis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]) if high < 10 * low else LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter("{x:g}")
        axis.set_minor_locator(NullLocator())


def set_key_axis(axis: "XAxis | YAxis", values: pd.Series, *, log: bool | None, space: float) -> None:
    """Choose scale and ticks of an axis for the values of a key.

    `space`: how many letters fit below an x axis, or labels beside a y axis. Long names below an axis are turned. Of
    many names, only some are shown.
    """
    is_below = axis.axis_name == "x"
    if not is_numeric(values):
        names = list(distinct_names(values.astype(str), 16).values())
        most = len(names) if is_below else int(space)
        turned: dict[str, Any] = {}
        if is_below and sum(map(len, names)) + 2 * len(names) > space:
            most = max(1, int(space / 3))
            turned = {"rotation": 40, "ha": "right", "rotation_mode": "anchor"}
        step = -(-len(names) // most)
        axis.set_ticks(range(0, len(names), step), names[::step], **turned)
    elif is_log_scale(values, log):
        set_log_scale(axis, values)
    else:
        marks = np.unique(values.astype(float).dropna())
        size = 1 + max(len(f"{mark:.4g}") for mark in marks) if is_below else 1
        if len(marks) <= MAX_MARKS and np.all(np.diff(marks) * space >= np.ptp(marks) * size):
            axis.set_ticks(marks)
        else:
            axis.set_major_locator(MaxNLocator(5, integer=bool((marks % 1 == 0).all())))
        axis.set_major_formatter("{x:g}")


def are_fractions(metric: str, values: pd.Series) -> bool:
    """Whether a metric can be shown in percent: it is an accuracy, and no value is above 1."""
    return metric.endswith("accuracy") and bool(values.dropna().between(0, 1).all())


def fill_missing(values: pd.Series) -> pd.Series:
    """The values of a key, with the name `(none)` for missing values unless all others are numbers."""
    return values if is_numeric(values) else values.astype(object).fillna("(none)")


def within_axes(numbers: "pd.Series[float]") -> "pd.Series[float]":
    """The numbers that an axis can show, and NaN for infinite ones and those above `LARGEST`."""
    return numbers.where(numbers.abs() <= LARGEST)


def is_numeric(values: pd.Series) -> bool:
    """Whether a column contains numbers that an axis can show, rather than names, booleans or infinite numbers.

    A column without any value, as that of a key which is null in all trials, has no numbers either.
    """
    is_number = pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values)
    return bool(is_number and values.notna().any() and within_axes(values.dropna().astype(float)).notna().all())


def to_numbers(values: pd.Series) -> "pd.Series[float]":
    """The values of a key as numbers: names count in the order of their first appearance."""
    numbers = values if is_numeric(values) else pd.Series(pd.factorize(values.astype(str))[0], values.index)
    return numbers.astype(float)


def shorten(text: str, length: int) -> str:
    """A text in at most `length` characters; an ellipsis stands for the rest. A dollar sign begins no formula.

    Control characters, with which an SVG would be invalid, are escaped.
    """
    return shorten_text(printable(text), length).replace("$", r"\$")


def shorten_text(text: str, length: int) -> str:
    """The same for a table."""
    return text if len(text) <= length else text[: length - 1] + DOTS


def distinct_names(names: Iterable[str], length: int) -> dict[str, str]:
    """Each name in at most `length` characters: of long names without what all of them have in common."""
    names = list(dict.fromkeys(names))
    parts = {name: name for name in names}
    if len(names) > 1 and max(map(len, names)) > length:
        start = os.path.commonprefix(names)  # noqa: RUF071 - letters are meant
        ends = [name.removeprefix(start)[::-1] for name in names]
        end = os.path.commonprefix(ends)[::-1]  # noqa: RUF071
        for name in names:
            middle = name.removeprefix(start).removesuffix(end)
            parts[name] = f"{start and DOTS}{middle}{end and DOTS}"
    return {name: shorten(part, length) for name, part in parts.items()}


def fences(values: "pd.Series[float]", *, is_log: bool) -> tuple[float, float]:
    """The lowest and the highest value that is no outlier: three interquartile ranges from the quartiles."""
    scaled = np.log(values) if is_log else values
    first, third = scaled.quantile([0.25, 0.75])
    reach = FENCE * (third - first)
    if len(values) < MIN_FENCED or not reach:
        return float(values.min()), float(values.max())
    inside = values[scaled.between(first - reach, third + reach)]
    return float(inside.min()), float(inside.max())


def text_color(face: Any) -> str:
    """Black or white, whichever is legible on a face of this color."""
    red, green, blue, _ = to_rgba(face)
    return "black" if 0.299 * red + 0.587 * green + 0.114 * blue > 0.55 else "white"


def format_value(value: Any) -> str:
    """A value in at most 12 characters."""
    if value is None or value != value:
        return "(none)"
    is_number = isinstance(value, (int, float, np.number)) and not isinstance(value, (bool, np.bool_))
    return f"{value:.4g}" if is_number else shorten(str(value), 12)


def format_setting(value: Any) -> str:
    """A value of a key in a small table: a number with four digits, or a text of at most 40 characters."""
    if isinstance(value, float):
        return f"{value:.4g}"
    return "(none)" if value is None else shorten_text(str(value), 40)
