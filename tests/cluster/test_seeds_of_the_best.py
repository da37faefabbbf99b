"""Further seeds of the best configurations, in jobs of Slurm."""

from collections import Counter

import pandas as pd
import pytest
from slurm_cluster.waiting import wait_until
from submitting import nothing_is_left, snakemake, snakemake_in_background
from trainyard.config.load import check_config
from trainyard.planning.attempts import Fold
from trainyard.planning.plan import plan_sweep

TRIALS = """
import time

def run(config, context):
    time.sleep(config["lasts"] if config["n"] == 1 else 1)
    context.report(val_accuracy=config["n"] / 100 + config["seed"] / 1000)
"""

# Of eight, the first takes twelve seconds, and the others one.
COST = "1 - (n - 2) * (n - 3) * (n - 4) * (n - 5) * (n - 6) * (n - 7) * (n - 8) * 11 / 5040"


def write_sweep(folder, *, lasts=1.0, **sweep):
    (folder / "mine.py").write_text(TRIALS)
    args = {"seed": 0, "lasts": lasts}
    sweep = {"function": "mine:run", "args": args, "grid": {"n": list(range(1, 9))}, "metric": "val_accuracy", **sweep}
    return {"sweeps": {"s": sweep}}


def read(folder):
    return Fold(folder / "results/sweeps/s").update()


def further_of(folder, config):
    """The trials that were drawn from the results of others."""
    return plan_sweep(check_config(config), "s", folder / "results").state.space.further


def results_of(folder):
    """trials.csv, and how often each trial has finished."""
    finished = Counter(each.trial for each in read(folder).attempts.values() if each.outcome == "finished")
    return pd.read_csv(folder / "results/sweeps/s/trials.csv"), finished


@pytest.mark.slow
def test_when_a_job_is_cancelled_the_other_one_runs_the_seeds_of_the_best(cluster, shared_dir):
    config = write_sweep(shared_dir, repeats=6, repeat_best=2, slots={"gpus_per_node": 1, "jobs": 2})
    plan = snakemake(cluster, shared_dir, config, "-n", "--", "sweeps")
    assert "sweep s: 18 of 18 trials pending" in plan

    def jobs_with_seeds():
        seeds = {key for key in read(shared_dir).attempts if key[0] in further_of(shared_dir, config)}
        return [run.info.job for run in read(shared_dir).sessions if seeds & {*run.attempts}]

    with snakemake_in_background(cluster, shared_dir, config, "--", "sweeps") as running:
        wait_until(lambda: len(jobs_with_seeds()) == 2, what="both jobs to run further seeds", while_running=running)
        cluster.run(["scancel", jobs_with_seeds()[0]])
        code = running.wait(timeout=300)
    if code:  # the cancelled job counts as failed: the same command goes on
        snakemake(cluster, shared_dir, config, "--", "sweeps")
    table, finished = results_of(shared_dir)
    assert list(table["status"]) == ["finished"] * 18
    assert set(table[table["seed"] > 0]["n"]) == {7, 8}
    assert set(finished.values()) == {1}
    assert "Nothing to be done" in snakemake(cluster, shared_dir, config, "-n", "--", "sweeps")
    nothing_is_left(cluster)


@pytest.mark.slow
def test_idle_slots_of_a_job_and_of_the_one_that_resumes_it_run_further_seeds(cluster, shared_dir):
    slots = {"gpus_per_node": 2}
    plain = write_sweep(shared_dir, lasts=12.0, slots=slots)
    request = snakemake(cluster, shared_dir, plain, "-n", "--", "sweeps")
    config = write_sweep(shared_dir, lasts=12.0, slots=slots, fill=True, cost=COST)
    filled = snakemake(cluster, shared_dir, config, "-n", "--", "sweeps")

    def asked(output):
        return [line for line in output.splitlines() if "requests" in line]

    assert asked(filled) == asked(request) != []

    def seeds():
        further = further_of(shared_dir, config)
        return [each for each in read(shared_dir).attempts.values() if each.trial in further and each.metrics]

    with snakemake_in_background(cluster, shared_dir, config, "--", "sweeps") as running:
        wait_until(lambda: len(seeds()) >= 2, what="two further seeds to finish", while_running=running)
        (run,) = read(shared_dir).sessions
        cluster.run(["scancel", run.info.job])
        assert running.wait(timeout=300) == 0, "one of Snakemake's retries goes on"
    table, finished = results_of(shared_dir)
    assert set(table["status"]) == {"finished"}
    assert len(table) == 8 + len(seeds())
    assert set(finished.values()) == {1}
    assert len(read(shared_dir).sessions) == 2
    assert "best mean val_accuracy" in (shared_dir / "snakemake.out").read_text()
    jobs = pd.read_csv(shared_dir / "results/sweeps/s/jobs.csv")
    assert jobs["failed"].sum() == 0
    assert "Nothing to be done" in snakemake(cluster, shared_dir, config, "-n", "--", "sweeps")
    nothing_is_left(cluster)
