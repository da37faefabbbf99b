"""Metrics in event files of TensorBoard, as torch's SummaryWriter writes them, also while it does."""

import time

import numpy as np
import pytest
from torch.utils.tensorboard import SummaryWriter
from trainyard.config.load import check_config
from trainyard.config.user_programs import Metrics, metrics_digest
from trainyard.programs.metric_files import metric_files
from trainyard.programs.metrics import MetricsCollector, parse_saved_output

RUNS = Metrics(file="runs/**")


@pytest.fixture
def clock(monkeypatch):
    """Looks for new files each time."""
    monkeypatch.setattr("trainyard.programs.metric_files.LOOK_SECONDS", 0.0)


def write(folder, *steps, **options):
    """Write a loss and an accuracy for each step, and something that is no scalar."""
    with SummaryWriter(folder, **options) as writer:
        for step in steps:
            writer.add_scalar("Loss/train", 1 / (step + 1), step)
            writer.add_scalar("acc", step / 4, step)
            writer.add_text("note", "hello", step)


def test_rows_are_the_scalars_of_a_step(tmp_path):
    write(tmp_path / "runs/now", 0, 1, 2)
    rows = MetricsCollector(RUNS, tmp_path, began=0.0).new_rows(final=True)
    assert rows == [
        {"epoch": step, "Loss/train": pytest.approx(1 / (step + 1)), "acc": pytest.approx(step / 4)}
        for step in range(3)
    ]


def test_files_are_read_while_they_grow(tmp_path, clock):
    found = MetricsCollector(RUNS, tmp_path, hold_first_row=False)
    assert found.new_rows() == []
    with SummaryWriter(tmp_path / "runs") as writer:
        for step in (1, 2):
            writer.add_scalar("loss", step, step)
            writer.flush()
            assert found.new_rows() == [{"epoch": step, "loss": step}]
        (path,) = metric_files(RUNS, tmp_path)
        whole = path.read_bytes()
        writer.add_scalar("loss", 3, 3)
        writer.flush()
        grown = path.read_bytes()
        path.write_bytes(grown[: (len(whole) + len(grown)) // 2])  # an event of which a part is written
        assert found.new_rows() == []
        path.write_bytes(grown)
        assert found.new_rows() == [{"epoch": 3, "loss": 3}]
        assert found.new_rows(final=True) == []
    assert (found.latest, found.error, found.missing) == ({"loss": 3}, "", "")


def test_a_scalar_named_epoch_is_the_epoch(tmp_path):
    with SummaryWriter(tmp_path / "runs") as writer:
        for step in range(1, 7):
            writer.add_scalar("epoch", (step - 1) // 3, 100 * step)
            writer.add_scalar("loss", step, 100 * step)
    found = MetricsCollector(RUNS, tmp_path, began=0.0)
    assert found.new_rows(final=True) == [{"epoch": 0, "loss": 3}, {"epoch": 1, "loss": 6}]


def test_runs_below_the_topmost_one_are_told_apart(tmp_path):
    with SummaryWriter(tmp_path / "runs/a") as writer:
        writer.add_scalar("lr", 0.5, 1)
        writer.add_scalars("loss", {"train": 1.0, "val": 2.0}, 1)
    (row,) = MetricsCollector(RUNS, tmp_path, began=0.0).new_rows(final=True)
    assert row == {"epoch": 1, "lr": 0.5, "loss_train/loss": 1.0, "loss_val/loss": 2.0}


def test_scalars_as_tensors_and_nan(tmp_path):
    with SummaryWriter(tmp_path / "runs") as writer:
        writer.add_scalar("new", 1.5, 1, new_style=True)
        writer.add_scalar("bad", float("nan"), 1)
        writer.add_histogram("weights", np.array([1.0, 2.0]), 1)
    found = MetricsCollector(RUNS, tmp_path, began=0.0)
    assert found.new_rows(final=True) == [{"epoch": 1, "new": 1.5, "bad": None}]


def test_an_attempt_that_begins_again_does_not_count_the_files_before(tmp_path):
    write(tmp_path / "runs/a", 1, 2)
    found = MetricsCollector(RUNS, tmp_path)
    assert found.new_rows(final=True) == []
    assert [path.suffix for path in metric_files(RUNS, tmp_path, earlier=True)] == [".before"]
    assert found.missing == "it succeeded, but reported no metrics: none were found in runs/**"


def test_one_that_resumes_counts_them_up_to_where_it_resumed(tmp_path):
    write(tmp_path / "runs/a", 1, 2, 3)
    time.sleep(1.1)  # the name of an event file has the second
    with SummaryWriter(tmp_path / "runs/b") as writer:
        for step in (3, 4):
            writer.add_scalar("acc", 10 + step, step)
    parsed = parse_saved_output(RUNS, tmp_path, tmp_path / "none.log", seconds=9, resumed=True)
    assert [(row["epoch"], row["acc"]) for row in parsed.rows] == [(1, 0.25), (2, 0.5), (3, 13), (4, 14)]


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        ({"file": "runs", "pattern": "a=(?P<a>{number})"}, "give one of file and pattern"),
        ({"tensorboard": "runs/**"}, "metrics.tensorboard: is no longer an option: give the folder of the event files"),
        ({"file": "runs.yaml"}, "must end in .csv, .tsv, .json, .jsonl, .txt, .log or .wandb, or be a folder"),
        ({"file": "/shared/runs"}, "metrics.file: /shared/runs would be shared by all trials"),
    ],
)
def test_mistakes_are_errors_of_the_config(metrics, message):
    sweep = {"command": "python t.py {x}", "grid": {"x": [1, 2]}, "metrics": metrics}
    with pytest.raises(Exception, match=message):
        check_config({"sweeps": {"s": sweep}})


def test_the_digests_of_other_metrics_are_as_before():
    assert metrics_digest(Metrics(file="m.jsonl")) != metrics_digest(RUNS)
    assert metrics_digest(Metrics(pattern="a=(?P<a>{number})")) == "cc5cf0cc4d"
