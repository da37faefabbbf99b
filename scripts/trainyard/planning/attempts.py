"""The fold of a sweep's journals: attempts at trials, runs of the driver, and what else their events record."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from trainyard.config.sweep import Slots
from trainyard.config.trial_status import TrialStatus
from trainyard.planning.claims import ClaimLog
from trainyard.planning.journal import (
    OLD_JOURNAL,
    SESSIONS,
    BudgetReached,
    Ended,
    Epoch,
    Event,
    FlopsCounted,
    GpuFraction,
    JobsSubmitted,
    Left,
    Location,
    MicroBatchHalved,
    Released,
    Reread,
    Resumed,
    SessionStarted,
    SlotStarted,
    Started,
    Suggested,
    TrialEvent,
    decode,
    journal_files,
    order_job_of,
)
from trainyard.programs.metric_rows import join_rows, merge_row
from trainyard.programs.progress import Progress
from trainyard.programs.runner import CheckpointFile
from trainyard.utils.event_log import Reader


@dataclass(slots=True)
class Attempt:
    """One attempt at a trial. The `end` of an open attempt is the time of its last event."""

    trial: str
    number: int
    start: float  # Unix seconds
    end: float
    location: Location = field(default_factory=Location)
    generation: int = 0  # the `retrain` number it ran for
    takeover: int | None = None  # as in `Started`
    expected_seconds: float | None = None  # predicted at its start
    gpus_per_trial: float = 1.0
    outcome: TrialStatus = TrialStatus.RUNNING
    seconds: float | None = None
    error: str = ""
    log: str = ""  # file with details
    metrics: dict[str, float] = field(default_factory=dict)
    epochs: list[dict[str, Any]] = field(default_factory=list)
    epoch_times: dict[float, float] = field(default_factory=dict)  # by epoch: Unix seconds of its first report
    resumed: CheckpointFile | None = None  # the checkpoint it resumed from
    metrics_digest: str | None = None  # of the `metrics` rules that read its output, if all of it was read
    reread: tuple[int, float] = (0, 0.0)  # number and time of the `Reread` that counts
    is_halved: bool = False  # whether its micro-batch did not fit into the GPU's memory
    early: str = ""  # why it was stopped early, if its outcome is another one; else `error` has the reason
    rule: dict[str, Any] | None = None  # of early stopping, that stopped it
    stopped_at: float | None = None  # the value of that rule's metric then; None if it was no finite number
    failure: str = ""  # the error with which it failed after it had diverged
    exit_code: int | None = None  # of its program
    progress: Progress | None = None  # the last that its program printed
    energy_kwh: float | None = None  # of its GPUs; None if they did not count it
    is_retried: bool = False  # whether it failed, and the trial is run again
    values: dict[str, Any] = field(default_factory=dict)  # of the keys that its config varied

    @property
    def gpu_model(self) -> str:
        """The type of GPU on which it ran, as Slurm names it, or "cpu"; "" if the GPU has no type."""
        return self.location.gpu_model or ("cpu" if self.location.device == "cpu" else "")


Attempts = dict[tuple[str, int], Attempt]  # by trial and number, in the order in which they started


def update_attempts(found: Attempts, event: TrialEvent) -> Attempt:
    """Apply one more event to the attempts; returns its attempt."""
    key = (event.trial, event.attempt)
    if isinstance(event, Started):
        found[key] = Attempt(
            *key,
            event.time,
            event.time,
            location=event.location,
            generation=event.generation,
            takeover=event.takeover,
            expected_seconds=event.expected_seconds,
            gpus_per_trial=event.gpus_per_trial,
            values=event.values or {},
        )
        return found[key]
    if key not in found:  # its start is damaged
        before = found.get((event.trial, event.attempt - 1), Attempt(event.trial, 0, 0.0, 0.0))
        start = event.time - (event.seconds or 0.0 if isinstance(event, Ended) else 0.0)
        found[key] = Attempt(*key, start, start, generation=before.generation, takeover=before.takeover)
    _apply(found[key], event)
    return found[key]


def _apply(attempt: Attempt, event: TrialEvent) -> None:
    time = max(attempt.start, event.time)  # the clock may have been set back
    match event:
        case Ended():
            if attempt.outcome == TrialStatus.RUNNING:  # a driver that is killed may record a second end
                _end(attempt, event)
        case Reread():  # recorded long after the end
            if (event.number, event.time) < attempt.reread:
                return
            attempt.reread = event.number, event.time
            if attempt.outcome == TrialStatus.STOPPED:
                attempt.early = attempt.error
            attempt.outcome, attempt.error = TrialStatus(event.outcome), event.error
            attempt.failure = attempt.failure if attempt.outcome == TrialStatus.DIVERGED else ""  # it is the error now
            attempt.epochs, attempt.metrics, attempt.metrics_digest = event.rows, event.metrics, event.metrics_digest
            is_completed = event.seconds is not None
            if is_completed:
                attempt.seconds, attempt.exit_code = event.seconds, 0
                attempt.progress = Progress(**event.progress) if event.progress else None
            last = max(attempt.epoch_times, default=-1)
            found_now = [row["epoch"] for row in event.rows if row["epoch"] > last]
            if is_completed or attempt.outcome == TrialStatus.INTERRUPTED:  # its driver was killed before it read them
                attempt.epoch_times |= dict.fromkeys(found_now, attempt.end)
        case Epoch(metrics=row):
            attempt.end = time
            merge_row(attempt.epochs, row, resumed=attempt.resumed is not None)
            attempt.epoch_times.setdefault(row.get("epoch", len(attempt.epochs)), time)
        case MicroBatchHalved():
            attempt.end, attempt.is_halved = time, True
        case Resumed(checkpoint=checkpoint):
            attempt.end, attempt.resumed = time, CheckpointFile(**checkpoint)
        case _:
            attempt.end = time


def _end(attempt: Attempt, event: Ended) -> None:
    attempt.end = max(attempt.start, event.ended or event.time)
    attempt.outcome = event.status
    attempt.seconds = event.seconds
    attempt.error = event.error or event.why or ""
    attempt.log = event.log or ""
    attempt.failure = event.failure or ""
    attempt.exit_code, attempt.is_retried = event.exit_code, bool(event.retried)
    attempt.progress = Progress(**event.progress) if event.progress else None
    attempt.metrics = event.metrics or {}
    attempt.metrics_digest, attempt.rule = event.metrics_digest, event.rule
    attempt.stopped_at = attempt.metrics.get(event.rule["metric"]) if event.rule else None
    attempt.early = event.early or ""
    attempt.energy_kwh = event.energy_kwh


class Fold:
    """What is known about a sweep by its journals and claims; `update` reads what was appended since."""

    def __init__(self, folder: Path) -> None:
        """`folder`: of the sweep."""
        self._folder = folder
        self._returned: dict[str, int] = {}  # events that `news` has returned, by session
        self._reset()

    def _reset(self) -> None:
        self.claims = ClaimLog(self._folder)
        self.attempts: Attempts = {}
        self.flops: dict[str, float] = {}  # FLOPs by trial
        self.submissions: list[JobsSubmitted] = []
        self.budgets_reached: list[dict[str, Any]] = []
        self.gpu_fractions: dict[str, GpuFraction] = {}  # for `gpus_per_trial: auto`, by GPU model
        self.released: set[tuple[str, int]] = set()  # trials that were given back, with the entry that took them
        self.left = {""}  # sessions that have ended as they should, and the runs of old versions
        self.closed: set[tuple[str, str]] = set()  # trials that have ended for good, with the session that ran them
        self.failed: dict[str, set[str]] = {}  # by trial that has failed for good: the sessions that ran it
        self._readers: dict[str, Reader[Event]] = {}  # by session
        self._closed: set[str] = set()  # sessions of which nothing more is to be read
        self._runs: dict[str, list[Session]] = {}  # of the driver, by session: one each, but for old versions
        self._suggested: list[Suggested] = []  # by old versions
        self._counts: dict[str, int] = {}  # events that were read, by session
        self._rereads: list[Reread] = []  # of attempts whose end was not read yet

    @property
    def sessions(self) -> list["Session"]:
        """The runs of the driver, by their start."""
        return sorted((run for runs in self._runs.values() for run in runs), key=lambda run: run.start)

    @property
    def suggested(self) -> list[Suggested]:
        """The configurations that searches have drawn, in order."""
        return [*self._suggested, *self.claims.draws]

    def run_of(self, session: str) -> "Session | None":
        """The run of the driver in a session; None if it has recorded no start."""
        return next(iter(self._runs.get(session, ())), None)

    def read_bytes(self, session: str) -> int:
        """How many bytes of a session's journal were read."""
        return self._readers[session].offset if session in self._readers else 0

    def is_of_run(self, session: str, run: str) -> bool:
        """Whether a run of Snakemake has started a session."""
        recorded = self.run_of(session)
        return recorded is not None and recorded.info.run == run

    @property
    def live(self) -> set[str]:
        """The sessions that have claimed trials and have not ended, as far as it was recorded."""
        return self.claims.sessions - self.left - self.claims.fences.keys()

    def behind(self) -> set[str]:
        """The sessions that were given up and whose journals are not read up to where they count."""
        return {name for name, fence in self.claims.fences.items() if self.read_bytes(name) < fence.bytes}

    def update(self) -> "Fold":
        """Read the new entries and lines; everything, if a file was replaced or counts in part only."""
        self.news()
        return self

    def news(self) -> list[tuple[str, Event]]:
        """The same; returns the events that were read for the first time, each with its session, in its order."""
        self.claims.read()
        if not self._find_journals():
            self._reset()
            self.claims.read()
            self._find_journals()
        events = [(name, event) for name in self._open_journals() for event in self._read(name)]
        fenced = {name for name, fence in self.claims.fences.items() if self.read_bytes(name) >= fence.bytes}
        for name in (self.left | fenced) - self._closed:
            self._close(name)
            self._closed |= {name} - {""}
        waiting, self._rereads = self._rereads, []
        for reread in waiting:
            self._apply(None, reread)
        return events

    def _find_journals(self) -> bool:
        """Find new journals; returns whether what was read of the others is still there, and counts."""
        paths = journal_files(self._folder)
        files = {"" if path.name == OLD_JOURNAL else path.name.removesuffix(".jsonl"): path for path in paths}
        named = self.claims.sessions - files.keys()  # a network file system may list them late
        files |= {name: self._folder / SESSIONS / f"{name}.jsonl" for name in named}
        for name in files.keys() - self._readers.keys():
            self._readers[name] = Reader(files[name], decode)
            self._readers[name].restarts()
        is_cut = any(self.read_bytes(name) > fence.bytes for name, fence in self.claims.fences.items())
        is_lost = any(self._readers[name].restarts() for name in self._open_journals())
        return not is_cut and not is_lost and self._readers.keys() <= files.keys()

    def _open_journals(self) -> list[str]:
        return [name for name in self._readers if name not in self._closed]

    def _read(self, session: str) -> Iterator[Event]:
        """Apply the new events of a session; returns those that an earlier call has not returned."""
        fence = self.claims.fences.get(session)
        for event in self._readers[session].new(limit=fence.bytes if fence else None):
            update_sessions(self._runs.setdefault(session, []), event, name=session)
            self._apply(session, event)
            self._counts[session] = count = self._counts.get(session, 0) + 1
            if count > self._returned.get(session, 0):
                self._returned[session] = count
                yield event

    def _apply(self, session: str | None, event: Event) -> None:
        match event:
            case Reread() if session != "":
                key = (event.trial, event.attempt)
                if key not in self.attempts or self.attempts[key].outcome is TrialStatus.RUNNING:
                    self._rereads.append(event)  # the session with its end is still to be read
                else:
                    update_attempts(self.attempts, event)
            case Ended(trial=trial, retried=retried):
                update_attempts(self.attempts, event)
                if not retried and event.status is not TrialStatus.INTERRUPTED:
                    self.closed.add((trial, session or ""))
                    if event.status is TrialStatus.FAILED:
                        self.failed.setdefault(trial, set()).add(session or "")
            case TrialEvent():
                update_attempts(self.attempts, event)
            case Released():
                self.released.add((event.trial, event.claim))
            case Left():
                self.left.add(session or "")
            case Suggested():
                self._suggested.append(event)
            case FlopsCounted(flops=flops):
                self.flops |= flops
            case JobsSubmitted():
                self.submissions.append(event)
            case BudgetReached(budget=budget):
                self.budgets_reached.append(budget)
            case GpuFraction():
                known = self.gpu_fractions.get(event.gpu_model or "", event)
                self.gpu_fractions[event.gpu_model or ""] = max(event, known, key=lambda each: each.time)

    def _close(self, session: str) -> None:
        """End the attempts that a session that has ended left open, as interrupted at their last event or output."""
        fence = self.claims.fences.get(session)
        for run in self._runs.get(session, ()):
            for trial, number in sorted(run.opened):
                end = max(self.attempts[trial, number].end, fence.ends.get(trial, 0.0) if fence else 0.0)
                ended = Ended(trial=trial, attempt=number, status=TrialStatus.INTERRUPTED, ended=end)
                update_attempts(self.attempts, ended)
                update_sessions([run], ended)


def group_by_trial(attempts: Iterable[Attempt]) -> dict[str, list[Attempt]]:
    """Attempts of each trial, oldest first."""
    grouped: dict[str, list[Attempt]] = {}
    for attempt in sorted(attempts, key=lambda each: each.number):
        grouped.setdefault(attempt.trial, []).append(attempt)
    return grouped


def find_result(
    attempts: Iterable[Attempt], generation: int = 0, *, of: Collection[TrialStatus] = (TrialStatus.FINISHED,)
) -> Attempt | None:
    """The latest attempt of at least this generation (`retrain`) with one of these outcomes, or None."""
    counting = [each for each in attempts if each.outcome in of and each.generation >= generation]
    return counting[-1] if counting else None


def attempts_before(attempts: Sequence[Attempt], last: Attempt) -> list[Attempt]:
    """The earlier attempts of the same generation, the latest first."""
    before = [each for each in attempts if each.number < last.number and each.generation == last.generation]
    return before[::-1]


def find_continued(attempts: Sequence[Attempt], last: Attempt) -> list[tuple[Attempt, float]]:
    """The attempts that `last` continues, oldest first, with the seconds of each that were not repeated.

    The part of an attempt that was not repeated ends at the checkpoint from which the next one resumed; without a
    checkpoint, at the last epoch before the first one that the next attempt reports. Trainyard's own training loop
    reports all epochs and seconds again when it resumes, so its attempts continue none.
    """
    found: list[tuple[Attempt, float]] = []
    current, checkpoint_time = last, _checkpoint_time(last)
    for attempt in attempts_before(attempts, last):
        kept = checkpoint_time if current.resumed else _last_epoch_before(attempt, current)
        if kept is None:
            break
        if kept >= attempt.start:
            found.append((attempt, min(kept, attempt.end) - attempt.start))
            current, checkpoint_time = attempt, _checkpoint_time(attempt)
    return found[::-1]


def _checkpoint_time(attempt: Attempt) -> float | None:
    """Unix seconds at which the checkpoint was written from which an attempt resumed."""
    return attempt.resumed.modified_ns / 1e9 if attempt.resumed else None


def _last_epoch_before(attempt: Attempt, later: Attempt) -> float | None:
    """Unix seconds at which an attempt reported the last epoch before the first one of a later attempt, if any."""
    first = later.epochs[0].get("epoch", 1) if later.epochs else 1
    reported = [epoch for epoch in attempt.epoch_times if epoch < first]
    return attempt.epoch_times[max(reported)] if reported else None


@dataclass(frozen=True)
class ReportedEpochs:
    """When an attempt reported its epochs."""

    start: float  # of the attempt, Unix seconds
    before: float = 0  # epochs up to the checkpoint from which it resumed
    times: list[tuple[float, float]] = field(default_factory=list)  # Unix seconds and number of each epoch


def epochs_before(earlier: Sequence[ReportedEpochs], checkpoint: CheckpointFile) -> float:
    """The number of epochs up to a checkpoint of an earlier attempt, if the program does not report their numbers.

    A program reports an epoch shortly before or after it saves its checkpoint: the closest report counts.
    """
    saved = checkpoint.modified_ns / 1e9
    of_attempt = next((each for each in reversed(earlier) if each.start <= saved), None)
    if of_attempt is None:
        return 0
    reports = [(of_attempt.start, of_attempt.before), *of_attempt.times]
    return min(reports, key=lambda report: abs(report[0] - saved))[1]


def reported_epochs(attempts: Iterable[Attempt]) -> list[ReportedEpochs]:
    """The same of attempts at a trial, oldest first."""
    found: list[ReportedEpochs] = []
    for each in attempts:
        before = epochs_before(found, each.resumed) if each.resumed else 0
        found.append(ReportedEpochs(each.start, before, [(time, epoch) for epoch, time in each.epoch_times.items()]))
    return found


def whole_seconds(attempts: Sequence[Attempt], last: Attempt) -> float | None:
    """Seconds of an attempt and of the parts it continued: the duration of the trial without interruptions."""
    if last.seconds is None:
        return None
    return last.seconds + sum(seconds for _, seconds in find_continued(attempts, last))


def find_parts(attempts: Sequence[Attempt], last: Attempt) -> dict[int, float]:
    """Seconds of each attempt, by its number, that count in the duration of `last`, including its own.

    `last.seconds` of Trainyard's own loop include those of earlier attempts. As these do not record when the checkpoint
    was written, the latest ones count first.
    """
    if last.seconds is None:
        return {}
    own = min(last.seconds, last.end - last.start)
    parts = {last.number: own} | {attempt.number: seconds for attempt, seconds in find_continued(attempts, last)}
    left = last.seconds - own
    for attempt in attempts_before(attempts, last) if len(parts) == 1 else ():
        parts[attempt.number] = min(left, attempt.end - attempt.start)
        left -= parts[attempt.number]
    return parts


def whole_epochs(attempts: Sequence[Attempt], last: Attempt) -> list[dict[str, Any]]:
    """The rows of an attempt, after the rows of the attempts that it continued."""
    return join_rows([*(attempt.epochs for attempt, _ in find_continued(attempts, last)), last.epochs])


def slurm_job_of(session: str) -> str:
    """The Slurm job in the name of a session, with the number of its restarts: `7.0`, or `local.0`."""
    return session.partition("-")[2].rpartition("-")[0]


@dataclass
class Session:
    """One run of the driver: one Slurm job, or one process on a machine without Slurm."""

    info: SessionStarted
    name: str = field(default="", compare=False)  # as its journal's; "" in the one journal of old versions
    first_start: float | None = None  # of the first trial, Unix seconds
    last_end: float = 0.0  # of a trial
    end: float = 0.0  # time of the last event
    attempts: list[tuple[str, int]] = field(default_factory=list)  # trial and number
    opened: set[tuple[str, int]] = field(default_factory=set)  # those without an end
    slot_startups: list[float] = field(default_factory=list)  # seconds in which a slot's worker process started
    first_slot: float | None = None  # when a slot could run a trial first, Unix seconds

    @property
    def order_job(self) -> int:
        """The number of this job in a sweep with several."""
        return order_job_of(self.name)

    @property
    def start(self) -> float:
        """Unix seconds."""
        return float(self.info.time)

    @property
    def job_start(self) -> float:
        """When its job started, in Unix seconds; or the session itself, if the job is not new or the user's own."""
        return self.start - (self.info.lead_seconds or 0.0)

    def units(self, slots: Slots) -> int:
        """GPUs of its job; in a sweep without GPUs, CPUs, also of a job that had GPUs before the config changed."""
        count = self.info.slots or 1
        if slots.has_gpus:
            return count if self.info.gpus is None else self.info.gpus
        return count * slots.cpus_per_trial if self.info.cpus is None else self.info.cpus

    @property
    def startup_seconds(self) -> float | None:
        """From the start of the driver to its first trial, or until it waited for trials; None if it had none."""
        if self.first_start is None:
            return None
        return min(self.first_start, self.first_slot or self.first_start) - self.start


def update_sessions(found: list[Session], event: Event, *, name: str = "") -> None:
    """Apply one more event to the runs of the driver; `name` is that of the session."""
    if isinstance(event, SessionStarted):
        found.append(Session(event, name, end=event.time))
        return
    if not found or isinstance(event, Reread):  # of an attempt in an earlier run
        return
    session, end = found[-1], event.time
    match event:
        case Started():
            session.attempts.append((event.trial, event.attempt))
            session.opened.add((event.trial, event.attempt))
            session.first_start = session.first_start or event.time
        case Ended():
            end = event.ended or event.time  # the end of an attempt whose driver was killed is recorded by the next one
            session.last_end = max(session.last_end, end)
            session.opened.discard((event.trial, event.attempt))
        case GpuFraction(slots=slots, gpus_per_trial=share):
            session.info = replace(session.info, slots=slots, gpus_per_trial=share)
        case SlotStarted():
            session.slot_startups.append(event.startup_seconds)
            session.first_slot = session.first_slot or event.time
    session.end = max(session.end, end)
