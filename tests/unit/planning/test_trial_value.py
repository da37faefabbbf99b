"""What ranks a trial by the `score` of its sweep: its last epoch, its best one, or a mean of the last ones."""

import os

import pytest
from sweep_journals import session_of, write_session
from trainyard.config.load import check_config
from trainyard.config.parser import ConfigError
from trainyard.config.sweep import Mean, Stop
from trainyard.config.trial_status import TrialStatus
from trainyard.config.user_programs import metrics_digest
from trainyard.planning.early_stopping import EarlyStoppingRule
from trainyard.planning.history import read_state
from trainyard.planning.journal import Ended, Epoch, Reread, Started
from trainyard.planning.search import SuggestionSource
from trainyard.planning.trial_space import TrialSpace
from trainyard.report.plotted_trials import rank_trials
from trainyard.results.answer import answer_sweep
from trainyard.results.best_config import find_files, write_best
from trainyard.results.ranking import describe_ranking, rank_sweep
from trainyard.results.sweep_tables import ranking_table, trials_table

FINISHED = TrialStatus.FINISHED
CURVES = {  # of case 03
    0.0: [0.60, 0.78, 0.88, 0.93, 0.90, 0.85, 0.79, 0.74, 0.71, 0.70],
    0.01: [0.58, 0.70, 0.80, 0.86, 0.89, 0.90, 0.90, 0.89, 0.88, 0.87],
    0.1: [0.50, 0.60, 0.68, 0.75, 0.80, 0.83, 0.85, 0.86, 0.87, 0.88],
}


def config_of(curves=CURVES, **keys):
    program = {} if "command" in keys else {"function": "os:getcwd"}
    sweep = {**program, "metric": "val_acc", "slots": {"cpus": 1}, **keys}
    return check_config({"sweeps": {"s": {"grid": {"decay": list(curves)}} | sweep}})


def rows_of(curve):
    return [{"epoch": epoch, "val_acc": value} for epoch, value in enumerate(curve, 1)]


def ran(results, curves=CURVES, *, status=FINISHED, stopped=(), final=None, **keys):
    """The state of a sweep whose trials have reported these values."""
    sweep = config_of(curves, **keys).sweeps["s"]
    with session_of(results / "sweeps/s") as journal:
        for trial, (decay, curve) in zip(read_state(sweep, "s", results).trials, curves.items(), strict=False):
            rows = rows_of(curve) if isinstance(curve, list) else curve["rows"]
            journal.record(Started(trial=trial, attempt=1))
            for row in rows:
                journal.record(Epoch(trial=trial, attempt=1, metrics=row))
            last = {name: value for name, value in rows[-1].items() if name != "epoch"} | (final or {})
            end = {"status": TrialStatus.STOPPED, "why": "asha"} if decay in stopped else {"status": status}
            journal.record(Ended(trial=trial, attempt=1, metrics=last, seconds=1.0, **end))
    return read_state(sweep, "s", results)


def described(state):
    first, *more = describe_ranking(rank_sweep(state))
    names = {trial: f"<{values.values.get('decay')}>" for trial, values in state.trials.items()}
    for name, short in names.items():
        first, more = first.replace(name, short), [line.replace(name, short) for line in more]
    return first.partition("): ")[2], more


def test_the_best_epoch_ranks_trials_and_is_named(tmp_path):
    state = ran(tmp_path, score="best")
    first, more = described(state)
    assert first == "0.93, its best, at epoch 4 of 10, by trial <0.0> with decay = 0.0"
    assert more == [
        "runner-up: 0.9, its best, at epoch 6 of 10, by trial <0.01> with decay = 0.01; "
        "with one run each, chance may have decided"
    ]
    ranking = rank_sweep(state)
    rows = ranking_table(ranking)
    assert rows["decay"].tolist() == [0.0, 0.01, 0.1]
    assert rows[["val_acc_mean", "val_acc_epoch"]].to_numpy().tolist() == [[0.93, 4], [0.9, 6], [0.88, 10]]
    trials = trials_table(state, ranking)
    assert trials[["val_acc", "val_acc_score", "val_acc_score_epoch"]].iloc[0].tolist() == [0.70, 0.93, 4]
    plotted = rank_trials(state, trials, ranking)
    assert plotted.values.tolist() == [0.93, 0.9, 0.88]
    assert plotted.value_label.endswith("(best epoch)")
    answer = answer_sweep(state)
    written = write_best(config_of(score="best"), state, answer).read_text()
    assert "0.93, its best, at epoch 4 of 10" in written.splitlines()[0]
    assert "score: best" in written


@pytest.mark.parametrize(
    ("curves", "keys", "expected"),
    [
        (CURVES, {}, "0.93, its best, at epoch 4 of 10, by trial <0.0> with decay = 0.0; 2 of 3 trials had a better"),
        (
            {0.0: [0.1, 0.2], 0.1: [0.6, 0.9, 0.8]},
            {},
            "the same; 1 of 2 trials had a better val_acc before its last epoch, the best of them 0.9 at epoch 2, by "
            "trial <0.1>",
        ),
        (
            {0: [0.1, 0.9, 0.2], 1: [0.7, 0.3], 2: [0.5, 0.5], 3: [0.4, 0.45]},
            {"args": {"seed": 0}, "repeats": 2, "grid": {"decay": [0.0, 0.1]}},
            "0.7 ± 0.28 (n = 2) with decay = 0.0; its best trial is",
        ),
    ],
)
def test_whether_the_best_epochs_would_give_another_answer_is_said(tmp_path, curves, keys, expected):
    _, more = described(ran(tmp_path, curves, **keys))
    assert more[-1].startswith(f"with `score: best`, the answer would be {expected}")
    first, _ = described(ran(tmp_path / "best", curves, score="best", **keys))
    assert "the same" in expected or f"would be {first}; " in more[-1]


def test_the_mean_of_the_last_epochs_ranks_trials(tmp_path):
    state = ran(tmp_path, score={"mean": 3})
    first, more = described(state)
    value = "0.88, the mean of its last 3 values, up to epoch 10 of 10"
    assert first == f"{value}, by trial <0.01> with decay = 0.01"
    means = ranking_table(rank_sweep(state)).set_index("decay")["val_acc_mean"]
    assert means.round(4).to_dict() == {0.01: 0.88, 0.1: 0.87, 0.0: 0.7167}
    assert len(more) == 1, "nothing about the last epoch"


def test_a_mean_of_fewer_values_is_said_and_a_nan_among_them_does_not_rank(tmp_path):
    curves = {0.0: [0.9, 0.7], 0.1: [0.1, 0.2, 0.3], 0.2: [0.9, None, 0.9]}
    state = ran(tmp_path, curves, score={"mean": 3})
    first, more = described(state)
    assert first.startswith("0.8, the mean of its last 2 values, up to epoch 2 of 2, by trial <0.0>")
    assert "1 of 3 finished trials reported val_acc fewer than 3 times: theirs is of these" in more
    assert any("NaN or infinite: 1 finished trial" in line for line in answer_sweep(state).lines)


def test_the_best_epoch_is_none_that_is_nan(tmp_path):
    state = ran(tmp_path, {0.0: [0.2, None, 0.9, 0.1], 0.1: [0.5, 0.4]}, score="best")
    assert described(state)[0].startswith("0.9, its best, at epoch 3 of 4, by trial <0.0>")
    lowest = ran(tmp_path / "b", {0.0: [0.2, None, 0.9, 0.1], 0.1: [0.5, 0.4]}, score="best", mode="min")
    assert described(lowest)[0].startswith("0.1, its best, at epoch 4 of 4, by trial <0.0>")


@pytest.mark.parametrize("score", ["best", {"mean": 2}])
def test_a_metric_that_is_reported_only_at_the_end_has_its_last_value(tmp_path, score):
    curves = {
        0.0: {"rows": [{"epoch": 1, "loss": 1.0}, {"epoch": 2, "loss": 2.0}]},
        0.1: {"rows": [{"epoch": 1, "loss": 1.0}]},
    }
    state = ran(tmp_path, curves, score=score, final={"val_acc": 0.5})
    assert described(state)[0].startswith("0.5, by trial <0.0>")


def test_a_better_value_at_the_end_is_the_best(tmp_path):
    """As of a program that evaluates its best checkpoint once more."""
    state = ran(tmp_path, {0.0: [0.1, 0.3, 0.2]}, score="best", final={"val_acc": 0.4})
    assert described(state)[0].startswith("0.4, by trial")
    same = ran(tmp_path / "b", {0.0: [0.1, 0.3, 0.2]}, score="best", final={"val_acc": 0.3})
    assert described(same)[0].startswith("0.3, its best, at epoch 2 of 3")


def test_a_worse_value_at_the_end_of_a_program_that_reports_one_epoch_is_not_the_best(tmp_path):
    state = ran(tmp_path, {0.0: [0.9]}, score="best", final={"val_acc": 0.4})
    assert described(state)[0].startswith("0.9, its best, at epoch 1 of 1")


def test_objectives_and_constraints_are_those_of_the_best_epoch(tmp_path):
    rows = [{"epoch": 1, "val_acc": 0.9, "ms": 5.0, "mib": 1}, {"epoch": 2, "val_acc": 0.8, "ms": 1.0, "mib": 9}]
    keys = {"objectives": {"val_acc": "max", "ms": "min"}, "constraints": {"mib": {"max": 4}}}
    ranking = rank_sweep(ran(tmp_path, {0.0: {"rows": rows}, 0.1: {"rows": rows[:1]}}, score="best", **keys))
    assert [trial.judged for trial in ranking.trials] == [{"val_acc": 0.9, "ms": 5.0, "mib": 1.0}] * 2
    assert not ranking.infeasible
    mean = rank_sweep(ran(tmp_path / "b", {0.0: {"rows": rows}}, score={"mean": 2}, **keys))
    assert [trial.judged for trial in mean.trials] == [{"val_acc": pytest.approx(0.85), "ms": 3.0, "mib": 5.0}]


def test_with_seeds_the_mean_is_of_the_scores(tmp_path):
    keys = {"args": {"seed": 0}, "repeats": 2, "score": "best", "grid": {"decay": [0.0]}}
    state = ran(tmp_path, {0: [0.1, 0.9, 0.2], 1: [0.7, 0.3]}, **keys)
    line = describe_ranking(rank_sweep(state))[0]
    assert line.startswith("best mean val_acc (highest, guessed from its name; of each trial the best epoch): 0.8 ±")


def test_the_epochs_of_a_resumed_trial_count(tmp_path):
    sweep = config_of({0.0: []}, score="best").sweeps["s"]
    (trial,) = read_state(sweep, "s", tmp_path).trials
    with session_of(tmp_path / "sweeps/s") as journal:
        journal.record(Started(trial=trial, attempt=1))
        for row in rows_of([0.1, 0.9, 0.95]):  # the third was after the checkpoint, and is repeated
            journal.record(Epoch(trial=trial, attempt=1, metrics=row))
        journal.record(Ended(trial=trial, attempt=1, status=TrialStatus.INTERRUPTED))
        journal.record(Started(trial=trial, attempt=2))
        for row in rows_of([0, 0, 0.5, 0.6])[2:]:
            journal.record(Epoch(trial=trial, attempt=2, metrics=row))
        journal.record(Ended(trial=trial, attempt=2, status=FINISHED, metrics={"val_acc": 0.6}, seconds=1.0))
    state = read_state(sweep, "s", tmp_path)
    assert described(state)[0].startswith("0.9, its best, at epoch 2 of 4")


def test_epochs_that_were_reported_too_fast_to_be_kept_are_said(tmp_path):
    rows = [{"epoch": epoch, "val_acc": 0.5} for epoch in (*range(1, 301), 400, 500)]
    _, more = described(ran(tmp_path, {0.0: {"rows": rows}}, score="best"))
    kept = "of which not all are kept: their best epoch is of those"
    assert more == [f"1 of 1 finished trial reported faster than one epoch a second, {kept}"]
    _, more = described(ran(tmp_path / "b", {0.0: {"rows": rows[:300]}}, score="best"))
    assert more == []
    thinned = [{"epoch": epoch, "val_acc": 0.5} for epoch in (*range(1, 801, 2), *range(801, 831))]
    _, more = described(ran(tmp_path / "c", {0.0: {"rows": thinned}}, score="best"))
    assert more == [f"1 of 1 finished trial reported faster than one epoch a second, {kept}"]


@pytest.mark.parametrize(("score", "told"), [("last", 0.2), ("best", 0.9), ({"mean": 2}, 0.55)])
def test_the_sampler_is_told_the_score(tmp_path, score, told):
    search = {"trials": 4, "values": {"decay": {"low": 0, "high": 1}}}
    state = ran(tmp_path, {0.5: [0.1, 0.9, 0.2]}, score=score, search=search, grid={"decay": [0.5]})

    class Order:
        cancelled = frozenset()

    source = SuggestionSource(state, Order())
    assert [end.metrics["val_acc"] for end in source._ends.values()] == [pytest.approx(told)]


def rule(score, mode="max"):
    return EarlyStoppingRule(Stop(method="asha", epochs=27), "val_acc", mode, score=score)


def test_early_stopping_compares_the_best_so_far():
    """The first trial was far better at its first epochs than the others are at the rung."""
    verdicts = {}
    for score in ("last", "best"):
        judge = rule(score)
        for trial in ("a", "b", "c"):
            for epoch, value in enumerate([0.5, 0.5, 0.5], 1):
                judge.on_event(Epoch(trial=trial, attempt=1, metrics={"epoch": epoch, "val_acc": value}), is_own=False)
        curve = [0.6, 0.9, 0.4]
        verdicts[score] = [judge.verdict("d", row) for row in rows_of(curve)]
    assert verdicts["last"][:2] == verdicts["best"][:2] == ["", ""]
    assert verdicts["last"][2] == "asha: rank 4 of the 4 that have reached epoch 3; the best 1 continue"
    assert verdicts["best"][2] == ""


def test_a_trial_that_has_diverged_is_the_worst_whatever_its_best():
    judge = rule("best")
    for row in rows_of([0.9, 0.9]):
        judge.verdict("a", row)
    judge.on_event(Ended(trial="a", attempt=1, status=TrialStatus.DIVERGED), is_own=True)
    assert [judge.verdict("b", row) for row in rows_of([0.9, 0.1, 0.1])][2] == ""


def test_a_rule_with_another_score_is_another_rule():
    rules = [rule(score).content for score in ("last", "best", Mean(mean=3))]
    assert "score" not in rules[0]
    assert len({str(each) for each in rules}) == 3


def test_another_score_changes_what_is_drawn_but_no_trial():
    search = {"trials": 4, "values": {"decay": {"low": 0, "high": 1}}}
    spaces = [
        TrialSpace(config_of(score=score, search=search).sweeps["s"], "digest")
        for score in ("last", "best", {"mean": 2})
    ]
    assert len({space.search_key for space in spaces}) == len({space.digest for space in spaces}) == 3
    assert len({tuple(space.trials) for space in spaces}) == 1
    without = TrialSpace(config_of(search=search).sweeps["s"], "digest")
    assert (without.search_key, without.digest) == (spaces[0].search_key, spaces[0].digest)


@pytest.mark.parametrize("score", ["bset", {"mean": 0}, {"mean": "3"}, {"mean": True}, {"median": 3}, 3, {}])
def test_a_score_that_there_is_not_is_one_error(score):
    with pytest.raises(ConfigError) as error:
        config_of(score=score)
    assert str(error.value).count("\n") <= 1
    assert f"sweeps.s.score: {score!r} is not valid; use last, best or, say, {{mean: 3}}" in str(error.value)


METRICS = {"pattern": r"(?P<epoch>\d+) (?P<val_acc>{number})"}


def saved(results, attempts, checkpoints, *, read=True, rows=None):
    """What is named of a trial: the file, by its name, or "folder".

    `attempts`: of each, its last event's time, and the time and value of each epoch. `checkpoints`: the time of each
    file. With `rows`, that is what a later reading has found, also if no driver had `read` the output.
    """
    keys = {"command": "true {decay} {trial_dir}", "metrics": METRICS, "checkpoint": "*.pt", "score": "best"}
    sweep = config_of({0.0: []}, **keys).sweeps["s"]
    (trial,) = read_state(sweep, "s", results).trials
    folder = results / "sweeps/s/trials" / trial
    folder.mkdir(parents=True, exist_ok=True)
    for name, time in checkpoints.items():
        (folder / name).write_text("weights")
        os.utime(folder / name, (time, time))
    lines = [{"event": "session", "time": 999, "slots": 1}]
    for number, (start, epochs) in enumerate(attempts, 1):
        about = {"trial": trial, "attempt": number}
        lines.append({"event": "started", "time": start, **about})
        if number > 1:
            resumed = {"name": "x", "modified_ns": int((start - 30) * 1e9), "size": 7}
            lines.append({"event": "resumed", "time": start, "checkpoint": resumed, **about})
        told = [(at, time, value) for at, (time, value) in epochs.items()]
        lines += [
            {"event": "epoch", "time": time, "metrics": {"epoch": at, "val_acc": value}, **about}
            for at, time, value in told
        ]
        last = max([start, *(time for _, time, _ in told)]) + 2
        is_last = number == len(attempts)
        digest = metrics_digest(sweep.metrics) if read else metrics_digest(None)
        end = {"event": "finished" if is_last else "interrupted", "time": last, "seconds": last - start, **about}
        metrics = {"val_acc": told[-1][2]} if told else {}
        lines.append(end | ({"metrics": metrics, "metrics_digest": digest} if is_last else {}))
    write_session(results / "sweeps/s", lines)
    state = read_state(sweep, "s", results)
    if rows:
        with session_of(results / "sweeps/s") as journal:
            reading = {"rows": rows, "metrics": {"val_acc": rows[-1]["val_acc"]}}
            reading |= {"rules": state.rules, "metrics_digest": state.metrics_digest, "outcome": FINISHED}
            journal.record(Reread(trial=trial, attempt=1, **reading))
        state = read_state(sweep, "s", results)
    found = find_files(state, rank_sweep(state))
    return "folder" if found == folder else found.name


def epochs_of(values, *, first=1, start=1000, held=True):
    """Epochs of ten seconds each; the first is reported with the second, as drivers do."""
    times = {at: start + 10 * (at - first + 1) for at in range(first, first + len(values))}
    times[first] += 10 * held
    return {at: (times[at], value) for at, value in zip(times, values, strict=True)}


def test_the_checkpoint_of_the_first_epoch_is_its_own(tmp_path):
    """The driver reports the first epoch with the second one."""
    times = {at: 1000 + 10 * at for at in (1, 2, 3, 4)}
    attempts = [(1000, epochs_of([0.9, 0.5, 0.4, 0.3]))]
    named = {f"ck_{at}.pt": time for at, time in times.items()}
    assert saved(tmp_path / "a", attempts, named) == "ck_1.pt"
    from_zero = {f"ck_{at - 1}.pt": time for at, time in times.items()}
    second = [(1000, epochs_of([0.5, 0.4, 0.9, 0.3]))]
    assert saved(tmp_path / "b", second, from_zero) == "ck_2.pt", "the third"
    steps = {f"e{at}-s{at * 7}.pt": time for at, time in times.items()}
    assert saved(tmp_path / "c", attempts, steps) == "folder", "one of two"
    assert saved(tmp_path / "d", [(1000, epochs_of([0.5, 0.9, 0.4, 0.3]))], steps) == "e2-s14.pt"
    assert saved(tmp_path / "e", attempts, {"best.pt": 1010, "last.pt": 1040}) == "best.pt"


@pytest.mark.parametrize("name", ["ck_{}.pt", "e{0}-s{0}.pt"])
def test_epochs_that_were_lost_and_repeated_tell_no_checkpoint(tmp_path, name):
    first = epochs_of([0.1] * 8)
    second = epochs_of([0.1, 0.9, 0.2, 0.2, 0.2], first=6, start=1200, held=False)
    files = {name.format(5): 1170} | {name.format(at): 1200 + 10 * (at - 5) for at in range(6, 11)}
    assert saved(tmp_path, [(1000, first), (1200, second)], files) == name.format(7)


def test_where_no_driver_has_read_an_epoch_only_numbers_tell(tmp_path):
    """It was killed, or `metrics` were added afterwards."""
    rows = rows_of([0.1, 0.2, 0.3, 0.9, 0.2])
    files = {at: 1000 + 10 * at for at in range(1, 6)}
    for folder, epochs in (("a", epochs_of([0.1, 0.2])), ("b", {})):
        keys = {"rows": rows, "read": False}
        attempts = [(1000, epochs)]
        named = {f"ck_{at}.pt": time for at, time in files.items()}
        assert saved(tmp_path / folder / "a", attempts, named, **keys) == "ck_4.pt"
        named = {f"e{at}-s{at}.pt": time for at, time in files.items()}
        assert saved(tmp_path / folder / "b", attempts, named, **keys) == "folder"


def test_the_checkpoint_of_the_best_epoch_is_named(tmp_path):
    """A save under one name each epoch has replaced it; of the others, the closest report tells the epoch."""
    metrics = {"pattern": r"(?P<epoch>\d+) (?P<val_acc>{number})"}
    keys = {"command": "true {decay} {trial_dir}", "metrics": metrics, "checkpoint": "*.pt", "score": "best"}
    sweep = config_of({0.0: []}, **keys).sweeps["s"]
    (trial,) = read_state(sweep, "s", tmp_path).trials
    about = {"trial": trial, "attempt": 1}
    lines = [{"event": "session", "time": 999, "slots": 1}, {"event": "started", "time": 1000, **about}]
    rows = rows_of([0.1, 0.9, 0.2, 0.3])
    lines += [{"event": "epoch", "time": 1000 + 10 * row["epoch"], "metrics": row, **about} for row in rows]
    end = {"event": "finished", "time": 1041, "metrics": {"val_acc": 0.3}, "seconds": 41, **about}
    write_session(tmp_path / "sweeps/s", [*lines, end | {"metrics_digest": metrics_digest(sweep.metrics)}])
    state = read_state(sweep, "s", tmp_path)
    folder = state.folder / "trials" / f"{trial}"
    folder.mkdir(parents=True)

    def save(name, time):
        (folder / name).write_text("weights")
        os.utime(folder / name, (time, time))

    save("last.pt", 1040.5)
    assert find_files(state, rank_sweep(state)) == folder, "it is of the last epoch"
    save("epoch-1.pt", 1010.5)
    assert find_files(state, rank_sweep(state)) == folder / "epoch-1.pt"
    save("epoch-2.pt", 1019.5)
    save("epoch-3.pt", 1029.5)  # before it is reported
    assert find_files(state, rank_sweep(state)) == folder / "epoch-2.pt"
    save("best.pt", 1019.2)
    assert find_files(state, rank_sweep(state)) == folder / "best.pt"


@pytest.mark.parametrize(("score", "value"), [("last", 0.4), ("best", 0.9)])
def test_a_program_that_trains_several_times_is_said_with_what_counts(tmp_path, score, value):
    """As of a command `python a.py && python b.py`, or for each fold of a cross-validation."""
    rows = [*rows_of([0.7, 0.9, 0.8]), *rows_of([0.3, 0.5, 0.4])]
    state = ran(tmp_path, {0.0: {"rows": rows}, 0.1: [0.1, 0.2, 0.3]}, score=score)
    ranking = rank_sweep(state)
    first, *_ = state.trials
    assert ranking.best_trial.score == ranking.best_trial.judged.get("val_acc", value) == value
    assert describe_ranking(ranking)[1] == (
        f"1 of 2 finished trials report an earlier epoch again, as trial {first} after epoch 3: if their programs "
        f"train several times, the {score} epoch of all trainings counts; have them print the one value to rank by at "
        "the end, under another name"
    )


def test_a_program_whose_last_line_is_of_an_earlier_epoch_is_said(tmp_path):
    """As `restored epoch 2 val_acc 0.9`, which a pattern for epochs finds, too."""
    rows = [*rows_of([0.7, 0.9, 0.8]), {"epoch": 2, "val_acc": 0.9}]
    state = ran(tmp_path, {0.0: {"rows": rows}, 0.1: [0.1, 0.2, 0.3]})
    assert any("report an earlier epoch again" in line for line in describe_ranking(rank_sweep(state)))


def test_the_metrics_of_the_best_epoch_are_those_of_its_own_training(tmp_path):
    rows = [{"epoch": epoch, "val_acc": acc, "ms": acc * 10} for acc in (0.9, 0.4) for epoch in (1, 2)]
    keys = {"score": "best", "objectives": {"val_acc": "max", "ms": "min"}}
    assert rank_sweep(ran(tmp_path, {0.0: {"rows": rows}}, **keys)).trials[0].judged == {"val_acc": 0.9, "ms": 9.0}


def test_a_better_trial_that_was_stopped_early_is_said(tmp_path):
    """The best one was better when the other was stopped, and has got worse since."""
    curves = {0.0: [0.6, 0.9, 0.7], 0.01: [0.5, 0.8], 0.1: [0.4, 0.6]}
    state = ran(tmp_path, curves, stopped=(0.01, 0.1), stop={"method": "asha", "epochs": 3})
    first, more = described(state)
    assert first.startswith("0.7 at its last epoch, 3 of 3, by trial <0.0>")
    assert more[-1] == (
        "1 trial stopped early had a better val_acc than trial <0.0>, the best of them 0.8 at its last epoch, 2 of 2, "
        "trial <0.01> with decay = 0.01"
    )
