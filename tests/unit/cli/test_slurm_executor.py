"""The Slurm executor with jobs of Snakemake that need no cluster."""

import asyncio
import itertools
import time
from types import SimpleNamespace

import pytest
from snakemake.jobs import GroupJob
from snakemake.settings.types import SharedFSUsage
from snakemake.spawn_jobs import SpawnedJobArgsFactory
from snakemake_executor_plugin_slurm import Executor
from trainyard.cli.command_line import final_mark
from trainyard.cli.slurm_executor import SlurmExecutor
from trainyard.cluster.user_jobs import LiveJob


def test_a_group_of_jobs_which_has_no_wildcards_is_submitted(monkeypatch):
    """Whatever is raised before the submission is lost in a thread of the plugin, and Snakemake waits forever."""
    submitted = []
    monkeypatch.setattr(Executor, "run_job", lambda self, job: submitted.append(job))
    executor, job = SlurmExecutor.__new__(SlurmExecutor), GroupJob.__new__(GroupJob)
    job.groupid, job.jobs = "several", []
    executor.workflow = SimpleNamespace(executor_settings=SimpleNamespace(exclude_failed_nodes=None))
    executor.run_job(job)
    assert submitted == [job]


@pytest.mark.parametrize("is_final", [True, False])
def test_a_job_that_would_end_in_the_same_way_again_is_not_retried(tmp_path, monkeypatch, is_final):
    monkeypatch.setattr(Executor, "run_job", lambda self, job: None)
    monkeypatch.setattr(SlurmExecutor, "_list_live_jobs", lambda self: [])
    monkeypatch.setattr(SlurmExecutor, "_find_live_job", lambda self, job, listed: None)
    monkeypatch.setattr(SlurmExecutor, "_record_parameters", lambda self, job: None)
    executor, log = SlurmExecutor.__new__(SlurmExecutor), tmp_path / "s.log"
    executor.workflow = SimpleNamespace(executor_settings=SimpleNamespace(exclude_failed_nodes=None))
    executor.logger = SimpleNamespace(info=print)
    job = SimpleNamespace(is_group=lambda: False, log=[str(log)], restart_times=2, attempt=1, _attempt=1, jobid=4)
    final_mark(log).touch()
    executor.run_job(job)
    assert not final_mark(log).exists(), "it is of an earlier job"
    if is_final:
        final_mark(log).touch()
    executor.handle_job_error(job)
    is_retried = job.restart_times > job._attempt - 1  # as Snakemake's scheduler decides
    assert is_retried is not is_final


def test_jobs_read_the_config_of_this_run(tmp_path, monkeypatch):
    workflow = SimpleNamespace(
        overwrite_configfiles=["/only here/my.yaml"],
        storage_settings=SimpleNamespace(shared_fs_usage=SharedFSUsage.all()),
    )
    workflow.spawned_job_args_factory = SpawnedJobArgsFactory(workflow)
    given = workflow.spawned_job_args_factory.get_configfiles_arg()
    assert "only here" in given
    monkeypatch.setattr(Executor, "format_job_exec", lambda self, job: f"python -m snakemake {given} --cores all")
    executor = SlurmExecutor.__new__(SlurmExecutor)
    executor.workflow, executor.array_jobs = workflow, True
    monkeypatch.setattr(SlurmExecutor, "config_file", tmp_path / "a b.json")
    assert executor.format_job_exec(None) == f"python -m snakemake --configfiles '{tmp_path}/a b.json' --cores all"


def test_the_end_of_a_job_is_noticed_within_a_tenth_of_its_time(monkeypatch):
    """The plugin alone checks after 5, 20, 45, 80 s: a job of 21 s would seem to take 45 s."""
    executor, now = SlurmExecutor.__new__(SlurmExecutor), [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    async def check(self, jobs):  # as the plugin does if no job has ended
        self.next_seconds_between_status_checks = min(self.next_seconds_between_status_checks + 10, 180)
        for job in jobs:
            yield job

    async def active():
        return [job async for job in executor.check_active_jobs([SimpleNamespace(aux={}, external_jobid="1")])]

    monkeypatch.setattr(Executor, "check_active_jobs", check)
    monkeypatch.setattr(SlurmExecutor, "_list_live_jobs", lambda self: None)
    executor.workflow = SimpleNamespace(executor_settings=SimpleNamespace(init_seconds_before_status_checks=5))
    executor._submitted_at, executor._to_submit = now[0], []
    executor.next_seconds_between_status_checks, checks = 5, []
    while now[0] < 1000.0 + 24 * 3600:
        now[0] += executor.next_seconds_between_status_checks
        checks.append(now[0] - 1000.0)
        assert len(asyncio.run(active())) == 1
    gaps = [later - earlier for earlier, later in itertools.pairwise(checks)]
    assert all(gap <= max(5, 0.1 * check) + 1e-6 for gap, check in zip(gaps, checks, strict=False))
    assert max(gaps) == pytest.approx(180), "no more often than the plugin where jobs are long"
    assert len(checks) < 24 * 3600 / 180 + 60


def sleeping_executor(*jobs, seconds):
    executor = SlurmExecutor.__new__(SlurmExecutor)
    executor.wait, executor.active_jobs, executor._outputs = True, list(jobs), {}
    executor.next_seconds_between_status_checks = seconds
    return executor


def slurm_job(*files):
    return SimpleNamespace(external_jobid="7", job=SimpleNamespace(output=files))


def test_slurm_is_asked_soon_after_all_output_of_a_job_has_appeared(tmp_path):
    old, new = tmp_path / "old.csv", tmp_path / "new.csv"
    old.touch()
    executor = sleeping_executor(slurm_job(old, new), seconds=3600)

    async def write():
        while not executor._outputs:
            await asyncio.sleep(0.01)
        new.touch()

    async def wait_and_write():
        await asyncio.gather(executor.sleep(), write())

    asyncio.run(asyncio.wait_for(wait_and_write(), 600))


def test_output_of_an_earlier_run_is_no_reason_to_ask_slurm(tmp_path):
    file = tmp_path / "a.csv"
    file.touch()
    executor = sleeping_executor(slurm_job(file), seconds=3600)
    assert [executor._has_new_output(executor.active_jobs[0]) for _ in range(3)] == [False] * 3
    file.unlink()  # as Snakemake does at the start of the job
    assert not executor._has_new_output(executor.active_jobs[0])
    file.touch()
    assert [executor._has_new_output(executor.active_jobs[0]) for _ in range(2)] == [True, False]


def test_snakemake_does_not_wait_for_the_next_check_to_end():
    executor = sleeping_executor(seconds=3600)

    async def end():
        executor.wait = False

    async def sleep_and_end():
        await asyncio.gather(executor.sleep(), end())

    asyncio.run(asyncio.wait_for(sleep_and_end(), 600))


@pytest.mark.parametrize("is_live", [True, False])
def test_a_job_waits_until_slurm_lists_the_live_jobs(tmp_path, monkeypatch, is_live):
    """A restarted Snakemake would submit a second job for the results of a live one, which would fail."""
    submitted, adopted, listed = [], [], [None]

    async def check(self, jobs):
        for job in jobs:
            yield job

    monkeypatch.setattr(Executor, "check_active_jobs", check)
    monkeypatch.setattr(Executor, "run_job", lambda self, job: submitted.append(job.jobid))
    monkeypatch.setattr(SlurmExecutor, "_list_live_jobs", lambda self: listed[-1])
    monkeypatch.setattr(SlurmExecutor, "_record_parameters", lambda self, job: None)
    executor = SlurmExecutor.__new__(SlurmExecutor)
    executor.workflow = SimpleNamespace(
        executor_settings=SimpleNamespace(exclude_failed_nodes=None, init_seconds_before_status_checks=5),
        workdir_init=str(tmp_path),
        persistence=SimpleNamespace(has_metadata=lambda job: False),
    )
    executor.logger, executor._to_submit, executor._submitted_at = SimpleNamespace(info=print), [], time.monotonic()
    executor.next_seconds_between_status_checks = 5
    executor.report_job_submission = lambda info: adopted.append(info.external_jobid)

    async def check_once():
        assert [job async for job in executor.check_active_jobs([])] == []

    executor.run_job(SimpleNamespace(is_group=lambda: False, log=[], name="sweep", wildcards=["depth"], jobid=4))
    asyncio.run(check_once())
    assert (submitted, adopted) == ([], [])
    live = LiveJob("7", "RUNNING", "2026-11-20T21:30:00", "rule_sweep_wildcards_depth", tmp_path)
    listed.append([live] if is_live else [])
    for _ in range(2):
        asyncio.run(check_once())
    assert (submitted, adopted) == (([], ["7"]) if is_live else ([4], []))
