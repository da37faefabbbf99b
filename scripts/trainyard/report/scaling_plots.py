"""The plots of a scaling study: speedup, losses, the parts of a step, and telemetry."""

from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, PercentFormatter

from trainyard.cluster.telemetry import read_samples
from trainyard.config.scaling import EFFICIENT
from trainyard.report import style
from trainyard.report.style import COLORS
from trainyard.scaling.speedups import recommendation

MAX_TELEMETRY: Final = 8  # scales, each with a row of panels
MAX_LEVEL: Final = 9  # names of scales that fit beside each other
MAX_NAMES: Final = 4  # GPUs or nodes of a scale that a legend names
History = tuple[str, pd.DataFrame]  # a scale and the history.csv of its first repeat


def plot_speedup(left: Axes, right: Axes, scaling: pd.DataFrame) -> None:
    """Speedup and efficiency over the number of GPUs, and their ideal; error bars span the repeats.

    One line joins the scales on one node, another the scales on several nodes; the recommended scale has a ring.
    """
    base = scaling.iloc[0]
    gpus = scaling["gpus"]
    ratio = scaling["gpus"] / base["gpus"]
    is_log = gpus.max() > 8
    order = gpus.argsort(kind="stable")
    for axes, over in ((left, 1), (right, ratio)):
        axes.plot(gpus.iloc[order], (ratio / over).iloc[order], "--", color="#777777", label="ideal")
        _plot_measured(axes, scaling, over)
        if is_log:
            axes.set_xscale("log", base=2)
        ticks = _apart(sorted(set(gpus)), is_log=is_log)
        axes.set_xticks(ticks, [str(count) for count in ticks])
        axes.minorticks_off()
        axes.margins(x=0.15)
        axes.set_xlabel("GPUs" if (scaling["device"] != "cpu").all() else "ranks (on CPUs)")
    _name_scales(left, scaling, is_log=is_log)
    if is_log:
        left.set_yscale("log", base=2)
        left.yaxis.set_major_formatter("{x:g}")
    left.margins(y=0.15)
    left.set_ylabel(f"speedup over {base['scale']}")
    left.legend(loc="upper left")
    right.axhline(EFFICIENT, color=COLORS[1], linewidth=0.8, linestyle=":")
    shape: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "va": "top", "color": COLORS[1]}
    style.annotate(right, f"{EFFICIENT:.0%}: does not pay below", (0.02, EFFICIENT), (0, -2), **shape)
    right.set_ylim(0, max(1.1, np.nan_to_num(1.05 * scaling["speedup_high"].div(ratio).max())))
    right.yaxis.set_major_formatter(PercentFormatter(1))
    right.set_ylabel("parallel efficiency")
    count = int(scaling["repeats"].max())
    repeats = f" (medians of {count} repeats; bars: minimum to maximum)" if count > 1 else ""
    style.set_title(left, recommendation(scaling) + repeats)


def _plot_measured(axes: Axes, scaling: pd.DataFrame, over: Any) -> None:
    """Draw the speedups, divided by `over`: one line for the scales on one node, another for several nodes."""
    value = scaling["speedup"].astype(float) / over
    low = scaling["speedup_low"] / over
    high = scaling["speedup_high"] / over
    single = scaling["nodes"] == 1
    groups = ((single, "one node", "o-", COLORS[0]), (~single, "several nodes", "s-", COLORS[1]))
    for chosen, name, shape, color in groups:
        rows = scaling[chosen].sort_values("gpus").index
        if len(rows):
            spread = [(value - low)[rows], (high - value)[rows]]
            axes.errorbar(
                scaling["gpus"][rows], value[rows], yerr=spread, fmt=shape, color=color, capsize=3, label=name
            )
    best = scaling.index[scaling["recommended"].astype(bool)]
    axes.plot(scaling["gpus"][best], value[best], "o", markersize=13, fillstyle="none", color="black")


def _apart(counts: Sequence[int], *, is_log: bool) -> list[int]:
    """The numbers, in ascending order, whose labels on an axis do not overlap those before them."""
    kept = list(counts[:1])
    for count in counts:
        gap = count / kept[-1] / 1.6 if is_log else 12 * (count - kept[-1]) / counts[-1]
        if gap >= 1:
            kept.append(count)
    return kept


def _name_scales(axes: Axes, scaling: pd.DataFrame, *, is_log: bool) -> None:
    """Write the names of scales above their points, or below them for several nodes."""
    for is_single, rows in scaling.dropna(subset=["speedup"]).groupby(scaling["nodes"] == 1):
        counts = _apart(sorted(set(rows["gpus"])), is_log=is_log)
        offset, sides = ((-8, 4), ("right", "bottom")) if is_single else ((8, -4), ("left", "top"))
        for row in rows[rows["gpus"].isin(counts)].drop_duplicates("gpus").itertuples():
            style.annotate(axes, row.scale, (row.gpus, row.speedup), offset, ha=sides[0], va=sides[1])


def plot_losses(left: Axes, right: Axes, histories: Sequence[History], scaling: pd.DataFrame) -> None:
    """Training and validation loss over epochs and over the GPU time, with a color for each scale.

    The GPU time includes the checkpoints, whose time is spread evenly over the epochs.
    """
    on_gpu = (scaling["device"] != "cpu").all()
    gpus = scaling.set_index("scale")["gpus"]
    saving = scaling.set_index("scale").get("checkpoint_seconds", pd.Series(dtype=float)).fillna(0.0)  # by scale
    for (scale, rows), color in zip(histories, cycle(COLORS), strict=False):
        seconds = rows["seconds"].cumsum() + saving.get(scale, 0.0) * np.arange(1, len(rows) + 1) / len(rows)
        spent = seconds * gpus[scale] / (3600 if on_gpu else 1)
        for axes, x in ((left, rows["epoch"]), (right, spent)):
            for name, line, split in (("val_loss", "o-", "validation"), ("train_loss", "x--", "training")):
                if name in rows and rows[name].notna().any():  # a user's script may not report it
                    shown = style.within_axes(rows[name])
                    axes.plot(x, shown, line, color=color, markersize=4, label=f"{scale} {split}")
    if not left.lines:
        right.remove()
        style.write_in_center(left, "no loss was reported")
        return
    for axes in (left, right):
        losses = pd.concat([pd.Series(line.get_ydata(), dtype=float) for line in axes.lines])
        if not (losses <= 0).any():  # as an own loss may be
            style.set_log_scale(axes.yaxis, losses)
    left.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    left.set_xlabel("epoch")
    left.set_ylabel("loss")
    right.set_xlabel("GPU-hours of training" if on_gpu else "rank-seconds of training (on CPUs)")
    style.figure_of(left).legend(*left.get_legend_handles_labels(), loc="outside right upper", fontsize=8)


def plot_steps(axes: Axes, scaling: pd.DataFrame) -> None:
    """The parts of the median step: a stacked bar per scale."""
    if scaling["step_ms_p50"].isna().all():
        style.write_in_center(axes, "no step times were reported")
        return
    data, communication = (scaling[name].fillna(0) for name in ("data_wait_fraction", "exposed_comm_fraction"))
    shares = pd.DataFrame(
        {
            "computation and optimizer": 1 - data - communication,
            "exposed communication": communication,
            "waiting for data": data,
        }
    )
    parts = shares.mul(scaling["step_ms_p50"], axis="index").set_axis(scaling["scale"])
    parts.plot.bar(ax=axes, stacked=True, width=0.6, color=[COLORS[0], COLORS[1], COLORS[5]], legend=False, rot=0)
    for place, (step, row) in enumerate(zip(scaling["step_ms_p50"], shares.to_numpy(), strict=True)):
        text = "\n".join(f"{share:.0%}" for share in reversed(row))
        style.annotate(axes, text, (place, step), (0, 3), ha="center")
    axes.margins(y=0.25)
    axes.grid(axis="x", visible=False)
    axes.set_xlabel("scale (nodes x GPUs per node)" + (", on CPUs" if (scaling["device"] == "cpu").any() else ""))
    axes.set_ylabel("median step (ms)")
    if len(scaling) > MAX_LEVEL:
        axes.tick_params(axis="x", rotation=45)
    handles, names = axes.get_legend_handles_labels()
    style.figure_of(axes).legend(handles[::-1], names[::-1], loc="outside upper center", ncols=3)


def read_telemetry(folder: Path) -> pd.DataFrame:
    """Memory (MiB) and utilization (%) over seconds, of each GPU; without GPUs, of all processes of each node."""
    rows = [
        (f"{node} GPU {row['gpu']}", row["time"], row["memory_used_mib"], row["utilization_percent"])
        for node, row in read_samples(folder / "telemetry", "gpu")
    ]
    if not rows:
        samples = read_samples(folder / "telemetry", "cpu")
        rows = [(node, row["time"], row["rss_mib"], row["cpu_percent"]) for node, row in samples]
    names, *numbers = zip(*rows, strict=True) if rows else ((), (), (), ())
    seconds, memory, busy = (pd.to_numeric(pd.Series(each, dtype=object)) for each in numbers)
    return pd.DataFrame({"of": names, "seconds": seconds - seconds.min(), "memory": memory, "busy": busy})


def plot_telemetry(*panels: Axes, samples: Mapping[str, pd.DataFrame], on_gpu: bool) -> None:
    """Memory and utilization over time: a row of panels per scale, a line per GPU (without GPUs, per node)."""
    sampled = {scale: frame for scale, frame in samples.items() if len(frame)}
    for axes in panels[2 * len(sampled) or 1 :]:
        axes.remove()
    if not sampled:
        style.write_in_center(panels[0], "no telemetry was recorded")
        return
    unit, length = style.time_unit(max(frame["seconds"].max() for frame in sampled.values()))
    for (scale, frame), memory, busy in zip(sampled.items(), panels[::2], panels[1::2], strict=False):
        for (name, rows), color in zip(frame.groupby("of"), cycle(COLORS), strict=False):
            memory.plot(rows["seconds"] / length, rows["memory"], color=color, label=name)
            busy.plot(rows["seconds"] / length, rows["busy"], color=color)
        memory.set_ylabel(scale)
        most = frame["memory"].max()  # NaN for a GPU that shares the memory of its node
        memory.set_ylim(0, 1.1 * most if most > 0 else None)
        busy.set_ylim(0, max(105.0, 1.05 * frame["busy"].max()))
        if 1 < frame["of"].nunique() <= MAX_NAMES:
            memory.legend(loc="lower right", fontsize=8)
    memory.set_xlabel(unit)
    busy.set_xlabel(unit)
    panels[0].set_title("GPU memory (MiB)" if on_gpu else "memory of all processes (MiB)")
    panels[1].set_title("GPU utilization (%)" if on_gpu else "CPU utilization (% of one core)")
