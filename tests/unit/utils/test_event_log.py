"""A line of JSON is appended as a whole or not at all, whatever the file system does."""

import errno
import json
import os
import threading

import pytest
from slurm_cluster.waiting import wait_until
from trainyard.utils.errors import StorageError
from trainyard.utils.event_log import EventLog, read_events
from trainyard.utils.files import atomic_write
from trainyard.utils.locks import hold


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_on_a_full_disk_no_line_is_torn_and_the_error_is_raised_once(small_disk):
    path = small_disk.folder / "journal.jsonl"
    with EventLog.opened(path) as events:
        small_disk.fill()
        number = 0
        with pytest.raises(StorageError, match=r"journal\.jsonl: no space left"):  # noqa: PT012
            for number in range(1000):
                events.append("epoch", number=number, text="x" * 1000)
        assert [line["number"] for line in lines(path)] == list(range(number))
        assert events.is_incomplete
        events.append("finished", durable=True, text="y" * 5000)  # lost, without a second error
        (small_disk.folder / "filler").unlink()
        events.append("finished", durable=True, text="z" * 5000)  # what has ended since there is room
    assert [line["event"] for line in lines(path)][number:] == ["finished"]
    with EventLog.opened(path) as events:
        events.append("started")
    assert [event["event"] for event in read_events(path)][-2:] == ["finished", "started"]
    assert {each.name for each in small_disk.folder.iterdir()} == {"journal.jsonl"}


@pytest.mark.parametrize("kept", [0.01, 0.3, 0.6, 0.99, 1.0])
def test_a_last_line_that_was_cut_off_costs_that_line_only(tmp_path, caplog, kept):
    """A line that only lacks its end counts."""
    path, last = tmp_path / "shards.jsonl", '{"event":"shard","time":1.0,"number":2}'
    path.write_text('{"event":"shard","time":1.0,"number":1}\n' + last[: max(1, int(len(last) * kept))])
    with EventLog.opened(path) as events:
        events.append("shard", number=3)
    assert [line["number"] for line in lines(path)] == [1, *([2] if kept == 1 else []), 3]
    assert ("dropped a last line that was written only in part" in caplog.text) == (kept < 1)


def test_events_are_written_while_the_disk_syncs_and_one_sync_serves_them_all(tmp_path, monkeypatch):
    path, may_sync, syncs, told = tmp_path / "journal.jsonl", threading.Event(), [], []
    sync = os.fsync

    def wait_and_sync(fd):
        syncs.append(len(lines(path)))
        assert may_sync.wait(60)
        sync(fd)

    with EventLog.opened(path) as events:
        monkeypatch.setattr(os, "fsync", wait_and_sync)
        events.append("finished", durable=True, then=lambda: told.append("a"))
        wait_until(lambda: syncs, what="the sync to begin")
        events.append("started")
        for name in "bcd":
            events.append("finished", durable=True, then=lambda name=name: told.append(name))
        assert (len(lines(path)), events.is_synced(), told) == (5, False, [])
        may_sync.set()
        wait_until(events.is_synced, what="the sync")
        assert (syncs, told) == ([1, 5], ["a", "b", "c", "d"])
        events.append("epoch")
        assert events._unsynced == [], "what no sync waits for is not kept in memory"
    assert syncs == [1, 5, 6]


def test_an_event_that_was_not_waited_for_is_on_the_disk_when_the_file_is_closed(tmp_path, monkeypatch):
    told = []
    with EventLog.opened(tmp_path / "journal.jsonl") as events:
        events.append("finished", durable=True, then=lambda: told.append(True))
    assert told == [True]


@pytest.mark.parametrize("waits", [True, False])
def test_a_failed_sync_is_reported_once_and_nothing_follows_it(tmp_path, monkeypatch, waits):
    """A network file system reports a full disk when it is synced."""
    path, told = tmp_path / "journal.jsonl", []

    def fail(fd):
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    with EventLog.opened(path) as events:
        monkeypatch.setattr(os, "fsync", fail)
        with pytest.raises(StorageError, match="disk quota exceeded"):  # noqa: PT012
            events.append("finished", durable=True, then=None if waits else lambda: told.append(True))
            wait_until(events.is_synced, what="the sync")
        events.append("interrupted", durable=True, then=lambda: told.append(True))
        wait_until(events.is_synced, what="the second sync")
    assert [line["event"] for line in lines(path)] == ["finished", "interrupted"]
    assert told == []


def test_an_event_that_an_earlier_sync_may_have_lost_is_reported(tmp_path, monkeypatch):
    path, sync = tmp_path / "journal.jsonl", os.fsync

    def fail(fd):
        monkeypatch.undo()
        wait_until(lambda: len(lines(path)) == 2, what="the second event")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with EventLog.opened(path) as events:
        monkeypatch.setattr(os, "fsync", fail)
        events.append("finished", durable=True, then=lambda: None)
        wait_until(lambda: os.fsync is sync, what="the sync to begin")
        with pytest.raises(StorageError, match="no space left"):
            events.append("failed", durable=True)


def test_a_full_disk_is_reported_before_anything_starts(small_disk):
    small_disk.fill()
    with (
        pytest.raises(StorageError, match="make room on this file system"),
        hold(small_disk.folder / ".lock"),
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


def test_a_message_names_the_first_damaged_lines_and_counts_the_others(tmp_path, caplog):
    path = tmp_path / "journal.jsonl"
    path.write_text("{\n" * 1300)
    assert read_events(path) == []
    assert caplog.text.rstrip().endswith("skipped damaged lines: 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 and 1,290 more")
