"""Sweeps of users' programs, searches and early stopping recover from faults."""

import csv
import json
import re
from contextlib import suppress

import pandas as pd
import psutil
import pytest
from project import Project, alive, child_named, with_words
from slurm_cluster.waiting import PATIENCE_SECONDS, wait_until
from sweep_journals import attempts_in, journal_text, read_records
from trainyard.planning.claims import ClaimLog

# Each trial takes a moment, so that one is running when the sweep is killed.
FUNCTION = """
import time
def run(config, context):
    for epoch in range(1, 4):
        time.sleep(0.1)
        context.report(val_accuracy=(1 - (config["x"] - 0.3) ** 2) * (1 - 0.5 ** epoch))
"""
SEARCH = {
    "function": "mine:run",
    "search": {"method": "tpe", "trials": 14, "values": {"x": {"low": 0, "high": 1}, "kind": ["a", "b"]}},
    "stop": {"method": "asha", "epochs": 3},
}
# Counts to sixty, resumes from the number in its file, and does not end by itself unless nothing is left to do.
COUNTING = """
import os, sys, time
path, start = sys.argv[1], int(open(sys.argv[2]).read()) if sys.argv[2] else 0
for step in range(start + 1, 61):
    time.sleep(0.05 if start or step < 10 else 600)
    open(path + ".new", "w").write(str(step))
    os.replace(path + ".new", path)
    print("step", step, "score", step / 60, flush=True)
time.sleep(0 if start == 60 else 600)
"""
# A program whose first attempt leaves two torn checkpoints. It fails if it resumes from one of them.
TORN = """
import os, pathlib, sys
folder, resumed = pathlib.Path(sys.argv[1]), sys.argv[2:]
if resumed:
    assert pathlib.Path(resumed[0]).read_text() == "whole", "a torn checkpoint"
if not resumed and not (folder / "1.pt").exists():
    for step, state in enumerate(("whole", "torn", "torn"), 1):
        (folder / f"{step}.pt").write_text(state)
        os.utime(folder / f"{step}.pt", (step, step))
    sys.exit("no space left on device")
print("acc=1")
"""
# Reports rows without the number of the epoch. Its checkpoint is as old as the journal's row of its epoch.
UNNUMBERED = """
import json, os, pathlib, sys, time
checkpoint = pathlib.Path(sys.argv[1]) / "at.pt"
done = int(checkpoint.read_text()) if sys.argv[2:] else 0
for epoch in range(done + 1, 5):
    print(f"acc={epoch / 10}", flush=True)
    if epoch == 3 and not done:
        sys.exit("planned trouble")
    row = []
    while not row:
        time.sleep(0.05)
        journals = pathlib.Path("results/sweeps/s/sessions").glob("*.jsonl")
        lines = [line for path in journals for line in path.read_text().splitlines()]
        row = [line for line in lines if f'"acc":{epoch / 10}' in line]
    checkpoint.write_text(str(epoch))
    seconds = json.loads(row[0])["time"]
    os.utime(checkpoint, (seconds, seconds))
"""
# A script of a scaling study. On SIGTERM it leaves a checkpoint and a later, torn one.
SCALE = """
import os, pathlib, signal, sys, time
folder, resumed = pathlib.Path(sys.argv[1]), sys.argv[2]
if resumed:
    assert pathlib.Path(resumed).read_text() == "whole", "a torn checkpoint"
    print("epoch 2 loss 0.2\\nepoch 3 loss 0.1")
    sys.exit()
print("epoch 1 loss 0.4\\nepoch 2 loss 0.3")
def keep(*_):
    for step, state in enumerate(("whole", "torn"), 1):
        (folder / f"{step}.pt").write_text(state)
        os.utime(folder / f"{step}.pt", (step, step))
    sys.exit(1)
signal.signal(signal.SIGTERM, keep)
print("it is up", flush=True)
time.sleep(3600)
"""
# Starts a process in another session and a daemon; none of the three ends.
HOLD = """
import os, subprocess, sys, time
if len(sys.argv) == 3:
    subprocess.Popen([sys.executable, *sys.argv, "in a session of its own"], start_new_session=True)
    if not os.fork():
        os.setsid()
        if not os.fork():
            os.execv(sys.executable, [sys.executable, *sys.argv, "daemon"])
        os._exit(0)
time.sleep(3600)
"""
# The first process saves a checkpoint on SIGTERM, which takes long. The others reject their arguments.
MISTAKEN = """
import argparse, os, pathlib, signal, sys, time
def keep(*_):
    time.sleep(7)
    (pathlib.Path(sys.argv[1]) / "kept.pt").write_text("state")
    sys.exit()
try:
    os.mkdir("first")
except FileExistsError:
    while not os.path.exists("first/up"):
        time.sleep(0.05)
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.parse_args()
signal.signal(signal.SIGTERM, keep)
open("first/up", "w")
time.sleep(600)
"""


def events_of(project, *kinds):
    return [event for event in read_records(project.results / "sweeps/s") if event["event"] in kinds]


def tries_of(project):
    return attempts_in(project.results / "sweeps/s")


def resumed_from(tries):
    """The checkpoint that each attempt resumed from, and its outcome."""
    return [(each.resumed and each.resumed.name, each.outcome) for each in tries]


def drawn(project):
    log = ClaimLog(project.results / "sweeps/s")
    log.read()
    return [each.values for entry in log.entries for each in entry.draws]


@pytest.mark.slow
def test_a_killed_search_continues_with_the_same_suggestions(tmp_path_factory):
    whole, killed = (Project(tmp_path_factory.mktemp("search")) for _ in range(2))
    for project in (whole, killed):
        (project.folder / "mine.py").write_text(FUNCTION)
        project.write({"sweeps": {"s": SEARCH}})
    whole.run(*whole.script("sweep", "--sweep", "s"))
    started = killed.start(*killed.script("sweep", "--sweep", "s"))
    wait_until(lambda: len(drawn(killed)) >= 6, what="the sixth trial", while_running=started)
    killed.kill_session(started)
    output = killed.run(*killed.script("sweep", "--sweep", "s")).stdout
    assert drawn(killed) == drawn(whole)
    ends = [
        [(each["trial"], each["event"]) for each in events_of(project, "finished", "stopped")]
        for project in (whole, killed)
    ]
    assert ends[0] == ends[1], "the same trials were stopped early"
    assert {event for _, event in ends[0]} == {"finished", "stopped"}
    assert "trials finished" in output


LEAVING = """
import os, pathlib
def run(config, context):
    here, marks = os.getcwd(), pathlib.Path(__file__).with_name("marks")
    (marks / str(config["n"])).write_text(here)
    os.chdir(context.trial_dir)
    if config["n"] == 0 and len(list(marks.iterdir())) == 1:
        context.interrupt()
    return {"loss": config["n"]}
"""


@pytest.mark.slow
def test_a_function_that_leaves_its_folder_or_interrupts_itself_changes_nothing_for_other_trials(project):
    (project.folder / "mine.py").write_text(LEAVING)
    (project.folder / "marks").mkdir()
    project.write({"sweeps": {"s": {"function": "mine:run", "grid": {"n": [0, 1, 2]}, "metric": "loss"}}})
    left = project.run(*project.script("sweep", "--sweep", "s"), check=False)
    assert left.returncode == 1
    assert (
        "1 trial left, of which each called context.interrupt(), although context.time_is_up was False" in left.stdout
    )
    assert [attempt.outcome for attempt in tries_of(project)] == ["interrupted", "finished", "finished"]
    assert {each.read_text() for each in (project.folder / "marks").iterdir()} == {str(project.folder)}
    project.run(*project.script("sweep", "--sweep", "s"))
    assert len([attempt for attempt in tries_of(project) if attempt.outcome == "finished"]) == 3


@pytest.mark.slow
def test_a_program_ends_with_its_killed_driver_and_with_its_job_and_resumes_from_its_checkpoint(project):
    """All processes of a job get its signal: the program may die of it before the driver knows."""
    (project.folder / "count.py").write_text(COUNTING)
    words = f"{project.folder}/count.py"
    sweep = {"command": f"python {words} {{trial_dir}}/at.txt {{resume_from}} && true", "checkpoint": "at.txt"}
    project.write({"sweeps": {"s": {**sweep, "metrics": {"pattern": r"step (?P<epoch>\d+) score (?P<score>\S+)"}}}})

    def started_and_at(attempt, step):
        started = project.start(*project.script("sweep", "--sweep", "s"))
        wait_until(lambda: step in steps_of(attempt), what=f"step {step}", while_running=started)
        return started

    def steps_of(attempt):
        tries = tries_of(project)
        return [row["epoch"] for row in tries[attempt].epochs] if len(tries) > attempt else []

    killed = started_and_at(0, 4)
    killed.kill()
    killed.wait()
    wait_until(lambda: not with_words(words), what="the program to end with the driver")

    ended = started_and_at(1, 60)
    for process in with_words(words):
        with suppress(psutil.NoSuchProcess):  # its guard has ended it since
            process.terminate()
    ended.terminate()
    ended.communicate(timeout=PATIENCE_SECONDS)
    assert 5 <= steps_of(1)[0] < 60, "what was done is not done again"
    assert steps_of(1) == list(range(steps_of(1)[0], 61))

    project.run(*project.script("sweep", "--sweep", "s"))
    assert resumed_from(tries_of(project)) == [(None, "interrupted"), ("at.txt", "interrupted"), ("at.txt", "finished")]
    assert tries_of(project)[-1].metrics == {"score": 1.0}, "nothing was left to do"


NUMBERS = """
def run(config, context):
    context.report(score=config["score"])
    assert "check" not in config, "it is not finite"
    return {"size": 3}
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "declared", [{"metric": "score"}, {"metric": "score", "stop": {"method": "asha", "grace_period": 9}}]
)
def test_a_trial_with_a_nan_metric_has_diverged_and_is_not_retried(project, declared):
    (project.folder / "mine.py").write_text(NUMBERS)
    trials = [{"score": 0.5}, {"score": "nan"}, {"score": "nan", "check": True}, {"score": 0.25}]
    project.write({"sweeps": {"s": {"function": "mine:run", "trials": trials, **declared}}})
    output = project.run(*project.script("sweep", "--sweep", "s")).stdout
    assert "DIVERGED, not retried: score became NaN or infinite" in output
    assert re.search(r"; then it failed: AssertionError: it is not finite \(.*mine.py, line 4\); see ", output)
    assert "2 diverged, 0 failed" in output
    rows = pd.read_csv(project.results / "sweeps/s/trials.csv")
    assert rows["status"].tolist() == ["finished", "diverged", "diverged", "finished"]
    assert rows["attempts"].tolist() == [1, 1, 1, 1]
    assert rows["size"].isna().tolist() == [False, True, True, False], "it takes part in no comparison"
    assert "0 of 4 trials pending" in project.run(*project.script("sweep", "--sweep", "s")).stdout
    status = project.run(*project.script("status")).stdout
    assert "diverged" in status


@pytest.mark.slow
def test_a_search_whose_metric_is_not_reported_ends_after_the_first_trial(project):
    (project.folder / "mine.py").write_text(NUMBERS)
    search = {"trials": 20, "values": {"score": {"low": 0, "high": 1}}}
    project.write({"sweeps": {"s": {"function": "mine:run", "search": search, "metric": "accuracy"}}})
    done = project.run(*project.script("sweep", "--sweep", "s"), check=False)
    assert done.returncode == 1
    assert (
        "does not report accuracy, by which trials are compared; it reports score, size: let the function"
        in done.stdout
    )
    assert len(events_of(project, "finished")) == 1
    assert not (project.results / "sweeps/s/trials.csv").exists()


# Records each of its runs and prints as much as a progress bar.
TELLS = """
import os, sys
print("run", file=open("runs.txt", "a"))
print(os.environ.get("TOLD"), file=open("told.txt", "w"))
for epoch in (1, 2):
    for step in range(100):
        print(f"\\rEpoch {epoch}/2, step {step}: error=\\x1b[1m{step}\\x1b[0m", end="")
    print(f"\\rEpoch {epoch}/2: score={int(sys.argv[1]) * epoch * 1e-05}")
"""


def rows_of(project, table):
    with open(project.results / "sweeps/s" / f"{table}.csv") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_a_corrected_pattern_is_applied_to_saved_output_without_running_anything(project):
    (project.folder / "tells.py").write_text(TELLS)
    sweep = {"command": "python tells.py {x}", "grid": {"x": [1, 2, 3]}, "slots": {"gpus_per_node": 2}}
    target = "results/sweeps/s/trials.csv"

    def runs():
        return (project.folder / "runs.txt").read_text().count("run")

    def write(pattern, **more):
        project.write({"sweeps": {"s": {**sweep, **more, "metrics": {"pattern": pattern}}}})

    write(r"scroe=(?P<score>\S+)")
    done = project.run(*project.script("sweep", "--sweep", "s"), check=False)
    output = done.stdout + done.stderr
    assert done.returncode != 0
    assert output.count("correct `metrics`") == 2, "after the first one, and at the end"
    assert output.count("none were found in its output by scroe=") == 2
    assert "3 of 3 trials have no metrics" in output
    again = project.run(*project.script("sweep", "--sweep", "s"), check=False)
    assert (again.returncode, runs()) == (done.returncode, 3), "neither is it tried again, nor run by the next run"

    write(r"Epoch (?P<epoch>\d+)/2: score=(?P<score>[\d.]+)")
    output = project.snakemake(target, check=False)
    assert "matches only '1' of '1e-05' for score: write (?P<score>{number})" in output
    assert "3 of 3 trials have no metrics" in output
    write(r"Epoch \d/2: score=(?P<score>{number})")
    project.snakemake(target)
    assert runs() == 3
    timeline = rows_of(project, "timeline")

    write(r"Epoch (?P<epoch>\d+)/2: score=(?P<score>{number})", grid={"x": [1, 2, 3, 4]})
    assert "1 of 4 trials pending, 3 outputs to re-read without running anything" in project.snakemake(target)
    assert runs() == 4
    trials = rows_of(project, "trials")
    assert [float(row["score"]) for row in trials] == pytest.approx([2e-05, 4e-05, 6e-05, 8e-05])
    assert {row["status"] for row in trials} == {"finished"}
    assert [float(row["score"]) for row in rows_of(project, "epochs")][:2] == pytest.approx([1e-05, 2e-05])
    kept = {row["trial"]: row for row in rows_of(project, "timeline")}
    assert all(kept[row["trial"]]["end"] == row["end"] for row in timeline), "it ended when it ended"
    assert "Nothing to be done" in project.snakemake("-n", target)

    first, *others = sorted((project.results / "sweeps/s/trials").glob("*/output-1.log"))
    for path in others:
        path.unlink()
    write(r"nothing (?P<score>{number})", grid={"x": [1, 2, 3, 4]})
    done = project.run(*project.script("sweep", "--sweep", "s"), check=False)
    assert "0 of 4 trials pending, 4 outputs to re-read" in done.stdout
    assert "4 of 4 trials have no metrics" in done.stdout + done.stderr
    assert str(first) in done.stdout + done.stderr
    write(r"Epoch (?P<epoch>\d+)/2: score=(?P<score>{number})", grid={"x": [1, 2, 3, 4]})
    project.run(*project.script("sweep", "--sweep", "s"))
    assert rows_of(project, "trials") == trials, "also without the output of the others"
    assert runs() == 4


# The second one would run for long at first. The score of two of them is NaN, while another metric is finite.
JUDGED = """
import sys, time
name, score = sys.argv[1:]
print("run", file=open("runs.txt", "a"))
for epoch in (1, 2)[:1 if name == "other" else 2]:
    print(f"epoch {epoch}: score={score} best={len(name)}", flush=True)
time.sleep(3600 if name == "endless" and len(list(open("runs.txt"))) < 4 else 0)
"""


@pytest.mark.slow
def test_a_corrected_metric_reclassifies_diverged_trials_and_runs_those_again_that_the_other_has_stopped(project):
    (project.folder / "judged.py").write_text(JUDGED)
    trials = [{"name": "good", "score": 1}, {"name": "endless", "score": "nan"}, {"name": "other", "score": "nan"}]
    command = "python judged.py {name} {score}"
    reported = r"epoch (?P<epoch>\d+): score=(?P<score>{number}) best=(?P<best>{number})"

    def sweep(metric, pattern):
        sweep = {"command": command, "trials": trials, "stop": {"method": "asha"}, "metric": metric}
        project.write({"sweeps": {"s": {**sweep, "metrics": {"pattern": pattern}}}})
        output = project.run(*project.script("sweep", "--sweep", "s")).stdout
        return output, [row["status"] for row in rows_of(project, "trials")]

    output, ends = sweep("score", reported)
    assert ends == ["finished", "diverged", "diverged"]
    assert (project.folder / "runs.txt").read_text().count("run") == 3
    (early,) = [event for event in events_of(project, "diverged") if "why" in event]
    assert early["why"].startswith("asha: rank 2 of the 2")
    output, ends = sweep("best", reported)
    assert "1 of 3 trials pending (1 stopped early by another rule, with metric: score), 1 output to re-read" in output
    assert ends == ["finished"] * 3
    assert "to re-read" not in sweep("best", reported)[0]
    assert sweep("best", reported + "$")[1] == ["finished"] * 3
    assert (project.folder / "runs.txt").read_text().count("run") == 4


@pytest.mark.slow
def test_a_search_whose_metric_cannot_be_parsed_stops_at_once_and_continues_once_it_can(project):
    (project.folder / "tells.py").write_text(TELLS)
    values = {"x": {"low": 1, "high": 9, "integer": True}}
    search = {"method": "random", "trials": 2, "values": values}

    def sweep(pattern, check, metric="score"):
        sweep = {"command": "python tells.py {x}", "search": search, "metrics": {"pattern": pattern}, "metric": metric}
        project.write({"sweeps": {"s": sweep}})
        done = project.run(*project.script("sweep", "--sweep", "s"), check=check)
        return done.stdout + done.stderr, (project.folder / "runs.txt").read_text().count("run")

    for _ in range(2):
        output, runs = sweep(r"scroe=(?P<score>{number})", check=False)
        assert "none were found in its output by scroe=" in output
        assert "correct `metrics`" in output
        assert runs == 1, "what was drawn next would be drawn blindly"
    output, runs = sweep(r"score=(?P<score>{number})", check=True)
    assert "1 of 1 saved outputs could be read again" in output
    assert "2 trials finished" in output
    assert runs == 2
    output, runs = sweep(r"score=(?P<value>{number})", check=True, metric="value")
    assert "best value" in output, "another search draws the same configurations, whose outputs are read again"
    assert runs == 2


# A module torch whose torchrun runs the script as its only rank. The real one takes seconds to import.
INSTANT_TORCHRUN = {
    "torch/__init__.py": "",
    "torch/distributed/__init__.py": "",
    "torch/distributed/run.py": "import runpy, sys\n"
    "sys.argv = sys.argv[sys.argv.index('tells.py') :]\n"
    "runpy.run_path('tells.py', run_name='__main__')\n",
}


@pytest.mark.slow
def test_a_corrected_pattern_of_a_scaling_script_runs_nothing(project):
    for path, code in {"tells.py": TELLS, **INSTANT_TORCHRUN}.items():
        (project.folder / path).parent.mkdir(parents=True, exist_ok=True)
        (project.folder / path).write_text(code)

    def launch(pattern, *, check=True, **more):
        metrics = {"pattern": pattern}
        study = {
            "script": "tells.py {x} {64 * gpus} {port}",
            "args": {"x": 1},
            "metrics": metrics,
            "scales": ["1x1"],
            **more,
        }
        study |= {"setup": "export TOLD=yes; touch setup.txt", "teardown": "echo $TOLD > teardown.txt"}
        project.write({"scaling": {"s": study}})
        done = project.run(*project.script("train", "--study", "s", "--scale", "1x1"), check=check)
        return done.stdout + done.stderr

    def runs():
        return (project.folder / "runs.txt").read_text().count("run")

    misread = [launch(r"scroe=(?P<val_loss>{number})", check=False) for _ in range(2)]
    assert all("none were found in its output by scroe=" in output for output in misread)
    assert (project.folder / "told.txt").read_text() == (project.folder / "teardown.txt").read_text() == "yes\n"
    (project.folder / "setup.txt").unlink()
    assert re.search(r"launching: .* tells\.py 1 64 \d{4,5}$", misread[0], re.MULTILINE)
    assert "train s 1x1: its output is read again; nothing runs" in project.snakemake("-n", "scaling")
    correct = r"Epoch (?P<epoch>\d+)/2: score=(?P<val_loss>{number})"
    assert "is not run again" in launch(correct)
    assert runs() == 1, "neither for an output that cannot be read, nor when it can"
    folder = project.results / "scaling/s/1x1"
    history = pd.read_csv(folder / "history.csv")
    assert history["val_loss"].tolist() == pytest.approx([1e-05, 2e-05])
    assert history["seconds"].isna().all(), "their times are unknown"
    first = json.loads((folder / "summary.json").read_text())
    assert first["val_loss"] == pytest.approx(2e-05)
    assert first["trained_epochs"] == 2
    (folder / "summary.json").unlink()
    launch(correct)
    assert runs() == 1, "a finished script does not run again either"
    assert json.loads((folder / "summary.json").read_text()) == first
    assert not (project.folder / "setup.txt").exists(), "nothing needs it where an output is read again"
    launch(correct.replace("val_loss", "train_loss"))
    second = json.loads((folder / "summary.json").read_text())
    assert second["train_loss"] == pytest.approx(2e-05)
    assert second["trained_epochs"] == 2
    launch(r"score=(?P<val_loss>{number})")
    numbered = json.loads((folder / "summary.json").read_text())
    assert (numbered["epochs"], numbered["trained_epochs"]) == (2, None), "the script does not say that they are epochs"
    assert (second["val_loss"], second["train_seconds"]) == (None, first["train_seconds"])
    launch(correct, launcher="torchrun --max-restarts 0")
    assert runs() == 2, "what changes the result has it run"


@pytest.fixture(scope="module")
def resumed(tmp_path_factory):
    """The project of a sweep of two programs, each with one retry."""
    project = Project(tmp_path_factory.mktemp("resumed"))
    programs = {"torn": TORN, "unnumbered": UNNUMBERED}
    for name, code in programs.items():
        (project.folder / f"{name}.py").write_text(code)
    sweep = {"command": "python {program}.py {trial_dir}", "checkpoint": "*.pt", "resume": "{resume_from}"}
    sweep |= {"grid": {"program": list(programs)}, "metrics": {"pattern": "acc=(?P<acc>{number})"}, "retries": 1}
    project.write({"sweeps": {"s": sweep}})
    assert "2 trials finished, 0 failed" in project.run(*project.script("sweep", "--sweep", "s")).stdout
    return project


def tries_of_program(project, name):
    (trial,) = (row["trial"] for row in rows_of(project, "trials") if row["program"] == name)
    return [each for each in tries_of(project) if each.trial == trial]


@pytest.mark.slow
def test_after_a_torn_checkpoint_the_previous_one_is_tried_and_finally_none(resumed):
    tries = [(None, "failed"), ("3.pt", "failed"), ("2.pt", "failed"), (None, "finished")]
    assert resumed_from(tries_of_program(resumed, "torn")) == tries, "a damaged one uses up no retry"


@pytest.mark.slow
def test_a_resumed_program_that_reports_no_epochs_continues_their_numbers(resumed):
    tries = tries_of_program(resumed, "unnumbered")
    assert resumed_from(tries) == [(None, "failed"), ("at.pt", "finished")]
    epochs = pd.read_csv(resumed.results / "sweeps/s/epochs.csv").set_index("trial").loc[tries[0].trial]
    assert epochs["epoch"].tolist() == [1, 2, 3, 4]
    assert epochs["acc"].tolist() == [0.1, 0.2, 0.3, 0.4]


@pytest.mark.slow
def test_the_same_mistake_in_the_first_trials_ends_the_sweep_and_programs_that_run_have_their_grace_period(project):
    (project.folder / "mistaken.py").write_text(MISTAKEN)
    sweep = {"command": "python mistaken.py {trial_dir} --lrr {lr}", "grid": {"lr": list(range(1, 21))}}
    project.write({"sweeps": {"s": {**sweep, "checkpoint": "*.pt", "slots": {"gpus_per_node": 3}, "retries": 3}}})
    done = project.run(*project.script("sweep", "--sweep", "s"), check=False)
    assert done.returncode == 1
    line = next(line for line in done.stdout.splitlines() if "stopped: the first trials failed in the same way" in line)
    assert "exit code 2: mistaken.py: error: unrecognized arguments: --lrr" in line
    assert len(tries_of(project)) < 10
    assert len(list((project.results / "sweeps/s/trials").glob("*/kept.pt"))) == 1
    interrupted = {
        event["error"] for event in events_of(project, "interrupted")
    }  # possibly also of one that just started
    assert "it was interrupted" in interrupted


def test_no_process_of_a_command_outlives_a_killed_guard_worker_or_raylet(project):
    """After the guard or the worker was killed, the next attempt starts when no process of the last one is left."""
    (project.folder / "hold.py").write_text(HOLD)
    project.write({"sweeps": {"s": {"command": "python hold.py {attempt} {trial_dir} && true", "retries": 2}}})
    started = project.start(*project.script("sweep", "--sweep", "s"))
    driver = psutil.Process(started.pid)

    def holding(attempt):
        """The processes of an attempt: shell, program, the process in another session, daemon."""
        return with_words(f"hold.py {attempt} {project.results}")

    def is_up(attempt):
        wait_until(lambda: len(holding(attempt)) == 4, what=f"attempt {attempt}", while_running=started)

    is_up(1)
    (shell,) = with_words("&& true", holding(1))
    shell.parent().kill()
    is_up(2)
    assert not holding(1), "no attempt runs beside processes of another one"
    child_named("ray::Worker", driver).kill()
    is_up(3)
    assert not holding(2)
    raylet, worker = child_named("raylet", driver), child_named("ray::Worker", driver)
    raylet.kill()
    wait_until(lambda: not raylet.is_running(), what="the raylet's process to be gone, not to remain as a zombie")
    wait_until(lambda: not alive([worker]), what="the end of the worker")
    wait_until(lambda: not holding(3), what="the end of the third attempt")
    driver.kill()
    started.wait()


@pytest.mark.slow
def test_a_scaling_script_has_a_grace_period_skips_torn_checkpoints_and_ends_with_its_launcher(project):
    (project.folder / "scale.py").write_text(SCALE)
    launch = project.script("train", "--study", "s", "--scale", "1x1")

    def started(retrain):
        study = {"script": "scale.py {out_dir} {resume_from}", "checkpoint": "*.pt", "scales": ["1x1"]}
        study["metrics"] = {"pattern": r"epoch (?P<epoch>\d+) loss (?P<val_loss>{number})"}
        project.write({"scaling": {"s": {**study, "retrain": retrain}}})
        logs = set((project.results / "scaling").glob("s/1x1/out/*/output.log"))
        running = project.start(*launch)

        def is_up():
            new = set((project.results / "scaling").glob("s/1x1/out/*/output.log")) - logs
            return any("it is up" in log.read_text() for log in new)

        wait_until(is_up, what="the script", while_running=running)
        return running

    polite = started(0)
    polite.terminate()
    output, _ = polite.communicate(timeout=PATIENCE_SECONDS)
    assert "the script was ended by a signal: the same command continues from the last checkpoint" in output
    project.run(*launch)  # from the checkpoint before, as the newest is torn
    history = pd.read_csv(project.results / "scaling/s/1x1/history.csv")
    assert history[["epoch", "val_loss"]].to_numpy().tolist() == [[1, 0.4], [2, 0.2], [3, 0.1]]
    assert history["seconds"].notna().all()
    killed = started(1)
    killed.kill()
    killed.wait()

    wait_until(lambda: not with_words(f"scale.py {project.results}"), what="the end of launcher and ranks")


# The third trial fills the disk; all report epochs until they are done.
FILLING = """
import time
def run(config, context):
    if config["x"] == 3 and config["fills"]:
        with open(config["fills"], "ab", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                pass
    for epoch in range(1, 400):
        context.report(epoch=epoch, val_accuracy=0.5)
"""


def test_a_full_disk_stops_a_sweep_in_one_line_and_costs_no_finished_trial(project, small_disk):
    (project.folder / "mine.py").write_text(FILLING)
    sweep = {"function": "mine:run", "grid": {"x": list(range(1, 7))}, "slots": {"gpus_per_node": 2}}
    project.write({"sweeps": {"own": {**sweep, "args": {"fills": str(small_disk.mount / "filler")}}}})
    project.results = small_disk.mount / "results"
    command = small_disk.inside(*project.script("sweep", "--sweep", "own"))
    stopped = project.run(*command, check=False)
    folder = small_disk.folder / "results/sweeps/own"
    assert stopped.returncode == 1
    assert ".jsonl: no space left on device: make room on this file system" in stopped.stdout.splitlines()[-1]
    assert "Traceback" not in stopped.stdout + stopped.stderr
    events = list(map(json.loads, journal_text(folder).splitlines()))  # no line is torn
    before = [event["trial"] for event in events if event["event"] == "finished"]
    assert not [event for event in events if event["event"] == "failed"]
    assert before
    (small_disk.folder / "filler").unlink()
    (project.folder / "mine.py").write_text(FILLING.replace('config["fills"]:', "False:"))
    project.run(*command)
    with open(folder / "trials.csv") as file:
        rows = {row["trial"]: row for row in csv.DictReader(file)}
    assert {row["status"] for row in rows.values()} == {"finished"}
    assert len(rows) == 6
    assert all(rows[trial]["attempts"] == "1" for trial in before)


# It leaves room for its output, which is complete at once, but not for 150 epochs in the journal.
FULL = """
import os, sys
with open(sys.argv[1], "ab", buffering=0) as file:
    try:
        while True:
            file.write(bytes(4096))
    except OSError:
        os.ftruncate(file.fileno(), os.fstat(file.fileno()).st_size - 4096)
sys.stdout.write("".join(f"epoch {epoch} acc {epoch}\\n" for epoch in range(1, 151)))
"""


@pytest.mark.slow
def test_a_trial_whose_end_found_a_full_disk_has_all_its_metrics_once_there_is_room(project, small_disk):
    (project.folder / "full.py").write_text(FULL)
    filler, pattern = small_disk.mount / "filler", r"epoch (?P<epoch>\d+) acc (?P<acc>{number})"
    sweep = {"command": f"python {project.folder}/full.py {filler}", "metrics": {"pattern": pattern}}
    project.write({"sweeps": {"own": sweep}})
    project.results = small_disk.mount / "results"
    stopped = project.run(*small_disk.inside(*project.script("sweep", "--sweep", "own")), check=False)
    assert "no space left on device" in stopped.stdout
    (small_disk.folder / "filler").unlink()
    (project.folder / "full.py").write_text(FULL.replace("while True:", "while False:"))
    project.run(*small_disk.inside(*project.script("sweep", "--sweep", "own")))
    folder = small_disk.folder / "results/sweeps/own"
    assert len((folder / "epochs.csv").read_text().splitlines()) == 151, "no row is missing"
    assert [line.split(",")[1] for line in (folder / "trials.csv").read_text().splitlines()] == ["status", "finished"]
