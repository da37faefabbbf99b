"""The fold of a sweep's journal: attempts at trials, runs of the driver, and what else its events record."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from trainyard.config.trial_status import CONCLUSIVE, WITH_RESULT, TrialStatus
from trainyard.planning.journal import (
    Ended,
    Epoch,
    Event,
    FlopsCounted,
    GpuFraction,
    Location,
    MicroBatchHalved,
    Reread,
    Resumed,
    SessionStarted,
    SlotStarted,
    Started,
    Suggested,
    TrialEvent,
    decode,
)
from trainyard.programs.metrics import join_rows, merge_row
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
    expected_seconds: float | None = None  # predicted at its start
    gpus_per_trial: float = 1.0
    outcome: TrialStatus = TrialStatus.RUNNING
    seconds: float | None = None
    error: str = ""
    log: str = ""  # file with details
    metrics: dict[str, float] = field(default_factory=dict)
    epochs: list[dict[str, Any]] = field(default_factory=list)
    epoch_times: dict[int, float] = field(default_factory=dict)  # by epoch: Unix seconds of its first report
    resumed: CheckpointFile | None = None  # the checkpoint it resumed from
    metrics_digest: str | None = None  # of the `metrics` rules that read its output, if all of it was read
    is_halved: bool = False  # whether its micro-batch did not fit into the GPU's memory
    early: str = ""  # why it was stopped early, if its outcome is another one; else `error` has the reason
    rule: dict[str, Any] | None = None  # of early stopping, that stopped it
    stopped_at: float | None = None  # the value of that rule's metric then; None if it was no finite number
    failure: str = ""  # the error with which it failed after it had diverged


Attempts = dict[tuple[str, int], Attempt]  # by trial and number, in the order in which they started


def fold_attempts(events: Iterable[Event]) -> list[Attempt]:
    """The attempts of events, in the order in which they started."""
    found: Attempts = {}
    for event in events:
        if isinstance(event, TrialEvent):
            update_attempts(found, event)
    return list(found.values())


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
            expected_seconds=event.expected_seconds,
            gpus_per_trial=event.gpus_per_trial,
        )
        return found[key]
    if key not in found:  # its start is damaged
        before = found.get((event.trial, event.attempt - 1))
        start = event.time - (event.seconds or 0.0 if isinstance(event, Ended) else 0.0)
        found[key] = Attempt(*key, start, start, generation=before.generation if before else 0)
    _apply(found[key], event)
    return found[key]


def _apply(attempt: Attempt, event: TrialEvent) -> None:
    time = max(attempt.start, event.time)  # the clock may have been set back
    match event:
        case Ended():
            if attempt.outcome == TrialStatus.RUNNING:  # a driver that is killed may record a second end
                _end(attempt, event)
        case Reread():  # recorded long after the end
            if attempt.outcome == TrialStatus.STOPPED:
                attempt.early = attempt.error
            attempt.outcome, attempt.error = TrialStatus(event.outcome), event.error
            attempt.failure = attempt.failure if attempt.outcome == TrialStatus.DIVERGED else ""  # it is the error now
            attempt.epochs, attempt.metrics, attempt.metrics_digest = event.rows, event.metrics, event.metrics_digest
            last = max(attempt.epoch_times, default=-1)
            found_now = [row["epoch"] for row in event.rows if row["epoch"] > last]
            if attempt.outcome == TrialStatus.INTERRUPTED:  # its driver was killed before it read them
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
    attempt.metrics = event.metrics or {}
    attempt.metrics_digest, attempt.rule = event.metrics_digest, event.rule
    attempt.stopped_at = attempt.metrics.get(event.rule["metric"]) if event.rule else None
    attempt.early = event.early or ""


class Fold:
    """What is known about a sweep by its journal; `update` reads the lines that were appended since."""

    def __init__(self, path: Path) -> None:
        self._reader = Reader(path, decode)
        self._reset()

    def _reset(self) -> None:
        self.attempts: Attempts = {}
        self.sessions: list[Session] = []
        self.suggested: list[Suggested] = []
        self.flops: dict[str, float] = {}  # FLOPs by trial
        self.gpu_fraction: GpuFraction | None = None  # for `gpus_per_trial: auto`

    def update(self) -> "Fold":
        """Read the new lines; all lines, if the journal was replaced."""
        if self._reader.restarts():
            self._reset()
        for event in self._reader.new():
            self._apply(event)
        return self

    def _apply(self, event: Event) -> None:
        update_sessions(self.sessions, event)
        match event:
            case TrialEvent():
                update_attempts(self.attempts, event)
            case Suggested():
                self.suggested.append(event)
            case FlopsCounted(flops=flops):
                self.flops |= flops
            case GpuFraction():
                self.gpu_fraction = event


def group_by_trial(attempts: Iterable[Attempt]) -> dict[str, list[Attempt]]:
    """Attempts of each trial, oldest first."""
    grouped: dict[str, list[Attempt]] = {}
    for attempt in attempts:
        grouped.setdefault(attempt.trial, []).append(attempt)
    return grouped


_FINISHED: Final = frozenset({TrialStatus.FINISHED})
_RESULTS: Final = {  # by whether attempts that were stopped early, and those that diverged, are admitted
    (False, False): _FINISHED,
    (True, False): WITH_RESULT,
    (False, True): _FINISHED | {TrialStatus.DIVERGED},
    (True, True): CONCLUSIVE,
}


def find_result(
    attempts: Iterable[Attempt], generation: int = 0, *, early: bool = False, diverged: bool = False
) -> Attempt | None:
    """The latest finished attempt of at least this generation (`retrain`), or None.

    `early` and `diverged` admit attempts that were stopped early or diverged.
    """
    allowed = _RESULTS[early, diverged]
    counting = [each for each in attempts if each.outcome in allowed and each.generation >= generation]
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
    before: int = 0  # epochs up to the checkpoint from which it resumed
    times: list[tuple[float, int]] = field(default_factory=list)  # Unix seconds and number of each epoch


def epochs_before(earlier: Sequence[ReportedEpochs], checkpoint: CheckpointFile) -> int:
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


@dataclass
class Session:
    """One run of the driver: one Slurm job, or one process on a machine without Slurm."""

    info: SessionStarted
    first_start: float | None = None  # of the first trial, Unix seconds
    last_end: float = 0.0  # of a trial
    end: float = 0.0  # time of the last event
    attempts: list[tuple[str, int]] = field(default_factory=list)  # trial and number
    slot_startups: list[float] = field(default_factory=list)  # seconds in which a slot's worker process started

    @property
    def start(self) -> float:
        """Unix seconds."""
        return float(self.info.time)

    @property
    def startup_seconds(self) -> float | None:
        """From the start of the driver to its first trial; None if it had none."""
        return None if self.first_start is None else self.first_start - self.start


def update_sessions(found: list[Session], event: Event) -> None:
    """Apply one more event to the runs of the driver."""
    if isinstance(event, SessionStarted):
        found.append(Session(event, end=event.time))
        return
    if not found or isinstance(event, Reread):  # which a later run records, possibly without a session of its own
        return
    session, end = found[-1], event.time
    match event:
        case Started():
            session.attempts.append((event.trial, event.attempt))
            session.first_start = session.first_start or event.time
        case Ended():
            end = event.ended or event.time  # the end of an attempt whose driver was killed is recorded by the next one
            session.last_end = max(session.last_end, end)
        case GpuFraction(slots=slots, gpus_per_trial=share):
            session.info = replace(session.info, slots=slots, gpus_per_trial=share)
        case SlotStarted():
            session.slot_startups.append(event.startup_seconds)
    session.end = max(session.end, end)
