"""Several Slurm jobs work on one sweep: each takes the next trial, whatever happens to the others."""

import os
import random
import re
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from slurm_cluster.cluster import Cluster
from slurm_cluster.hosts import job_environment
from slurm_cluster.waiting import wait_until
from submitting import nothing_is_left, snakemake, snakemake_command, snakemake_in_background
from trainyard.planning.attempts import Attempt, Fold, Session
from trainyard.planning.journal import SessionStarted

# What a trial reports depends on its number only.
TRIALS = """
import time

def run(config, context):
    time.sleep(config["lasts"])
    context.report(val_accuracy=config["n"] / 100)
"""


GATED = """
import pathlib
import time

def run(config, context):
    with open("ran.txt", "a") as file:
        file.write(f"{config['n']}\\n")
    while not pathlib.Path("go").exists():
        time.sleep(0.1)
    context.report(val_accuracy=config["n"] / 100)
"""


MEETING = """
import pathlib
import time

def run(config, context):
    pathlib.Path(f"met-{config['n']}").touch()
    while len(list(pathlib.Path().glob("met-*"))) < 3:
        time.sleep(0.1)
    time.sleep(config["lasts"])
    context.report(val_accuracy=config["n"] / 100)
"""


def write_sweep(folder: Path, *, trials: int, lasts: float, **slots: int) -> dict:
    (folder / "mine.py").write_text(TRIALS)
    grid = {"n": list(range(trials)), "lasts": [lasts]}
    return {"sweeps": {"s": {"function": "mine:run", "grid": grid, "slots": {"gpus_per_node": 1, **slots}}}}


def read(folder: Path) -> Fold:
    return Fold(folder / "results/sweeps/s").update()


def finished(fold: Fold) -> list[Attempt]:
    return [attempt for attempt in fold.attempts.values() if attempt.outcome == "finished"]


def check_results(folder: Path, *, trials: int) -> pd.DataFrame:
    """Each trial has one result, the right one; returns timeline.csv."""
    results = folder / "results/sweeps/s"
    table = pd.read_csv(results / "trials.csv")
    assert list(table["status"]) == ["finished"] * trials
    assert list(table["val_accuracy"]) == list(table["n"] / 100)
    assert set(Counter(attempt.trial for attempt in finished(read(folder))).values()) == {1}
    return pd.read_csv(results / "timeline.csv")


def test_three_jobs_share_a_sweep(cluster, shared_dir):
    """The first trial of each waits for those of the others."""
    config = write_sweep(shared_dir, trials=12, lasts=1.0, jobs=3)
    (shared_dir / "mine.py").write_text(MEETING)
    plan = snakemake(cluster, shared_dir, config, "-n", "--", "sweeps")
    assert "requests 3 jobs with 1 slot of 1 GPU" in plan
    snakemake(cluster, shared_dir, config, "--", "sweeps")
    timeline = check_results(shared_dir, trials=12)
    assert len(timeline) == 12, "none ran twice"
    jobs = pd.read_csv(shared_dir / "results/sweeps/s/jobs.csv")
    assert len(jobs) == 3
    assert jobs["finished"].sum() == 12
    assert (jobs["wait_seconds"] > -1).all(), "Slurm's times are whole seconds"
    assert (jobs["submitted"] < jobs["start"]).all()
    spans = timeline.groupby("job")[["start", "end"]].agg({"start": "min", "end": "max"}).sort_values("start")
    assert (spans["start"].iloc[1:].to_numpy() < spans["end"].cummax().iloc[:-1].to_numpy()).all(), "at the same time"
    nothing_is_left(cluster)
    again = snakemake(cluster, shared_dir, config, "-n", "--", "sweeps")
    assert "Nothing to be done" in again


@pytest.mark.slow
def test_two_jobs_keep_a_budget_and_the_sweep_ends_well(cluster, shared_dir):
    config, hours = write_sweep(shared_dir, trials=100, lasts=4.0, jobs=2), 0.07
    config["sweeps"]["s"]["budget"] = {"gpu_hours": hours}
    plan = snakemake(cluster, shared_dir, config, "-n", "--", "sweeps")
    assert "budget: 0.07 of 0.07 GPU-hours left" in plan
    assert "│ 2 min 0 s │" in plan, "half of 4.2 minutes"
    snakemake(cluster, shared_dir, config, "--", "sweeps")
    done = read(shared_dir)
    spent = sum(run.end - run.job_start for run in done.sessions)
    assert spent <= 1.01 * 3600 * hours + 6, "with a machine that pauses at the end of both"
    # Two jobs end with their walltime. What they leave of the budget is given to two more if a trial fits it.
    assert len({run.info.job for run in done.sessions}) in (2, 4)
    statuses = Counter(pd.read_csv(shared_dir / "results/sweeps/s/trials.csv")["status"])
    assert 15 < statuses["finished"] < 60
    assert statuses["finished"] + statuses["pending"] == 100, "none was interrupted"
    assert "Nothing to be done" in snakemake(cluster, shared_dir, config, "-n", "--", "sweeps")
    config["sweeps"]["s"]["budget"] = {"gpu_hours": 2 * hours}
    plan = snakemake(cluster, shared_dir, config, "-n", "--", "sweeps")
    assert f"{statuses['pending']} of 100 trials pending" in plan
    assert re.search(r"of 0\.14 GPU-hours left: about \d+ of these trials fit", plan)
    nothing_is_left(cluster)


@pytest.mark.slow
def test_the_number_of_jobs_is_chosen_from_what_is_known_and_is_no_reason_to_run_anything_again(cluster, shared_dir):
    config = write_sweep(shared_dir, trials=6, lasts=1.0, jobs=16)
    config["sweeps"]["s"]["goal"] = "cheapest"
    plan = snakemake(cluster, shared_dir, config, "-n", "--", "sweeps")
    assert "requests 6 jobs with 1 slot of 1 GPU and 1 CPU (cheapest, of at most 16)" in plan
    snakemake(cluster, shared_dir, config, "--", "sweeps")
    check_results(shared_dir, trials=6)
    assert "Nothing to be done" in snakemake(cluster, shared_dir, config, "-n", "--", "sweeps")
    config["sweeps"]["s"]["grid"]["n"] = list(range(9))
    output = snakemake(cluster, shared_dir, config, "--", "sweeps")
    assert "requests 1 slot of 1 GPU and 1 CPU (cheapest, of at most 16)" in output
    assert output.count("is done: no trial is left for it") >= 8
    assert len(check_results(shared_dir, trials=9)) == 9, "none ran twice"
    assert "Nothing to be done" in snakemake(cluster, shared_dir, config, "-n", "--", "sweeps")
    nothing_is_left(cluster)


@pytest.mark.slow
def test_jobs_that_still_wait_when_all_is_done_are_cancelled(cluster, shared_dir):
    """All GPUs but one are taken for as long as the sweep runs."""
    config = write_sweep(shared_dir, trials=8, lasts=0.5, jobs=4)
    blocker = cluster.submit("sleep 3600", "--nodes=4", "--ntasks-per-node=1", "--gres=gpu:1", cwd=shared_dir)
    others = [cluster.submit("sleep 3600", "--gres=gpu:1", cwd=shared_dir) for _ in range(3)]
    wait_until(lambda: cluster.gpus_allocated() == 7, what="seven GPUs to be taken")
    output = snakemake(cluster, shared_dir, config, "--", "sweeps")
    assert len(check_results(shared_dir, trials=8)["job"].unique()) == 1
    assert output.count("is done: no trial is left for it") >= 3
    cluster.run(["scancel", *map(str, [blocker, *others])])
    nothing_is_left(cluster)


def write_gated(folder: Path, *, trials: int, jobs: int) -> dict:
    """A sweep whose trials wait for the file `go`, and write their number to `ran.txt` before."""
    config = write_sweep(folder, trials=trials, lasts=0.1, jobs=jobs)
    (folder / "mine.py").write_text(GATED)
    return config


@pytest.mark.parametrize("jobs", [1, 2])
def test_trials_that_the_config_gains_run_in_the_jobs_that_run(cluster, shared_dir, jobs):
    """The command with the new config submits no job of its own, and makes the tables."""
    ran = shared_dir / "ran.txt"
    config = write_gated(shared_dir, trials=jobs, jobs=jobs)
    with snakemake_in_background(cluster, shared_dir, config, "--", "sweeps") as first:
        wait_until(
            lambda: ran.exists() and len(ran.read_text().split()) == jobs, what="all to run", while_running=first
        )
        config = write_gated(shared_dir, trials=8, jobs=jobs)
        second = cluster.command(snakemake_command(shared_dir, config, "--", "sweeps"), cwd=shared_dir)
        with subprocess.Popen(second, env=job_environment({"PYTHONPATH": str(shared_dir)}), text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as running:  # fmt: skip
            wait_until(
                lambda: len({each.config for _, each in read(shared_dir).claims.requests.configs}) == 2,
                what="its config to be announced",
            )
            (shared_dir / "go").touch()
            output = running.communicate(timeout=300)[0]
        assert running.returncode == 0, output
        assert first.wait(timeout=300) == 0, (shared_dir / "snakemake.out").read_text()
    timeline = check_results(shared_dir, trials=8)
    assert sorted(ran.read_text().split(), key=int) == list(map(str, range(8)))
    assert len(timeline) == 8
    assert len(read(shared_dir).sessions) == jobs, output
    assert output.count("is already in the queue as Slurm job") == jobs
    assert "submitted with SLURM jobid" not in output
    nothing_is_left(cluster)


class Faults:
    """What can happen to a job of a sweep that runs on the cluster."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster, self.folder = cluster, folder
        self.hit = set[str]()  # jobs
        self.ends: list[threading.Timer] = []

    def targets(self) -> list[Session]:
        """The runs of drivers that run a trial, and to which nothing has happened."""
        return [run for run in read(self.folder).sessions if run.opened and run.info.job not in self.hit]

    def kill_driver(self, info: SessionStarted) -> None:
        self._signal(info, "KILL")

    def cancel(self, info: SessionStarted) -> None:
        self.cluster.run(["scancel", info.job])

    def requeue(self, info: SessionStarted) -> None:
        self.cluster.run(["scontrol", "requeue", info.job])

    def suspend(self, info: SessionStarted) -> None:
        self.cluster.run(["scontrol", "suspend", info.job])
        self._after(60, lambda: self.cluster.run(["scontrol", "resume", info.job], check=False))

    def stop_driver(self, info: SessionStarted) -> None:
        """For longer than it takes until the others give it up."""
        self._signal(info, "STOP")
        self._after(80, lambda: self._signal(info, "CONT"))

    def cut_off(self, info: SessionStarted) -> None:
        self._hit_node(info.node)
        self.cluster.hosts[info.node].disconnect()
        self._after(90, self.cluster.hosts[info.node].reconnect)

    def power_off(self, info: SessionStarted) -> None:
        self._hit_node(info.node)
        self.cluster.hosts[info.node].power_off()

    def _signal(self, info: SessionStarted, name: str) -> None:
        host = self.cluster.hosts[info.node]
        if host.spaces:  # it has power
            host.run(["kill", f"-{name}", str(info.process)], check=False)

    def _hit_node(self, node: str) -> None:
        self.hit |= {run.info.job for run in read(self.folder).sessions if run.info.node == node}

    def _after(self, seconds: float, end: Callable[[], object]) -> None:
        self.ends.append(threading.Timer(seconds, end))
        self.ends[-1].start()


FAULTS = ("kill_driver", "cancel", "power_off", "suspend", "cut_off", "requeue", "stop_driver")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(int(os.environ.get("TRAINYARD_SOAK_SEEDS", "3"))))
def test_eight_jobs_survive_faults_in_any_order(cluster, shared_dir, seed):
    """Three are killed, others requeued, suspended, stopped, cut off with their host for 90 s; two start late.

    TRAINYARD_SOAK_SEEDS is the number of orders, of three minutes each.
    """
    config = write_sweep(shared_dir, trials=100, lasts=3.0, jobs=8)
    generator, faults, done = random.Random(seed), Faults(cluster, shared_dir), []
    late = cluster.submit("sleep 40", "--nodes=2", "--ntasks-per-node=1", "--gres=gpu:1", cwd=shared_dir)
    with snakemake_in_background(cluster, shared_dir, config, "--retries", "5", "--", "sweeps") as running:
        wait_until(
            lambda: len(finished(read(shared_dir))) >= 4, what="the first trials to finish", while_running=running
        )
        for fault in generator.sample(FAULTS, len(FAULTS)):
            time.sleep(generator.uniform(0, 4))
            wait_until(lambda: faults.targets() or running.poll() is not None, what="a job to which nothing happened")
            if targets := faults.targets():
                info = generator.choice(targets).info
                faults.hit.add(info.job)
                getattr(faults, fault)(info)
                done.append((fault, info.job, len(finished(read(shared_dir)))))
        code = running.wait(timeout=900)
    for end in faults.ends:
        end.join()
    print(f"seed {seed}: {done}, exit code {code}")
    cluster.repair()
    if code:  # a retry was used up: the same command goes on
        snakemake(cluster, shared_dir, config, "--", "sweeps")
    timeline = check_results(shared_dir, trials=100).sort_values("start")
    assert (timeline.groupby("trial")["outcome"].last() == "finished").all(), "what has finished has not run again"
    assert len(timeline) <= 100 + 2 * len(faults.hit), "at most the started trials were repeated"
    cluster.run(["scancel", str(late)], check=False)
    nothing_is_left(cluster)
