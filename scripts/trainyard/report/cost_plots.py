"""The plots of a sweep's cost: its GPU-seconds with each strategy, and its predicted durations."""

import math
from typing import Any, Final

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from trainyard.report import style
from trainyard.report.style import COLORS, FAILED, IDLE, MANY, STARTING, draw_bars
from trainyard.report.timeline_plots import assign_jobs, pauses_before
from trainyard.results.sweep_tables import describe_prediction_errors, predicted_attempts
from trainyard.utils.text import count_of, format_precise_duration

IDLE_TIME: Final = "#AAAAAA"  # of a bar that has to be seen, unlike the gray behind the bars of trials
UNUSED: Final = "#DDDDDD"
MIN_SHOWN: Final = 1e-4  # of the longest bar: a difference of rounded numbers is no part


def plot_packing(
    axes: Axes,
    timeline: pd.DataFrame,
    trials: pd.DataFrame,
    jobs: pd.DataFrame,
    strategies: pd.DataFrame,
    *,
    unit: str = "GPU",
) -> None:
    """GPUs (or CPUs: `unit`) over time: above, each trial as a task of a job array; below, packed.

    Gray is requested but not used. Areas are the GPU-seconds in `strategies`. It shows the jobs that count there, those
    that ran at the same time below one another, and the attempts of which the trials' results consist.
    """
    table = strategies.set_index("strategy")
    held = _requested_jobs(jobs)
    attempts = assign_jobs(timeline, jobs)
    kept = attempts[attempts["kept_seconds"] > 0]
    seconds = trials.loc[trials["trial"].isin(kept["trial"]), "seconds"]
    if seconds.empty:
        style.write_in_center(axes, "no trial has a result")
        return
    depth = table.loc["job_array", "gpus_per_job"] * len(seconds)
    top = depth + max(1, 0.1 * depth)
    _draw_array(axes, seconds, table.loc["job_array"])
    of_jobs = kept.merge(held, left_on="job", right_index=True, suffixes=("", "_of_job"))
    _draw_packed(axes, of_jobs, held, top=top)
    most = held["slots"].max() if len(held) else 0
    counts = {
        "job_array": count_of(len(seconds), "job"),
        "packed": f"{len(held)} x " * (len(held) > 1) + count_of(most, "slot"),
    }
    waste = table["wasted_fraction"]
    labels = [f"{name.replace('_', ' ')}:\n{count}\n{waste[name]:.0%} wasted" for name, count in counts.items()]
    axes.set_yticks([depth / 2, top + ((held["gpus"] + held["below"]).max() / 2 if len(held) else 0)], labels)
    axes.tick_params(axis="y", length=0)
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    pauses = pauses_before(held["start"], held["start"] + held["elapsed_seconds"])
    style.label_time(axes, *axes.get_xlim(), pauses, note="; orange: start-up")
    array, packed = (
        f"{table.loc[name, 'used_gpu_seconds']:,.0f} of {table.loc[name, 'requested_gpu_seconds']:,.0f}"
        for name in counts
    )
    style.set_title(axes, f"{unit}-seconds used of those requested: {array} as job array, {packed} packed")


def _draw_array(axes: Axes, seconds: pd.Series, row: "pd.Series[Any]") -> None:
    """Draw a lane per task of a job array, as high as its number of GPUs; a trial's bar is as high as its share."""
    gpus, count = row["gpus_per_job"], max(1, len(seconds))
    lanes, starting = gpus * (np.arange(len(seconds)) + 0.5), row["startup_gpu_seconds"] / (count * max(1, gpus))
    draw_bars(axes, lanes, -starting, row["requested_seconds_per_job"] - starting, color=IDLE, height=gpus, edge=0)
    draw_bars(axes, lanes, -starting, 0, color=STARTING, height=gpus, edge=0)
    share = row["running_gpu_seconds"] / (seconds.sum() or 1.0)
    draw_bars(axes, lanes, 0, seconds.sort_values(ascending=False), color=COLORS[4], height=share, edge=0.4)


def _draw_packed(axes: Axes, kept: pd.DataFrame, held: pd.DataFrame, *, top: float) -> None:
    """Draw the slots below `top`, together as high as the number of GPUs of their jobs, and the trials on them."""
    slots = held.loc[held.index.repeat(held["slots"])]
    high, begin = slots["gpus"] / slots["slots"], slots["offset"]
    lanes = top + slots["below"] + (slots.groupby(level=0).cumcount() + 0.5) * high
    draw_bars(axes, lanes, begin, begin + slots["requested_seconds"], color=IDLE, height=high, edge=0)
    draw_bars(axes, lanes, begin, begin + slots["startup_seconds"], color=STARTING, height=high, edge=0)
    begin = kept["offset"] + kept["start"] - kept["start_of_job"]
    share = kept["gpus_per_trial"]
    lanes = (kept["slot"] + 0.5) * np.maximum(share, kept["gpus"] / kept["slots"])
    lanes += top + kept["below"] - kept["order_job"] * kept["gpus"]
    draw_bars(axes, lanes, begin, begin + kept["kept_seconds"], color=COLORS[0], height=share, edge=0.4)


def _requested_jobs(jobs: pd.DataFrame) -> pd.DataFrame:
    """The jobs that count, and where the plot has them: they begin at `offset` seconds, with the GPU number `below`.

    Where no walltime was requested, the elapsed time stands for it. A job without a trial was starting all the time.
    """
    held = jobs[jobs["counted"]]
    held = held.assign(
        requested_seconds=held["requested_seconds"].fillna(held["elapsed_seconds"]).astype(float),
        startup_seconds=held["startup_seconds"].fillna(held["elapsed_seconds"]),
        below=(held["order_job"].rank(method="dense") - 1) * held["gpus"].max(),
    )
    offset = _place_jobs(held)
    return held.assign(offset=offset - (offset + held["startup_seconds"]).min())


def _place_jobs(held: pd.DataFrame) -> "pd.Series[float]":
    """When each job begins, in seconds from the first one on, as it was, without the pauses in which none ran.

    It follows what the job before it on the same slots requested: it had to be requested again.
    """
    offsets = list[float]()
    ends: dict[int, float] = {}  # by the number of the job in the order
    until = -math.inf
    moved = 0.0
    for job in held.itertuples():
        if job.start > until:
            moved = max(ends.values(), default=0.0) - job.start
        offset = max(job.start + moved, ends.get(job.order_job, -math.inf))
        offsets.append(offset)
        ends[job.order_job] = offset + max(job.requested_seconds, job.elapsed_seconds)
        until = max(until, job.start + job.elapsed_seconds)
    return pd.Series(offsets, held.index, dtype=float)


def plot_waste(axes: Axes, strategies: pd.DataFrame, jobs: pd.DataFrame, *, unit: str = "GPU") -> None:
    """The GPU-seconds (or CPU-seconds: `unit`) of each strategy: of trials, of each kind of waste, and not used."""
    rows = np.arange(len(strategies))
    left, most = pd.Series(0.0, strategies.index), strategies["requested_gpu_seconds"].max()
    if not most > 0:
        style.write_in_center(axes, "no trial has a result")
        return
    for name, (width, color) in _requested_parts(strategies, jobs).items():
        if width.max() > MIN_SHOWN * most:
            axes.barh(rows, width, left=left, height=0.6, color=color, label=name)
        left += width
    for row, end in zip(strategies.itertuples(), left, strict=True):
        style.annotate(axes, f"{row.wasted_fraction:.0%} wasted", (end, row.Index), (4, 0), va="center")
    names = strategies["strategy"].str.replace("_", " ") + "\n" + strategies["jobs"].map("{:.0f} x ".format)
    style.label_lanes(axes, names + strategies["requested_seconds_per_job"].map(format_precise_duration))
    axes.margins(x=0.15)
    axes.set_xlabel(f"{unit}-seconds; wasted: the share of what was used in which no trial with a result ran")
    style.figure_of(axes).legend(loc="outside upper center", ncols=3, fontsize=9)


def _requested_parts(strategies: pd.DataFrame, jobs: pd.DataFrame) -> dict[str, tuple["pd.Series[float]", str]]:
    """What each strategy requests, by its use: GPU-seconds and color. Only jobs that ran can fail or be idle.

    A job that Slurm let run beyond its walltime has used more than it requested.
    """
    counted, packed = jobs[jobs["counted"]], strategies["strategy"] == "packed"
    startup = strategies["startup_gpu_seconds"]
    left = (strategies["wasted_gpu_seconds"] - startup).clip(lower=0)
    parts = {"running trials": (strategies["running_gpu_seconds"], COLORS[0]), "start-up": (startup, STARTING)}
    for name, label, color in (("failed", "failed or interrupted attempts", FAILED), ("idle", "idle slots", IDLE_TIME)):
        lost = (packed * counted[f"{name}_gpu_seconds"].sum()).clip(upper=left)
        parts[label] = lost, color
        left = left - lost
    unused = (strategies["requested_gpu_seconds"] - strategies["used_gpu_seconds"]).clip(lower=0)
    return parts | {"otherwise wasted": (left, IDLE), "requested, not used": (unused, UNUSED)}


def plot_predictions(axes: Axes, timeline: pd.DataFrame, jobs: pd.DataFrame) -> None:
    """Draw measured over predicted seconds of each trial, as predicted at its start; the title has the last job."""
    done = predicted_attempts(timeline)
    measured, predicted = done["measured"], done["expected_seconds"]
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
