"""How far all sweeps and scaling studies are."""

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import psutil

from trainyard.cli.sweep_answer import answer_as_json
from trainyard.cluster import host
from trainyard.cluster.slurm_queries import UserJob
from trainyard.config.config import Config
from trainyard.config.load import config_copy
from trainyard.config.trial_status import TrialStatus
from trainyard.packing.session_watch import beat_file
from trainyard.planning.attempts import Attempt, Fold, Session
from trainyard.planning.history import History, is_trained
from trainyard.planning.journal import SESSIONS
from trainyard.planning.order import makespan
from trainyard.planning.plan import Plan, plan_sweep
from trainyard.results.answer import answer_sweep
from trainyard.utils.text import format_duration

CLOCKS_SECONDS: Final = 60  # by which the clocks of nodes may differ, and a job may exceed its walltime


def describe_progress(config: Config, results: Path, folds: Mapping[str, Fold]) -> list[str]:
    """How many trials of each sweep that has some left have ended, run and failed, and the time left: a line each."""
    lines = []
    for name, fold in folds.items():
        sweep = read_progress(config, name, results, fold)
        counts = sweep.counts
        ended = counts["of"] - len(sweep.plan.state.unfinished)
        failures = f", {counts['failed']} failed" if counts["failed"] else ""
        if sweep.plan.forecast.pending:
            done = f"{ended} of {counts['of']} trials done, {counts['running']} running{failures}"
            lines.append(f"sweep {name}: {done}, time left {sweep.time_left}")
    return lines


def progress_as_json(
    config: Config, results: Path, folds: Mapping[str, Fold], jobs: Sequence[UserJob]
) -> dict[str, Any]:
    """How far all sweeps and studies are; `jobs` are those in Slurm's queue."""
    sweeps = []
    for name, fold in folds.items():
        sweep = read_progress(config, name, results, fold)
        state = sweep.plan.state
        sweeps.append(
            {
                "sweep": name,
                "has_ended": sweep_has_ended(state),
                **sweep.counts,
                "seconds_left": sweep.seconds_left,
                "jobs": [
                    {
                        "id": job.job,
                        "state": job.state,
                        "reason": (job.why_hopeless or job.reason) if job.state == "PENDING" else None,
                    }
                    for job in jobs
                    if job.is_of(name) and job.is_live
                ],
                "answer": answer_as_json(state, answer_sweep(state), config.pricing),
            }
        )
    return {"sweeps": sweeps, "studies": study_counts(config, results)}


def describe_other_run(config: Config, file: Path, results: Path) -> str:
    """Why the progress by a config file is not that of a run with these results; "" if nothing says so."""
    if not results.exists():
        return f"{results.absolute()} does not exist: nothing has run there (--results names the results of a run)"
    copies = list((results / "configs").glob("*.json"))
    if not copies or config_copy(config, results) in copies:
        return ""
    last = max(copies, key=lambda copy: copy.stat().st_mtime)
    return f"{file} as it is now has not run with these results: the config of the last run is {last}"


def sweep_has_ended(state: History) -> bool:
    """Whether nothing of a sweep is left to run, or the run that was to run it has ended.

    Nobody knows of a run that is killed whether it goes on.
    """
    return state.requests.has_last_run_ended or not (state.unfinished or state.fold.live)


@dataclass(frozen=True)
class SweepProgress:
    """How far a sweep is."""

    plan: Plan
    sessions: list[Session]  # of drivers that run trials
    attempts: list[Attempt]  # that run: without an end, and their driver was not killed

    @cached_property
    def counts(self) -> dict[str, int]:
        """The trials, by what has become of them."""
        state = self.plan.state
        pending = self.plan.forecast.pending
        running = len({attempt.trial for attempt in self.attempts}.intersection(pending))
        failed = sum(state.record(name).has_failed for name in pending)
        ends = [end.outcome for end in state.ends]
        return {
            "finished": ends.count(TrialStatus.FINISHED),
            "stopped": ends.count(TrialStatus.STOPPED),
            "diverged": ends.count(TrialStatus.DIVERGED),
            "running": running,
            "failed": failed + ends.count(TrialStatus.UNREADABLE),
            "pending": len(pending) - running - failed,
            "of": len(state.trials),
        }

    @property
    def seconds_left(self) -> float | None:
        """Predicted seconds until the last trial ends, on the slots of the jobs that run trials; None if unknown."""
        seconds = self.plan.forecast.seconds
        slots = sum(session.info.slots or 0 for session in self.sessions)
        if not slots or not seconds:
            return self.plan.predicted_seconds
        now = time.time()
        elapsed = {attempt.trial: now - attempt.start for attempt in self.attempts}
        pending = sorted(self.plan.forecast.pending, key=lambda name: name not in elapsed)  # those that run come first
        return makespan([max(0.0, seconds[name] - elapsed.get(name, 0.0)) for name in pending], slots)

    @property
    def time_left(self) -> str:
        """The same in words; `-` if nothing is left."""
        if not self.plan.forecast.pending:
            return "-"
        return "unknown yet" if self.seconds_left is None else format_duration(self.seconds_left)

    @property
    def is_live(self) -> bool:
        """Whether all drivers that run trials have given a sign of life within a minute."""
        beats = [beat_file(self.plan.state.folder / SESSIONS, session.name) for session in self.sessions]
        with suppress(FileNotFoundError):
            return all(beat.stat().st_mtime > time.time() - CLOCKS_SECONDS for beat in beats)
        return False


def read_progress(config: Config, name: str, results: Path, fold: Fold) -> SweepProgress:
    """How far a sweep is, from the new events of its journals."""
    plan = plan_sweep(config, name, results, fold=fold)
    sessions = [session for session in plan.state.sessions if session.opened and may_run(session)]
    opened = {key for session in sessions for key in session.opened}
    last = [attempts[-1] for attempts in plan.state.attempts.values()]
    return SweepProgress(plan, sessions, [each for each in last if (each.trial, each.number) in opened])


def study_counts(config: Config, results: Path) -> list[dict[str, str | int]]:
    """How many runs of each scaling study are trained."""
    counts = list[dict[str, str | int]]()
    for name, study in config.scaling.items():
        runs = [run for scale in study.scales for run in study.runs(scale)]
        trained = sum(is_trained(study, run, results / "scaling" / name, results) for run in runs)
        counts.append({"study": name, "trained": trained, "of": len(runs)})
    return counts


def may_run(session: Session) -> bool:
    """Whether this driver may still run: its walltime has not passed, and its process, if on this node, exists."""
    info = session.info
    now = time.time()
    if info.walltime_seconds is not None:
        limit = session.job_start + info.walltime_seconds + CLOCKS_SECONDS
        if session.end <= limit < now:  # with a later event, the walltime was extended
            return False
    if info.process is None or info.node != host.node_name():
        return True
    try:
        return psutil.Process(info.process).create_time() <= session.start + CLOCKS_SECONDS  # or it is another one
    except psutil.NoSuchProcess:
        return False
