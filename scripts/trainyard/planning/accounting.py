"""The account of a sweep: what its jobs asked for, what became of that, and what other strategies would have cost."""

import logging
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import pandas as pd

from trainyard.cluster.slurm_queries import JobRecord, fetch_job_records
from trainyard.config.trial_status import CONCLUSIVE, FINAL, TrialStatus
from trainyard.planning.attempts import Attempt, Session
from trainyard.planning.strategies import Request, Strategy, job_array, separate_jobs, strategy
from trainyard.planning.sweep_state import SweepState
from trainyard.utils.errors import UserError

COMPUTED = "computed from the measured durations of the trials"
log = logging.getLogger(__name__)


def records_of(runs: Sequence[Session]) -> dict[str, JobRecord]:
    """What Slurm's accounting knows of the jobs that ran a sweep; nothing where there is no accounting."""
    jobs = sorted({run.info.job for run in runs} - {"", "local"})
    if not jobs:
        return {}
    try:
        return fetch_job_records(jobs)
    except UserError as error:
        log.info("no figures of Slurm's accounting: %s", error)
        return {}


def jobs_table(state: SweepState, runs: Sequence[Session], records: Mapping[str, JobRecord]) -> pd.DataFrame:
    """One row per job of a sweep, what was planned beside what became of it; times in seconds.

    `finished`, `stopped` (early), `diverged`, `failed` and `interrupted` count attempts: together all that it began.
    `failed` are also those whose output could not be read, as long as it cannot be. `gap` is measured over predicted,
    less one; it is there only where the job did all that was predicted. GPU-seconds are those of the GPUs that were
    held, split into `running` (the `seconds` of attempts that came to a result, also the one that they diverge),
    `failed` (attempts that did not, from start to end), `startup` (until the first trial) and `idle` (the rest).
    `counted` are jobs that strategies.csv counts: not those whose results have all been overruled.
    """
    return pd.DataFrame([_job_row(state, run, records) for run in runs], columns=list(JOB_COLUMNS))


JOB_COLUMNS = ("job", "node", "start", "slots", "nodes", "gpus", "pending", "finished", "stopped", "diverged", "failed",
               "interrupted", "predicted_seconds",
               "predicted_low_seconds", "predicted_high_seconds", "measured_seconds", "gap", "startup_seconds",
               "requested_seconds", "elapsed_seconds", "used_fraction", "allocated_tres", "running_gpu_seconds",
               "failed_gpu_seconds", "startup_gpu_seconds", "idle_gpu_seconds", "basis", "counted")  # fmt: skip


def _job_row(state: SweepState, run: Session, records: Mapping[str, JobRecord]) -> dict[str, Any]:
    tries = [each for name, number in run.attempts for each in state.attempts.get(name, ()) if each.number == number]
    judged = [each for each in tries if each.outcome in CONCLUSIVE]
    began, record = run.info, records.get(run.info.job)
    gpus = _gpus(run)
    measured = run.last_end - run.first_start if run.first_start and tries else None
    predicted = began.predicted_seconds
    elapsed = _elapsed(run, record)
    requested = _requested(run, record)
    startup = _startup(run, record)
    running = sum(map(_gpu_seconds, judged))
    failed = sum((each.end - each.start) * each.gpus_per_trial for each in tries if each.outcome not in CONCLUSIVE)
    whole = len({each.trial for each in tries if each.outcome in FINAL}) == began.pending
    return {
        "job": began.job,
        "node": began.node,
        "start": run.start,
        "slots": began.slots,
        "nodes": began.nodes,
        "gpus": gpus,
        "pending": began.pending,
        "finished": sum(each.outcome == TrialStatus.FINISHED for each in tries),
        "stopped": sum(each.outcome == TrialStatus.STOPPED for each in tries),
        "diverged": sum(each.outcome == TrialStatus.DIVERGED for each in tries),
        "failed": sum(each.outcome in (TrialStatus.FAILED, TrialStatus.UNREADABLE) for each in tries),
        "interrupted": sum(each.outcome in (TrialStatus.INTERRUPTED, TrialStatus.RUNNING) for each in tries),
        "predicted_seconds": predicted,
        "predicted_low_seconds": began.predicted_low_seconds,
        "predicted_high_seconds": began.predicted_high_seconds,
        "measured_seconds": measured,
        "gap": measured / predicted - 1 if whole and measured and predicted else None,
        "startup_seconds": run.startup_seconds,
        "requested_seconds": requested,
        "elapsed_seconds": elapsed,
        "used_fraction": elapsed / requested if requested else None,
        "allocated_tres": record.allocated_tres if record else "",
        "running_gpu_seconds": running,
        "failed_gpu_seconds": failed,
        "startup_gpu_seconds": startup * gpus,
        "idle_gpu_seconds": max(0.0, (elapsed - startup) * gpus - running - failed),
        "basis": _basis(record),
        "counted": _counts(state, run),
    }


def _gpu_seconds(attempt: Attempt) -> float:
    """What an attempt took, as the trial itself has measured it; not what earlier attempts took that it resumed."""
    return min(attempt.seconds or 0.0, attempt.end - attempt.start) * attempt.gpus_per_trial


def _gpus(run: Session) -> int:
    return run.info.gpus or run.info.slots or 1


def _elapsed(run: Session, record: JobRecord | None) -> float:
    return record.elapsed_seconds if record else run.end - run.start


def _startup(run: Session, record: JobRecord | None) -> float:
    """Until its first trial: all of it, if it had none."""
    return _elapsed(run, record) if run.startup_seconds is None else run.startup_seconds


def _requested(run: Session, record: JobRecord | None) -> float | None:
    """The requested walltime; None if none was requested."""
    return record.requested_seconds if record else run.info.walltime_seconds


def _basis(record: JobRecord | None) -> str:
    return "measured: journal and sacct" if record else "measured: journal"


def strategies_of(state: SweepState, runs: Sequence[Session], records: Mapping[str, JobRecord]) -> list[Strategy]:
    """The rows of strategies.csv: as separate jobs and as an array, worked out, and packed, as it was.

    Where no walltime was asked for (on one machine), packed counts as asking for just what it took. Its running seconds
    are those that jobs.csv has of the results that count now.
    """
    ends = [end for name in state.trials if (end := state.end(name)) and end.outcome in CONCLUSIVE and end.seconds]
    durations = [state.seconds_of(end) or 0.0 for end in ends]
    share = state.share
    counted = [run for run in runs if _counts(state, run)]
    startups = [seconds for run in counted for seconds in run.slot_startups]
    startup = statistics.median(startups) if startups else 0.0
    computed = [make(durations, gpus_per_trial=share, startup=startup, basis=COMPUTED)
                for make in (separate_jobs, job_array)]  # fmt: skip
    return [*computed, _packed(durations, counted, records, running=sum(map(_gpu_seconds, ends)))]


def _counts(state: SweepState, run: Session) -> bool:
    """Whether a job worked on what the results are made of, and not on what has been trained anew since."""
    tries = [(each, state.space.generation(name)) for name, number in run.attempts if name in state.trials
             for each in state.attempts[name] if each.number == number]  # fmt: skip
    return any(each.generation >= generation for each, generation in tries)


def _packed(
    durations: Sequence[float], runs: Sequence[Session], records: Mapping[str, JobRecord], *, running: float
) -> Strategy:
    known = [records.get(run.info.job) for run in runs]
    asked = [_requested(run, record) for run, record in zip(runs, known, strict=True)]
    requests = [Request(seconds=requested or _elapsed(run, record), gpus=_gpus(run))
                for run, record, requested in zip(runs, known, asked, strict=True)]  # fmt: skip
    return strategy(
        "packed",
        requests,
        durations,
        running_gpu_seconds=running,
        gpus_total=max((each.gpus for each in requests), default=0),
        slots=max((run.info.slots or 1 for run in runs), default=1),
        makespan=sum(run.last_end - run.first_start for run in runs if run.first_start and run.last_end),
        startup_gpu_seconds=sum(_startup(run, record) * _gpus(run) for run, record in zip(runs, known, strict=True)),
        basis=_basis(known[-1] if known else None)
        + ("" if all(asked) else "; no walltime was requested: elapsed time"),
    )


def strategies_table(rows: Sequence[Strategy]) -> pd.DataFrame:
    """One row per strategy, in the order given."""
    return pd.DataFrame([asdict(row) for row in rows])
