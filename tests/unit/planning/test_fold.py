"""A fold that grows knows what a fold of the whole journal knows, and reads only what is new."""

import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sweep_journals import fold_attempts, read_journal, write_session
from trainyard.config.trial_status import ENDED
from trainyard.planning.attempts import Fold, Session, update_session
from trainyard.planning.journal import FlopsCounted, SessionStarted
from trainyard.utils import event_log
from trainyard.utils.event_log import EventLog

TRIALS = ("a", "b", 'with "quotes"')


def event(kind, time, trial, number):
    """An event as the driver writes it."""
    of_trial = {"trial": trial, "attempt": number}
    fields = {
        "slot_up": {"slot": 0, "import_seconds": 1.5},
        "started": {**of_trial, "node": "n1", "gpu": "0", "slot": 0, "expected_seconds": 2.5},
        "epoch": {**of_trial, "metrics": {"epoch": time // 3, "loss": time / 7}},
        "halved": {**of_trial, "micro_batch": 8, "accumulation": 2},
        "finished": {**of_trial, "seconds": time / 3, "metrics": {"loss": time / 5}},
        "failed": {**of_trial, "error": "boom", "seconds": 1.0},
        "interrupted": {**of_trial, "ended": time - 1},
        "work": {"flops": {trial: time}},
    }  # fmt: skip
    return {"event": kind, "time": float(time), **fields[kind]}


KINDS = ["slot_up", "started", "started", "epoch", "epoch", "epoch", "epoch", "halved", "finished", "failed",
         "interrupted", "work"]  # fmt: skip
TOLD = st.lists(st.tuples(st.sampled_from(KINDS), st.sampled_from(TRIALS), st.integers(1, 2)), max_size=40)


def events_of(told):
    """These events, without what no driver records: an attempt that begins again or goes on after its end."""
    begun, ended = set(), set()
    yield {"event": "session", "time": 0.0, "job": "7", "slots": 2}
    for time, (kind, *attempt) in enumerate(told, start=1):
        key = tuple(attempt)
        if kind not in ("slot_up", "work") and key in ended:
            continue
        if kind == "started" and key in begun:
            continue
        begun.add(key)
        if kind in ENDED:
            ended.add(key)
        yield event(kind, time, *attempt)


def check(fold, path):
    """See that a fold knows what one of the whole journal knows."""
    events = read_journal(path.parent.parent)
    assert list(fold.attempts.values()) == fold_attempts(events)
    started, *others = events or [None]
    if isinstance(started, SessionStarted):
        session = Session(started, end=started.time)
        for event in others:
            update_session(session, event)
        assert fold.sessions == [session]
    assert fold.flops == {
        key: value for each in events if isinstance(each, FlopsCounted) for key, value in each.flops.items()
    }


def test_a_job_that_waits_for_the_trials_of_others_has_started_before(tmp_path):
    """With `repeat_best`, until the last of the first trials has ended; later jobs would request this time, too."""
    told = [{"event": "session", "time": 10.0}, event("slot_up", 12, "a", 1), event("started", 7200, "a", 1)]
    write_session(tmp_path, told)
    assert [each.startup_seconds for each in Fold(tmp_path).update().sessions] == [2.0]


@given(TOLD, st.lists(st.floats(0, 1), max_size=6))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_a_journal_that_is_read_in_pieces_says_the_same(tmp_path, told, cuts):
    path = write_session(tmp_path, events_of(told))
    content, fold = path.read_bytes(), Fold(tmp_path)
    path.unlink()
    for share in [*sorted(cuts), 1]:
        size = int(share * len(content))
        with open(path, "ab") as file:
            file.write(content[file.tell() : size])
        check(fold.update(), path)


def whole_sweep(path, trials=5):
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    with EventLog.opened(path) as file:
        file.append("session", job="7", slots=2)
        for trial in range(trials):
            file.append("started", trial=f"t{trial}", attempt=1)
            for epoch in (1, 2, 3):
                file.append("epoch", trial=f"t{trial}", attempt=1, metrics={"epoch": epoch, "loss": 0.5})
            if trial < trials - 1:
                file.append("finished", trial=f"t{trial}", attempt=1, seconds=1.0, metrics={"loss": 0.5})


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "sessions/0-local.0-0.jsonl"
    whole_sweep(path)
    return path


def fold_of(path):
    """The fold of the sweep to which the journal of a session belongs."""
    return Fold(path.parent.parent).update()


def test_only_what_is_new_is_read(path, monkeypatch):
    fold = fold_of(path)
    parsed, parse = [], event_log.parse_event
    monkeypatch.setattr(event_log, "parse_event", lambda line: parsed.append(line) or parse(line))
    with EventLog.opened(path) as file:
        file.append("finished", trial="t4", attempt=1, seconds=1.0, metrics={"loss": 0.25})
    fold.update().update()
    assert [each.outcome for each in fold.attempts.values()] == ["finished"] * 5
    assert len(parsed) == 1
    check(fold, path)


def shortened(path):
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-7]))


def replaced(path):
    whole_sweep(path.with_name("other"), trials=9)
    path.with_name("other").replace(path)


@pytest.mark.parametrize("change", [shortened, replaced, os.unlink])
def test_what_was_read_of_another_journal_does_not_count(path, change):
    fold = fold_of(path)
    change(path)
    check(fold.update(), path)
    whole_sweep(path, trials=2)
    check(fold.update(), path)


def test_a_line_that_is_read_while_it_is_written_counts_once_it_is_complete(path):
    line = '{"event":"finished","time":2e9,"trial":"t4","attempt":1,"seconds":1.0,"metrics":{"loss":0.25}}\n'
    with open(path, "a") as file:
        file.write(line[:23])
    fold = fold_of(path)
    assert fold.attempts["t4", 1].outcome == "running"
    with open(path, "a") as file:
        file.write(line[23:])
    check(fold.update(), path)
    assert fold.attempts["t4", 1].outcome == "finished"


def test_damaged_lines_are_numbered_and_stop_nothing(path, caplog):
    with open(path, "a") as file:
        file.write('{"event":"epoch","time":17.0.1,"trial":"t4","attempt":1,"metrics":{"epoch":4}}\n')
    fold = fold_of(path)
    assert "skipped damaged lines: 26" in caplog.text
    with open(path, "a") as file:
        file.write('\n{"event":"epoch","time":\n')
    fold.update()
    assert "skipped damaged lines: 28" in caplog.text
    check(fold, path)


def test_the_end_of_an_attempt_with_an_error_that_is_no_text_is_read(path):
    with EventLog.opened(path) as file:
        file.append("failed", trial="t4", attempt=1, seconds=1.0, error="no such file: caf\udce9.jpg")
    assert fold_of(path).attempts["t4", 1].error == "no such file: caf\udce9.jpg"
