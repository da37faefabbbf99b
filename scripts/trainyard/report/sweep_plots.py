"""Pictures of a sweep: what its slots did when, what that cost, and what came of it."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, PercentFormatter

from trainyard.config.sweep import Mode
from trainyard.config.trial_status import CONCLUSIVE, WITH_RESULT, TrialStatus
from trainyard.config.trials import main_key
from trainyard.planning.plan import Plan
from trainyard.planning.schedule import schedule
from trainyard.report.style import (
    COLOURS,
    FAILED,
    IDLE,
    MANY,
    SEQUENCE,
    UNKNOWN,
    are_fractions,
    bars,
    colour_scale,
    colours,
    is_number,
    label,
    name_lanes,
    on_log_scale,
    readable,
    short,
    thin_names,
)
from trainyard.report.sweep_tables import describe_best, find_best_trial

STARTING = COLOURS[5]  # programs


def gantt(
    axes: Axes, timeline: pd.DataFrame, trials: pd.DataFrame, jobs: pd.DataFrame, key: str, *, log: bool | None = None
) -> None:
    """What each slot did when: a bar per attempt, coloured by the value of `key`; the gaps are idle time.

    The time between the last trial of a job and the first of the next is left out. `log` says whether `key` is drawn on
    a logarithmic scale; None where nothing is said.
    """
    run = by_job(timeline, jobs)
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
    bars(axes, held["lane"], held["begin"], held["stop"], colour=IDLE, edge=0)
    _bars_of_trials(axes, run.assign(lane=lane, failed=~run["outcome"].isin(WITH_RESULT)), values, log=log)
    name_lanes(axes, [_lane(row) for row in lanes.itertuples()])
    axes.set_xlim(0, spans["stop"].max())
    pauses = ", pauses between jobs left out" * (len(spans) > 1)
    axes.set_xlabel(f"seconds since the first trial started{pauses}")
    busy = (run["stop"] - run["begin"]).sum() / (held["stop"] - held["begin"]).sum()
    axes.set_title(f"{len(run)} attempts on {len(lanes)} slots, {busy:.1%} busy, idle time grey; labels: {label(key)}")


def planned(axes: Axes, plan: Plan) -> None:
    """What each slot will do when, as predicted; before there is evidence, in proportions."""
    names, slots, key = plan.pending, plan.slots.count, main_key(list(plan.trials.values()))
    values = pd.Series({name: plan.trials[name].values.get(key, name) for name in plan.trials})
    turns = schedule(plan.durations, slots)
    rows = [(names[turn.trial], turn.slot, turn.start, turn.end, False) for turn in turns]
    run = pd.DataFrame(rows, columns=["trial", "lane", "begin", "stop", "failed"])
    total = run["stop"].max()
    bars(axes, range(run["lane"].max() + 1), 0, total, colour=IDLE, edge=0)
    _bars_of_trials(axes, run, values, log=plan.sweep.is_log(key))
    name_lanes(axes, [f"slot {slot}" for slot in range(slots)])
    if plan.predicted_range:
        low, high = plan.predicted_range
        axes.axvspan(low, high, color=COLOURS[1], alpha=0.25, linewidth=0, zorder=0)
    axes.set_xlim(0, max(total, plan.predicted_range[1] if plan.predicted_range else 0.0) * 1.02)
    shaded = "seconds of training; it will end in the shaded part in nine of ten cases"
    axes.set_xlabel(shaded if plan.seconds else "time, in proportions: nothing was measured yet")
    idle = 1 - sum(plan.durations) / (total * slots)
    axes.set_title(f"plan of {len(turns)} trials on {slots} slots, {idle:.1%} idle; labels: {label(key)}")


def _lane(row: Any) -> str:
    """Where a slot is: its GPU, or where there is none, its number."""
    return f"{row.node} slot {row.slot}" if getattr(row, "device", "") == "cpu" else f"{row.node} GPU {row.gpu}"


def _bars_of_trials(axes: Axes, run: pd.DataFrame, values: pd.Series, *, log: bool | None) -> None:
    """A bar per row (trial, lane, begin, stop, failed) of the colour of its trial's value, which is said if it fits."""
    colour, total = colours(values, log=log), run["stop"].max()
    known = values if is_number(values) else values.astype(str)
    shown = run["trial"].map(known)
    face_of = {value: colour(value) for value in shown.dropna().unique()}
    face = pd.Series([face_of.get(value, UNKNOWN) for value in shown], run.index, dtype=object).mask(
        run["failed"], FAILED
    )
    for failed, rows in run.groupby("failed"):
        hatch = "////" if failed else None
        bars(axes, rows["lane"], rows["begin"], rows["stop"], colour=list(face[rows.index]), hatch=hatch)
    for row in run[(run["stop"] - run["begin"] > 0.03 * total) & shown.notna()].itertuples():
        at, text = (row.begin + row.stop) / 2, short(shown[row.Index])
        own = readable(face[row.Index])
        if row.stop - row.begin > 0.01 * (len(text) + 1) * total:  # a letter takes a hundredth of the width
            axes.text(at, row.lane, text, ha="center", va="center", fontsize=8, color=own, zorder=3)


def metric_against(
    axes: Axes,
    trials: pd.DataFrame,
    key: str,
    metric: str,
    *,
    mode: Mode | None = None,
    log: bool | None = None,
    joined: bool = False,
) -> None:
    """A metric of every finished trial against the value of one varied key; pale, of those that were stopped early.

    `mode` says what is better, None that it is guessed from the metric's name; `log`, whether the key is drawn on a
    logarithmic scale, None that nothing is said. With `joined`, a line joins the trials in the order of the key.
    """
    done = trials[(trials["status"] == TrialStatus.FINISHED) & trials[metric].notna()]
    early = trials[(trials["status"] == TrialStatus.STOPPED) & trials[metric].notna()]
    best = find_best_trial(trials, metric, mode)
    if best is None:
        axes.text(0.5, 0.5, f"no trial has finished with {label(metric)}", ha="center", transform=axes.transAxes)
        return
    numeric = is_number(done[key])
    values = done[key] if numeric else done[key].astype(str)
    others = early[key] if numeric else early[key].astype(str)
    as_image = len(done) + len(early) > MANY
    size, alpha = (2, 0.3) if as_image else (5, 0.8)
    axes.plot(values, done[metric], "o", markersize=size, alpha=alpha, label="finished", rasterized=as_image)
    if len(early):
        hollow: dict[str, Any] = {"markersize": size, "alpha": 0.75 * alpha, "color": "#999999", "fillstyle": "none"}
        axes.plot(others, early[metric], "o", label="stopped early", rasterized=as_image, **hollow)
        axes.legend()
    if joined and numeric and done[key].is_unique:
        ordered = done.sort_values(key)
        axes.plot(ordered[key], ordered[metric], "-", color=COLOURS[0], linewidth=0.8, alpha=0.5, rasterized=as_image)
    if not numeric:
        thin_names(axes, done[key])
    if numeric and on_log_scale(done[key], log):
        axes.set_xscale("log")
        if done[key].max() < 100 * done[key].min():  # else only powers of ten are named
            axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.xaxis.set_major_formatter("{x:g}")
            axes.xaxis.set_minor_formatter(NullFormatter())
    elif numeric and (done[key] % 1 == 0).all():
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    percent = are_fractions(metric, trials[metric])
    if percent:
        axes.yaxis.set_major_formatter(PercentFormatter(1))
    value = f"{best[metric]:.1%}" if percent else f"{best[metric]:.4g}"
    words = f"{describe_best(metric, mode, label=label(metric))}:", f"{value} at {label(key)} = {short(best[key])}"
    axes.set_title((" " if len("".join(words)) < 60 else "\n").join(words))
    axes.set_xlabel(label(key))
    axes.set_ylabel(label(metric))


def curves(axes: Axes, epochs: pd.DataFrame, key: str, metric: str, *, log: bool | None = None) -> None:
    """A metric against epochs, a line per trial, coloured by the value of one varied key."""
    if metric not in epochs or epochs[metric].isna().all():
        axes.text(0.5, 0.5, "no trial has told metrics of its epochs", ha="center", transform=axes.transAxes)
        return
    colour = colours(epochs[key], log=log)
    numeric = is_number(epochs[key]) and key != "trial"
    values = epochs.drop_duplicates("trial")[key]
    _lines(axes, epochs, metric, [colour(value) for value in values])
    if numeric:
        scale = colour_scale(epochs[key], log=log)
        axes.figure.colorbar(ScalarMappable(scale, SEQUENCE), ax=axes, label=label(key))
    elif values.nunique() <= 12:
        handles = [Line2D([], [], color=colour(value), marker="o", markersize=3) for value in values.unique()]
        axes.legend(handles, [str(value) for value in values.unique()], title=label(key))
    if metric.endswith("loss") and (epochs[metric].dropna() > 0).all():
        axes.set_yscale("log")
    elif are_fractions(metric, epochs[metric]):
        axes.yaxis.set_major_formatter(PercentFormatter(1))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("epoch")
    axes.set_ylabel(label(metric))


def _lines(axes: Axes, epochs: pd.DataFrame, metric: str, colour: list[Any]) -> None:
    """A line per trial, all of them one artist.

    The more there are, the paler they are. Many have no marks, and are mixed, so that the last ones do not cover all.
    """
    trial = pd.factorize(epochs["trial"])[0]
    order = np.argsort(trial, kind="stable")
    points = epochs[["epoch", metric]].to_numpy(float)[order]
    lines = np.split(points, 1 + np.flatnonzero(np.diff(trial[order])))
    many = len(lines) > MANY
    alpha = max(0.05, min(1.0, (100 / len(lines)) ** 0.5))
    turns = np.random.default_rng(0).permutation(len(lines)) if many else range(len(lines))
    drawn = [lines[turn] for turn in turns]
    axes.add_collection(LineCollection(drawn, colors=[colour[turn] for turn in turns], alpha=alpha, rasterized=many))
    if not many:
        dots = [colour[number] for number in trial]
        axes.scatter(epochs["epoch"], epochs[metric], s=9, c=dots, alpha=alpha, linewidths=1, zorder=2)
    axes.autoscale_view()


# ---- what it cost


def packing(
    axes: Axes, timeline: pd.DataFrame, trials: pd.DataFrame, jobs: pd.DataFrame, strategies: pd.DataFrame
) -> None:
    """GPUs over time: above, each trial a task of an array; below, packed. Grey is what is asked for and not used.

    Areas are the GPU-seconds of `strategies`. Drawn are the jobs that it counts, one after another, and of each trial
    the attempt that came to a result.
    """
    table, held, done = strategies.set_index("strategy"), _held(jobs), _results(timeline, trials, jobs)
    depth = table.loc["job_array", "gpus_per_job"] * len(done)
    top = depth + max(1, 0.1 * depth)
    _array(axes, done["seconds"], table.loc["job_array"])
    _packed(axes, done.join(held, on="job", how="inner"), held, top=top)
    most = held["slots"].max() if len(held) else 0
    counts = {"job_array": f"{len(done)} jobs", "packed": f"{len(held)} x " * (len(held) > 1) + f"{most} slots"}
    words = [f"{name.replace('_', ' ')}:\n{count}\n{table.loc[name, 'wasted_fraction']:.0%} wasted"
             for name, count in counts.items()]  # fmt: skip
    axes.set_yticks([depth / 2, top + (held["gpus"].max() / 2 if len(held) else 0)], words)
    axes.tick_params(axis="y", length=0)
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    pauses = ", pauses between jobs left out" * (len(held) > 1)
    axes.set_xlabel(f"seconds since the first trial started{pauses}; orange: programs start")
    asked = [f"{table.loc[name, 'requested_gpu_seconds']:,.4g}" for name in counts]
    axes.set_title(f"GPU-seconds asked for: {asked[0]} by the array, {asked[1]} packed")


def _array(axes: Axes, seconds: pd.Series, row: "pd.Series[Any]") -> None:
    """A lane per task of a job array, as high as it has GPUs; the bar of a trial is as high as its share of them."""
    gpus, count = row["gpus_per_job"], max(1, len(seconds))
    lanes, starting = gpus * (np.arange(len(seconds)) + 0.5), row["startup_gpu_seconds"] / (count * max(1, gpus))
    bars(axes, lanes, -starting, row["requested_seconds_per_job"] - starting, colour=IDLE, height=gpus, edge=0)
    bars(axes, lanes, -starting, 0, colour=STARTING, height=gpus, edge=0)
    share = row["running_gpu_seconds"] / (seconds.sum() or 1.0)
    bars(axes, lanes, 0, seconds.sort_values(ascending=False), colour=COLOURS[4], height=share, edge=0.4)


def _packed(axes: Axes, done: pd.DataFrame, held: pd.DataFrame, *, top: float) -> None:
    """The lanes of slots below `top`, together as high as their job has GPUs, and the trials that ran there."""
    slots = held.loc[held.index.repeat(held["slots"])]
    high, begin = slots["gpus"] / slots["slots"], slots["offset"]
    lanes = top + (slots.groupby(level=0).cumcount() + 0.5) * high
    bars(axes, lanes, begin, begin + slots["asked"], colour=IDLE, height=high, edge=0)
    bars(axes, lanes, begin, begin + slots["starting"], colour=STARTING, height=high, edge=0)
    begin = done["offset"] + done["start"] - done["began"]
    lanes = top + (done["slot"] + 0.5) * np.maximum(done["share"], done["gpus"] / done["slots"])
    bars(axes, lanes, begin, begin + done["here"], colour=COLOURS[0], height=done["share"], edge=0.4)


def _held(jobs: pd.DataFrame) -> pd.DataFrame:
    """Of each job that counts, what it `asked` for, what of that it was `starting`, and where in the picture it begins.

    What was not asked of anybody is what it took; a job without a trial was starting all the time.
    """
    held = jobs[jobs.get("counted", pd.Series(True, jobs.index)).astype(bool)]
    asked = held["requested_seconds"].fillna(held["elapsed_seconds"]).astype(float)
    starting = held["startup_seconds"].fillna(held["elapsed_seconds"])
    lengths = np.maximum(asked, held["elapsed_seconds"])
    offset = lengths.cumsum() - lengths - starting.head(1).sum()
    return held[["slots", "gpus"]].assign(began=held["start"], asked=asked, starting=starting, offset=offset)


def _results(timeline: pd.DataFrame, trials: pd.DataFrame, jobs: pd.DataFrame) -> pd.DataFrame:
    """The attempts that ended the trials, with the trial's `seconds` and the part of them that ran `here`."""
    known, run = trials[trials["status"].isin(CONCLUSIVE)].set_index("trial"), by_job(timeline, jobs)
    done = run[run["outcome"] == run["trial"].map(known["status"])].drop_duplicates("trial", keep="last")
    held = done["end"] - done["start"]
    here = np.minimum(done.get("seconds", held), held)
    return done.assign(seconds=done["trial"].map(known["seconds"]), here=here, share=done.get("gpus_per_trial", 1.0))


def by_job(timeline: pd.DataFrame, jobs: pd.DataFrame) -> pd.DataFrame:
    """Attempts in the order of their start, each with its `job`'s row in `jobs`: one works on a sweep at a time."""
    run = timeline.sort_values("start")
    return run.assign(job=np.searchsorted(jobs["start"], run["start"], side="right") - 1)


def waste(axes: Axes, strategies: pd.DataFrame) -> None:
    """GPU-seconds that each strategy asks for: in which trials ran, in which programs started, and else wasted."""
    rows = np.arange(len(strategies))
    left = pd.Series(0.0, strategies.index)
    startup = strategies["startup_gpu_seconds"]
    parts = {"trials ran": (strategies["running_gpu_seconds"], COLOURS[0]),
             "programs starting": (startup, STARTING),
             "else wasted": ((strategies["wasted_gpu_seconds"] - startup).clip(lower=0), "#BBBBBB")}  # fmt: skip
    for name, (width, colour) in parts.items():
        axes.barh(rows, width, left=left, height=0.6, color=colour, label=name)
        left += width
    for row, end in zip(strategies.itertuples(), left, strict=True):
        text = f"{row.wasted_fraction:.0%} wasted"
        axes.annotate(text, (end, row.Index), xytext=(4, 0), textcoords="offset points", va="center", fontsize=8)
    names = strategies["strategy"].str.replace("_", " ") + "\n" + strategies["jobs"].map("{:.0f} x ".format)
    axes.set_yticks(rows, names + strategies["requested_seconds_per_job"].map("{:.3g} s".format))
    axes.invert_yaxis()
    axes.margins(x=0.15)
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("GPU-seconds asked for")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, 1.16), ncols=3, fontsize=9)


def predictions(axes: Axes, timeline: pd.DataFrame, jobs: pd.DataFrame) -> None:
    """What each trial was expected to take when it started, against what it took; for whole jobs, in the title."""
    done = timeline[(timeline["outcome"] == TrialStatus.FINISHED) & (timeline["expected_seconds"] > 0)]
    taken, expected = done["end"] - done["start"], done["expected_seconds"]
    if len(done):
        ends = [0.9 * min(taken.min(), expected.min()), 1.1 * max(taken.max(), expected.max())]
        axes.plot(ends, ends, "--", color="#777777", label="as expected")
        size, alpha = (2, 0.3) if len(done) > MANY else (5, 0.8)
        axes.plot(expected, taken, "o", markersize=size, alpha=alpha, label="trials", rasterized=len(done) > MANY)
        if ends[1] > 30 * ends[0]:
            axes.set_xscale("log")
            axes.set_yscale("log")
        axes.legend(loc="upper left")
        off = f"half of the trials are off by at most {(taken / expected - 1).abs().median():.0%}"
    else:
        axes.text(0.5, 0.5, "nothing was known before", ha="center", va="center", transform=axes.transAxes)
        off = "no trial was predicted"
    known = jobs.dropna(subset=["gap"]) if len(jobs) else jobs
    whole = [f"; the last job: {each.predicted_seconds:.3g} s predicted, {each.measured_seconds:.3g} s measured"
             for each in known.tail(1).itertuples()]  # fmt: skip
    axes.set_title(off + "".join(whole))
    axes.set_xlabel("seconds expected when the trial started")
    axes.set_ylabel("seconds that it took")
