"""The plots of a sweep's cost: its GPU-seconds with each strategy, and its predicted durations."""

from typing import Final

import pandas as pd
from matplotlib.axes import Axes

from trainyard.report import style
from trainyard.report.style import COLORS, FAILED, IDLE, MANY, STARTING
from trainyard.results.sweep_tables import describe_prediction_errors, predicted_attempts
from trainyard.utils.text import format_precise_duration

PART_COLORS: Final = {
    "running trials": COLORS[0],
    "start-up": STARTING,
    "failed or interrupted attempts": FAILED,
    "idle slots": "#AAAAAA",  # it has to be seen, unlike the gray behind the bars of trials
    "otherwise wasted": IDLE,
    "requested, not used": "#DDDDDD",
}
MIN_SHOWN: Final = 1e-4  # of the longest bar: a difference of rounded numbers is no part


def plot_waste(axes: Axes, strategies: pd.DataFrame, jobs: pd.DataFrame, *, unit: str = "GPU") -> None:
    """The GPU-seconds (or CPU-seconds: `unit`) of each strategy: of trials, of each kind of waste, and not used."""
    parts = requested_parts(strategies, jobs)
    ends = parts.sum(axis="columns")
    if not ends.max() > 0:
        style.write_in_center(axes, "no trial has a result")
        return
    shown = parts.loc[:, parts.max() > MIN_SHOWN * ends.max()]
    shown.plot.barh(ax=axes, stacked=True, width=0.6, color=PART_COLORS, legend=False)
    for row, end in zip(strategies.itertuples(), ends, strict=True):
        style.annotate(axes, f"{row.wasted_fraction:.0%} wasted", (end, row.Index), (4, 0), va="center")
    names = strategies["strategy"].str.replace("_", " ") + "\n" + strategies["jobs"].map("{:.0f} x ".format)
    style.label_lanes(axes, names + strategies["requested_seconds_per_job"].map(format_precise_duration))
    axes.margins(x=0.15)
    axes.set_xlabel(f"{unit}-seconds; wasted: the share of what was used in which no trial with a result ran")
    style.figure_of(axes).legend(loc="outside upper center", ncols=3, fontsize=9)


def _as_gpus(table: pd.DataFrame) -> pd.DataFrame:
    """The table of a sweep, but without GPUs, with its CPUs where others have GPUs."""
    names = {name: name.replace("cpu", "gpu") for name in table if "cpu" in name}
    return table.drop(columns=list(names.values())).rename(columns=names)


def requested_parts(strategies: pd.DataFrame, jobs: pd.DataFrame) -> pd.DataFrame:
    """What each strategy (row) requests, by its use (column): GPU-seconds; in a sweep without GPUs, CPU-seconds.

    Only jobs that ran can fail or be idle. A job that Slurm let run beyond its walltime has used more than it
    requested.
    """
    strategies, jobs = map(_as_gpus, (strategies, jobs))
    counted = jobs[jobs["counted"]]
    packed = strategies["strategy"] == "packed"
    startup = strategies["startup_gpu_seconds"]
    left = (strategies["wasted_gpu_seconds"] - startup).clip(lower=0)
    parts = pd.DataFrame({"running trials": strategies["running_gpu_seconds"], "start-up": startup})
    for name, label in (("failed", "failed or interrupted attempts"), ("idle", "idle slots")):
        parts[label] = (packed * counted[f"{name}_gpu_seconds"].sum()).clip(upper=left)
        left = left - parts[label]
    parts["otherwise wasted"] = left
    parts["requested, not used"] = (strategies["requested_gpu_seconds"] - strategies["used_gpu_seconds"]).clip(lower=0)
    return parts


def plot_predictions(axes: Axes, timeline: pd.DataFrame, jobs: pd.DataFrame) -> None:
    """Draw measured over predicted seconds of each trial, as predicted at its start; the title has the last job."""
    done = predicted_attempts(timeline)
    measured = done["measured"]
    predicted = done["expected_seconds"]
    if done.empty:
        style.write_in_center(axes, "no durations were known beforehand: no trial was predicted")
        return
    ends = [0.9 * min(measured.min(), predicted.min()), 1.1 * max(measured.max(), predicted.max())]
    axes.plot(ends, ends, "--", color="#777777", label="measured = predicted")
    size, alpha = (2, 0.3) if len(done) > MANY else (5, 0.8)
    axes.plot(predicted, measured, "o", markersize=size, alpha=alpha, label="trials", rasterized=len(done) > MANY)
    if ends[1] > 30 * ends[0]:
        axes.set_xscale("log")
        axes.set_yscale("log")
    axes.legend(loc="upper left")
    title = describe_prediction_errors(done)
    for job in jobs.dropna(subset=["gap"]).tail(1).itertuples():
        title += f"; last job: {job.predicted_seconds:.3g} s predicted, {job.measured_seconds:.3g} s measured"
    style.set_title(axes, title)
    axes.set_xlabel("predicted seconds (at the start of the trial)")
    axes.set_ylabel("measured seconds")
