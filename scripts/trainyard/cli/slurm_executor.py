"""Snakemake's Slurm executor, which also submits preempted jobs again, waits for live ones, and for Slurm to take more.

The plugin polls a preempted job as if it still ran. With PreemptMode=CANCEL, Slurm does not requeue the job, and the
plugin would wait forever. A job that ends by itself within the grace period would cost a retry, whatever the mode.

It also polls a cancelled job for ever, whose state is `CANCELLED by <uid>` in the accounting.

If Snakemake is killed, its jobs continue. Another Snakemake would submit each of them again, and the duplicates would
fail because the results are in use.

The plugin excludes all nodes of a job that lost one of them from later jobs, although the others work.

A job that sbatch refuses because too many are in the queue, or while the controller restarts, would cost a retry too.

The plugin waits 10 s longer before each check, up to three minutes, so that it notices the end of a job late. Here,
Slurm is also asked once all output files of a job have appeared, for which no command of Slurm is needed. And at its
own end, Snakemake would wait for the time of the next check.

Without accounting, the plugin would wait for a job forever, unless its jobs are followed with squeue.

A job whose program ended in an error that it would meet again is not submitted again.

Jobs read the config from the results: the files of --configfile may be edited meanwhile, or be on no node.

The plugin starts Snakemake twice in each job: one that only starts a step, and in the step the one that runs the rule.
Here, the job's script starts the step itself.
"""

import asyncio
import os
import shlex
import time
from collections.abc import AsyncGenerator, Collection
from pathlib import Path
from typing import Any, Final

from snakemake_executor_plugin_slurm import Executor
from snakemake_executor_plugin_slurm_jobstep import get_cpu_setting, get_gpu_setting, get_node_setting
from snakemake_interface_common.exceptions import WorkflowError
from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo
from snakemake_interface_executor_plugins.registry import ExecutorPluginRegistry

from trainyard.cli.command_line import final_mark
from trainyard.cli.profile import Profile
from trainyard.cluster import job_script
from trainyard.cluster.slurm_queries import TEMPORARY
from trainyard.cluster.user_jobs import LiveJob, final_state, list_live_jobs
from trainyard.utils.errors import UserError

LOST: Final = {"PREEMPTED": "was preempted", "NODE_FAIL": "lost a node"}  # by final state: not the program's fault
FOUND: Final = "found"  # in `aux` of a job that another Snakemake submitted: whether with the same parameters
CHECK_FRACTION: Final = 0.1  # of the time since the last submission, after which jobs are checked again at the latest
IDLE_SECONDS: Final = 30  # between checks without a job of our own in the queue
POLL_SECONDS: Final = 0.5  # between looks at the output files of jobs
END_SECONDS: Final = 1.5  # from the last output file of a job until Slurm reports its end


def register(config_file: Path | None = None) -> None:
    """Make `executor: slurm` use this executor, and a requeued job append to its log.

    Jobs read `config_file` in place of those of the command line; with None, they read the same.
    """
    SlurmExecutor.config_file = config_file
    os.environ.setdefault("SBATCH_OPEN_MODE", "append")
    ExecutorPluginRegistry().get_plugin("slurm").executor = SlurmExecutor


class SlurmExecutor(Executor):  # type: ignore[misc]
    """Submits jobs to Slurm and follows them. Its public methods are the interface of executor plugins."""

    config_file: Path | None = None

    def __init__(self, workflow: Any, logger: Any) -> None:
        self._to_submit: list[Any] = []  # jobs, at the end of a check; no retry counts for them
        self._refusals: set[str] = set()  # that were logged
        self._submitted_at = time.monotonic()  # when a job was last submitted
        self._outputs: dict[str, list[float | None]] = {}  # by Slurm job: when its files were changed, at the last look
        try:
            Profile(workflow.resource_settings.default_resources, lambda: workflow.executor_settings).follow_jobs()
        except UserError as error:
            raise WorkflowError(str(error)) from error
        super().__init__(workflow, logger)

    def run_job(self, job: Any) -> None:
        """Submit a job, unless a job that another Snakemake submitted for it is live: then wait for that one.

        While Slurm does not list the live jobs, the job waits for a later check.

        Groups of jobs (`--groups`) are always submitted: their comments do not tell them apart.
        """
        listed = [] if job.is_group() else self._list_live_jobs()
        if listed is None:
            self._to_submit.append(job)
            return
        self._failed_nodes, self._submitted_at = self._excluded_nodes(), time.monotonic()
        if job.is_group():
            super().run_job(job)
            return
        live = self._find_live_job(job, listed)
        if live is None:
            self._record_parameters(job)
            for log in job.log:
                final_mark(Path(log)).unlink(missing_ok=True)
            super().run_job(job)
            return
        self.logger.info(
            f"Job {job.jobid} is already in the queue as Slurm job {live.job} ({live.state}, submitted at "
            f"{live.submitted}): waiting for it to end, then taking its results."
        )
        recorded = self.workflow.persistence
        is_same = recorded.has_metadata(job) and not recorded.params_changed(job)
        self.report_job_submission(SubmittedJobInfo(job, live.job, {"slurm_logfile": None, FOUND: is_same}))

    @property
    def cores(self) -> str:
        """The CPUs that the Snakemake in a job may use: all CPUs of its step."""
        return "all"

    def additional_general_args(self) -> str:
        """Arguments of the Snakemake in a job: it runs the rule itself, unless tasks of an array share a script."""
        arguments: str = super().additional_general_args() if self.array_jobs else ""
        return arguments

    def format_job_exec(self, job: Any) -> str:
        """The script of a job: Snakemake in a step on the first node, with the options that the plugin would use."""
        command: str = super().format_job_exec(job)
        if given := self.config_file and self.workflow.spawned_job_args_factory.get_configfiles_arg():
            command = command.replace(given, f"--configfiles {shlex.quote(str(self.config_file))}")
        if self.array_jobs:
            return command
        step = [self.get_python_executable(), shlex.quote(job_script.__file__)]
        if job.resources.get("mpi") is None:  # otherwise, its rule starts the step
            has_gpus = bool(job.resources.get("gpu"))  # requested with --gpus
            options = [get_cpu_setting(job, has_gpus), get_gpu_setting(job), get_node_setting(job)]
            step += ["srun", "-n1", "--cpu-bind=q", *filter(None, options)]
        return f"{' '.join(step)} {command}"

    def _excluded_nodes(self) -> set[str]:
        """The nodes that the user excludes: without those that the plugin adds, which are all of a job that lost one.

        Slurm starts no job on a node that is down.
        """
        named = self.workflow.executor_settings.exclude_failed_nodes or ""
        return set(filter(None, (name.strip() for name in named.split(","))))

    def _find_live_job(self, job: Any, listed: Collection[LiveJob]) -> LiveJob | None:
        """The listed job for the same rule and wildcards in this folder.

        None that Slurm is ending: it has failed, and may take hours to end if its node does not respond.
        """
        comment = "_wildcards_".join(filter(None, [f"rule_{job.name}", "_".join(job.wildcards).replace("/", "_")]))
        wanted = _ignore_nodes(comment), self.workflow.workdir_init
        live = [each for each in listed if each.state != "COMPLETING"]
        return next((each for each in live if (_ignore_nodes(each.comment), str(each.folder)) == wanted), None)

    def _list_live_jobs(self) -> list[LiveJob] | None:
        """The live jobs of this user; None if Slurm does not list them, so that any job may be live."""
        try:
            return list_live_jobs()
        except (UserError, ValueError) as error:  # Slurm restarts; it may respond next time
            self.logger.warning(f"Slurm did not list your jobs, and none is submitted until it does: {error}")
            return None

    def _record_parameters(self, job: Any) -> None:
        """Record a job's parameters, and that its output is incomplete.

        Snakemake itself records them when it reports the success of the job. Without this, if it is killed before, the
        next one would take the results of the job for up to date, whatever has changed in the config.
        """
        try:
            asyncio.run(self.workflow.persistence.finished(job))
            self.workflow.persistence.started(job)
        except Exception as error:  # otherwise the job would be neither submitted nor reported
            self.logger.warning(f"The parameters of job {job.jobid} could not be recorded: {error}")

    async def check_active_jobs(self, active_jobs: Collection[Any]) -> AsyncGenerator[Any, None]:
        """Report the jobs that have ended, and yield the others."""
        found = [each for each in active_jobs if FOUND in each.aux]
        submitted = [each for each in active_jobs if FOUND not in each.aux]
        active = [each async for each in super().check_active_jobs(submitted)]
        live = self._list_live_jobs() if active or found else []
        live_ids = None if live is None else {each.job for each in live}
        for info in [*active, *found]:
            if live_ids is None or info.external_jobid in live_ids or not self._end(info):
                yield info
        jobs, self._to_submit = self._to_submit, []
        for job in jobs:
            if self._to_submit:  # one has just been refused
                self._to_submit.append(job)
            else:
                await asyncio.to_thread(self.run_job, job)
        first = self.workflow.executor_settings.init_seconds_before_status_checks
        soon = max(first, CHECK_FRACTION * (time.monotonic() - self._submitted_at))
        planned: float = super().next_seconds_between_status_checks
        self.next_seconds_between_status_checks = min(soon, planned)
        if not submitted and (found or jobs):
            self.next_seconds_between_status_checks = IDLE_SECONDS

    async def sleep(self) -> None:
        """Wait until the next check is due, which is soon after the output of a job is there, or Snakemake ends."""
        due = time.monotonic() + self.next_seconds_between_status_checks
        while self.wait and (left := due - time.monotonic()) > 0:
            await asyncio.sleep(min(POLL_SECONDS, left))
            has_new = [self._has_new_output(info) for info in list(self.active_jobs)]  # looks at all of them
            if any(has_new):
                due = min(due, time.monotonic() + END_SECONDS)

    def _has_new_output(self, info: Any) -> bool:
        """Whether all output files of a job are there, and changed since the last look."""
        now = [_changed_at(Path(file)) for file in info.job.output]
        before = self._outputs.get(info.external_jobid, now)
        self._outputs[info.external_jobid] = now
        return now != before and None not in now

    def _end(self, info: Any) -> bool:
        """Report a job that has left the queue, or submit it again; False if the plugin will report it."""
        state = final_state(info.external_jobid)
        if info.aux.get(FOUND) and state == "COMPLETED":
            self.report_job_success(info)
        elif FOUND in info.aux or state in LOST:
            self._submit_again(info, LOST.get(state, f"has ended ({state or 'unknown to Slurm'})"))
        elif state == "CANCELLED":
            self.report_job_error(info, msg=f"Slurm job {info.external_jobid} was cancelled.")
        else:
            return False
        return True

    def report_job_error(self, job_info: Any, msg: str | None = None, **kwargs: Any) -> None:
        """Report a failed job, or submit it again if it was preempted or temporarily refused."""
        if job_info.external_jobid and final_state(job_info.external_jobid) == "PREEMPTED":
            self._submit_again(job_info, LOST["PREEMPTED"])
        elif not job_info.external_jobid and (refusal := TEMPORARY.search(msg or "")):
            if refusal[0] not in self._refusals:
                self.logger.info(f"sbatch refuses jobs for now ({refusal[0]}): they are submitted later (no retry).")
            self._refusals.add(refusal[0])
            self._to_submit.append(job_info.job)
        else:
            super().report_job_error(job_info, msg=msg, **kwargs)

    def handle_job_error(self, job: Any) -> None:
        """Use up the retries of a job that would end in the same way. Snakemake calls this before it retries one."""
        super().handle_job_error(job)
        if not job.is_group() and any(final_mark(Path(log)).exists() for log in job.log):
            self.logger.info(f"Job {job.jobid} would end in the same way again: it is not submitted again.")
            job._attempt = max(job.attempt, job.restart_times + 1)  # `attempt` would also change its resources

    def _submit_again(self, info: Any, reason: str) -> None:
        self.logger.info(f"Slurm job {info.external_jobid} {reason}: submitting job {info.job.jobid} again (no retry).")
        self._to_submit.append(info.job)


def _ignore_nodes(comment: str) -> str:
    """A job's comment, the same for the variants of a rule for one node and for several."""
    return comment.replace("_on_nodes_wildcards_", "_wildcards_")


def _changed_at(file: Path) -> float | None:
    """When a file was changed, in Unix seconds; None if it is not there."""
    try:
        return file.stat().st_mtime
    except OSError:
        return None
