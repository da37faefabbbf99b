"""The Slurm executor with jobs of Snakemake that need no cluster."""

import asyncio
import itertools
import shlex
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from snakemake.deployment.env_modules import EnvModules
from snakemake.jobs import GroupJob
from snakemake.settings.types import SharedFSUsage
from snakemake.spawn_jobs import SpawnedJobArgsFactory
from snakemake_executor_plugin_slurm import Executor
from snakemake_interface_common.exceptions import WorkflowError
from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo
from trainyard.cli.command_line import continued_mark, final_mark
from trainyard.cli.run_summary import JobFailure
from trainyard.cli.screen import SCREEN
from trainyard.cli.slurm_executor import FOUND, SlurmExecutor
from trainyard.cluster import job_script
from trainyard.planning.job_marks import set_mark
from trainyard.utils.errors import UserError


@pytest.fixture
def logged():
    """What an executor logged and reported."""
    return []


class Plugin(Executor):
    """The plugin with no thread and no cluster: it notes what it is asked to do."""

    def __init__(self, workflow, logger):
        self.workflow, self.logger, self.wait, self.active_jobs = workflow, logger, True, []
        self.next_seconds_between_status_checks = 5
        self.array_jobs, self.command = True, "python -m snakemake"
        self._failed_nodes = {"n1"}  # of a job that lost one
        self.answers = {}  # by Slurm job: what it does with it; nothing, as if Slurm did not answer, if it is not here

    def get_account_arg(self, job):
        yield ""

    def get_partition_arg(self, job):
        return "-p gpu"

    def run_job(self, job):
        self.excluded = self._failed_nodes
        self.logger.info(("submitted", job))

    def format_job_exec(self, job):
        return self.command

    def get_python_executable(self):
        return "/my env/bin/python"

    async def check_active_jobs(self, active_jobs):
        for info in active_jobs:
            self.logger.info(("asked", info.external_jobid))
            answer = self.answers.get(info.external_jobid)
            if answer == "yield":
                yield info
            elif answer:
                getattr(self, f"report_job_{answer}")(info)

    def report_job_submission(self, job_info, *, register_job=True):
        self.logger.info(("adopted", job_info.external_jobid))

    def report_job_success(self, job_info):
        self.logger.info(("done", job_info.job))

    def report_job_error(self, job_info, msg=None, **_):
        self.logger.info(("failed", job_info.job))

    def print_job_error(self, job_info, msg=None, **_):
        self.logger.info("error")

    def cancel_jobs(self, active_jobs):
        self.logger.info(("cancelled", {info.external_jobid for info in active_jobs}))

    def cancel(self):
        self.cancel_jobs(self.active_jobs)


class ExecutorOfPlugin(SlurmExecutor, Plugin):
    """The executor above this plugin."""


class Persistence:
    """Snakemake's records, which have no job."""

    async def finished(self, job):
        pass

    def started(self, job):
        pass

    def has_metadata(self, job):
        return False


@pytest.fixture
def executor(tmp_path, logged, slurm):
    """An executor; what it logs, and what the plugin does, is in `logged`. There are no jobs in the queue."""
    slurm.prints("squeue", "")
    workflow = SimpleNamespace(
        executor_settings=SimpleNamespace(exclude_failed_nodes=None, init_seconds_before_status_checks=5),
        resource_settings=SimpleNamespace(default_resources=None),
        deployment_settings=SimpleNamespace(deployment_method=[SimpleNamespace(name="ENV_MODULES")]),
        workdir_init=str(tmp_path),
        persistence=Persistence(),
    )
    return ExecutorOfPlugin(workflow, SimpleNamespace(info=logged.append, warning=logged.append, error=logged.append))


def project(*, announce=lambda job: None, note_failure=lambda job, failure: None):
    return SimpleNamespace(announce=announce, note_failure=note_failure)


class SnakemakeJob(SimpleNamespace):
    """A job whose retries are those of its rule."""

    @property
    def attempt(self):
        return self._attempt

    @attempt.setter
    def attempt(self, attempt):
        self._attempt = attempt

    @property
    def restart_times(self):
        return self.rule.restart_times


def snakemake_job(log="s.log", restart_times=0):
    return SnakemakeJob(
        _attempt=1,
        rule=SimpleNamespace(restart_times=restart_times),
        is_group=lambda: False,
        log=[str(log)],
        output=[],
        name="sweep",
        wildcards=["depth"],
        jobid=4,
        resources={},
    )


def slurm_job(number="7", *files):
    job = snakemake_job()
    job.output = files
    return SimpleNamespace(external_jobid=str(number), job=job, aux={})


def queued(number="7", state="RUNNING", *, reason="None", folder="/"):
    """A line of squeue."""
    return f"{number}|{state}|2026-11-20T21:30:00|{reason}|rule_sweep_wildcards_depth|{folder}\n"


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
def test_a_job_that_would_end_in_the_same_way_again_is_not_retried(executor, tmp_path, is_final):
    log = tmp_path / "s.log"
    job = snakemake_job(log, restart_times=2)
    final_mark(log).touch()
    executor.run_job(job)
    assert not final_mark(log).exists(), "it is of an earlier job"
    if is_final:
        final_mark(log).touch()
    executor.handle_job_error(job)
    is_retried = job.restart_times > job._attempt - 1  # as Snakemake's scheduler decides
    assert is_retried is not is_final


WRONG_PARTITION = (
    "SLURM sbatch failed. The error message was 'sbatch: error: invalid partition specified: nope\n"
    "sbatch: error: Batch job submission failed: Invalid partition name specified'.\n"
    "    sbatch call:\n        sbatch -p nope"
)


def test_a_job_that_sbatch_refuses_for_good_is_not_retried_and_the_summary_has_its_words(executor, tmp_path, logged):
    job, failures = snakemake_job(tmp_path / "logs/s.log", restart_times=2), []
    executor.project = project(note_failure=lambda job, failure: failures.append(failure))
    words = "invalid partition specified: nope; Batch job submission failed: Invalid partition name specified"
    info = SubmittedJobInfo(job)
    executor.report_job_error(info, msg=WRONG_PARTITION)
    executor.print_job_error(info, msg=WRONG_PARTITION)  # as Snakemake does when an error is reported
    executor.handle_job_error(job)
    assert job._attempt > job.restart_times
    assert [each.why for each in failures] == [f"its job cannot be submitted: {words}"]
    assert logged == [("failed", job), f"The job of sweep depth cannot be submitted, and is not retried: {words}"]


def test_the_summary_says_of_a_refused_job_what_a_plan_says(executor, tmp_path, slurm):
    slurm.prints("sinfo", "gpu*|up|1-00:00:00|4|8|16000|gpu:a100:2|(null)")
    failures = []
    executor.project = project(note_failure=lambda job, failure: failures.append(failure.why))
    other = WRONG_PARTITION.replace("-p nope", "-p gpu")
    for message in (WRONG_PARTITION, other):
        executor.report_job_error(SubmittedJobInfo(snakemake_job(tmp_path / "s.log")), msg=message)
    words = (
        "its job cannot be submitted: there is no partition 'nope': set slurm_partition in the profile; available: gpu "
    )
    assert failures[0].startswith(words)
    assert "; sbatch: invalid partition specified: nope; " in failures[0]
    assert "invalid partition specified: nope" in failures[1]
    assert failures[1].count("invalid") == 1


@pytest.mark.parametrize("refusal", ["Unable to contact slurm controller", "Resource temporarily unavailable"])
def test_a_job_that_sbatch_refuses_for_now_waits(executor, logged, refusal):
    job = snakemake_job(restart_times=2)
    executor.report_job_error(SubmittedJobInfo(job), msg=WRONG_PARTITION.replace("invalid partition", refusal))
    assert executor._to_submit == [job]
    assert logged == [f"sbatch refuses jobs for now ({refusal}): they are submitted later (no retry)."]


def test_the_summary_says_that_slurm_ended_a_job(executor, slurm, tmp_path):
    failures = []
    executor.project = project(note_failure=lambda job, failure: failures.append(failure.why))
    for state in ("OUT_OF_MEMORY", "FAILED"):
        slurm.prints("scontrol", f"JobState={state} StartTime=Unknown", of="show job")
        executor.report_job_error(SubmittedJobInfo(snakemake_job("s.log"), "7", {}), msg="it failed")
    assert failures == ["Slurm ended its job 7: OUT_OF_MEMORY; see s.log"]


def test_jobs_have_names_that_people_know_and_the_plugin_asks_for_them(executor):
    """It knows the jobs of a run by one name; squeue shows eight characters of a name, so the sweep's comes first."""
    job = snakemake_job()
    assert executor.get_partition_arg(job) == "-p gpu --job-name=depth-trainyard"
    job.wildcards = ["width", "2x1/repeat-1"]
    assert executor.get_partition_arg(job) == "-p gpu --job-name=width-2x1-repeat-1-trainyard"
    check(executor, slurm_job())
    assert executor.run_uuid == "depth-trainyard,width-2x1-repeat-1-trainyard"


def test_progress_is_that_of_the_jobs_in_the_queue(executor, slurm, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(SCREEN, "is_ours", True)
    monkeypatch.setattr(SCREEN, "_shown_at", -1000.0)
    executor.project = SimpleNamespace(describe_progress=lambda: ["sweep depth: 1 of 6 trials done"])
    slurm.prints("squeue", queued("7") + queued("8", "PENDING", reason="Priority") + queued("9"))
    executor.active_jobs = [slurm_job("7"), slurm_job("8")]
    check(executor, *executor.active_jobs)
    executor.next_seconds_between_status_checks = 0.3
    asyncio.run(executor.sleep())
    (line,) = capsys.readouterr().out.splitlines()
    assert line.endswith(" sweep depth: 1 of 6 trials done; 1 job running, 1 job pending: Priority")


@pytest.mark.parametrize("printed", ["", "it began\n"])
def test_a_job_whose_program_did_not_start_has_failed_by_slurms_log(executor, tmp_path, slurm, printed):
    slurm.prints("scontrol", "JobState=FAILED StartTime=Unknown", of="show job")
    log, failures = tmp_path / "s.log", []
    log.write_text("of an earlier job\n")
    executor.project = project(note_failure=lambda job, failure: failures.append(failure))
    executor.run_job(job := snakemake_job(log))
    with log.open("a") as file:
        file.write(printed)
    info = SubmittedJobInfo(job, "7", {"slurm_logfile": tmp_path / "7.log"})
    executor.report_job_error(info, msg="SLURM-job '7' failed, SLURM status is: 'FAILED'.")
    expected = [JobFailure("Slurm job 7 ended before its program started", tmp_path / "7.log")]
    assert failures == ([] if printed else expected)


def test_what_the_plugin_refuses_is_the_error_of_the_job_without_a_stack_trace(executor, logged, tmp_path):
    def refuse(job):
        raise WorkflowError("The given account labb appears to be invalid. Available accounts:\nlab")

    failures = []
    executor.project = project(note_failure=lambda job, failure: failures.append(failure.why))
    executor.get_account_arg = refuse
    executor.run_job(job := snakemake_job(tmp_path / "s.log", restart_times=2))
    why = "The given account labb appears to be invalid. Available accounts:; lab"
    assert failures == [f"its job cannot be submitted: {why}"]
    assert logged == [("failed", job)]


def fail(executor, job, number):
    """Have a job of Slurm end with an error; returns whether Snakemake runs the job again, and does so."""
    info = SubmittedJobInfo(job, str(number), {})
    executor.report_job_error(info)
    executor.print_job_error(info)  # as Snakemake does when an error is reported
    executor.handle_job_error(job)
    follows = job.restart_times > job._attempt - 1  # as its scheduler decides
    job.attempt += follows
    return follows


def test_a_job_that_succeeded_without_its_outputs_is_named_not_its_earlier_end(executor, tmp_path, slurm, logged):
    slurm.prints("scontrol", "JobState=FAILED StartTime=Unknown", of="show job")
    job = snakemake_job(tmp_path / "s.log", restart_times=3)
    assert fail(executor, job, 7)
    executor.handle_job_error(job)  # without a report, as Snakemake does when outputs are missing
    assert logged[-1] == "The job of sweep depth has failed: another job follows."


def test_a_job_that_got_further_is_continued_without_a_retry(executor, tmp_path, slurm, logged):
    """Another one of its rule that fails has the retries that it was given."""
    slurm.prints("scontrol", "JobState=FAILED StartTime=Unknown", of="show job")
    rule = SimpleNamespace(restart_times=2)
    job, other = (snakemake_job(tmp_path / f"{name}.log") for name in "so")
    for each in (job, other):
        each.rule = rule
    other.jobid = 5
    continued_mark(tmp_path / "s.log").touch()
    assert all(fail(executor, job, number) for number in range(10, 40))
    assert job.attempt == 31, "by which its resources are computed"
    assert [fail(executor, other, number) for number in (40, 41, 42)] == [True, True, False]
    continued_mark(tmp_path / "s.log").unlink()
    assert [fail(executor, job, number) for number in (43, 44, 45)] == [True, True, False]
    said = [text for text in logged if isinstance(text, str)]
    planned = (
        "Slurm job 10 (sweep depth) has ended before its walltime, as planned, with work left: another job follows."
    )
    assert said[0] == planned
    assert said[30:36] == [
        "error", "Slurm job 40 (sweep depth) has ended (FAILED): another job follows.",
        "error", "Slurm job 41 (sweep depth) has ended (FAILED): another job follows.",
        "error", "error",
    ]  # fmt: skip


@pytest.mark.parametrize("fails", [False, True])
def test_before_each_submission_the_config_is_there_also_if_the_results_were_deleted(executor, logged, fails):
    def write(job):
        logged.append("written")
        if fails:
            raise UserError("no space left")

    executor.project = project(announce=write)
    executor.run_job(job := SimpleNamespace(is_group=lambda: True))
    assert logged == ["written", *(["no space left"] if fails else []), ("submitted", job)]


def test_jobs_read_the_config_of_this_run(executor, tmp_path):
    executor.workflow.overwrite_configfiles = ["/only here/my.yaml"]
    executor.workflow.storage_settings = SimpleNamespace(shared_fs_usage=SharedFSUsage.all())
    executor.workflow.spawned_job_args_factory = SpawnedJobArgsFactory(executor.workflow)
    given = executor.workflow.spawned_job_args_factory.get_configfiles_arg()
    assert "only here" in given
    executor.command, executor.config_file = f"python -m snakemake {given} --cores all", tmp_path / "a b.json"
    job = SimpleNamespace(is_group=lambda: False, rule=SimpleNamespace(basedir="/another/workflow"))
    assert executor.format_job_exec(job) == f"python -m snakemake --configfiles '{tmp_path}/a b.json' --cores all"


def test_the_environment_of_the_jobs_may_be_in_a_folder_with_spaces(executor):
    assert shlex.split(executor.get_python_executable()) == ["/my env/bin/python"]


def job_of_rule(folder, *, modules=""):
    job = snakemake_job()
    job.rule.basedir = folder
    job.shellcmd = f"{modules}exec '/my env/bin/python' '/my code/sweep.py' --sweep depth"
    job.env_modules = EnvModules("cuda")
    job.threads = 2
    job.resources = {"gpu": 1}
    return job


@pytest.mark.parametrize("modules", ["", "set +u; module load cuda && "])
def test_the_script_of_a_job_runs_the_program_of_its_rule_in_a_step(executor, modules):
    executor.own_rules, executor.array_jobs = "own", False
    script = executor.format_job_exec(job_of_rule("own", modules=modules))
    if modules:
        words = shlex.split(script)
        assert words[:3] == ["exec", "bash", "-c"]
        loads = "module purge && MODULES_VERBOSITY=concise module load cuda; set +u; module load cuda && "
        assert words[3].startswith(loads)
        script = words[3].removeprefix(loads)
    python, step = "/my env/bin/python", job_script.__file__
    words = ["exec", python, "-I", "-S", step, "srun", "-n1", "--nodes=1", "--relative=0", "--cpu-bind=none"]
    words += ["--cpus-per-task=2", "--gpus=1"]
    words += [python, step, job_script.TASK, job_script.ENDED, "/my code/sweep.py", "--sweep", "depth"]
    assert shlex.split(script) == words


@pytest.mark.parametrize(
    ("folder", "methods", "array_jobs"),
    [("another", [], False), ("own", ["CONDA"], False), ("own", ["APPTAINER"], False), ("own", [], True)],
)  # fmt: skip
def test_all_other_jobs_are_those_of_the_plugin(executor, folder, methods, array_jobs):
    executor.own_rules, executor.array_jobs = "own", array_jobs
    chosen = [SimpleNamespace(name=name) for name in methods]
    executor.workflow.deployment_settings = SimpleNamespace(deployment_method=chosen)
    assert executor.format_job_exec(job_of_rule(folder)) == "python -m snakemake"


class WatchedFile:
    """The path of a file that is not there, and when it was looked for."""

    def __init__(self):
        self.looks = []

    def __fspath__(self):
        self.looks.append(time.monotonic())
        return "no-such-file"


class FakeClock:
    """A clock that moves when an executor sleeps, and counts what it does meanwhile."""

    def __init__(self, monkeypatch, slurm, calls):
        self.now, self.listings, self.events, self._slurm, self._calls = 1000.0, [], [], slurm, calls
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        monkeypatch.setattr(asyncio, "sleep", self._sleep)

    def queue(self, executor, *jobs):
        """Have these jobs run, and the executor wait for them."""
        lines = "".join(queued(job.external_jobid) for job in jobs)
        self._slurm.runs("squeue", f"echo >> {self._calls}; echo '{lines}'")
        executor.active_jobs = list(jobs)

    async def _sleep(self, seconds):
        self.now += seconds
        while self.events and self.events[0][0] <= self.now:
            await asyncio.to_thread(self.events.pop(0)[1])

    def happens(self, seconds, event):
        """Let something happen so many seconds from now, while an executor sleeps; in the order of the times."""
        self.events.append((self.now + seconds, event))

    def follow(self, executor, *, until):
        """Let it check and sleep, as Snakemake does, until this time since the start of the test."""
        while self.now - 1000 < until:
            executor.active_jobs = check(executor, *executor.active_jobs)
            self.listings += [self.now] * (self._calls.stat().st_size - len(self.listings))
            asyncio.run(executor.sleep())


@pytest.fixture
def clock(monkeypatch, slurm, tmp_path):
    return FakeClock(monkeypatch, slurm, tmp_path / "calls")


@pytest.mark.parametrize("count", [1, 100])
def test_waiting_costs_few_commands_and_few_looks_whatever_the_number_of_jobs(clock, executor, logged, count):
    """The plugin alone runs three commands in each check; it must not be asked about jobs in the queue."""
    output = WatchedFile()
    clock.queue(executor, *(slurm_job(number, output, output) for number in range(count)))
    clock.follow(executor, until=3 * 3600)

    def per_minute(moments):
        minutes = [int(moment - 1000) // 60 for moment in moments]
        return [minutes.count(minute) for minute in range(180)]

    listings, looks = per_minute(clock.listings), per_minute([*dict.fromkeys(output.looks)])
    assert len(executor.active_jobs) == count
    assert listings[0] >= 10, "jobs that end at once are noticed soon"
    assert max(listings[2:]) <= 6
    assert max(listings[60:]) <= 1
    assert max(looks) <= 245
    assert len(output.looks) == len({*output.looks}), "at the first missing file of one job"
    assert logged == [], "the plugin is asked about none"


def test_checks_are_no_more_often_if_jobs_are_submitted_all_the_time(clock, executor):
    clock.queue(executor, slurm_job())
    for second in range(1000):
        clock.follow(executor, until=second)
        executor.run_job(snakemake_job())
    assert len([moment for moment in clock.listings if moment > 1900]) <= 6 * 100 / 60 + 1


def test_the_end_of_a_job_is_noticed_within_a_tenth_of_its_time(clock, executor):
    """The plugin alone checks after 5, 20, 45, 80 s: a job of 21 s would seem to take 45 s."""
    clock.queue(executor, slurm_job())
    clock.follow(executor, until=2 * 3600)
    gaps = [(before - 1000, after - before) for before, after in itertools.pairwise(clock.listings)]
    assert all(gap <= max(5, 0.1 * (before + gap)) + 0.5 for before, gap in gaps)
    assert max(gap for _, gap in gaps) == pytest.approx(180), "no more often than the plugin where jobs are long"


def test_a_job_that_is_submitted_while_others_run_for_hours_is_checked_soon(clock, executor):
    clock.queue(executor, slurm_job())
    clock.follow(executor, until=3600)
    check(executor, *executor.active_jobs)
    before = clock.now
    clock.happens(0, lambda: executor.run_job(snakemake_job()))
    asyncio.run(executor.sleep())
    assert clock.now - before <= 11


@pytest.mark.parametrize("lines", ["", queued(state="COMPLETED"), queued(state="COMPLETING")])
def test_jobs_that_the_plugin_forgets_while_slurm_does_not_answer_are_followed(executor, slurm, logged, lines):
    """Snakemake would wait for them forever."""
    job = slurm_job()
    slurm.prints("squeue", lines)
    assert check(executor, job) == [job]
    executor.answers["7"] = "success"
    assert check(executor, job) == []
    assert logged == [("asked", "7"), ("asked", "7"), ("done", job.job)]


def test_while_slurm_lists_no_jobs_none_is_ended(executor, slurm):
    slurm.fails("squeue")
    executor.answers["7"] = "error"
    assert check(executor, job := slurm_job()) == [job]


@pytest.mark.parametrize(
    ("state", "end"),
    [("NODE_FAIL", "lost a node"), ("PREEMPTED", "was preempted"), ("CANCELLED", "failed"), ("TIMEOUT", "asked")],
)
def test_the_plugin_is_not_asked_about_ends_that_are_no_fault_of_the_job(executor, slurm, logged, state, end):
    """It would say that nodes are excluded, which they are not, or wait forever."""
    slurm.prints("squeue", queued(state=state))
    check(executor, slurm_job())
    assert end in str(logged)
    assert ("asked" in str(logged)) is (end == "asked")


@pytest.mark.parametrize(
    ("runs", "how"),
    [("NODE_FAIL\nPENDING\n", "lost a node"), ("REQUEUED\nPENDING\n", "was requeued"), ("", "was requeued")],
)
def test_a_job_that_slurm_puts_into_the_queue_again_is_named_once(executor, slurm, logged, runs, how):
    slurm.prints("sacct", runs)
    for second in "0011":
        slurm.prints("squeue", queued().replace("21:30:00", f"21:30:0{second}"))
        check(executor, slurm_job())
    assert logged == [f"Slurm job 7 (sweep depth) {how}: Slurm runs it again (no retry)."]


def test_a_job_that_slurm_ends_and_may_requeue_is_waited_for(executor, slurm, logged):
    slurm.prints("squeue", queued(state="COMPLETING"))
    slurm.prints("scontrol", "JobId=7 JobState=NODE_FAIL")
    assert check(executor, job := slurm_job()) == [job]
    assert logged == []


def test_a_job_that_slurm_will_never_start_is_reported_once(executor, slurm, logged):
    hopeless = queued(state="PENDING", reason="PartitionTimeLimit")
    slurm.prints("squeue", hopeless + queued("8", "PENDING", reason="Priority"))
    jobs = [slurm_job("7"), slurm_job("8")]
    for _ in range(3):
        assert check(executor, *jobs) == jobs
    assert len(logged) == 1
    assert logged[0].startswith(
        "Slurm will not start job 7 (sweep depth) as it is: its walltime is above the limit of its partition "
        "(PartitionTimeLimit). "
    )


@pytest.mark.parametrize(("gpus", "is_hopeless"), [(4, False), (8, True)])
def test_a_job_that_waits_for_a_limit_below_its_request_is_reported(executor, slurm, logged, gpus, is_hopeless):
    slurm.prints("scontrol", f"JobId=7 Account=lab QOS=long Partition=gpu TimeLimit=1:00:00 TRES=gres/gpu={gpus}")
    slurm.prints("scontrol", "AccountingStorageEnforce = limits\nClusterName = alpha\n", of="show config")
    slurm.prints("scontrol", "", of="show partitions")
    slurm.prints("sacctmgr", "")
    slurm.prints("sacctmgr", "long|gres/gpu=4||||||||||\n", of="show qos")
    slurm.prints("squeue", queued(state="PENDING", reason="QOSGrpGRES"))
    check(executor, slurm_job())
    assert ("8 gres/gpu in all jobs, but QOS long allows 4 (QOSGrpGRES)" in str(logged)) is is_hopeless


def test_slurm_is_asked_soon_after_all_output_of_a_job_has_appeared(clock, executor, tmp_path):
    """Output of an earlier run is no reason to ask."""
    old, new = tmp_path / "old.csv", tmp_path / "new.csv"
    for file in (old, new):
        file.touch()
    executor.active_jobs = [slurm_job("7", old, new)]
    began, executor.next_seconds_between_status_checks = clock.now, 3600
    asyncio.run(executor.sleep())
    assert clock.now - began == 3600
    began = clock.now
    clock.happens(100, new.unlink)
    clock.happens(150, new.touch)
    clock.happens(200, old.touch)
    asyncio.run(executor.sleep())
    assert 200 <= clock.now - began <= 201


@pytest.mark.parametrize("lasts", [0.3, 20])
def test_the_end_of_a_sweep_with_many_jobs_is_noticed_within_a_second(clock, executor, tmp_path, slurm, logged, lasts):
    """One that Slurm takes long to end is asked about ever more rarely."""
    jobs = [slurm_job(number) for number in range(50)]
    for number, info in enumerate(jobs):
        info.job = job_of_several(number, 50, tmp_path)
    clock.queue(executor, *jobs)
    clock.follow(executor, until=1000)
    asked, ended = len(clock.listings), clock.now + 100.1
    clock.happens(100.1, lambda: (tmp_path / "complete").write_text("a digest"))
    after = f"echo >> {tmp_path / 'calls'}; echo '{queued('49', 'COMPLETING')}'"
    clock.happens(100.1 + lasts, lambda: slurm.runs("squeue", after))
    while executor.active_jobs:
        clock.follow(executor, until=clock.now - 999.9)
    assert ended + lasts < clock.listings[-1] <= ended + max(1, 2 * lasts)
    assert len([moment for moment in clock.listings[asked:] if moment > ended]) <= 9
    assert len(of_jobs(logged)) == 50


def test_snakemake_does_not_wait_for_the_next_check_to_end(executor):
    executor.next_seconds_between_status_checks = 3600

    async def end():
        executor.wait = False

    async def sleep_and_end():
        await asyncio.gather(executor.sleep(), end())

    asyncio.run(asyncio.wait_for(sleep_and_end(), 600))


@pytest.mark.parametrize("fails", [False, True])
def test_ctrl_c_also_cancels_jobs_that_are_being_submitted_or_checked(executor, logged, monkeypatch, fails):
    """Also if Slurm refuses to cancel one, which has just left its memory."""
    executor.lock, executor._job_submission_executor = threading.Lock(), ThreadPoolExecutor(1)
    has_begun = threading.Event()
    has_cancelled = threading.Event()

    def submit(number):
        has_begun.set()
        has_cancelled.wait(timeout=60)
        executor.active_jobs.append(slurm_job(number))

    def go_on_checking():
        while executor.wait:
            time.sleep(0.01)
        with executor.lock:
            executor.active_jobs.append(slurm_job("checked"))

    for number in ("submitted", "waiting"):
        executor._job_submission_executor.submit(submit, number)
    executor.wait_thread = threading.Thread(target=go_on_checking)
    executor.wait_thread.start()
    has_begun.wait()
    executor.active_jobs.append(slurm_job("known"))

    def cancel_jobs(jobs):
        Plugin.cancel_jobs(executor, jobs)
        has_cancelled.set()
        if fails:
            raise WorkflowError("Invalid job id specified")

    monkeypatch.setattr(executor, "cancel_jobs", cancel_jobs)
    with pytest.raises(WorkflowError) if fails else nullcontext():
        executor.cancel()
    assert logged == [("cancelled", {"known"}), ("cancelled", {"submitted", "checked"})]


def test_any_error_at_a_submission_is_the_error_of_the_job(executor, logged, monkeypatch):
    """The plugin runs it in a thread, which loses what is raised; Snakemake would wait forever."""

    def run_job(*_):
        raise OSError(116, "Stale file handle")

    monkeypatch.setattr(Plugin, "run_job", run_job)
    executor.run_job(job := snakemake_job())
    assert ("failed", job) in logged


@pytest.mark.parametrize("is_live", [True, False])
def test_a_job_waits_until_slurm_lists_the_live_jobs(executor, tmp_path, slurm, logged, is_live):
    """A restarted Snakemake would submit a second job for the results of a live one, which would fail."""
    prepared: list = []
    executor.project = project(announce=prepared.append)
    slurm.fails("squeue")
    executor.run_job(job := snakemake_job())
    check(executor)
    assert not any(isinstance(each, tuple) for each in logged), "neither submitted nor adopted"
    slurm.prints("squeue", queued(folder=tmp_path) if is_live else "")
    for _ in range(2):
        check(executor)
    assert [each for each in logged if isinstance(each, tuple)] == [("adopted", "7") if is_live else ("submitted", job)]
    assert prepared == [job]


def test_only_nodes_that_the_user_names_are_excluded(executor):
    """The plugin adds all nodes of a job that lost one."""
    executor.workflow.executor_settings.exclude_failed_nodes = "n7, n8"
    executor.run_job(snakemake_job())
    assert executor.excluded == {"n7", "n8"}


def job_of_several(number, useful, folder):
    """Job `number` of a sweep with several, of which `useful` find a trial."""
    job = snakemake_job(restart_times=2)
    job.name, job.wildcards, job.jobid = "sweep_job", ["depth", str(number)], 10 + number
    job.output, job.resources = [str(folder / f"{number}.done")], {"useful_jobs": useful}
    job.params = {"results": "a digest"}
    return job


def of_jobs(logged):
    """What was done with jobs."""
    return [each for each in logged if isinstance(each, tuple)]


def test_no_more_jobs_of_a_sweep_are_submitted_than_find_a_trial(executor, tmp_path, logged):
    jobs = [job_of_several(number, 2, tmp_path) for number in range(4)]
    for job in jobs:
        executor.run_job(job)
    assert of_jobs(logged) == [*(("submitted", job) for job in jobs[:2]), *(("done", job) for job in jobs[2:])]
    executor.run_job(jobs[1])
    assert of_jobs(logged)[4:] == [("submitted", jobs[1])], "again, as after a preemption"


def test_no_more_jobs_of_a_sweep_are_submitted_again_than_find_a_trial(executor, tmp_path, slurm, logged):
    """All four ended at the walltime with one trial left. One still runs, and may have decided to end before that."""
    jobs = [job_of_several(number, 4, tmp_path) for number in range(4)]
    for job in jobs:
        executor.run_job(job)
    slurm.prints("squeue", queued(folder=tmp_path).replace("rule_sweep", "rule_sweep_job").replace("depth", "depth_3"))
    executor._listed = (0.0, [])
    for job in jobs[:3]:
        job.attempt, job.resources = 2, {"useful_jobs": 1}
        executor.run_job(job)
    assert of_jobs(logged)[4:] == [("submitted", jobs[0]), *(("done", job) for job in jobs[1:3])]


@pytest.mark.parametrize("useful", [1, 2])
def test_a_live_job_of_an_earlier_snakemake_is_followed_and_no_more_are_submitted_than_help(
    executor, tmp_path, slurm, logged, useful
):
    slurm.prints("squeue", queued(folder=tmp_path).replace("rule_sweep", "rule_sweep_job").replace("depth", "depth_3"))
    jobs = [job_of_several(number, useful, tmp_path) for number in (0, 3)]
    for job in jobs:
        executor.run_job(job)
    assert of_jobs(logged) == [("submitted" if useful > 1 else "done", jobs[0]), ("adopted", "7")]


@pytest.mark.parametrize("state", ["COMPLETED", "FAILED"])
@pytest.mark.parametrize("useful", [None, 2])
def test_a_job_that_has_taken_up_the_new_config_is_not_submitted_again(
    executor, tmp_path, slurm, logged, state, useful
):
    """It was submitted by an earlier Snakemake, with another config."""
    job = job_of_several(0, useful, tmp_path / "jobs")
    if useful is None:  # the only one
        job.output = [str(tmp_path / "trials.csv")]
    set_mark(tmp_path, "complete" if useful is None else "0.done", ["an older digest", "a digest"])
    slurm.prints("sacct", f"{state}\n")
    executor._end(SubmittedJobInfo(job, "7", {FOUND: False}), state)
    assert of_jobs(logged) == ([("done", job)] if state == "COMPLETED" else [])
    assert executor._to_submit == ([] if state == "COMPLETED" else [job])


@pytest.mark.parametrize("state", ["CANCELLED", "FAILED"])
@pytest.mark.parametrize("useful", [None, 2])
def test_a_job_that_another_of_its_sweep_cancelled_in_the_queue_counts_as_done(
    executor, tmp_path, slurm, logged, state, useful
):
    """Not if it started before, and failed."""
    job = job_of_several(1, useful, tmp_path / "jobs")
    slurm.prints("scontrol", f"JobId=7 JobState={state}\n")
    slurm.prints("squeue", queued(state=state) if state == "CANCELLED" else "")
    set_mark(tmp_path, "cancelled", ["6", "7"])
    executor.answers["7"] = "error"
    assert check(executor, SubmittedJobInfo(job, "7", {})) == []
    is_done = state == "CANCELLED" and useful is not None
    assert of_jobs(logged)[-1] == ("done" if is_done else "failed", job)


def test_once_no_trial_is_left_jobs_in_the_queue_are_cancelled_and_count_as_done(executor, tmp_path, slurm, logged):
    """As is one that is suspended. One that starts meanwhile ends by itself, one that was not submitted never is."""
    states = {"0": "RUNNING", "1": "PENDING", "2": "PENDING", "3": "PENDING", "4": "SUSPENDED"}
    before = "".join(queued(*each) for each in states.items())
    slurm.prints("squeue", before)
    active = [slurm_job(number) for number in range(5)]
    for number in (0, 1, 2, 4):
        active[number].job = job_of_several(number, 4, tmp_path)
    assert check(executor, *active) == active, "trials are left"
    (tmp_path / "complete").write_text("of an earlier config")
    assert check(executor, *active) == active
    (tmp_path / "complete").write_text("a digest")
    states = {"0": "RUNNING", "2": "RUNNING", "3": "PENDING"}
    cancelled = tmp_path / "cancelled"
    after = "".join(queued(*each) for each in states.items())
    slurm.runs("scancel", f"echo $* >> {cancelled}")
    slurm.runs("squeue", f"if [ -e {cancelled} ]; then printf %s '{after}'; else printf %s '{before}'; fi")
    assert check(executor, *active) == [active[0], active[2], active[3]]
    assert cancelled.read_text() == "--state=PENDING 1 2\n--state=SUSPENDED 4\n"
    assert [("done", active[number].job) in logged for number in (1, 4)] == [True, True]
    late = job_of_several(5, 8, tmp_path)
    executor.run_job(late)
    assert (("done", late) in logged, ("submitted", late) in logged) == (True, False)
    slurm.prints("squeue", "")
    assert check(executor, active[0], active[2]) == []
    assert [("done", active[number].job) in logged for number in (0, 2)] == [True, True]
