"""Corrected `metrics` apply to the kept output of all attempts, also of those that a later one continued."""

import json

import pytest
from sweep_journals import journal_text, record_attempt, session_of
from trainyard.config.load import check_config
from trainyard.config.sweep import Stop
from trainyard.config.trial_status import TrialStatus
from trainyard.packing.saved_outputs import read_outputs, record_completed
from trainyard.planning.attempts import ReportedEpochs, epochs_before
from trainyard.planning.journal import Ended, Epoch, Journal, Resumed, Started, journal_files
from trainyard.planning.plan import plan_sweep
from trainyard.programs.metric_rows import find_divergence
from trainyard.programs.runner import CheckpointFile
from trainyard.results.comparability import describe_finished_work
from trainyard.results.completeness import check_sweep, summarize_sweep
from trainyard.results.ranking import rank_sweep

# The second attempt resumes from epoch 2.
OUTPUTS = ("epoch 1 acc=0.1\nepoch 2 acc=0.2\nepoch 3 acc=0.3\n", "epoch 3 acc=0.5\nepoch 4 acc=0.6\n")
PATTERN = r"epoch (?P<epoch>\d+) acc=(?P<acc>{number})"


def state_with(results, **metrics):
    sweep = {"command": "python3 p.py", "checkpoint": "*.pt", "resume": "{resume_from}", "metrics": metrics}
    return plan_sweep(check_config({"sweeps": {"s": sweep}}), "s", results).state


def swept(results, *outputs, **metrics):
    """A sweep of a trial whose first attempt was interrupted and continued by the second; returns its identity."""
    state = state_with(results, **metrics)
    (trial,) = state.trials
    with session_of(results / "sweeps/s") as journal:
        first, second = {"trial": trial, "attempt": 1}, {"trial": trial, "attempt": 2}
        started = journal.record(Started(**first))
        journal.record(Ended(**first, status=TrialStatus.INTERRUPTED, ended=started.time + 100))
        journal.record(Started(**second))
        kept = CheckpointFile("c.pt", int(started.time * 1e9) + 1_000_000, 1)
        journal.record(Resumed(**second, checkpoint=kept._asdict()))
        journal.record(Ended(**second, status=TrialStatus.UNREADABLE, error="it reported no metrics", seconds=9.0))
    for number, text in enumerate(outputs, 1):
        path = results / "sweeps/s/trials" / trial / f"output-{number}.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return trial


def reread(results, **metrics):
    """The state after the outputs were read again."""
    with session_of(results / "sweeps/s") as journal:
        read_outputs(journal, state_with(results, **metrics))
    return state_with(results, **metrics)


def test_the_epochs_of_continued_attempts_are_read_again_too(tmp_path):
    trial = swept(tmp_path, *OUTPUTS, pattern="acc:(?P<acc>{number})")
    state = reread(tmp_path, pattern=PATTERN)
    record = state.record(trial)
    assert record.result.metrics == {"acc": 0.6}
    rows = [{"epoch": e, "acc": a} for e, a in [(1, 0.1), (2, 0.2), (3, 0.5), (4, 0.6)]]
    assert record.epochs_of(record.result) == rows
    assert [each.outcome for each in record.attempts] == [TrialStatus.INTERRUPTED, TrialStatus.FINISHED]
    assert not state.unread


def test_a_line_that_an_ended_program_could_not_complete_is_not_read_again(tmp_path):
    """Its number may be cut off: 0.2 of 0.25, say."""
    trial = swept(tmp_path, "epoch 1 acc=0.1\nepoch 2 acc=0.2", OUTPUTS[1].strip(), pattern="acc:(?P<acc>{number})")
    state = reread(tmp_path, pattern=PATTERN)
    epochs = state.record(trial).epochs_of(state.record(trial).result)
    assert epochs == [{"epoch": e, "acc": a} for e, a in [(1, 0.1), (3, 0.5), (4, 0.6)]]


def test_rows_without_an_epoch_are_numbered_after_those_up_to_the_checkpoint(tmp_path):
    trial = swept(tmp_path, "acc=0.1\nacc=0.2\nacc=0.3\n", "acc=0.5\nacc=0.6\n", pattern="acc:(?P<acc>{number})")
    (path,) = journal_files(tmp_path / "sweeps/s")
    first, interrupted, second, resumed, end, _ = map(json.loads, path.read_text().splitlines())
    saved = first["time"] + 20.5  # a bit after the second epoch
    rows = [
        {
            "event": "epoch",
            "trial": trial,
            "attempt": 1,
            "time": first["time"] + 10 * epoch,
            "metrics": {"epoch": epoch, "acc": 0.0},
        }
        for epoch in (1, 2, 3)
    ]
    resumed["checkpoint"]["modified_ns"] = int(saved * 1e9)
    times = {"interrupted": first["time"] + 31, "rest": first["time"] + 40}
    events = [first, *rows, interrupted | {"time": times["interrupted"]}]
    events += [each | {"time": times["rest"]} for each in (second, resumed, end)]
    path.write_text("".join(json.dumps(event) + "\n" for event in events))
    state = reread(tmp_path, pattern="acc=(?P<acc>{number})")
    epochs = state.record(trial).epochs_of(state.record(trial).result)
    assert epochs == [{"epoch": e, "acc": a} for e, a in [(1, 0.1), (2, 0.2), (3, 0.5), (4, 0.6)]]


@pytest.mark.parametrize(("seconds", "epochs"), [(5, 0), (15, 1), (19, 2), (22, 2), (99, 3), (104, 2), (125, 4)])
def test_the_closest_report_tells_how_many_epochs_are_in_a_checkpoint(seconds, epochs):
    """The second attempt, which resumed after two epochs, has the checkpoints of its own time."""
    attempts = [
        ReportedEpochs(0.0, 0, [(11.0, 1), (20.0, 2), (30.0, 3)]),
        ReportedEpochs(100.0, 2, [(110.0, 3), (120.0, 4)]),
    ]
    assert epochs_before(attempts, CheckpointFile("c.pt", seconds * 1_000_000_000, 1)) == epochs


def test_a_program_with_nothing_left_to_do_has_the_metrics_of_the_attempt_that_it_continued(tmp_path):
    trial = swept(tmp_path, OUTPUTS[0], "nothing left to do\n", pattern="acc:(?P<acc>{number})")
    assert reread(tmp_path, pattern=PATTERN).record(trial).result.metrics == {"acc": 0.3}


@pytest.mark.parametrize("repeated", [OUTPUTS[1], ""], ids=["appends", "has nothing left to do"])
def test_a_file_that_a_resumed_program_appends_to_has_each_epoch_once(tmp_path, repeated):
    trial = swept(tmp_path, "", "", file="wrong.csv")
    rows = [line.split() for line in (OUTPUTS[0] + repeated).splitlines()]
    text = "".join(f"{row[1]},{row[2][4:]}\n" for row in rows)
    (tmp_path / "sweeps/s/trials" / trial / "m.csv").write_text("epoch,acc\n" + text)
    state = reread(tmp_path, file="m.csv")
    epochs = state.record(trial).epochs_of(state.record(trial).result)
    assert [row["epoch"] for row in epochs] == list(range(1, len(epochs) + 1))
    assert epochs[-1]["acc"] == (0.6 if repeated else 0.3)


def test_a_trial_that_failed_after_it_had_diverged_has_failed_if_its_values_were_read_wrongly(tmp_path):
    (trial,) = state_with(tmp_path, pattern=PATTERN).trials
    with session_of(tmp_path / "sweeps/s") as journal:
        journal.record(Started(trial=trial, attempt=1))
        diverged = {"status": TrialStatus.DIVERGED, "error": "acc became NaN or infinite", "failure": "exit code 1: no"}
        journal.record(Ended(trial=trial, attempt=1, **diverged))
    output = tmp_path / "sweeps/s/trials" / trial / "output-1.log"
    output.parent.mkdir(parents=True)
    output.write_text(OUTPUTS[0])
    (attempt,) = reread(tmp_path, pattern=PATTERN).record(trial).attempts
    assert (attempt.outcome, attempt.error, attempt.failure) == (TrialStatus.FAILED, "exit code 1: no", "")


def test_reading_an_interrupted_attempt_again_drops_no_epoch_that_it_had_time_for(tmp_path, monkeypatch):
    """An interrupted attempt records no seconds: this one ran for 100, from its start to its end."""
    trial = swept(tmp_path, *OUTPUTS, pattern="acc:(?P<acc>{number})")
    monkeypatch.setattr("trainyard.programs.metrics.BURST_ROWS", 1)
    monkeypatch.setattr("trainyard.programs.metrics.ROWS_PER_SECOND", 0.02)
    state = reread(tmp_path, pattern=PATTERN)
    assert [row["epoch"] for row in state.record(trial).attempts[0].epochs] == [1, 2, 3]


def test_a_driver_that_is_killed_between_two_outputs_reads_both_again(tmp_path, monkeypatch):
    trial = swept(tmp_path, *OUTPUTS, pattern="acc:(?P<acc>{number})")
    record, recorded = Journal.record, []

    def record_once(journal, event, **options):
        if recorded:
            raise KeyboardInterrupt
        recorded.append(event)
        return record(journal, event, **options)

    with monkeypatch.context() as killed:
        killed.setattr(Journal, "record", record_once)
        with pytest.raises(KeyboardInterrupt):
            reread(tmp_path, pattern=PATTERN)
    state = reread(tmp_path, pattern=PATTERN)
    assert [row["epoch"] for row in state.record(trial).epochs_of(state.record(trial).result)] == [1, 2, 3, 4]


TRAIN, VAL, NEITHER = ("train loss (?P<loss>{number})", "val loss (?P<loss>{number})", "x (?P<loss>{number})")
LOSSES = {"train": "train loss 0.01\n", "both": "train loss 0.2\nval loss 0.3\ntrain last loss 0.1\n"}


def plan_of_losses(results, pattern, **more):
    """The plan of two trials, of which one prints no `val loss`."""
    sweep = {"command": "./p {x}", "grid": {"x": list(LOSSES)}, "metrics": {"pattern": pattern}, "metric": "loss"}
    return plan_sweep(check_config({"sweeps": {"s": sweep | more}}), "s", results)


def write_losses(results, *statuses, rule=None):
    """Both trials have ended so, and their output was read with the pattern TRAIN."""
    state = plan_of_losses(results, TRAIN).state
    with session_of(results / "sweeps/s") as journal:
        for (trial, known), status in zip(state.trials.items(), statuses, strict=True):
            text = LOSSES[known.values["x"]]
            digest = state.sweep.metrics.digest
            end = {"metrics": {"loss": float(text.split()[2])}, "seconds": 1.0, "metrics_digest": digest}
            stop = {"why": "asha: rank 2", "rule": rule} if status == TrialStatus.STOPPED else {}
            record_attempt(journal, trial, status=status, **end, **stop)
            path = results / "sweeps/s/trials" / trial / "output-1.log"
            path.parent.mkdir(parents=True)
            path.write_text(text)
    return list(state.trials)


def read_losses_again(results, pattern, **more):
    with session_of(results / "sweeps/s") as journal:
        read_outputs(journal, plan_of_losses(results, pattern, **more).state)
    return plan_of_losses(results, pattern, **more).state


def test_after_a_change_of_metrics_only_what_they_find_counts(tmp_path, caplog):
    """A trial without a validation loss kept its training loss of 0.01, and won."""
    only_train, both = write_losses(tmp_path, TrialStatus.FINISHED, TrialStatus.FINISHED)
    assert rank_sweep(plan_of_losses(tmp_path, TRAIN).state).best_trial.trial == only_train
    before = plan_of_losses(tmp_path, VAL).state
    assert rank_sweep(before).scores == {only_train: None, both: None}, "values by former `metrics` are no answer"
    assert summarize_sweep(before).endswith("0 failed, 2 outputs to re-read by the present `metrics`")
    state = read_losses_again(tmp_path, VAL)
    assert rank_sweep(state).scores == {only_train: None, both: 0.3}
    assert (state.unfinished, summarize_sweep(state)) == ([], "sweep s: 1 trial finished, 1 without metrics, 0 failed")
    check_sweep(state)
    assert "1 of 2 trials have no metrics" in caplog.text
    assert rank_sweep(read_losses_again(tmp_path, TRAIN)).scores == {only_train: 0.01, both: 0.2}


def test_what_cannot_be_read_again_because_its_output_is_gone_counts_under_the_former_metrics_only(tmp_path, caplog):
    trials = write_losses(tmp_path, TrialStatus.FINISHED, TrialStatus.FINISHED)
    (tmp_path / "sweeps/s/trials" / trials[0] / "output-1.log").unlink()
    state = read_losses_again(tmp_path, VAL)
    assert rank_sweep(state).scores == {trials[0]: None, trials[1]: 0.3}
    assert (state.unfinished, summarize_sweep(state)) == ([], "sweep s: 1 trial finished, 1 without metrics, 0 failed")
    check_sweep(state)
    assert f"the first, {trials[0]}: its output, which was read with other `metrics`, is gone" in caplog.text
    assert rank_sweep(plan_of_losses(tmp_path, TRAIN).state).scores[trials[0]] == 0.01


def test_a_job_is_needed_to_find_that_all_outputs_are_gone(tmp_path):
    """Without one, the tables of a sweep with several jobs would have the values by the former `metrics`."""
    trials = write_losses(tmp_path, TrialStatus.FINISHED, TrialStatus.FINISHED)
    for trial in trials:
        (tmp_path / "sweeps/s/trials" / trial / "output-1.log").unlink()
    assert plan_of_losses(tmp_path, TRAIN).state.unread_count == 0
    assert plan_of_losses(tmp_path, VAL).state.unread_count == 2
    state = read_losses_again(tmp_path, VAL)
    assert (rank_sweep(state).scores, state.unread_count, state.unfinished) == (dict.fromkeys(trials), 0, [])


@pytest.mark.parametrize(
    ("patterns", "outcome"),
    [
        (["train (?:last )?loss (?P<loss>{number})"], TrialStatus.STOPPED),  # the same value, and a later one
        ([NEITHER], TrialStatus.UNREADABLE),
        ([NEITHER, TRAIN], TrialStatus.STOPPED),
        ([VAL], TrialStatus.INTERRUPTED),
        ([NEITHER, VAL], TrialStatus.INTERRUPTED),
    ],
)
def test_a_trial_that_was_stopped_by_other_values_than_metrics_find_now_goes_on(tmp_path, patterns, outcome):
    stop = {"method": "asha"}
    rule = Stop.model_validate(stop).rule("loss", "min")
    _, stopped = write_losses(tmp_path, TrialStatus.FINISHED, TrialStatus.STOPPED, rule=rule)
    for pattern in patterns:
        state = read_losses_again(tmp_path, pattern, stop=stop, metric="loss")
    assert state.record(stopped).last.outcome == outcome
    assert state.unfinished == [stopped] * (outcome == TrialStatus.INTERRUPTED)


def test_what_a_killed_driver_had_not_read_is_read_before_the_trial_goes_on(tmp_path):
    """It had read epochs 1 and 2; the output goes on until epoch 3, and then there is a part of a line."""
    (trial,) = state_with(tmp_path, pattern=PATTERN).trials
    with session_of(tmp_path / "sweeps/s") as journal:
        started = journal.record(Started(trial=trial, attempt=1))
        for epoch in (1, 2):
            journal.record(Epoch(trial=trial, attempt=1, metrics={"epoch": epoch, "acc": epoch / 10}))
        journal.record(Ended(trial=trial, attempt=1, status=TrialStatus.INTERRUPTED, ended=started.time + 9))
    output = tmp_path / "sweeps/s/trials" / trial / "output-1.log"
    output.parent.mkdir(parents=True)
    output.write_text(OUTPUTS[0] + "epoch 4 acc=0.")
    state = reread(tmp_path, pattern=PATTERN)
    (attempt,) = state.record(trial).attempts
    assert attempt.epochs == [{"epoch": epoch, "acc": epoch / 10} for epoch in (1, 2, 3)]
    assert attempt.epoch_times[2] < attempt.epoch_times[3] == attempt.end
    assert (attempt.outcome, state.unfinished, state.unread) == (TrialStatus.INTERRUPTED, [trial], [])


@pytest.mark.parametrize(
    ("output", "recorded", "outcome"),
    [
        ("loss=0.5\n", "loss=0.5\n", "finished"),
        ("loss=0.5\n", None, "interrupted"),
        ("loss=0.", "loss=0.5\n", "interrupted"),
        ("ready\n", "ready\n", "unreadable"),
    ],
    ids=["whole", "no record", "output cut off", "no metrics"],
)
def test_a_program_that_had_ended_while_its_driver_was_stopped_has_its_result(tmp_path, output, recorded, outcome):
    state = state_with(tmp_path, pattern="loss=(?P<loss>{number})")
    (trial,) = state.trials
    attempt = {"trial": trial, "attempt": 1}
    with session_of(tmp_path / "sweeps/s") as journal:
        began = journal.record(Started(**attempt)).time
        journal.record(Ended(**attempt, status=TrialStatus.INTERRUPTED, ended=began + 9))
    log = tmp_path / "sweeps/s/trials" / trial / "output-1.log"
    log.parent.mkdir(parents=True)
    log.write_text(output)
    if recorded:
        log.with_suffix(".ended").write_text(json.dumps({"bytes": len(recorded), "seconds": 7.0}))
    state = state_with(tmp_path, pattern="loss=(?P<loss>{number})")
    with session_of(tmp_path / "sweeps/s") as journal:
        ends = record_completed(journal, state, state.unfinished)
    assert [event.status for event, _ in ends] == ([] if outcome == "interrupted" else [outcome])
    state = state_with(tmp_path, pattern="loss=(?P<loss>{number})")
    last = state.record(trial).last
    assert (last.outcome, last.number, last.end) == (outcome, 1, began + 9), "it ended before that was recorded"
    if outcome == "finished":
        assert (state.record(trial).result.metrics, last.seconds, last.epochs[0]["loss"]) == ({"loss": 0.5}, 7.0, 0.5)


def test_a_program_that_stopped_half_way_while_its_driver_was_stopped_is_not_complete(tmp_path):
    """Its own output says 4 of 10: who takes over its result knows that, too, and so does who reads the journals."""
    state = state_with(tmp_path, pattern="loss=(?P<loss>{number})")
    (trial,) = state.trials
    output = "".join(f"iteration {number}/10 loss=0.5\n" for number in range(1, 5))
    with session_of(tmp_path / "sweeps/s") as journal:
        journal.record(Started(trial=trial, attempt=1))
        journal.record(Ended(trial=trial, attempt=1, status=TrialStatus.INTERRUPTED))
    log = tmp_path / "sweeps/s/trials" / trial / "output-1.log"
    log.parent.mkdir(parents=True)
    log.write_text(output)
    log.with_suffix(".ended").write_text(json.dumps({"bytes": len(output), "seconds": 7.0}))
    state = state_with(tmp_path, pattern="loss=(?P<loss>{number})")
    with session_of(tmp_path / "sweeps/s") as journal:
        record_completed(journal, state, state.unfinished)
    for known in (state, state_with(tmp_path, pattern="loss=(?P<loss>{number})")):
        (line,) = describe_finished_work(known)
        assert line.endswith(
            f"trial {trial} at iteration 4 of 10; `complete` says when they are, and they go on until then"
        )


@pytest.mark.parametrize(("metric", "outcome"), [("acc", "finished"), ("speed", "unreadable")])
def test_a_metric_that_cannot_be_read_concerns_the_trial_only_if_it_ranks(tmp_path, metric, outcome):
    sweep = {
        "command": "python3 p.py",
        "metric": metric,
        "metrics": {"pattern": "acc=(?P<acc>{number}) speed=(?P<speed>{number})"},
    }
    checked = check_config({"sweeps": {"s": sweep}})
    (trial,) = plan_sweep(checked, "s", tmp_path).state.trials
    with session_of(tmp_path / "sweeps/s") as journal:
        journal.record(Started(trial=trial, attempt=1))
        journal.record(Ended(trial=trial, attempt=1, status=TrialStatus.UNREADABLE, error="", seconds=9.0))
    log = tmp_path / "sweeps/s/trials" / trial / "output-1.log"
    log.parent.mkdir(parents=True)
    log.write_text("acc=50% speed=1,0\nacc=60% speed=2.0\n")
    with session_of(tmp_path / "sweeps/s") as journal:
        read_outputs(journal, plan_sweep(checked, "s", tmp_path).state)
    state = plan_sweep(checked, "s", tmp_path).state
    last = state.record(trial).last
    assert (last.outcome, last.metrics, last.units) == (outcome, {"acc": 0.6}, {"acc": "%"})
    assert ("'1' of '1,0' for speed" in last.error) == (outcome == "unreadable")


def test_a_reading_counts_under_its_own_rules_in_whichever_order_journals_are_read(tmp_path):
    """And what was restored was read once."""
    trials = write_losses(tmp_path, TrialStatus.FINISHED, TrialStatus.FINISHED)
    scores = {trials[0]: None, trials[1]: 0.3}
    read_losses_again(tmp_path, VAL)
    assert rank_sweep(read_losses_again(tmp_path, TRAIN)).scores == {trials[0]: 0.01, trials[1]: 0.2}
    for _ in range(2):  # by two drivers that start at once
        assert rank_sweep(read_losses_again(tmp_path, VAL)).scores == scores
    assert journal_text(tmp_path / "sweeps/s").count('"reread"') == 2
    (tmp_path / "sweeps/s/trials" / trials[1] / "output-1.log").unlink()
    assert rank_sweep(plan_of_losses(tmp_path, VAL).state).scores == scores


def test_what_has_diverged_by_a_metric_has_done_so_whenever_it_is_monitored(tmp_path):
    pattern = "a=(?P<a>{number}) b=(?P<b>{number})"

    def plan(metric):
        sweep = {"command": "./p", "metrics": {"pattern": pattern}, "metric": metric}
        return plan_sweep(check_config({"sweeps": {"s": sweep}}), "s", tmp_path)

    state = plan("a").state
    (trial,) = state.trials
    with session_of(tmp_path / "sweeps/s") as journal:
        error = find_divergence({"a": None}, ["a"])
        record_attempt(journal, trial, status=TrialStatus.DIVERGED, error=error, metrics_digest=state.metrics_digest)
    output = tmp_path / "sweeps/s/trials" / trial / "output-1.log"
    output.parent.mkdir(parents=True)
    output.write_text("a=nan b=0.5\n")
    for metric, status in (("a", "diverged"), ("b", "finished"), ("a", "diverged"), ("b", "finished")):
        with session_of(tmp_path / "sweeps/s") as journal:
            read_outputs(journal, plan(metric).state)
        assert plan(metric).state.record(trial).status == status


def test_another_metric_of_an_output_that_was_read_and_is_gone_has_its_value(tmp_path):
    """Whatever ranks the trials, the same `metrics` find the same values."""

    def plan(metric, pattern="a=(?P<a>{number}) b=(?P<b>{number})"):
        sweep = {"command": "./p", "metrics": {"pattern": pattern}, "metric": metric}
        return plan_sweep(check_config({"sweeps": {"s": sweep}}), "s", tmp_path).state

    former = plan("a", "A=(?P<a>{number}) b=(?P<b>{number})")
    (trial,) = former.trials
    path = tmp_path / "sweeps/s/trials" / trial / "output-1.log"
    path.parent.mkdir(parents=True)
    path.write_text("A=0.7 a=0.1 b=0.5\n")
    with session_of(tmp_path / "sweeps/s") as journal:
        known = {"metrics": {"a": 0.7, "b": 0.5}, "metrics_digest": former.metrics_digest}
        record_attempt(journal, trial, status=TrialStatus.FINISHED, **known)
        read_outputs(journal, plan("a"))
        path.unlink()
        read_outputs(journal, plan("b"))
    for metric in ("a", "b"):
        assert plan(metric).record(trial).result.metrics == {"a": 0.1, "b": 0.5}
