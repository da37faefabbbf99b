"""Several drivers on one sweep, each with a Ray of its own: every trial counts once, whatever happens to a driver."""

import platform
import signal
import time
from collections import Counter

import psutil
import pytest
from claim_model import ended_by_log
from drivers import BEAT_SECONDS, TRIALS
from slurm_cluster.waiting import wait_until
from sweep_journals import read_records
from trainyard.packing.time_limits import STOP_SECONDS
from trainyard.planning.attempts import Fold
from trainyard.planning.claims import ClaimLog


def each_once(drivers, trials=TRIALS):
    return sorted(ended_by_log(drivers.folder).values()) == [1] * trials


def test_when_one_is_killed_and_one_comes_late_only_what_ran_is_repeated(drivers):
    drivers.write()
    first, second = drivers.start(0), drivers.start(1)
    drivers.await_work_of(0)
    drivers.await_work_of(1, trials=1)
    second.kill()
    late = drivers.start(2)
    drivers.end(first, late)
    assert each_once(drivers)
    assert len(drivers.ran()) == TRIALS
    assert drivers.ran().total() - TRIALS <= 1, "one slot of the killed driver"
    assert len(ClaimLog(drivers.folder).read()) > 2


def test_the_seconds_of_a_trial_leave_out_how_long_its_job_was_suspended(drivers):
    """Slurm stops all processes of a job; the clocks go on."""
    waits = "[ {n} = 0 ] || until test -e go; do sleep 0.1; done"
    drivers.write(command=waits, grid={"n": [0, 1]}, slots={"cpus": 1})
    driver = drivers.start(0)
    attempts = Fold(drivers.folder)
    wait_until(lambda: len(attempts.update().attempts) == 2, what="the second trial to start", while_running=driver)
    processes = [psutil.Process(driver.pid), *psutil.Process(driver.pid).children(recursive=True)]
    for process in processes:
        process.suspend()
    began = time.monotonic()
    time.sleep(8)
    paused = time.monotonic() - began
    for process in processes:
        process.resume()
    (drivers.project.folder / "go").touch()
    drivers.end(driver)
    last = list(attempts.update().attempts.values())[-1]
    assert last.outcome == "finished"
    assert last.seconds < last.end - last.start - paused / 2


def test_a_driver_that_was_stopped_for_long_goes_on_without_the_trials_that_others_have_taken(drivers):
    drivers.write(grid={"n": list(range(60))})
    first, second = drivers.start(0), drivers.start(1)
    drivers.await_work_of(1, trials=1)
    session = drivers.await_work_of(0)
    first.send_signal(signal.SIGSTOP)

    def is_given_up():
        log = ClaimLog(drivers.folder)
        log.read()
        return session in log.given_up

    wait_until(is_given_up, what="that the stopped driver is given up")
    first.send_signal(signal.SIGCONT)
    drivers.end(first, second)
    assert each_once(drivers, 60)
    assert len(drivers.ran()) == 60
    fold = Fold(drivers.folder).update()
    assert session in fold.left
    assert sum(name.startswith("0-") for name in fold.claims.sessions) == 1, "it goes on in the same session"


@pytest.mark.parametrize("how", [signal.SIGSTOP, signal.SIGKILL], ids=["stopped", "killed while it was stopped"])
def test_what_ended_while_its_driver_was_stopped_does_not_run_again(drivers, how):
    """Neither in a driver that runs beside it nor in one that comes later."""
    command = "echo {n} >> ran.txt; while ! test -e go; do sleep 0.1; done; echo loss={n}.5"
    drivers.write(command=command, grid={"n": [0, 1]}, metrics={"pattern": "loss=(?P<loss>{number})"}, retries=0)
    first = drivers.start(0)
    wait_until(lambda: len(drivers.ran()) == 1, what="the first trial", while_running=first)
    first.send_signal(signal.SIGSTOP)
    (drivers.project.folder / "go").touch()
    wait_until(lambda: list(drivers.folder.glob("trials/*/output-1.ended")), what="the record of the guard")
    if how is signal.SIGKILL:
        drivers.project.kill_session(first)
    second = drivers.start(1)
    drivers.end(second)
    assert drivers.ran() == {"0": 1, "1": 1}
    fold = Fold(drivers.folder).update()
    assert sorted(each.metrics["loss"] for each in fold.attempts.values()) == [0.5, 1.5]
    assert {each.outcome for each in fold.attempts.values()} == {"finished"}
    assert all(each.seconds > 0 for each in fold.attempts.values())
    assert each_once(drivers, 2)
    assert "took the results of 1 trial" in drivers.output(second)
    if how is signal.SIGSTOP:
        first.send_signal(signal.SIGCONT)
        drivers.end(first)
        assert drivers.ran() == {"0": 1, "1": 1}


def test_a_driver_predicts_durations_by_what_others_have_measured(drivers):
    """The first has measured one long trial, the second short ones like the trial that the first takes next."""
    trials = [{"kind": "long", "seed": 0}, *({"kind": "short", "seed": seed} for seed in range(1, 5))]
    waits = "case {kind}-{seed} in long-0|short-3) until test -e end-{kind}; do sleep 0.05; done; esac"
    drivers.write(command=waits, grid={}, trials=trials)
    fold = Fold(drivers.folder)

    def attempts():
        return sorted(fold.update().attempts.values(), key=lambda each: each.start)

    def end(kind):
        (drivers.project.folder / f"end-{kind}").touch()

    first = drivers.start(0)
    wait_until(attempts, what="the long trial to start", while_running=first)
    second = drivers.start(1)
    wait_until(lambda: len(attempts()) == 4, what="two short trials to end", while_running=second)
    _, *short = attempts()
    time.sleep(max(0.0, short[2].start + 10 * BEAT_SECONDS + 8 * max(each.seconds for each in short[:2]) - time.time()))
    end("long")
    wait_until(lambda: len(attempts()) == 5, what="the last trial to start", while_running=first)
    end("short")
    drivers.end(first, second)
    last = attempts()[-1]
    assert last.expected_seconds < 0.5 * attempts()[0].seconds


def test_two_drivers_of_a_search_draw_each_number_once(drivers):
    search = {"trials": 12, "values": {"x": {"low": 0.0, "high": 1.0}}}
    metrics = {"metrics": {"pattern": r"loss=(?P<loss>\S+)"}, "metric": "loss"}
    # The first trial waits for that of the other driver.
    waits = "echo {x} >> ran.txt; until [ $(wc -l < ran.txt) -ge 2 ]; do sleep 0.05; done; echo loss={x}; sleep 0.3"
    drivers.write(command=waits, search=search, grid={}, **metrics)
    drivers.end(drivers.start(0), drivers.start(1))
    fold = Fold(drivers.folder).update()
    assert len(fold.claims.draws) == 12
    assert len({draw.values["x"] for draw in fold.claims.draws}) == 12, "no draw was made twice with one seed"
    assert each_once(drivers, 12)
    assert sum(bool(entry.draws and not entry.take) for entry in fold.claims.entries) > 3, "drawn ahead"


def test_two_drivers_stop_trials_early_by_what_both_have_reported(drivers):
    stop = {"method": "asha", "grace_period": 1, "reduction_factor": 3}
    metrics = {"metrics": {"pattern": r"epoch (?P<epoch>\d+) loss (?P<loss>\S+)"}, "metric": "loss"}
    command = "for e in 1 2 3 4 5 6 7 8 9; do echo epoch $e loss {x}; sleep 0.1; done"
    drivers.write(command=command, grid={"x": list(range(12))}, stop=stop, **metrics)
    drivers.end(drivers.start(0), drivers.start(1))
    attempts = Fold(drivers.folder).update().attempts
    outcomes = Counter(attempt.outcome.value for attempt in attempts.values())
    assert outcomes.keys() == {"finished", "stopped"}
    assert outcomes.total() == 12
    assert outcomes["stopped"] >= 4


# The first trial is slow to learn, and fails after its fourth epoch. It goes on when others have learned faster.
APPENDING = """
import json, pathlib, sys, time
def report(epoch, loss):
    with open("m.jsonl", "a") as file:
        file.write(json.dumps({"epoch": epoch, "loss": loss}) + "\\n")
    time.sleep(0.5)
if sys.argv[2:]:
    report(5, 0.1)
else:
    report(1, 5 if sys.argv[1] == "0" else 1)
    if sys.argv[1] == "0":
        report(4, 0.2)
        pathlib.Path("1.pt").write_text("state")
        sys.exit("the disk was full")
"""


def test_a_resumed_trial_is_not_judged_again_by_the_rows_that_its_file_already_has(drivers):
    (drivers.project.folder / "learns.py").write_text(APPENDING)
    resumes = {"workdir": "trial", "checkpoint": "*.pt", "resume": "--resume", "metrics": {"file": "m.jsonl"}}
    stop = {"metric": "loss", "stop": {"method": "asha", "grace_period": 1, "reduction_factor": 3}}
    drivers.write(command="python learns.py {x}", grid={"x": [0, 1, 2, 3]}, retries=1, **resumes, **stop)
    drivers.end(drivers.start(0))
    attempts = Fold(drivers.folder).update().attempts.values()
    ends = [(each.outcome.value, each.error) for each in attempts if each.values["x"] == 0]
    assert [outcome for outcome, _ in ends] == ["failed", "finished"], ends


def test_trials_run_again_once_their_code_has_changed(drivers):
    """Of a file that changes while a job runs, the job has read the content with which it has started."""
    code, slots = drivers.project.folder / "train.py", {"cpus": 1}
    code.write_text("1")
    waits = "echo {n} >> ran.txt; until test -e go; do sleep 0.05; done"
    drivers.write(command=waits, grid={"n": [0, 1]}, slots=slots, code=["train.py"])
    first = drivers.start(0)
    wait_until(drivers.ran, what="the first trial to start", while_running=first)
    code.write_text("2")
    (drivers.project.folder / "go").touch()
    drivers.end(first)
    (session,) = (each for each in read_records(drivers.folder) if each["event"] == "session")
    assert session["versions"]["python"] == ".".join(platform.python_version_tuple()[:2])
    assert (drivers.project.results / "configs" / f"{session['config']}.json").exists()
    assert drivers.ran() == {"0": 1, "1": 1}
    assert "`code` has changed since this job started" in drivers.output(first)
    for _ in range(2):
        drivers.end(drivers.start(0))
    assert drivers.ran() == {"0": 2, "1": 2}
    assert "2 of 2 trials pending (`code` has changed since the job of" in drivers.output(drivers.started[1])
    assert "has changed" not in drivers.output(drivers.started[2])


PAUSES = 12.0  # CPU-seconds: 3 s of both drivers on 2 CPUs, in which a busy machine runs neither at its end


def budgeted(drivers, seconds):
    slots = {"jobs": 2, "cpus": 2}
    options = {"grid": {"n": list(range(150))}, "slots": slots, "grace_seconds": 0}
    drivers.write(command="echo {n} >> ran.txt; sleep 1", budget={"gpu_hours": seconds / 3600}, **options)


def spent_seconds(drivers, cpus=2):
    runs = Fold(drivers.folder).update().sessions
    return sum(run.end - run.job_start for run in runs) * cpus


def trials_that(drivers, outcome):
    return [each for each in Fold(drivers.folder).update().attempts.values() if each.outcome == outcome]


def test_two_drivers_spend_no_more_than_the_budget_and_go_on_with_a_larger_one(drivers):
    """On a busy machine, a trial may take longer than those before, and be interrupted as the budget ends."""
    budgeted(drivers, 80)  # CPU-seconds
    drivers.end(*map(drivers.start, range(2)))
    first = drivers.ran()
    assert 0 < len(first) < 80
    assert first.total() == len(first), "none has run twice"
    finished, late = trials_that(drivers, "finished"), trials_that(drivers, "interrupted")
    assert len(finished) + len(late) == len(first)
    assert len(late) <= 4, "those of the four slots"
    assert spent_seconds(drivers) <= 1.01 * 80 + PAUSES
    longest = max(attempt.end - attempt.start for attempt in Fold(drivers.folder).update().attempts.values())
    assert spent_seconds(drivers) > 80 - 2 * 2 * (longest + STOP_SECONDS), "both jobs lacked time for another trial"
    for driver in drivers.started:
        assert "trials pending" in drivers.output(driver)
    drivers.end(drivers.start(0))
    assert drivers.ran() == first, "the same budget runs nothing"
    assert f"budget reached: {len(finished)} of 150 trials ran; raise `budget`" in drivers.output(drivers.started[-1])
    budgeted(drivers, 140)
    drivers.end(drivers.start(0))
    assert len(first) < len(drivers.ran()) < 140
    assert drivers.ran().total() <= len(drivers.ran()) + len(late), "what has finished is kept"
    assert spent_seconds(drivers) <= 1.01 * 140 + PAUSES


def test_trials_without_a_known_duration_end_with_the_budget(drivers):
    slots = {"cpus": 1}
    drivers.write(command="sleep 300", grid={}, slots=slots, budget={"gpu_hours": 20 / 3600}, grace_seconds=0)
    drivers.end(drivers.start(0))
    assert [each.outcome for each in Fold(drivers.folder).update().attempts.values()] == ["interrupted"]
    assert "the budget is reached: running trials end" in drivers.output(drivers.started[0])
    assert spent_seconds(drivers, cpus=1) <= 1.05 * 20 + PAUSES
