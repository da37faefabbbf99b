"""A failure costs the trial that fails no more than an attempt, and the others nothing, whatever it leaves behind."""

import pandas as pd
import psutil
import pytest
from slurm_cluster.waiting import PATIENCE_SECONDS, wait_until
from trainyard.packing import gpu_health, gpu_sharing
from trainyard.planning.attempts import fold_attempts
from trainyard.planning.journal import decode_all, read_journal
from trainyard.utils.jsonl import read_events
from yard import ROOT

# GPUs are only counted here, but each slot's process is told its own. The trials read the journal to wait for what must
# have happened before.
TRIALS = """
import os, signal, time
from pathlib import Path

GPU, LEFT_BEHIND = os.environ["CUDA_VISIBLE_DEVICES"], []

def count(text):
    return Path("results/sweeps/s/journal.jsonl").read_text().count(text)

def wait_for(text, times=1):
    end = time.monotonic() + 600
    while count(text) < times:
        assert time.monotonic() < end, f"nothing was heard of {text}"
        time.sleep(0.05)

def on_a_broken_gpu(config, context):
    if GPU == "0":
        if count('"failed"') == 3:
            wait_for('"finished"', 4)
        raise RuntimeError("planned trouble")
    if count('"finished"') < 4:  # the first one, and those that failed first, which are tried here next
        wait_for('"failed"', 3)
    else:
        wait_for('"slot_down"')

def poisoned(config, context):
    assert not LEFT_BEHIND, "in the process of a trial that failed"
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
def sweep(yard):
    """What runs a sweep of one of these functions, and tells its attempts and what was said."""
    (yard.folder / "mine.py").write_text(TRIALS)

    def run(function, trials, *, slots=2, **options):
        slots = {"gpus_per_node": slots}
        yard.write({"sweeps": {"s": {"function": f"mine:{function}", "trials": trials, "slots": slots, **options}}})
        said = yard.run(*yard.script("sweep", "--sweep", "s")).stdout
        events = read_events(yard.results / "sweeps/s/journal.jsonl")
        return fold_attempts(decode_all(events)), events, said

    return run


def gpus_of(tries):
    """Of the attempts of each trial, in their order."""
    rows = pd.DataFrame([{"trial": each.trial, "gpu": each.where["gpu"]} for each in tries])
    return rows.groupby("trial")["gpu"].apply(list).tolist()


def test_a_slot_on_which_all_fails_is_retired_and_every_trial_succeeds_elsewhere(sweep):
    tries, events, said = sweep("on_a_broken_gpu", [{"n": number} for number in range(8)])
    assert {each.where["gpu"] for each in tries if each.outcome == "failed"} == {"0"}
    assert [each.where["gpu"] for each in tries if each.outcome == "finished"] == ["1"] * 8
    assert "GPU 0) is retired: " in said
    assert "trials in a row failed there, 3 of them finished elsewhere" in said
    assert "going on with 1 of 2 slots" in said
    (down,) = (number for number, event in enumerate(events) if event["event"] == "slot_down")
    assert "check of its GPU: " in events[down]["error"]
    assert {event["gpu"] for event in events[down:] if event["event"] == "started"} <= {"1"}


@pytest.mark.parametrize("slots", [1, 2])
def test_what_follows_a_failure_runs_in_a_fresh_process_and_on_another_gpu_if_there_is_one(sweep, slots):
    trials = [{"n": number, "fails": number < 4} for number in range(6)]
    tries, _, _ = sweep("poisoned", trials, slots=slots, max_failed_fraction=1)
    assert sorted(each.outcome for each in tries) == ["failed"] * 4 + ["finished"] * 6
    again = [gpus for gpus in gpus_of(tries) if len(gpus) == 2]
    assert [len(set(gpus)) for gpus in again] == [slots] * 4


@pytest.mark.parametrize("kills", [False, True])
def test_an_idle_slot_wakes_for_what_failed_elsewhere_also_if_its_process_has_died(sweep, kills):
    tries, _, _ = sweep("fails_late", [{"n": 0, "kills": kills}, {"n": 1, "kills": kills}])
    assert sorted(map(sorted, gpus_of(tries))) in ([["0"], ["0", "1"]], [["0", "1"], ["1"]])
    assert sorted(each.outcome for each in tries) == ["failed", "finished", "finished"]


def test_the_same_mistake_in_every_trial_ends_the_sweep_after_the_first_ones(yard):
    (yard.folder / "train.py").write_text("import argparse\nargparse.ArgumentParser().parse_args()\n")
    sweep = {"command": "python3 train.py --lrr {lr}", "grid": {"lr": list(range(1, 21))}, "retries": 3}
    yard.write({"sweeps": {"s": {**sweep, "slots": {"gpus_per_node": 2}}}})
    done = yard.run(*yard.script("sweep", "--sweep", "s"), check=False)
    assert done.returncode == 1
    line = next(line for line in done.stdout.splitlines() if "stopped: the first trials failed in the same way" in line)
    assert "exit code 2: train.py: error: unrecognized arguments: --lrr" in line
    assert len(fold_attempts(read_journal(yard.results / "sweeps/s/journal.jsonl"))) < 10


def test_a_sweep_whose_ray_starts_no_workers_any_more_ends_in_an_error(yard):
    impatient = """
import runpy, sys
from trainyard.packing.live_view import LiveView
show = LiveView.show
def show_impatiently(view):
    from trainyard.packing import slot_pool  # it imports Ray, which reads its environment then: not before it is up
    slot_pool.START_SECONDS = 5.0
    return show(view)
LiveView.show = show_impatiently
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
    (yard.folder / "impatient.py").write_text(impatient)
    slots = {"gpus_per_node": 2}
    yard.write({"sweeps": {"s": {"command": "sleep 360{n}", "grid": {"n": [1, 2, 3]}, "slots": slots}}})
    python, *line = yard.script("sweep", "--sweep", "s")
    yard.environment["PYTHONPATH"] += f":{ROOT / 'scripts'}"
    driver = yard.start(python, str(yard.folder / "impatient.py"), *line)
    journal = yard.results / "sweeps/s/journal.jsonl"
    wait_until(
        lambda: journal.exists() and journal.read_text().count('"started"') == 2,
        what="two trials to run",
        while_running=driver,
    )
    (raylet,) = (each for each in psutil.Process(driver.pid).children(recursive=True) if each.name() == "raylet")
    raylet.kill()
    said, _ = driver.communicate(timeout=PATIENCE_SECONDS)
    assert driver.returncode == 1
    assert "Ray does not start workers any more" in said
    assert "The same command continues" in said


def test_a_gpu_is_checked_in_a_process_of_its_own():
    check = gpu_health.check_gpu()
    assert not check.is_broken
    assert check.finding == "there is no GPU to check" or gpu_sharing.has_gpu()
