"""Accounting of a sweep: what its jobs requested and used, and what the same trials would cost by other strategies.

"Requested" is what jobs request from the scheduler: it determines the time in the queue. "Used" is what they had, from
their starts to their ends: Slurm charges it, and it costs. "Wasted" is the part of what was used in which no trial ran
that produced a result: start-up, failed attempts and idle slots. The definitions are the same for every strategy
(`planning/strategies.py`).
"""

import logging
import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from trainyard.cluster.slurm_queries import JobRecord, fetch_job_records
from trainyard.config.config import Pricing
from trainyard.config.sweep import Unit
from trainyard.config.trial_status import CONCLUSIVE, FINAL, TrialStatus
from trainyard.planning.added_trials import recorded_sweep
from trainyard.planning.attempts import Attempt, Session, find_parts, whole_seconds
from trainyard.planning.history import History
from trainyard.planning.strategies import PADDING, Strategy, estimate_others, make_strategy
from trainyard.planning.trial_space import TrialSpace
from trainyard.utils.errors import UserError
from trainyard.utils.text import format_duration

if TYPE_CHECKING:  # it takes a second to import, which a dry run does not have
    import pandas as pd

COMPUTED = f"computed from the measured durations of the trials; requests {PADDING:g} times the walltime that they need"
ON_CPUS = "; the trials ran on CPUs: a slot counts as a GPU"
JOB_COLUMNS = ("job", "node", "start", "slots", "nodes", "units", "pending",
               "finished", "stopped", "diverged", "failed", "interrupted", "predicted_seconds",
               "predicted_low_seconds", "predicted_high_seconds", "measured_seconds", "gap", "startup_seconds",
               "requested_seconds", "elapsed_seconds", "used_fraction", "allocated_tres", "running_unit_seconds",
               "failed_unit_seconds", "startup_unit_seconds", "idle_unit_seconds", "basis", "counted", "session",
               "order_job", "code", "submitted", "wait_seconds")  # fmt: skip
NOT_REQUESTED = "; no walltime was requested: elapsed time"
KeptSeconds = Mapping[tuple[str, int], float]  # by trial and number of an attempt
log = logging.getLogger(__name__)


def fetch_records(runs: Sequence[Session]) -> dict[str, JobRecord]:
    """Slurm's accounting of the jobs that ran a sweep, by job ID; empty without accounting."""
    jobs = sorted({run.info.job for run in runs} - {"", "local"})
    if not jobs:
        return {}
    try:
        return fetch_job_records(jobs)
    except UserError as error:
        log.info("Slurm's accounting is not available: %s", error)
        return {}


def conclusive_ends(history: History) -> list[Attempt]:
    """The attempts that ended trials by which the quality of a configuration is known."""
    return [end for end in history.ends if end.outcome in CONCLUSIVE]


def kept_seconds(history: History, ends: Iterable[Attempt]) -> dict[tuple[str, int], float]:
    """Seconds of each attempt that count in the duration of one of `ends`."""
    kept: dict[tuple[str, int], float] = {}
    for end in ends:
        for number, seconds in find_parts(history.attempts[end.trial], end).items():
            kept[end.trial, number] = max(seconds, kept.get((end.trial, number), 0.0))
    return kept


def jobs_table(state: History, runs: Sequence[Session], records: Mapping[str, JobRecord]) -> "pd.DataFrame":
    """One row per job of a sweep, with its prediction and its measurements; times in seconds.

    `finished`, `stopped` (early), `diverged`, `failed` and `interrupted` count the attempts that the job started;
    `failed` includes unreadable output. The prediction is of the whole sweep, so the measured seconds end with the last
    trial of all jobs that ran at the same time; `gap` is measured over predicted seconds, less one, if these ended all
    predicted trials. GPU-seconds of the allocated GPUs (in a sweep without GPUs, CPU-seconds) are split into `running`
    (the `seconds` of attempts with a result or that diverged, and what these continued of interrupted ones), `failed`
    (the rest of all other attempts, from start to end), `startup` (before the first trial) and `idle` (the rest).
    `counted` marks the jobs of strategies.csv: those with results that `retrain` has not overruled, and those that had
    such trials to run and started none. In a sweep with several jobs, the slots of each begin with the number
    `order_job` times `slots`. `submitted` and `wait_seconds`, from then to the start of the job, are known from Slurm's
    accounting.
    """
    import pandas as pd

    ended = [each for attempts in state.attempts.values() for each in attempts if each.outcome in CONCLUSIVE]
    kept = kept_seconds(state, ended)
    rows = [job.row(kept) for job in _measured_jobs(state, runs, records)]
    return _name_units(pd.DataFrame(rows, columns=list(JOB_COLUMNS)), state.sweep.slots.unit)


@dataclass(frozen=True)
class _MeasuredJob:
    """A run of the driver, with Slurm's accounting of its job, if any."""

    state: History
    run: Session
    record: JobRecord | None
    beside: Sequence[Session]  # the runs at the same time, including this one

    def row(self, kept: KeptSeconds) -> dict[str, Any]:
        run = self.run
        requested = self.requested_seconds
        outcomes = Counter(attempt.outcome for attempt in self.attempts)
        running = self.running_unit_seconds(kept)
        failed: float = 0
        for attempt in self.attempts:
            if attempt.outcome not in CONCLUSIVE:
                lost = attempt.end - attempt.start - kept.get((attempt.trial, attempt.number), 0.0)
                failed += lost * self._units_of(attempt)
        after_startup = (self.elapsed_seconds - self.startup_seconds) * self.units
        row: dict[str, Any] = {name: getattr(run.info, name, None) for name in JOB_COLUMNS}
        row |= {
            "start": run.start,
            "units": self.units,
            "finished": outcomes[TrialStatus.FINISHED],
            "stopped": outcomes[TrialStatus.STOPPED],
            "diverged": outcomes[TrialStatus.DIVERGED],
            "failed": outcomes[TrialStatus.FAILED] + outcomes[TrialStatus.UNREADABLE],
            "interrupted": outcomes[TrialStatus.INTERRUPTED] + outcomes[TrialStatus.RUNNING],
            **self._measured(),
            "startup_seconds": run.startup_seconds,
            "requested_seconds": requested,
            "elapsed_seconds": self.elapsed_seconds,
            "used_fraction": self.elapsed_seconds / requested if requested else None,
            "allocated_tres": "",
            "running_unit_seconds": running,
            "failed_unit_seconds": failed,
            "startup_unit_seconds": self.startup_seconds * self.units,
            "idle_unit_seconds": max(0.0, after_startup - running - failed),
            "basis": _basis(self.record),
            "counted": self.is_counted,
            "session": run.name,
            "order_job": run.order_job,
        }
        if self.record:
            row["allocated_tres"] = self.record.allocated_tres
            row["submitted"] = self.record.submit_time
            row["wait_seconds"] = run.job_start - self.record.submit_time
        return row

    @property
    def attempts(self) -> list[Attempt]:
        """The attempts that the job started."""
        return self._attempts_of(self.run)

    def _attempts_of(self, run: Session) -> list[Attempt]:
        attempts = map(self.state.fold.attempts.get, run.attempts)
        return [self.state.as_read(attempt) for attempt in attempts if attempt]

    def _measured(self) -> dict[str, float | None]:
        run = self.run
        predicted = self.run.info.predicted_seconds
        measured = gap = None
        if run.last_end and run.first_start and self.attempts:
            measured = max(other.last_end for other in self.beside) - run.first_start
        final = set()
        for other in self.beside:
            ended = [attempt for attempt in self._attempts_of(other) if attempt.end >= run.start]
            final |= {attempt.trial for attempt in ended if attempt.outcome in FINAL}
        if measured and predicted and len(final) == run.info.pending:
            gap = measured / predicted - 1
        return {"measured_seconds": measured, "gap": gap}

    def running_unit_seconds(self, kept: KeptSeconds) -> float:
        """GPU-seconds of this job that are kept."""
        return sum(kept.get((each.trial, each.number), 0.0) * self._units_of(each) for each in self.attempts)

    def _units_of(self, attempt: Attempt) -> float:
        """GPUs of an attempt; without GPUs, CPUs."""
        return attempt.gpus_per_trial if self.state.sweep.slots.has_gpus else self.units / (self.run.info.slots or 1)

    @property
    def units(self) -> int:
        """GPUs of the job; in a sweep without GPUs, CPUs."""
        return self.run.units(self.state.sweep.slots)

    @property
    def elapsed_seconds(self) -> float:
        return self.record.elapsed_seconds if self.record else self.run.end - self.run.start

    @property
    def startup_seconds(self) -> float:
        """Before the first trial: the whole job if it had none."""
        return self.elapsed_seconds if self.run.startup_seconds is None else self.run.startup_seconds

    @property
    def requested_seconds(self) -> float | None:
        """The requested walltime; None if none was requested."""
        return self.record.requested_seconds if self.record else self.run.info.walltime_seconds

    @property
    def is_counted(self) -> bool:
        """Whether some attempt of the job has not been overruled by `retrain`.

        A job that had trials to run and started none, as for lack of walltime or because other jobs took them, counts
        if trials of its config do.
        """
        sweep = self.state.sweep
        trials = self.state.trials
        if self.run.attempts:
            return any(each.trial in trials and each.generation >= sweep.retrain for each in self.attempts)
        if not self.run.info.pending:
            return False
        own = recorded_sweep(self.state, self.run.info.config)
        if own is None or own == sweep:
            return True
        space = TrialSpace(own, self.state.space.dataset_digest, self.state.fold.claims.draws)
        return own.retrain >= sweep.retrain and not trials.keys().isdisjoint(space.trials)


def _measured_jobs(state: History, runs: Sequence[Session], records: Mapping[str, JobRecord]) -> list[_MeasuredJob]:
    """The jobs of some runs. A record is about the last run of a requeued job; the journal has the others.

    A record of less time than the last run in the journals is about a later run, which found nothing to do, or leaves
    out how long the job was suspended.
    """
    last = {run.info.job: run for run in runs}
    of_last = {
        job: records[job]
        for job, run in last.items()
        if job in records and records[job].elapsed_seconds + 1 >= run.end - run.start  # whole seconds
    }
    return [
        _MeasuredJob(
            state,
            run,
            of_last.get(run.info.job) if run is last[run.info.job] else None,
            [other for other in runs if other.start <= run.end and run.start <= other.end],
        )
        for run in runs
    ]


def _basis(record: JobRecord | None) -> str:
    return "measured: journal and sacct" if record else "measured: journal"


def compare_strategies(state: History, runs: Sequence[Session], records: Mapping[str, JobRecord]) -> list[Strategy]:
    """The rows of strategies.csv: separate jobs and a job array, computed, and packed, as measured.

    Without a requested walltime (on one machine), packed counts as requesting its elapsed time. What it used is that of
    Slurm's accounting, or of the journals without it. Its running seconds are
    those of the results in jobs.csv that count now.
    """
    durations = [whole_seconds(state.attempts[end.trial], end) or 0.0 for end in conclusive_ends(state) if end.seconds]
    jobs = _measured_jobs(state, runs, records)
    counted = [job for job in jobs if job.is_counted]
    startups = [seconds for job in counted for seconds in job.run.slot_startups]
    startup = statistics.median(startups) if startups else 0.0
    units = state.sweep.slots.units_per_trial
    # Without a scheduler, nobody was charged for GPUs.
    is_local = all(job.run.info.job in ("", "local") for job in counted)
    on_cpus = ON_CPUS if is_local and state.counted_unit == "slot" else ""
    computed = estimate_others(durations, units_per_trial=units, startup=startup, basis=COMPUTED + on_cpus)
    kept = kept_seconds(state, conclusive_ends(state))
    runs = [job.run for job in counted]
    busy = [(run.first_start, run.last_end) for run in runs if run.first_start and run.last_end]
    not_requested = "" if all(job.requested_seconds for job in counted) else NOT_REQUESTED
    packed = make_strategy(
        "packed",
        [(job.requested_seconds or job.elapsed_seconds, job.units) for job in counted],
        durations,
        used_unit_seconds=sum(job.elapsed_seconds * job.units for job in counted),
        running_unit_seconds=sum(job.running_unit_seconds(kept) for job in jobs),
        units_total=_most_at_once(runs, [job.units for job in counted]),
        slots=max(1, _most_at_once(runs, [run.info.slots or 1 for run in runs])),
        makespan=covered_seconds(busy),
        startup_unit_seconds=sum(job.startup_seconds * job.units for job in counted),
        basis=_basis(counted[-1].record if counted else None) + not_requested + on_cpus,
    )
    return [*computed, packed]


def describe_cost(state: History, pricing: Pricing) -> str:
    """What the jobs of a sweep used so far, its price, and what they requested; "" before its first job."""
    sessions = state.sessions
    unit = state.sweep.slots.unit
    if not sessions:
        return ""
    packed = compare_strategies(state, sessions, fetch_records(sessions))[-1]
    used = packed.used_unit_seconds
    requested = packed.requested_unit_seconds
    if state.counted_unit == "slot" and all(run.info.job in ("", "local") for run in sessions):
        return f"{format_duration(used)} of slots on CPUs used, no GPU time"
    price = pricing.per_hour(unit)
    cost = "" if price is None else f", {price * used / 3600:,.2f} at {price:g} per {unit}-hour"
    beside = "" if requested == used else f"; {requested / 3600:,.3g} requested"
    return f"{used / 3600:,.3g} {unit}-hours used{cost}{beside}"


def _most_at_once(runs: Sequence[Session], amounts: Sequence[int]) -> int:
    """The largest sum of the amounts of runs at the same time."""
    at = (
        sum(amount for other, amount in zip(runs, amounts, strict=True) if other.start <= run.start <= other.end)
        for run in runs
    )
    return max(at, default=0)


def covered_seconds(spans: Iterable[tuple[float, float]]) -> float:
    """The seconds that one of these spans covers, or several."""
    covered = 0.0
    until = -math.inf
    for start, end in sorted(spans):
        covered += max(0.0, end - max(start, until))
        until = max(until, end)
    return covered


def strategies_table(rows: Sequence[Strategy], unit: Unit = "GPU") -> "pd.DataFrame":
    """One row per strategy, in the order given."""
    import pandas as pd

    return _name_units(pd.DataFrame([asdict(row) for row in rows]), unit)


def _name_units(table: "pd.DataFrame", unit: Unit) -> "pd.DataFrame":
    """The table with the columns of units named: `units` is `gpus`, and `..._unit_seconds` is `..._gpu_seconds`.

    In a sweep without GPUs, these are 0, and further columns at the end are about CPUs.
    """
    of_units = [name for name in table if "unit" in name]
    names = {kind: {name: name.replace("unit", kind) for name in of_units} for kind in ("gpu", "cpu")}
    gpus = table.rename(columns=names["gpu"])
    if unit == "GPU":
        return gpus
    of_cpus = table[of_units].rename(columns=names["cpu"])
    return gpus.assign(**dict.fromkeys(names["gpu"].values(), 0)).join(of_cpus)
