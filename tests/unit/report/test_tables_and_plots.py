"""The tables of a sweep are computed from its journal, and every plot shows the values of its tables."""

import re
from inspect import signature

import pandas as pd
import pytest
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from plotted import JOBS, STRATEGIES, plotted
from project import ROOT
from sweep_journals import write_session
from trainyard.config.load import check_config
from trainyard.packing.live_table import slot_table
from trainyard.planning.attempts import Attempt
from trainyard.planning.journal import Location
from trainyard.planning.plan import plan_sweep
from trainyard.report import cost_plots, metric_plots, scaling_plots, style, timeline_plots
from trainyard.report.plotted_trials import PlottedTrials, rank_trials
from trainyard.report.sweep_facts import sweep_facts
from trainyard.results import SweepResults
from trainyard.results.accounting import compare_strategies, jobs_table, strategies_table
from trainyard.results.ranking import describe_ranking, rank_sweep
from trainyard.results.sweep_tables import (
    curve_column,
    epochs_table,
    metric_column,
    ranking_table,
    stopping_table,
    summarize_savings,
    timeline_table,
    trials_table,
)
from trainyard.scaling.speedups import SCALING_COLUMNS
from trainyard.utils.csv_files import read_table, write_table


def test_tables_keep_the_digits_of_times(tmp_path):
    write_table(pd.DataFrame({"start": [1730000000.1234]}), tmp_path / "t.csv")
    assert pd.read_csv(tmp_path / "t.csv")["start"][0] == 1730000000.1234


def test_the_columns_of_all_tables_are_described(tmp_path):
    """In docs/results.md; without values, only the columns matter."""
    config = check_config({"sweeps": {"s": {"function": "os:getcwd", "grid": {"lr": [1]}}}})
    state = plan_sweep(config, "s", tmp_path).state
    tables = [timeline_table(state), stopping_table(state), jobs_table(state, [], {}), ranking_table(rank_sweep(state)),
              strategies_table(compare_strategies(state, [], {}))]  # fmt: skip
    columns = {
        *trials_table(state, rank_sweep(state)).columns[2:5],
        *SCALING_COLUMNS,
        *(name for table in tables for name in table),
    }
    words = set(re.findall(r"`([\w<>]+)`", (ROOT / "docs/results.md").read_text()))
    known = words | {name.replace("<metric>", "seconds") for name in words}
    assert "kept_seconds" in columns, "also without attempts"
    assert columns <= known


TIMELINE = pd.DataFrame(
    [
        ["a", 1, "local", "n1", 0, 0, 100.0, 110.0, "finished"],
        ["b", 1, "local", "n1", 1, 1, 100.0, 104.0, "failed"],
        ["b", 2, "local", "n1", 1, 1, 104.0, 109.0, "finished"],
        ["c", 1, "local", "n1", 0, 0, 5000.0, 5002.0, "finished"],
    ],
    columns=["trial", "attempt", "job", "node", "gpu", "slot", "start", "end", "outcome"],
).assign(kept_seconds=[10.0, 0.0, 5.0, 2.0], gpus_per_trial=1.0, session=["first", "first", "first", "second"])
TRIALS = pd.DataFrame(
    {
        "trial": ["a", "b", "c"],
        "blocks": [10, 20, 30],
        "model": ["x", "y", "x"],
        "width": [1.5, None, 3.0],
        "nesterov": [False, True, True],
        "status": "finished",
        "seconds": [10.0, 5.0, 2.0],
        "val_accuracy": [0.8, 0.9, 0.7],
    }
)
EPOCHS = pd.DataFrame(
    {
        "trial": ["a", "a", "b"],
        "blocks": [10, 10, 20],
        "model": ["x", "x", "y"],
        "epoch": [1, 2, 1],
        "val_loss": [1.0, 0.5, 0.7],
    }
)
SCALING = pd.DataFrame(
    {
        "scale": ["1x1", "1x2"],
        "gpus": [1, 2],
        "speedup": [1, 1.5],
        "speedup_low": [1, 1.4],
        "speedup_high": [1, 1.6],
        "nodes": 1,
        "verdict": "",
        "recommended": False,
        "efficiency": [1, 0.75],
        "repeats": 3,
        "step_ms_p50": [10, 14],
        "data_wait_fraction": [0.1, 0.2],
        "exposed_comm_fraction": [None, 0.3],
        "device": "cpu",
    }
)
SAMPLES = {
    "1x1": pd.DataFrame(
        {
            "of": ["n1 GPU 0", "n1 GPU 1"] * 2,
            "seconds": [0, 0, 200, 200],
            "memory": [100, 90, 900, 800],
            "busy": [3, 4, 97, 96],
        }
    )
}
HISTORY = pd.DataFrame({"epoch": [1, 2], "val_loss": [1, 0.5], "train_loss": [1, 0.4], "seconds": [9, 9]})
HISTORIES = [("1x2", HISTORY)]
NOTHING_USED = STRATEGIES.assign(**{name: 0.0 for name in STRATEGIES if "gpu_seconds" in name})
OF_HOURS = STRATEGIES.assign(**{name: 1000 * STRATEGIES[name] for name in STRATEGIES if "_seconds" in name})
EXPECTED = TIMELINE.assign(expected_seconds=[11, None, 4, None])
# A trial of 20 s that was trained anew: interrupted after 15 s, of which it kept 12 s, and 9 s from its checkpoint on.
RESUMED = TIMELINE.assign(
    trial="a",
    attempt=[1, 2, 3, 4],
    start=[100.0, 200.0, 220.0, 300.0],
    end=[120.0, 215.0, 229.0, 301.0],
    outcome=["finished", "interrupted", "finished", "failed"],
    expected_seconds=[20.0, 20.0, 21.0, 20.0],
    kept_seconds=[0.0, 12.0, 9.0, 0.0],
)
ON_GPU = SCALING.assign(device="NVIDIA H200")


def ranked(*keys, trials=TRIALS, metric="val_accuracy", mode=None, **log):
    """The trials of a sweep that varies some keys."""
    return plotted(trials, keys, metric, mode, log)


PLOTS = {
    "gantt": (
        lambda axes: timeline_plots.plot_gantt(axes, TIMELINE, JOBS, ranked("blocks")),
        ["n1 GPU 0", "n1 GPU 1", "labels: blocks", "seconds since"],
    ),
    "gantt of several keys": (
        lambda axes: timeline_plots.plot_gantt(axes, TIMELINE, JOBS, ranked("blocks", "model")),
        ["labels: blocks, model", "10, x", "validation accuracy (higher is better)"],
    ),
    "metric": (lambda axes: metric_plots.plot_metric(axes, ranked=ranked("blocks")), ["90.0% at blocks = 20"]),
    "metric by several keys": (
        lambda left, right: metric_plots.plot_metric(left, right, ranked=ranked("blocks", "model")),
        ["90.0%", "blocks = 20", "model = y"],
    ),
    "minimized metric": (
        lambda axes: metric_plots.plot_metric(
            axes, ranked=ranked("blocks", trials=TRIALS.assign(rmse=[3, 1, 2]), metric="rmse", mode="min")
        ),
        ["best rmse (lowest): 1 at blocks = 20"],
    ),
    "metric with a guessed mode": (
        lambda axes: metric_plots.plot_metric(
            axes, ranked=ranked("blocks", trials=TRIALS.assign(rmse=[3, 1, 2]), metric="rmse")
        ),
        ["best rmse (lowest, guessed from its name): 1 at", "blocks = 20"],
    ),
    "accuracy in percent": (
        lambda axes: metric_plots.plot_metric(
            axes, ranked=ranked("blocks", trials=TRIALS.assign(accuracy=[80, 91.5, 0.7]), metric="accuracy")
        ),
        ["91.5 at", "blocks = 20"],
    ),
    "gantt on CPUs": (
        lambda axes: timeline_plots.plot_gantt(axes, TIMELINE.assign(device="cpu"), JOBS, ranked("blocks")),
        ["n1 slot 0", "n1 slot 1"],
    ),
    "losses": (
        lambda axes: metric_plots.plot_epochs(axes, EPOCHS, ranked("blocks"), "val_loss"),
        ["validation loss", "epoch", "blocks", "best trial"],
    ),
    "losses by name": (
        lambda axes: metric_plots.plot_epochs(axes, EPOCHS, ranked("model"), "val_loss"),
        [">x<", ">y<"],
    ),
    "losses of several keys": (
        lambda axes: metric_plots.plot_epochs(axes, EPOCHS, ranked("model", "blocks"), "val_loss"),
        ["validation accuracy (higher is better)"],
    ),
    "waste": (
        lambda axes: cost_plots.plot_waste(axes, STRATEGIES, JOBS),
        [
            "job array",
            "3 x 18 s",
            "26% wasted",
            "35% wasted",
            "start-up",
            "failed or interrupted",
            "idle slots",
            "not used",
        ],
    ),
    "waste of hours": (lambda axes: cost_plots.plot_waste(axes, OF_HOURS, JOBS), ["3 x 5 h"]),
    "waste of nothing": (
        lambda axes: cost_plots.plot_waste(axes, NOTHING_USED, JOBS.iloc[:0]),
        ["no trial has a result"],
    ),
    "waste on CPUs": (lambda axes: cost_plots.plot_waste(axes, STRATEGIES, JOBS, unit="CPU"), ["CPU-seconds"]),
    "predictions": (
        lambda axes: cost_plots.plot_predictions(axes, EXPECTED, JOBS),
        ["2 trials took 9% less to 25% more than predicted; last job: 11.5 s predicted, 12"],
    ),
    "predictions of a resumed trial": (
        lambda axes: cost_plots.plot_predictions(axes, RESUMED, JOBS.iloc[:0]),
        ["2 trials took 0% more than predicted"],
    ),
    "no predictions": (
        lambda axes: cost_plots.plot_predictions(axes, TIMELINE.assign(expected_seconds=float("nan")), JOBS.iloc[:0]),
        ["no trial was predicted"],
    ),
    "speedup": (
        lambda left, right: scaling_plots.plot_speedup(left, right, SCALING),
        ["ranks (on CPUs)", "speedup over 1x1", "parallel efficiency", "medians of 3 repeats", "no recommendation"],
    ),
    "losses by GPU time": (
        lambda left, right: scaling_plots.plot_losses(left, right, HISTORIES, ON_GPU),
        ["1x2 validation", "GPU-hours of training"],
    ),
    "losses on CPUs": (
        lambda left, right: scaling_plots.plot_losses(left, right, HISTORIES, SCALING),
        ["rank-seconds"],
    ),
    "steps": (lambda axes: scaling_plots.plot_steps(axes, SCALING), ["waiting for data", "30%", "50%", "on CPUs"]),
    "telemetry": (
        lambda left, right: scaling_plots.plot_telemetry(left, right, samples=SAMPLES, on_gpu=True),
        ["n1 GPU 0", "n1 GPU 1", "1x1", "GPU memory (MiB)", "GPU utilization", "minutes"],
    ),
}


@pytest.mark.parametrize(("painter", "texts"), PLOTS.values(), ids=PLOTS)
def test_every_plot_has_its_labels(tmp_path, painter, texts):
    style.save(painter, tmp_path / "picture", panels=(1, len(signature(painter).parameters)))
    svg = (tmp_path / "picture.svg").read_text()
    for text in texts:
        assert text in svg
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_the_waste_of_packed_jobs_is_split_by_its_reasons():
    def widths(jobs):
        axes = Figure().add_subplot()
        cost_plots.plot_waste(axes, STRATEGIES, jobs)
        return {bars.get_label(): [bar.get_width() for bar in bars] for bars in axes.containers}

    parts = {"running trials": [17, 17, 17], "start-up": [6, 6, 2]}
    parts["requested, not used"] = [11.5, 31, 0]
    failed, idle, rest = "failed or interrupted attempts", "idle slots", "otherwise wasted"
    assert widths(JOBS) == parts | {failed: [0, 0, 4], idle: [0, 0, 3]}
    other = JOBS.assign(counted=[False, True])  # `retrain` has overruled the first one
    assert widths(other) == parts | {idle: [0, 0, 2], rest: [0, 0, 5]}
    more = JOBS.assign(failed_gpu_seconds=5.0)
    assert widths(more) == parts | {failed: [0, 0, 7]}, "together what was used"


def test_a_line_of_speedups_joins_scales_in_the_order_of_their_gpus():
    """One line for those of one node, one for those of several: 2x2 and 1x4 are no steps of the same line."""
    scales = ["1x1", "1x2", "1x4", "1x8", "2x2", "4x2"]
    table = pd.DataFrame(
        {
            "scale": scales,
            "nodes": [1, 1, 1, 1, 2, 4],
            "gpus": [1, 2, 4, 8, 4, 8],
            "device": "H200",
            "speedup": [1, 1.9, 3.6, 7, 3.4, 6],
            "repeats": 1,
            "verdict": "",
            "recommended": False,
            "efficiency": 0.9,
            "gpu_hours_increase": 0.1,
            "train_seconds": 60.0,
        }
    )
    table = table.assign(speedup_low=table["speedup"], speedup_high=table["speedup"])
    left, right = Figure().subplots(1, 2)
    scaling_plots.plot_speedup(left, right, table)
    lines = [line.get_xdata().tolist() for line in left.lines if line.get_linestyle() == "-" and len(line.get_xdata())]
    assert [1, 2, 4, 8] in lines
    assert [4, 8] in lines
    assert "All scales of this study pay off." in left.figure.get_suptitle().replace("\n", " ")


@pytest.mark.parametrize(("loss", "scale"), [(0.5, "log"), (-0.5, "linear")])
def test_an_own_loss_may_be_negative(loss, scale):
    left, right = Figure().subplots(1, 2)
    scaling_plots.plot_losses(left, right, [("1x2", HISTORY.assign(val_loss=loss, train_loss=1.0))], ON_GPU)
    assert (left.get_yscale(), right.get_yscale(), left.get_ylabel()) == (scale, scale, "loss")


@pytest.mark.parametrize("last", [1e300, float("inf")])
def test_a_loss_that_diverges_leaves_the_axes_of_the_others_as_they_are(last):
    left, right = Figure().subplots(1, 2)
    rows = pd.DataFrame({"epoch": [1, 2, 3], "seconds": 1.0, "val_loss": [1, 1e20, last]})
    scaling_plots.plot_losses(left, right, [("1x2", rows)], ON_GPU)
    assert 1e20 <= left.get_ylim()[1] < 1e100


def test_equal_data_give_equal_plots(tmp_path):
    for name in ("one", "other"):
        style.save(lambda axes: scaling_plots.plot_steps(axes, SCALING), tmp_path / name)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "other.svg").read_bytes()


def test_each_file_of_a_plot_is_drawn_once(tmp_path):
    """With a layout engine, `savefig` draws a picture twice: once to place its axes."""

    class Counted(Line2D):
        count = 0

        def draw(self, renderer):
            self.count += 1
            super().draw(renderer)

    line = Counted([0, 1], [0, 1])
    style.save(lambda axes: axes.add_line(line), tmp_path / "picture")
    assert line.count == 2, "as SVG and as PNG"


@pytest.mark.parametrize("pause", [20.0, 4000.0])
def test_a_gantt_omits_the_time_between_jobs(pause):
    axes, second = Figure().add_subplot(), 110 + pause
    timeline = TIMELINE.assign(start=[100, 100, 104, second], end=[110, 104, 109, second + 2])
    timeline_plots.plot_gantt(axes, timeline, JOBS.assign(start=[99.5, second - 0.5]), ranked("blocks"))
    assert axes.get_xlim()[1] == 12, "ten seconds, then two more after the pause"
    assert f"{(10 + 4 + 5 + 2) / (2 * 12):.1%} busy" in axes.figure.get_suptitle()


def test_a_gantt_has_no_idle_time_on_slots_that_a_job_did_not_have():
    axes = Figure().add_subplot()
    timeline_plots.plot_gantt(axes, TIMELINE, JOBS.assign(slots=[2, 1]), ranked("blocks"))
    assert f"{(10 + 4 + 5 + 2) / (10 + 10 + 2):.1%} busy" in axes.figure.get_suptitle()


def test_a_gantt_has_the_idle_time_of_slots_that_no_trial_used():
    axes, timeline = Figure().add_subplot(), TIMELINE.head(1)
    timeline_plots.plot_gantt(axes, timeline, JOBS.head(1).assign(slots=4), ranked("blocks"))
    assert "1 attempt on 4 slots, 25.0% busy" in axes.figure.get_suptitle()
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert (names[0], names[-1]) == ("n1 GPU 0", "slot 3, not used")


def test_a_gantt_names_no_node_for_a_slot_that_was_on_several():
    axes = Figure().add_subplot()
    timeline_plots.plot_gantt(axes, TIMELINE.assign(node=["n1", "n1", "n2", "n1"]), JOBS, ranked("blocks"))
    assert {label.get_text() for label in axes.get_yticklabels()} == {"n1 GPU 0", "slot 1"}


@pytest.mark.parametrize(("log", "scale"), [(True, "log"), (False, "linear"), (None, "log")])
def test_axes_and_colors_follow_the_declared_scale(log, scale):
    axes, others = Figure().add_subplot(), Figure().add_subplot()
    trials = TRIALS.assign(blocks=[0.001, 0.03, 0.9])
    rows = ranked("blocks", trials=trials, blocks=log)
    metric_plots.plot_metric(axes, ranked=rows)
    assert axes.get_xscale() == scale
    metric_plots.plot_epochs(others, EPOCHS, rows, "val_loss")
    assert others.figure.axes[-1].get_yscale() == scale, "of the colors"
    face = tuple(rows.trial_colors[trials["trial"].iloc[1]])
    assert (face == style.SEQUENCE(0.5)) == (scale == "log"), "half-way between 0.001 and 0.9, by factors"


@pytest.mark.parametrize("joined", [True, False])
def test_a_line_joins_the_points_only_on_request(joined):
    axes = Figure().add_subplot()
    metric_plots.plot_metric(axes, ranked=ranked("blocks"), joined=joined)
    assert [line.get_linestyle() for line in axes.lines].count("-") == joined


OWN = {"function": "os:getcwd", "grid": {"lr": [0.1, 0.2]}, "args": {"start": 3}}


def plan_of(results, sweep, events, **sections):
    """The plan of a sweep whose journal has these events: (number of the trial, attempt, time, event, fields)."""
    config = check_config({"sweeps": {"s": sweep}, **sections})
    names = list(plan_sweep(config, "s", results).state.trials)
    lines = [
        {"event": event, "time": time, "trial": names[number], "attempt": attempt, **fields}
        for number, attempt, time, event, fields in events
    ]
    write_session(results / "sweeps/s", lines)
    return plan_sweep(config, "s", results).state


def events_of(number, attempt, times, **ends):
    """Events of an attempt that reports epochs, given as (epoch, time), and ends with the last one."""
    rows = [(number, attempt, time, "epoch", {"metrics": {"epoch": epoch, "rmse": 1 / epoch}}) for epoch, time in times]
    (event, fields), last = next(iter(ends.items())), times[-1][1]
    return [(number, attempt, 0.0, "started", {}), *rows, (number, attempt, last, event, fields)]


def test_a_varied_key_keeps_its_column_if_a_metric_has_the_same_name(tmp_path):
    metrics = {"lr": 7.0, "rmse": 2.0, "trial": 9.0, "seconds": 5.0}
    state = plan_of(
        tmp_path,
        OWN,
        [
            (0, 1, 0.0, "started", {}),
            (0, 1, 1.0, "epoch", {"metrics": {"epoch": 1, **metrics}}),
            (0, 1, 2.0, "finished", {"seconds": 2.0, "metrics": metrics}),
        ],
    )
    name = next(iter(state.trials))
    row = {"trial": name, "lr": 0.1, "reported_lr": 7.0, "reported_trial": 9.0, "rmse": 2.0, "reported_seconds": 5.0}
    assert epochs_table(state).to_dict("records")[0] == {**row, "epoch": 1}, "the same names in both tables"
    trial = trials_table(state, rank_sweep(state)).to_dict("records")[0]
    assert {key: trial[key] for key in row} == row
    assert trial["seconds"] == 2.0


def test_the_energy_of_a_trial_is_that_of_all_its_attempts(tmp_path):
    events = [
        (0, 1, 0.0, "started", {}),
        (0, 1, 2.0, "interrupted", {"energy_kwh": 0.5}),
        (0, 2, 3.0, "started", {}),
        (0, 2, 4.0, "finished", {"seconds": 2.0, "metrics": {"rmse": 2.0}, "energy_kwh": 0.25}),
    ]
    counted = plan_of(tmp_path / "counted", OWN, events)
    assert trials_table(counted, rank_sweep(counted))["energy_kwh"].tolist()[0] == 0.75
    unknown = [(*each[:4], {k: v for k, v in each[4].items() if k != "energy_kwh"}) for each in events]
    state = plan_of(tmp_path / "unknown", OWN, unknown)
    assert "energy_kwh" not in trials_table(state, rank_sweep(state))


@pytest.mark.parametrize(
    ("reported", "curve"), [({"rmse": 2.0}, "rmse"), ({"rmse": 2.0, "val_loss": 1.0}, "reported_val_loss"), ({}, "")]
)
def test_an_argument_named_as_a_metric_is_not_drawn_as_one(tmp_path, reported, curve):
    raw = {**OWN, "grid": {"val_loss": [0.1, 0.2]}, "args": {"rmse": 3}}
    row = {"metrics": {"epoch": 1, **reported}}
    state = plan_of(tmp_path, raw, [(0, 1, 0.0, "started", {}), (0, 1, 1.0, "epoch", row),
                                    (0, 1, 2.0, "finished", {"seconds": 2.0, "metrics": reported})])  # fmt: skip
    assert curve_column(epochs_table(state), ["val_loss", "rmse"], ["val_loss"]) == curve


@pytest.mark.parametrize(("metric", "curve"), [("val_accuracy", "val_accuracy"), ("final", "val_loss")])
def test_curves_are_those_of_the_ranking_metric_unless_it_is_reported_once(metric, curve):
    rows = {
        "trial": ["a", "a"],
        "epoch": [1, 2],
        "val_loss": [2.0, 1.0],
        "val_accuracy": [0.5, 0.6],
        "final": [None, 1],
    }
    assert curve_column(pd.DataFrame(rows), [metric, "val_loss"], []) == curve


def test_the_ranking_metric_is_plotted_whatever_its_name(tmp_path):
    metrics = {"metrics": {"epoch": 1, "seconds": 5.0}}
    state = plan_of(
        tmp_path,
        {**OWN, "metric": "seconds", "mode": "min"},
        [
            (0, 1, 0.0, "started", {}),
            (0, 1, 1.0, "epoch", metrics),
            (0, 1, 1.5, "epoch", {"metrics": {"epoch": 2, "seconds": 4.0}}),
            (0, 1, 2.0, "finished", {"seconds": 2.0, **metrics}),
        ],
    )
    axes = Figure().add_subplot()
    rows = PlottedTrials(trials_table(state, rank_sweep(state)), ["lr"], rank_sweep(state))
    metric_plots.plot_epochs(axes, epochs := epochs_table(state), rows, metric_column(epochs, "seconds"))
    assert axes.collections, "lines, not only a text"


def test_the_best_trial_follows_the_mode_of_the_sweep(tmp_path):
    ends = [{"seconds": 1.0, "metrics": {"rmse": 3.0, "accuracy": 0.5}},
            {"seconds": 1.0, "metrics": {"rmse": 4.0, "accuracy": 0.7}}]  # fmt: skip
    events = [
        (number, 1, time, event, fields)
        for number, end in enumerate(ends)
        for time, event, fields in [(0.0, "started", {}), (1.0, "finished", end)]
    ]
    guessed = plan_of(tmp_path / "a", {**OWN, "metric": "rmse"}, events)
    first, second = guessed.trials
    assert describe_ranking(rank_sweep(guessed)) == [
        f"best rmse (lowest, guessed from its name): 3, by trial {first} with lr = 0.1",
        f"runner-up: 4, by trial {second} with lr = 0.2; with one run each, chance may have decided",
    ]
    declared = plan_of(tmp_path / "b", {**OWN, "metric": "rmse", "mode": "max"}, events)
    assert describe_ranking(rank_sweep(declared))[0] == f"best rmse (highest): 4, by trial {second} with lr = 0.2"


JUDGED = [
    {"metric": "epoch_start_seconds", "constraints": {"train_loss": {"max": 1}}},
    {"objectives": {"seconds": "min", "epoch_start_seconds": "min"}},
    {"constraints": {"epoch_start_seconds": {"max": 1}, "seconds": {"max": 9}}},
]


@pytest.mark.parametrize("judged", JUDGED, ids=lambda judged: next(iter(judged)))
def test_the_table_of_trainings_has_what_judges_them(tmp_path, judged):
    metrics = {"val_accuracy": 0.5, "train_loss": 0.1, "epoch_start_seconds": 0.25}
    ends = [(0, 1, 0.0, "started", {}), (0, 1, 1.0, "finished", {"seconds": 1.0, "metrics": metrics})]
    sweep = {"dataset": "digits", "grid": {"lr": [0.1, 0.2]}, **judged}
    state = plan_of(tmp_path, sweep, ends, datasets={"digits": {"source": "digits"}})
    table = trials_table(state, rank_sweep(state))
    assert table.loc[0, "epoch_start_seconds"] == 0.25
    assert table.columns.is_unique
    assert "reported_seconds" not in table, "the duration of a trial has its column"


def test_words_and_plots_leave_out_a_key_with_the_same_value_in_all_trials_and_tables_do_not(tmp_path):
    sweep = {"function": "os:getcwd", "trials": [{"width": 8, "lr": 0.1}, {"width": 8, "lr": 0.2}]}
    ends = [("started", {}), ("finished", {"seconds": 1.0, "metrics": {"rmse": 3.0}})]
    state = plan_of(tmp_path, sweep, [(0, 1, float(time), event, fields) for time, (event, fields) in enumerate(ends)])
    trials, ranking = trials_table(state, rank_sweep(state)), rank_sweep(state)
    assert describe_ranking(ranking)[0].endswith(" with lr = 0.1")
    assert describe_ranking(ranking)[0].count("=") == 1
    assert rank_trials(state, trials, ranking).keys == ["lr"]
    running = [Attempt(next(iter(state.trials)), 1, 0, 1, location=Location(slot=0, node="n1", gpu="0"))]
    assert "lr=0.1" in slot_table(running, state).rows[0]
    for table in (trials, epochs_table(state), ranking_table(ranking)):
        assert {"width", "lr"} <= set(table)


def test_the_ranking_has_a_row_per_configuration(tmp_path):
    """The keys `n` and `seed` are those of the sweep: columns of the same name do not hide one."""
    ends = [{"seconds": 1.0, "metrics": {"rmse": rmse}} for rmse in (3.0, 4.0, 1.0, 2.0)]
    events = [
        (number, 1, time, event, fields)
        for number, end in enumerate(ends)
        for time, event, fields in [(0.0, "started", {}), (1.0, "finished", end)]
    ]
    state = plan_of(tmp_path, {**OWN, "grid": {"n": [7, 8, 9], "seed": [0, 1]}}, events)
    table, names = ranking_table(rank_sweep(state)), list(state.trials)
    assert table.astype(object).where(table.notna(), None).to_dict("list") == {
        "place": [1, 2, None],
        "varied_n": [8, 7, 9],
        "trial": [names[2], names[0], None],
        "n": [2, 2, 0],
        "trials": [2, 2, 2],
        "rmse_mean": [1.5, 3.5, None],
        "rmse_deviation": [pytest.approx(0.5**0.5), pytest.approx(0.5**0.5), None],
        "rmse_best": [1.0, 3.0, None],
        "is_incomplete": [False, False, False],
        "may_be_best": [True, False, False],  # the seed shifts both alike
    }


STOP = {**OWN, "stop": {"method": "asha", "epochs": 10}, "metric": "rmse"}


def test_saved_seconds_are_computed_from_the_time_between_epochs(tmp_path):
    """Neither the start-up of 100 s counts, nor epochs of an earlier attempt that are reported again."""
    state = plan_of(
        tmp_path,
        {**STOP, "grid": {"lr": [1, 2, 3]}},
        [
            *events_of(0, 1, [(1, 100.0), (2, 102.0), (3, 104.0)], stopped={"seconds": 104.0, "why": "asha"}),
            *events_of(1, 1, [(1, 50.0), (2, 53.0)], interrupted={}),
            *events_of(1, 2, [(1, 90.0), (2, 90.0), (3, 93.0), (4, 96.0)], stopped={"seconds": 96.0, "why": "asha"}),
            *events_of(2, 1, [(1, 200.0)], stopped={"seconds": 200.0, "why": "asha"}),
        ],
    )
    table = stopping_table(state)
    assert table["saved_epochs"].tolist() == [7, 6, 9]
    assert table["saved_seconds"].tolist() == [7 * 2.0, 6 * 3.0, 9 * 2.5], "of one epoch: the median of the others"
    assert "this saved 22 of 30 epochs (73.3%), or 54.5 slot-seconds" in summarize_savings(state, table)


def test_epochs_that_are_counted_from_0_save_as_many(tmp_path):
    reported = [(0, 100.0), (1, 102.0), (2, 104.0)]
    state = plan_of(tmp_path, STOP, [
        (0, 1, 0.0, "started", {}),
        *((0, 1, time, "epoch", {"metrics": {"epoch": epoch, "rmse": 1.0}}) for epoch, time in reported),
        (0, 1, 104.0, "stopped", {"seconds": 104.0, "why": "asha"})])  # fmt: skip
    table = stopping_table(state)
    assert table[["epochs", "saved_epochs", "saved_seconds"]].to_numpy().tolist() == [[3, 7, 14.0]]


def test_the_time_of_the_first_row_of_a_command_does_not_count(tmp_path):
    command = {"command": "true {lr}", "grid": {"lr": [1]}, "metrics": {"file": "m.csv"}, "stop": STOP["stop"],
               "metric": "rmse"}  # fmt: skip
    times = [(1, 104.0), (2, 104.0), (3, 106.0), (4, 108.0)]
    state = plan_of(tmp_path, command, events_of(0, 1, times, stopped={"seconds": 108.0, "why": "asha"}))
    assert stopping_table(state)["saved_seconds"].tolist() == [6 * 2.0]


def test_the_seconds_of_a_stopped_trial_are_those_of_all_it_continued(tmp_path):
    """As in trials.csv. The first attempt reached epoch 2 after 20 s, from which the second one continued."""
    state = plan_of(
        tmp_path,
        {**STOP, "grid": {"lr": [1]}},
        [
            *events_of(0, 1, [(1, 10.0), (2, 20.0)], interrupted={}),
            *events_of(0, 2, [(3, 13.0)], stopped={"seconds": 13.0, "why": "asha"}),
        ],
    )
    assert (
        stopping_table(state)["seconds"].tolist()
        == trials_table(state, rank_sweep(state))["seconds"].tolist()
        == [33.0]
    )


def test_a_stopped_trial_whose_output_has_no_epochs_has_unknown_savings(tmp_path):
    """An earlier `metrics` rule read its epochs."""
    stopped = {"seconds": 53.0, "why": "asha"}
    state = plan_of(tmp_path, STOP, [
        (0, 1, 0.0, "started", {}), (0, 1, 53.0, "stopped", stopped),
        *events_of(1, 1, [(1, 50.0), (2, 53.0)], stopped=stopped)])  # fmt: skip
    table = stopping_table(state)
    write_table(table, tmp_path / "stopping.csv")
    rows = [line.partition(",")[2] for line in (tmp_path / "stopping.csv").read_text().splitlines()]
    assert rows[1:] == [",,53,,asha", "2,8,53,24,asha"]
    assert summarize_savings(state, table) == "stopped early: 2 of 2 trials; this saved 8 of 20 epochs (40.0%)"
    assert summarize_savings(state, table[:1]) == "stopped early: 1 of 2 trials"


def test_unknown_saved_seconds_are_not_reported(tmp_path):
    state = plan_of(tmp_path, STOP, events_of(0, 1, [(1, 200.0)], stopped={"seconds": 200.0, "why": "asha"}))
    table = stopping_table(state)
    assert table["saved_seconds"].isna().all()
    assert summarize_savings(state, table) == "stopped early: 1 of 2 trials; this saved 9 of 20 epochs (45.0%)"


@pytest.mark.parametrize(("accuracy", "words"), [(0.915, "accuracy 91.5%"), (91.5, "accuracy 91.5")])
def test_the_live_view_has_no_gpu_on_cpus_and_shows_only_fractions_in_percent(tmp_path, accuracy, words):
    state = plan_of(tmp_path, {**OWN, "metric": "accuracy"}, [])
    where = Location(slot=0, node="n1", gpu="0")
    rows = [{"epoch": 1, "rmse": 2.0, "accuracy": accuracy}]
    running = [
        Attempt(name, 1, 0, 1, location=where._replace(device=device), epochs=rows)
        for name, device in zip(state.trials, ("cpu", "NVIDIA H200"), strict=True)
    ]
    table = slot_table(running, state)
    cells = {column.name: list(each) for column, each in zip(table.columns, zip(*table.rows, strict=True), strict=True)}
    assert cells["GPU"] == ["none", "0"]
    assert cells["metric"] == [words, words]


def swept(results, runs, *, share=1, resumes="", **changes):
    """The tables of a sweep on two GPUs, from runs (start, walltime, attempts, number of the job if not 0).

    An attempt is (number of the trial, slot, share, start, seconds, event, generation). It occupies its slot for
    another half second.
    """
    config = check_config({"sweeps": {"s": {"function": "os:getcwd", "grid": {"lr": [1, 2, 3]}, **changes}}})
    names = list(plan_sweep(config, "s", results).state.trials)
    count, earlier = [0, 0, 0], [0.0, 0.0, 0.0]
    for run, (start, walltime, tries, *order_job) in enumerate(runs):
        about = {"slots": int(2 / share), "gpus": 2, "gpus_per_trial": share, "node": "n1", "pending": 3}
        lines = [{"event": "session", "time": start, "walltime_seconds": walltime, **about}]
        lines.append({"event": "slot_up", "time": start + 1, "slot": 0, "import_seconds": 0.75})
        for number, slot, own, begin, seconds, event, generation in tries:
            count[number] += 1
            about = {"trial": names[number], "attempt": count[number]}
            lines.append(
                {
                    "event": "started",
                    "time": begin,
                    "slot": slot,
                    "node": "n1",
                    "gpu": str(slot),
                    "gpus_per_trial": own,
                    "generation": generation,
                    **about,
                }
            )
            if earlier[number] and resumes == "as a command":
                checkpoint = {"name": "last.pt", "modified_ns": int(1e9 * earlier[number]), "size": 1}
                lines.append({"event": "resumed", "time": begin, "checkpoint": checkpoint, **about})
            before = earlier[number] if resumes == "as a loop" else 0.0
            took = {"time": begin + seconds + 0.5, "seconds": before + seconds}
            lines.append({"event": event, "metrics": {}, **took, **about})
            if event == "interrupted":
                earlier[number] = seconds if resumes == "as a loop" else begin + seconds
        write_session(results / "sweeps/s", lines, number=run, order_job=[*order_job, 0][0])
    state = plan_sweep(config, "s", results).state
    strategies = strategies_table(compare_strategies(state, state.sessions, {}))
    return (
        timeline_table(state),
        trials_table(state, rank_sweep(state)),
        jobs_table(state, state.sessions, {}),
        strategies,
    )


FIRST = [(0, 0, 1, 103.0, 10.0, "finished", 0), (1, 1, 1, 103.0, 4.0, "failed", 0),
         (2, 1, 1, 108.0, 6.0, "finished", 0)]  # fmt: skip
SECOND = [(1, 0, 1, 902.0, 8.0, "finished", 0)]
SWEPT = {
    "one run": ([(100.0, None, [*FIRST, (1, 0, 1, 114.0, 2.0, "finished", 0)])], {}),
    "three runs": ([(100.0, None, FIRST), (150.0, None, [(1, 0, 1, 155.0, 1.0, "interrupted", 0)]),
                    (900.0, None, SECOND)], {}),
    "a run without a trial": ([(100.0, None, FIRST), (200.0, None, []), (900.0, None, SECOND)], {}),
    **{f"a trial that resumed {how}": ([
        (100.0, None, FIRST), (150.0, None, [(1, 0, 1, 155.0, 60.0, "interrupted", 0)]), (900.0, None, SECOND)],
        {"resumes": how}) for how in ("as a loop", "as a command")},
    "walltimes": ([(100.0, 120, FIRST), (900.0, 60, SECOND)], {}),
    "all trained anew": ([(100.0, None, [*FIRST, (1, 0, 1, 114.0, 2.0, "finished", 0)]), (900.0, None, [
        (0, 0, 1, 902.0, 9.0, "finished", 1), (1, 1, 1, 902.0, 3.0, "diverged", 1),
        (2, 1, 1, 906.0, 5.0, "finished", 1)])], {"retrain": 1}),
    "quarters of GPUs": ([(100.0, None, [(number, 5 + number, 0.25, 103.0, 8.0, "finished", 0)
                                         for number in range(3)])],
                         {"share": 0.25, "slots": {"gpus_per_node": 2, "gpus_per_trial": 0.25}}),
    "a share that was given up": ([(100.0, None, [
        (0, 0, 1, 103.0, 9.0, "finished", 0), (1, 1, 1, 103.0, 9.0, "finished", 0),
        (2, 1, 1, 114.0, 9.0, "finished", 0)])], {"slots": {"gpus_per_node": 2, "gpus_per_trial": 0.25}}),
    "a share that was found": ([(100.0, None, [
        (0, 0, 1, 103.0, 8.0, "finished", 0), (1, 1, 1, 103.0, 7.0, "finished", 0),
        (2, 7, 0.25, 114.0, 30.0, "finished", 0)])],
        {"share": 0.25, "slots": {"gpus_per_node": 2, "gpus_per_trial": 0.25}}),
    "a share that was given up for whole GPUs": ([(100.0, None, [
        (number, 5 + number, 0.25, 103.0, 8.0, "finished", 0) for number in range(3)])],
        {"share": 0.25, "slots": {"gpus_per_node": 2}}),
    "jobs at the same time": ([
        (100.0, None, [(0, 0, 1, 103.0, 10.0, "finished", 0)], 0),
        (104.0, None, [(1, 6, 1, 106.0, 4.0, "finished", 0), (2, 7, 1, 106.0, 9.0, "finished", 0)], 3)], {}),
    "jobs at the same time, with walltimes and a second one after one of them": ([
        (100.0, 60, [(0, 0, 1, 103.0, 4.0, "interrupted", 0)], 0),
        (101.0, 60, [(1, 2, 1, 104.0, 30.0, "finished", 0)], 1),
        (110.0, 60, [(0, 0, 1, 113.0, 10.0, "finished", 0), (2, 1, 1, 113.0, 9.0, "finished", 0)], 0)], {}),
    "pairs of GPUs": ([(100.0, None, [(number, 0, 2, 103.0 + 9 * number, 8.0, "finished", 0) for number in range(3)])],
                      {"share": 2, "slots": {"gpus_per_node": 2, "gpus_per_trial": 2}}),
}  # fmt: skip


@pytest.mark.parametrize(("runs", "changes"), SWEPT.values(), ids=SWEPT)
def test_the_seconds_of_jobs_and_strategies_are_those_of_their_trials(tmp_path, runs, changes):
    timeline, trials, jobs, strategies = swept(tmp_path, runs, **changes)
    if "resumes" in changes:
        assert trials["seconds"].tolist() == [10, 60 + 8, 6]
        assert timeline["kept_seconds"].tolist() == pytest.approx([10, 0, 6, 60, 8], abs=0.5)
        assert jobs["running_gpu_seconds"].tolist() == pytest.approx([10 + 6, 60, 8], abs=0.5)
        assert strategies["running_gpu_seconds"].tolist() == pytest.approx([10 + 60 + 8 + 6] * 3), "no second is wasted"
    table = strategies.set_index("strategy")
    assert strategies["wasted_fraction"].between(0, 1).all()
    assert (strategies["wasted_gpu_seconds"] >= strategies["startup_gpu_seconds"]).all()
    running = jobs.loc[jobs["counted"], "running_gpu_seconds"].sum()
    assert running == pytest.approx(table.loc["packed", "running_gpu_seconds"]), "the same in both tables"
    parts = jobs[["running_gpu_seconds", "failed_gpu_seconds", "startup_gpu_seconds", "idle_gpu_seconds"]]
    assert parts.sum(axis=1).tolist() == pytest.approx((jobs["elapsed_seconds"] * jobs["gpus"]).tolist())


def test_a_gantt_has_slots_of_its_own_for_each_of_the_jobs_at_the_same_time(tmp_path):
    """As long as their jobs ran trials; only the time is omitted in which none did."""
    late = (900.0, None, [(1, 2, 1, 902.0, 5.0, "finished", 0)], 1)
    timeline, _, jobs, _ = swept(tmp_path, [*SWEPT["jobs at the same time"][0], late])
    axes = Figure().add_subplot()
    timeline_plots.plot_gantt(axes, timeline.assign(device=""), jobs, ranked("blocks"))
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert names == ["n1 GPU 0, job 1", "slot 1, not used, job 1", "n1 GPU 2, job 2", "slot 3, not used, job 2",
                     "n1 GPU 6, job 4", "n1 GPU 7, job 4"]  # fmt: skip
    held = sorted((box.y0, box.x0, box.x1) for box in (path.get_extents() for path in axes.collections[0].get_paths()))
    spans = [(0, 10.5), (0, 10.5), (12.5, 18), (12.5, 18), (3, 12.5), (3, 12.5)]
    assert [(begin, end) for _, begin, end in held] == spans, "the pause of 786.5 s is omitted"
    busy = (10.5 + 4.5 + 9.5 + 5.5) / (2 * (10.5 + 5.5 + 9.5))
    title = axes.figure.get_suptitle().replace("\n", " ")
    assert f"4 attempts on 6 slots of 3 jobs, {busy:.1%} busy" in title
    assert "pauses between jobs omitted" in axes.get_xlabel()


def test_the_facts_of_jobs_at_the_same_time_are_those_of_all_together(tmp_path):
    timeline, trials, jobs, strategies = swept(tmp_path, SWEPT["jobs at the same time"][0])
    timeline, jobs, none = timeline.assign(device="H200"), jobs.assign(nodes=1), pd.DataFrame()
    tables = SweepResults("s", trials, none, timeline, none, strategies, jobs)
    facts = sweep_facts(tables)
    assert "; 2 jobs, 16 s, from" in facts["ran"], "the second one began while the first one ran"
    assert "on 4 slots, these trials take at least" in facts["duration"]


@pytest.mark.parametrize(
    ("waits", "words"),
    [
        ([17.0, 21.0], "a job started 17 s to 21 s after its submission"),
        ([17.0, None], "a job started 17 s after its submission"),
    ],
)
def test_the_facts_say_how_long_jobs_waited_in_the_queue(tmp_path, waits, words):
    timeline, trials, jobs, strategies = swept(tmp_path, SWEPT["jobs at the same time"][0])
    timeline, none = timeline.assign(device="H200"), pd.DataFrame()
    assert "queue" not in sweep_facts(SweepResults("s", trials, none, timeline, none, strategies, jobs.assign(nodes=1)))
    jobs = jobs.assign(nodes=1, wait_seconds=waits)
    assert sweep_facts(SweepResults("s", trials, none, timeline, none, strategies, jobs))["queue"] == words


GPU_HEADER = "time,gpu,name,memory_used_mib,memory_total_mib,utilization_percent,power_watts,temperature_celsius\n"


def test_telemetry_is_that_of_gpus_or_else_of_processes(tmp_path):
    folder = tmp_path / "telemetry"
    folder.mkdir()
    (folder / "cpu-n1.csv").write_text("time,cpu_percent,rss_mib,processes\n100,50,300,2\n105,70,310,2\n")
    (folder / "gpu-n1.csv").write_text(GPU_HEADER)
    on_cpu = scaling_plots.read_telemetry(tmp_path)
    assert on_cpu.to_dict("list") == {"of": ["n1", "n1"], "seconds": [0, 5], "memory": [300, 310], "busy": [50, 70]}
    (folder / "gpu-n1.csv").write_text(GPU_HEADER + "100,0,H200,900,1000,80,,\n100,1,H200,800,1000,90,,\n")
    assert scaling_plots.read_telemetry(tmp_path)["of"].tolist() == ["n1 GPU 0", "n1 GPU 1"]


@pytest.mark.parametrize(
    ("samples", "busy"),
    [
        ("", []),  # the disk was full
        (GPU_HEADER + "100,0,GB10,,,80,,\n105,0,GB10,,,90,,\n", [80, 90]),  # its memory is that of the node
        (GPU_HEADER + "100,0,H200,900,1000,80,,\n105,0,H2107,0,H200,800,1000,90,,\n", [80]),  # a row was cut off
    ],
    ids=["empty", "without memory", "cut off"],
)
def test_telemetry_of_which_a_part_is_missing_is_drawn(tmp_path, samples, busy):
    folder = tmp_path / "telemetry"
    folder.mkdir()
    (folder / "gpu-n1.csv").write_text(samples)
    (folder / "cpu-n1.csv").touch()
    read = scaling_plots.read_telemetry(tmp_path)
    assert read["busy"].tolist() == busy
    scaling_plots.plot_telemetry(*Figure().subplots(1, 2), samples={"1x1": read}, on_gpu=True)


@pytest.mark.parametrize("count", [2, 3])
def test_a_constant_metric_is_in_view_and_only_whole_epochs_have_ticks(count):
    axes, rows = Figure().add_subplot(), ranked("blocks", trials=TRIALS.assign(gain=-2.0), metric="gain", mode="max")
    epochs = pd.concat([rows.table.assign(epoch=epoch) for epoch in range(1, count + 1)])
    metric_plots.plot_epochs(axes, epochs, rows, "gain")
    low, high = axes.get_ylim()
    assert low < -2 < high
    (left, right), ticks = axes.get_xlim(), axes.get_xticks()
    assert [tick for tick in ticks if left <= tick <= right] == list(range(1, count + 1))


def test_a_seed_is_a_name_and_no_quantity(tmp_path):
    ends = [(number, 1, 1.0, "finished", {"seconds": 1.0, "metrics": {"rmse": 3.0 + number}}) for number in range(6)]
    starts = [(number, 1, 0.0, "started", {}) for number in range(6)]
    state = plan_of(tmp_path, {**OWN, "grid": {"lr": [1, 2], "seed": [0, 1, 40]}}, starts + ends)
    rows = rank_trials(state, trials_table(state, rank_sweep(state)), rank_sweep(state))
    lr, seed = axes = Figure().subplots(1, 2)
    metric_plots.plot_metric(*axes, ranked=rows)
    assert [label.get_text() for label in seed.get_xticklabels()] == ["0", "1", "40"]
    assert lr.containers, "the spread over the seeds"
    assert {line.get_linestyle() for line in seed.lines if len(line.get_xdata()) > 1} == {"None"}, "no trend"
    assert not seed.containers
    assert list(rows.settings) == ["lr"]


def test_large_whole_numbers_have_the_scale_of_their_range():
    assert not style.is_log_scale(pd.Series([2**60, 2**60 + 1, 2**62]))


def test_the_text_none_is_a_value(tmp_path):
    """In a grid over `[None, null, cutout]`, the first value is text and the second is missing."""
    frame = pd.DataFrame({"aug": ["None", None, "cutout"], "clip": [None, 1.0, 2.0]})
    write_table(frame, tmp_path / "trials.csv")
    read = read_table(tmp_path / "trials.csv")
    assert style.fill_missing(read["aug"]).tolist() == ["None", "(none)", "cutout"]
    assert style.fill_missing(read["clip"]).dropna().tolist() == [1.0, 2.0], "numbers stay numbers"
