"""Pictures of a sweep: what its slots did when, what that cost, and what came of it."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, PercentFormatter

from trainyard.journal import RESULTS, SETTLED
from trainyard.planning import Plan
from trainyard.plots import (
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
from trainyard.schedules import schedule
from trainyard.sweepspec import Mode
from trainyard.tables import best_trial, how_best
from trainyard.trials import main_key

STARTING = COLOURS[5]  # programs


def gantt(axes: Axes, timeline: pd.DataFrame, trials: pd.DataFrame, key: str, *, log: bool | None = None) -> None:
    """What each slot did when: a bar per attempt, coloured by the value of `key`; the gaps are idle time.

    `log` says whether `key` is drawn on a logarithmic scale; None where nothing is said.
    """
    run = without_pauses(timeline)
    lanes = run.drop_duplicates("slot", keep="last").sort_values(["node", "slot"]).reset_index(drop=True)
    values = trials.set_index("trial", drop=False)[key]
    total = run["stop"].max()
    lane = run["slot"].map({slot: index for index, slot in enumerate(lanes["slot"])})
    _bars_of_trials(axes, run.assign(lane=lane, failed=~run["outcome"].isin(RESULTS)), values, log=log)
    name_lanes(axes, [_lane(row) for row in lanes.itertuples()])
    axes.set_xlim(0, total)
    axes.set_xlabel("seconds since the first trial started")
    busy = (run["stop"] - run["begin"]).sum() / (total * len(lanes))
    axes.set_title(f"{len(run)} attempts on {len(lanes)} slots, {busy:.1%} busy, idle time grey; labels: {label(key)}")


def planned(axes: Axes, plan: Plan) -> None:
    """What each slot will do when, as predicted; before there is evidence, in proportions."""
    names, slots, key = plan.pending, plan.slots.count, main_key(list(plan.trials.values()))
    values = pd.Series({name: plan.trials[name].values.get(key, name) for name in plan.trials})
    turns = schedule(plan.durations, slots)
    rows = [(names[turn.trial], turn.slot, turn.start, turn.end, False) for turn in turns]
    run = pd.DataFrame(rows, columns=["trial", "lane", "begin", "stop", "failed"])
    total = run["stop"].max()
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
    colour, total, lanes = colours(values, log=log), run["stop"].max(), run["lane"].max() + 1
    known = values if is_number(values) else values.astype(str)
    shown = run["trial"].map(known)
    face_of = {value: colour(value) for value in shown.dropna().unique()}
    face = pd.Series([face_of.get(value, UNKNOWN) for value in shown], run.index, dtype=object).mask(
        run["failed"], FAILED
    )
    bars(axes, range(lanes), 0, total, colour=IDLE, edge=0)
    for failed, rows in run.groupby("failed"):
        hatch = "////" if failed else None
        bars(axes, rows["lane"], rows["begin"], rows["stop"], colour=list(face[rows.index]), hatch=hatch)
    for row in run[(run["stop"] - run["begin"] > 0.03 * total) & shown.notna()].itertuples():
        at, text = (row.begin + row.stop) / 2, short(shown[row.Index])
        own = readable(face[row.Index])
        if row.stop - row.begin > 0.01 * (len(text) + 1) * total:  # a letter takes a hundredth of the width
            axes.text(at, row.lane, text, ha="center", va="center", fontsize=8, color=own, zorder=3)


def without_pauses(timeline: pd.DataFrame) -> pd.DataFrame:
    """Attempts with begin and stop in seconds, the pauses between two runs of the driver taken out."""
    run = timeline.sort_values("start").copy()
    covered_until = run["end"].cummax().shift(fill_value=run["start"].iloc[0])
    gaps = (run["start"] - covered_until).clip(lower=0)
    removed = gaps.where(gaps > 60, 0).cumsum() + run["start"].iloc[0]
    run["begin"], run["stop"] = run["start"] - removed, run["end"] - removed
    return run


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
    done = trials[(trials["status"] == "finished") & trials[metric].notna()]
    early = trials[(trials["status"] == "stopped") & trials[metric].notna()]
    best = best_trial(trials, metric, mode)
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
    words = f"{how_best(label(metric), mode, of=metric)}:", f"{value} at {label(key)} = {short(best[key])}"
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


def packing(axes: Axes, timeline: pd.DataFrame, strategies: pd.DataFrame) -> None:
    """GPUs over time: above, each trial a task of an array; below, packed. Grey is what is asked for and not used.

    Of each trial, the attempt that came to a result. Programs start before the first trial does.
    """
    run, table = without_pauses(timeline), strategies.set_index("strategy")
    done = run[run["outcome"].isin(SETTLED)].drop_duplicates("trial", keep="last")
    array = (done["stop"] - done["begin"]).sort_values(ascending=False).to_list()
    lanes = {slot: len(array) + 1.5 + index for index, slot in enumerate(sorted(run["slot"].unique()))}
    words = []
    for name, rows in (("job_array", list(range(len(array)))), ("packed", list(lanes.values()))):
        row = table.loc[name]
        startup = row["startup_gpu_seconds"] / max(1, row["jobs"] * row["gpus_per_job"])
        held = max(run["stop"].max(), row["requested_job_seconds"] - startup) if name == "packed" else max(array)
        bars(axes, rows, -startup, held, colour=IDLE, edge=0)
        bars(axes, rows, -startup, 0, colour=STARTING, edge=0)
        count = f"{len(array)} jobs" if name == "job_array" else f"{len(lanes)} slots"
        words.append(f"{name.replace('_', ' ')}:\n{count}\n{row['wasted_fraction']:.0%} wasted")
    bars(axes, range(len(array)), 0, array, colour=COLOURS[4], edge=0.4)
    bars(axes, done["slot"].map(lanes), done["begin"], done["stop"], colour=COLOURS[0], edge=0.4)
    axes.set_yticks([(len(array) - 1) / 2, float(np.mean(list(lanes.values())))], words)
    axes.tick_params(axis="y", length=0)
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("seconds since the first trial started; before that, programs start")
    asked = [f"{table.loc[name, 'requested_gpu_seconds']:,.4g}" for name in ("job_array", "packed")]
    axes.set_title(f"GPU-seconds asked for: {asked[0]} by the array, {asked[1]} packed")


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
    done = timeline[(timeline["outcome"] == "finished") & (timeline["expected_seconds"] > 0)]
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
