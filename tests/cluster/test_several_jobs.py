"""Several Slurm jobs work on one sweep: each takes the next trial, whatever happens to the others."""

import random
import time
from collections import Counter
from pathlib import Path

import pandas as pd
import pytest
from slurm_cluster.cluster import Cluster
from slurm_cluster.waiting import wait_until
from submitting import nothing_is_left, snakemake, snakemake_in_background
from trainyard.planning.attempts import Attempt, Fold, Session

# What a trial reports depends on its number only.
TRIALS = """
import time

def run(config, context):
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
    config = write_sweep(shared_dir, trials=12, lasts=1.0, jobs=3)
    plan = snakemake(cluster, shared_dir, config, "-n", "--", "sweeps")
    assert "requests 3 jobs with 1 slot of 1 GPU" in plan
    snakemake(cluster, shared_dir, config, "--", "sweeps")
    timeline = check_results(shared_dir, trials=12)
    assert len(timeline) == 12, "none ran twice"
    jobs = pd.read_csv(shared_dir / "results/sweeps/s/jobs.csv")
    assert 2 <= len(jobs) <= 3
    assert jobs["finished"].sum() == 12
    spans = timeline.groupby("job")[["start", "end"]].agg({"start": "min", "end": "max"}).sort_values("start")
    assert (spans["start"].iloc[1:].to_numpy() < spans["end"].cummax().iloc[:-1].to_numpy()).all(), "at the same time"
    nothing_is_left(cluster)
    again = snakemake(cluster, shared_dir, config, "-n", "--", "sweeps")
    assert "Nothing to be done" in again


@pytest.mark.slow
def test_jobs_that_still_wait_when_all_is_done_are_cancelled(cluster, shared_dir):
    """All GPUs but one are taken for as long as the sweep runs."""
    config = write_sweep(shared_dir, trials=8, lasts=0.5, jobs=4)
    blocker = cluster.submit("sleep 3600", "--nodes=4", "--ntasks-per-node=1", "--gres=gpu:1", cwd=shared_dir)
    others = [cluster.submit("sleep 3600", "--gres=gpu:1", cwd=shared_dir) for _ in range(3)]
    wait_until(lambda: cluster.gpus_allocated() == 7, what="seven GPUs to be taken")
    output = snakemake(cluster, shared_dir, config, "--", "sweeps")
    assert len(check_results(shared_dir, trials=8)["job"].unique()) == 1
    assert output.count("counts as done: no trial is left for it") >= 3
    cluster.run(["scancel", *map(str, [blocker, *others])])
    nothing_is_left(cluster)


class Faults:
    """What can happen to a job of a sweep that runs on the cluster."""

    def __init__(self, cluster: Cluster, folder: Path, generator: random.Random) -> None:
        self.cluster, self.folder, self.generator = cluster, folder, generator
        self.hit = set[str]()  # jobs

    def a_session(self) -> Session:
        """A run of a driver that runs a trial, and to which nothing has happened."""
        found: list[Session] = []

        def choose() -> bool:
            runs = read(self.folder).sessions
            found[:] = [run for run in runs if run.opened and run.info.job not in self.hit]
            return bool(found)

        wait_until(choose, what="a trial to run in a job to which nothing has happened")
        chosen = self.generator.choice(found)
        self.hit.add(chosen.info.job)
        return chosen

    def kill_driver(self) -> None:
        info = self.a_session().info
        self.cluster.hosts[info.node].run(["kill", "-KILL", str(info.process)], check=False)

    def stop_driver(self) -> None:
        """For longer than it takes until the others give it up, in the background."""
        info = self.a_session().info
        self.cluster.hosts[info.node].run(["kill", "-STOP", str(info.process)], check=False)
        resume = f"sleep 80; kill -CONT {info.process}"
        self.cluster.hosts[info.node].run(["sh", "-c", f"({resume}) > /dev/null 2>&1 &"])

    def cancel(self) -> None:
        self.cluster.run(["scancel", self.a_session().info.job])

    def requeue(self) -> None:
        self.cluster.run(["scontrol", "requeue", self.a_session().info.job])

    def suspend(self) -> None:
        job = self.a_session().info.job
        self.cluster.run(["scontrol", "suspend", job])
        time.sleep(self.generator.uniform(2, 15))
        self.cluster.run(["scontrol", "resume", job], check=False)

    def cut_off(self) -> None:
        host = self.cluster.hosts[self.a_session().info.node]
        host.disconnect()
        time.sleep(self.generator.uniform(5, 20))
        host.reconnect()

    def power_off(self) -> None:
        node = self.a_session().info.node
        self.hit |= {run.info.job for run in read(self.folder).sessions if run.info.node == node}
        self.cluster.hosts[node].power_off()


ALL = ("kill_driver", "kill_driver", "cancel", "requeue", "suspend", "cut_off", "stop_driver", "power_off")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_eight_jobs_survive_faults_in_any_order(cluster, shared_dir, seed):
    """Killed, cancelled, requeued, suspended, cut off, stopped for more than a minute, and a host without power."""
    config = write_sweep(shared_dir, trials=60, lasts=2.0, jobs=8)
    generator = random.Random(seed)
    faults = Faults(cluster, shared_dir, generator)
    late = cluster.submit("sleep 40", "--nodes=2", "--ntasks-per-node=1", "--gres=gpu:1", cwd=shared_dir)
    with snakemake_in_background(cluster, shared_dir, config, "--retries", "5", "--", "sweeps") as running:
        wait_until(
            lambda: len(finished(read(shared_dir))) >= 4, what="the first trials to finish", while_running=running
        )
        before = {attempt.trial for attempt in finished(read(shared_dir))}
        for fault in generator.sample(ALL, 5):
            if running.poll() is None and len(finished(read(shared_dir))) < 50:
                getattr(faults, fault)()
        code = running.wait(timeout=900)
    output = (shared_dir / "snakemake.out").read_text()
    cluster.repair()
    if code:  # a retry was used up: the same command goes on
        output += snakemake(cluster, shared_dir, config, "--", "sweeps")
    timeline = check_results(shared_dir, trials=60)
    assert before, output
    ran_again = timeline[timeline["trial"].isin(before)].groupby("trial").size()
    assert (ran_again == 1).all(), "what had finished has not run again"
    assert len(timeline) <= 60 + 2 * len(faults.hit) + 8, "at most the started trials were repeated"
    cluster.run(["scancel", str(late)], check=False)
    nothing_is_left(cluster)
