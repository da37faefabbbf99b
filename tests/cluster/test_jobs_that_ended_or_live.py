"""Preempted jobs are submitted again in each mode, without a retry; jobs of a killed Snakemake are waited for.

One that would end in the same way again is not submitted again.
"""

import sys
from contextlib import contextmanager

import pytest
import yaml
from slurm_cluster.waiting import wait_until
from submitting import GATED_JOBS, snakemake_in_background

pytestmark = pytest.mark.slow


def starts(folder):
    """The output of each job that has started, in order."""
    file = folder / "starts"
    return file.read_text().split() if file.exists() else []


def jobs_of(cluster, folder):
    """All jobs that were submitted in a folder."""
    return [job for job in cluster.jobs() if job.folder == str(folder)]


@contextmanager
def preemption(cluster):
    """A function that sets how the partition `preempt` ends its jobs."""

    def set_mode(mode, *, grace_seconds):
        settings = [f"preemptmode={mode}", f"gracetime={grace_seconds}"]
        cluster.run(["scontrol", "update", "partitionname=preempt", *settings])

    yield set_mode
    set_mode("REQUEUE", grace_seconds=0)


def test_a_preempted_job_is_submitted_again_without_a_retry(cluster, shared_dir):
    """With CANCEL, Slurm does not requeue it; nor in any mode if it ends by itself in the grace period."""
    (shared_dir / "Snakefile").write_text(GATED_JOBS)
    options = ["--retries", "0", "--default-resources", "slurm_partition=preempt", "runtime=60", "mem_mb=1000"]
    command = (cluster, shared_dir, {}, *options, "--", "one")
    with (
        preemption(cluster) as set_mode,
        snakemake_in_background(*command, snakefile=shared_dir / "Snakefile") as running,
    ):
        for count, (mode, grace_seconds) in enumerate([("CANCEL", 0), ("REQUEUE", 300)], start=1):
            started = f"job {count} to work"
            wait_until(lambda n=count: len(starts(shared_dir)) == n, what=started, while_running=running)
            set_mode(mode, grace_seconds=grace_seconds)
            cluster.submit("true", "--partition=gpu", "--nodes=4", "--exclusive", cwd="/tmp")
        wait_until(lambda: len(starts(shared_dir)) == 3, what="job 3 to work", while_running=running)
        (shared_dir / "go-one").touch()
        assert running.wait(600) == 0, (shared_dir / "snakemake.out").read_text()
    assert [job.state for job in jobs_of(cluster, shared_dir)] == ["PREEMPTED", "FAILED", "COMPLETED"]
    assert (shared_dir / "snakemake.out").read_text().count("(work one) was preempted: another job follows") == 2


def test_a_restarted_snakemake_takes_the_results_of_the_jobs_of_a_killed_one(cluster, shared_dir):
    """Of three jobs, one ends before the restart, one still runs and one is pending.

    Those whose parameters have changed since, the first and the last, are submitted again.
    """
    (shared_dir / "Snakefile").write_text(GATED_JOBS)
    snakefile, names = shared_dir / "Snakefile", ["one", "two", "three"]
    options = ["--retries", "0", "--set-threads", "work=8", "--", *names]
    cluster.submit("sleep 600", "--nodes=2", "--exclusive", cwd="/tmp")
    with snakemake_in_background(cluster, shared_dir, {}, *options, snakefile=snakefile) as killed:
        wait_until(lambda: len(starts(shared_dir)) == 2, what="two jobs to work", while_running=killed)
        wait_until(lambda: len(jobs_of(cluster, shared_dir)) == 3, what="three jobs", while_running=killed)
    jobs = jobs_of(cluster, shared_dir)
    assert sorted(job.state for job in jobs) == ["PENDING", "RUNNING", "RUNNING"]
    first, second = starts(shared_dir)
    (third,) = {*names} - {first, second}
    cluster.run(["scontrol", "hold", *(str(job.id) for job in jobs if job.state == "PENDING")])
    (shared_dir / f"go-{first}").touch()
    wait_until(lambda: [job.state for job in jobs_of(cluster, shared_dir)].count("COMPLETED") == 1, what="an end")
    changed = {first: "changed", third: "changed"}
    with snakemake_in_background(cluster, shared_dir, changed, *options, snakefile=snakefile) as running:
        output = (shared_dir / "snakemake.out").read_text
        wait_until(lambda: output().count("waiting for it to end") == 2, what="it to wait", while_running=running)
        cluster.run(["scontrol", "release", *(str(job.id) for job in jobs if job.state == "PENDING")])
        for name in names:
            (shared_dir / f"go-{name}").touch()
        assert running.wait(600) == 0, output()
    assert [job.state for job in jobs_of(cluster, shared_dir)] == ["COMPLETED"] * 5
    assert sorted(starts(shared_dir)) == sorted([*names, first, third])
    assert output().count("(no retry)") == 1


def test_a_job_that_would_end_in_the_same_way_again_is_not_submitted_again(cluster, shared_dir):
    """The config is in /tmp, which no other host shares: jobs read the one that Snakemake has written."""
    program = "import sys; print('usage: there is no option --lr'); sys.exit(2)"
    sweep = {"command": [sys.executable, "-c", program, "{lr}"], "grid": {"lr": [1, 2, 3, 4]}}
    (shared_dir / "sweep.yaml").write_text(yaml.safe_dump({"sweeps": {"s": sweep}}))
    cluster.run(["cp", "sweep.yaml", "/tmp/only-here.yaml"], cwd=shared_dir)
    options = ["--configfile", "/tmp/only-here.yaml", "--", "sweeps"]
    with snakemake_in_background(cluster, shared_dir, {}, *options) as running:
        assert running.wait(600) == 1
    output = (shared_dir / "snakemake.out").read_text()
    assert "and another one would end in the same way: none follows" in output
    assert [job.state for job in jobs_of(cluster, shared_dir)] == ["FAILED"], output
    log = (shared_dir / "results/logs/sweep/s.log").read_text()
    assert "the first trials failed in the same way" in log
