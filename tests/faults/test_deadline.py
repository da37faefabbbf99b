"""Near the end of the walltime, no trial starts that cannot end in time, and no progress is lost."""

import re
from pathlib import Path

import pandas as pd
import pytest
from project import ONE_RANK, ROOT, TINY, Project
from sweep_journals import attempts_in, record_attempt, session_of
from trainyard.config.load import check_config
from trainyard.packing.time_limits import STOP_SECONDS
from trainyard.planning.plan import plan_sweep

# Runs a program of scripts/ in a job whose walltime ends so many seconds after the first event of a kind, as the time
# before depends on the load of the machine; without a kind, after the program has started.
DRIVER = """
import math, runpy, sys, time
from pathlib import Path
sys.path.insert(0, {scripts!r})
from trainyard.planning import journal
from trainyard.utils import event_log
from trainyard.cli import command_line
from trainyard.cluster import slurm_allocation

class Job(slurm_allocation.Allocation):
    began = time.time()

    @property
    def deadline(self):
        events = [each for path in Path({sessions!r}).glob("*.jsonl") for each in event_log.read_events(path)]
        events = [each for each in events if each["time"] >= self.began]  # without those of an earlier run
        events = events if {after!r} else [{{"event": None, "time": self.began}}]
        return next((each["time"] + {seconds} for each in events if each["event"] == {after!r}), math.inf)

job = Job(job="7", nodes=("here",), end_time=math.inf, gpu_model="a100")
slurm_allocation.current_allocation = lambda: job
runpy.run_path({scripts!r} + "/{program}.py", run_name="__main__")
"""
SLOW = """
import time
from pathlib import Path
from trainyard.training.models import SmallConvNet

class Slow(SmallConvNet):
    def forward(self, images):
        if self.training:
            time.sleep(self.step_seconds)
            with open(self.steps_file, "a") as file:
                file.write("step\\n")
        return super().forward(images)

def build(*, channels, classes, seconds=0, only_once=None, step_seconds=0, steps_file=None):
    if only_once is None or not Path(only_once).exists():
        Path(only_once or "/dev/null").touch()
        time.sleep(seconds)
    model = (Slow if steps_file else SmallConvNet)(channels=channels, classes=classes, width=4)
    model.step_seconds, model.steps_file = step_seconds, steps_file
    return model
"""


@pytest.fixture
def slow(project: Project) -> Project:
    (project.folder / "slow.py").write_text(SLOW)
    return project


def run_for(project, seconds, *options, program="sweep", after=None, check):
    paths = {"scripts": str(ROOT / "scripts"), "sessions": str(project.results / "sweeps/s/sessions")}
    code = DRIVER.format(**paths, seconds=seconds, program=program, after=after)
    (project.folder / "driver.py").write_text(code)
    project.environment["PYTHONPATH"] += f":{ROOT / 'scripts'}"  # Ray's workers import from the folder of the program
    if program == "train":
        project.environment |= ONE_RANK
    python, _, *common = project.script(program, *(options or ["--sweep", "s"]))
    return project.run(python, "driver.py", *common, check=check)


def journal_of(project):
    return attempts_in(project.results / "sweeps/s")


@pytest.mark.slow
def test_no_trial_starts_that_can_neither_end_nor_resume(slow):
    """Ten minutes are left. A trial of two hours could start, but all of its progress would be lost."""
    config = {"sweeps": {"s": {"command": "sleep {n}", "grid": {"n": [0.5, 0.6, 0.7, 7200]}, "cost": "n"}}}
    slow.write(config)
    trials = plan_sweep(check_config(config), "s", slow.results).state.trials
    with session_of(slow.results / "sweeps/s") as journal:  # measured on a machine that is not busy
        for name, seconds in zip(trials, (0.5, 0.6, 0.7), strict=False):
            record_attempt(journal, name, seconds=seconds)
    done = run_for(slow, 600, check=False)
    assert done.returncode == 1
    assert "none could end in time" in done.stdout
    assert [attempt.outcome for attempt in journal_of(slow)] == ["finished"] * 3


@pytest.mark.slow
def test_the_walltime_of_the_sweep_is_named_if_it_was_too_short(slow):
    slow.write({"sweeps": {"s": {"command": "sleep 3600", "grace_seconds": 1, "walltime": "1min"}}})
    done = run_for(slow, STOP_SECONDS + 3, after="started", check=False)
    assert "none could end in time: raise `walltime: 1min` of the sweep" in done.stdout
    assert "unless `runtime` is set" not in done.stdout, "it is"


@pytest.mark.slow
def test_trials_that_cannot_resume_are_not_said_to_continue(slow):
    slow.write({"sweeps": {"s": {"command": "sleep 3600", "grace_seconds": 1}}})
    done = run_for(slow, STOP_SECONDS + 3, after="started", check=False)
    assert done.returncode == 1
    assert [attempt.outcome for attempt in journal_of(slow)] == ["interrupted"]
    assert "with 1 trial left: none could end in time: raise `walltime` of the sweep, or `runtime` where" in done.stdout
    assert "; these trials cannot resume, so that retries request more time, unless `runtime` is set" in done.stdout


@pytest.mark.slow
def test_a_job_says_of_a_trial_that_is_too_long_for_it_whether_another_one_will_get_further(slow):
    """Its program saves a checkpoint in its first attempt only."""
    command = "test -e {trial_dir}/a.pt || echo 1 > {trial_dir}/a.pt; sleep 3600"
    slow.write({"sweeps": {"s": {"command": command, "checkpoint": "*.pt", "grace_seconds": 1}}})
    for said in ("the same command continues from here", "it has saved no checkpoint"):
        done = run_for(slow, STOP_SECONDS + 4, after="started", check=False)
        assert f"with 1 trial left: {said}" in done.stdout
    assert [attempt.has_saved for attempt in journal_of(slow)] == [True, False]


def test_a_trial_stops_and_resumes_from_the_same_step_and_one_that_hangs_is_killed(slow):
    """One trial has epochs of two steps of 0.6 s each; building the model of the other one takes an hour, once.

    30 s after the start of the first one, both must stop: the first one is then within its epochs.
    """
    files = {"hanging": str(slow.folder / "hung"), "steps": str(slow.folder / "steps")}
    long = {"epochs": 30, "batch_size": 32, "model_args": {"step_seconds": 0.6, "steps_file": files["steps"]}}
    hanging = {"batch_size": 32, "model_args": {"seconds": 3600, "only_once": files["hanging"]}}
    sweep = {"dataset": "tiny", "train": {"model": "slow:build"}, "trials": [long, hanging]}
    slow.write({**TINY, "sweeps": {"s": {**sweep, "slots": {"gpus_per_node": 2}}}})
    slow.stage()
    done = run_for(slow, STOP_SECONDS + 30, after="started", check=False)
    assert "with 2 trials left: the same command continues from here" in done.stdout
    tries = journal_of(slow)
    assert [attempt.outcome for attempt in tries] == ["interrupted"] * 2
    stopped = next(attempt for attempt in tries if attempt.error)
    assert "stopped before the end of the walltime, in epoch" in stopped.error
    assert len(list((slow.results / "sweeps/s/checkpoints").glob("*/*.pt"))) == 1, "the other one had made no progress"
    run_for(slow, 600, check=True)
    assert len((slow.folder / "steps").read_text().splitlines()) == 60, "no step was repeated"
    finished = [attempt for attempt in journal_of(slow) if attempt.outcome == "finished"]
    again = next(attempt for attempt in finished if attempt.trial == stopped.trial)
    assert [row["epoch"] for row in again.epochs] == list(range(1, 31)), "its history has all epochs"
    assert again.seconds >= 36, "the total time, for the next plan"
    assert not list((slow.results / "sweeps/s/checkpoints").iterdir())


@pytest.mark.slow
def test_a_scale_stops_within_an_epoch_and_resumes_from_the_same_step(slow):
    """Two epochs of eight steps that take 0.4 s each."""
    steps = str(slow.folder / "steps")
    args = {"step_seconds": 0.4, "steps_file": steps}
    train = {"model": "slow:build", "model_args": args, "batch_size": 8, "epochs": 2, "lr": 0.01}
    slow.write({**TINY, "scaling": {"s": {"dataset": "tiny", "train": train, "scales": ["1x1"]}}})
    slow.stage()
    scale = ["--study", "s", "--scale", "1x1"]
    done = run_for(slow, 4, *scale, program="train", check=False)
    assert done.returncode == 1
    stopped = re.search(r"walltime, in epoch (\d) of 2, after step (\d) of 8: the same command continues", done.stdout)
    epoch, step = int(stopped[1]) - 1, int(stopped[2])
    done = run_for(slow, 600, *scale, program="train", check=True)
    assert f"continuing after epoch {epoch} and step {step}, from" in done.stdout
    assert len(Path(steps).read_text().splitlines()) == 16, "no step was repeated"
    folder = slow.results / "scaling/s/1x1"
    assert pd.read_csv(folder / "history.csv")["epoch"].tolist() == [1, 2]
    samples = pd.read_csv(next((folder / "telemetry").glob("cpu-*.csv")))
    assert len(samples) >= 4, "from both runs, at the start and the end of each"
