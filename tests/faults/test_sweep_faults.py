"""After a fault in a sweep, finished trials stay finished and only missing ones are trained."""

import shutil
import signal
import tempfile
from collections import Counter
from pathlib import Path

import pandas as pd
import psutil
import pytest
from project import PLACE_IN_ORDER, TINY, Project, alive
from slurm_cluster.waiting import PATIENCE_SECONDS, wait_until
from sweep_journals import attempts_in, read_records
from trainyard.cluster.ray.patches import SWITCH
from trainyard.planning.journal import journal_files

# A model that injects a fault into the worker, which calls `build` once per attempt.
TROUBLE = """
import os, signal, time
from pathlib import Path
import torch
from trainyard.training.models import SmallConvNet

def build(*, channels, classes, trouble="none", gate=None, mark=None):
    while gate and not Path(gate).exists():
        time.sleep(0.05)
    first = mark is None or not Path(mark).exists()
    if mark:
        Path(mark).touch()
    if trouble == "raise" and first:
        raise RuntimeError("planned trouble\\nwith a second line")
    if trouble == "kill" and first:
        os.kill(os.getpid(), signal.SIGKILL)
    return (Greedy if trouble == "memory" else SmallConvNet)(channels=channels, classes=classes, width=4)

class Greedy(SmallConvNet):
    def forward(self, images):
        if self.training and len(images) > 10:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return super().forward(images)
"""

# A trial without torch. With `meet`, it first waits until so many trials have started, which takes as many slots. If
# more than `gated_after` trials have started, it waits for a file `open`. If its seed is in `raises`, it fails while
# there is a file `broken`.
PLAIN = (
    PLACE_IN_ORDER
    + """
import time

def run(config, context):
    gated = place_in_order() >= config.get("gated_after", 1000)
    if config["seed"] in config.get("raises", ()) and (HERE / "broken").exists():
        raise RuntimeError("planned trouble\\nwith a second line")
    while len(list(HERE.glob("place-*"))) < config.get("meet", 0):
        time.sleep(0.05)
    time.sleep(config["lasts"])
    while gated and not (HERE / "open").exists():
        time.sleep(0.05)
"""
)


@pytest.fixture
def plain(project: Project) -> Project:
    (project.folder / "plain.py").write_text(PLAIN)
    return project


@pytest.fixture
def trouble(project: Project) -> Project:
    (project.folder / "trouble.py").write_text(TROUBLE)
    project.write(config(trials=[{}]))
    project.stage()
    return project


def config(*, trials, **sweep):
    base = {"dataset": "tiny", "train": {"model": "trouble:build", "batch_size": 32, "lr": 0.01}}
    numbered = [{"seed": number, **trial} for number, trial in enumerate(trials)]
    return {**TINY, "sweeps": {"s": {**base, "trials": numbered, "slots": {"gpus_per_node": 2}, **sweep}}}


def lasting(*seconds, slots=2, **sweep):
    """A sweep of trials with these durations."""
    trials = [{"seed": number, "lasts": each} for number, each in enumerate(seconds)]
    slots = slots if isinstance(slots, dict) else {"gpus_per_node": slots}
    return {"sweeps": {"s": {"function": "plain:run", "trials": trials, "slots": slots, **sweep}}}


def sweep_command(project):
    return project.script("sweep", "--sweep", "s")


def journal_of(project):
    return attempts_in(project.results / "sweeps/s")


def outcomes(project):
    return Counter(attempt.outcome for attempt in journal_of(project))


def table(project, name="trials"):
    return pd.read_csv(project.results / f"sweeps/s/{name}.csv")


def descendants(pid):
    return psutil.Process(pid).children(recursive=True)


# Faults in a trial: its options, the outcomes of its attempts, and the error of the first one.
FAILURES = {
    "raises for good": ({"model_args.trouble": "raise"}, ["failed", "failed"], "planned trouble"),
    "raises once": ({"model_args.trouble": "raise", "model_args.mark": "raised"}, ["failed", "finished"], "planned"),
    "is killed for good": ({"model_args.trouble": "kill"}, ["failed", "failed"], "it was killed"),
    "is killed once": ({"model_args.trouble": "kill", "model_args.mark": "killed"}, ["failed", "finished"], "killed"),
    "diverges": ({"lr": 1e30}, ["diverged"], "the loss became NaN or infinite in epoch 1"),
    "cannot be built": ({"model": "nowhere:build"}, ["failed", "failed"], "cannot be imported"),
    "has too little memory": ({"model_args.trouble": "memory"}, ["finished"], ""),
    "nothing": ({}, ["finished"], ""),
}


@pytest.fixture(scope="module")
def failures(tmp_path_factory):
    """The project and the output of a sweep with all these faults and one retry."""
    project = Project(tmp_path_factory.mktemp("failures"))
    (project.folder / "trouble.py").write_text(TROUBLE)
    trials = [options for options, _, _ in FAILURES.values()]
    marked = [
        {key: str(project.folder / value) if key.endswith("mark") else value for key, value in options.items()}
        for options in trials
    ]
    slots = {"gpus_per_node": 2}
    project.write(config(trials=marked, retries=1, slots=slots))
    project.stage()
    return project, project.run(*sweep_command(project)).stdout


@pytest.mark.parametrize(("number", "case"), list(enumerate(FAILURES)), ids=lambda value: str(value))
def test_a_failing_trial_does_not_affect_others(failures, number, case):
    project, output = failures
    _, expected, error = FAILURES[case]
    row = table(project).set_index("seed").loc[number]
    tries = [attempt for attempt in journal_of(project) if attempt.trial == row["trial"]]
    assert [attempt.outcome for attempt in tries] == expected
    assert row["status"] == expected[-1]
    assert error in tries[0].error
    logs = sorted((project.results / "sweeps/s/logs").glob(f"{row['trial']}-*.log"))
    assert len(logs) == expected.count("failed"), "only failures have a log file"
    assert all(error in log.read_text() for log in logs)
    assert f"{row['trial']}" in output


def test_a_trial_that_is_out_of_memory_halves_its_micro_batches(failures):
    """The journal and the table record the micro-batch size."""
    project, output = failures
    rows = table(project).set_index("seed")
    row = rows.loc[list(FAILURES).index("has too little memory")]
    assert (row["micro_batch"], row["accumulation"]) == (8, 4)
    whole = rows.loc[list(FAILURES).index("nothing")]
    assert (whole["micro_batch"], whole["accumulation"]) == (32, 1)
    events = [each for each in read_records(project.results / "sweeps/s") if each["event"] == "halved"]
    assert [(each["trial"], each["micro_batch"]) for each in events] == [(row["trial"], 16), (row["trial"], 8)]
    assert "out of memory; continues with micro-batches of 8 images x 4" in output


@pytest.mark.slow
def test_with_max_failed_fraction_0_the_sweep_ends_in_an_error_and_the_next_run_retries(plain):
    (plain.folder / "broken").touch()
    plain.write(lasting(0, 0, args={"raises": [1]}, retries=0, max_failed_fraction=0))
    done = plain.run(*sweep_command(plain), check=False)
    assert done.returncode == 1
    assert outcomes(plain) == {"finished": 1, "failed": 1}, "without retries there is one attempt"
    assert "FAILED (no retries left): RuntimeError: planned trouble" in done.stdout
    assert "1 of 2 trials failed for good" in done.stdout
    assert "Traceback" not in done.stdout
    assert not (plain.results / "sweeps/s/trials.csv").exists()
    (plain.folder / "broken").unlink()
    done = plain.run(*sweep_command(plain))
    assert "1 of 2 trials pending (1 failed before)" in done.stdout
    assert outcomes(plain) == {"finished": 2, "failed": 1}


@pytest.mark.parametrize("fast", [True, pytest.param(False, marks=pytest.mark.slow, id="without-quick-start")])
def test_a_killed_driver_loses_only_running_trials(plain, fast):
    """Also if it is killed while it writes to the journal, and if Ray starts without patches."""
    plain.environment |= {} if fast else {SWITCH: "0"}
    plain.write(lasting(*[0] * 6, args={"gated_after": 2}))
    driver = plain.start(*sweep_command(plain))
    wait_until(
        lambda: outcomes(plain)["finished"] >= 2 and outcomes(plain)["running"],
        what="two trials to finish and one to run",
        while_running=driver,
    )
    family = descendants(driver.pid)
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    (path,), before = journal_files(plain.results / "sweeps/s"), journal_of(plain)
    running = next(attempt.trial for attempt in before if attempt.outcome == "running")
    with open(path, "a") as journal:
        journal.write(f'{{"event":"finished","trial":"{running}","attempt":1,"ti')
    left, done_before = path.read_bytes(), {each.trial: each for each in before if each.outcome == "finished"}
    assert not (plain.results / "sweeps/s/trials.csv").exists()
    wait_until(lambda: not alive(family), what="Ray and its workers to end")

    (plain.folder / "open").touch()
    done = plain.run(*sweep_command(plain))
    assert f"{6 - len(done_before)} of 6 trials pending" in done.stdout
    assert path.read_bytes() == left, "no process writes to the journal of another one"
    finished = [attempt for attempt in journal_of(plain) if attempt.outcome == "finished"]
    assert sorted(attempt.trial for attempt in finished) == sorted(table(plain)["trial"]), "each once"
    assert [each for each in finished if each.trial in done_before] == list(done_before.values())
    assert outcomes(plain)["running"] == 0
    assert outcomes(plain)["interrupted"] >= 1
    assert (table(plain)["status"] == "finished").all()
    assert len(table(plain, "timeline")) == len(journal_of(plain))


@pytest.mark.slow
def test_an_interrupted_driver_records_it_and_leaves_no_process(plain):
    """Also if it was started with SIGINT ignored, as with `&` in a script, and functions do not check `time_is_up`."""
    plain.write(lasting(3600, 3600))
    driver = plain.start("env", "--ignore-signal=INT", *sweep_command(plain))
    wait_until(lambda: outcomes(plain)["running"] == 2, what="both trials to run", while_running=driver)
    family = descendants(driver.pid)
    driver.send_signal(signal.SIGINT)
    output, _ = driver.communicate(timeout=PATIENCE_SECONDS)
    assert driver.returncode == 130
    assert "interrupted: finished work is kept" in output
    assert "Traceback" not in output
    assert outcomes(plain) == {"interrupted": 2}
    wait_until(lambda: not alive(family), what="Ray and its workers to end")


@pytest.mark.slow
def test_drivers_that_run_at_once_share_the_trials_and_leave_no_process_or_file_of_ray(plain):
    """As many as `jobs` allows: the third one takes nothing, and waits for the trials of the others."""
    plain.environment["TMPDIR"] = temporary = tempfile.mkdtemp(prefix="t-")  # the paths of Ray's sockets must be short
    slots = {"jobs": 2, "gpus_per_node": 2}
    plain.write(lasting(0, 0, 0, 0, slots=slots, args={"gated_after": 0}))
    drivers = []
    for count in (2, 4):
        drivers.append(plain.start(*sweep_command(plain)))
        wait_until(
            lambda count=count: outcomes(plain)["running"] == count,
            what=f"{count} trials to run",
            while_running=drivers[-1],
        )
    family = [each for driver in drivers for each in descendants(driver.pid)]
    assert len(family) >= 8, "Ray and two workers of each run"
    assert list(Path(temporary).glob("ty-*")), "Ray has a folder"
    third = plain.start(*sweep_command(plain))
    while "waiting for them" not in (line := third.stdout.readline()):
        assert line, "it has ended"
    assert all(f"process {driver.pid} on " in line for driver in drivers)
    (plain.folder / "open").touch()
    for driver in (*drivers, third):
        output, _ = driver.communicate(timeout=PATIENCE_SECONDS)
        assert driver.returncode == 0, output
    assert outcomes(plain) == {"finished": 4}
    assert len(journal_files(plain.results / "sweeps/s")) == 2, "the third one has run nothing"
    assert (table(plain)["status"] == "finished").all()
    wait_until(lambda: not alive(family), what="all processes to end")
    assert list(Path(temporary).glob("ty-*")) == []
    shutil.rmtree(temporary)


@pytest.mark.slow
def test_data_that_cannot_be_opened_end_the_sweep_with_the_reason(trouble):
    (trouble.results / "data/tiny/val-images.npy").unlink()
    done = trouble.run(*sweep_command(trouble), check=False)
    assert done.returncode == 1
    assert "val-images.npy" in done.stdout
    assert "run Snakemake's target `data`" in done.stdout
    assert "Traceback" not in done.stdout


# A sitecustomize.py with which one worker of a sweep cannot import a module that it needs.
ONE_BROKEN_WORKER = """
import os, sys
driver = os.getpid()
def break_one():
    if os.getppid() == driver:  # it is the parent of the workers
        return
    try:
        os.close(os.open("{folder}/broken-worker", os.O_CREAT | os.O_EXCL))
        sys.modules["trainyard.data.node_copy"] = None
    except FileExistsError:
        pass
if any(word.endswith("sweep.py") for word in sys.orig_argv):
    os.register_at_fork(after_in_child=break_one)
"""


@pytest.mark.slow
def test_a_slot_that_cannot_start_is_given_up_and_the_others_run_its_trials(plain):
    (plain.folder / "sitecustomize.py").write_text(ONE_BROKEN_WORKER.format(folder=plain.folder))
    plain.write(TINY | lasting(*[0] * 4, dataset="tiny", args={"gated_after": 0}))
    plain.stage()
    driver, output = plain.start(*sweep_command(plain)), ""
    for line in driver.stdout:
        output += line
        if "continuing with 1 of 2 slots" in line:  # trials wait until the failure of the slot is reported
            (plain.folder / "open").touch()
    assert driver.wait() == 0
    assert outcomes(plain) == {"finished": 4}
    assert "import of trainyard.data.node_copy halted" in output
    assert table(plain, "timeline")["slot"].nunique() == 1


@pytest.mark.slow
def test_trials_run_longest_first_on_all_slots_at_once_of_which_several_share_a_gpu(plain):
    """The long trial is among the first four."""
    slots = {"gpus_per_node": 2, "gpus_per_trial": 0.5}
    plain.write(lasting(0.5, 0.5, 0.5, 0.5, 0.5, 1.0, slots=slots, cost="lasts", args={"meet": 4}))
    plain.run(*sweep_command(plain))
    rows = table(plain, "timeline")
    seconds = table(plain).set_index("trial")["lasts"]
    assert seconds[rows["trial"].iloc[:4]].max() == 1.0
    assert rows.groupby("gpu")["slot"].nunique().to_dict() == {0: 2, 1: 2}, "two slots per GPU"
    for _, lane in rows.groupby("slot"):
        ordered = lane.sort_values("start")
        assert (ordered["start"].iloc[1:].to_numpy() >= ordered["end"].iloc[:-1].to_numpy()).all(), (
            "one trial per slot at a time"
        )


@pytest.mark.slow
def test_measured_durations_correct_the_order_of_pending_trials(plain):
    """By its `cost` expression, the shortest trials would run first; one finished trial contradicts it.

    After the second one, nothing is left to decide: on a busy machine, the first one may have taken longer.
    """
    plain.write(lasting(0.3, 1.3, 2.5, slots=1, cost="-lasts"))
    plain.run(*sweep_command(plain))
    rows = table(plain, "timeline").merge(table(plain, "trials"), on="trial").sort_values("start")
    assert rows["lasts"].tolist() == [0.3, 2.5, 1.3]
