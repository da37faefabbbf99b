"""The Slurm executor with jobs of Snakemake that need no cluster."""

from types import SimpleNamespace

from snakemake.jobs import GroupJob
from snakemake_executor_plugin_slurm import Executor
from trainyard.cli.slurm_executor import SlurmExecutor


def test_a_group_of_jobs_which_has_no_wildcards_is_submitted(monkeypatch):
    """Whatever is raised before the submission is lost in a thread of the plugin, and Snakemake waits forever."""
    submitted = []
    monkeypatch.setattr(Executor, "run_job", lambda self, job: submitted.append(job))
    executor, job = SlurmExecutor.__new__(SlurmExecutor), GroupJob.__new__(GroupJob)
    job.groupid, job.jobs = "several", []
    executor.workflow = SimpleNamespace(executor_settings=SimpleNamespace(exclude_failed_nodes=None))
    executor.run_job(job)
    assert submitted == [job]
