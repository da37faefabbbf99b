"""The plot of a sweep's slots over time, as its trials ran."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pandas as pd
from matplotlib.axes import Axes

from trainyard.config.trial_status import WITH_RESULT
from trainyard.report import style
from trainyard.report.plotted_trials import PlottedTrials
from trainyard.report.style import IDLE, draw_bars, is_numeric
from trainyard.utils.text import count_of

MAX_LABELED_KEYS: Final = 3  # with more varied keys, bars have no labels
MIN_LABELED: Final = 0.015  # of the whole time: no text fits into a shorter bar


def plot_gantt(axes: Axes, timeline: pd.DataFrame, jobs: pd.DataFrame, ranked: PlottedTrials) -> None:
    """The slots over time: a bar per attempt, labeled with the values of all varied keys; the gaps are idle time.

    The color stands for the value of the varied key, or for the metric if there are several keys or many names. The
    time in which no job ran trials is omitted.
    """
    if timeline.empty:
        style.write_in_center(axes, "no trial has started")
        return
    layout = lay_out(timeline, jobs)
    style.figure_of(axes).set_figheight(style.lanes_height(len(layout.lanes)))
    run = layout.attempts
    held = layout.held
    draw_bars(axes, held["lane"], held["begin"], held["stop"], color=IDLE, edge=0)
    for failed, rows in run.groupby("failed"):
        known = [ranked.trial_colors.get(trial, style.UNKNOWN) for trial in rows["trial"]]
        faces, hatch = (style.FAILED, "////") if failed else (known, None)
        draw_bars(axes, rows["lane"], rows["begin"], rows["stop"], color=faces, hatch=hatch)
    style.label_lanes(axes, layout.lanes)
    axes.set_xlim(0, layout.end or 1.0)
    axes.set_xlabel(layout.axis)
    if ranked.colored_key is None:
        ranked.add_colorbar(axes, below=True)
    labels = _label_bars(axes, run, _labeled(ranked.table, ranked.keys), ranked.trial_colors)
    if ranked.colored_key and not labels:
        ranked.add_key_colorbar(axes)
    busy = (run["stop"] - run["begin"]).sum() / ((held["stop"] - held["begin"]).sum() or 1.0)
    of_jobs = f" of {layout.jobs} jobs" if layout.jobs > 1 else ""
    counts = f"{count_of(len(run), 'attempt')} on {count_of(len(layout.lanes), 'slot')}{of_jobs}"
    style.set_title(axes, f"{counts}, {busy:.1%} busy (idle: gray){labels}")


@dataclass(frozen=True)
class TimelineLayout:
    """Attempts and slots as a plot shows them, on an axis of time that leaves out the pauses of all jobs."""

    attempts: pd.DataFrame  # rows of timeline.csv, with `lane`, `begin`, `stop` and `failed`
    held: pd.DataFrame  # slots of the jobs that ran trials, with `lane`, `begin` and `stop`
    lanes: list[str]  # the name of each
    jobs: int  # at the same time
    axis: str  # what it shows, and its unit

    @property
    def end(self) -> float:
        """When the last slot was free."""
        return float(self.held["stop"].max())


def lay_out(timeline: pd.DataFrame, jobs: pd.DataFrame) -> TimelineLayout:
    """Where a plot shows the attempts of a timeline that is not empty."""
    run = _assign_jobs(timeline, jobs)
    held = _held_slots(run, jobs)
    spans = held.drop_duplicates("job")
    until = spans["last"].cummax().shift(fill_value=spans["first"].min())
    pauses = (spans["first"] - until).clip(lower=0).cumsum().set_axis(spans["job"])
    origin = run["start"].min() + pauses
    lanes = _lanes(run, held)
    lane_of = {slot: index for index, slot in enumerate(lanes["slot"])}
    unit, seconds = style.time_unit((held["last"] - held["job"].map(origin)).max())

    def on_axis(times: "pd.Series[float]", of_jobs: "pd.Series[int]") -> "pd.Series[float]":
        return (times - of_jobs.map(origin)) / seconds

    run = run.assign(
        lane=run["slot"].map(lane_of),
        begin=on_axis(run["start"], run["job"]),
        stop=on_axis(run["end"], run["job"]),
        failed=~run["outcome"].isin(WITH_RESULT),
    )
    held = held.assign(
        lane=held["slot"].map(lane_of),
        begin=on_axis(held["first"], held["job"]),
        stop=on_axis(held["last"], held["job"]),
    )
    omitted = " (pauses between jobs omitted)" if pauses.any() else ""
    count = lanes["order_job"].nunique()
    names = list(map(_lane_name, lanes.itertuples()))
    if count > 1:
        names = [f"{name}, job {job + 1}" for name, job in zip(names, lanes["order_job"], strict=True)]
    return TimelineLayout(run, held, names, count, f"{unit} since the first trial started{omitted}")


def _held_slots(run: pd.DataFrame, jobs: pd.DataFrame) -> pd.DataFrame:
    """The slots of each job that ran trials: `job` (its row in `jobs`), `order_job`, `slot`, and `first` and `last`.

    `first` is the start of its first trial, `last` the end of its last one; rows are in the order of `first`.
    """
    spans = run.groupby("job").agg(first=("start", "min"), last=("end", "max"), top=("slot", "max"))
    spans["order_job"] = jobs["order_job"].reindex(spans.index, fill_value=0)
    begin = spans["order_job"] * jobs["slots"].reindex(spans.index).fillna(0)
    used = spans["top"] + 1 - begin
    counts = jobs["slots"].reindex(spans.index).fillna(used).astype(int)
    held = spans.loc[spans.index.repeat(counts)]
    slots = (begin.loc[held.index] + held.groupby(level=0).cumcount()).astype(int)
    return held.assign(slot=slots).rename_axis("job").reset_index().sort_values(["first", "job"], kind="stable")


def _lanes(run: pd.DataFrame, held: pd.DataFrame) -> pd.DataFrame:
    """The slots that trials used, by job and node, and those that no trial used although a job held them."""
    nodes = run.groupby("slot")["node"].transform("nunique")
    used = run.assign(on_nodes=nodes).drop_duplicates("slot", keep="last")
    order_jobs = held.set_index("slot")["order_job"].groupby(level=0).last()
    unused = pd.DataFrame({"slot": sorted({*held["slot"]} - {*used["slot"]}), "gpu": ""})
    lanes = pd.concat([used, unused], ignore_index=True) if len(unused) else used
    lanes = lanes.assign(order_job=lanes["slot"].map(order_jobs).fillna(0).astype(int))
    return lanes.sort_values(["order_job", "node", "slot"], ignore_index=True)


def _labeled(trials: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    """The texts on the bars of trials (index): of the values of all keys (columns), or their names without any key."""
    values = trials.set_index("trial", drop=False)[list(keys) or ["trial"]]
    texts = dict[Any, pd.Series]()
    for key, column in values.items():
        if is_numeric(column):
            texts[key] = column.map(style.format_value)
        else:
            names = style.fill_missing(column).astype(str)
            texts[key] = names.map(style.distinct_names(names, 12))
    return pd.DataFrame(texts, values.index)


def _lane_name(row: Any) -> str:
    """Node and GPU of a slot, or its number: without a GPU, or if its jobs had it on several nodes."""
    if pd.isna(row.node):  # that of a slot which no trial used is not known
        return f"slot {row.slot}, not used"
    if row.on_nodes > 1:
        return f"slot {row.slot}"
    return f"{row.node} slot {row.slot}" if getattr(row, "device", "") == "cpu" else f"{row.node} GPU {row.gpu}"


def _label_bars(axes: Axes, run: pd.DataFrame, values: pd.DataFrame, color_of: Mapping[str, Any]) -> str:
    """Label the bars that are wide enough with the texts of all keys (columns), by trial (index).

    Returns the end of the title, which names the keys; "" if no bar is labeled.
    """
    labels = []
    end = run["stop"].max()
    if values.shape[1] > MAX_LABELED_KEYS:
        return ""
    known = run["trial"].isin(values.index)  # the config may have had other trials
    for row in run[known & (run["stop"] - run["begin"] > MIN_LABELED * end)].itertuples():
        text = ", ".join(values.loc[row.trial])
        ink = style.text_color(style.FAILED if row.failed else color_of.get(row.trial, style.UNKNOWN))
        center = ((row.begin + row.stop) / 2, row.lane)
        box = {"facecolor": style.FAILED, "edgecolor": "none", "pad": 2} if row.failed else None  # covers the hatches
        label = axes.text(*center, text, ha="center", va="center", fontsize=8, color=ink, zorder=3, bbox=box)
        labels.append((row.stop - row.begin, label))
    style.figure_of(axes).draw_without_rendering()  # only now is the size of the axes known
    (left, low), (right, high) = axes.transData.transform([(0, 0), (1, 1)])
    width = right - left  # of a second, in pixels
    height = 0.8 * abs(high - low)  # of a bar, in pixels
    for seconds, label in labels:
        size = label.get_window_extent()
        if size.width + 4 > seconds * width or size.height > height:
            label.remove()
    keys = style.short_names(list(values)).values()
    return f"; labels: {', '.join(keys)}" if axes.texts else ""


def _assign_jobs(timeline: pd.DataFrame, jobs: pd.DataFrame) -> pd.DataFrame:
    """The attempts in the order of their start, each with the row of its `job` in `jobs`; -1 if it is not known."""
    rows = dict(zip(jobs["session"], jobs.index, strict=True))
    run = timeline.sort_values("start")
    return run.assign(job=run["session"].map(rows).fillna(-1).astype(int))
