"""Every plot of a sweep shows what its trials were, or says why there is nothing to show."""

import math
from functools import partial
from itertools import pairwise
from xml.etree import ElementTree

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL import Image
from plotted import plotted
from trainyard.config.sweep import CommandSweep, MetricLimits
from trainyard.config.trial_status import TrialStatus
from trainyard.config.trials import expand
from trainyard.planning.trial_value import TrialValue
from trainyard.report import importance, metric_plots, parallel_plot, style, timeline_plots
from trainyard.results.ranking import RankedTrial, Ranking, rank_configurations


def sweep(count, *, status="finished", accuracy=None, **keys):
    """The trials of a sweep; keys are columns."""
    table = pd.DataFrame({"trial": [f"t{number}" for number in range(count)], **keys, "status": status, "seconds": 2.0})
    table["val_accuracy"] = np.linspace(0.5, 0.9, count) if accuracy is None else accuracy
    shown = table.assign(**{key: style.fill_missing(table[key]) for key in keys})
    return plotted(shown, list(keys), "val_accuracy")


def timeline_of(ranked, *, slots=2):
    """The attempts at all trials, one second each, on some slots."""
    trials = enumerate(zip(ranked.table["trial"], ranked.table["status"], strict=True))
    rows = [[name, 1, "local", "a-node-with-a-long-name", number % slots, number % slots, 100.0 + number // slots,
             101.0 + number // slots, status] for number, (name, status) in trials]  # fmt: skip
    columns = ["trial", "attempt", "job", "node", "gpu", "slot", "start", "end", "outcome"]
    return pd.DataFrame(rows, columns=columns).assign(session="s")


def epochs_of(ranked):
    """Three epochs of each trial that has a metric."""
    known = ranked.table[ranked.values.notna()]
    return pd.concat([known.assign(epoch=epoch, val_loss=1 / epoch) for epoch in (1, 2, 3)])


def draw_all(ranked):
    """Draw all plots of the trials; return the texts of each."""
    jobs, keys = (
        pd.DataFrame({"start": [99.0], "slots": 2, "session": "s", "order_job": 0}),
        ranked.facet_keys(),
    )
    gantt = partial(timeline_plots.plot_gantt, timeline=timeline_of(ranked), jobs=jobs, ranked=ranked)
    losses = partial(metric_plots.plot_epochs, epochs=epochs_of(ranked), ranked=ranked, curve="val_loss")
    plots = {
        "gantt": (gantt, (1, 1)),
        "metric": (partial(metric_plots.plot_metric, ranked=ranked), metric_plots.facet_grid(len(keys))),
        "parallel": (partial(parallel_plot.plot_parallel, ranked=ranked), (1, 1)),
        "importance": (partial(importance.plot_importance, ranked=ranked), (1, 1)),
        "loss": (losses, (1, 1)),
    }
    return {name: texts_of(painter, *panels) for name, (painter, panels) in plots.items()}


def texts_of(painter, *panels):
    """Draw a plot; return its texts, which a width of eight inches may wrap."""
    with mpl.rc_context(style.STYLE):
        figure = Figure(figsize=(8, 4))
        painter(*figure.subplots(*panels, squeeze=False).flat)
        figure.draw_without_rendering()
    return " ".join(text.get_text() for text in figure.findobj(Text)).replace("\n", " ")


NONE = float("nan")
ODD = {
    "no trial": (sweep(0, lr=[], width=[]), {"gantt": "no trial has started", "metric": "no trial has finished",
                                             "parallel": "no trial has finished", "loss": "no trial has reported",
                                             "importance": "0 trials finished"}),
    "one trial": (sweep(1, lr=[0.1], width=[8]), {"metric": "at learning rate = 0.1, width = 8", "parallel": "0.1"}),
    "no key": (sweep(2), {"gantt": "labels: trial", "metric": "by trial t1"}),
    "one key": (sweep(3, lr=[1, 2, 3]), {"importance": "fewer than two keys"}),
    "one value": (sweep(3, lr=[1, 2, 3], width=8), {"parallel": "8", "metric": "width = 8"}),
    "one result": (sweep(3, lr=[1, 2, 3], width=[7, 8, 9], accuracy=0.5), {"metric": "50.0%", "parallel": "50.0%"}),
    "all failed": (sweep(3, lr=[1, 2, 3], width=[7, 8, 9], status="failed", accuracy=NONE),
                   {"metric": "no trial has finished", "parallel": "no trial has finished", "gantt": "3 attempts"}),
    "all stopped": (sweep(3, lr=[1, 2, 3], width=[7, 8, 9], status="stopped"),
                    {"metric": "stopped early", "parallel": "stopped early"}),
    "one failed": (sweep(3, lr=[1, 2, 3], width=[7, 8, 9], status=["failed", "finished", "finished"],
                         accuracy=[NONE, 0.5, 0.6]), {"parallel": "failed or diverged", "metric": "60.0%"}),
    "booleans": (sweep(2, lr=[1, 2], nesterov=[False, True]), {"parallel": "False", "metric": "nesterov = True"}),
    "lists": (sweep(2, lr=[1, 2], layers=["[64, 64]", "[32, [8, 8]]"]),
              {"parallel": "[32, [8, 8]]", "metric": "layers = [32, [8, 8]]", "gantt": ": learning rate, layers"}),
    "missing numbers": (sweep(3, lr=[1, 2, 3], clip=[NONE, 1, 2]),
                        {"parallel": "none", "metric": "not shown: trials without clip"}),
    "long names": (sweep(9, path=[f"/shared/data/{number}/images.tar" for number in range(9)], lr=range(9)),
                   {"parallel": "\N{HORIZONTAL ELLIPSIS}8\N{HORIZONTAL ELLIPSIS}", "gantt": "accuracy (higher"}),
    "infinite numbers": (sweep(3, clip=[0.1, 1, float("inf")]), {"metric": "clip = inf", "gantt": "inf"}),
    "infinite numbers of several keys": (sweep(3, lr=[1, 2, 3], clip=[NONE, 1, float("inf")]), {"parallel": "inf"}),
    "numbers that end before infinity": (sweep(4, lr=[1e300, 1, 2, 3], width=[7, 7, 8, 8],
                                               accuracy=[-1e308, -1e300, 0.5, 0.6]), {"metric": "learning rate = 3"}),
    "no value at all": (sweep(1, lr=[0.1], clip=[NONE]), {"metric": "at learning rate = 0.1, clip = (none)",
                                                          "parallel": "(none)", "gantt": "0.1, (none)"}),
    "missing names": (sweep(3, lr=[1, 2, 3], aug=[None, "cutout", "None"]), {"parallel": "(none)"}),
    "keys of the same name": (sweep(2, **{"lr": [1, 2], "head.width": [1, 2], "body.width": [3, 4]}),
                              {"parallel": "head.width", "metric": "body.width = 4", "gantt": "head.width, body"}),
    "markup": (sweep(2, lr=[1, 2], tag=["<b> & $x$", "50 % _"]), {"parallel": r"<b> & \$x\$"}),
    "many keys": (sweep(30, **{f"key{number}": range(number, number + 30) for number in range(14)}),
                  {"metric": "not shown: 5 keys", "parallel": "not shown: 6 keys", "gantt": "30 attempts"}),
}  # fmt: skip


@pytest.mark.parametrize(("ranked", "texts"), ODD.values(), ids=ODD)
def test_every_plot_of_an_odd_sweep_says_what_there_is(ranked, texts):
    drawn = draw_all(ranked)
    for name, text in texts.items():
        assert text in drawn[name], name


@pytest.mark.parametrize(
    ("losses", "labels"),
    [
        ([2.45, 2.2, 2.0], ["2.1", "2.2", "2.3", "2.4"]),
        ([2, 0.3, 0.06], ["0.1", "0.2", "0.5", "1"]),
        ([200, 3, 0.06], ["$\\mathdefault{10^{0}}$"]),
    ],
)
def test_a_loss_has_plain_numbers_unless_it_spans_decades(losses, labels):
    ranked = sweep(1, lr=[1])
    epochs = epochs_of(ranked).assign(val_loss=losses)
    drawn = texts_of(partial(metric_plots.plot_epochs, epochs=epochs, ranked=ranked, curve="val_loss"), 1, 1)
    assert set(labels) <= set(drawn.split())
    assert "times" not in drawn, "2 x 10^0"


def test_one_epoch_of_each_trial_is_no_curve():
    ranked = sweep(3, lr=[1, 2, 3])
    epochs = epochs_of(ranked).query("epoch == 1")
    drawn = texts_of(partial(metric_plots.plot_epochs, epochs=epochs, ranked=ranked, curve="val_loss"), 1, 1)
    assert drawn.strip() == "no curves: no trial has reported a metric of several epochs"


@pytest.mark.parametrize("last", [1e308, math.inf])
def test_a_loss_that_diverges_is_drawn_up_to_where_axes_end(last):
    ranked = sweep(2, lr=[1, 2])
    epochs = epochs_of(ranked).assign(val_loss=[1, 1, 1e20, 1e20, 1e90, last])
    with mpl.rc_context(style.STYLE):
        figure = Figure()
        axes = figure.subplots()
        metric_plots.plot_epochs(axes, epochs, ranked, curve="val_loss")
        figure.draw_without_rendering()
    assert axes.get_yscale() == "log"
    assert 1e90 <= axes.get_ylim()[1] < 1e100


def test_a_value_with_control_characters_is_drawn_in_a_valid_svg(tmp_path):
    ranked = sweep(2, prompt=["a\x1b[0m", "two\nlines"])
    style.save(partial(metric_plots.plot_metric, ranked=ranked), tmp_path / "s")
    words = "".join(ElementTree.parse(tmp_path / "s.svg").getroot().itertext())
    assert r"a\x1b[0m" in words
    assert r"two\nlines" in words


def test_a_metric_keeps_its_whole_name():
    rows, name = sweep(3, lr=[1, 2, 3], width=[1, 2, 3]), "mAP@0.5_of_$x_$"
    ranked = plotted(rows.table.assign(**{name: [0.1, 0.2, 0.3]}), ["lr", "width"], name)
    drawn = draw_all(ranked)
    for plot in ("metric", "parallel"):
        assert "mAP@0.5 of" in drawn[plot]


def test_a_title_names_all_varied_keys_or_none():
    keys = {f"a_rather_long_name_of_a_key_{number}": [1, 2] for number in range(9)}
    assert (
        sweep(2, **keys).describe_best()
        == "best validation accuracy (highest, guessed from its name): 90.0% by trial t1"
    )
    few = sweep(2, lr=[1, 2], width=[3, 4], seed=[5, 6])
    assert few.describe_best().endswith("90.0% at learning rate = 2, width = 4, seed = 6")
    gantt = draw_all(sweep(2, **dict(list(keys.items())[:4])))["gantt"]
    assert "2 attempts" in gantt
    assert "labels" not in gantt, "four keys do not fit into a bar"


@pytest.mark.parametrize("status", ["finished", "stopped"])
def test_configurations_with_several_seeds_have_an_interval(status):
    rows = sweep(4, lr=[1, 1, 2, 2], seed=[1, 2, 1, 2], accuracy=[0.1, 0.9, 0.7, 0.8], status=status)
    of_lr, of_seed = Figure().subplots(1, 2)
    metric_plots.plot_metric(of_lr, of_seed, ranked=rows)
    drawn = [each for axes in (of_lr, of_seed) for each in axes.containers]
    if status == "stopped":
        assert all(not len(each.lines[2][0].get_segments()) for each in drawn), "no mean counts"
        return
    (interval,) = drawn
    deviations = [0.8 / 2**0.5, 0.1 / 2**0.5]
    ends = [segment[:, 1].tolist() for segment in interval.lines[2][0].get_segments()]
    expected = [[mean - each, mean + each] for mean, each in zip([0.75, 0.5], deviations[::-1], strict=True)]
    assert ends == [pytest.approx(each) for each in expected]


def test_the_best_trial_is_that_of_the_answer_also_with_seeds():
    """The best single trial may be a lucky one of a configuration whose mean is worse."""
    rows = sweep(4, lr=[1, 1, 2, 2], seed=[1, 2, 1, 2], accuracy=[0.1, 0.9, 0.7, 0.8])
    words = rows.describe_best()
    assert words.startswith("best mean validation accuracy (highest, guessed from its name) over seeds")
    assert words.endswith("; its best trial: 80.0% at learning rate = 2, seed = 2")


# ---- the timeline


@pytest.mark.parametrize("slots", [1, 9, 24, 40])
def test_the_labels_of_a_timeline_stay_within_their_bars(slots):
    rows = sweep(120, optimizer=["stochastic"] * 60 + ["adam"] * 60, width=range(120))
    figure = Figure(figsize=(8, style.lanes_height(slots)), layout="constrained")
    axes, timeline = figure.add_subplot(), timeline_of(rows, slots=slots)
    jobs = pd.DataFrame({"start": [99.0], "slots": slots, "session": "s", "order_job": 0})
    timeline_plots.plot_gantt(axes, timeline, jobs, rows)
    figure.draw_without_rendering()
    boxes = [label.get_window_extent() for label in axes.texts]
    pixels = axes.get_window_extent().width / axes.get_xlim()[1]
    assert all(box.width < pixels for box in boxes), "each bar is one second long"
    lane = abs(np.diff(axes.transData.transform([(0, 0), (0, 1)])[:, 1])[0])
    assert all(box.height <= 0.8 * lane for box in boxes), "a bar is four fifths of its lane"
    assert not any(one.overlaps(other) for index, one in enumerate(boxes) for other in boxes[:index])
    names = [label.get_window_extent() for label in axes.get_yticklabels()]
    assert not any(one.overlaps(other) for one, other in pairwise(names))


def test_no_plot_is_taller_than_a_screen():
    assert max(style.lanes_height(slots) for slots in (1, 162, 5000)) * style.STYLE["figure.dpi"] <= 900


# ---- parallel coordinates


def parallel(table, keys, metric, mode="max", **log):
    """The height of each trial on each axis (the better the trial, the later its row), and the ticks of each axis."""
    axes = Figure().add_subplot()
    parallel_plot.plot_parallel(axes, plotted(table, keys, metric, mode, log))
    lines = [line[:, 1] for line in axes.collections[0].get_segments()]
    ticks = [[label.get_text() for label in scale.get_yticklabels()] for scale in axes.child_axes]
    return np.array(lines), ticks, [text.get_text() for text in axes.texts]


def test_a_coordinate_is_logarithmic_where_the_search_says_so():
    table = sweep(3, lr=[0.001, 0.01, 0.1], width=[1, 2, 3]).table
    for is_log, middle in ((True, 0.5), (False, 0.0909)):
        heights, _, _ = parallel(table, ["lr", "width"], "val_accuracy", lr=is_log)
        assert heights[:, 0] == pytest.approx([0, middle, 1], abs=1e-3)


def test_names_and_missing_values_have_places_of_their_own():
    table = sweep(4, optimizer=["sgd", "adam", "sgd", "lamb"], clip=[1.0, NONE, 2.0, 3.0]).table
    heights, ticks, texts = parallel(table, ["optimizer", "clip"], "val_accuracy")
    assert heights[:, 0] == pytest.approx([0, 0.5, 0, 1])
    assert ticks[:2] == [["sgd", "adam", "lamb"], ["1", "2", "3"]]
    assert heights[:, 1] == pytest.approx([0, parallel_plot.MISSING, 0.5, 1])
    assert texts == ["none"]


@pytest.mark.parametrize("mode", ["max", "min"])
def test_the_best_value_is_on_top(mode):
    table = sweep(3, lr=[1, 2, 3], width=[1, 2, 3]).table.assign(score=[1, 2, 3])
    heights, _, _ = parallel(table, ["lr", "width"], "score", mode)
    assert heights[:, 2] == pytest.approx([0, 0.5, 1])


@pytest.mark.parametrize("mode", ["max", "min"])
def test_better_trials_are_darker_and_drawn_above_the_others(mode):
    table = sweep(40, lr=range(40), width=range(40)).table.assign(score=range(40))
    axes = Figure().add_subplot()
    parallel_plot.plot_parallel(axes, plotted(table, ["lr", "width"], "score", mode))
    lines = axes.collections[0]
    light = lines.get_colors()[:, :3].sum(axis=1)
    assert (np.diff(light) < 0.2).all()
    assert light[-1] < 1 < light[0], "the last line is on top"


def test_one_trial_that_is_far_worse_does_not_hide_the_differences_of_the_others():
    rows = sweep(20, lr=range(20), width=range(20)).table.assign(score=[-1e6, *np.linspace(0.5, 0.9, 19)])
    ranked = plotted(rows, ["lr", "width"], "score", "max")
    assert ranked.limits == (0.5, 0.9)
    assert ranked.outlier_count == 1
    heights, _, _ = parallel(rows, ["lr", "width"], "score")
    assert heights[[0, 1, -1], 2] == pytest.approx([0, 0, 1])
    assert "at the bottom: 1 trial far worse" in texts_of(partial(parallel_plot.plot_parallel, ranked=ranked), 1, 1)


# ---- importance


def test_importance_is_that_of_the_key_that_decides():
    rng = np.random.default_rng(0)
    lr, name = rng.uniform(size=80), rng.choice(["x", "y"], 80)
    keys = {"lr": lr, "model": name, "noise": rng.integers(0, 5, 80), "seed": rng.integers(0, 5, 80)}
    rows = sweep(80, **keys, accuracy=0.5 + 0.4 * lr + 0.1 * (name == "x"))
    found = importance.measure_importance(rows)
    assert found.explained > 0.8
    assert found.shares["mean"].idxmax() == "lr"
    assert 0.5 < found.shares.loc["lr", "mean"] < 1, "of a variance of 0.0133 + 0.0025"
    assert found.shares.loc["model", "mean"] > 2 * abs(found.shares.loc["noise", "mean"])
    assert "seed" not in found.shares.index, "nobody chooses a seed because it is important"


def test_the_importance_of_keys_that_vary_only_together_is_that_of_all_of_them():
    grid = {"model": [{"name": n, "lr": lr} for n, lr in (("a", 0.1), ("b", 0.1), ("c", 0.01))], "width": [*range(8)]}
    config = CommandSweep(command="x {args}", grid=grid)
    table = pd.DataFrame([each.values for each in expand(config).trials])
    table = table.assign(trial=table.index.astype(str), status="finished", score=table["model.name"] == "b")
    table["score"] = table["score"] + table["width"] / 100
    found = importance.measure_importance(plotted(table, config.varied_keys, "score", paired=config.paired))
    assert list(found.shares.index) == ["model", "width"]
    assert found.shares.loc["model", "mean"] > 5 * found.shares.loc["width", "mean"]


@pytest.mark.parametrize(
    ("ranked", "words"),
    [
        (sweep(19, lr=range(19), width=range(19)), "19 trials finished, 20 are needed"),
        (sweep(24, **{f"key{number}": range(24) for number in range(5)}), "24 trials finished, 25 are needed"),
        (sweep(40, lr=range(40), width=range(40), accuracy=0.5), "all trials have the same validation accuracy"),
        (sweep(40, lr=range(40), width=range(40), status="stopped"), "0 trials finished"),
    ],
)
def test_importance_is_not_measured_where_it_means_nothing(ranked, words):
    assert words in importance.why_unknown(ranked)


def test_no_importance_is_made_up_for_noise():
    rng = np.random.default_rng(1)
    noise = sweep(60, lr=rng.uniform(size=60), width=rng.uniform(size=60), accuracy=rng.uniform(size=60))
    assert "cannot predict" in texts_of(partial(importance.plot_importance, ranked=noise), 1, 1)


# ---- facets


def test_each_varied_key_has_a_panel_and_the_best_trial_a_ring_in_each():
    rows = sweep(9, lr=[1, 2, 3] * 3, model=["x", "x", "y"] * 3)
    panels = Figure().subplots(1, 2)
    metric_plots.plot_metric(*panels, ranked=rows)
    assert [axes.get_xlabel() for axes in panels] == ["learning rate", "model"]
    rings = [line for axes in panels for line in axes.lines if line.get_label() == "best"]
    assert [line.get_ydata()[0] for line in rings] == [0.9, 0.9]
    assert [line.get_xdata()[0] for line in rings] == [3, pytest.approx(1, abs=metric_plots.SCATTER)]
    medians = next(line for line in panels[0].lines if line.get_label() == "median at each value")
    assert medians.get_ydata() == pytest.approx([0.65, 0.7, 0.75])


def test_a_low_picture_without_a_plot_still_has_its_text_in_view(tmp_path):
    style.save(lambda axes: style.write_in_center(axes, "nothing to draw"), tmp_path / "picture", size=(6, 4))
    picture = np.asarray(Image.open(tmp_path / "picture.png").convert("L"))
    assert picture.shape[0] < 250
    assert (picture < 100).any()


def test_no_number_of_an_axis_covers_the_next_one():
    rows = sweep(8, lr=[0.1, 0.2] * 4, width=[16, 32] * 4, momentum=[0.81993, 0.83397, 0.920517, 0.956129] * 2)
    figure = Figure(figsize=(8, 3), layout="constrained")
    panels = figure.subplots(1, 3)
    metric_plots.plot_metric(*panels, ranked=rows)
    figure.draw_without_rendering()
    boxes = [[label.get_window_extent() for label in axes.get_xticklabels() if label.get_text()] for axes in panels]
    assert all(left.x1 < right.x0 for row in boxes for left, right in pairwise(row))
    assert [label.get_text() for label in panels[1].get_xticklabels()] == ["16", "32"]


def front_of(points, objectives, **options):
    """The ranking of configurations with these values of the objectives and constraints."""
    trials = [
        RankedTrial(f"t{number}", {"x": number}, TrialStatus.FINISHED, TrialValue(point["loss"]), judged=point)
        for number, point in enumerate(points)
    ]
    return Ranking("loss", "min", False, rank_configurations(trials, "min"), objectives=objectives, **options)


def test_a_front_has_a_point_per_configuration_and_a_border_that_all_others_are_behind():
    points = [(1, 9), (2, 9), (3, 4), (4, 5), (6, 1), (9, 1), (0, 0)]
    rows = [{"loss": float(loss), "fps": float(-fps), "mib": float(not loss)} for loss, fps in points]
    limits = {"constraints": {"mib": MetricLimits(max=0.5)}}
    ranking = front_of(rows, {"loss": "min", "fps": "max"}, **limits)
    figure = Figure()
    metric_plots.plot_front(axes := figure.subplots(), ranking=ranking)
    drawn = {line.get_label(): sorted(map(tuple, line.get_xydata())) for line in axes.lines}
    assert drawn["Pareto front"] == [(-9, 1), (-4, 3), (-1, 6)]
    assert drawn["worse"] == [(-9, 2), (-5, 4), (-1, 9)]
    assert drawn["not within the constraints"] == [(0, 0)]
    border = axes.lines[-1]
    assert border.get_drawstyle() == "steps-pre", "to the left of a point, the same loss can be had"
    assert list(border.get_xdata()) == [-9, -4, -1]
    assert axes.get_xlabel() == "fps (higher is better)"
    assert [text.get_text() for text in axes.texts] == ["1", "2", "3"]
    assert {text.get_text() for text in figure.legends[0].get_texts()} == drawn.keys() - {border.get_label()}


def test_three_objectives_have_a_panel_for_each_pair_and_no_border():
    objectives = {"loss": "min", "fps": "max", "a$b": "min"}
    ranking = front_of([dict.fromkeys(objectives, 1.0), {"loss": 2.0, "fps": 0.5, "a$b": 900.0}], objectives)
    figure = Figure()
    panels = figure.subplots(1, 3)
    metric_plots.plot_front(*panels, ranking=ranking)
    assert [(axes.get_ylabel()[:4], axes.get_xlabel()[:4]) for axes in panels] == [
        ("loss", "fps "),
        ("loss", r"a\$b"),
        ("fps ", r"a\$b"),
    ]
    assert [len(axes.lines) for axes in panels] == [2, 2, 2]
    assert [axes.get_xscale() for axes in panels] == ["linear", "log", "log"]
    figure.draw_without_rendering()


@pytest.mark.parametrize("rows", [[], [{"loss": 1.0, "fps": math.nan}]])
def test_without_a_front_the_plot_says_so(rows):
    ranking = front_of(rows, {"loss": "min", "fps": "max"})
    assert "no trial has finished with all objectives" in texts_of(partial(metric_plots.plot_front, ranking=ranking))


def test_a_line_joins_the_medians_only_of_a_key_that_explains_the_values():
    """Here the width decides, and the learning rate does nothing but noise."""
    rates, widths = [1, 2, 3] * 6, [8] * 6 + [32] * 6 + [64] * 6
    noise = np.random.default_rng(0).normal(0, 0.01, 18)
    ranked = sweep(18, lr=rates, width=widths, accuracy=np.array(widths) / 100 + noise)
    panels = Figure().subplots(1, 2)
    metric_plots.plot_metric(*panels, ranked=ranked)
    lines = [line for axes in panels for line in axes.get_lines()]
    styles = [line.get_linestyle() for line in lines if line.get_label() == "median at each value"]
    assert styles == ["None", "-"]
