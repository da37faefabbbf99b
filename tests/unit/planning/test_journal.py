"""The journal survives what happens to files, and everything known about trials is a fold over it."""

import json
import time
from dataclasses import replace

import pytest
from sweep_journals import decode_all, fold_attempts, read_journal, session_of, write_session
from trainyard.config.trial_status import TrialStatus
from trainyard.planning.attempts import Fold, read_again, whole_epochs, whole_seconds
from trainyard.planning.journal import Journal, Reread, decode, encode
from trainyard.utils.event_log import read_events


def write_one_of_each(folder):
    """A session that is killed after these events; returns the path of its journal."""
    with Journal.of_new_session(folder) as journal:
        journal.append("session", durable=True, job="7")
        journal.append("started", trial="a", attempt=1, generation=0, node="n1", gpu="0", slot=0, job="7")
        journal.append("epoch", trial="a", attempt=1, metrics={"epoch": 1, "val_accuracy": 0.5})
        journal.append("failed", trial="a", attempt=1, error="boom", seconds=1.0)
        journal.append("started", trial="a", attempt=2, generation=0, node="n1", gpu="0", slot=0, job="7")
        journal.append("finished", trial="a", attempt=2, metrics={"val_accuracy": 0.9}, seconds=2.0)
        return journal.path


def test_events_fold_into_attempts(tmp_path):
    write_one_of_each(tmp_path)
    first, second = fold_attempts(read_journal(tmp_path))
    assert (first.outcome, first.error, first.epochs) == ("failed", "boom", [{"epoch": 1, "val_accuracy": 0.5}])
    assert (second.outcome, second.number, second.seconds, second.location.node) == ("finished", 2, 2.0, "n1")


def test_the_first_end_of_an_attempt_counts(tmp_path):
    """A driver that is told to end while it writes one may write another."""
    of_it = {"trial": "a", "attempt": 1}
    told = [{"event": "started", **of_it, "time": 0},
            {"event": "finished", **of_it, "time": 5, "metrics": {"score": 1.0}, "seconds": 5.0},
            {"event": "interrupted", **of_it, "time": 9}]  # fmt: skip
    (found,) = fold_attempts(decode_all(told))
    assert (found.outcome, found.metrics, found.seconds, found.end) == ("finished", {"score": 1.0}, 5.0, 5)
    write_session(tmp_path, told)
    (folded,) = Fold(tmp_path).update().attempts.values()
    assert (folded.outcome, folded.metrics, folded.end) == ("finished", {"score": 1.0}, 5)


@pytest.mark.parametrize("kept", [0.01, 0.3, 0.6, 0.99])
def test_a_torn_last_line_costs_that_line_only(tmp_path, kept):
    """No process writes to the journal of another one, so that nobody repairs it."""
    path = write_one_of_each(tmp_path)
    *whole, last = path.read_text().splitlines()
    path.write_text("\n".join(whole) + "\n" + last[: max(1, int(len(last) * kept))])
    assert len(read_events(path)) == len(whole)
    with session_of(tmp_path) as journal:
        journal.append("finished", trial="b", attempt=1, seconds=1.0)
    found = {(each.trial, each.number): each.outcome for each in Fold(tmp_path).update().attempts.values()}
    assert found == {("a", 1): "failed", ("a", 2): "running", ("b", 1): "finished"}
    path.write_text("\n".join([*whole, last]))
    assert Fold(tmp_path).update().attempts["a", 2].outcome == "finished", "only the end of its line is missing"


@pytest.mark.parametrize(
    "damaged",
    [
        '{"event":"epoch","time":1.5,"metrics":{"epoch":1}}',
        '{"event":"epoch","time":1.5,"trial":"a","attempt":2}',
        '{"event":"epoch","time":1.5,"trial":"a","attempt":"2","metrics":{}}',
        '{"event":"epoch","time":null,"trial":"a","attempt":2,"metrics":{}}',
        '{"event":"finished","time":1.5,"trial":"a"}',
        '{"event":"reread","time":1.5,"trial":"a","attempt":2,"rules":"r","metrics_digest":"d","rows":[],"metrics":{},"outcome":"?"}',
        '{"event":"resumed","time":1.5,"trial":"a","attempt":2,"checkpoint":{"name":"last.pt"}}',
        '{"event":"work","time":1.5}',
    ],
)
def test_a_line_that_lacks_a_field_costs_that_line_only(tmp_path, caplog, damaged):
    path = write_one_of_each(tmp_path)
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:5], damaged, *lines[5:], ""]))
    (_, found), fold = fold_attempts(read_journal(tmp_path)), Fold(tmp_path).update()
    assert (found.outcome, found.metrics) == ("finished", {"val_accuracy": 0.9})
    assert list(fold.attempts.values())[-1] == found
    assert "skipped damaged lines: 6" in caplog.text


def test_a_result_counts_without_the_start_of_its_attempt(tmp_path):
    path = write_one_of_each(tmp_path)
    lines = path.read_text().splitlines()
    lines[4] = "\0" * 40
    path.write_text("\n".join([*lines, ""]))
    events = read_journal(tmp_path)
    first, second = fold_attempts(events)
    assert (second.outcome, second.number, second.seconds) == ("finished", 2, 2.0)
    assert (second.start, second.end) == (events[-1].time - 2.0, events[-1].time)
    assert list(Fold(tmp_path).update().attempts.values()) == [first, second]


def test_an_attempt_without_its_start_is_of_the_generation_before_it():
    """`retrain` numbers them; a result of an earlier generation must not count for a later one."""
    of_it = {"trial": "a", "seconds": 1.0, "metrics": {}}
    events = [{"event": "started", "time": 1.0, "trial": "a", "attempt": 1, "generation": 3},
              {"event": "finished", "time": 2.0, "attempt": 1, **of_it},
              {"event": "finished", "time": 9.0, "attempt": 2, **of_it}]  # fmt: skip
    assert [attempt.generation for attempt in fold_attempts(decode_all(events))] == [3, 3]


def test_a_clock_that_is_set_back_turns_no_duration_negative(tmp_path, monkeypatch):
    now = time.time()
    with session_of(tmp_path) as journal:
        journal.append("started", trial="a", attempt=1)
        monkeypatch.setattr(time, "time", lambda: now - 3600)
        journal.append("epoch", trial="a", attempt=1, metrics={})
        journal.append("finished", trial="a", attempt=1, metrics={}, seconds=0.0)
    (attempt,) = fold_attempts(read_journal(tmp_path))
    assert attempt.start <= attempt.epoch_times[1] <= attempt.end


def test_an_attempt_of_a_journal_with_such_times_ends_no_earlier_than_it_starts():
    of_it = {"trial": "a", "attempt": 1}
    events = [{"event": "started", "time": 5000.0, **of_it},
              {"event": "epoch", "time": 1500.0, **of_it, "metrics": {}},
              {"event": "finished", "time": 1600.0, **of_it, "metrics": {}, "seconds": 200.0}]  # fmt: skip
    (attempt,) = fold_attempts(decode_all(events))
    assert (attempt.start, attempt.epoch_times[1], attempt.end) == (5000.0, 5000.0, 5000.0)


def test_an_attempt_without_an_end_is_open_until_the_last_that_was_heard_of_it(tmp_path):
    with session_of(tmp_path) as journal:
        journal.append("started", trial="a", attempt=1)
        heard = journal.append("epoch", trial="a", attempt=1, metrics={})
    (attempt,) = fold_attempts(read_journal(tmp_path))
    assert (attempt.outcome, attempt.end) == ("running", heard["time"])


def test_there_is_nothing_in_a_journal_that_is_not_there(tmp_path):
    assert read_events(tmp_path / "journal.jsonl") == []


def test_an_epoch_that_is_told_again_is_one_row_with_the_last_values(tmp_path):
    with session_of(tmp_path) as journal:
        journal.append("started", trial="a", attempt=1)
        for row in ({"epoch": 1, "loss": 3}, {"epoch": 1, "loss": 2, "acc": 0.5}, {"epoch": 2, "loss": 1}):
            journal.append("epoch", trial="a", attempt=1, metrics=row)
    (attempt,) = fold_attempts(read_journal(tmp_path))
    assert attempt.epochs == [{"epoch": 1, "loss": 2, "acc": 0.5}, {"epoch": 2, "loss": 1}]


def reading(*, rows=(), metrics=(), outcome=None):
    content = {"rules": "r", "metrics_digest": "2", "rows": [*rows], "metrics": dict(metrics)}
    return Reread(trial="a", attempt=1, **content, outcome=outcome)


def test_what_was_read_again_replaces_what_was_read_and_no_time():
    of_it = {"trial": "a", "attempt": 1}
    row = {"event": "epoch", "time": 2.0, **of_it, "metrics": {"epoch": 1, "loss": 3}}
    end = {"event": "unreadable", "time": 3.0, **of_it, "error": "no metrics", "seconds": 2.0, "metrics_digest": "1"}
    (before,) = fold_attempts(decode_all([{"event": "started", "time": 1.0, **of_it}, row, end]))
    rows, metrics = [{"epoch": 1, "loss": 4}], {"loss": 4}
    after = read_again(before, reading(rows=rows, metrics=metrics, outcome=TrialStatus.FINISHED))
    assert (before.outcome, before.metrics_digest) == ("unreadable", "1")
    assert (after.outcome, after.epochs, after.metrics, after.metrics_digest) == ("finished", rows, metrics, "2")
    assert (after.end, after.seconds, after.epoch_times) == (3.0, 2.0, {1: 2.0})


@pytest.mark.parametrize(("then", "now"), [("finished", "interrupted"), (None, "finished")])
def test_a_reading_of_an_attempt_that_has_ended_otherwise_since_does_not_count(then, now):
    """Its session had been given up, and has ended it; or others have taken the trial before its end counted."""
    of_it = {"trial": "a", "attempt": 1}
    told = [{"event": "started", "time": 1.0, **of_it}, {"event": now, "time": 2.0, **of_it, "metrics": {"loss": 1.0}}]
    (attempt,) = fold_attempts(decode_all(told))
    read = reading(metrics={"loss": 2.0}, outcome=then and TrialStatus(then))
    assert read_again(attempt, read) == attempt


def resumed_trial(*, checkpoint=None, first=4):
    """Two attempts: the first begins at 100 and tells epochs 1 to 3, at 110, 120, 130; the second begins at 200."""
    yield {"event": "started", "trial": "a", "attempt": 1, "time": 100.0}
    for epoch in (1, 2, 3):
        yield {"event": "epoch", "trial": "a", "attempt": 1, "time": 100.0 + 10 * epoch, "metrics": {"epoch": epoch}}
    yield {"event": "interrupted", "trial": "a", "attempt": 1, "time": 135.0}
    yield {"event": "started", "trial": "a", "attempt": 2, "time": 200.0}
    if checkpoint is not None:
        kept = {"name": "last.pt", "modified_ns": int(checkpoint * 1e9), "size": 1}
        yield {"event": "resumed", "trial": "a", "attempt": 2, "time": 200.0, "checkpoint": kept}
    for epoch in range(first, 6):
        yield {"event": "epoch", "trial": "a", "attempt": 2, "time": 200.0 + epoch, "metrics": {"epoch": epoch}}
    yield {"event": "finished", "trial": "a", "attempt": 2, "time": 230.0, "seconds": 30.0, "metrics": {}}


@pytest.mark.parametrize(
    ("how", "seconds", "epochs"),
    [
        ({"checkpoint": 122.0, "first": 3}, 30 + 22, [1, 2, 3, 4, 5]),
        ({"first": 4}, 30 + 30, [1, 2, 3, 4, 5]),
        ({"first": 1}, 30, [1, 2, 3, 4, 5]),
        ({"checkpoint": 90.0, "first": 1}, 30, [1, 2, 3, 4, 5]),
    ],
    ids=["from a checkpoint", "by its epochs", "from the beginning", "from what was there before"],
)
def test_a_resumed_trial_has_all_of_its_epochs_and_seconds(how, seconds, epochs):
    tries = fold_attempts(decode_all(resumed_trial(**how)))
    assert whole_seconds(tries, tries[-1]) == seconds
    assert [row["epoch"] for row in whole_epochs(tries, tries[-1])] == epochs


@pytest.mark.parametrize(("told", "why"), [({"why": "asha"}, "asha"), ({"exit_code": 0}, ""), ({}, "")])
def test_of_what_has_diverged_it_is_known_whether_it_was_ended_early(told, why):
    of_trial = {"trial": "a", "attempt": 1}
    events = [{"event": "started", "time": 1.0, **of_trial}, {"event": "diverged", "time": 2.0, **of_trial, **told}]
    (attempt,) = fold_attempts(decode_all(events))
    assert (read_again(attempt, reading(outcome=TrialStatus.STOPPED)).outcome, attempt.why) == ("stopped", why)


PROGRAM = '"exit_code":0,"output":"output-1.log","tail":"","metrics_digest":"d"'
LINES = f"""
{{"event":"session","time":1.5,"job":"7","node":"n1","process":3,"slots":2,"nodes":1,"gpus":2,"lead_seconds":4.0,"pending":2}}
{{"event":"ray_up","time":1.5,"import_seconds":0.5,"init_seconds":1.0}}
{{"event":"work","time":1.5,"flops":{{"a":1.0}}}}
{{"event":"slot_up","time":1.5,"slot":0,"import_torch_seconds":1.0,"data_seconds":0.5,"copy":""}}
{{"event":"slot_down","time":1.5,"slot":1,"error":"died"}}
{{"event":"started","time":1.5,"trial":"a","attempt":1,"generation":0,"values":{{"lr":1}},"gpus_per_trial":1.0,"job":"7","node":"n1","gpu":"0","slot":0,"gpu_model":"","device":"cpu"}}
{{"event":"started","time":1.5,"trial":"a","attempt":1,"generation":0,"values":{{"lr":1}},"gpus_per_trial":1.0,"job":"7","node":"n1","gpu":"0","slot":0,"gpu_model":"","device":"cpu","expected_seconds":2.5}}
{{"event":"started","time":1.5,"trial":"a","attempt":1,"generation":0,"takeover":3,"gpus_per_trial":1.0,"job":"7","node":"n1","gpu":"0","slot":0,"gpu_model":"","device":"cpu"}}
{{"event":"resumed","time":1.5,"trial":"a","attempt":1,"checkpoint":{{"name":"x","modified_ns":1,"size":1}}}}
{{"event":"epoch","time":1.5,"trial":"a","attempt":1,"metrics":{{"epoch":1}}}}
{{"event":"epoch","time":1.5,"trial":"a","attempt":1,"metrics":{{"epoch":1}},"first_step_time":1.25}}
{{"event":"halved","time":1.5,"trial":"a","attempt":1,"micro_batch":8,"accumulation":2}}
{{"event":"finished","time":1.5,"trial":"a","attempt":1,"metrics":{{"loss":1.0}},"seconds":1.0,"precision":"fp32"}}
{{"event":"stopped","time":1.5,"trial":"a","attempt":1,"metrics":{{}},"seconds":1.0,"why":"asha",{PROGRAM}}}
{{"event":"diverged","time":1.5,"trial":"a","attempt":1,"error":"NaN","seconds":1.0,"why":"asha",{PROGRAM}}}
{{"event":"unreadable","time":1.5,"trial":"a","attempt":1,"error":"no metrics","seconds":1.0,\
"exit_code":0,"output":"x.log","tail":"","metrics_digest":"d","log":"x.log"}}
{{"event":"failed","time":1.5,"trial":"a","attempt":1,"error":"boom","log":"x.log","retried":true}}
{{"event":"interrupted","time":1.5,"trial":"a","attempt":1}}
{{"event":"interrupted","time":1.5,"trial":"a","attempt":1,"ended":1.0}}
{{"event":"interrupted","time":1.5,"trial":"a","attempt":1,"error":"it was told to end",{PROGRAM}}}
{{"event":"reread","time":1.5,"trial":"a","attempt":1,"rules":"r","metrics_digest":"d","rows":[],"metrics":{{}},"outcome":"finished","error":""}}
{{"event":"reread","time":1.5,"trial":"a","attempt":1,"rules":"r","metrics_digest":"d","rows":[],"metrics":{{}},"error":""}}
{{"event":"released","time":1.5,"trial":"a","claim":3}}
{{"event":"left","time":1.5}}
""".split("\n")[1:-1]


@pytest.mark.parametrize("line", LINES, ids=[json.loads(line)["event"] for line in LINES])
def test_an_event_is_written_with_the_fields_and_the_order_that_journals_have(line):
    event = decode(json.loads(line))
    assert event is not None
    assert json.dumps(encode(event), separators=(",", ":")) == line
    assert replace(event, time=event.time) == event, "as one that was made by its constructor"


def test_an_event_of_an_unknown_kind_is_passed_over():
    assert decode_all([{"event": "of tomorrow", "time": 1.0, "trial": "a", "attempt": 1}]) == []
