"""The plots of a sweep: its slots over time, the metrics of its trials, and its cost."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, PercentFormatter

from trainyard.config.metric_names import Mode
from trainyard.config.trial_status import CONCLUSIVE, WITH_RESULT, TrialStatus
from trainyard.config.trials import main_key
from trainyard.planning.plan import Plan
from trainyard.planning.schedule import schedule
from trainyard.report import style
from trainyard.report.style import COLORS, IDLE, MANY, draw_bars, is_numeric, readable_name
from trainyard.report.sweep_tables import find_best_trial
from trainyard.results.answer import describe_best

STARTING = COLORS[5]


def plot_gantt(
    axes: Axes, timeline: pd.DataFrame, trials: pd.DataFrame, jobs: pd.DataFrame, key: str, *, log: bool | None = None
) -> None:
    """The slots over time: a bar per attempt, colored by the value of `key`; the gaps are idle time.

    The time between the last trial of a job and the first trial of the next job is omitted. `log`: whether the scale of
    the colors is logarithmic; None: guessed from the values of `key`.
    """
    run = _assign_jobs(timeline, jobs)
    spans = run.groupby("job").agg(first=("start", "min"), last=("end", "max"))
    spans = spans.assign(stop=(spans["last"] - spans["first"]).cumsum()).join(jobs["slots"])
    spans["begin"] = spans["stop"] - (spans["last"] - spans["first"])
    moved = run["job"].map(spans["begin"] - spans["first"])
    run = run.assign(begin=run["start"] + moved, stop=run["end"] + moved)
    lanes = run.drop_duplicates("slot", keep="last").sort_values(["node", "slot"]).reset_index(drop=True)
    lane = run["slot"].map({slot: index for index, slot in enumerate(lanes["slot"])})
    held = lanes[["slot"]].rename_axis("lane").reset_index().merge(spans, how="cross")
    held = held[~(held["slot"] >= held["slots"])]
    values = trials.set_index("trial", drop=False)[key]
    draw_bars(axes, held["lane"], held["begin"], held["stop"], color=IDLE, edge=0)
    _draw_trials(axes, run.assign(lane=lane, failed=~run["outcome"].isin(WITH_RESULT)), values, log=log)
    style.label_lanes(axes, [_lane_name(row) for row in lanes.itertuples()])
    axes.set_xlim(0, spans["stop"].max())
    pauses = " (pauses between jobs omitted)" * (len(spans) > 1)
    axes.set_xlabel(f"seconds since the first trial started{pauses}")
    busy = (run["stop"] - run["begin"]).sum() / (held["stop"] - held["begin"]).sum()
    labels = f"labels: {readable_name(key)}"
    axes.set_title(f"{len(run)} attempts on {len(lanes)} slots, {busy:.1%} busy (idle: gray); {labels}")


def plot_schedule(axes: Axes, plan: Plan) -> None:
    """The predicted schedule of the pending trials; before there is evidence, with relative durations."""
    names, slots, key = plan.forecast.pending, plan.request.slots.count, main_key(list(plan.state.trials.values()))
    values = pd.Series({name: plan.state.trials[name].values.get(key, name) for name in plan.state.trials})
    turns = schedule(plan.forecast.durations, slots)
    rows = [(names[turn.trial], turn.slot, turn.start, turn.end, False) for turn in turns]
    run = pd.DataFrame(rows, columns=["trial", "lane", "begin", "stop", "failed"])
    total = run["stop"].max()
    draw_bars(axes, range(run["lane"].max() + 1), 0, total, color=IDLE, edge=0)
    _draw_trials(axes, run, values, log=plan.state.sweep.is_log(key))
    style.label_lanes(axes, [f"slot {slot}" for slot in range(slots)])
    if plan.request.predicted_range:
        low, high = plan.request.predicted_range
        axes.axvspan(low, high, color=COLORS[1], alpha=0.25, linewidth=0, zorder=0)
    axes.set_xlim(0, max(total, plan.request.predicted_range[1] if plan.request.predicted_range else 0.0) * 1.02)
    shaded = "seconds of training (shaded: 90% interval of the end)"
    axes.set_xlabel(shaded if plan.forecast.seconds else "relative time (no duration has been measured yet)")
    idle = 1 - sum(plan.forecast.durations) / (total * slots)
    axes.set_title(f"plan of {len(turns)} trials on {slots} slots, {idle:.1%} idle; labels: {readable_name(key)}")


def _lane_name(row: Any) -> str:
    """Node and GPU of a slot; without a GPU, its number."""
    return f"{row.node} slot {row.slot}" if getattr(row, "device", "") == "cpu" else f"{row.node} GPU {row.gpu}"


def _draw_trials(axes: Axes, run: pd.DataFrame, values: pd.Series, *, log: bool | None) -> None:
    """Draw a bar per row (trial, lane, begin, stop, failed) in the color of the trial's value, labeled if that fits."""
    color, total = style.color_map(values, log=log), run["stop"].max()
    known = values if is_numeric(values) else values.astype(str)
    shown = run["trial"].map(known)
    face_of = {value: color(value) for value in shown.dropna().unique()}
    face = pd.Series([face_of.get(value, style.UNKNOWN) for value in shown], run.index, dtype=object).mask(
        run["failed"], style.FAILED
    )
    for failed, rows in run.groupby("failed"):
        hatch = "////" if failed else None
        draw_bars(axes, rows["lane"], rows["begin"], rows["stop"], color=list(face[rows.index]), hatch=hatch)
    for row in run[(run["stop"] - run["begin"] > 0.03 * total) & shown.notna()].itertuples():
        center, text = (row.begin + row.stop) / 2, style.format_value(shown[row.Index])
        if row.stop - row.begin > 0.01 * (len(text) + 1) * total:  # a letter is about a hundredth of the width
            ink = style.text_color(face[row.Index])
            axes.text(center, row.lane, text, ha="center", va="center", fontsize=8, color=ink, zorder=3)


def plot_metric(
    axes: Axes,
    trials: pd.DataFrame,
    key: str,
    metric: str,
    *,
    mode: Mode | None = None,
    log: bool | None = None,
    joined: bool = False,
) -> None:
    """A metric over the values of one varied key: a point per finished trial, a hollow one if it was stopped early.

    `mode`: max or min, None: guessed from the metric's name; `log`: whether the scale of the key is logarithmic,
    None: guessed from its values. With `joined`, a line joins the trials in the order of the key.
    """
    best = find_best_trial(trials, metric, mode)
    if best is None:
        style.write_in_center(axes, f"no trial has finished with {readable_name(metric)}")
        return
    has_metric = trials[metric].notna()
    finished = trials[(trials["status"] == TrialStatus.FINISHED) & has_metric]
    stopped = trials[(trials["status"] == TrialStatus.STOPPED) & has_metric]
    _plot_points(axes, finished, stopped, key, metric)
    if joined and is_numeric(finished[key]) and finished[key].is_unique:
        ordered, as_image = finished.sort_values(key), len(finished) + len(stopped) > MANY
        axes.plot(ordered[key], ordered[metric], "-", color=COLORS[0], linewidth=0.8, alpha=0.5, rasterized=as_image)
    _set_key_axis(axes, finished[key], log=log)
    is_percent = style.are_fractions(metric, trials[metric])
    if is_percent:
        axes.yaxis.set_major_formatter(PercentFormatter(1))
    value = f"{best[metric]:.1%}" if is_percent else f"{best[metric]:.4g}"
    title = f"{describe_best(metric, mode, label=readable_name(metric))}:"
    where = f"{value} at {readable_name(key)} = {style.format_value(best[key])}"
    axes.set_title((" " if len(title + where) < 60 else "\n").join((title, where)))
    axes.set_xlabel(readable_name(key))
    axes.set_ylabel(readable_name(metric))


def _plot_points(axes: Axes, finished: pd.DataFrame, stopped: pd.DataFrame, key: str, metric: str) -> None:
    numeric, as_image = is_numeric(finished[key]), len(finished) + len(stopped) > MANY
    size, alpha = (2, 0.3) if as_image else (5, 0.8)
    values = finished[key] if numeric else finished[key].astype(str)
    axes.plot(values, finished[metric], "o", markersize=size, alpha=alpha, label="finished", rasterized=as_image)
    if len(stopped):
        values = stopped[key] if numeric else stopped[key].astype(str)
        hollow: dict[str, Any] = {"markersize": size, "alpha": 0.75 * alpha, "color": "#999999", "fillstyle": "none"}
        axes.plot(values, stopped[metric], "o", label="stopped early", rasterized=as_image, **hollow)
        axes.legend()


def _set_key_axis(axes: Axes, values: pd.Series, *, log: bool | None) -> None:
    """Choose scale and ticks of the x axis for the values of a key."""
    if not is_numeric(values):
        style.limit_tick_labels(axes, values)
    elif style.is_log_scale(values, log):
        axes.set_xscale("log")
        if values.max() < 100 * values.min():  # the default labels powers of ten only
            axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.xaxis.set_major_formatter("{x:g}")
            axes.xaxis.set_minor_formatter(NullFormatter())
    elif (values % 1 == 0).all():
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def plot_epochs(axes: Axes, epochs: pd.DataFrame, key: str, metric: str, *, log: bool | None = None) -> None:
    """A metric over epochs: a line per trial, colored by the value of one varied key."""
    if metric not in epochs or epochs[metric].isna().all():
        style.write_in_center(axes, "no trial has reported metrics per epoch")
        return
    color = style.color_map(epochs[key], log=log)
    numeric = is_numeric(epochs[key]) and key != "trial"
    values = epochs.drop_duplicates("trial")[key]
    _draw_lines(axes, epochs, metric, [color(value) for value in values])
    if numeric:
        norm = style.color_norm(epochs[key], log=log)
        axes.figure.colorbar(ScalarMappable(norm, style.SEQUENCE), ax=axes, label=readable_name(key))
    elif values.nunique() <= 12:
        handles = [Line2D([], [], color=color(value), marker="o", markersize=3) for value in values.unique()]
        axes.legend(handles, [str(value) for value in values.unique()], title=readable_name(key))
    if metric.endswith("loss") and (epochs[metric].dropna() > 0).all():
        axes.set_yscale("log")
    elif style.are_fractions(metric, epochs[metric]):
        axes.yaxis.set_major_formatter(PercentFormatter(1))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("epoch")
    axes.set_ylabel(readable_name(metric))


def _draw_lines(axes: Axes, epochs: pd.DataFrame, metric: str, colors: list[Any]) -> None:
    """A line per trial, all in one artist; the more lines, the paler they are.

    Many lines are drawn without markers and in random order, so that the last values of the key do not cover the
    others.
    """
    trial = pd.factorize(epochs["trial"])[0]
    order = np.argsort(trial, kind="stable")
    points = epochs[["epoch", metric]].to_numpy(float)[order]
    lines = np.split(points, 1 + np.flatnonzero(np.diff(trial[order])))
    many = len(lines) > MANY
    alpha = max(0.05, min(1.0, (100 / len(lines)) ** 0.5))
    order = np.random.default_rng(0).permutation(len(lines)) if many else np.arange(len(lines))
    drawn, drawn_colors = [lines[index] for index in order], [colors[index] for index in order]
    axes.add_collection(LineCollection(drawn, colors=drawn_colors, alpha=alpha, rasterized=many))
    if not many:
        dots = [colors[number] for number in trial]
        axes.scatter(epochs["epoch"], epochs[metric], s=9, c=dots, alpha=alpha, linewidths=1, zorder=2)
    axes.autoscale_view()


# ---- cost and predictions


def plot_packing(
    axes: Axes, timeline: pd.DataFrame, trials: pd.DataFrame, jobs: pd.DataFrame, strategies: pd.DataFrame
) -> None:
    """GPUs over time: above, each trial as a task of a job array; below, packed. Gray is requested but not used.

    Areas are the GPU-seconds in `strategies`. It shows the jobs that count there, one after another, and the attempt
    that produced each trial's result.
    """
    table, held, done = strategies.set_index("strategy"), _requested_jobs(jobs), _find_results(timeline, trials, jobs)
    depth = table.loc["job_array", "gpus_per_job"] * len(done)
    top = depth + max(1, 0.1 * depth)
    _draw_array(axes, done["seconds"], table.loc["job_array"])
    _draw_packed(axes, done.join(held, on="job", how="inner"), held, top=top)
    most = held["slots"].max() if len(held) else 0
    counts = {"job_array": f"{len(done)} jobs", "packed": f"{len(held)} x " * (len(held) > 1) + f"{most} slots"}
    labels = [f"{name.replace('_', ' ')}:\n{count}\n{table.loc[name, 'wasted_fraction']:.0%} wasted"
             for name, count in counts.items()]  # fmt: skip
    axes.set_yticks([depth / 2, top + (held["gpus"].max() / 2 if len(held) else 0)], labels)
    axes.tick_params(axis="y", length=0)
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    pauses = " (pauses between jobs omitted)" * (len(held) > 1)
    axes.set_xlabel(f"seconds since the first trial started{pauses}; orange: start-up")
    requested = [f"{table.loc[name, 'requested_gpu_seconds']:,.4g}" for name in counts]
    axes.set_title(f"requested GPU-seconds: {requested[0]} as job array, {requested[1]} packed")


def _draw_array(axes: Axes, seconds: pd.Series, row: "pd.Series[Any]") -> None:
    """Draw a lane per task of a job array, as high as its number of GPUs; a trial's bar is as high as its share."""
    gpus, count = row["gpus_per_job"], max(1, len(seconds))
    lanes, starting = gpus * (np.arange(len(seconds)) + 0.5), row["startup_gpu_seconds"] / (count * max(1, gpus))
    draw_bars(axes, lanes, -starting, row["requested_seconds_per_job"] - starting, color=IDLE, height=gpus, edge=0)
    draw_bars(axes, lanes, -starting, 0, color=STARTING, height=gpus, edge=0)
    share = row["running_gpu_seconds"] / (seconds.sum() or 1.0)
    draw_bars(axes, lanes, 0, seconds.sort_values(ascending=False), color=COLORS[4], height=share, edge=0.4)


def _draw_packed(axes: Axes, done: pd.DataFrame, held: pd.DataFrame, *, top: float) -> None:
    """Draw the slots below `top`, together as high as the number of GPUs of their job, and the trials on them."""
    slots = held.loc[held.index.repeat(held["slots"])]
    high, begin = slots["gpus"] / slots["slots"], slots["offset"]
    lanes = top + (slots.groupby(level=0).cumcount() + 0.5) * high
    draw_bars(axes, lanes, begin, begin + slots["requested"], color=IDLE, height=high, edge=0)
    draw_bars(axes, lanes, begin, begin + slots["starting"], color=STARTING, height=high, edge=0)
    begin = done["offset"] + done["start"] - done["began"]
    lanes = top + (done["slot"] + 0.5) * np.maximum(done["share"], done["gpus"] / done["slots"])
    draw_bars(axes, lanes, begin, begin + done["here"], color=COLORS[0], height=done["share"], edge=0.4)


def _requested_jobs(jobs: pd.DataFrame) -> pd.DataFrame:
    """The jobs that count, with `requested` seconds, the `starting` part of them, and their `offset` in the plot.

    Where no walltime was requested, the elapsed time stands for it. A job without a trial was starting all the time.
    """
    held = jobs[jobs.get("counted", pd.Series(True, jobs.index)).astype(bool)]
    requested = held["requested_seconds"].fillna(held["elapsed_seconds"]).astype(float)
    starting = held["startup_seconds"].fillna(held["elapsed_seconds"])
    lengths = np.maximum(requested, held["elapsed_seconds"])
    offset = lengths.cumsum() - lengths - starting.head(1).sum()
    return held[["slots", "gpus"]].assign(began=held["start"], requested=requested, starting=starting, offset=offset)


def _find_results(timeline: pd.DataFrame, trials: pd.DataFrame, jobs: pd.DataFrame) -> pd.DataFrame:
    """The attempts that produced the results, with the trial's `seconds` and the part of them that ran `here`."""
    known, run = trials[trials["status"].isin(CONCLUSIVE)].set_index("trial"), _assign_jobs(timeline, jobs)
    done = run[run["outcome"] == run["trial"].map(known["status"])].drop_duplicates("trial", keep="last")
    held = done["end"] - done["start"]
    here = np.minimum(done.get("seconds", held), held)
    return done.assign(seconds=done["trial"].map(known["seconds"]), here=here, share=done.get("gpus_per_trial", 1.0))


def _assign_jobs(timeline: pd.DataFrame, jobs: pd.DataFrame) -> pd.DataFrame:
    """The attempts in the order of their start, each with the row of its `job` in `jobs`, which never overlap."""
    run = timeline.sort_values("start")
    return run.assign(job=np.searchsorted(jobs["start"], run["start"], side="right") - 1)


def plot_waste(axes: Axes, strategies: pd.DataFrame) -> None:
    """The GPU-seconds that each strategy requests: running trials, start-up, and other waste."""
    rows = np.arange(len(strategies))
    left = pd.Series(0.0, strategies.index)
    startup = strategies["startup_gpu_seconds"]
    parts = {"running trials": (strategies["running_gpu_seconds"], COLORS[0]),
             "start-up": (startup, STARTING),
             "other waste": ((strategies["wasted_gpu_seconds"] - startup).clip(lower=0), "#BBBBBB")}  # fmt: skip
    for name, (width, color) in parts.items():
        axes.barh(rows, width, left=left, height=0.6, color=color, label=name)
        left += width
    for row, end in zip(strategies.itertuples(), left, strict=True):
        text = f"{row.wasted_fraction:.0%} wasted"
        axes.annotate(text, (end, row.Index), xytext=(4, 0), textcoords="offset points", va="center", fontsize=8)
    names = strategies["strategy"].str.replace("_", " ") + "\n" + strategies["jobs"].map("{:.0f} x ".format)
    axes.set_yticks(rows, names + strategies["requested_seconds_per_job"].map("{:.3g} s".format))
    axes.invert_yaxis()
    axes.margins(x=0.15)
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("requested GPU-seconds")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, 1.16), ncols=3, fontsize=9)


def plot_predictions(axes: Axes, timeline: pd.DataFrame, jobs: pd.DataFrame) -> None:
    """Measured over predicted seconds of each trial, as predicted at its start; the title has those of the last job."""
    done = timeline[(timeline["outcome"] == TrialStatus.FINISHED) & (timeline["expected_seconds"] > 0)]
    measured, predicted = done["end"] - done["start"], done["expected_seconds"]
    if len(done):
        ends = [0.9 * min(measured.min(), predicted.min()), 1.1 * max(measured.max(), predicted.max())]
        axes.plot(ends, ends, "--", color="#777777", label="measured = predicted")
        size, alpha = (2, 0.3) if len(done) > MANY else (5, 0.8)
        axes.plot(predicted, measured, "o", markersize=size, alpha=alpha, label="trials", rasterized=len(done) > MANY)
        if ends[1] > 30 * ends[0]:
            axes.set_xscale("log")
            axes.set_yscale("log")
        axes.legend(loc="upper left")
        error = f"median error of the trials: {(measured / predicted - 1).abs().median():.0%}"
    else:
        style.write_in_center(axes, "no durations were known beforehand")
        error = "no trial was predicted"
    known = jobs.dropna(subset=["gap"]) if len(jobs) else jobs
    last_job = [f"; last job: {each.predicted_seconds:.3g} s predicted, {each.measured_seconds:.3g} s measured"
             for each in known.tail(1).itertuples()]  # fmt: skip
    axes.set_title(error + "".join(last_job))
    axes.set_xlabel("predicted seconds (at the start of the trial)")
    axes.set_ylabel("measured seconds")
