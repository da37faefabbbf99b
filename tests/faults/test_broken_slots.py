"""A failure costs one attempt of the failed trial and does not affect other trials."""

import pandas as pd
import psutil
import pytest
from project import ROOT, child_named
from slurm_cluster.waiting import PATIENCE_SECONDS, wait_until
from sweep_journals import attempts_in, journal_text, read_records
from trainyard.cluster import gpus
from trainyard.packing import worker_gpu

pytestmark = pytest.mark.slow

# There are no GPUs here, but the process of each slot gets the index of one. Trials wait for events in the journal.
TRIALS = """
import os, signal, time
from pathlib import Path

GPU, LEFT_BEHIND = os.environ["CUDA_VISIBLE_DEVICES"], []

def count(text):
    return sum(path.read_text().count(text) for path in Path("results/sweeps/s/sessions").glob("*.jsonl"))

def wait_for(text, times=1):
    end = time.monotonic() + 600
    while count(text) < times:
        assert time.monotonic() < end, f"no {text} in the journal"
        time.sleep(0.05)

def on_a_broken_gpu(config, context):
    if GPU == "0":
        if count('"failed"') == 3:
            wait_for('"finished"', 4)
        raise RuntimeError("planned trouble")
    if count('"finished"') < 4:  # the first trial, and the retries of those that failed
        wait_for('"failed"', 3)
    else:
        wait_for('"slot_down"')

def without_retries(config, context):
    needed = 3 * (1 + count('"failed"'))
    if GPU == "0":
        wait_for('"finished"', needed)
        raise RuntimeError("planned trouble")
    if needed <= 12 and count('"finished"') >= needed:
        wait_for('"failed"', needed // 3)

def poisoned(config, context):
    assert not LEFT_BEHIND, "this process ran a trial that failed"
    if context.attempt == 1 and config["fails"]:
        LEFT_BEHIND.append(config)
        raise RuntimeError("planned trouble")

def fails_late(config, context):
    if config["n"] == 0:
        Path("idle").write_text(str(os.getpid()))
    elif context.attempt == 1:
        wait_for('"finished"')
        if config["kills"]:
            os.kill(int(Path("idle").read_text()), signal.SIGKILL)
        raise RuntimeError("planned trouble")
"""


@pytest.fixture
def sweep(project):
    """A function that runs a sweep of one of these functions; returns its attempts, events and output."""
    (project.folder / "mine.py").write_text(TRIALS)

    def run(function, trials, *, slots=2, **options):
        slots = {"gpus_per_node": slots}
        project.write({"sweeps": {"s": {"function": f"mine:{function}", "trials": trials, "slots": slots, **options}}})
        output = project.run(*project.script("sweep", "--sweep", "s")).stdout
        folder = project.results / "sweeps/s"
        return attempts_in(folder), read_records(folder), output

    return run


def gpus_of(tries):
    """The GPUs of the attempts of each trial, in order."""
    rows = pd.DataFrame([{"trial": each.trial, "gpu": each.location.gpu} for each in tries])
    return rows.groupby("trial")["gpu"].apply(list).tolist()


def test_a_slot_on_which_every_trial_fails_is_retired_and_the_trials_succeed_elsewhere(sweep):
    tries, events, output = sweep("on_a_broken_gpu", [{"n": number} for number in range(8)])
    assert {each.location.gpu for each in tries if each.outcome == "failed"} == {"0"}
    assert [each.location.gpu for each in tries if each.outcome == "finished"] == ["1"] * 8
    assert "GPU 0) is retired: " in output
    assert "trials in a row failed there, 3 of them finished elsewhere" in output
    assert "continuing with 1 of 2 slots" in output
    (down,) = (number for number, event in enumerate(events) if event["event"] == "slot_down")
    assert "check of its GPU: " in events[down]["error"]
    assert {event["gpu"] for event in events[down:] if event["event"] == "started"} <= {"1"}


def test_without_retries_a_slot_on_which_every_trial_fails_gets_no_more_of_them(sweep):
    trials = [{"n": number} for number in range(20)]
    tries, _, output = sweep("without_retries", trials, retries=0, max_failed_fraction=1)
    assert [each.location.gpu for each in tries if each.outcome == "failed"] == ["0"] * 4
    assert [each.location.gpu for each in tries if each.outcome == "finished"] == ["1"] * 16
    assert "GPU 0) gets no trial while others succeed: 4 trials in a row failed there" in output


@pytest.mark.parametrize("slots", [1, 2])
def test_after_a_failure_trials_run_in_a_new_process_and_retries_on_another_gpu(sweep, slots):
    trials = [{"n": number, "fails": number < 4} for number in range(6)]
    tries, _, _ = sweep("poisoned", trials, slots=slots, max_failed_fraction=1)
    assert sorted(each.outcome for each in tries) == ["failed"] * 4 + ["finished"] * 6
    again = [gpus for gpus in gpus_of(tries) if len(gpus) == 2]
    assert [len(set(gpus)) for gpus in again] == [slots] * 4


@pytest.mark.parametrize("kills", [False, True])
def test_an_idle_slot_retries_a_trial_that_failed_elsewhere_even_if_its_process_has_died(sweep, kills):
    tries, _, _ = sweep("fails_late", [{"n": 0, "kills": kills}, {"n": 1, "kills": kills}])
    assert sorted(map(sorted, gpus_of(tries))) in ([["0"], ["0", "1"]], [["0", "1"], ["1"]])
    assert sorted(each.outcome for each in tries) == ["failed", "finished", "finished"]


def kill_raylet_of_two_trials(project, driver):
    """Kill it once two trials run; returns the folder of the sweep."""
    folder = project.results / "sweeps/s"
    wait_until(lambda: journal_text(folder).count('"started"') == 2, what="two trials to run", while_running=driver)
    child_named("raylet", psutil.Process(driver.pid)).kill()
    return folder


def test_a_sweep_ends_in_an_error_when_ray_starts_no_more_workers(project):
    impatient = """
import runpy, sys, threading
from trainyard.cluster.ray import start
from trainyard.packing import driver
reap = start._reap_raylet
start._reap_raylet = lambda has_ended: reap(threading.Event())  # otherwise, Ray would be started again
show = driver._shown
def show_impatiently(view):
    from trainyard.packing import slot_pool  # it imports Ray, which reads its environment then: not before it is up
    replace = slot_pool.SlotPool.replace_worker
    def replace_impatiently(pool, slot):
        slot_pool.START_SECONDS = 5.0  # not for the first workers, which may take long on a busy machine
        return replace(pool, slot)
    slot_pool.SlotPool.replace_worker = replace_impatiently
    return show(view)
driver._shown = show_impatiently
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
    (project.folder / "impatient.py").write_text(impatient)
    slots = {"gpus_per_node": 2}
    project.write({"sweeps": {"s": {"command": "sleep 360{n}", "grid": {"n": [1, 2, 3]}, "slots": slots}}})
    python, *line = project.script("sweep", "--sweep", "s")
    project.environment["PYTHONPATH"] += f":{ROOT / 'scripts'}"
    driver = project.start(python, str(project.folder / "impatient.py"), *line)
    kill_raylet_of_two_trials(project, driver)
    output, _ = driver.communicate(timeout=PATIENCE_SECONDS)
    assert driver.returncode == 1
    assert "Ray does not start workers any more" in output
    assert "The same command continues" in output


def test_after_the_end_of_the_raylet_ray_is_started_again_and_no_trial_has_failed(project):
    """Otherwise, all GPUs would be idle until no worker had started for five minutes."""
    slots, held = {"gpus_per_node": 2}, project.folder / "held"
    held.touch()
    command = f"while [ -e {held} ]; do sleep 0.1; done; echo {{n}}"
    project.write({"sweeps": {"s": {"command": command, "grid": {"n": [1, 2, 3]}, "slots": slots, "retries": 0}}})
    driver = project.start(*project.script("sweep", "--sweep", "s"))
    folder = kill_raylet_of_two_trials(project, driver)
    wait_until(lambda: journal_text(folder).count('"ray_up"') == 2, what="Ray to start again", while_running=driver)
    held.unlink()
    output, _ = driver.communicate(timeout=PATIENCE_SECONDS)
    assert driver.returncode == 0, output
    assert "starting Ray again" in output
    assert sorted(each.outcome for each in attempts_in(folder)) == ["finished"] * 3 + ["interrupted"] * 2
    assert journal_text(folder).count('"session"') == 1, "in the tables, it is one run"


def test_ray_is_started_again_if_it_ends_while_it_starts(project):
    project.write({"sweeps": {"s": {"command": "echo {n}", "grid": {"n": [1, 2, 3]}, "slots": {"gpus_per_node": 2}}}})
    driver = project.start(*project.script("sweep", "--sweep", "s"))
    server = wait_until(
        lambda: child_named("gcs_server", psutil.Process(driver.pid)), what="Ray to start", while_running=driver
    )
    server.kill()
    output, _ = driver.communicate(timeout=PATIENCE_SECONDS)
    assert driver.returncode == 0, output
    assert "Ray did not start on" in output
    assert "starting Ray again" in output
    assert "Traceback" not in output


def test_a_gpu_is_checked_in_a_separate_process():
    check = worker_gpu.check_gpu()
    assert not check.is_broken
    assert check.finding == "there is no GPU to check" or gpus.has_gpu()
