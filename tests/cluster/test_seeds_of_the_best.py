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
    time.sleep(1)
    context.report(val_accuracy=config["n"] / 100 + config["seed"] / 1000)
"""


def write_sweep(folder, **sweep):
    (folder / "mine.py").write_text(TRIALS)
    sweep = {
        "function": "mine:run",
        "args": {"seed": 0},
        "grid": {"n": list(range(1, 9))},
        "metric": "val_accuracy",
        **sweep,
    }
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
