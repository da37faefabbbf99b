"""What users request of a sweep while it runs: more or fewer trials, another one first, a pause, fewer jobs."""

import json
import signal
import sys
from argparse import Namespace
from contextlib import chdir, redirect_stdout
from io import StringIO

import control as control_program
import pandas as pd
import pytest
from drivers import TRIALS
from project import ROOT, TINY, TRAIN
from slurm_cluster.waiting import wait_until
from trainyard.config.load import read_config
from trainyard.planning.attempts import Fold
from trainyard.planning.history import read_state
from trainyard.planning.requests import CANCELLED
from trainyard.utils.errors import UserError

# Trials wait for a file of this name, and report their number when it is there. One that is ended saves a checkpoint,
# with which it then ends at once.
TRIAL = """
echo "$1" >> ran.txt
trap 'echo saved > "$2/state.ckpt"; exit 143' TERM
while [ -z "$3" ] && [ ! -e open ] && [ ! -e "open-$1" ]; do sleep 0.05; done
"""
FUNCTION = """
import time

def run(config, context):
    while not context.time_is_up:
        time.sleep(0.05)
    context.interrupt()
"""
WAITING = {"command": "sh trial.sh {n} {trial_dir} {resume_from}", "checkpoint": "*.ckpt"}


@pytest.fixture
def waiting(drivers):
    """Drivers whose trials wait until they are let go on."""
    (drivers.project.folder / "trial.sh").write_text(TRIAL)

    def write(**sweep):
        drivers.write(**{**WAITING, "grid": {"n": list(range(6))}, **sweep})
        return drivers

    return write


def control(drivers, request, trial=None, *, jobs=None):
    """What the program prints, called in this process: it takes milliseconds, but a second to start."""
    given = Namespace(config=drivers.project.config_file, results=drivers.project.results, sweep="s", request=request)
    given.trial, given.jobs = trial, jobs
    with redirect_stdout(StringIO()) as printed, chdir(drivers.project.folder):
        control_program.main(given)
    return printed.getvalue()


def refusal(drivers, request, trial):
    with pytest.raises(UserError) as error:
        control(drivers, request, trial)
    return str(error.value)


def go_on(drivers, trial=None):
    (drivers.project.folder / ("open" if trial is None else f"open-{trial}")).touch()


def state_of(drivers):
    return read_state(read_config(drivers.project.config_file).sweeps["s"], "s", drivers.project.results)


def name_of(drivers, number):
    return next(name for name, trial in state_of(drivers).trials.items() if trial.values["n"] == number)


def statuses(drivers):
    state = state_of(drivers)
    return {trial.values["n"]: state.record(name).status.value for name, trial in state.trials.items()}


def await_start(drivers, *numbers):
    wait_until(lambda: {str(n) for n in numbers} <= drivers.ran().keys(), what=f"trials {numbers} to start")


def tables(drivers):
    done = drivers.project.run(*drivers.project.script("sweep", "--sweep", "s", "--tables"), check=False)
    return done.stdout + done.stderr


def test_a_running_trial_that_is_cancelled_keeps_its_checkpoint_and_runs_again_only_on_request(waiting):
    drivers = waiting()
    driver = drivers.start(0)
    await_start(drivers, 0)
    trial = name_of(drivers, 0)
    assert f"trial {trial} is cancelled" in control(drivers, "cancel", trial[:6])
    await_start(drivers, 1)  # on the slot that it has left
    go_on(drivers)
    drivers.end(driver)
    assert statuses(drivers) == {0: "cancelled", **dict.fromkeys(range(1, 6), "finished")}
    assert drivers.ran()["0"] == 1
    assert (drivers.folder / "jobs/complete").exists(), "the sweep ends without it"
    assert "5 trials finished, 1 cancelled" in tables(drivers)
    (attempt,) = state_of(drivers).record(trial).attempts
    timeline = pd.read_csv(drivers.folder / "timeline.csv").set_index("trial")
    assert timeline["outcome"][trial] == "cancelled"
    assert pd.read_csv(drivers.folder / "trials.csv").set_index("trial")["status"][trial] == "cancelled"
    assert "is cancelled already" in refusal(drivers, "cancel", trial)
    assert "--forcerun" in control(drivers, "resume", trial), "the tables are written"
    drivers.end(drivers.start(0))
    assert set(statuses(drivers).values()) == {"finished"}
    last = state_of(drivers).record(trial).end
    assert last.number == attempt.number + 1
    assert last.resumed.name == "state.ckpt"


@pytest.mark.parametrize("kind", ["function", "train"])
def test_a_function_and_a_training_end_when_they_are_cancelled(drivers, kind):
    """Each of two trials would run for ever."""
    drivers.write()
    (drivers.project.folder / "mine.py").write_text(FUNCTION)
    drivers.project.stage()
    slots = {"cpus": 2}
    sweep = {"function": "mine:run", "grid": {"n": [0, 1]}, "slots": slots}
    if kind == "train":
        sweep = {"dataset": "tiny", "train": {**TRAIN, "epochs": 10**6}, "grid": {"seed": [0, 1]}, "slots": slots}
    data = TINY["datasets"]
    drivers.project.write({"datasets": data, "sweeps": {"s": sweep}})
    driver = drivers.start(0)
    trials = list(state_of(drivers).trials)
    both = lambda: len(Fold(drivers.folder).update().attempts) == 2  # noqa: E731
    wait_until(both, what="both trials to start", while_running=driver)
    for trial in trials:
        control(drivers, "cancel", trial)
    drivers.end(driver)
    assert {attempt.error for attempt in Fold(drivers.folder).update().attempts.values()} == {CANCELLED}
    assert [state_of(drivers).record(trial).status.value for trial in trials] == ["cancelled"] * 2


def test_a_trial_that_waits_is_cancelled_and_resumed_while_others_run(waiting):
    drivers = waiting()
    driver = drivers.start(0)
    await_start(drivers, 0)
    control(drivers, "cancel", name_of(drivers, 4))
    control(drivers, "cancel", name_of(drivers, 5))
    control(drivers, "resume", name_of(drivers, 5))
    go_on(drivers)
    drivers.end(driver)
    assert statuses(drivers)[4] == "cancelled"
    assert statuses(drivers)[5] == "finished"
    assert "4" not in drivers.ran()


def test_a_driver_that_is_killed_before_it_sees_a_request_leaves_it_to_the_next(waiting):
    drivers = waiting()
    killed = drivers.start(0)
    await_start(drivers, 0)
    killed.send_signal(signal.SIGSTOP)
    control(drivers, "cancel", name_of(drivers, 0))
    control(drivers, "cancel", name_of(drivers, 5))
    killed.kill()
    killed.send_signal(signal.SIGCONT)
    wait_until(lambda: list(drivers.folder.glob("trials/*/state.ckpt")), what="the end of its trial")
    go_on(drivers)
    drivers.end(drivers.start(0))
    assert statuses(drivers) == {0: "cancelled", 5: "cancelled", **dict.fromkeys(range(1, 5), "finished")}
    assert drivers.ran()["0"] == 1


def test_a_pause_holds_for_the_next_drivers_until_it_ends(waiting):
    drivers = waiting(slots={"jobs": 2, "cpus": 1})
    first = drivers.start(0)
    await_start(drivers, 0)
    assert "paused" in control(drivers, "pause")
    go_on(drivers)
    drivers.end(first, drivers.start(1))
    assert drivers.ran() == {"0": 1}, "only what ran when it was paused"
    assert statuses(drivers)[0] == "finished"
    assert "paused since" in tables(drivers)
    assert not (drivers.folder / "trials.csv").exists()
    refused = drivers.project.snakemake("-n", "--", "sweeps", check=False)
    assert "sweep s: paused since" in refused
    assert "with 5 trials left" in refused
    assert "sweep s: paused since" in drivers.project.run(*drivers.project.script("status")).stdout
    assert "after a pause since" in control(drivers, "resume")
    drivers.end(drivers.start(0))
    assert set(statuses(drivers).values()) == {"finished"}
    assert drivers.ran().total() == 6


def test_with_fewer_jobs_the_last_ones_end_after_their_trials(waiting):
    drivers = waiting()
    first = drivers.start(0)
    await_start(drivers, 0)
    second = drivers.start(1)
    wait_until(lambda: drivers.ran().total() == 2, what="a trial of the second driver")
    assert "at most 1 job at the same time, of 2 jobs" in control(drivers, "jobs", jobs=1)
    (of_second,) = drivers.ran().keys() - {"0"}
    go_on(drivers, of_second)
    drivers.end(second)
    assert drivers.ran().total() == 2, "it has taken no further trial"
    drivers.end(drivers.start(2))
    assert drivers.ran().total() == 2, "nor has one that starts later"
    go_on(drivers)
    drivers.end(first)
    assert set(statuses(drivers).values()) == {"finished"}
    assert drivers.ran().total() == 6


def test_the_trial_that_a_user_puts_first_starts_before_all_others(waiting):
    drivers = waiting()
    control(drivers, "first", name_of(drivers, 4))
    driver = drivers.start(0)
    wait_until(drivers.ran, what="a trial to start")
    assert list(drivers.ran()) == ["4"]
    assert "runs already" in refusal(drivers, "first", name_of(drivers, 4))
    go_on(drivers)
    drivers.end(driver)
    assert "has ended already: finished" in refusal(drivers, "first", name_of(drivers, 4))


def test_trials_that_the_config_gains_run_in_the_drivers_that_run(waiting):
    """A driver that starts with the new config finds enough others, and runs none of them."""
    slots = {"jobs": 2, "cpus": 2}
    drivers = waiting(slots=slots, grid={"n": [0, 1, 2]})
    first, second = drivers.start(0), drivers.start(1)
    wait_until(lambda: drivers.ran().total() == 3, what="all trials to start")
    running = set(Fold(drivers.folder).update().claims.sessions)
    waiting(slots=slots, grid={"n": list(range(TRIALS))})
    drivers.end(drivers.start(1))
    wait_until(lambda: drivers.ran().total() >= 4, what="a trial of the new config, on a slot that was idle")
    go_on(drivers)
    drivers.end(first, second)
    assert sorted(drivers.ran().values()) == [1] * TRIALS
    assert drivers.sessions().keys() == running
    marks = (drivers.folder / "jobs/complete").read_text().splitlines()
    assert state_of(drivers).space.digest in marks
    assert len(marks) == 2, "for a Snakemake with the old config, too"


def test_draws_that_a_search_gains_are_made_by_the_driver_that_runs(drivers):
    search = {"trials": 2, "method": "random", "values": {"x": {"low": 0.0, "high": 1.0}}}
    metrics = {"metrics": {"pattern": r"loss=(?P<loss>\S+)"}, "metric": "loss", "grid": {}}
    command = "echo {x} >> ran.txt; while [ ! -e open ]; do sleep 0.05; done; echo loss={x}"
    drivers.write(command=command, search=search, **metrics)
    driver = drivers.start(0)
    wait_until(lambda: drivers.ran(), what="a draw")
    drivers.write(command=command, search={**search, "trials": 5}, **metrics)
    drivers.start(1)
    wait_until(lambda: len(drivers.ran()) == 2, what="the other driver to run the second draw")
    go_on(drivers)
    drivers.end(*drivers.started)
    assert len(drivers.ran()) == 5
    assert len(drivers.sessions()) == 2
    drivers.end(driver)


def test_another_change_of_the_config_is_not_taken_up_and_the_message_says_so(waiting):
    drivers = waiting(grid={"n": [0, 1]})
    first = drivers.start(0)
    await_start(drivers, 0)
    waiting(grid={"n": [0, 1, 2]}, retries=3)
    second = drivers.start(1)
    wait_until(lambda: drivers.ran().total() == 2, what="a trial of the second driver")
    go_on(drivers)
    drivers.end(first, second)
    assert "go on with the config that they know: retries changed" in drivers.output(second)
    assert "the config has gained" not in drivers.output(first)
    assert sorted(drivers.ran().values()) == [1, 1, 1], "the driver with the new config has run the third"


@pytest.mark.parametrize("in_slurm_job", [False, True])
def test_the_same_command_with_more_trials_waits_for_the_one_that_runs(slurm, waiting, in_slurm_job):
    """On a machine without Slurm, and in an allocation of a user, both would use the same GPUs."""
    slots = {"cpus": 1}
    drivers = waiting(slots=slots, grid={"n": [0, 1]})
    if in_slurm_job:
        drivers.project.environment["SLURM_JOB_ID"] = slurm.allocate("n1")
    command = drivers.project.script("sweep", "--sweep", "s")
    first = drivers.start_command(*command)
    await_start(drivers, 0)
    waiting(slots=slots, grid={"n": [0, 1, 2, 3]})
    second = drivers.start_command(*command)
    wait_until(lambda: "waiting for them" in drivers.output(second), what="the second command to wait")
    go_on(drivers)
    drivers.end(first, second)
    assert sorted(drivers.ran().values()) == [1] * 4
    assert len(drivers.sessions()) == 1
    assert len(pd.read_csv(drivers.folder / "trials.csv")) == 4


def test_a_trial_that_is_not_there_is_an_error_with_the_names_that_are_near(drivers):
    drivers.write()
    names = list(state_of(drivers).trials)
    wrong = names[3][:-1] + ("0" if names[3][-1] != "0" else "1")
    assert f"has no trial {wrong}; did you mean {names[3]}" in refusal(drivers, "cancel", wrong)
    assert "has no trial zzz; known: " in refusal(drivers, "cancel", "zzz")
    assert f"is the beginning of {TRIALS} trials" in refusal(drivers, "cancel", "")
    assert "is not cancelled" in refusal(drivers, "resume", names[0])
    done = drivers.project.run(*drivers.project.script("control", "--sweep", "s", "jobs", "0"), check=False)
    assert "at least one job" in done.stderr
    assert not (drivers.folder / "claims").exists(), "nothing was requested"


@pytest.mark.parametrize("after", [False, True], ids=["before the link", "after it"])
def test_a_request_counts_as_a_whole_or_not_at_all_if_its_program_is_killed(drivers, after):
    drivers.write()
    trial = name_of(drivers, 0)
    script = drivers.project.script("control", "--sweep", "s", "cancel", trial)[1:]
    lines = [
        "import os, runpy, sys",
        "link = os.link",
        f"os.link = lambda *names: ({'link(*names)' if after else 'None'}, os._exit(9))",
        f"sys.argv, sys.path = {script!r}, [{str(ROOT / 'scripts')!r}, *sys.path]",
        "runpy.run_path(sys.argv[0], run_name='__main__')",
    ]
    assert drivers.project.run(sys.executable, "-c", "\n".join(lines), check=False).returncode == 9
    assert len(list((drivers.folder / "claims").glob(".*.tmp"))) == 1, "its draft is left"
    assert (statuses(drivers)[0] == "cancelled") == after
    control(drivers, "first", name_of(drivers, 1))
    assert [json.loads(path.read_text())["n"] for path in sorted((drivers.folder / "claims").glob("0*.json"))] == (
        [1, 2] if after else [1]
    )
