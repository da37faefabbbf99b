"""A resumed script continues the rows of the launches before it."""

from pathlib import Path

import pytest
from trainyard.config.user_programs import Metrics
from trainyard.programs.runner import CheckpointFile
from trainyard.scaling import launch_records
from trainyard.scaling.launch_records import Launches, Report

METRICS = Metrics(pattern=r"epoch (?P<epoch>\d+) loss (?P<val_loss>{number})")


@pytest.fixture
def clock(monkeypatch):
    """A clock that advances by 10 s per event."""
    times = iter(range(0, 1000, 10))
    monkeypatch.setattr(launch_records, "read_clock", lambda: float(next(times)))


def launch(folder: Path, *epochs: int, resumes: bool, loss: float = 0.5) -> Launches:
    """Report these epochs in a launch of its own; the object is a new one, as after the launcher was killed."""
    reported = Launches(folder)
    with reported.launch(resumes=resumes):
        reported.output.write_text("".join(f"epoch {epoch} loss {loss}\n" for epoch in epochs))
        for epoch in epochs:
            reported.add({"epoch": epoch, "val_loss": loss})
    return reported


def read_again(reported, metrics=METRICS):
    """The rows, why there are none, and whether they count epochs."""
    parsed = reported.parse_outputs(metrics, seconds=60, ranks=1)
    return parsed.rows, parsed.missing, parsed.counts_epochs


def test_a_resumed_launch_replaces_the_epochs_that_it_repeats(tmp_path, clock):
    launch(tmp_path, 1, 2, 3, resumes=False, loss=0.4)  # launched at 0, reported at 10, 20 and 30
    launch(tmp_path, resumes=True)  # a torn checkpoint
    reported = launch(tmp_path, 3, 4, resumes=True, loss=0.1)  # launched at 50
    rows = [{"epoch": epoch, "val_loss": loss} for epoch, loss in [(1, 0.4), (2, 0.4), (3, 0.1), (4, 0.1)]]
    assert reported.report(ended=75.0) == Report(rows, [10, 10, 10, 10], seconds=10 + 10 + 25)
    assert read_again(reported) == (rows, "", True)


def test_rows_without_an_epoch_are_numbered_by_their_launch_when_they_are_read_again(tmp_path, clock):
    launch(tmp_path, 1, 2, 3, resumes=False, loss=0.4)
    reported = launch(tmp_path, 3, 4, resumes=True, loss=0.1)  # resumed after two epochs
    assert [(each.start, each.before, each.times) for each in reported.epochs()] == [
        (0.0, 0, [(10.0, 1), (20.0, 2), (30.0, 3)]),
        (40.0, 2, [(50.0, 3), (60.0, 4)]),
    ]
    rows = [{"epoch": epoch, "loss": loss} for epoch, loss in [(1, 0.4), (2, 0.4), (3, 0.1), (4, 0.1)]]
    assert read_again(reported, Metrics(pattern="loss (?P<loss>{number})")) == (rows, "", False)


def test_rows_that_the_file_of_a_resumed_script_still_has_count_once(tmp_path, clock):
    launch(tmp_path, 1, 2, 3, resumes=False)  # launched at 0, reported at 10, 20 and 30
    reported = Launches(tmp_path)
    with reported.launch(resumes=True):  # at 40
        reported.add_kept([{"epoch": epoch, "val_loss": 0.5} for epoch in (1, 2, 3, 4)])  # the last one at 50
        reported.add({"epoch": 4, "val_loss": 0.1})
        reported.add({"epoch": 5, "val_loss": 0.1})
    found = reported.report(ended=85.0)
    assert [(row["epoch"], row["val_loss"]) for row in found.rows] == [
        *((e, 0.5) for e in (1, 2, 3)),
        (4, 0.1),
        (5, 0.1),
    ]
    assert found.seconds == 30 + 45, "the first launch took time, too"
    with reported.launch(resumes=True):
        reported.add_kept([{"epoch": 6, "val_loss": 0.1}])
    assert [row["epoch"] for row in reported.report(ended=200.0).rows] == [1, 2, 3, 4, 5, 6]


def test_the_last_epoch_of_the_file_does_not_hide_the_earlier_ones_that_a_launch_repeats(tmp_path, clock):
    """A file with a row per step: its last epoch is reported once another one begins, after the launch."""
    launch(tmp_path, 1, 2, 3, resumes=False)
    reported = launch(tmp_path, 3, 2, 3, 4, resumes=True, loss=0.1)
    assert [row["epoch"] for row in reported.report(ended=200.0).rows] == [1, 2, 3, 4]
    assert [row["epoch"] for row in read_again(reported)[0]] == [1, 2, 3, 4]


def test_a_launch_from_the_beginning_forgets_those_before_it(tmp_path, clock):
    launch(tmp_path, 1, 2, resumes=False)
    launch(tmp_path, 3, resumes=True)
    reported = launch(tmp_path, 1, resumes=False)
    assert reported.report(ended=100.0).rows == [{"epoch": 1, "val_loss": 0.5}]
    assert read_again(reported)[0] == [{"epoch": 1, "val_loss": 0.5}]


def test_a_launch_with_nothing_left_to_do_has_the_rows_of_the_one_before_it(tmp_path, clock):
    launch(tmp_path, 1, 2, resumes=False)
    assert [row["epoch"] for row in launch(tmp_path, resumes=True).report(ended=50.0).rows] == [1, 2]


def test_a_full_disk_costs_the_record_of_a_row_and_not_the_script(small_disk, clock, caplog):
    reported = Launches(small_disk.folder)
    with reported.launch(resumes=False):
        small_disk.fill()
        reported.add(row := {"epoch": 1, "note": "x" * 5000})
    assert reported.report(ended=50.0).rows == [row]
    assert "no space left on device" in caplog.text


def test_what_a_killed_launch_could_not_write_in_full_does_not_count(tmp_path, clock):
    killed = Launches(tmp_path)
    with killed.launch(resumes=False):
        killed.output.write_text("epoch 1 loss 0.5\nepoch 2 loss 0.2")  # of 0.25
    reported = launch(tmp_path, resumes=True)
    reported.output.write_text("epoch 3 loss 0.125")  # a program that ended by itself may omit the last line break
    rows = [{"epoch": 1, "val_loss": 0.5}, {"epoch": 3, "val_loss": 0.125}]
    assert read_again(reported)[0] == rows


def test_a_line_that_lacks_a_field_costs_that_line_only(tmp_path, clock):
    launch(tmp_path, 1, resumes=False)
    with open(tmp_path / "rows.jsonl", "a") as file:
        file.write('{"event":"row","time":15.0}\n{"event":"row","time":15.0,"row":{"val_loss":0.5}}\n')
    assert launch(tmp_path, 2, resumes=True).report(ended=60.0).rows == [
        {"epoch": 1, "val_loss": 0.5},
        {"epoch": 2, "val_loss": 0.5},
    ]


def test_a_checkpoint_that_cannot_be_resumed_from_is_known_to_later_launches(tmp_path, clock):
    bad = [CheckpointFile("1.pt", 1, 10), CheckpointFile("2.pt", 2, 10)]
    for each in bad:
        launched = Launches(tmp_path)
        with launched.launch(resumes=True):
            launched.add_failed(each)
    launch(tmp_path, 1, resumes=False)
    assert Launches(tmp_path).failed_checkpoints() == bad


def test_checkpoints_fail_in_a_row_until_a_launch_has_resumed_and_reports_a_row(tmp_path, clock):
    """A launch from the beginning shows nothing: its own checkpoints may fail as well."""
    counts = []
    for number, resumes in enumerate([True, False, True, True]):
        launched = Launches(tmp_path)
        launch(tmp_path, number, resumes=resumes)
        with launched.launch(resumes=resumes):
            launched.add_failed(CheckpointFile(f"{number}.pt", number, 10))
        counts.append(Launches(tmp_path).failed_in_a_row)
    assert counts == [1, 2, 1, 1]
    assert len(Launches(tmp_path).failed_checkpoints()) == 4


def test_only_a_launch_that_has_succeeded_has_an_end(tmp_path, clock):
    assert Launches(tmp_path).end() is None
    launched = launch(tmp_path, 1, resumes=False)  # at 0 and 10
    assert launched.end() is None
    with launched.launch(resumes=True):
        launched.output.touch()
        launched.add_end(what="a", job="7")
    for each in (launched, Launches(tmp_path)):
        assert each.end() == {"event": "ended", "time": 30.0, "what": "a", "job": "7"}
    launch(tmp_path, resumes=True)
    assert Launches(tmp_path).end() is None
