"""The end of the walltime is known: nothing is begun that cannot end, and nothing is lost."""

import pytest
from trainyard.journal import attempts, read_events
from yard import ROOT, TINY, Yard

# Runs a sweep as scripts/sweep.py does, in a job whose walltime ends so many seconds from now.
DRIVER = """
import sys, time
sys.path.insert(0, {scripts!r})
import sweep
from trainyard import programs, slurm
end = time.time() + {seconds} + slurm.DEADLINE_MARGIN_SECONDS
job = slurm.Allocation(job="7", nodes=("here",), end_time=end, gpu_model="a100")
slurm.allocation = lambda: job
programs.run(sweep.main, sweep._arguments())
"""
SLOW = """
import time
from trainyard.models import SmallConvNet

def build(*, channels, classes, seconds):
    time.sleep(seconds)
    return SmallConvNet(channels=channels, classes=classes, width=4)
"""


@pytest.fixture
def slow(yard: Yard) -> Yard:
    (yard.folder / "slow.py").write_text(SLOW)
    return yard


def config(*seconds):
    trials = [{"model_args.seconds": each, "seed": number} for number, each in enumerate(seconds)]
    sweep = {"dataset": "tiny", "train": {"model": "slow:build", "batch_size": 32}, "trials": trials}
    return {**TINY, "sweeps": {"s": {**sweep, "cost": "model_args.seconds"}}}


def run_for(yard, seconds, *, check):
    code = DRIVER.format(scripts=str(ROOT / "scripts"), seconds=seconds)
    (yard.folder / "driver.py").write_text(code)
    yard.environment["PYTHONPATH"] += f":{ROOT / 'scripts'}"  # Ray's workers look in the folder of the program
    program, _, *options = yard.script("sweep", "--sweep", "s")
    return yard.run(program, "driver.py", *options, check=check)


def journal_of(yard):
    return attempts(read_events(yard.results / "sweeps/s/journal.jsonl"))


def test_no_trial_is_begun_that_cannot_end_and_the_next_run_does_the_rest(slow):
    slow.write(config(6, 6, 6))
    slow.stage()
    done = run_for(slow, 22, check=False)
    assert done.returncode == 1
    rows = journal_of(slow)
    assert {attempt.outcome for attempt in rows} == {"finished"}, "no trial was begun in vain"
    assert "stopped before the end of the walltime" in done.stdout
    assert "the same command continues from here" in done.stdout
    assert 1 <= len(rows) <= 2
    run_for(slow, 600, check=True)
    assert [attempt.outcome for attempt in journal_of(slow)] == ["finished"] * 3


def test_a_trial_that_still_runs_at_the_end_is_recorded_as_interrupted(slow):
    slow.write(config(30))
    slow.stage()
    done = run_for(slow, 12, check=False)
    assert "1 trials are left: none could end in time: ask for a longer walltime" in done.stdout
    assert [attempt.outcome for attempt in journal_of(slow)] == ["interrupted"]
