"""Tables hold what the formulas say, and every picture shows what its table holds."""

import json
import time
from inspect import signature

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from PIL import Image
from trainyard import plots, scalingplots, sweepplots
from trainyard.configfile import check_config
from trainyard.journal import Attempt
from trainyard.planning import plan_sweep
from trainyard.progress import slot_table
from trainyard.tables import (
    as_date,
    best_words,
    epochs_table,
    read_table,
    saved_words,
    stopping_table,
    timeline_table,
    trials_table,
    write_parquet,
    write_table,
)


def test_a_timeline_without_attempts_has_its_columns():
    assert list(timeline_table([]).columns) == [
        "trial",
        "attempt",
        "job",
        "node",
        "gpu",
        "slot",
        "start",
        "end",
        "outcome",
        "gpu_model",
        "device",
        "expected_seconds",
    ]


def test_tables_keep_the_digits_of_times(tmp_path):
    write_table(pd.DataFrame({"start": [1730000000.1234]}), tmp_path / "t.csv")
    assert pd.read_csv(tmp_path / "t.csv")["start"][0] == 1730000000.1234


def test_a_time_is_a_date_for_people(monkeypatch):
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    assert as_date(1795285808.4) == "2026-11-21 18:30:08 UTC"
    monkeypatch.undo()
    time.tzset()


def test_a_table_is_the_same_as_parquet(tmp_path):
    frame = pd.DataFrame({"trial": ["a", "b"], "lr": [0.1, None], "blocks": [1, 2], "start": [1730000000.1234, 2.0]})
    write_table(frame, tmp_path / "t.csv")
    write_parquet(tmp_path / "t.csv")
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "t.parquet"), pd.read_csv(tmp_path / "t.csv"))


TIMELINE = pd.DataFrame(
    [["a", 1, "local", "n1", 0, 0, 100.0, 110.0, "finished"],
     ["b", 1, "local", "n1", 1, 1, 100.0, 104.0, "failed"],
     ["b", 2, "local", "n1", 1, 1, 104.0, 109.0, "finished"],
     ["c", 1, "local", "n1", 0, 0, 5000.0, 5002.0, "finished"]],
    columns=["trial", "attempt", "job", "node", "gpu", "slot", "start", "end", "outcome"],
)  # fmt: skip
TRIALS = pd.DataFrame(
    {"trial": ["a", "b", "c"], "blocks": [10, 20, 30], "model": ["x", "y", "x"], "width": [1.5, None, 3.0],
     "nesterov": [False, True, True], "status": "finished", "val_accuracy": [0.8, 0.9, 0.7]}
)  # fmt: skip
EPOCHS = pd.DataFrame({"trial": ["a", "a", "b"], "blocks": [10, 10, 20], "model": ["x", "x", "y"], "epoch": [1, 2, 1],
                       "val_loss": [1.0, 0.5, 0.7]})  # fmt: skip
SCALING = pd.DataFrame(
    {"scale": ["1x1", "1x2"], "gpus": [1, 2], "speedup": [1, 1.5], "speedup_low": [1, 1.4], "speedup_high": [1, 1.6],
     "efficiency": [1, 0.75], "repeats": 3, "step_ms_p50": [10, 14], "data_wait_fraction": [0.1, 0.2],
     "exposed_comm_fraction": [None, 0.3], "device": "cpu"}
)  # fmt: skip
SAMPLES = {"1x1": pd.DataFrame({"of": "n1 GPU 0", "seconds": [0, 200], "memory": [100, 900], "busy": [3, 97]})}
STRATEGIES = pd.DataFrame(
    {"strategy": ["separate_jobs", "job_array", "packed"], "jobs": [3, 3, 1], "gpus_per_job": [1, 1, 2],
     "requested_seconds_per_job": [7.7, 12, 13.0], "requested_job_seconds": [23.0, 36, 13],
     "requested_gpu_seconds": [23.0, 36, 26], "running_gpu_seconds": 17.0, "wasted_gpu_seconds": [6, 19, 9],
     "wasted_fraction": [6 / 23, 19 / 36, 9 / 26], "startup_gpu_seconds": [6, 6, 2]}
)  # fmt: skip
JOBS = pd.DataFrame({"predicted_seconds": [11.5], "measured_seconds": [12.0], "gap": [0.04]})
TREES = pd.DataFrame(
    {"model": ["xgboost"], "metric": ["rmse"], "train": [0.1], "val": [0.2], "seconds": [1.0], "threads": [2]}
)
HISTORY = pd.DataFrame({"epoch": [1, 2], "val_loss": [1, 0.5], "train_loss": [1, 0.4], "seconds": [9, 9]})
HISTORIES = [("1x2", HISTORY)]
EXPECTED = TIMELINE.assign(expected_seconds=[11, None, 4, None])
ON_GPU = SCALING.assign(device="NVIDIA H200")

PICTURES = {
    "gantt": (
        lambda axes: sweepplots.gantt(axes, TIMELINE, TRIALS, "blocks"),
        ["n1 GPU 0", "n1 GPU 1", "labels: blocks"],
    ),
    "gantt by name": (lambda axes: sweepplots.gantt(axes, TIMELINE, TRIALS, "model"), ["labels: model"]),
    "gantt of trials": (lambda axes: sweepplots.gantt(axes, TIMELINE, TRIALS, "trial"), ["labels: trial"]),
    "gantt by truth": (lambda axes: sweepplots.gantt(axes, TIMELINE, TRIALS, "nesterov"), ["labels: nesterov"]),
    "metric by truth": (
        lambda axes: sweepplots.metric_against(axes, TRIALS, "nesterov", "val_accuracy"),
        ["nesterov = True"],
    ),
    "metric with gaps": (lambda axes: sweepplots.metric_against(axes, TRIALS, "width", "val_accuracy"), ["width"]),
    "metric": (
        lambda axes: sweepplots.metric_against(axes, TRIALS, "blocks", "val_accuracy"),
        ["90.0% at blocks = 20"],
    ),
    "metric by name": (lambda axes: sweepplots.metric_against(axes, TRIALS, "model", "val_accuracy"), ["at model = y"]),
    "metric of which less is better": (
        lambda axes: sweepplots.metric_against(axes, TRIALS.assign(rmse=[3, 1, 2]), "blocks", "rmse", mode="min"),
        ["best rmse (lowest): 1 at blocks = 20"],
    ),
    "metric of which a guess says what is better": (
        lambda axes: sweepplots.metric_against(axes, TRIALS.assign(rmse=[3, 1, 2]), "blocks", "rmse"),
        ["best rmse (lowest, by its name): 1 at blocks = 20"],
    ),
    "accuracy in percent": (
        lambda axes: sweepplots.metric_against(axes, TRIALS.assign(accuracy=[80, 91.5, 0.7]), "blocks", "accuracy"),
        ["91.5 at blocks = 20"],
    ),
    "gantt on CPUs": (
        lambda axes: sweepplots.gantt(axes, TIMELINE.assign(device="cpu"), TRIALS, "blocks"),
        ["n1 slot 0", "n1 slot 1"],
    ),
    "losses": (lambda axes: sweepplots.curves(axes, EPOCHS, "blocks", "val_loss"), ["validation loss", "epoch"]),
    "losses by name": (lambda axes: sweepplots.curves(axes, EPOCHS, "model", "val_loss"), ["x", "y"]),
    "packing": (
        lambda axes: sweepplots.packing(axes, TIMELINE, STRATEGIES),
        ["3 jobs", "53% wasted", "2 slots", "35% wasted", "36 by the array, 26 packed", "programs start"],
    ),
    "waste": (
        lambda axes: sweepplots.waste(axes, STRATEGIES),
        ["job array", "3 x 12 s", "53% wasted", "35% wasted", "starting"],
    ),
    "predictions": (
        lambda axes: sweepplots.predictions(axes, EXPECTED, JOBS),
        ["off by at most 17%", "11.5 s predicted, 12 s measured"],
    ),
    "no predictions": (
        lambda axes: sweepplots.predictions(axes, TIMELINE.assign(expected_seconds=float("nan")), JOBS.iloc[:0]),
        ["no trial was predicted"],
    ),
    "speedup": (
        lambda left, right: scalingplots.speedup(left, right, SCALING),
        ["ranks (on CPUs)", "speedup over 1x1", "parallel efficiency", "medians of 3 repeats"],
    ),
    "losses by GPU time": (
        lambda left, right: scalingplots.losses(left, right, HISTORIES, ON_GPU),
        ["1x2 validation", "GPU-hours of training"],
    ),
    "losses on CPUs": (lambda left, right: scalingplots.losses(left, right, HISTORIES, SCALING), ["rank-seconds"]),
    "steps": (lambda axes: scalingplots.steps(axes, SCALING), ["waiting for data", "30%", "50%", "on CPUs"]),
    "telemetry": (
        lambda upper, lower: scalingplots.telemetry(upper, lower, samples=SAMPLES, on_gpu=True),
        ["n1 GPU 0", "GPU memory (MiB)", "GPU utilisation", "minutes"],
    ),
    "trees": (lambda axes: plots.trees_scores(axes, TREES), ["RMSE", "xgboost"]),
}


@pytest.mark.parametrize(("painter", "texts"), PICTURES.values(), ids=PICTURES)
def test_every_picture_says_what_it_shows(tmp_path, painter, texts):
    plots.draw(painter, tmp_path / "picture", panels=(1, len(signature(painter).parameters)))
    svg = (tmp_path / "picture.svg").read_text()
    for text in texts:
        assert text in svg
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_the_same_data_give_the_same_picture(tmp_path):
    for name in ("one", "other"):
        plots.draw(lambda axes: scalingplots.steps(axes, SCALING), tmp_path / name)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "other.svg").read_bytes()


MANY = 10_000
MANY_TRIALS = pd.DataFrame(
    {"trial": [f"t{number}" for number in range(MANY)], "seed": range(MANY), "file": [f"f{n}.csv" for n in range(MANY)],
     "status": ["finished", "stopped"] * (MANY // 2), "val_accuracy": [number / MANY for number in range(MANY)]}
)  # fmt: skip
MANY_BARS = pd.DataFrame(
    {"trial": MANY_TRIALS["trial"], "node": "n1", "gpu": 0, "slot": [number % 8 for number in range(MANY)],
     "start": [number // 8 for number in range(MANY)], "end": [number // 8 + 0.9 for number in range(MANY)],
     "outcome": ["finished"] * (MANY - 1) + ["failed"], "expected_seconds": 1.0}
)  # fmt: skip
MANY_EPOCHS = pd.concat([MANY_TRIALS.assign(epoch=epoch, val_loss=1 / epoch) for epoch in (1, 2, 3)])
LARGE_PICTURES = {
    "gantt": lambda axes: sweepplots.gantt(axes, MANY_BARS, MANY_TRIALS, "seed"),
    "packing": lambda axes: sweepplots.packing(axes, MANY_BARS, STRATEGIES),
    "metric": lambda axes: sweepplots.metric_against(axes, MANY_TRIALS, "seed", "val_accuracy"),
    "metric by name": lambda axes: sweepplots.metric_against(axes, MANY_TRIALS, "file", "val_accuracy"),
    "losses": lambda axes: sweepplots.curves(axes, MANY_EPOCHS, "seed", "val_loss"),
    "losses by name": lambda axes: sweepplots.curves(axes, MANY_EPOCHS, "file", "val_loss"),
    "predictions": lambda axes: sweepplots.predictions(axes, MANY_BARS, JOBS),
}


@pytest.mark.parametrize("painter", LARGE_PICTURES.values(), ids=LARGE_PICTURES)
def test_a_picture_of_10000_trials_takes_few_artists_and_less_than_a_megabyte(tmp_path, painter):
    axes = Figure().add_subplot()
    painter(axes)
    assert len(axes.get_children()) < 400
    plots.draw(painter, tmp_path / "picture")
    assert max((tmp_path / f"picture.{suffix}").stat().st_size for suffix in ("svg", "png")) < 1e6


def test_bars_too_narrow_for_edges_are_not_hidden_by_them(tmp_path):
    plots.draw(LARGE_PICTURES["gantt"], tmp_path / "gantt")
    pixels = np.asarray(Image.open(tmp_path / "gantt.png").convert("RGB"))
    assert (pixels[:, pixels.shape[1] // 2] < 250).any(axis=1).mean() > 0.5, "most of a line across the slots"


def test_a_gantt_leaves_out_the_pause_between_two_runs():
    axes = Figure().add_subplot()
    sweepplots.gantt(axes, TIMELINE, TRIALS, "blocks")
    assert axes.get_xlim()[1] == 12, "ten seconds, then two more after a pause of over an hour"


@pytest.mark.parametrize(("log", "scale"), [(True, "log"), (False, "linear"), (None, "log")])
def test_axes_and_colours_follow_the_declared_scale(log, scale):
    axes, others = Figure().subplots(1, 2)
    trials = TRIALS.assign(blocks=[0.001, 0.03, 0.9])
    sweepplots.metric_against(axes, trials, "blocks", "val_accuracy", log=log)
    assert axes.get_xscale() == scale
    sweepplots.curves(others, EPOCHS.assign(blocks=[0.001, 0.001, 0.9]), "blocks", "val_loss", log=log)
    assert others.figure.axes[-1].get_yscale() == scale, "of the colours"
    face = plots.colours(trials["blocks"], log=log)(0.03)
    assert (face == plots.SEQUENCE(0.5)) == (scale == "log"), "half-way between 0.001 and 0.9, by factors"


@pytest.mark.parametrize("joined", [True, False])
def test_a_line_joins_what_is_a_series_and_nothing_else(joined):
    axes = Figure().add_subplot()
    sweepplots.metric_against(axes, TRIALS, "blocks", "val_accuracy", joined=joined)
    assert [line.get_linestyle() for line in axes.lines].count("-") == joined


OWN = {"function": "os:getcwd", "grid": {"lr": [0.1, 0.2]}, "args": {"start": 3}}


def plan_of(results, sweep, events):
    """The plan of a sweep whose first trials, in order, have had these events: (time, event, fields)."""
    config = check_config({"sweeps": {"s": sweep}})
    names = list(plan_sweep(config, "s", results).trials)
    path = results / "sweeps/s/journal.jsonl"
    path.parent.mkdir(parents=True)
    lines = [{"event": event, "time": time, "trial": names[number], "attempt": attempt, **fields}
             for number, attempt, time, event, fields in events]  # fmt: skip
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return plan_sweep(config, "s", results)


def told(number, attempt, times, **ends):
    """Events of an attempt that tells an epoch at each of these times, and ends with the last."""
    rows = [(number, attempt, time, "epoch", {"metrics": {"epoch": epoch, "rmse": 1 / epoch}})
            for epoch, time in times]  # fmt: skip
    (event, fields), last = next(iter(ends.items())), times[-1][1]
    return [(number, attempt, 0.0, "started", {}), *rows, (number, attempt, last, event, fields)]


def test_a_varied_key_keeps_its_column_where_a_metric_has_its_name(tmp_path):
    metrics = {"lr": 7.0, "rmse": 2.0, "trial": 9.0, "seconds": 5.0}
    plan = plan_of(tmp_path, OWN, [
        (0, 1, 0.0, "started", {}), (0, 1, 1.0, "epoch", {"metrics": {"epoch": 1, **metrics}}),
        (0, 1, 2.0, "finished", {"seconds": 2.0, "metrics": metrics})])  # fmt: skip
    name = next(iter(plan.trials))
    row = {"trial": name, "lr": 0.1, "reported_lr": 7.0, "reported_trial": 9.0, "rmse": 2.0}
    epochs = epochs_table(plan).to_dict("records")[0]
    assert epochs == {**row, "epoch": 1, "seconds": 5.0}
    trial = trials_table(plan).to_dict("records")[0]
    assert {key: trial[key] for key in row} == row
    assert (trial["seconds"], trial["reported_seconds"]) == (2.0, 5.0)


def test_the_best_trial_is_said_as_the_sweep_says(tmp_path):
    ends = [{"seconds": 1.0, "metrics": {"rmse": 3.0, "accuracy": 0.5}},
            {"seconds": 1.0, "metrics": {"rmse": 4.0, "accuracy": 0.7}}]  # fmt: skip
    events = [(number, 1, time, event, fields) for number, end in enumerate(ends)
              for time, event, fields in [(0.0, "started", {}), (1.0, "finished", end)]]  # fmt: skip
    guessed = plan_of(tmp_path / "a", OWN, events)
    first, second = guessed.trials
    assert best_words(guessed, trials_table(guessed)) == (
        f"best rmse (lowest, by its name): 3, of trial {first} with lr = 0.1"
    )
    declared = plan_of(tmp_path / "b", {**OWN, "metric": "rmse", "mode": "max"}, events)
    assert best_words(declared, trials_table(declared)) == f"best rmse (highest): 4, of trial {second} with lr = 0.2"


STOP = {**OWN, "stop": {"method": "asha", "metric": "rmse", "mode": "min", "epochs": 10}}


def test_what_stopping_saved_is_worked_out_from_the_time_between_epochs(tmp_path):
    """A start-up of 100 s is no part of it, nor is what an attempt tells again of the epochs of an earlier one."""
    plan = plan_of(tmp_path, {**STOP, "grid": {"lr": [1, 2, 3]}}, [
        *told(0, 1, [(1, 100.0), (2, 102.0), (3, 104.0)], stopped={"seconds": 104.0, "why": "asha"}),
        *told(1, 1, [(1, 50.0), (2, 53.0)], interrupted={}),
        *told(1, 2, [(1, 90.0), (2, 90.0), (3, 93.0), (4, 96.0)], stopped={"seconds": 96.0, "why": "asha"}),
        *told(2, 1, [(1, 200.0)], stopped={"seconds": 200.0, "why": "asha"})])  # fmt: skip
    table = stopping_table(plan)
    assert table["saved_epochs"].tolist() == [7, 6, 9]
    assert table["saved_seconds"].tolist() == [7 * 2.0, 6 * 3.0, 9 * 2.5], "of one epoch: the median of the others"
    assert "that saved 22 of 30 epochs (73.3%), or 54.5 slot-seconds" in saved_words(plan, table)


def test_the_first_row_of_a_command_comes_with_the_second_and_tells_no_time(tmp_path):
    command = {"command": "true {lr}", "grid": {"lr": [1]}, "metrics": {"file": "m.csv"}, "stop": STOP["stop"]}
    times = [(1, 104.0), (2, 104.0), (3, 106.0), (4, 108.0)]
    plan = plan_of(tmp_path, command, told(0, 1, times, stopped={"seconds": 108.0, "why": "asha"}))
    assert stopping_table(plan)["saved_seconds"].tolist() == [6 * 2.0]


def test_nothing_is_claimed_of_seconds_that_nobody_knows(tmp_path):
    plan = plan_of(tmp_path, STOP, told(0, 1, [(1, 200.0)], stopped={"seconds": 200.0, "why": "asha"}))
    table = stopping_table(plan)
    assert table["saved_seconds"].isna().all()
    assert saved_words(plan, table) == "stopped early: 1 of 2 trials; that saved 9 of 20 epochs (45.0%)"


@pytest.mark.parametrize(("accuracy", "words"), [(0.915, "accuracy 91.5%"), (91.5, "accuracy 91.5")])
def test_the_live_view_names_no_gpu_where_there_is_none_and_shows_only_fractions_in_percent(tmp_path, accuracy, words):
    plan = plan_of(tmp_path, {**OWN, "metric": "accuracy"}, [])
    where = {"slot": 0, "node": "n1", "gpu": "0"}
    rows = [{"epoch": 1, "rmse": 2.0, "accuracy": accuracy}]
    running = [Attempt(name, 1, 0, 1, where=where | {"device": device}, epochs=rows)
               for name, device in zip(plan.trials, ("cpu", "NVIDIA H200"), strict=True)]  # fmt: skip
    cells = {column.header: list(column.cells) for column in slot_table(running, plan).columns}
    assert cells["GPU"] == ["none", "0"]
    assert cells["metric"] == [words, words]


def area(collection):
    """What the bars of one kind cover; of each strategy the lane of a slot is one high."""
    boxes = [path.get_extents() for path in collection.get_paths()]
    return sum(box.width for box in boxes)


def test_the_picture_of_packing_covers_what_the_table_counts():
    """Grey and orange is what was asked for; of it, blue is where trials ran, and the rest is what is wasted."""
    axes = Figure().add_subplot()
    sweepplots.packing(axes, TIMELINE, STRATEGIES)
    array, array_starts, packed, packed_starts, array_ran, packed_ran = axes.collections
    assert (area(array), area(packed)) == pytest.approx((36, 26)), "requested_gpu_seconds"
    assert (area(array_starts), area(packed_starts)) == pytest.approx((6, 2)), "startup_gpu_seconds"
    assert area(array_ran) == pytest.approx(area(packed_ran)) == 17


def test_what_the_hardware_did_is_read_from_gpus_or_else_from_processes(tmp_path):
    folder = tmp_path / "telemetry"
    folder.mkdir()
    (folder / "cpu-n1.csv").write_text("time,cpu_percent,rss_mib,processes\n100,50,300,2\n105,70,310,2\n")
    header = "time,gpu,name,memory_used_mib,memory_total_mib,utilization_percent,power_watts,temperature_celsius\n"
    (folder / "gpu-n1.csv").write_text(header)
    on_cpu = scalingplots.read_telemetry(tmp_path)
    assert on_cpu.to_dict("list") == {"of": ["n1", "n1"], "seconds": [0, 5], "memory": [300, 310], "busy": [50, 70]}
    (folder / "gpu-n1.csv").write_text(header + "100,0,H200,900,1000,80,,\n100,1,H200,800,1000,90,,\n")
    assert scalingplots.read_telemetry(tmp_path)["of"].tolist() == ["n1 GPU 0", "n1 GPU 1"]


def test_values_that_look_like_nothing_are_values(tmp_path):
    """A grid over `[None, null, cutout]` is an everyday one: the first is text, the second is no value."""
    frame = pd.DataFrame({"aug": ["None", None, "cutout"], "clip": [None, 1.0, 2.0]})
    write_table(frame, tmp_path / "trials.csv")
    read = read_table(tmp_path / "trials.csv")
    assert plots.named(read["aug"]).tolist() == ["None", "(none)", "cutout"]
    assert plots.named(read["clip"]).dropna().tolist() == [1.0, 2.0], "numbers stay numbers"
