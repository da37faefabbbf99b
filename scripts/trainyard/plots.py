"""Pictures from tables, in one style: that of a paper, legible in grey and to the colour-blind."""

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import ListedColormap, Normalize, to_rgba
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from trainyard.files import atomic_write

# Okabe and Ito 2008: eight colours that the colour-blind can tell apart, less yellow, which is too light for a line.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
SEQUENCE = ListedColormap(mpl.colormaps["viridis"](np.linspace(0.04, 0.94, 256)), "viridis without its ends")
FAILED = "#D55E00"
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


def draw(painter: Callable[[Axes], None], path: Path, *, size: tuple[float, float] | None = None) -> None:
    """Let `painter` paint one picture in the common style, and write it as `path`.svg and `path`.png, atomically."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=size)
        painter(figure.add_subplot())
        for suffix in ("svg", "png"):
            content = io.BytesIO()
            figure.savefig(content, format=suffix, metadata={"Date": None} if suffix == "svg" else None)
            with atomic_write(path.with_suffix(f".{suffix}"), "wb") as file:
                file.write(content.getvalue())


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


# ---- sweeps


def gantt(axes: Axes, timeline: pd.DataFrame, trials: pd.DataFrame, key: str) -> None:
    """What each slot did when: a bar per attempt, coloured by the value of `key`; the gaps are idle time."""
    run = _without_pauses(timeline)
    lanes = run[["node", "gpu", "slot"]].drop_duplicates().sort_values(["node", "slot"]).reset_index(drop=True)
    lane_of = {slot: index for index, slot in enumerate(lanes["slot"])}
    value_of = trials.set_index("trial", drop=False)[key]
    colour = _colours(value_of)
    total = run["stop"].max()
    axes.barh(list(lane_of.values()), total, height=0.8, color="#F3F3F3", zorder=1)
    for row in run.itertuples():
        failed = row.outcome != "finished"
        face = FAILED if failed else colour(value_of.get(row.trial))
        lane, length = lane_of[row.slot], row.stop - row.begin
        hatch = "////" if failed else None
        axes.barh(
            lane,
            length,
            left=row.begin,
            height=0.8,
            color=face,
            edgecolor="white",
            linewidth=0.6,
            hatch=hatch,
            zorder=2,
        )
        if length > 0.03 * total and row.trial in value_of.index:
            text = _short(value_of[row.trial])
            axes.text(
                row.begin + length / 2,
                lane,
                text,
                ha="center",
                va="center",
                fontsize=8,
                color=_readable(face),
                zorder=3,
            )
    axes.set_yticks(range(len(lanes)), [f"{row.node} GPU {row.gpu}" for row in lanes.itertuples()])
    axes.invert_yaxis()
    axes.set_xlim(0, total)
    axes.set_xlabel("seconds since the first trial started")
    axes.grid(axis="y", visible=False)
    busy = (run["stop"] - run["begin"]).sum() / (total * len(lanes))
    axes.set_title(f"{len(run)} attempts on {len(lanes)} slots, {busy:.1%} busy; labels: {label(key)}")


def _without_pauses(timeline: pd.DataFrame) -> pd.DataFrame:
    """Attempts with begin and stop in seconds, the pauses between two runs of the driver taken out."""
    run = timeline.sort_values("start").copy()
    covered_until = run["end"].cummax().shift(fill_value=run["start"].iloc[0])
    gaps = (run["start"] - covered_until).clip(lower=0)
    removed = gaps.where(gaps > 60, 0).cumsum() + run["start"].iloc[0]
    run["begin"], run["stop"] = run["start"] - removed, run["end"] - removed
    return run


def _colours(values: pd.Series) -> Callable[[Any], Any]:
    """From a value of a varied key to its colour: along a scale for numbers, from the palette for names."""
    if _is_number(values):
        scale = Normalize(values.min(), values.max())
        return lambda value: SEQUENCE(float(scale(value)))
    names = {name: COLOURS[index % len(COLOURS)] for index, name in enumerate(dict.fromkeys(values.astype(str)))}
    return lambda value: names.get(str(value), "#888888")


def _is_number(values: pd.Series) -> bool:
    return bool(pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values))


def _readable(face: Any) -> str:
    red, green, blue, _ = to_rgba(face)
    return "black" if 0.299 * red + 0.587 * green + 0.114 * blue > 0.55 else "white"


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, (int, float, np.number)) else str(value)[:12]


def metric_against(axes: Axes, trials: pd.DataFrame, key: str, metric: str) -> None:
    """A metric of every finished trial against the value of one varied key."""
    done = trials[trials["status"] == "finished"]
    numeric = _is_number(done[key])
    values = done[key] if numeric else done[key].astype(str)
    axes.plot(values, done[metric], "o", alpha=0.8)
    if numeric and done[key].is_unique:
        ordered = done.sort_values(key)
        axes.plot(ordered[key], ordered[metric], "-", color=COLOURS[0], linewidth=0.8, alpha=0.5)
    if numeric and _spans_decades(done[key]):
        axes.set_xscale("log")
    elif numeric and (done[key] % 1 == 0).all():
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if metric.endswith("accuracy"):
        axes.yaxis.set_major_formatter(PercentFormatter(1))
    best = done.loc[done[metric].idxmin() if metric.endswith("loss") else done[metric].idxmax()]
    axes.set_title(f"best {label(metric)}: {_metric_text(metric, best[metric])} at {label(key)} = {_short(best[key])}")
    axes.set_xlabel(label(key))
    axes.set_ylabel(label(metric))


def _metric_text(metric: str, value: float) -> str:
    return f"{value:.1%}" if metric.endswith("accuracy") else f"{value:.4g}"


def _spans_decades(values: pd.Series) -> bool:
    return bool(values.min() > 0 and values.max() / values.min() > 99)


def sweep_losses(axes: Axes, epochs: pd.DataFrame, key: str) -> None:
    """Validation loss against epochs, a line per trial, coloured by the value of one varied key."""
    colour = _colours(epochs[key])
    numeric = _is_number(epochs[key])
    named: set[str] = set()
    for _, rows in epochs.groupby("trial", sort=False):
        value = rows[key].iloc[0]
        text = None if numeric or str(value) in named else str(value)
        named.add(str(value))
        axes.plot(rows["epoch"], rows["val_loss"], "-", color=colour(value), marker="o", markersize=3, label=text)
    if numeric:
        norm = Normalize(epochs[key].min(), epochs[key].max())
        axes.figure.colorbar(ScalarMappable(norm, SEQUENCE), ax=axes, label=label(key))
    elif len(named) <= 12:
        axes.legend(title=label(key))
    axes.set_yscale("log")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("epoch")
    axes.set_ylabel("validation loss (cross-entropy)")


# ---- scaling studies and tree models


def speedup(axes: Axes, scaling: pd.DataFrame) -> None:
    """Speedup against the number of GPUs, beside the ideal."""
    base = scaling.iloc[0]
    ranks = "GPUs" if (scaling["device"] != "cpu").all() else "ranks (on CPUs)"
    ideal = scaling["gpus"] / base["gpus"]
    axes.plot(scaling["gpus"], ideal, "--", color="#777777", label="ideal")
    axes.plot(scaling["gpus"], scaling["speedup"], "o-", label="measured")
    for row in scaling.itertuples():
        text, place = f"{row.scale}\n{row.efficiency:.0%}", (row.gpus, row.speedup)
        axes.annotate(text, place, xytext=(6, -4), textcoords="offset points", va="top", fontsize=8)
    if scaling["gpus"].max() > 8:
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=2)
    axes.set_xticks(scaling["gpus"], [str(count) for count in scaling["gpus"]])
    axes.minorticks_off()
    axes.margins(x=0.15, y=0.15)
    axes.set_xlabel(ranks)
    axes.set_ylabel(f"speedup over {base['scale']}")
    axes.set_title("speedup, and parallel efficiency in percent")
    axes.legend(loc="upper left")


def scaling_losses(axes: Axes, histories: Sequence[tuple[str, pd.DataFrame]]) -> None:
    """Training and validation loss against epochs, a colour per scale."""
    for (scale, rows), colour in zip(histories, _endless_colours(), strict=False):
        axes.plot(rows["epoch"], rows["val_loss"], "o-", color=colour, label=f"{scale} validation")
        axes.plot(rows["epoch"], rows["train_loss"], "--", color=colour, label=f"{scale} training")
    axes.set_yscale("log")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("epoch")
    axes.set_ylabel("loss (cross-entropy)")
    axes.legend(ncols=2, fontsize=8)


def _endless_colours() -> list[str]:
    return list(COLOURS) * 20


def trees_scores(axes: Axes, trees: pd.DataFrame) -> None:
    """Training and validation score of every tree model, and the seconds that fitting it took."""
    rows = np.arange(len(trees))
    for offset, split, colour in ((-0.17, "train", COLOURS[4]), (0.17, "val", COLOURS[0])):
        name = {"train": "training", "val": "validation"}[split]
        bars = axes.barh(rows + offset, trees[split], height=0.32, color=colour, label=name)
        axes.bar_label(bars, fmt="{:.4g}", padding=3, fontsize=8)
    axes.set_yticks(rows, [f"{row.model}\n{row.seconds:.2g} s, {row.threads} threads" for row in trees.itertuples()])
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.grid(axis="y", visible=False)
    axes.set_xlabel({"accuracy": "accuracy", "rmse": "RMSE (in the target's unit)"}[trees["metric"].iloc[0]])
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, 1.14), ncols=2)
