"""Snakemake's Slurm executor, which also submits preempted jobs again, waits for live ones, and for Slurm to take more.

The plugin polls a preempted job as if it still ran. With PreemptMode=CANCEL, Slurm does not requeue the job, and the
plugin would wait forever. A job that ends by itself within the grace period would cost a retry, whatever the mode.

It also polls a cancelled job for ever, whose state is `CANCELLED by <uid>` in the accounting. And if all its queries of
one check fail, as while slurmdbd restarts, it forgets the jobs, and Snakemake would wait forever. A job that Slurm will
never start is polled without a word.

Each check of the plugin runs several of Slurm's commands. Here, one listing of the queue answers for all jobs in it,
and the plugin is asked only about those that have ended.

If Snakemake is killed, its jobs continue. Another Snakemake would submit each of them again, and the duplicates would
fail because the results are in use.

The plugin waits 10 s longer before each check, up to three minutes, so that it notices the end of a job late. Here,
the waits are a fraction of the time since the last submission, and Slurm is also asked soon after all output files of
a job have appeared, or its sweep is complete. One job's files are looked at in turn, so that the load on the file
system does not grow with the number of jobs. And at its own end, Snakemake would wait for the time of the next check.

The plugin starts Snakemake twice in each job: one that only starts a step, and in the step the one that runs the rule.
Here, the script of a job of one of Trainyard's own rules starts a step that runs the rule's program. The Snakemake that
submitted the job does the rest once it has ended. All other jobs are those of the plugin.
"""

import asyncio
import math
import os
import re
import shlex
import threading
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from snakemake_executor_plugin_slurm import Executor
from snakemake_executor_plugin_slurm.utils import get_job_wildcards
from snakemake_executor_plugin_slurm.validation import validate_slurm_extra
from snakemake_executor_plugin_slurm_jobstep import get_cpu_setting, get_gpu_setting
from snakemake_interface_common.exceptions import WorkflowError
from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo
from snakemake_interface_executor_plugins.registry import ExecutorPluginRegistry

from trainyard.checks.sbatch_requests import parse_request
from trainyard.checks.site_checks import check_request
from trainyard.cli.command_line import continued_mark, final_mark
from trainyard.cli.job_resources import USEFUL_JOBS
from trainyard.cli.run_summary import JobFailure
from trainyard.cli.screen import SCREEN
from trainyard.cluster import job_script
from trainyard.cluster.slurm_limits import find_excesses, find_limits
from trainyard.cluster.slurm_queries import (
    COMPLETING,
    TEMPORARY,
    UserJob,
    describe_jobs,
    describe_request,
    final_state,
    list_partitions,
    list_user_jobs,
    run_slurm_command,
    state_before_requeue,
)
from trainyard.planning.job_marks import CANCELLED, COMPLETE, JOBS, read_mark
from trainyard.utils.errors import UserError

LOST: Final = {"PREEMPTED": "was preempted", "NODE_FAIL": "lost a node"}  # by final state: not the program's fault
FOUND: Final = "found"  # in `aux` of a job that another Snakemake submitted: whether with the same parameters
CHECK_FRACTION: Final = 0.1  # of the time since the last submission, after which jobs are checked again at the latest
MAX_CHECK_SECONDS: Final = 180  # between checks
RATE_SECONDS: Final = 10  # at least between checks of a Snakemake that has run for a while: six a minute
IDLE_SECONDS: Final = 30  # between checks without a job of our own in the queue
LIST_SECONDS: Final = 15  # for which a listing of the queue holds at submissions: more than RATE_SECONDS
LOOK_SECONDS: Final = 0.25  # between two looks at the files of a job
END_SECONDS: Final = 0.25  # from the last output file of a job until Slurm is asked, first
PLUGIN_REFUSES: Final = "Job submission failed with exception: "
# What the plugin says of a job that sbatch refuses, with what sbatch printed, or that it refuses itself.
REFUSED: Final = re.compile(
    rf"SLURM sbatch failed\. The error message was '(.*?)'\.\n {{4}}sbatch call:|{PLUGIN_REFUSES}(.*)", re.DOTALL
)


def register(project: Any = None, *, config_file: Path | None = None, own_rules: Any = None) -> None:
    """Make `executor: slurm` use this executor, and a requeued job append to its log.

    Jobs read `config_file` in place of those of the command line; with None, they read the same. `own_rules`: the
    folder of Trainyard's own rules, as Snakemake names it. The `project`, a `Workflow`, is told of each job before it
    is submitted, or waited for if an earlier Snakemake has submitted it, and of one that cannot be submitted or that
    has failed before its program started.
    """
    SlurmExecutor.project = project
    SlurmExecutor.config_file = config_file
    SlurmExecutor.own_rules = own_rules
    os.environ.setdefault("SBATCH_OPEN_MODE", "append")
    plugin = ExecutorPluginRegistry().get_plugin("slurm")
    if not plugin.common_settings.dryrun_exec:  # otherwise `cli/sbatch_preview.py` has chosen one that submits nothing
        plugin.executor = SlurmExecutor


class SlurmExecutor(Executor):  # type: ignore[misc]
    """Submits jobs to Slurm and follows them. Its public methods are the interface of executor plugins."""

    project: Any = None
    config_file: Path | None = None
    own_rules: Any = None  # a SourceFile of Snakemake

    def __init__(self, workflow: Any, logger: Any) -> None:
        self._to_submit: list[Any] = []  # jobs, at the end of a check; no retry counts for them
        self._refusals: set[str] = set()  # that were logged
        self._refused: set[int] = set()  # jobs, by Snakemake's number, that cannot be submitted
        self._submissions: dict[str, str] = {}  # when each job of Slurm was submitted, or put into the queue again
        self._ends: dict[int, str] = {}  # of jobs that were not done, by Snakemake's number
        self._continued = Counter[int]()  # how often a job has ended as planned, by Snakemake's number
        self._retries: dict[str, int] = {}  # by rule
        self._logs: dict[int, list[int]] = {}  # the sizes of the logs of jobs before their submission
        self._began = self._submitted_at = time.monotonic()  # this executor, and when a job was last submitted
        self._listing = threading.Lock()
        self._listed: tuple[float, list[UserJob]] = (-math.inf, [])  # when this user's jobs were listed, and they
        # By sweep with several jobs, and by attempt: comments of those submitted or live
        self._used: dict[tuple[Path, int], set[str]] = {}
        self._settled: set[str | None] = set()  # Slurm jobs that were reported or submitted again
        self._reasons: set[tuple[str, str]] = set()  # Slurm jobs, and why they are pending, that were looked into
        self._names: set[str] = set()  # of jobs in Slurm
        self._looks = 0  # at output files
        # By Slurm job: when its files had been changed at the first look, if all were there; and when all were new
        self._outputs: dict[str, list[float]] = {}
        self._appeared: dict[str, float] = {}
        try:
            if self.project:
                self.project.profile.follow_jobs()
        except UserError as error:
            raise WorkflowError(str(error)) from error
        super().__init__(workflow, logger)

    def run_job(self, job: Any) -> None:
        """Submit a job; its error is reported, which would be lost in the plugin's thread, and Snakemake would wait."""
        try:
            self._submit_or_find(job)
        except Exception as error:
            self.report_job_error(SubmittedJobInfo(job), msg=f"{type(error).__name__}: {error}")

    def _submit_or_find(self, job: Any) -> None:
        """Submit a job, unless a job that another Snakemake submitted for it is live: then wait for that one.

        While Slurm does not list the live jobs, the job waits for a later check.

        Groups of jobs (`--groups`) are always submitted: their comments do not tell them apart.
        """
        listed = [] if job.is_group() else self._list_jobs(max_age_seconds=LIST_SECONDS)
        if listed is None:
            self._to_submit.append(job)
            return
        self._failed_nodes = self._excluded_nodes()
        self._submitted_at = time.monotonic()
        if job.is_group():
            self._submit(job)
            return
        live = next((each for each in self._live_jobs(listed) if each.comment == comment_of(job)), None)
        if not self._may_use(job, listed):
            self._report_idle(SubmittedJobInfo(job))
            return
        if live is None:
            self._record_parameters(job)
            for log in job.log:
                for mark in (final_mark, continued_mark):
                    mark(Path(log)).unlink(missing_ok=True)
            self._logs[job.jobid] = _read_sizes(job.log)
            self._submit(job)
            return
        self.logger.info(
            f"A job of {_name(job)} is already in the queue as Slurm job {live.job} ({live.state}, submitted at "
            f"{live.submitted}): waiting for it to end, then taking its results."
        )
        self._announce(job)
        recorded = self.workflow.persistence
        is_same = recorded.has_metadata(job) and not recorded.params_changed(job)
        self.report_job_submission(SubmittedJobInfo(job, live.job, {"slurm_logfile": None, FOUND: is_same}))

    def _submit(self, job: Any) -> None:
        self._announce(job)
        try:  # first what the plugin would refuse with a stack trace
            if not job.is_group():
                next(self.get_account_arg(job))
                validate_slurm_extra(job)
        except WorkflowError as error:
            self.report_job_error(SubmittedJobInfo(job), msg=f"{PLUGIN_REFUSES}{error}")
            return
        super().run_job(job)

    def _announce(self, job: Any) -> None:
        try:
            if self.project:
                self.project.announce(job)
        except UserError as error:  # the job will name what it lacks; an exception would be lost in a thread
            self.logger.warning(str(error))

    def _may_use(self, job: Any, listed: Collection[UserJob]) -> bool:
        """Whether a job may find something to do, or is live; always, unless it is one of several of a sweep.

        The live jobs of an earlier run count, too, but not for a retry: they may be about to end, with nothing to take.
        """
        useful = job.resources.get(USEFUL_JOBS)
        if useful is None:
            return True
        with self._listing:  # jobs are submitted in several threads
            used = self._used.setdefault((Path(job.output[0]).parent, job.attempt), set())
            own = comment_of(job)
            live = self._live_jobs(listed)
            if job.attempt == 1:
                used |= {each.comment for each in live if each.shares_sweep_with(own)}
            is_live = any(each.comment == own for each in live)
            may_use = is_live or (not _is_complete(job) and (own in used or len(used) < useful))
            if may_use:
                used.add(own)
        return may_use

    def cancel(self) -> None:
        """Cancel all jobs, also those that are being submitted or checked; those that wait to be are not submitted."""
        with self.lock:
            self.wait, jobs = False, list(self.active_jobs)
            self.active_jobs.clear()
        self._job_submission_executor.shutdown(wait=False, cancel_futures=True)
        try:
            self.cancel_jobs(jobs)  # at once; the others may take a while
        finally:
            self._job_submission_executor.shutdown()
            self.wait_thread.join()
            super().cancel()

    def get_partition_arg(self, job: Any) -> str:
        """The partition as an option of sbatch, and a name for squeue, which shows eight characters by default.

        This name counts: the option follows that of the plugin, which has its own name, the same for all jobs.
        """
        name = "-".join([*(() if job.is_group() else job.wildcards), "trainyard"])
        name = re.sub(r"[^\w.-]", "-", name)  # a rule of a workflow that imports this one may have other characters
        self._names.add(name)
        return f"{super().get_partition_arg(job)} --job-name={name}"

    def get_python_executable(self) -> str:
        """The Python of the jobs, as a word of a shell."""
        return shlex.quote(super().get_python_executable())

    def format_job_exec(self, job: Any) -> str:
        """The command that a job's script runs."""
        if self._runs_program(job):
            return self._program_step(job)
        command: str = super().format_job_exec(job)
        if given := self.config_file and self.workflow.spawned_job_args_factory.get_configfiles_arg():
            # The files that the user named may be edited meanwhile, or be on no node.
            command = command.replace(given, f"--configfiles {shlex.quote(str(self.config_file))}")
        return command

    def _runs_program(self, job: Any) -> bool:
        """Whether a job runs a program of Trainyard in the environment of this process."""
        if job.is_group() or self.array_jobs or job.rule.basedir != self.own_rules:
            return False
        methods = {method.name for method in self.workflow.deployment_settings.deployment_method}
        return methods.isdisjoint(("APPTAINER", "CONDA"))

    def _program_step(self, job: Any) -> str:
        """A step on the first node of a job whose first process is the program of the job's rule."""
        python = self.get_python_executable()
        script = shlex.quote(job_script.__file__)
        modules, _, program = job.shellcmd.partition(f"exec {python} ")
        has_gpus = bool(job.resources.get("gpu"))  # requested with --gpus
        options = [get_cpu_setting(job, has_gpus), get_gpu_setting(job)]
        # The node of the batch script. On several nodes, the program starts further steps.
        step = ["srun", "-n1", "--nodes=1", "--relative=0", "--cpu-bind=none", *filter(None, options)]
        task = [python, script, job_script.TASK, job_script.ENDED, program]
        command = f"exec {' '.join([python, '-I', '-S', script, *step, *task])}"
        if not modules:
            return command
        return f"exec bash -c {shlex.quote(job.env_modules.shellcmd(modules + command))}"

    def _excluded_nodes(self) -> set[str]:
        """The nodes that the user excludes: without those that the plugin adds, which are all of a job that lost one.

        Slurm starts no job on a node that is down.
        """
        named = self.workflow.executor_settings.exclude_failed_nodes or ""
        return set(re.findall(r"[^\s,]+", named))

    def _live_jobs(self, listed: Collection[UserJob]) -> list[UserJob]:
        """The jobs in this folder, but for those that Slurm is ending, for hours if their node does not respond."""
        return [each for each in listed if each.is_live and str(each.folder) == self.workflow.workdir_init]

    def _list_jobs(self, *, max_age_seconds: float = 0) -> list[UserJob] | None:
        """The jobs of this user; None if Slurm does not list them, so that any job may be live."""
        with self._listing:  # jobs are submitted in several threads
            if time.monotonic() - self._listed[0] < max_age_seconds:
                return self._listed[1]
            try:
                self._listed = (time.monotonic(), list_user_jobs())
            except (UserError, ValueError) as error:  # Slurm restarts; it may respond next time
                self.logger.warning(f"Slurm did not list your jobs, and none is submitted until it does: {error}")
                return None
            return self._listed[1]

    def _record_parameters(self, job: Any) -> None:
        """Record a job's parameters, and that its output is incomplete.

        Snakemake itself records them when it reports the success of the job. Without this, if it is killed before, the
        next one would take the results of the job for up to date, whatever has changed in the config.
        """
        try:
            asyncio.run(self.workflow.persistence.finished(job))
            self.workflow.persistence.started(job)
        except Exception as error:  # otherwise the job would be neither submitted nor reported
            self.logger.warning(f"The parameters of {_name(job)} could not be recorded: {error}")

    async def check_active_jobs(self, active_jobs: Collection[Any]) -> AsyncGenerator[Any, None]:
        """Report the jobs that have ended, and yield the others."""
        listed = self._list_jobs() if active_jobs else []
        if listed and self._cancel_idle(active_jobs, listed):
            listed = self._list_jobs()
        known = {each.job: each for each in listed or ()}
        ended = []
        for info in active_jobs:
            job = known.get(info.external_jobid)
            if listed is None or (job and self._may_continue(info, job)):
                yield info
            elif _is_complete(info.job):
                self._report_idle(info)
            elif job and self._end(info, job.state):
                continue
            elif FOUND in info.aux:
                self._end(info, final_state(info.external_jobid))
            else:
                ended.append(info)
        if ended:
            self.run_uuid = ",".join(sorted(self._names))  # by which the plugin asks for its jobs
        unknown = [info async for info in super().check_active_jobs(ended)] if ended else []
        for info in ended:  # the plugin neither reports nor yields them if Slurm does not answer
            if info in unknown and info.external_jobid not in known:
                self._end(info, final_state(info.external_jobid))
            if info.external_jobid not in self._settled:
                yield info
        jobs = self._to_submit
        self._to_submit = []
        for each in jobs:
            if self._to_submit or not self.wait:  # one has just been refused, or Snakemake ends
                self._to_submit.append(each)
            else:
                await asyncio.to_thread(self.run_job, each)
        # Jobs that end soon after their submission are noticed soon; those that run for hours cost few checks.
        first = self.workflow.executor_settings.init_seconds_before_status_checks
        planned = max(first, CHECK_FRACTION * (time.monotonic() - self._submitted_at), self._rate_seconds)
        if (active_jobs or jobs) and all(FOUND in info.aux for info in active_jobs):
            planned = IDLE_SECONDS
        ending = [time.monotonic() - seen for job, seen in self._appeared.items() if job not in self._settled]
        soon = max(END_SECONDS, *ending) if ending else MAX_CHECK_SECONDS
        self.next_seconds_between_status_checks = min(planned, soon)

    def _cancel_idle(self, active_jobs: Collection[Any], listed: Collection[UserJob]) -> bool:
        """Cancel jobs of sweeps without a trial to run that wait or are suspended; one that starts meanwhile goes on.

        Returns whether there were any.
        """
        complete = {info.external_jobid for info in active_jobs if _is_complete(info.job)}
        idle = [each for each in listed if each.state in ("PENDING", "SUSPENDED") and each.job in complete]
        try:
            for state in sorted({each.state for each in idle}):
                jobs = (each.job for each in idle if each.state == state)
                run_slurm_command("scancel", f"--state={state}", *jobs)
        except UserError as error:  # it will try again
            self.logger.warning(str(error))
        return bool(idle)

    def _report_idle(self, info: Any) -> None:
        """Report a job that has ended or was not submitted as done, because the others run all trials."""
        self.logger.info(f"{_describe(info)} is done: no trial is left for it.")
        self.report_job_success(info)

    @property
    def _rate_seconds(self) -> float:
        """The least time between two checks, which grows with the age of this Snakemake."""
        return min(RATE_SECONDS, CHECK_FRACTION * (time.monotonic() - self._began))

    async def sleep(self) -> None:
        """Wait until the next check is due, which is soon after the output of a job is there, or Snakemake ends."""
        began = time.monotonic()
        due = began + self.next_seconds_between_status_checks
        while self.wait and (left := due - time.monotonic()) > 0:
            if self._submitted_at > began:
                first = self.workflow.executor_settings.init_seconds_before_status_checks
                due = min(due, self._submitted_at + max(first, self._rate_seconds))
            if self._has_new_output():
                due = min(due, time.monotonic() + END_SECONDS)
            if SCREEN.is_ours:
                with suppress(Exception):  # which would end this Snakemake
                    self._show_progress()
            await asyncio.sleep(min(LOOK_SECONDS, left))

    def _show_progress(self) -> None:
        """Show how far the sweeps are, and the jobs in the queue at the last look."""
        active = {info.external_jobid for info in self.active_jobs}
        jobs = describe_jobs(job for job in self._listed[1] if job.job in active)
        if jobs:
            SCREEN.show_progress(self.project.describe_progress, jobs)
        else:
            SCREEN.erase_progress()

    def _has_new_output(self) -> bool:
        """Whether the next job in turn has just ended by its files: all are there and new, or its sweep is complete.

        Only True if no other has that Slurm has not ended yet. Slurm is asked about these ever more rarely.
        """
        if not (jobs := list(self.active_jobs)):
            return False
        self._looks += 1
        info = jobs[self._looks % len(jobs)]
        changes = _read_changes(info.job.output)
        if not changes and _is_complete(info.job):
            changes = [0.0]
        before = self._outputs.setdefault(info.external_jobid, changes)
        if not changes or info.external_jobid in self._appeared or not set(changes).isdisjoint(before):
            return False
        is_first = self._appeared.keys() <= self._settled
        self._appeared[info.external_jobid] = time.monotonic()
        return is_first

    def _may_continue(self, info: Any, job: UserJob) -> bool:
        """Whether a job is live, or Slurm ends it and may requeue it, or does not say yet how it ends."""
        before, self._submissions[job.job] = self._submissions.get(job.job, job.submitted), job.submitted
        if before != job.submitted:
            how = LOST.get(state_before_requeue(job.job), "was requeued")
            self.logger.info(f"{_describe(info)} {how}: Slurm runs it again (no retry).")
        if job.state != COMPLETING:
            self._warn_if_hopeless(info, job)
            return job.is_live
        return FOUND in info.aux or final_state(job.job) in LOST

    def _warn_if_hopeless(self, info: Any, job: UserJob) -> None:
        """Say once that Slurm will never start a pending job as it is."""
        if job.state != "PENDING" or (job.job, job.reason) in self._reasons:
            return
        self._reasons.add((job.job, job.reason))
        if why := self._describe_excess(job) or job.why_hopeless:
            self.logger.warning(
                f"Slurm will not start job {job.job} ({_name(info.job)}) as it is: {why} ({job.reason}). To change its "
                "request, press Ctrl-C, correct it and run the same command again."
            )

    def _describe_excess(self, job: UserJob) -> str:
        """How a job that waits because of a limit is above this limit by itself; "" if it is not."""
        if not job.waits_for_limit:
            return ""
        try:
            request = describe_request(job.job)
        except UserError:  # it has just left the queue
            return ""
        limits = find_limits(request.account, request.qos, request.partition)
        return "; ".join(find_excesses(request.minutes, request.resources, limits.levels))

    def _end(self, info: Any, state: str) -> bool:
        """Report a job that has ended in this state, or submit it again; False if the plugin reports it."""
        if FOUND in info.aux and state == "COMPLETED" and (info.aux[FOUND] or _has_taken_up(info.job)):
            self.report_job_success(info)
        elif FOUND in info.aux or state in LOST:
            self._submit_again(info, LOST.get(state, f"has ended ({state or 'unknown to Slurm'})"))
        elif state == "CANCELLED":
            self.report_job_error(info, msg=f"Slurm job {info.external_jobid} was cancelled.")
        else:
            return False
        return True

    def report_job_success(self, job_info: Any) -> None:
        """Report a job that has ended as it should."""
        self._settled.add(job_info.external_jobid)
        super().report_job_success(job_info)

    def report_job_error(self, job_info: Any, msg: str | None = None, **kwargs: Any) -> None:
        """Report a failed job, or submit it again if it was preempted, lost a node or was temporarily refused."""
        self._settled.add(job_info.external_jobid)
        state = final_state(job_info.external_jobid) if job_info.external_jobid else ""
        if state in LOST:
            self._submit_again(job_info, LOST[state])
        elif state == "CANCELLED" and job_info.external_jobid in _read_mark(
            job_info.job, CANCELLED
        ):  # another job of the sweep has cancelled it, as all trials were taken
            self._report_idle(job_info)
        elif not job_info.external_jobid and (refusal := TEMPORARY.search(_refusal_of(msg) or msg or "")):
            if refusal[0] not in self._refusals:
                self.logger.info(f"sbatch refuses jobs for now ({refusal[0]}): they are submitted later (no retry).")
            self._refusals.add(refusal[0])
            self._to_submit.append(job_info.job)
        else:
            self._record_failure(job_info, _explain_refusal(msg, _name(job_info.job)), state)
            how = f"ended ({state or 'FAILED'})"
            if _is_marked(job_info.job, continued_mark):
                how = "ended before its walltime, as planned, with work left"
            self._ends[job_info.job.jobid] = f"{_describe(job_info)} has {how}"
            super().report_job_error(job_info, msg=msg, **kwargs)

    def _record_failure(self, info: Any, refusal: str, state: str) -> None:
        """Record for the summary why a job was refused or ended by Slurm, or that its program never started."""
        job = info.job
        printed = (info.aux or {}).get("slurm_logfile")
        if refusal:
            failure = JobFailure(f"its job cannot be submitted: {refusal}")
            self._refused.add(job.jobid)
        elif printed and _read_sizes(job.log) == self._logs.get(job.jobid):
            why = f"Slurm job {info.external_jobid} ended before its program started"
            failure = JobFailure(why, Path(printed))
        elif state not in ("", "FAILED"):
            failure = JobFailure(
                f"Slurm ended its job {info.external_jobid}: {state}; see {next(iter(job.log), 'its log')}"
            )
        else:
            return
        if self.project:
            self.project.note_failure(job, failure)

    def print_job_error(self, job_info: Any, msg: str | None = None, **kwargs: Any) -> None:
        """Print the error of a job, unless it has ended as planned."""
        job = job_info.job
        if refusal := _refusal_of(msg):
            self.logger.error(f"The job of {_name(job)} cannot be submitted, and is not retried: {refusal}")
        elif not _is_marked(job, continued_mark):
            super().print_job_error(job_info, msg=msg, **kwargs)

    def handle_job_error(self, job: Any) -> None:
        """Decide whether another job follows. Snakemake calls this before it compares `attempt` and `restart_times`.

        A job that has ended as planned uses up no retry, one that would end in the same way again uses up all.
        """
        super().handle_job_error(job)
        # Snakemake reports no end of a job that succeeded, and whose outputs it then does not find.
        end = self._ends.pop(job.jobid, f"The job of {_name(job)} has failed")
        is_final = _is_marked(job, final_mark)
        if not job.is_group():
            retries = self._retries.setdefault(job.name, job.restart_times)
            self._continued[job.jobid] += _is_marked(job, continued_mark)
            job.rule.restart_times = retries + self._continued[job.jobid]  # all jobs of the rule have the same number
        if is_final or job.jobid in self._refused:
            job._attempt = max(job.attempt, job.restart_times + 1)  # `attempt` would also change its resources
        if is_final:
            self.logger.info(f"{end}, and another one would end in the same way: none follows.")
        elif job.attempt <= job.restart_times:
            self.logger.info(f"{end}: another job follows.")

    def shutdown(self) -> None:
        """End, without a word on nodes that the user excludes: the plugin would report that they failed."""
        self._failed_nodes = set()
        super().shutdown()

    def _submit_again(self, info: Any, reason: str) -> None:
        self._settled.add(info.external_jobid)
        self.logger.info(f"{_describe(info)} {reason}: another job follows (no retry).")
        self._to_submit.append(info.job)


def _refusal_of(message: str | None) -> str:
    """Why sbatch or the plugin refused a job, in one line; "" if the plugin's message is about something else."""
    refused = REFUSED.search(message or "")
    if not refused:
        return ""
    said = refused[1] or refused[2]
    lines = (line.removeprefix("sbatch: ").removeprefix("error: ").strip() for line in said.splitlines())
    return "; ".join(filter(None, lines))


def _explain_refusal(message: str | None, name: str) -> str:
    """The same for the summary, also with what a plan would have said of the job, where that says more."""
    refusal = _refusal_of(message)
    line = (message or "").partition("sbatch call:")[2]
    if not (refusal and line):
        return refusal
    request = parse_request(name, line, accepted=False, response=refusal)
    try:
        finding = check_request(request, list_partitions())
    except UserError:
        return refusal
    said = "" if refusal in finding.message else f"; sbatch: {refusal}"
    return f"{finding.message}: {finding.remedy}{said}"


def _read_changes(files: Collection[Any]) -> list[float]:
    """When each of some files was changed; [] if one is not there."""
    with suppress(OSError):
        return [Path(file).stat().st_mtime for file in files]
    return []


def _read_sizes(logs: Collection[Any]) -> list[int]:
    """The size of each log; 0 for one that does not exist: Snakemake makes empty ones."""
    sizes = list[int]()
    for log in logs:
        size = 0
        with suppress(OSError):
            size = Path(log).stat().st_size
        sizes.append(size)
    return sizes


def _name(job: Any) -> str:
    """Rule and wildcards of a job, or the name of a group."""
    return " ".join([job.name, *([] if job.is_group() else map(str, job.wildcards))])


def _describe(info: Any) -> str:
    """A job of Slurm and what it runs; before its submission, only what it runs."""
    name = _name(info.job)
    return f"Slurm job {info.external_jobid} ({name})" if info.external_jobid else f"The job of {name}"


def _is_marked(job: Any, mark: Callable[[Path], Path]) -> bool:
    """Whether the program of a job has left this mark of how it has ended."""
    return not job.is_group() and any(mark(Path(log)).exists() for log in job.log)


def comment_of(job: Any) -> str:
    """The comment that the plugin gives a job."""
    return "_wildcards_".join(filter(None, [f"rule_{job.name}", get_job_wildcards(job)]))


def _is_complete(job: Any) -> bool:
    """Whether a job is one of several of a sweep in which no trial is left to run, by the present config."""
    mark = _read_mark(job, COMPLETE)
    return bool(mark) and job.params.get("results") in mark


def _read_mark(job: Any, name: str) -> list[str]:
    """The lines of a mark in the sweep of a job, if it is one of several."""
    if job.is_group() or job.resources.get(USEFUL_JOBS) is None:
        return []
    return read_mark(Path(job.output[0]).with_name(name))


def _has_taken_up(job: Any) -> bool:
    """Whether a job of a sweep, which another Snakemake submitted, has run what the present config has gained."""
    output = Path(job.output[0])
    mark = output.parent / JOBS / COMPLETE if job.resources.get(USEFUL_JOBS) is None else output
    return job.params.get("results") in read_mark(mark)
