"""The summary at the end of each run: what finished, the answers, what failed, where the results are, what is next."""

import os
import re
import shlex
import subprocess
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal

from trainyard.cli.command_line import INTERRUPTED
from trainyard.cli.progress import may_run
from trainyard.cli.sweep_answer import describe_sweep
from trainyard.cluster import host
from trainyard.config.config import Config
from trainyard.config.load import config_copy
from trainyard.config.placeholders import SHELL
from trainyard.planning.added_trials import announce_end
from trainyard.planning.history import History, read_state
from trainyard.planning.receipts import TABLES, is_outdated, record
from trainyard.results.answer import Answer, answer_sweep
from trainyard.results.best_config import FILE, has_study, study_name, write_best
from trainyard.results.provenance import describe_difference, read_sessions
from trainyard.utils.errors import StorageError
from trainyard.utils.text import count_of, describe_exit, format_duration
from trainyard.utils.typed_commands import as_typed, installed_program, program_as_typed, trainyard_call

NOTIFY_SECONDS: Final = 60.0
SHOWN: Final = 8  # studies, failures
TAIL: Final = 10  # lines of Slurm's log
LOGGED_AT: Final = re.compile(r"^[\d-]{10} [\d:,]{12} ")
# What Snakemake prints in a job from the error of its rule on.
SNAKEMAKE_ERROR: Final = re.compile(r"^(RuleException:\n|\[[\w :]+\]\nError in rule ).*\Z", re.MULTILINE | re.DOTALL)
# By rule. The tables of a sweep with several jobs are made once all its trials have ended.
NOUNS: Final = {"stage": "dataset", "sweep": "sweep", "sweep_tables": "sweep", "train": "scaling"}
OF_CONFIG: Final = ("--configfile", "--configfiles", "--config", "-C")  # each takes several values
OF_STUDIES: Final = {"sweeps": ("sweep", "sweep_job", "sweep_tables", "table_sweeps"), "scaling": ("table_scaling",)}
State = Literal["finished", "failed", "interrupted", "left", "kept"]


@dataclass(frozen=True)
class JobFailure:
    """Why the log of a job does not say why it failed."""

    why: str
    slurm_log: Path | None = None  # what Slurm and the script of the job have printed


@dataclass(frozen=True)
class RunJob:
    """A job of a run of Snakemake, and what became of it."""

    rule: str
    name: str  # of the dataset or study; "" for others
    scale: str  # of a scaling study; of a sweep with several jobs, which one; else ""
    log: str
    state: State
    failure: JobFailure | None = None


def read_jobs(workflow: Any, failures: Mapping[int, JobFailure] | None = None) -> list[RunJob]:
    """The jobs of a run that has ended, from a `snakemake.workflow.Workflow`, in the order of their names.

    `failures` are by Snakemake's numbers of jobs. If nothing had to run, these are the jobs whose outputs were kept.
    """
    dag = workflow.dag
    scheduler = workflow.scheduler

    def read(job: Any) -> RunJob:
        states: dict[State, bool] = {
            "failed": job in scheduler.failed,
            "interrupted": job in scheduler.running,
            "finished": dag.finished(job),
        }
        otherwise: State = "left" if needed else "kept"
        state = next((state for state, holds in states.items() if holds), otherwise)
        name, scale, number = (str(job.wildcards.get(key, "")) for key in ("name", "scale", "job"))
        scale = scale or (number and f"job {int(number) + 1}")
        failure = failures.get(job.jobid) if failures and state == "failed" else None
        log = next(map(str, job.log), "")
        if state == "failed" and not failure and _last_line(log) in interrupted:  # before Snakemake was, or it alone
            state = "interrupted"
        return RunJob(job.rule.name, name, scale, log, state, failure)

    interrupted = [INTERRUPTED]
    if scheduler._user_kill:  # after SIGTERM to all processes, one that has logged nothing was importing its modules
        interrupted.append("")
    needed = list(dag.needrun_jobs(exclude_finished=False))
    jobs = [read(job) for job in needed or dag.jobs]
    return sorted(jobs, key=lambda job: (job.rule, job.name, job.scale))


@dataclass(frozen=True)
class RunSummary:
    """What a run of Snakemake came to."""

    config: Config
    results: Path
    jobs: Sequence[RunJob]
    seconds: float
    succeeded: bool
    argv: Sequence[str]  # the command line of the run
    targets: frozenset[str] = frozenset()
    interrupted: bool = False

    @cached_property
    def trials_left(self) -> int:
        """How many trials of this run's sweeps are left to run, without those that have failed."""
        return sum(len(state.unfinished) - len(state.failed) for state in self._states.values())

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to do for what was asked for."""
        return self.succeeded and not self.trials_left

    def write_best(self) -> None:
        """Write best.yaml of each sweep of this run, so that it agrees with the summary.

        A sweep writes it at its end, which an error or a signal may have prevented.
        """
        for name, state in self._states.items():
            with suppress(StorageError):
                write_best(self.config, state, self._answer_of[name])

    def write_tables(self) -> None:
        """Write the tables of each sweep that has not ended, which Snakemake removed; it makes them again, once it has.

        Raises:
            StorageError: they cannot be written.
        """
        for name, state in self._states.items():
            trials = state.folder / "trials.csv"
            if not state.attempts or (trials.exists() and not is_outdated(trials, state.space.digest)):
                continue
            from trainyard.report.study_pages import write_study_page  # pandas takes a second to import
            from trainyard.report.study_tables import write_tables
            from trainyard.results.sweep_tables import write_sweep_tables

            for table in (trials, trials.with_name(TABLES["sweeps"])):
                record(table, "")
            write_sweep_tables(state, self._answer_of[name].ranking, state.folder)
            write_tables(self.config, "sweeps", name, self.results)
            write_study_page(self.config, "sweeps", name, self.results)

    def announce_ends(self) -> None:
        """Tell who waits for the sweeps of this run that it has ended."""
        for name in self._states:
            with suppress(StorageError):
                announce_end(name, self.results)

    def text(self) -> str:
        """The summary, in lines with a heading each."""
        folders = [f"{name}/" for name in ("tables", "plots", "logs") if (self.results / name).exists()]
        nothing = "" if self.interrupted else "nothing new"
        parts = {
            "finished": [_list(self._work("finished")) or nothing],
            "not done": [_list(self._work("interrupted", "left"))],
            "answers": self._answers(),
            "results": [f"{self.results.absolute()}: {_list(folders)}"],
            "job log": self._slurm_log(),
            "failed": self._failures(),
            "next": self._next_steps(),
        }
        end = "ended before everything was done,"
        if self.is_done:
            end = "done"
        elif self.interrupted:
            end = "interrupted"
        lines = [f"Trainyard: {end} after {format_duration(self.seconds)}"]
        for heading, content in parts.items():
            for line in filter(None, content):
                lines.append(f"  {heading:<9} {line}")
                heading = ""
        return "\n".join(lines)

    def _work(self, *states: State) -> list[str]:
        """Datasets and studies with a job in one of these states; a scaling study with its scales."""
        scales_of: dict[str, list[str]] = {}
        for rule, noun in NOUNS.items():
            for job in self.jobs:
                if job.rule == rule and job.state in states:
                    scales_of.setdefault(f"{noun} {job.name}", []).append(job.scale)
        return [f"{name} ({', '.join(scales)})" if any(scales) else name for name, scales in scales_of.items()]

    def _failures(self) -> list[str]:
        nouns = NOUNS | {"sweep_job": "sweep"}
        lines = list[str]()
        for job in (job for job in self.jobs if job.state == "failed"):
            name = f"{nouns.get(job.rule, job.rule)} {job.name} {job.scale}".rstrip()
            why = job.failure.why if job.failure else self._why_killed(job) or _end_of(job.log)
            lines.append(f"{name}: {why}")
        return _first(lines)

    def _why_killed(self, job: RunJob) -> str:
        """That the program of a sweep was killed on this machine, which its log cannot say; "" if it was not."""
        state = self._states.get(job.name) if job.rule in ("sweep", "sweep_job") else None
        begin = time.time() - self.seconds
        node = host.node_name()
        ended = [run for run in state.sessions if run.name in state.fold.live and not may_run(run)] if state else []
        killed = [run for run in ended if run.start >= begin and run.info.node == node]  # not by an earlier run
        if not killed:
            return ""
        process = f"process {killed[-1].info.process} on {killed[-1].info.node}"
        return (
            f"its program ({process}) was killed (SIGKILL), as the kernel does if memory runs out; its log: {job.log}"
        )

    def _slurm_log(self) -> list[str]:
        """The path and the last lines of Slurm's log of the first job that failed before its program started."""
        logs = (job.failure.slurm_log for job in self.jobs if job.failure and job.failure.slurm_log)
        if (log := next(logs, None)) is None:
            return []
        try:
            # Where the Snakemake of a job ran, without what it says about its end.
            text = SNAKEMAKE_ERROR.sub("", log.read_text(errors="replace"))
        except OSError:
            return [f"{log}: Slurm could not write it: does the node see this folder?"]
        return [f"{log}:", *[f"  {line}" for line in text.splitlines() if line.strip()][-TAIL:]]

    def _touched(self, kind: str) -> list[str]:
        """The studies of a kind that this run worked on."""
        names = {job.name for job in self.jobs if job.rule in OF_STUDIES[kind] and job.state != "left"}
        return [name for name in getattr(self.config, kind) if name in names]

    @cached_property
    def _states(self) -> dict[str, History]:
        """What has become of the sweeps that this run worked on, by name."""
        return {name: read_state(self.config.sweeps[name], name, self.results) for name in self._touched("sweeps")}

    @cached_property
    def _answer_of(self) -> dict[str, Answer]:
        """The answers of these sweeps, by name."""
        return {name: answer_sweep(state) for name, state in self._states.items()}

    def _answers(self) -> list[str]:
        lines = list[str]()
        for name, state in list(self._states.items())[:SHOWN]:
            lines += describe_sweep(state, self._answer_of[name], self.config.pricing)
        for name in self._touched("scaling")[:SHOWN]:
            lines += self._scaling_answer(name)
        return lines

    def _scaling_answer(self, name: str) -> list[str]:
        table = self.results / "scaling" / name / "scaling.csv"
        if not table.exists():
            return []
        from trainyard.scaling.speedups import recommendation
        from trainyard.utils.csv_files import read_table  # pandas takes a second to import

        summaries = self.config.scaling[name].summaries(table.parent)
        lines = [f"scaling {name}: {recommendation(read_table(table))}"]
        if mismatch := describe_difference("scales ran", read_sessions(summaries)):
            lines.append(f"  {mismatch}")
        return lines

    def _report_call(self) -> str:
        """The command that writes the report of this run: with its config as typed, or a copy of an overridden one."""
        argv = list(self.argv)
        typed = [word for word in argv if word.partition("=")[0] in OF_CONFIG]
        config = as_typed(config_copy(self.config, self.results))
        files = [word for word in argv[2:] if Path(word).suffix in (".yaml", ".yml", ".json")]
        if argv[1:2] == ["run"] and typed in ([], ["--config"]) and len(files) >= len(typed):
            config = files[0] if files else ""
        return trainyard_call("report", *(["--config", config] if config else []))

    def _next_steps(self) -> list[str]:
        if not self.is_done:
            has_cause = not self.interrupted and any(job.state == "failed" for job in self.jobs)
            first = "correct the cause, then " if has_cause else ""
            return [f"{first}go on with what has finished: {call_again(self.argv)}"]
        steps = []
        for state in self._states.values():  # the same command does not run failed trials again
            if failed := len(state.failed):
                call = call_again(self.argv, "--forcerun", str(state.folder / "trials.csv"))
                trials = f"{count_of(failed, 'failed trial')} of sweep {state.name}"
                steps.append(f"run {trials} again, once the cause is corrected: {call}")
        if not self.targets and "TRAINYARD_WRITES_REPORT" not in os.environ:  # as `make run`
            steps.append(f"write the report: {self._report_call()}")
        trained = [name for name in self._states if has_study(self.config.sweeps[name])]
        best = self.results / "sweeps" / (trained or [""])[0] / FILE
        if trained and best.exists():
            call = call_with_config(self.argv, best, "scaling", but=self.targets)
            steps.append(
                f"train the best of sweep {trained[0]} with checkpoints, as scaling study "
                f"{study_name(self.config, trained[0])}: {call}"
            )
        return steps


def _end_of(log: str) -> str:
    """Where a log is, and its last line."""
    last = _last_line(log)
    return f"{log} ends with: {last}" if last else f"see {log}"


def _last_line(log: str) -> str:
    try:
        lines = Path(log).read_text(errors="replace").split("\n")
    except OSError:
        lines = []
    return LOGGED_AT.sub("", next((line for line in reversed(lines) if line.strip()), ""))


def notify(command: str, text: str) -> str:
    """Run a user's command with the summary on its standard input; returns why it failed, or ""."""
    try:
        ended = subprocess.run(
            [SHELL, "-c", command], input=text + "\n", text=True, capture_output=True, timeout=NOTIFY_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    said = (ended.stdout + ended.stderr).strip().splitlines() or ["no output"]
    return f"{describe_exit(ended.returncode)}: {said[-1]}" if ended.returncode else ""


def _first(lines: list[str]) -> list[str]:
    """The first lines, and how many are left out."""
    more = len(lines) - SHOWN
    return [*lines[:SHOWN], f"and {more} more"] if more > 0 else lines


def _list(words: list[str]) -> str:
    return ", ".join(_first(words))


def call_again(argv: Sequence[str], *options: str) -> str:
    """The command of this run with further options."""
    end = argv.index("--") if "--" in argv else len(argv)
    return f"{_program(argv[0])} {shlex.join([*argv[1:end], *options, *argv[end:]])}"


def call_with_config(argv: Sequence[str], config: Path, *targets: str, but: Collection[str] = ()) -> str:
    """The command of this run with another config file and other targets; `but` are the targets of this run."""
    words = list[str]()
    is_value = False
    for word in argv[1:]:
        if word == "--":
            break
        if word.startswith("-"):
            is_value = word.partition("=")[0] in OF_CONFIG
        if not is_value and word not in but:
            words.append(word)
    return f"{_program(argv[0])} {shlex.join([*words, '--configfile', as_typed(config), '--', *targets])}"


def _program(path: str) -> str:
    """The program of a command line as one would type it."""
    if Path(path).name == "__main__.py":
        return f"{installed_program('python')} -m snakemake"
    return program_as_typed(Path(path)) if Path(path).is_absolute() else shlex.quote(path)
