"""The history in a file of W&B, read while it grows, and the variables that give a program its settings."""

from pathlib import Path

import pytest
import yaml
from trainyard.config.user_programs import Complete, Metrics
from trainyard.programs.metrics import MetricsCollector, parse_saved_output
from trainyard.programs.wandb_runs import read_history, run_id, wandb_environment
from wandb_stand_in.wandb import BLOCK, HEADER, field, framed, history, item, varint

FILE = "wandb/*run-*/run-*.wandb"
WANDB = Metrics(file=FILE)


def run_file(folder, name="offline-run-20260101_120000-abc"):
    path = folder / "wandb" / name / "run-abc.wandb"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def write(path, rows):
    path.write_bytes(HEADER + framed(map(history, rows), len(HEADER)))


def read(folder, *, resumes=False, began=None):
    return MetricsCollector(WANDB, folder, resumes=resumes, began=began).new_rows(final=True)


def test_a_history_is_read_without_media_and_with_dots_for_nested_values(tmp_path):
    row = {
        "_step": 0, ("_timestamp",): 1.5, "_runtime": 2, "loss": 0.5, ("val", "acc"): 0.25, "old": {"deep": {"x": 1}},
        ("h", "_type"): "histogram", ("h", "bins"): [1, 2], ("image", "size"): 312, ("image", "_type"): "image-file",
        "bad": float("nan"), "ok": True, ("_wandb", "runtime"): 3,
    }  # fmt: skip
    other = varint(1 << 3) + varint(1) + field(3, item("loss", 9.0))  # a summary
    run_file(tmp_path).write_bytes(HEADER + framed([history(row), other], len(HEADER)))
    assert read(tmp_path, began=0.0) == [
        {"epoch": 0, "loss": 0.5, "val.acc": 0.25, "old.deep.x": 1, "bad": None, "ok": 1}
    ]


@pytest.mark.parametrize("name", ["epoch", "train/epoch", "epoch/epoch"])  # as you, Hugging Face and Keras log it
def test_the_epoch_is_the_one_that_is_logged(tmp_path, name):
    write(run_file(tmp_path), [{"_step": 10 * epoch, name: epoch / 2, "loss": epoch} for epoch in range(3)])
    rows = read(tmp_path, began=0.0)
    assert [(row["epoch"], row["loss"]) for row in rows] == [(0, 0), (0.5, 1), (1, 2)]


def test_rows_without_an_epoch_belong_to_the_epoch_before_or_count_steps(tmp_path):
    write(run_file(tmp_path), [{"_step": 5, "x": 1}, {"_step": 6, "epoch": 1, "x": 2}, {"_step": 7, "y": 3}])
    assert read(tmp_path, began=0.0) == [{"epoch": 5, "x": 1}, {"epoch": 1, "x": 2}, {"epoch": 1, "y": 3}]


@pytest.mark.parametrize(
    ("name", "missing"),
    [("epoch", ""), ("Epoch", ""), ("n", "it has reported no epoch, and `complete` says 2")],
)
def test_a_step_is_no_epoch_that_completes_a_program(tmp_path, name, missing):
    metrics = MetricsCollector(WANDB, tmp_path, complete=Complete(epoch=2), began=0.0)
    write(run_file(tmp_path), [{"_step": step, name: step, "loss": 1} for step in range(9)])
    assert len(metrics.new_rows(final=True)) == 9
    assert metrics.incomplete.endswith(missing)
    assert bool(metrics.incomplete) == bool(missing)


def test_a_metric_that_is_logged_before_its_epoch_is_named(tmp_path):
    rows = [{"_step": 0, "size": 9}, {"_step": 1, "val": 1}, {"_step": 2, "epoch": 1}, {"_step": 3, "late": 1}]
    write(run_file(tmp_path), rows)
    metrics = MetricsCollector(WANDB, tmp_path, began=0.0)
    metrics.new_rows()
    assert metrics.take_warning() == ""
    write(run_file(tmp_path), [*rows, {"_step": 4, "val": 2}, {"_step": 5, "epoch": 2}])
    metrics.new_rows(final=True)
    assert metrics.take_warning().startswith("val is logged before its epoch, and counts for the epoch before: log it")


def test_records_are_read_as_they_arrive_byte_by_byte(tmp_path):
    rows = [{"_step": 0, "loss": 0}, {"_step": 1, "loss": 1, "text": "x" * 2 * BLOCK}, {"_step": 2, "loss": 2}]
    rows += [{"_step": step, "loss": step, "pad": "x" * (100 * step)} for step in range(3, 40)]
    content = HEADER + framed(map(history, rows), len(HEADER))
    path, found = run_file(tmp_path), list[float | None]()
    path.touch()
    metrics = MetricsCollector(WANDB, tmp_path, began=0.0)
    for end in [*range(200), *range(200, len(content), 4999), len(content)]:
        path.write_bytes(content[:end])
        found += [row["loss"] for row in metrics.new_rows()]
    assert found[:2] == [0, 1]
    assert found + [row["loss"] for row in metrics.new_rows(final=True)] == list(range(40))
    assert not metrics.error


def test_a_run_that_begins_anew_at_the_same_path_is_read(tmp_path):
    path = run_file(tmp_path)
    metrics = MetricsCollector(WANDB, tmp_path, began=0.0)
    write(path, [{"epoch": step, "loss": step} for step in range(9)])
    metrics.new_rows()
    write(path, [{"epoch": 0, "loss": 7}])
    assert [row["loss"] for row in metrics.new_rows(final=True)][-1] == 7


def test_an_attempt_that_resumes_continues_the_steps_of_the_run_before(tmp_path):
    write(run_file(tmp_path, "offline-run-20260101_120000-abc"), [{"_step": step, "loss": step} for step in range(3)])
    metrics = MetricsCollector(WANDB, tmp_path, resumes=True)
    write(run_file(tmp_path, "offline-run-20260101_130000-abc"), [{"_step": step, "loss": 3 + step} for step in (0, 1)])
    assert [(row["epoch"], row["loss"]) for row in metrics.new_rows(final=True)] == [(step, step) for step in range(5)]
    assert "its steps are counted on from the last one before, not from the checkpoint" in metrics.take_warning()
    parsed = parse_saved_output(WANDB, tmp_path, tmp_path / "output.log", seconds=1, resumed=True, began=0.0)
    assert parsed.metrics["loss"] == 4


def test_an_attempt_that_begins_anew_leaves_the_run_before_out(tmp_path):
    earlier = run_file(tmp_path, "offline-run-20260101_120000-abc")
    write(earlier, [{"_step": 0, "loss": 9}])
    metrics = MetricsCollector(WANDB, tmp_path)
    write(run_file(tmp_path, "offline-run-20260101_130000-abc"), [{"_step": 0, "loss": 1}])
    assert [row["loss"] for row in metrics.new_rows(final=True)] == [1]
    assert not earlier.exists()


def test_a_damaged_record_is_an_error_and_a_torn_one_is_none(tmp_path):
    path = run_file(tmp_path)
    write(path, [{"_step": 0, "loss": 1}, {"_step": 1, "loss": 2}])
    content = path.read_bytes()
    path.write_bytes(content[:-3])
    metrics = MetricsCollector(WANDB, tmp_path, began=0.0)
    assert [row["loss"] for row in metrics.new_rows(final=True)] == [1]
    assert not metrics.missing
    path.write_bytes(content.replace(b"loss", b"\xff\xff\xff\xff"))
    metrics = MetricsCollector(WANDB, tmp_path, began=0.0)
    assert metrics.new_rows(final=True) == []
    assert "cannot be read as wandb: a record is damaged" in metrics.missing
    with pytest.raises(IndexError):
        read_history(framed([b"\x12\xff"], 7), 7)


def test_a_program_that_logs_nothing_has_no_metrics(tmp_path):
    run_file(tmp_path).write_bytes(HEADER)
    metrics = MetricsCollector(WANDB, tmp_path, began=0.0)
    assert metrics.new_rows(final=True) == []
    assert "none were found in wandb/*run-*/run-*.wandb" in metrics.missing


def test_settings_are_in_a_file_as_the_agent_of_wandb_writes_it(tmp_path):
    settings = {"lr": 1e-05, "model": {"layers": 2}, "name": "1e5", "on": True}
    mine = {"WANDB_MODE": "online", "WANDB_RUN_GROUP": "mine", "WANDB_DIR": "/elsewhere", "PATH": "/bin"}
    variables = wandb_environment(mine, settings, tmp_path, run="abc", group="depth")
    content = yaml.safe_load(Path(variables["WANDB_SWEEP_PARAM_PATH"]).read_text())
    assert content == {"wandb_version": 1} | {name: {"value": value} for name, value in settings.items()}
    assert isinstance(content["lr"]["value"], float)
    other = wandb_environment({}, {"dataset_": "mnist", "lambda_": 1}, tmp_path, run="abc", group="depth")
    content = yaml.safe_load(Path(other["WANDB_SWEEP_PARAM_PATH"]).read_text())
    assert content == {"wandb_version": 1, "dataset": {"value": "mnist"}, "lambda_": {"value": 1}}
    assert variables["WANDB_DIR"] == str(tmp_path)
    assert variables["WANDB_RUN_ID"] == "abc"
    assert (variables["WANDB_MODE"], variables["WANDB_RUN_GROUP"], variables["PATH"]) == ("online", "mine", "/bin")
    assert wandb_environment({}, {}, tmp_path, run="abc", group="depth")["WANDB_MODE"] == "offline"


def test_a_run_is_that_of_a_trial_of_a_sweep_and_of_its_generation(tmp_path):
    ids = [run_id(*each) for each in (("a", tmp_path / "abc"), ("b", tmp_path / "abc"), ("a", tmp_path / "abc-1"))]
    assert ids == ["a-abc", "b-abc", "a-abc-1"]
    assert run_id("a", tmp_path / "abc-1~3") == "a-abc-1", "which goes on with it"
    assert run_id("x" * 64, tmp_path / "abc-1").endswith("x-abc-1")
    assert len(run_id("x" * 64, tmp_path / "abc-1")) == 64
