"""Tables hold what the formulas say, and every picture shows what its table holds."""

import pandas as pd
import pytest
from matplotlib.figure import Figure
from trainyard import plots
from trainyard.tables import timeline_table, write_table


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
    {"scale": ["1x1", "1x2"], "gpus": [1, 2], "speedup": [1, 1.5], "efficiency": [1, 0.75], "device": "cpu"}
)
TREES = pd.DataFrame(
    {"model": ["xgboost"], "metric": ["rmse"], "train": [0.1], "val": [0.2], "seconds": [1.0], "threads": [2]}
)
HISTORIES = [("1x1", pd.DataFrame({"epoch": [1, 2], "val_loss": [1.0, 0.5], "train_loss": [1.0, 0.4]}))]

PICTURES = {
    "gantt": (lambda axes: plots.gantt(axes, TIMELINE, TRIALS, "blocks"), ["n1 GPU 0", "n1 GPU 1", "labels: blocks"]),
    "gantt by name": (lambda axes: plots.gantt(axes, TIMELINE, TRIALS, "model"), ["labels: model"]),
    "gantt of trials": (lambda axes: plots.gantt(axes, TIMELINE, TRIALS, "trial"), ["labels: trial"]),
    "gantt by truth": (lambda axes: plots.gantt(axes, TIMELINE, TRIALS, "nesterov"), ["labels: nesterov"]),
    "metric by truth": (
        lambda axes: plots.metric_against(axes, TRIALS, "nesterov", "val_accuracy"),
        ["nesterov = True"],
    ),
    "metric with gaps": (lambda axes: plots.metric_against(axes, TRIALS, "width", "val_accuracy"), ["width"]),
    "metric": (lambda axes: plots.metric_against(axes, TRIALS, "blocks", "val_accuracy"), ["90.0% at blocks = 20"]),
    "metric by name": (lambda axes: plots.metric_against(axes, TRIALS, "model", "val_accuracy"), ["at model = y"]),
    "losses": (lambda axes: plots.sweep_losses(axes, EPOCHS, "blocks"), ["validation loss", "epoch"]),
    "losses by name": (lambda axes: plots.sweep_losses(axes, EPOCHS, "model"), ["x", "y"]),
    "speedup": (lambda axes: plots.speedup(axes, SCALING), ["ranks (on CPUs)", "speedup over 1x1", "75%"]),
    "scaling losses": (lambda axes: plots.scaling_losses(axes, HISTORIES), ["1x1 validation"]),
    "trees": (lambda axes: plots.trees_scores(axes, TREES), ["RMSE", "xgboost"]),
}


@pytest.mark.parametrize(("painter", "texts"), PICTURES.values(), ids=PICTURES)
def test_every_picture_says_what_it_shows(tmp_path, painter, texts):
    plots.draw(painter, tmp_path / "picture")
    svg = (tmp_path / "picture.svg").read_text()
    for text in texts:
        assert text in svg
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_the_same_data_give_the_same_picture(tmp_path):
    for name in ("one", "other"):
        plots.draw(lambda axes: plots.speedup(axes, SCALING), tmp_path / name)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "other.svg").read_bytes()


def test_a_gantt_leaves_out_the_pause_between_two_runs():
    axes = Figure().add_subplot()
    plots.gantt(axes, TIMELINE, TRIALS, "blocks")
    assert axes.get_xlim()[1] == 12, "ten seconds, then two more after a pause of over an hour"
