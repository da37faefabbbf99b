"""The walltime of a sweep is predicted from its first run; if it is too short, further jobs follow; limits of a QOS."""

from dataclasses import replace

import pandas as pd
import pytest
from slurm_cluster.site import FIRST
from slurm_cluster.waiting import PATIENCE_SECONDS, wait_until
from submitting import (
    GATED_JOBS,
    cluster_or_skip,
    depth_sweep_twice,
    nothing_is_left,
    snakemake,
    snakemake_in_background,
)
from sweep_journals import attempts_in
from trainyard.planning.strategies import PADDING

pytestmark = pytest.mark.slow

# However long the start takes, the first trial leaves less time than it took, and a new job has enough for another.
LIMITED = replace(FIRST, limits=("MaxSubmitJobsPerUser=1", "MaxWall=00:50:00", "MaxTRESPerUser=gres/gpu=8"))


@pytest.fixture(scope="module")
def cluster():
    """A cluster whose QOS has limits."""
    with cluster_or_skip(LIMITED, name="limited") as running:
        yield running


def test_the_second_run_requests_a_walltime_that_suffices(cluster, shared_dir):
    """benchmarks/predictions.py measures its accuracy."""
    first, second = depth_sweep_twice(cluster, shared_dir, seconds_per_block=0.05)
    unforeseen = pd.read_csv(first / "jobs.csv").iloc[0]
    assert pd.isna(unforeseen["predicted_seconds"])
    assert unforeseen["requested_seconds"] == 50 * 60, "as long as the QOS allows"
    foreseen = pd.read_csv(second / "jobs.csv").iloc[-1]
    assert foreseen["finished"] == 20
    assert foreseen["predicted_low_seconds"] <= foreseen["predicted_seconds"] <= foreseen["predicted_high_seconds"]
    assert foreseen["predicted_high_seconds"] <= foreseen["requested_seconds"] < 50 * 60

    record = cluster.jobs(int(foreseen["job"]))[0]
    assert record.state == "COMPLETED"
    assert foreseen["elapsed_seconds"] == pytest.approx(record.elapsed_seconds, abs=1)
    assert "gres/gpu=2" in foreseen["allocated_tres"]
    table = pd.read_csv(second / "strategies.csv").set_index("strategy")
    packed, array = table.loc["packed"], table.loc["job_array"]
    assert packed["basis"] == "measured: journal and sacct"
    assert (packed["jobs"], packed["gpus_total"]) == (1, 2), "only the second job counts"
    assert packed["requested_gpu_seconds"] == 2 * foreseen["requested_seconds"]
    assert packed["used_gpu_seconds"] == pytest.approx(2 * record.elapsed_seconds, abs=2), "what sacct has"
    trials = pd.read_csv(second / "trials.csv")["seconds"]
    assert packed["running_gpu_seconds"] == array["running_gpu_seconds"] == pytest.approx(trials.sum(), rel=0.01)
    startup = array["startup_gpu_seconds"] / array["jobs"]
    assert array["requested_seconds_per_job"] / PADDING - startup == pytest.approx(trials.max(), rel=0.01)
    assert packed["makespan_lower_bound_seconds"] <= packed["makespan_seconds"]


def test_jobs_follow_without_a_retry_until_a_sweep_whose_walltime_is_too_short_is_complete(cluster, shared_dir):
    """The first trial takes more than half of the remaining time, so that its job starts no other trial."""
    sweep = {"command": "test {seed} != 0 || sleep 140", "grid": {"seed": [0, 1, 2]}}
    options = ["--retries", "0", "--set-resources", "sweep:runtime=4"]
    output = snakemake(cluster, shared_dir, {"sweeps": {"s": sweep}}, *options, "--", "sweeps")
    tries = attempts_in(shared_dir / "results/sweeps/s")
    assert [attempt.outcome for attempt in tries] == ["finished"] * 3, "no trial started twice"
    jobs = list(dict.fromkeys(attempt.location.job for attempt in tries))
    assert len(jobs) >= 2, "one job was not enough"
    planned = "has ended before its walltime, as planned, with work left: another job follows."
    assert f"Slurm job {jobs[0]} (sweep s) {planned}" in output
    assert cluster.jobs(int(jobs[0]))[0].state == "FAILED", "it ended by itself before Slurm ended it"
    nothing_is_left(cluster)


def test_jobs_above_a_limit_on_the_queue_are_submitted_later(cluster, shared_dir):
    (shared_dir / "Snakefile").write_text(GATED_JOBS)
    names, refused = ["one", "two"], "sbatch refuses jobs for now (QOSMaxSubmitJobPerUserLimit)"
    options = ["--retries", "0", "--set-resources", "work:runtime=30", "--", *names]
    with snakemake_in_background(cluster, shared_dir, {}, *options, snakefile=shared_dir / "Snakefile") as running:
        output = (shared_dir / "snakemake.out").read_text
        wait_until(lambda: refused in output(), what="the second job to be refused", while_running=running)
        for name in names:
            (shared_dir / f"go-{name}").touch()
        assert running.wait(PATIENCE_SECONDS) == 0, output()
    assert sorted((shared_dir / "starts").read_text().split()) == sorted(names)


def test_a_dry_run_shows_which_limit_decides_and_which_is_exceeded(cluster, shared_dir):
    sweep = {"command": "train {lr}", "grid": {"lr": list(range(20))}}
    chosen = {**sweep, "slots": {"jobs": 4, "gpus_per_node": 4}, "goal": "fastest"}
    sweeps = {"fixed": {**sweep, "slots": {"gpus_per_node": 16}}, "chosen": chosen}
    output = snakemake(cluster, shared_dir, {"sweeps": sweeps}, "-n", "--verbose", "--", "sweeps")
    time = "limited by QOS normal: 50 min 0 s of walltime"
    assert f"{time}; above the limit of QOS normal: 8 GPUs, so that Slurm would never start it" in output
    assert f"{time}; limited by QOS normal: 8 GPUs" in output
    assert "requests 2 jobs with 4 slots of 1 GPU and 1 CPU (fastest, of at most 16)" in output
    assert output.count("walltime: 50 min") == 2
