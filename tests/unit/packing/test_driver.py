"""What the driver of a sweep does before a trial runs."""

import os
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from project import ROOT
from slurm_cluster.waiting import PATIENCE_SECONDS
from sweep_journals import killed_session, record_attempt, session_of
from trainyard.config.load import check_config
from trainyard.config.trial_status import TrialStatus
from trainyard.config.user_programs import metrics_digest
from trainyard.packing import driver
from trainyard.packing.driver import run_sweep
from trainyard.planning.attempts import Attempt
from trainyard.planning.job_marks import read_mark
from trainyard.planning.journal import Ended, Epoch, Resumed, SessionStarted, Started, encode
from trainyard.planning.plan import plan_sweep
from trainyard.planning.task import output_file
from trainyard.planning.trial_space import TrialSpace
from trainyard.programs.runner import CheckpointFile
from trainyard.utils.errors import FinalError, UserError


def test_a_sweep_that_has_all_results_starts_no_process(tmp_path, monkeypatch):
    config = check_config({"sweeps": {"s": {"command": "true {seed}", "grid": {"seed": [1, 2]}}}})
    with session_of(tmp_path / "sweeps/s") as journal:
        for trial in TrialSpace(config.sweeps["s"], "no dataset").trials:
            record_attempt(journal, trial, status=TrialStatus.FINISHED, metrics={})
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("a process is started"))
    assert run_sweep(config, "s", tmp_path).state.unfinished == []


@pytest.mark.parametrize(
    ("open_trials", "of_snakemake", "claiming"),
    [(0, True, {"12"}), (1, True, set()), (0, False, set()), (0, True, {"12", "6"}), (0, True, {"99"})],
)
def test_a_job_without_a_trial_to_take_cancels_those_of_its_sweep_that_wait(
    tmp_path, monkeypatch, slurm, open_trials, of_snakemake, claiming
):
    """But not if one of those that have claimed trials waits, as after `scontrol requeue`, or has ended."""
    slots = {"jobs": 4, "cpus": 1}
    config = check_config({"sweeps": {"s": {"command": "true {seed}", "grid": {"seed": [1, 2]}, "slots": slots}}})
    with session_of(tmp_path / "sweeps/s") as journal:
        for trial in list(TrialSpace(config.sweeps["s"], "no dataset").trials)[open_trials:]:
            record_attempt(journal, trial, status=TrialStatus.FINISHED, metrics={})
    names = {"5": "s_0", "6": "s_1", "7": "s_2", "8": "s_3", "9": "other_1", "10": "s_1_1", "11": "s_3", "12": "s_4"}
    states, folders = {"5": "RUNNING", "7": "SUSPENDED", "12": "RUNNING"}, {"11": "/other"}
    comment = "rule_sweep_job_wildcards_{}" if of_snakemake else "(null)"
    of_sweep = f"{{}}|{{}}|2026-11-20T21:30:00|None|{comment}|{{}}\\n"
    lines = (
        of_sweep.format(n, states.get(n, "PENDING"), *[name] * of_snakemake, folders.get(n, "/"))
        for n, name in names.items()
    )
    slurm.runs("squeue", f"printf '{''.join(lines)}'")
    slurm.runs("scancel", f"echo $* > {tmp_path}/scancel.txt")
    monkeypatch.setattr(driver.slurm_allocation, "job_id", lambda: "5")
    monkeypatch.setattr(driver, "_run_pending", lambda *_: None)
    monkeypatch.setattr(driver.TrialClaims, "claiming_jobs", lambda _: claiming)
    run_sweep(config, "s", tmp_path, order_job=0)
    cancelled = tmp_path / "scancel.txt"
    assert cancelled.exists() == (of_snakemake and not open_trials and claiming == {"12"})
    if cancelled.exists():
        assert cancelled.read_text() == "--state=PENDING 6 8\n"
        assert sorted(read_mark(tmp_path / "sweeps/s/jobs/cancelled")) == ["6", "8"]


@pytest.mark.parametrize("in_slurm_job", [True, False])
def test_a_trial_that_has_failed_by_its_corrected_metrics_runs_in_a_job_with_its_resources(
    tmp_path, monkeypatch, in_slurm_job
):
    """Before its output is read, nothing is pending: Slurm's job has no GPU, and minutes of walltime."""
    sweep = {"command": "false", "metrics": {"pattern": "loss (?P<loss>{number})"}, "metric": "loss"}
    config = check_config({"sweeps": {"s": sweep}})
    (trial,) = plan_sweep(config, "s", tmp_path).state.trials
    with session_of(tmp_path / "sweeps/s") as journal:
        journal.record(Started(trial=trial, attempt=1))
        diverged = {"error": "loss became NaN or infinite", "failure": "exit code 1: no"}
        journal.record(Ended(trial=trial, attempt=1, status=TrialStatus.DIVERGED, seconds=1.0, **diverged))
    state = plan_sweep(config, "s", tmp_path).state
    output = output_file(state.folder, state.attempts[trial][0])
    output.parent.mkdir(parents=True)
    output.write_text("loss 0.5\n")
    ran = []
    allocation = SimpleNamespace(gpu_model="") if in_slurm_job else None
    monkeypatch.setattr(driver.slurm_allocation, "current_allocation", lambda: allocation)
    monkeypatch.setattr(driver, "_run_pending", lambda _, plan, *__: ran.append(plan.forecast.pending))
    monkeypatch.setattr(driver, "_record_session", lambda *_: None)
    if in_slurm_job:
        with pytest.raises(UserError, match="1 trial must run again by the output as it is read now") as error:
            run_sweep(config, "s", tmp_path)
        assert not isinstance(error.value, FinalError), "a retry has the GPU"
    run_sweep(config, "s", tmp_path)
    assert ran == [[trial]]


@pytest.mark.parametrize(
    ("comment", "measured"), [("Comment=rule_sweep_wildcards_s", True), ("Comment=mine", False), ("", False)]
)
def test_the_start_of_a_job_is_measured_once_and_only_of_those_that_the_workflow_submits(
    tmp_path, monkeypatch, slurm, comment, measured
):
    """A job may run a second session, hours later: after a suspension, or in the user's own allocation."""
    config = check_config({"sweeps": {"s": {"command": "true {seed}", "grid": {"seed": [1]}}}})
    started = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(time.time() - 3600))
    slurm.allocate("n1", line=f"StartTime={started} {comment}")
    monkeypatch.setattr(driver, "_run_pending", lambda *_: None)
    run_sweep(config, "s", tmp_path)
    run_sweep(config, "s", tmp_path)
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    requeued = run_sweep(config, "s", tmp_path)
    leads = [run.info.lead_seconds for run in requeued.state.sessions]
    assert [lead is not None for lead in leads] == [measured, False, measured]
    assert all(3600 <= lead < 3700 for lead in leads if lead is not None)


def test_an_attempt_whose_driver_was_killed_ends_with_its_output_which_is_read(tmp_path, monkeypatch):
    sweep = {"command": "false", "metrics": {"pattern": "epoch (?P<epoch>[0-9]+) loss (?P<loss>{number})"}}
    config = check_config({"sweeps": {"s": sweep}})
    (trial,) = plan_sweep(config, "s", tmp_path).state.trials
    with killed_session(tmp_path / "sweeps/s", trial) as journal:
        journal.write(encode(SessionStarted(time=1.7e9)))
        journal.write(encode(Started(time=1.7e9, trial=trial, attempt=1)))
    output = tmp_path / "sweeps/s/trials" / trial / "output-1.log"
    output.parent.mkdir(parents=True)
    output.write_text("epoch 1 loss 0.5\n")
    os.utime(output, (1.7e9 + 50, 1.7e9 + 50))
    monkeypatch.setattr(driver, "_run_pending", lambda *_: None)
    state = run_sweep(config, "s", tmp_path).state
    (attempt,) = state.record(trial).attempts
    assert (attempt.outcome, attempt.end - attempt.start) == (TrialStatus.INTERRUPTED, 50)
    assert (attempt.epochs, attempt.epoch_times) == ([{"epoch": 1, "loss": 0.5}], {1: attempt.end})
    killed = state.sessions[0]
    assert (killed.start, killed.end) == (1.7e9, 1.7e9 + 50)


def test_what_a_killed_worker_had_not_reported_is_read_from_its_output_at_the_end(tmp_path, monkeypatch):
    """The second attempt continued the first one after epoch 1."""
    metrics = {"pattern": "epoch (?P<epoch>[0-9]+) loss (?P<loss>{number})"}
    sweep = {"command": "./train", "checkpoint": "*.pt", "resume": "{resume_from}", "metrics": metrics}
    config = check_config({"sweeps": {"s": sweep}})
    (trial,) = plan_sweep(config, "s", tmp_path).state.trials

    def run(session, plan, *_):
        journal = session.journal
        first, second = {"trial": trial, "attempt": 1}, {"trial": trial, "attempt": 2}
        started = journal.record(Started(**first))
        path = output_file(plan.state.folder, Attempt(trial, 1, started.time, started.time))
        path.parent.mkdir(parents=True)
        path.write_text("epoch 1 loss 0.5\nepoch 2 loss 0.4\n")
        journal.record(Ended(**first, status=TrialStatus.FAILED, error="the worker's process ended"))
        journal.record(Started(**second))
        kept = CheckpointFile("c.pt", int(started.time * 1e9) + 1000, 1)  # not before it by rounding
        journal.record(Resumed(**second, checkpoint=kept._asdict()))
        journal.record(Epoch(**second, metrics={"epoch": 2, "loss": 0.3}))
        read = {"metrics": {"loss": 0.3}, "metrics_digest": metrics_digest(plan.state.sweep.program_metrics)}
        journal.record(Ended(**second, status=TrialStatus.FINISHED, seconds=1.0, **read))

    monkeypatch.setattr(driver, "_run_pending", run)
    state = run_sweep(config, "s", tmp_path).state
    record = state.record(trial)
    assert record.epochs_of(record.result) == [{"epoch": 1, "loss": 0.5}, {"epoch": 2, "loss": 0.3}]
    assert [each.outcome for each in record.attempts] == [TrialStatus.FAILED, TrialStatus.FINISHED]


# A driver that ends while its thread does something else.
ENDING = """
import _imp, importlib, sys, threading, time
from types import SimpleNamespace
from trainyard.config.train import Train
from trainyard.packing import driver

begun = threading.Event()

def compute(*_, **options):
    from trainyard.training.gpu_utilization import count_flops
    end = time.monotonic() + 2
    while time.monotonic() < end:
        count_flops(Train(model="resnet", epochs=1), shape=(32, 32, 3), classes=10, trains=False)
        begun.set()

def import_module(*_, **options):
    begun.set()
    while not _imp.lock_held():
        pass
    importlib.import_module("wave")

driver.find_kind = lambda sweep: SimpleNamespace(count_flops={count})
driver.COUNTING_SECONDS = {limit}
plan = SimpleNamespace(state=SimpleNamespace(sweep=SimpleNamespace(dataset="")))
with driver._preparing_in_thread(plan, None):
    begun.wait()
    {interrupt}
    sys.exit(130)
"""


@pytest.mark.parametrize(
    ("count", "limit", "interrupt"),
    [
        ("compute", 30, "time.sleep(0.2)"),  # torch would abort the process
        ("import_module", 0.5, "_imp.acquire_lock()"),  # as `import` does; a signal may come before it is released
    ],
)
def test_a_driver_ends_with_its_exit_code_while_its_thread_works(count, limit, interrupt):
    code = ENDING.format(count=count, limit=limit, interrupt=interrupt)
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT / "scripts", timeout=PATIENCE_SECONDS)
    assert done.returncode == 130
