"""A line of JSON is appended as a whole or not at all, whatever the file system does."""

import json

import pytest
from trainyard.utils.errors import StorageError
from trainyard.utils.files import atomic_write
from trainyard.utils.jsonl import EventLog, read_events


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_on_a_full_disk_no_line_is_torn_and_what_has_ended_is_recorded(small_disk):
    path = small_disk.folder / "journal.jsonl"
    with EventLog.opened(path) as events:
        small_disk.fill()
        number = 0
        with pytest.raises(StorageError, match=r"journal\.jsonl: no space left"):  # noqa: PT012
            for number in range(1000):
                events.append("epoch", number=number, text="x" * 1000)
        assert [line["number"] for line in lines(path)] == list(range(number))
        events.append("finished", durable=True, text="y" * 5000)
    assert lines(path)[-1]["event"] == "finished"
    (small_disk.folder / "filler").unlink()
    with EventLog.opened(path) as events:
        events.append("started")
    assert [event["event"] for event in read_events(path)][-2:] == ["finished", "started"]
    assert {each.name for each in small_disk.folder.iterdir()} == {"journal.jsonl", ".journal.jsonl.lock"}


def test_an_end_that_needs_the_reserve_is_recorded_and_reported(small_disk):
    path = small_disk.folder / "journal.jsonl"
    with EventLog.opened(path) as events:
        small_disk.fill()
        with pytest.raises(StorageError, match="make room on this file system"):
            events.append("finished", durable=True, text="y" * 5000)
        events.append("interrupted", durable=True)
    assert [line["event"] for line in lines(path)] == ["finished", "interrupted"]


def test_a_full_disk_is_reported_before_anything_starts(small_disk):
    small_disk.fill()
    with (
        pytest.raises(StorageError, match="make room on this file system"),
        EventLog.opened(small_disk.folder / "a.jsonl"),
    ):
        pytest.fail("nothing may start that cannot be recorded")


def test_a_read_only_file_system_is_reported_in_one_line(small_disk):
    small_disk.remount("ro")
    with (
        pytest.raises(StorageError, match="read-only file system: make it writable"),
        EventLog.opened(small_disk.folder / "a.jsonl"),
    ):
        pytest.fail("it cannot be written")


def test_a_file_that_does_not_fit_leaves_the_old_one_and_names_its_path(small_disk):
    path = small_disk.folder / "table.csv"
    path.write_text("old")
    small_disk.fill(leave=8192)
    with pytest.raises(StorageError, match=rf"^{path}: no space left"), atomic_write(path) as file:
        file.write("x" * 100_000)
    assert path.read_text() == "old"
    assert {each.name for each in small_disk.folder.iterdir()} == {"table.csv", "filler"}
