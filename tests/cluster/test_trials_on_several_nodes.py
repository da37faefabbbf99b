"""`nodes_per_trial: 2`: a training in a sweep has ranks on two hosts, and ends as other trials do."""

import re
import sys
from pathlib import Path

import pandas as pd
import pytest
import yaml
from project import ROOT, TINY, TROUBLE, stage_tiny
from slurm_cluster.cluster import Cluster
from slurm_cluster.waiting import wait_until
from submitting import nothing_is_left
from sweep_journals import attempts_in, read_records
from trainyard.planning.attempts import Attempt

pytestmark = pytest.mark.slow
SHAPE = ["--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=1", "--nodelist=n1,n2", "--gres=gpu:1"]


def submit(cluster: Cluster, folder: Path, trials: list[dict], **options: object) -> int:
    """Submit a job on the first two hosts that runs a sweep of these trials, whose model may have trouble."""
    if not (folder / "trouble.py").exists():
        (folder / "trouble.py").write_text(TROUBLE)
        stage_tiny(folder / "results")
    train = {"model": "trouble:build", "batch_size": 32, "epochs": 3}
    slots = {"nodes_per_trial": 2, "gpus_per_node": 1}
    sweep = {"dataset": "tiny", "train": train, "trials": trials, "slots": slots, **options}
    (folder / "config.yaml").write_text(yaml.safe_dump({**TINY, "sweeps": {"s": sweep}, "data": {"local": "/tmp"}}))
    program = f"{sys.executable} {ROOT}/scripts/sweep.py --config config.yaml --sweep s"
    return cluster.submit(f"export PYTHONPATH={folder}\n{program}", *SHAPE, cwd=folder)


def run(cluster: Cluster, folder: Path, trials: list[dict], **options: object) -> None:
    job = submit(cluster, folder, trials, **options)
    assert cluster.wait_for_job(job).state == "COMPLETED", (folder / f"slurm-{job}.out").read_text()


def attempts(folder: Path) -> list[Attempt]:
    return attempts_in(folder / "results/sweeps/s")


def test_a_rank_that_is_killed_on_the_second_host_fails_its_trial_which_runs_again(cluster, shared_dir):
    run(cluster, shared_dir, [{"seed": 1, "model_args.trouble": "kill"}])
    first, second = attempts(shared_dir)
    assert (first.outcome, second.outcome) == ("failed", "finished")
    assert re.search("rank 1 on n2 ended the training: .*SIGKILL", first.error)
    assert [row["epoch"] for row in second.epochs] == [1, 2, 3]
    assert (second.location.node, second.gpus_per_trial) == ("n1,n2", 2)
    nothing_is_left(cluster)


def test_it_continues_after_scancel_and_a_killed_driver_and_leaves_nothing_on_any_host(cluster, shared_dir):
    (shared_dir / "hold").touch()
    for number, end in enumerate(("scancel", "kill"), 1):
        job = submit(cluster, shared_dir, [{"seed": 1}])
        wait_until(
            lambda count=number: len(attempts(shared_dir)) == count and attempts(shared_dir)[-1].epochs, what="an epoch"
        )
        assert {"n1", "n2"} <= cluster.processes_left().keys()
        if end == "scancel":
            cluster.run(["scancel", str(job)])
        else:
            driver = [each for each in read_records(shared_dir / "results/sweeps/s") if each["event"] == "session"][-1]
            cluster.host(1).run(["kill", "-KILL", str(driver["process"])])
        cluster.wait_for_job(job)
        nothing_is_left(cluster)
    (shared_dir / "hold").unlink()
    run(cluster, shared_dir, [{"seed": 1}])
    first, second, third = attempts(shared_dir)
    assert [each.outcome for each in (first, second, third)] == ["interrupted", "interrupted", "finished"]
    assert first.epochs[0] == second.epochs[0] == third.epochs[0], "also its seconds: it was trained once"
    assert [row["epoch"] for row in third.epochs] == [1, 2, 3]
    nothing_is_left(cluster)


def test_early_stopping_ends_its_ranks_on_both_hosts(cluster, shared_dir):
    stop = {"stop": {"method": "asha"}, "metric": "train_loss"}
    run(cluster, shared_dir, [{"lr": 0.01}], **stop)
    (shared_dir / "hold").touch()
    run(cluster, shared_dir, [{"lr": 0.01}, {"lr": 1e-9}], **stop)
    assert list(pd.read_csv(shared_dir / "results/sweeps/s/trials.csv")["status"]) == ["finished", "stopped"]
    nothing_is_left(cluster)
