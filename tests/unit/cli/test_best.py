"""`trainyard best`: the answer of sweeps at any time, in the words of the summary of a run."""

import argparse

import best
import pytest
from sweep_journals import record_attempt, session_of
from trainyard.cli.run_summary import RunJob, RunSummary
from trainyard.cli.sweep_answer import answer_as_json
from trainyard.config.load import check_config, read_config
from trainyard.config.trial_status import TrialStatus
from trainyard.planning.history import read_state
from trainyard.planning.journal import SessionStarted, Started
from trainyard.results.answer import answer_sweep
from trainyard.utils.errors import UserError
from trainyard.utils.files import write_json

CONTENT = {
    "pricing": {"gpu_hour": 36},
    "sweeps": {
        "own": {"command": "train --lr {lr}", "grid": {"lr": [0.1, 0.2, 0.3]}},
        "other": {"command": "train --lr {lr}", "grid": {"lr": [1]}},
    },
}
CONFIG = check_config(CONTENT)


@pytest.fixture
def ask(tmp_path):
    """Ask for the answers of sweeps: returns the exit code."""
    config = tmp_path / "my.json"
    write_json(config, CONTENT)
    results = tmp_path / "results"
    results.mkdir()

    def call(*sweeps):
        return best.main(argparse.Namespace(config=config, results=results, sweeps=list(sweeps), json=False))

    call.results = results
    return call


def finish(results, *values, name="own"):
    """A job of one GPU finishes trials with these values."""
    with session_of(results / "sweeps" / name) as journal:
        journal.record(SessionStarted(time=0.0, job="7", slots=1, gpus=1))
        for trial, value in zip(read_state(CONFIG.sweeps[name], name, results).trials, values, strict=False):
            record_attempt(journal, trial, metrics={"rmse": value})


def files_of(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


def summary_of(results, *, interrupted=False):
    jobs = [RunJob("sweep", "own", "", "", "interrupted" if interrupted else "finished")]
    summary = RunSummary(CONFIG, results, jobs, 1.0, not interrupted, ["trainyard", "run"], interrupted=interrupted)
    summary.write_best()
    return summary.text()


@pytest.mark.parametrize("values", [(3.0, 1.0, 2.0), (3.0, 1.0)])
def test_it_says_what_a_run_says_and_writes_nothing(ask, capsys, values):
    finish(ask.results, *values)
    text = summary_of(ask.results, interrupted=len(values) < 3)
    before = files_of(ask.results)
    assert ask("own") == 0
    said = capsys.readouterr().out.splitlines()
    assert files_of(ask.results) == before
    assert len(said) > 4
    assert "  answers   " + "\n            ".join(said) + "\n" in text


def test_it_has_the_value_the_settings_what_to_paste_and_what_was_used(ask, capsys):
    finish(ask.results, 3.0, 1.0)
    _, second, _ = read_state(CONFIG.sweeps["own"], "own", ask.results).trials
    ask("own")
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == [
        "sweep own: 2 trials finished, 0 failed, 1 to run",
        f"  so far: best rmse (lowest, guessed from its name): 1, by trial {second} with lr = 0.2",
    ]
    assert "  by hand: train --lr 0.2" in lines
    assert "GPU-hours used, " in lines[-1]
    assert lines[-1].endswith(" at 36 per GPU-hour")


def test_a_best_yaml_of_another_answer_is_not_named(ask, capsys):
    finish(ask.results, 3.0)
    summary_of(ask.results, interrupted=True)
    ask("own")
    assert "its config" in capsys.readouterr().out
    finish(ask.results, 4.0, 1.0)
    ask("own")
    assert "its config" not in capsys.readouterr().out


def test_it_answers_while_a_trial_runs(ask, capsys):
    finish(ask.results, 3.0)
    _, second, third = read_state(CONFIG.sweeps["own"], "own", ask.results).trials
    with session_of(ask.results / "sweeps/own") as journal:
        record_attempt(journal, second, metrics={"rmse": 1})
        journal.record(Started(trial=third, attempt=1))
        assert ask() == 0
    said = capsys.readouterr().out
    assert "so far: best rmse (lowest, guessed from its name): 1, by" in said
    assert "sweep other: 0 trials finished, 0 failed, 1 to run\n  no trial has finished" in said


def test_without_a_best_trial_it_exits_with_1(ask, capsys):
    assert ask() == 1
    assert "no trial has finished" in capsys.readouterr().out
    with session_of(ask.results / "sweeps/own") as journal:
        for trial in read_state(CONFIG.sweeps["own"], "own", ask.results).trials:
            record_attempt(journal, trial, status=TrialStatus.FAILED, error="ValueError: no", log="a.txt")
    assert ask("own") == 1
    assert "failed: ValueError: no; see a.txt" in capsys.readouterr().out
    finish(ask.results, 1.0, name="other")
    assert ask() == 0, "one sweep has"


def test_before_a_result_the_json_has_the_metric_and_mode_of_the_config(tmp_path):
    for named in ({"metric": "auc", "mode": "min"}, {"metric": "auc"}, {}):
        config = check_config({"sweeps": {"own": CONTENT["sweeps"]["own"] | named}})
        state = read_state(config.sweeps["own"], "own", tmp_path)
        answer = answer_as_json(state, answer_sweep(state), config.pricing)
        assert {key: answer[key] for key in ("metric", "mode")} == {"metric": None, "mode": None} | named


def test_a_sweep_that_the_config_does_not_have_is_an_error(ask):
    with pytest.raises(UserError, match=r"`sweeps` has no 'onw'; known: own, other"):
        ask("own", "onw")
    assert read_config(ask.results.parent / "my.json") == CONFIG
