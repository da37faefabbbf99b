"""The runner of users' programs: the command of a trial, and the launcher of a study's script.

A program is monitored for metrics, and ended together with all processes that it started.
"""

import errno
import logging
import math
import os
import re
import shutil
import signal
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from trainyard.cluster import host
from trainyard.cluster.job_script import SRUN_ENDED
from trainyard.cluster.slurm_allocation import JOB_OF_TRIAL
from trainyard.cluster.stop_request import GENTLE_SIGNAL, StopRequest
from trainyard.config.placeholders import TRIAL_DIR, build_argv, insert_resume_option
from trainyard.config.trial_status import WITH_RESULT, TrialStatus
from trainyard.config.user_programs import GRACE_SECONDS, UserProgram, checkpoints_of, digest_of_code, metrics_digest
from trainyard.programs.metric_rows import Row
from trainyard.programs.metrics import MetricsCollector, join_outputs, parse_ended_outputs
from trainyard.programs.output import OutputReader
from trainyard.programs.script_options import find_switches
from trainyard.programs.trial_messages import EpochReported, ReportEpoch, TrialEnded, timeout_error
from trainyard.programs.user_environment import FIRST_MODULES, module_path, resolve_program_paths, thread_variables
from trainyard.utils.errors import UserError, mentions_gpu_memory
from trainyard.utils.files import digest_of
from trainyard.utils.guarded_process import GuardedProcess, ProcessGuard
from trainyard.utils.locks import Hold
from trainyard.utils.text import SHELL_SIGNAL, describe_exit

POLL_SECONDS: Final = 0.25  # between two reads of a metrics file
PAUSE_SECONDS: Final = 5.0  # beyond it, after which a process was stopped meanwhile
EARLY_END: Final = (
    "a program of a pipe ended before it had read all (`| head`); if it may, begin the command with "
    "`set +o pipefail;`, or leave out its `-o pipefail`"
)
_NUMBER: Final = re.compile(r"(\d+(?:\.\d+)*)")  # one with a point is no number of an epoch
QUICK_SECONDS: Final = 60.0  # a wrong command line or an import error fails within this time, even after torch
MOST_DAMAGED: Final = 2  # checkpoints in a row: the next attempt begins from the beginning
MAY_BE_DAMAGED: Final = "which may be damaged; it goes on from the one before, or from the beginning"
OVERDUE_SECONDS: Final = 5.0  # from SIGTERM to SIGKILL of an srun whose tasks have ended
INTERRUPTED: Final = "it was interrupted"
OUT_OF_TIME: Final = "ended before the end of the walltime"
# Signals that end a program from outside: at the end of a job, or from the kernel when memory ran out.
EXTERNAL_SIGNALS: Final = (signal.SIGHUP, signal.SIGINT, signal.SIGKILL, signal.SIGTERM)
# With these variables, a program would join the Ray or the Slurm step of this job.
HIDDEN_VARIABLES: Final = re.compile(r"RAY_|PMI_|PMIX_|SLURM_(?!JOB_|JOBID|CLUSTER_NAME|SUBMIT_|TMPDIR)")
FEDERATED_JOBS: Final = 0xFC000000
UNUSED_JOB_IDS: Final = 67_000_000  # from there on; Slurm has other uses for the last numbers of 32 bits
log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class ProgramRun:
    """A program and how it runs."""

    command: Sequence[str]
    cwd: str
    environment: Mapping[str, str]
    output: Path
    metrics: MetricsCollector
    folder_lock: Hold | None = None  # to its folder
    timeout_seconds: float | None = None
    deadline: float = math.inf  # Unix seconds
    grace_seconds: float = GRACE_SECONDS  # from the request to stop to SIGKILL
    stop_signal: str = "TERM"  # which requests it
    stop_request: StopRequest = field(default_factory=StopRequest)  # made to end it
    earlier_outputs: tuple[Path, ...] = ()  # of the attempts that it continues, the latest first
    on_line: Callable[[str], object] = lambda line: None  # called in a thread, with each line of its output
    records_end: bool = False  # by its guard, as in `ProcessGuard.start`
    overdue_code: Callable[[], int | None] | None = None  # of srun: its exit code, once it should have ended


def run_user_program(run: ProgramRun, guard: ProcessGuard, report: ReportEpoch = lambda epoch: False) -> TrialEnded:
    """Run a program; it is stopped early after an epoch for which `report` returns True.

    With `metrics`, a program that reports none is `unreadable`, unless nothing was left to do for it. One that is not
    `complete` is interrupted. While it ends in its grace period, its output is read on: it may report the epoch that it
    saves.
    """
    began = time.monotonic()
    metrics = run.metrics
    output = OutputReader(run.output, on_line=run.on_line)
    process = _start(run, guard, output)
    status = TrialStatus.RUNNING
    reason = ""
    overdue = None
    paused = 0.0
    is_running = True
    read_until = math.inf
    grace_seconds = run.grace_seconds
    try:
        while is_running and status is not TrialStatus.STOPPED and time.monotonic() < read_until:
            looked = time.monotonic()
            lines, is_running = output.read_lines(POLL_SECONDS)
            if (late := time.monotonic() - looked - POLL_SECONDS) > PAUSE_SECONDS:  # as in a job that Slurm suspends
                paused += late
            for line in lines:
                metrics.add_line(line)
            if is_running and status is TrialStatus.RUNNING:
                status, reason = _check_limits(run, began, paused, process.ended_at)
                if status is not TrialStatus.RUNNING:
                    read_until = time.monotonic() + run.grace_seconds
                    if run.overdue_code:  # at SIGTERM, srun would kill its tasks
                        process.send_signal(GENTLE_SIGNAL)
                    else:
                        process.request_end(run.grace_seconds)
            overdue = run.overdue_code() if run.overdue_code else None
            if overdue is not None:
                log.warning("%s", SRUN_ENDED)
                grace_seconds = min(grace_seconds, OVERDUE_SECONDS)
                break
            for row in metrics.new_rows():
                stops = report(EpochReported(row, warning=metrics.take_warning()))
                has_ended = not is_running or process.ended_at is not None  # a verdict can take a while
                if stops and not has_ended and status is TrialStatus.RUNNING:
                    status = TrialStatus.STOPPED
                    break
    finally:
        output.stop_reading()
        exit_code = process.end(min(grace_seconds, max(0.0, read_until - time.monotonic())))
    exit_code = exit_code if overdue is None else overdue
    if exit_code == 0 and output.rest:
        metrics.add_line(output.rest)
    if status is not TrialStatus.STOPPED:
        for row in metrics.new_rows(final=True, torn=exit_code != 0):
            report(EpochReported(row, warning=metrics.take_warning()))
    if status is TrialStatus.RUNNING:
        status, reason = _judge_exit(run, process, output, exit_code)
    latest = metrics.latest
    is_judged = status in WITH_RESULT or failed_by_itself(reason)
    if status is TrialStatus.FINISHED:
        status, reason, latest = _judge_output(run)
    tail = output.tail()
    return TrialEnded(
        status=status,
        metrics=latest if is_judged else {},
        error=reason,
        seconds=time.monotonic() - began,
        traceback=tail if status is TrialStatus.FAILED else "",
        warning=metrics.take_warning(),
        exit_code=exit_code,
        output=str(run.output),
        tail=tail,
        hidden_error=output.hidden_error() if exit_code == 0 else "",
        progress=output.progress,
        units=metrics.units or None,
        unread=metrics.unread,
        metrics_digest=metrics_digest(metrics.section, metrics.complete),
    )


def _check_limits(run: ProgramRun, began: float, paused: float, ended_at: float | None) -> tuple[TrialStatus, str]:
    """The status and the reason with which a program must end now, if it must.

    The seconds in which it was `paused` count neither for its timeout nor, as Slurm does it, for the walltime. One that
    has ended, and whose output is still searched, cannot exceed its timeout or be interrupted any more.
    """
    timeout = run.timeout_seconds
    seconds = (ended_at or time.monotonic()) - began - paused
    if timeout is not None and seconds > timeout:
        return TrialStatus.FAILED, timeout_error(timeout)
    if ended_at is not None:
        return TrialStatus.RUNNING, ""
    if run.stop_request.is_made:
        return TrialStatus.INTERRUPTED, INTERRUPTED
    if time.time() > run.deadline + paused:
        return TrialStatus.INTERRUPTED, OUT_OF_TIME
    return TrialStatus.RUNNING, ""


def _judge_exit(
    run: ProgramRun, process: GuardedProcess, output: OutputReader, exit_code: int
) -> tuple[TrialStatus, str]:
    """The status of a program that ended by itself, and why it did not finish, in one line."""
    if exit_code == 0 and process.stop_was_requested and run.stop_request.is_made:
        return TrialStatus.INTERRUPTED, INTERRUPTED  # by the signal of its job, which it has received directly
    if exit_code == 0:
        return TrialStatus.FINISHED, ""
    how = describe_exit(exit_code)
    error = output.error()
    if exit_code == SHELL_SIGNAL + signal.SIGPIPE:
        error = EARLY_END
    elif output.has_killed_rank:
        how += ", after SIGKILL ended a rank"
    return TrialStatus.FAILED, f"{how}: {error or 'no output'}"


def _judge_output(run: ProgramRun) -> tuple[TrialStatus, str, Row]:
    """The status of a program that succeeded, the reason and its metrics.

    If nothing was left to do for it, what the attempts that it continues have reported counts, too.
    """
    metrics = run.metrics
    earlier = parse_ended_outputs(metrics.section, metrics.folder, run.earlier_outputs, complete=metrics.complete)
    parsed = join_outputs(metrics.parsed(), earlier)
    if parsed.incomplete:
        return TrialStatus.INTERRUPTED, parsed.incomplete, parsed.metrics
    if parsed.missing:
        return TrialStatus.UNREADABLE, parsed.missing, parsed.metrics
    return TrialStatus.FINISHED, "", parsed.metrics


def failed_by_itself(error: str, *, external: Collection[signal.Signals] = EXTERNAL_SIGNALS) -> bool:
    """Whether a program with this error ended by itself: then the checkpoint that it resumed from may be damaged.

    False if it exceeded its timeout, if its worker or node died, or if it or one of torchrun's ranks received an
    `external` signal. A shell reports such a signal as exit code 128 plus its number.
    """
    if found := re.match(r"exit code (\d+)(?: \([\w ]+\))?: ", error):
        return int(found[1]) - SHELL_SIGNAL not in external
    killed = re.match(r"killed by ([\w ]+): ", error)
    return killed is not None and killed[1] not in {each.name for each in external}


def may_be_of_checkpoint(
    error: str, seconds: float | None, *, external: Collection[signal.Signals] = EXTERNAL_SIGNALS
) -> bool:
    """Whether a program that resumed, and failed so soon with this error, may have found its checkpoint damaged."""
    is_own = failed_by_itself(error, external=external) and not mentions_gpu_memory(error)
    return is_own and seconds is not None and seconds <= QUICK_SECONDS


class CheckpointFile(NamedTuple):
    """A checkpoint as a program wrote it. A file that is overwritten under the same name is another checkpoint."""

    name: str  # relative to the trial's folder
    modified_ns: int
    size: int


def find_checkpoint(
    folder: Path, pattern: str | None, *, bad: Collection[CheckpointFile] = ()
) -> CheckpointFile | None:
    """The newest checkpoint; if it is `bad` (an attempt that resumed from it failed), the one before.

    Then the newest of those that were written after all of the bad ones; None without any.
    """
    found = list_checkpoints(folder, pattern)
    newer = (each for each in found if all(each.modified_ns > other.modified_ns for other in bad))
    return next((each for each in (*found[:2], *newer) if each not in bad), None)


def checkpoint_digest(folder: Path, checkpoint: CheckpointFile | None) -> str:
    """The digest of a checkpoint's name and content, the same if it is only saved again; "" if it cannot be read."""
    try:
        return digest_of_code([str((folder / checkpoint.name).absolute())]) if checkpoint else ""
    except OSError:
        return ""


def list_checkpoints(folder: Path, pattern: str | None) -> list[CheckpointFile]:
    """All checkpoints, the newest first: by number if their names differ in one integer only, else by time.

    Of two with the numbers 0 and 1, or 1 and 2, a program may overwrite the older one each time: by time, too.

    An empty file is no checkpoint, unless it completes a folder: its program was killed before it wrote any of it. A
    link counts as the file itself.
    """
    files: dict[tuple[int, int], CheckpointFile] = {}  # by device and inode
    completes = bool(pattern) and checkpoints_of(pattern or "") != pattern
    for path in sorted(folder.glob(pattern)) if pattern else ():
        with suppress(OSError):  # a link to a file that was removed
            status = path.stat()
            name = (path.parent if completes else path).relative_to(folder)
            file = CheckpointFile(str(name), status.st_mtime_ns, status.st_size)
            if file.size or completes or path.is_dir():
                files.setdefault((status.st_dev, status.st_ino), file)
    numbers = numbers_of([each.name for each in files.values()])
    if sorted(numbers.values()) in ([0, 1], [1, 2]):
        numbers = {}

    def age(file: CheckpointFile) -> tuple[int, int, str]:
        return numbers.get(file.name, 0), file.modified_ns, file.name

    return sorted(files.values(), key=age, reverse=True)


def numbers_of(names: Sequence[str]) -> dict[str, int]:
    """The only number, an integer, in which these names differ, by name; {} if they differ in more."""
    parts = [_NUMBER.split(name) for name in names]
    columns = list(zip(*parts, strict=True)) if len({len(each) for each in parts}) == 1 else []
    varying = [column for column in columns if len(set(column)) > 1]
    if len(varying) != 1 or not all(map(str.isdecimal, varying[0])):
        return {}
    return dict(zip(names, map(int, varying[0]), strict=True))


def _start(run: ProgramRun, guard: ProcessGuard, output: OutputReader) -> GuardedProcess:
    try:
        return guard.start(
            run.command,
            cwd=run.cwd,
            environment=run.environment,
            grace_seconds=run.grace_seconds,
            stop_signal=run.stop_signal,
            on_output=output.take,
            folder_lock=run.folder_lock,
            log=run.output,
            records_end=run.records_end,
        )
    except OSError as error:
        output.take(b"")
        program = run.command[0]
        if not Path(run.cwd).is_dir():
            where = f"{run.cwd}: there is no such folder on {host.node_name()}"
            raise UserError(f"{program} cannot be started in {where}") from None
        # If it is in no folder of PATH, the system may report the error of a folder that it could not read.
        is_missing = os.sep not in program and shutil.which(program, mode=os.F_OK) is None
        reason = os.strerror(errno.ENOENT) if is_missing else error.strerror
        raise UserError(f"{program} cannot be started: {reason}") from None


def trial_command(
    program: UserProgram, placeholders: Mapping[str, Any], *, resume: str | None = None, start: Path | None = None
) -> list[str]:
    """The argument vector of a trial's command.

    `placeholders` has the values of those that are not arguments; `resume` is the option that makes it resume, if it
    does; `start` the folder of its program and modules, if it runs in another one.
    """
    assert program.command is not None
    command = insert_resume_option(program.command, resume, program.args)
    switch_of = find_switches(command, start or Path.cwd())
    command = resolve_program_paths(command, start) if start else command
    return build_argv(command, program.args, placeholders, switch_of=switch_of)


def trial_environment(
    environment: Mapping[str, str], *, trial: str, folder: Path, cpus: int, start: Path | None = None
) -> dict[str, str]:
    """The environment of a trial: its own GPU, CPUs and trial, without the Ray of this job.

    `start` is as in `trial_command`.
    """
    inherited = {name: value for name, value in environment.items() if not HIDDEN_VARIABLES.match(name)}
    modules = module_path(start, inherited) if start else {}
    if first := inherited.get(FIRST_MODULES):
        modules = module_path(Path(first), inherited | modules)
    added = {"TRAINYARD_TRIAL": trial, TRIAL_DIR: str(folder), "PYTHONUNBUFFERED": "1"}
    return inherited | modules | added | thread_variables(cpus, inherited)


def as_own_job(environment: Mapping[str, str], *, folder: Path, cpus: int, port: int) -> dict[str, str]:
    """The environment of a trial's command, with the variables by which programs take it for a job of its own.

    Programs name checkpoints, runs and ports after the ID of their job, which several trials share. A trial has an ID
    of its own, the same one in all its attempts. Slurm knows no job with it, so that a program that calls
    `scontrol requeue` or `scancel` for itself does not reach the job of all. TRAINYARD_JOB_ID is the ID of that job.

    Args:
        environment: The variables of the trial.
        folder: The folder of the trial, which determines its ID.
        cpus: CPUs of the slot.
        port: A port that the trial has for itself.
    """
    own = {"MASTER_PORT": str(port)}
    if job := environment.get("SLURM_JOB_ID"):
        number = str(trial_job_id(folder))
        own |= {"SLURM_JOB_ID": number, "SLURM_JOBID": number, JOB_OF_TRIAL: job}
        own |= {"SLURM_JOB_NODELIST": environment.get("SLURMD_NODENAME", host.node_name()), "SLURM_JOB_NUM_NODES": "1"}
        own |= {"SLURM_JOB_CPUS_PER_NODE": str(cpus)}
        if "SLURM_JOB_GPUS" in environment:
            own["SLURM_JOB_GPUS"] = environment.get("CUDA_VISIBLE_DEVICES", "")
    return {**environment, **own}


def trial_job_id(folder: Path) -> int:
    """The ID of a job that a trial with this folder sees: at most 15 digits, distinct for all trials.

    Slurm's commands keep the lower 32 bits of a larger number. Those from 0xFC000000 on would be jobs of the 63rd
    cluster of a federation. The last four digits, of which many scripts make a port, do not begin with a 0, which bash
    would read as the beginning of an octal number.
    """
    drawn = int(digest_of(str(folder.absolute()), length=16), 16)
    high = drawn % 2**16
    low = drawn // 2**16
    number = high * 2**32 + FEDERATED_JOBS + low % UNUSED_JOB_IDS
    return number if number // 1000 % 10 else number + 1000
