"""The progress of sweeps, as `status.py` shows it."""

import io
import json
import os
import signal
import time
from argparse import Namespace
from contextlib import nullcontext
from pathlib import Path

import psutil
import pytest
import status
from rich.console import Console
from sweep_journals import record_attempt, session_of
from trainyard.cli.progress import describe_other_run, describe_progress, sweep_has_ended
from trainyard.cli.status_view import status_view
from trainyard.cli.workflow import Workflow
from trainyard.cluster import host
from trainyard.cluster.slurm_queries import parse_user_job
from trainyard.config.load import as_given, check_config, config_copy
from trainyard.config.trial_status import TrialStatus
from trainyard.packing.session_watch import beat_file
from trainyard.planning.added_trials import announce_config, announce_end
from trainyard.planning.attempts import Fold
from trainyard.planning.history import read_state
from trainyard.planning.job_marks import RUN
from trainyard.planning.journal import Journal
from trainyard.planning.plan import plan_sweep
from trainyard.utils.errors import UserError
from trainyard.utils.files import write_json
from trainyard.utils.text import format_duration

CONFIG = check_config({"sweeps": {"s": {"command": "x {seed}", "grid": {"seed": [1, 2, 3, 4]}}}})


def shown(results, config=CONFIG):
    """The words of the view from the row of the sweep on."""
    console = Console(width=200, file=io.StringIO())
    console.print(status_view(config, results, {"s": Fold(results / "sweeps/s")}))
    words = console.file.getvalue().split()
    return words[words.index("s") :]


def test_a_sweep_has_its_jobs_in_the_queue_beside_it_and_its_progress_as_one_line(tmp_path):
    line = "7|{}|2026-11-22T03:41:24|{}|rule_sweep_wildcards_{}|/home"
    jobs = [parse_user_job(line.format(*each)) for each in (("PENDING", "Priority", "s"), ("RUNNING", "None", "t"))]
    fold = {"s": Fold(tmp_path / "sweeps/s")}
    console = Console(width=200, file=io.StringIO())
    console.print(status_view(CONFIG, tmp_path, fold, jobs=jobs))
    assert "sweep s: 1 job pending: Priority\n" in console.file.getvalue()
    first, second, third, _ = plan_sweep(CONFIG, "s", tmp_path).state.trials
    now = time.time()
    with Journal.of_new_session(tmp_path / "sweeps/s") as journal:
        journal.write({"event": "session", "time": now - 10, "job": "1", "slots": 1})
        record_attempt(journal, first)
        record_attempt(journal, second, status=TrialStatus.FAILED, error="no")
        journal.write({"event": "started", "time": now, "trial": third, "attempt": 1, "slot": "0"})
    (progress,) = describe_progress(CONFIG, tmp_path, fold)
    assert progress.startswith("sweep s: 1 of 4 trials done, 1 running, 1 failed, time left ")


def test_a_sweep_that_is_complete_makes_no_progress(tmp_path):
    with session_of(tmp_path / "sweeps/s") as journal:
        for trial in plan_sweep(CONFIG, "s", tmp_path).state.trials:
            record_attempt(journal, trial)
    assert describe_progress(CONFIG, tmp_path, {"s": Fold(tmp_path / "sweeps/s")}) == []


@pytest.mark.parametrize(("slots", "minutes"), [(2, 40 + 100), (1, 40 + 40 + 100), (3, 100)])
def test_the_time_left_leaves_out_what_running_trials_have_run_on_the_slots_of_the_job(tmp_path, slots, minutes):
    done, second, third, _ = plan_sweep(CONFIG, "s", tmp_path).state.trials
    now = time.time()
    with Journal.of_new_session(tmp_path / "sweeps/s") as journal:
        journal.write({"event": "session", "time": now - 9660, "job": "1", "slots": slots})
        journal.write({"event": "started", "time": now - 9660, "trial": done, "attempt": 1})
        journal.write({"event": "finished", "time": now - 3660, "trial": done, "attempt": 1, "seconds": 6000.0})
        for slot, trial in enumerate((second, third)):
            journal.write({"event": "started", "time": now - 3600, "trial": trial, "attempt": 1, "slot": str(slot)})
    left = " ".join(shown(tmp_path)[8:12])
    assert left in {format_duration(60 * each) for each in (minutes, minutes - 1)}


@pytest.mark.parametrize(
    ("driver", "is_running"),
    [
        ({}, True),
        ({"node": "elsewhere", "process": 1}, True),
        ({"node": host.node_name(), "process": os.getpid(), "time": psutil.Process().create_time() + 1}, True),
        ({"node": host.node_name(), "process": 2**22}, False),  # no process can have this number
        ({"node": host.node_name(), "process": os.getpid(), "time": psutil.Process().create_time() - 1000}, False),
        ({"walltime_seconds": 8000, "lead_seconds": 10}, True),
        ({"walltime_seconds": 7000, "lead_seconds": 10}, False),
        ({"walltime_seconds": 7250, "lead_seconds": 200}, False),
        ({"walltime_seconds": 1000, "lead_seconds": 10}, True),
    ],
    ids=["unknown", "other node", "runs", "ended", "other process", "in time", "late", "late by its lead", "extended"],
)
def test_trials_of_a_killed_driver_do_not_run(tmp_path, driver, is_running):
    """It could record no end. Once the walltime has passed, or if its process on this node is gone, it has ended."""
    done, second, _, _ = plan_sweep(CONFIG, "s", tmp_path).state.trials
    now = time.time()
    with Journal.of_new_session(tmp_path / "sweeps/s") as journal:
        journal.write({"event": "session", "time": now - 7200, "job": "1", "slots": 1} | driver)
        journal.write({"event": "started", "time": now - 7200, "trial": done, "attempt": 1})
        journal.write({"event": "finished", "time": now - 3600, "trial": done, "attempt": 1, "seconds": 3600.0})
        journal.write({"event": "started", "time": now - 3600, "trial": second, "attempt": 1, "slot": "0"})
    row = shown(tmp_path)
    finished, running, pending = ("1", "1", "2") if is_running else ("1", "0", "3")
    assert row[1:8] == [finished, "0", "0", running, "0", pending, "4"]
    assert ("killed" in row) == is_running


def test_the_best_so_far_is_shown_once_there_is_one(tmp_path):
    assert "best" not in shown(tmp_path)
    first, second, _, _ = plan_sweep(CONFIG, "s", tmp_path).state.trials
    with session_of(tmp_path / "sweeps/s") as journal:
        for trial, value in ((first, 0.5), (second, 0.25)):
            record_attempt(journal, trial, metrics={"rmse": value})
    words = " ".join(shown(tmp_path))
    assert "sweep s: best mean rmse (lowest, guessed from its name): 0.375" in words


def test_a_sweep_has_ended_with_its_last_trial_or_with_the_run_that_was_to_run_it(tmp_path, monkeypatch):
    def is_over():
        return sweep_has_ended(read_state(CONFIG.sweeps["s"], "s", tmp_path))

    def finish(*trials):
        with session_of(tmp_path / "sweeps/s") as journal:
            for trial in trials:
                record_attempt(journal, trial, metrics={"rmse": 1.0})

    first, *others = read_state(CONFIG.sweeps["s"], "s", tmp_path).trials
    assert not is_over(), "nothing has run"
    for run in ("one", "two"):
        monkeypatch.setenv(RUN, run)
        announce_config(CONFIG, "s", tmp_path)
        assert not is_over(), "it may be in the queue"
        announce_end("s", tmp_path)
        assert is_over()
    monkeypatch.setenv(RUN, "three")
    announce_end("s", tmp_path)
    assert is_over(), "it has run nothing"
    announce_config(CONFIG, "s", tmp_path)
    finish(first)
    assert not is_over()
    finish(*others)
    assert is_over()


@pytest.mark.parametrize("code", [0, 1])
def test_who_waits_for_a_sweep_gets_its_exit_code(tmp_path, code, monkeypatch, capsys):
    monkeypatch.setenv(RUN, "one")
    write_json(tmp_path / "my.json", as_given(CONFIG))
    announce_config(CONFIG, "s", tmp_path)
    announce_end("s", tmp_path)
    if not code:
        with session_of(tmp_path / "sweeps/s") as journal:
            for trial in read_state(CONFIG.sweeps["s"], "s", tmp_path).trials:
                record_attempt(journal, trial, metrics={"rmse": 1.0})
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    arguments = Namespace(config=tmp_path / "my.json", results=tmp_path, wait=True, watch=False, every=0.01, json=False)
    with pytest.raises(UserError, match="4 of 4 trials are without a result") if code else nullcontext():
        status.main(arguments)
    assert capsys.readouterr().out.count("predicted time left") == 1


def test_a_folder_without_results_and_an_edited_config_are_told(tmp_path):
    """Otherwise, a finished sweep is shown as pending."""
    file, results = tmp_path / "my.yaml", tmp_path / "results"
    edited = check_config({"sweeps": {"s": {"command": "x {seed}", "grid": {"seed": [7, 8]}}}})
    assert describe_other_run(CONFIG, file, results) == (
        f"{results} does not exist: nothing has run there (--results names the results of a run)"
    )
    (results / "sweeps/s").mkdir(parents=True)  # by sweep.py, started by hand
    assert describe_other_run(CONFIG, file, results) == ""
    write_json(config_copy(CONFIG, results), as_given(CONFIG))
    assert describe_other_run(CONFIG, file, results) == ""
    assert describe_other_run(edited, file, results) == (
        f"{file} as it is now has not run with these results: the config of the last run is "
        f"{config_copy(CONFIG, results)}"
    )


def test_the_config_of_the_last_run_is_that_of_a_run_that_had_an_older_one(tmp_path, monkeypatch):
    monkeypatch.setenv(RUN, "a run")  # as of a job; otherwise it would stay for other tests
    configs = [{"sweeps": {"s": {"command": "x {seed}", "grid": {"seed": [seed]}}}} for seed in range(3)]
    for each in (configs[0], configs[1], configs[0]):
        Workflow(each, results=tmp_path).begin()
        time.sleep(0.01)  # longer than the clock of files ticks
    copy = config_copy(check_config(configs[0]), tmp_path)
    assert describe_other_run(check_config(configs[2]), Path("my.yaml"), tmp_path).endswith(f"last run is {copy}")


def test_the_jobs_of_a_sweep_that_run_at_the_same_time_are_counted(tmp_path):
    """Their slots are counted together; a job on another node that has recorded its end does not run."""
    config = check_config({"sweeps": {"s": {"command": "x {seed}", "grid": {"seed": [1, 2, 3, 4]},
                                            "slots": {"gpus_per_node": 0, "jobs": 3}}}})  # fmt: skip
    first, second, third, _ = plan_sweep(config, "s", tmp_path).state.trials
    folder, now = tmp_path / "sweeps/s", time.time()
    for number, trial in enumerate((first, second, third)):
        session = {"event": "session", "time": now - 900, "node": "elsewhere", "process": 1, "slots": 1}
        lines = [session, {"event": "started", "time": now - 600, "trial": trial, "attempt": 1, "slot": number}]
        if trial == first:
            lines.append({"event": "finished", "time": now, "trial": trial, "attempt": 1, "seconds": 600.0})
            lines.append({"event": "left", "time": now})
        path = folder / f"sessions/{number}-7.0-{number:08d}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    row = shown(tmp_path, config)
    assert "sweep s: 2 jobs running, or killed without a final event" in " ".join(row)
    assert row[1:8] == ["1", "0", "0", "2", "0", "1", "4"]
    assert row[8:10] == ["10", "min"], "600 s on one of the two slots"
    for session in (path.stem, "1-7.0-00000001"):
        beat_file(path.parent, session).touch()
    assert " ".join(shown(tmp_path, config)).count("sweep s: 2 jobs running slot") == 1, "they give signs of life"
    os.utime(beat_file(path.parent, "1-7.0-00000001"), (now - 300, now - 300))
    assert "sweep s: 2 jobs running, or killed" in " ".join(shown(tmp_path, config))
