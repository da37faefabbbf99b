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
from snakemake_interface_executor_plugins.executors.remote import RemoteExecutor
from trainyard.cli import slurm_executor
from trainyard.cli.command_line import continued_mark, final_mark
from trainyard.cli.slurm_executor import SlurmExecutor
from trainyard.cluster.slurm_limits import JobLimits, Limits
from trainyard.cluster.slurm_queries import Request, UserJob
from trainyard.utils.errors import UserError


@pytest.fixture
def logged():
    """What an executor logged and reported."""
    return []


@pytest.fixture
def executor(monkeypatch, tmp_path, logged):
    """An executor that starts no thread; what it logs and reports is in `logged`, what the plugin would submit, too."""

    def start(self, workflow, logger):
        self.workflow, self.logger, self.wait, self.active_jobs = workflow, logger, True, []
        self.next_seconds_between_status_checks = 5

    monkeypatch.setattr(Executor, "__init__", start)
    monkeypatch.setattr(Executor, "run_job", lambda self, job: logged.append(("submitted", job)))
    monkeypatch.setattr(RemoteExecutor, "report_job_success", lambda self, info: logged.append(("done", info.job)))
    monkeypatch.setattr(RemoteExecutor, "report_job_error", lambda self, info, **_: logged.append(("failed", info.job)))
    monkeypatch.setattr(SlurmExecutor, "_record_parameters", lambda self, job: None)
    workflow = SimpleNamespace(
        executor_settings=SimpleNamespace(exclude_failed_nodes=None, init_seconds_before_status_checks=5),
        resource_settings=SimpleNamespace(default_resources=None),
        workdir_init=str(tmp_path),
        persistence=SimpleNamespace(has_metadata=lambda job: False),
    )
    return SlurmExecutor(workflow, SimpleNamespace(info=logged.append, warning=logged.append))


def snakemake_job(log="s.log", **values):
    return SimpleNamespace(
        is_group=lambda: False, log=[str(log)], output=[], name="sweep", wildcards=["depth"], jobid=4, **values
    )


def slurm_job(number="7", *files):
    job = snakemake_job()
    job.output = files
    return SimpleNamespace(external_jobid=str(number), job=job, aux={})


def user_job(number="7", state="RUNNING", *, reason="None", folder="/"):
    return UserJob(str(number), state, "2026-11-20T21:30:00", reason, "rule_sweep_wildcards_depth", folder)


def check(executor, *jobs):
    """The jobs that a check yields."""

    async def active():
        return [job async for job in executor.check_active_jobs(jobs)]

    return asyncio.run(active())


def test_a_group_of_jobs_which_has_no_wildcards_is_submitted(executor, logged):
    """Whatever is raised before the submission is lost in a thread of the plugin, and Snakemake waits forever."""
    job = GroupJob.__new__(GroupJob)
    job.groupid, job.jobs = "several", []
    executor.run_job(job)
    assert logged == [("submitted", job)]


@pytest.mark.parametrize("is_final", [True, False])
def test_a_job_that_would_end_in_the_same_way_again_is_not_retried(executor, tmp_path, monkeypatch, is_final):
    monkeypatch.setattr(slurm_executor, "list_user_jobs", list)
    log = tmp_path / "s.log"
    job = snakemake_job(log, restart_times=2, attempt=1, _attempt=1)
    final_mark(log).touch()
    executor.run_job(job)
    assert not final_mark(log).exists(), "it is of an earlier job"
    if is_final:
        final_mark(log).touch()
    executor.handle_job_error(job)
    is_retried = job.restart_times > job._attempt - 1  # as Snakemake's scheduler decides
    assert is_retried is not is_final


@pytest.mark.parametrize(("is_planned", "attempt", "is_error"), [(True, 2, False), (True, 3, True), (False, 1, True)])
def test_a_planned_continuation_is_no_error(executor, monkeypatch, tmp_path, logged, is_planned, attempt, is_error):
    monkeypatch.setattr(RemoteExecutor, "print_job_error", lambda self, info, **_: logged.append("error"))
    info = slurm_job()
    info.job = snakemake_job(tmp_path / "s.log", restart_times=2, attempt=attempt)
    if is_planned:
        continued_mark(tmp_path / "s.log").touch()
    executor.print_job_error(info)
    line = "Slurm job 7 has ended before its walltime, as planned, with work left: job 4 (sweep depth) continues in"
    assert [text.startswith("error" if is_error else line) for text in logged] == [True]


@pytest.mark.parametrize("fails", [False, True])
def test_before_each_submission_the_config_is_there_also_if_the_results_were_deleted(
    executor, monkeypatch, logged, fails
):
    def write():
        logged.append("written")
        if fails:
            raise UserError("no space left")

    monkeypatch.setattr(SlurmExecutor, "before_submission", staticmethod(write))
    executor.run_job(job := SimpleNamespace(is_group=lambda: True))
    assert logged == ["written", *(["no space left"] if fails else []), ("submitted", job)]


def test_jobs_read_the_config_of_this_run(executor, tmp_path, monkeypatch):
    executor.workflow.overwrite_configfiles = ["/only here/my.yaml"]
    executor.workflow.storage_settings = SimpleNamespace(shared_fs_usage=SharedFSUsage.all())
    executor.workflow.spawned_job_args_factory = SpawnedJobArgsFactory(executor.workflow)
    given = executor.workflow.spawned_job_args_factory.get_configfiles_arg()
    assert "only here" in given
    monkeypatch.setattr(Executor, "format_job_exec", lambda self, job: f"python -m snakemake {given} --cores all")
    monkeypatch.setattr(SlurmExecutor, "config_file", tmp_path / "a b.json")
    executor.array_jobs = True
    job = SimpleNamespace(is_group=lambda: False, rule=SimpleNamespace(basedir="/another/workflow"))
    assert executor.format_job_exec(job) == f"python -m snakemake --configfiles '{tmp_path}/a b.json' --cores all"


@pytest.mark.parametrize(
    ("folders", "keeps"), [(["own"], True), (["another"], False), (["own", "own"], True), (["own", "another"], False)]
)
def test_a_killed_job_deletes_no_output_that_its_next_incarnation_may_have_written(
    executor, monkeypatch, folders, keeps
):
    """Only Trainyard's rules write theirs atomically and last: a half-written one of another rule would stay."""
    monkeypatch.setattr(Executor, "format_job_exec", lambda self, job: "python -m snakemake")
    executor.array_jobs, executor.own_rules = True, "own"
    jobs = [SimpleNamespace(is_group=lambda: False, rule=SimpleNamespace(basedir=each)) for each in folders]
    job = SimpleNamespace(is_group=lambda: True, jobs=jobs) if len(jobs) > 1 else jobs[0]
    assert ("--keep-incomplete" in executor.format_job_exec(job)) is keeps


class FakeClock:
    """A clock that moves when an executor sleeps, and counts what it does meanwhile."""

    def __init__(self, monkeypatch, *, jobs):
        self.now, self.listings, self.looks = 1000.0, [], []
        self.jobs, self.events, self.changed_at = jobs, [], slurm_executor._changed_at
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        monkeypatch.setattr(slurm_executor, "list_user_jobs", self._list)
        monkeypatch.setattr(slurm_executor, "_changed_at", self._look)
        monkeypatch.setattr(asyncio, "sleep", self._sleep)

    def _list(self):
        self.listings.append(self.now)
        return [user_job(number) for number in range(self.jobs)]

    def _look(self, file):
        self.looks.append(self.now)
        return self.changed_at(file)

    async def _sleep(self, seconds):
        self.now += seconds
        while self.events and self.events[0][0] <= self.now:
            self.events.pop(0)[1]()

    def happens(self, seconds, event):
        """Let something happen so many seconds from now, while an executor sleeps; in the order of the times."""
        self.events.append((self.now + seconds, event))

    def follow(self, executor, *, until):
        """Let it check and sleep, as Snakemake does, until this time since the start of the test."""
        while self.now - 1000 < until:
            executor.active_jobs = check(executor, *executor.active_jobs)
            asyncio.run(executor.sleep())


@pytest.mark.parametrize("count", [1, 100])
def test_waiting_costs_few_commands_and_few_looks_whatever_the_number_of_jobs(monkeypatch, request, count):
    """The plugin alone runs three commands in each check; it must not be asked about jobs in the queue."""
    clock = FakeClock(monkeypatch, jobs=count)
    monkeypatch.setattr(Executor, "check_active_jobs", None)
    executor = request.getfixturevalue("executor")
    executor.active_jobs = [slurm_job(number, "one", "two") for number in range(count)]
    clock.follow(executor, until=3 * 3600)

    def per_minute(moments):
        minutes = [int(moment - 1000) // 60 for moment in moments]
        return [minutes.count(minute) for minute in range(180)]

    listings, looks = per_minute(clock.listings), per_minute([*dict.fromkeys(clock.looks)])
    assert len(executor.active_jobs) == count
    assert listings[0] >= 10, "jobs that end at once are noticed soon"
    assert max(listings[2:]) <= 6
    assert max(listings[60:]) <= 1
    assert max(looks) <= 120
    assert max(looks[10:]) <= 15
    assert len(clock.looks) == 2 * len({*clock.looks}), "at the files of one job"


def test_checks_are_no_more_often_if_jobs_are_submitted_all_the_time(monkeypatch, request):
    clock = FakeClock(monkeypatch, jobs=1)
    executor = request.getfixturevalue("executor")
    executor.active_jobs = [slurm_job("0")]
    for second in range(1000):
        clock.follow(executor, until=second)
        executor.run_job(snakemake_job())
    assert len([moment for moment in clock.listings if moment > 1900]) <= 6 * 100 / 60 + 1


def test_the_end_of_a_job_is_noticed_within_a_tenth_of_its_time(monkeypatch, request):
    """The plugin alone checks after 5, 20, 45, 80 s: a job of 21 s would seem to take 45 s."""
    clock = FakeClock(monkeypatch, jobs=1)
    executor = request.getfixturevalue("executor")
    executor.active_jobs = [slurm_job("0")]
    clock.follow(executor, until=2 * 3600)
    gaps = [(before - 1000, after - before) for before, after in itertools.pairwise(clock.listings)]
    assert all(gap <= max(5, 0.1 * (before + gap)) + 0.5 for before, gap in gaps)
    assert max(gap for _, gap in gaps) == pytest.approx(180), "no more often than the plugin where jobs are long"


def test_a_job_that_is_submitted_while_others_run_for_hours_is_checked_soon(monkeypatch, request):
    clock = FakeClock(monkeypatch, jobs=1)
    executor = request.getfixturevalue("executor")
    executor.active_jobs = [slurm_job("0")]
    clock.follow(executor, until=3600)
    check(executor, *executor.active_jobs)
    before = clock.now
    clock.happens(0, lambda: executor.run_job(snakemake_job()))
    asyncio.run(executor.sleep())
    assert clock.now - before <= 11


@pytest.fixture
def plugin(monkeypatch, logged):
    """What the plugin does with the jobs that it is asked about: by default nothing, as if Slurm did not answer."""
    answers = {}

    async def answer(self, jobs):
        for info in jobs:
            logged.append(("asked", info.external_jobid))
            found = answers.get(info.external_jobid)
            if found == "yield":
                yield info
            elif found:
                getattr(self, f"report_job_{found}")(info)

    monkeypatch.setattr(Executor, "check_active_jobs", answer)
    monkeypatch.setattr(slurm_executor, "final_state", lambda job: "")
    return answers


@pytest.mark.parametrize("listed", [[], [user_job(state="COMPLETED")], [user_job(state="COMPLETING")]])
def test_jobs_that_the_plugin_forgets_while_slurm_does_not_answer_are_followed(
    executor, plugin, monkeypatch, logged, listed
):
    """Snakemake would wait for them forever."""
    job = slurm_job()
    monkeypatch.setattr(slurm_executor, "list_user_jobs", lambda: listed)
    assert check(executor, job) == [job]
    plugin["7"] = "success"
    assert check(executor, job) == []
    assert logged == [("asked", "7"), ("asked", "7"), ("done", job.job)]


def test_while_slurm_lists_no_jobs_none_is_ended(executor, plugin, monkeypatch):
    def fail():
        raise slurm_executor.UserError("slurmctld restarts")

    monkeypatch.setattr(slurm_executor, "list_user_jobs", fail)
    plugin["7"] = "error"
    assert check(executor, job := slurm_job()) == [job]


@pytest.mark.parametrize(
    ("state", "end"),
    [("NODE_FAIL", "lost a node"), ("PREEMPTED", "was preempted"), ("CANCELLED", "failed"), ("TIMEOUT", "asked")],
)
def test_the_plugin_is_not_asked_about_ends_that_are_no_fault_of_the_job(
    executor, plugin, monkeypatch, logged, state, end
):
    """It would say that nodes are excluded, which they are not, or wait forever."""
    monkeypatch.setattr(slurm_executor, "list_user_jobs", lambda: [user_job(state=state)])
    check(executor, slurm_job())
    assert end in str(logged)
    assert ("asked" in str(logged)) is (end == "asked")


def test_a_job_that_slurm_ends_and_may_requeue_is_waited_for(executor, plugin, monkeypatch, logged):
    monkeypatch.setattr(slurm_executor, "list_user_jobs", lambda: [user_job(state="COMPLETING")])
    monkeypatch.setattr(slurm_executor, "final_state", lambda job: "NODE_FAIL")
    assert check(executor, job := slurm_job()) == [job]
    assert logged == []


def test_a_job_that_slurm_will_never_start_is_reported_once(executor, monkeypatch, logged):
    listed = [user_job(state="PENDING", reason="PartitionTimeLimit"), user_job("8", "PENDING", reason="Priority")]
    monkeypatch.setattr(slurm_executor, "list_user_jobs", lambda: listed)
    jobs = [slurm_job("7"), slurm_job("8")]
    for _ in range(3):
        assert check(executor, *jobs) == jobs
    assert len(logged) == 1
    assert logged[0].startswith(
        "Slurm will not start job 7 (sweep depth) as it is: its walltime is above the limit of its partition "
        "(PartitionTimeLimit). "
    )


LIMITED = Limits("QOS long", {"gres/gpu in all jobs": 4})


@pytest.mark.parametrize(("gpus", "is_hopeless"), [(4, False), (8, True)])
def test_a_job_that_waits_for_a_limit_below_its_request_is_reported(executor, monkeypatch, logged, gpus, is_hopeless):
    request = Request("lab", "long", "gpu", 60, {"cpu": 8, "gres/gpu": gpus})
    monkeypatch.setattr(slurm_executor, "describe_request", lambda job: request)
    monkeypatch.setattr(slurm_executor, "find_limits", lambda *names: JobLimits((LIMITED,)))
    listed = [user_job(state="PENDING", reason="QOSGrpGRES")]
    monkeypatch.setattr(slurm_executor, "list_user_jobs", lambda: listed)
    check(executor, slurm_job())
    assert ("8 gres/gpu in all jobs, but QOS long allows 4 (QOSGrpGRES)" in str(logged)) is is_hopeless


def test_slurm_is_asked_soon_after_all_output_of_a_job_has_appeared(monkeypatch, request, tmp_path):
    """Output of an earlier run is no reason to ask: Snakemake removes it at the start of the job."""
    clock = FakeClock(monkeypatch, jobs=1)
    executor = request.getfixturevalue("executor")
    old, new = tmp_path / "old.csv", tmp_path / "new.csv"
    for file in (old, new):
        file.touch()
    executor.active_jobs = [slurm_job("7", old, new)]
    began, executor.next_seconds_between_status_checks = clock.now, 3600
    asyncio.run(executor.sleep())
    assert clock.now - began == 3600
    began = clock.now
    clock.happens(100, new.unlink)
    clock.happens(200, new.touch)
    asyncio.run(executor.sleep())
    assert 200 <= clock.now - began <= 210


def test_snakemake_does_not_wait_for_the_next_check_to_end(executor):
    executor.next_seconds_between_status_checks = 3600

    async def end():
        executor.wait = False

    async def sleep_and_end():
        await asyncio.gather(executor.sleep(), end())

    asyncio.run(asyncio.wait_for(sleep_and_end(), 600))


@pytest.mark.parametrize("is_live", [True, False])
def test_a_job_waits_until_slurm_lists_the_live_jobs(executor, tmp_path, monkeypatch, logged, is_live):
    """A restarted Snakemake would submit a second job for the results of a live one, which would fail."""
    adopted, answers = [], {}

    def listing():
        if not answers:
            raise slurm_executor.UserError("slurmctld restarts")
        return answers["jobs"]

    monkeypatch.setattr(slurm_executor, "list_user_jobs", listing)
    executor.report_job_submission = lambda info: adopted.append(info.external_jobid)
    executor.run_job(job := snakemake_job())
    check(executor)
    assert (("submitted", job) in logged, adopted) == (False, [])
    answers["jobs"] = [user_job(folder=tmp_path)] if is_live else []
    for _ in range(2):
        check(executor)
    assert (("submitted", job) in logged, adopted) == ((False, ["7"]) if is_live else (True, []))
