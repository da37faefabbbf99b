"""A command as a trial: started, monitored for metrics, and ended together with all processes that it started."""

import errno
import os
import queue
import re
import shutil
import signal
import time
from collections.abc import Collection, Generator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from trainyard.cluster import host
from trainyard.cluster.ports import reserved_port
from trainyard.cluster.stop_request import StopRequest
from trainyard.config.placeholders import PORT, build_argv, find_placeholders, insert_resume_option, make_values
from trainyard.config.trial_status import TrialStatus
from trainyard.config.user_programs import GRACE_SECONDS, Metrics, UserProgram, metrics_digest
from trainyard.programs.metrics import MetricsCollector, latest_saved_metrics
from trainyard.programs.output import OutputReader
from trainyard.programs.trial_messages import EpochReported, ProgramOutput, TrialEnded, timeout_error
from trainyard.programs.user_environment import (
    module_path,
    program_environment,
    resolve_program_paths,
    thread_variables,
)
from trainyard.utils.errors import UserError
from trainyard.utils.locks import Hold
from trainyard.utils.process_guard import ProcessGuard
from trainyard.utils.text import SHELL_SIGNAL, describe_exit

POLL_SECONDS: Final = 0.25  # between two reads of a metrics file
MAX_LINES: Final = 100  # of output to search until the limits are checked again: a pattern may take long for each
EARLY_END: Final = (
    "a program of a pipe ended before it had read all (`| head`); if it may, begin the command with `set +o pipefail;`"
)
INTERRUPTED: Final = "it was interrupted"
# With these variables, a program would join the Ray or the Slurm step of this job.
HIDDEN_VARIABLES: Final = re.compile(r"RAY_|PMI_|PMIX_|SLURM_(?!JOB_|JOBID|CLUSTER_NAME|SUBMIT_|TMPDIR)")


@dataclass(frozen=True)
class CommandTrial:
    """A command and how it runs."""

    spec: UserProgram
    placeholders: Mapping[str, Any]  # values of placeholders that are not arguments
    folder: Path  # the trial's own
    cwd: str
    output: Path
    metrics: Metrics | None
    resume: str | None = None  # the option that makes it resume, if it does
    timeout_seconds: float | None = None
    deadline: float = float("inf")  # Unix seconds
    grace_seconds: float = GRACE_SECONDS  # from SIGTERM to SIGKILL
    claim: Hold | None = None  # to its folder
    stop_request: StopRequest = field(default_factory=StopRequest)  # made by the worker to end it
    environment: Mapping[str, str] = field(default_factory=program_environment)  # the user's or another, activated
    start: Path | None = None  # the folder of its program and modules, if it is not `cwd`
    earlier_outputs: tuple[Path, ...] = ()  # of the attempts that it continues, the latest first


def run_command(trial: CommandTrial, guard: ProcessGuard) -> Generator[EpochReported, bool | None, TrialEnded]:
    """Run a command; send True after an epoch to stop it early.

    With `metrics`, a command that reports none is `unreadable`.
    """
    began = time.monotonic()
    collector = MetricsCollector(trial.metrics, trial.folder, resumes=bool(trial.placeholders["resume_from"]))
    program = _Program(trial, guard)
    status, reason = TrialStatus.RUNNING, ""
    try:
        while status is TrialStatus.RUNNING:
            lines, is_running = program.read_lines(POLL_SECONDS)
            for line in lines:
                collector.add_line(line)
            status, reason = _check_limits(trial, began, program.ended_at) if is_running else (TrialStatus.FINISHED, "")
            torn = is_running or program.end() != 0
            for row in collector.new_rows(final=status is not TrialStatus.RUNNING, torn=torn):
                stops = yield EpochReported(row, warning=collector.take_warning())
                if stops and status is TrialStatus.RUNNING:
                    status = TrialStatus.STOPPED
                    break
    finally:
        exit_code = program.end()
    if exit_code == 0 and status is TrialStatus.FINISHED and program.was_told and trial.stop_request.is_made:
        status, reason = TrialStatus.INTERRUPTED, INTERRUPTED  # by the signal of its job, which it has got directly
    tail, metrics = program.tail(), collector.latest
    if status is TrialStatus.FINISHED:
        if collector.missing:  # an earlier attempt was ended after its last checkpoint: nothing was left to do
            metrics = latest_saved_metrics(trial.metrics, trial.folder, trial.earlier_outputs)
        status, reason = _judge_exit(exit_code, program.error(), missing_metrics="" if metrics else collector.missing)
    is_judged = status in (TrialStatus.FINISHED, TrialStatus.STOPPED) or failed_by_itself(reason)
    return TrialEnded(
        status=status,
        metrics=metrics if is_judged else {},
        error=reason,
        seconds=time.monotonic() - began,
        traceback=tail if status is TrialStatus.FAILED else "",
        warning=collector.take_warning(),
        program=ProgramOutput(exit_code, str(trial.output), tail, metrics_digest(trial.metrics)),
    )


def _check_limits(trial: CommandTrial, began: float, ended_at: float | None) -> tuple[TrialStatus, str]:
    """The status and the reason with which a program must end now, if it must.

    One that has ended, and whose output is still searched, cannot exceed its timeout or be interrupted any more.
    """
    timeout, seconds = trial.timeout_seconds, (ended_at or time.monotonic()) - began
    if timeout is not None and seconds > timeout:
        return TrialStatus.FAILED, timeout_error(timeout)
    if ended_at is not None:
        return TrialStatus.RUNNING, ""
    if trial.stop_request.is_made:
        return TrialStatus.INTERRUPTED, INTERRUPTED
    if time.time() > trial.deadline:
        return TrialStatus.INTERRUPTED, "ended before the end of the walltime"
    return TrialStatus.RUNNING, ""


def _judge_exit(exit_code: int, error: str, *, missing_metrics: str) -> tuple[TrialStatus, str]:
    """The status of a program that ended by itself, and why it did not finish."""
    if exit_code == 0:
        return (TrialStatus.UNREADABLE, missing_metrics) if missing_metrics else (TrialStatus.FINISHED, "")
    return TrialStatus.FAILED, describe_program_failure(exit_code, error)


def describe_program_failure(exit_code: int, error: str) -> str:
    """How a program failed, in one line, with the `error` that its output names."""
    if exit_code == SHELL_SIGNAL + signal.SIGPIPE:
        error = EARLY_END
    return f"{describe_exit(exit_code)}: {error or 'no output'}"


def failed_by_itself(error: str) -> bool:
    """Whether a program with this error ended by itself: then the checkpoint that it resumed from may be damaged.

    False if it exceeded its timeout, if its worker or node died, or if it received a signal: at the end of the job, or
    from the kernel when memory ran out. A shell reports such a signal as exit code 128 plus its number.
    """
    external = (signal.SIGHUP, signal.SIGINT, signal.SIGKILL, signal.SIGTERM)
    if found := re.match(r"exit code (\d+)(?: \([\w ]+\))?: ", error):
        return int(found[1]) - SHELL_SIGNAL not in external
    killed = re.match(r"killed by ([\w ]+): ", error)
    return killed is not None and killed[1] not in {each.name for each in external}


class CheckpointFile(NamedTuple):
    """A checkpoint as a program wrote it. A file that is overwritten under the same name is another checkpoint."""

    name: str  # relative to the trial's folder
    modified_ns: int
    size: int


def find_checkpoint(
    folder: Path, pattern: str | None, *, bad: Collection[CheckpointFile] = ()
) -> CheckpointFile | None:
    """The newest checkpoint; if it is `bad` (an attempt that resumed from it failed), the one before; then None.

    An empty file is no checkpoint: its program was killed before it wrote any of it. A link counts as the file itself.
    """
    found: dict[tuple[int, int], CheckpointFile] = {}  # by device and inode
    for path in sorted(folder.glob(pattern)) if pattern else ():
        with suppress(OSError):  # a link to a file that was removed
            status = path.stat()
            file = CheckpointFile(str(path.relative_to(folder)), status.st_mtime_ns, status.st_size)
            if file.size or path.is_dir():
                found.setdefault((status.st_dev, status.st_ino), file)
    newest = sorted(found.values(), key=lambda each: (each.modified_ns, each.name), reverse=True)[:2]
    return next((each for each in newest if each not in bad), None)


def start_error(program: str, error: OSError, *, cwd: str = ".") -> UserError:
    """The error message for a program that the system cannot start.

    If a program is in no folder of PATH, the system may report the error of a folder that it could not read.
    """
    if not Path(cwd).is_dir():
        return UserError(f"{program} cannot be started in {cwd}: there is no such folder on {host.node_name()}")
    is_missing = os.sep not in program and shutil.which(program, mode=os.F_OK) is None
    return UserError(f"{program} cannot be started: {os.strerror(errno.ENOENT) if is_missing else error.strerror}")


class _Program:
    """A guarded process. Its output goes to a file and is read line by line."""

    def __init__(self, trial: CommandTrial, guard: ProcessGuard) -> None:
        self._grace_seconds, self._output = trial.grace_seconds, OutputReader(trial.output)
        self._resources = ExitStack()  # held until it has ended
        try:
            command = self._command(trial)
            self._process = guard.start(
                command,
                cwd=trial.cwd,
                environment=_environment(trial),
                grace_seconds=trial.grace_seconds,
                on_output=self._output.take,
                claim=trial.claim,
                log=trial.output,
            )
        except OSError as error:
            self._output.take(b"")
            self._resources.close()
            raise start_error(command[0], error, cwd=trial.cwd) from None

    def _command(self, trial: CommandTrial) -> list[str]:
        """Its argument vector. A port that it names is its own until it has ended."""
        assert trial.spec.command is not None
        args, predefined = trial.spec.args, dict(trial.placeholders)
        command = insert_resume_option(trial.spec.command, trial.resume, args)
        command = resolve_program_paths(command, trial.start) if trial.start else command
        if PORT in find_placeholders(command):
            predefined[PORT] = self._resources.enter_context(reserved_port())
        return build_argv(command, make_values(command, args, predefined))

    def read_lines(self, timeout_seconds: float) -> tuple[list[str], bool]:
        """Some new lines, after waiting at most `seconds` for the first one, and whether any may follow."""
        lines, is_running = list[str](), True
        with suppress(queue.Empty):
            line = self._output.lines.get(timeout=timeout_seconds)
            while line is not None:
                lines.append(line)
                if len(lines) == MAX_LINES:
                    return lines, is_running
                line = self._output.lines.get_nowait()
            is_running = False
        return lines, is_running

    @property
    def ended_at(self) -> float | None:
        """When the last of its processes had ended, on the monotonic clock; None while one runs."""
        return self._process.ended_at

    @property
    def was_told(self) -> bool:
        """Whether it had been told to end before it did; known once it has ended."""
        return self._process.was_told

    def end(self) -> int:
        """End all its processes, with the grace period; returns the exit code, or minus the signal that ended it."""
        self._output.stop_reading()
        exit_code = self._process.end(self._grace_seconds)
        self._resources.close()
        return exit_code

    def error(self) -> str:
        """The line of the output that says why it failed."""
        return self._output.error()

    def tail(self) -> str:
        """The last lines of the output."""
        return self._output.tail()


def _environment(trial: CommandTrial) -> dict[str, str]:
    """The environment of a program: its own GPU, CPUs and trial, without the Ray of this job."""
    inherited = {name: value for name, value in trial.environment.items() if not HIDDEN_VARIABLES.match(name)}
    own = {"TRAINYARD_TRIAL": str(trial.placeholders["trial"]), "TRAINYARD_TRIAL_DIR": str(trial.folder)}
    own |= module_path(trial.start, inherited) if trial.start else {}
    return inherited | own | thread_variables(trial.placeholders["cpus"]) | {"PYTHONUNBUFFERED": "1"}
