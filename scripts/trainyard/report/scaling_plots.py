"""The plots of a scaling study: speedup, losses, the parts of a step, and telemetry."""

from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, PercentFormatter

from trainyard.config.scaling import EFFICIENT
from trainyard.report.style import COLORS, write_in_center

History = tuple[str, pd.DataFrame]  # a scale and the history.csv of its first repeat


def plot_speedup(left: Axes, right: Axes, scaling: pd.DataFrame) -> None:
    """Speedup and efficiency over the number of GPUs, and their ideal; error bars span the repeats."""
    base, gpus = scaling.iloc[0], scaling["gpus"]
    ratio = gpus / base["gpus"]
    for axes, over in ((left, 1), (right, ratio)):
        value = scaling["speedup"].astype(float) / over
        spread = [
            (scaling["speedup"] - scaling["speedup_low"]) / over,
            (scaling["speedup_high"] - scaling["speedup"]) / over,
        ]
        axes.plot(gpus, ratio / over, "--", color="#777777", label="ideal")
        axes.errorbar(gpus, value, yerr=spread, fmt="o-", capsize=3, label="measured")
        if gpus.max() > 8:
            axes.set_xscale("log", base=2)
        ticks = sorted(set(gpus))
        axes.set_xticks(ticks, [str(count) for count in ticks])
        axes.minorticks_off()
        axes.margins(x=0.15)
        axes.set_xlabel(_ranks(scaling))
    for row in scaling.dropna(subset=["speedup"]).itertuples():
        left.annotate(
            row.scale, (row.gpus, row.speedup), xytext=(6, -4), textcoords="offset points", va="top", fontsize=8
        )
    if gpus.max() > 8:
        left.set_yscale("log", base=2)
    left.margins(y=0.15)
    left.set_ylabel(f"speedup over {base['scale']}")
    left.legend(loc="upper left")
    right.axhline(EFFICIENT, color=COLORS[1], linewidth=0.8, linestyle=":")
    right.set_ylim(0, max(1.1, np.nan_to_num(1.05 * scaling["speedup_high"].div(ratio).max())))
    right.yaxis.set_major_formatter(PercentFormatter(1))
    right.set_ylabel("parallel efficiency")
    left.set_title(_repeats(scaling))


def _ranks(scaling: pd.DataFrame) -> str:
    return "GPUs" if (scaling["device"] != "cpu").all() else "ranks (on CPUs)"


def _repeats(scaling: pd.DataFrame) -> str:
    count = int(scaling["repeats"].max())
    return f"medians of {count} repeats; bars: minimum to maximum" if count > 1 else ""


def plot_losses(left: Axes, right: Axes, histories: Sequence[History], scaling: pd.DataFrame) -> None:
    """Training and validation loss over epochs and over the GPU time, with a color for each scale.

    The GPU time is that of the epochs and of the checkpoints, which are spread evenly over the epochs.
    """
    on_gpu = (scaling["device"] != "cpu").all()
    gpus = scaling.set_index("scale")["gpus"]
    saving = scaling.set_index("scale").get("checkpoint_seconds", pd.Series(dtype=float)).fillna(0.0)  # by scale
    for (scale, rows), color in zip(histories, cycle(COLORS), strict=False):
        seconds = rows["seconds"].cumsum() + saving.get(scale, 0.0) * np.arange(1, len(rows) + 1) / len(rows)
        spent = seconds * gpus[scale] / (3600 if on_gpu else 1)
        for axes, x in ((left, rows["epoch"]), (right, spent)):
            for name, line, split in (("val_loss", "o-", "validation"), ("train_loss", "--", "training")):
                if name in rows:  # a user's script may not report it
                    axes.plot(x, rows[name], line, color=color, label=f"{scale} {split}")
    for axes in (left, right):
        if not axes.lines:
            write_in_center(axes, "no loss was reported")
        elif not any((np.asarray(line.get_ydata(), dtype=float) <= 0).any() for line in axes.lines):
            axes.set_yscale("log")  # an own loss may be negative
    left.xaxis.set_major_locator(MaxNLocator(integer=True))
    left.set_xlabel("epoch")
    left.set_ylabel("loss")
    right.set_xlabel("GPU-hours of training" if on_gpu else "rank-seconds of training (on CPUs)")
    if left.lines:
        left.legend(ncols=1 + (len(histories) > 4), fontsize=8)


def plot_steps(axes: Axes, scaling: pd.DataFrame) -> None:
    """The parts of the median step: a stacked bar per scale."""
    if scaling["step_ms_p50"].isna().all():
        write_in_center(axes, "no step times were reported")
        return
    data, communication = (scaling[name].fillna(0) for name in ("data_wait_fraction", "exposed_comm_fraction"))
    shares = {
        "computation": 1 - data - communication,
        "exposed communication": communication,
        "waiting for data": data,
    }
    bottom = pd.Series(0.0, scaling.index)
    for (name, share), color in zip(shares.items(), (COLORS[0], COLORS[1], COLORS[5]), strict=True):
        height = share * scaling["step_ms_p50"]
        axes.bar(scaling["scale"], height, bottom=bottom, width=0.6, color=color, label=name)
        bottom += height
    for place, row in enumerate(scaling.itertuples()):
        text = "\n".join(f"{share[row.Index]:.0%}" for share in reversed(shares.values()))
        axes.annotate(
            text, (place, row.step_ms_p50), xytext=(0, 3), textcoords="offset points", ha="center", fontsize=8
        )
    axes.margins(y=0.25)
    axes.grid(axis="x", visible=False)
    axes.set_xlabel("scale (nodes x GPUs per node)" + (", on CPUs" if (scaling["device"] == "cpu").any() else ""))
    axes.set_ylabel("median step (ms)")
    handles, names = axes.get_legend_handles_labels()
    axes.legend(handles[::-1], names[::-1], loc="upper center", bbox_to_anchor=(0.5, 1.16), ncols=3)


def read_telemetry(folder: Path) -> pd.DataFrame:
    """Memory (MiB) and utilization (%) over seconds, of each GPU; without GPUs, of all processes of each node."""
    frames: dict[str, list[pd.DataFrame]] = {"gpu": [], "cpu": []}
    for path in sorted((folder / "telemetry").glob("?pu-*.csv")):
        kind, _, node = path.stem.partition("-")
        frames[kind].append(pd.read_csv(path).assign(node=node))
    samples = pd.concat(frames["gpu"]) if frames["gpu"] else pd.DataFrame()
    if len(samples):
        names = samples["node"] + " GPU " + samples["gpu"].astype(str)
        columns = {"memory_used_mib": "memory", "utilization_percent": "busy"}
    else:
        samples = pd.concat(frames["cpu"])
        names, columns = samples["node"], {"rss_mib": "memory", "cpu_percent": "busy"}
    seconds = samples["time"] - samples["time"].min()
    return samples.rename(columns=columns).assign(seconds=seconds, of=names)[["of", "seconds", "memory", "busy"]]


def _time_unit(seconds: float) -> tuple[str, float]:
    """Name and length (in seconds) of the time unit for an axis of this length."""
    units = (("hours", 3600.0), ("minutes", 60.0))
    return next((unit for unit in units if seconds > 3 * unit[1]), ("seconds", 1.0))


def plot_telemetry(*panels: Axes, samples: Mapping[str, pd.DataFrame], on_gpu: bool) -> None:
    """Memory and utilization over time: a column of panels per scale, a line per GPU (without GPUs, per node)."""
    memory, busy = panels[: len(samples)], panels[len(samples) :]
    unit, length = _time_unit(max(frame["seconds"].max() for frame in samples.values()))
    for (scale, frame), upper, lower in zip(samples.items(), memory, busy, strict=True):
        for (name, rows), color in zip(frame.groupby("of"), cycle(COLORS), strict=False):
            upper.plot(rows["seconds"] / length, rows["memory"], color=color, label=name)
            lower.plot(rows["seconds"] / length, rows["busy"], color=color)
        upper.set_title(scale)
        upper.set_ylim(0, 1.1 * frame["memory"].max())
        lower.set_ylim(0, max(105.0, 1.05 * frame["busy"].max()))
        lower.set_xlabel(unit)
        if frame["of"].nunique() <= 8:
            upper.legend(fontsize=7, loc="lower right")
    memory[0].set_ylabel("GPU memory (MiB)" if on_gpu else "memory of all\nprocesses (MiB)")
    busy[0].set_ylabel("GPU utilization (%)" if on_gpu else "CPU utilization\n(% of one core)")
