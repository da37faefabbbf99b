"""A fold that grows, or was kept, knows what a fold of the whole journal knows, and reads only what is new."""

import json
import os
import shutil

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from trainyard.config.load import check_config
from trainyard.planning import journal_fold
from trainyard.planning.attempts import Session, fold_attempts, update_sessions
from trainyard.planning.journal import Journal, Share, Suggested, Work, read_journal
from trainyard.planning.journal_fold import Fold
from trainyard.planning.plan import plan_sweep
from trainyard.planning.planned_jobs import summarize_plan
from trainyard.utils import jsonl

KEPT = ".journal-fold.json"
TRIALS = ("a", "b", 'with "quotes"')


@pytest.fixture(autouse=True)
def keep_always(monkeypatch):
    monkeypatch.setattr(journal_fold, "MIN_CACHED_BYTES", -1)


def event(kind, time, trial, number):
    """An event as the driver writes it."""
    of_trial = {"trial": trial, "attempt": number}
    fields = {
        "session": {"job": "7", "slots": 2},
        "slot_up": {"slot": 0, "import_seconds": 1.5},
        "started": {**of_trial, "node": "n1", "gpu": "0", "slot": 0, "expected_seconds": 2.5},
        "epoch": {**of_trial, "metrics": {"epoch": time // 3, "loss": time / 7}},
        "halved": {**of_trial, "micro_batch": 8, "accumulation": 2},
        "finished": {**of_trial, "seconds": time / 3, "metrics": {"loss": time / 5}},
        "failed": {**of_trial, "error": "boom", "seconds": 1.0},
        "interrupted": {**of_trial, "ended": time - 1},
        "share": {"slots": 4, "gpus_per_trial": 0.5, "uses": [], "throughput": {"2": time / 9}, "why": "so"},
        "work": {"flops": {trial: time}},
        "suggested": {"search": "s", "values": {"lr": time}, "params": {"lr": time}, "attrs": {}},
        "reread": {**of_trial, "outcome": ("finished", "interrupted")[time % 2], "error": "", "rows": [{"epoch": 1}],
                   "metrics": {"x": 1.0}, "heard": "d"},
    }  # fmt: skip
    return {"event": kind, "time": float(time), **fields[kind]}


KINDS = ["session", "slot_up", "started", "started", "epoch", "epoch", "epoch", "epoch", "halved", "finished", "failed",
         "interrupted", "share", "work", "suggested", "reread"]  # fmt: skip
# Each attempt is read again after both have ended, and their rows were dropped.
REREAD = [(kind, "a", number) for number in (1, 2) for kind in ("started", "epoch", "epoch", "interrupted")]
REREAD += [("reread", "a", 1), ("reread", "a", 2)]
TOLD = st.lists(st.tuples(st.sampled_from(KINDS), st.sampled_from(TRIALS), st.integers(1, 2)), max_size=40)


def lines_of(told):
    events = [event(*each[:1], time, *each[1:]) for time, each in enumerate(told, start=1)]
    return "".join(json.dumps(each, separators=(",", ":")) + "\n" for each in events).encode()


def check(fold, path):
    """See that a fold knows what one of the whole journal knows."""
    events = read_journal(path)
    assert list(fold.attempts.values()) == fold_attempts(events)
    sessions: list[Session] = []
    for event in events:
        update_sessions(sessions, event)
    assert fold.sessions == sessions
    assert fold.suggested == [each for each in events if isinstance(each, Suggested)]
    assert fold.work == {key: value for each in events if isinstance(each, Work) for key, value in each.flops.items()}
    assert fold.share == next((each for each in reversed(events) if isinstance(each, Share)), None)


@given(
    TOLD,
    st.lists(st.tuples(st.floats(0, 1), st.sampled_from(["same", "kept", "checked"])), max_size=6),
    st.sampled_from([7, 50, 200, 1000, jsonl.BLOCK_BYTES]),
)
@example(REREAD, [(1.0, "checked")], 50)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_a_journal_that_is_read_in_pieces_says_the_same(tmp_path, monkeypatch, told, cuts, block_bytes):
    for module in (jsonl, journal_fold):
        monkeypatch.setattr(module, "BLOCK_BYTES", block_bytes)
    path, content = tmp_path / "journal.jsonl", lines_of(told)
    path.unlink(missing_ok=True)
    (tmp_path / KEPT).unlink(missing_ok=True)
    fold = Fold(path)
    for share, reader in [*sorted(cuts), (1, "same"), (1, "kept")]:
        size = int(share * len(content))
        with open(path, "ab") as file:
            file.write(content[file.tell() : size])
        fold = fold if reader == "same" else Fold(path)
        fold.update()
        if reader == "checked":
            check(fold, path)
    check(fold, path)


def whole_sweep(path, trials=5):
    with Journal.opened(path) as file:
        file.append("session", job="7", slots=2)
        for trial in range(trials):
            file.append("started", trial=f"t{trial}", attempt=1)
            for epoch in (1, 2, 3):
                file.append("epoch", trial=f"t{trial}", attempt=1, metrics={"epoch": epoch, "loss": 0.5})
            if trial < trials - 1:
                file.append("finished", trial=f"t{trial}", attempt=1, seconds=1.0, metrics={"loss": 0.5})


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "journal.jsonl"
    whole_sweep(path)
    Fold(path).update()
    return path


@pytest.fixture
def parsed(monkeypatch):
    """The lines that are parsed from now on."""
    lines, parse = [], jsonl.parse_event
    monkeypatch.setattr(jsonl, "parse_event", lambda line: lines.append(line) or parse(line))
    return lines


def test_only_what_is_new_is_read(path, parsed):
    fold = Fold(path)
    del parsed[:]  # the epochs of the trial that runs
    with Journal.opened(path) as file:
        file.append("finished", trial="t4", attempt=1, seconds=1.0, metrics={"loss": 0.25})
    fold.update().update()
    assert [each.outcome for each in fold.attempts.values()] == ["finished"] * 5
    assert len(parsed) == 1, "a plan needs no epochs"
    check(fold, path)


def test_epochs_of_trials_that_end_are_not_parsed_before_somebody_asks(path, parsed):
    (path.parent / KEPT).unlink()
    fold = Fold(path).update()
    assert len(parsed) == 1 + 4 * 2 + 1 + 3, "those of the trial that runs are"
    assert [row["epoch"] for row in fold.attempts["t0", 1].epochs] == [1, 2, 3]
    check(fold, path)


def test_the_last_metrics_of_trials_need_no_epochs(path, parsed):
    fold = Fold(path).update()
    del parsed[:]  # the epochs of the trial that runs
    assert [fold.attempts[f"t{trial}", 1].metrics for trial in range(5)] == [{"loss": 0.5}] * 4 + [{}]
    assert len(parsed) == 1 + 5 + 4, "the lines without rows, once"
    check(fold, path)


def test_what_a_trial_continued_needs_no_epochs_of_trials_with_one_attempt(path, parsed):
    with Journal.opened(path) as file:
        file.append("failed", trial="t4", attempt=1, seconds=1.0, error="boom")
        file.append("started", trial="t4", attempt=2)
        file.append("epoch", trial="t4", attempt=2, metrics={"epoch": 4, "loss": 0.5})
        file.append("finished", trial="t4", attempt=2, seconds=1.0, metrics={"loss": 0.5})
    fold = Fold(path).update()
    del parsed[:]
    assert [row["epoch"] for number in (1, 2) for row in fold.attempts["t4", number].epochs] == [1, 2, 3, 4]
    assert sum(b'"epoch"' in line and b'"t4"' not in line for line in parsed) == 0
    check(fold, path)


def test_of_a_journal_that_has_vanished_nothing_more_is_known(path):
    fold = Fold(path)
    path.unlink()
    result = fold.attempts["t0", 1]
    assert (result.outcome, result.metrics, result.epochs, result.epoch_times) == ("finished", {}, [], {})


def edited_in_place(path):
    path.write_bytes(path.read_bytes().replace(b'"t0"', b'"u0"'))


def edited_and_continued(path):
    edited_in_place(path)
    with Journal.opened(path) as file:
        file.append("finished", trial="t4", attempt=1, seconds=1.0, metrics={})


def shortened(path):
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-7]))


def replaced(path):
    whole_sweep(path.with_name("other.jsonl"), trials=9)
    path.with_name("other.jsonl").replace(path)


@pytest.mark.parametrize("change", [edited_in_place, edited_and_continued, shortened, replaced, os.unlink])
def test_what_was_kept_of_another_journal_does_not_count(path, change):
    seen = Fold(path).update()
    change(path)
    check(Fold(path).update(), path)
    if change is not edited_and_continued:  # whoever watches trusts that the driver only appends
        check(seen.update(), path)


def test_a_repaired_tail_is_read_on(path):
    with open(path, "a") as file:
        file.write('{"event":"finished","ti')
    fold = Fold(path).update()
    with Journal.opened(path) as file:
        file.append("finished", trial="t4", attempt=1, seconds=1.0, metrics={"loss": 0.25})
    check(fold.update(), path)
    check(Fold(path).update(), path)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"code": 1}', b'{"position": {"offset": "x"}}', b"\x00"])
def test_what_was_kept_and_is_damaged_does_not_count(path, content):
    (path.parent / KEPT).write_bytes(content)
    check(Fold(path).update(), path)


@pytest.mark.parametrize(("was", "becomes"), [(b"finished", b"diverged"), (b'"seconds":[1.0', b'"seconds":[9.0'),
                                              (b'"t0"', b'"t9"'), (b'"slots":2', b'"slots":3')])  # fmt: skip
def test_a_cache_with_one_value_changed_does_not_count(path, was, becomes):
    content = (path.parent / KEPT).read_bytes()
    assert was in content
    (path.parent / KEPT).write_bytes(content.replace(was, becomes, 1))
    check(Fold(path).update(), path)


def test_what_other_code_has_kept_does_not_count(path, monkeypatch, parsed):
    monkeypatch.setattr(journal_fold, "_code", lambda: "of tomorrow")
    check(Fold(path).update(), path)
    assert len(parsed) > len(read_journal(path)), "once for the fold, and once to check"


def test_a_journal_that_is_replaced_before_its_fold_is_kept_is_read_again(path, monkeypatch):
    (path.parent / KEPT).unlink()
    write = Fold._write_cache

    def replace_and_write(fold):
        edited_in_place(path)
        write(fold)

    monkeypatch.setattr(Fold, "_write_cache", replace_and_write)
    Fold(path).update()
    monkeypatch.undo()
    with Journal.opened(path) as file:
        file.append("finished", trial="t4", attempt=1, seconds=1.0, metrics={})
    check(Fold(path).update(), path)


def test_a_damaged_row_stops_nothing(path):
    with open(path, "a") as file:
        file.write('{"event":"epoch","time":17.0.1,"trial":"t4","attempt":1,"metrics":{"epoch":4}}\n')
    check(Fold(path).update(), path)


def test_a_folder_that_cannot_be_written_is_no_obstacle(path):
    (path.parent / KEPT).unlink()
    (path.parent / KEPT).mkdir()
    check(Fold(path).update(), path)
    assert not list(path.parent.glob(".*.tmp"))


def test_a_copy_of_the_folder_needs_no_second_reading(path, tmp_path, parsed):
    copy = shutil.copytree(path.parent, tmp_path.with_name(f"{tmp_path.name}-copy")) / path.name
    fold = Fold(copy).update()
    assert len(parsed) == 3, "the epochs of the trial that runs"
    check(fold, copy)


def test_small_journals_keep_nothing(tmp_path, monkeypatch):
    monkeypatch.undo()
    whole_sweep(tmp_path / "journal.jsonl")
    Fold(tmp_path / "journal.jsonl").update()
    assert not (tmp_path / KEPT).exists()


def test_a_plan_needs_no_epochs_and_who_looks_again_reads_no_more(tmp_path, parsed):
    config = check_config({"sweeps": {"s": {"command": "true {seed}", "grid": {"seed": [1, 2, 3]}}}})
    path = tmp_path / "sweeps/s/journal.jsonl"
    path.parent.mkdir(parents=True)
    names = list(plan_sweep(config, "s", tmp_path).state.trials)
    with Journal.opened(path) as file:
        for name in names[:2]:
            file.append("started", trial=name, attempt=1)
            file.append("epoch", trial=name, attempt=1, metrics={"epoch": 1, "loss": 0.5})
            file.append("finished", trial=name, attempt=1, seconds=1.0, metrics={"loss": 0.5}, heard="")
    fold = Fold(path)
    for _ in range(3):
        plan = plan_sweep(config, "s", tmp_path, fold=fold)
        assert summarize_plan(plan).startswith("sweep s: 1 of 3 trials pending")
    assert len(parsed) == 4, "the events that begin and end two attempts"
    result = plan.state.result(names[0])
    assert result is not None
    assert result.epochs == [{"epoch": 1, "loss": 0.5}]
