"""The fold of a sweep's journals: attempts at trials, runs of the driver, and what else their events record."""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, NamedTuple

from trainyard.config.sweep import Slots
from trainyard.config.trial_status import FINAL, TrialStatus
from trainyard.config.user_programs import INCOMPLETE
from trainyard.planning.claims import ClaimLog, GivenUp, Take
from trainyard.planning.journal import (
    SESSIONS,
    BudgetReached,
    Ended,
    Epoch,
    Event,
    FlopsCounted,
    JsonObject,
    Left,
    Location,
    Released,
    Reread,
    Resumed,
    Row,
    SessionStarted,
    SlotStarted,
    Started,
    TrialEvent,
    decode,
    journal_files,
    order_job_of,
)
from trainyard.programs.metric_rows import join_rows, merge_row
from trainyard.programs.progress import Progress
from trainyard.programs.runner import CheckpointFile
from trainyard.utils.errors import mentions_gpu_memory
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
    epochs: list[Row] = field(default_factory=list)
    epoch_times: dict[float, float] = field(default_factory=dict)  # by epoch: Unix seconds of its first report
    resumed: CheckpointFile | None = None  # the checkpoint it resumed from
    metrics_digest: str | None = None  # of the `metrics` rules that read its output, if all of it was read
    why: str = ""  # it was stopped early, whatever its outcome is now; "" if it was not
    rule: JsonObject | None = None  # of early stopping, that stopped it
    hidden_error: str = ""  # at the end of its output, although the exit code is 0
    failure: str = ""  # the error with which it failed after it had diverged
    exit_code: int | None = None  # of its program
    progress: Progress | None = None  # the last that its program printed
    units: dict[str, str] = field(default_factory=dict)  # of its metrics that have one, as `ms`
    energy_kwh: float | None = None  # of its GPUs; None if they did not count it
    has_saved: bool = False  # if it was interrupted: as in `Piece`
    is_retried: bool = False  # whether it failed or was not complete, and the trial is run again
    values: Row = field(default_factory=dict)  # of the keys that its config varied

    @property
    def is_incomplete(self) -> bool:
        """Whether its program ended with exit code 0 before it was `complete`."""
        return self.error.startswith(INCOMPLETE)

    @property
    def ran_out_of_memory(self) -> bool:
        """Whether it failed because the memory of its GPU did not suffice: an outcome of its configuration."""
        return self.outcome is TrialStatus.FAILED and mentions_gpu_memory(self.error)

    @property
    def is_readable(self) -> bool:
        """Whether its output tells how it has ended."""
        return self.outcome in FINAL or self.is_incomplete

    @property
    def gpu_model(self) -> str:
        """The type of GPU on which it ran, as Slurm names it, or "cpu"; "" if the GPU has no type."""
        return self.location.gpu_model or ("cpu" if self.location.device == "cpu" else "")


AttemptKey = tuple[str, int]  # trial and number
Attempts = dict[AttemptKey, Attempt]  # in the order in which they started


def update_attempts(attempts: Attempts, event: TrialEvent) -> Attempt:
    """Apply one more event to the attempts; returns its attempt."""
    key = (event.trial, event.attempt)
    if isinstance(event, Started):
        attempts[key] = Attempt(
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
        return attempts[key]
    if key not in attempts:  # its start is damaged
        before = attempts.get((event.trial, event.attempt - 1), Attempt(event.trial, 0, 0.0, 0.0))
        start = event.time - (event.seconds or 0.0 if isinstance(event, Ended) else 0.0)
        attempts[key] = Attempt(*key, start, start, generation=before.generation, takeover=before.takeover)
    _apply(attempts[key], event)
    return attempts[key]


def _apply(attempt: Attempt, event: TrialEvent) -> None:
    time = max(attempt.start, event.time)  # the clock may have been set back
    match event:
        case Ended():
            if attempt.outcome is TrialStatus.RUNNING:
                _end(attempt, event)
        case Epoch(metrics=row):
            attempt.end = max(attempt.end, time)
            merge_row(attempt.epochs, row, resumed=attempt.resumed is not None)
            attempt.epoch_times.setdefault(row.get("epoch", len(attempt.epochs)), time)
        case Resumed(checkpoint=checkpoint):
            attempt.end = max(attempt.end, time)
            attempt.resumed = CheckpointFile(**checkpoint)
        case _:
            attempt.end = max(attempt.end, time)


def _end(attempt: Attempt, event: Ended) -> None:
    attempt.end = max(attempt.start, event.ended or event.time)
    attempt.outcome = event.status
    attempt.seconds = event.seconds
    attempt.error = event.error or ""
    attempt.why = event.why or ""
    attempt.log = event.log or ""
    attempt.failure = event.failure or ""
    attempt.hidden_error = event.hidden_error or ""
    attempt.exit_code = event.exit_code
    attempt.is_retried = bool(event.retried)
    attempt.progress = Progress(**event.progress) if event.progress else None
    attempt.metrics = event.metrics or {}
    attempt.units = event.units or {}
    attempt.metrics_digest = event.metrics_digest
    attempt.rule = event.rule
    attempt.energy_kwh = event.energy_kwh
    attempt.has_saved = bool(event.has_saved)


def read_again(attempt: Attempt, reading: Reread) -> Attempt:
    """An attempt that is over as a later reading of its output knows it.

    If it has ended in another way since, it stays as it is.
    """
    if (reading.outcome is None) is attempt.is_readable:
        return attempt
    outcome = reading.outcome or attempt.outcome
    epoch_times = attempt.epoch_times
    if attempt.metrics_digest is None or outcome is TrialStatus.INTERRUPTED:  # its driver had not read the rest
        last = max(epoch_times, default=-1)
        found_now = [row["epoch"] for row in reading.rows if row["epoch"] > last]
        epoch_times = epoch_times | dict.fromkeys(found_now, attempt.end)
    return replace(
        attempt,
        outcome=outcome,
        error=reading.error if reading.outcome else attempt.error,
        failure=attempt.failure if outcome is TrialStatus.DIVERGED else "",  # it is the error now
        epochs=reading.rows,
        epoch_times=epoch_times,
        metrics=reading.metrics,
        metrics_digest=reading.metrics_digest,
        units=reading.units or {},
    )


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
        self.budgets_reached: list[JsonObject] = []
        self.released: set[tuple[str, int]] = set()  # trials that were given back, with the entry that took them
        self.left = set[str]()  # sessions that have ended as they should
        self._ends: dict[AttemptKey, tuple[str, Ended]] = {}  # in the journals, each with its session
        self._uncommitted: dict[AttemptKey, Ended] = {}  # final ends that the log may not have
        self._unsettled = set[AttemptKey]()  # attempts of which an end was read in a journal
        self._readers: dict[str, Reader[Event]] = {}  # by session
        self._runs: dict[str, Session] = {}  # by name
        self._counts: dict[str, int] = {}  # events that were read, by session
        self.readings: dict[AttemptKey, dict[str, Reread]] = defaultdict(dict)  # the last of each attempt, by rules

    @property
    def sessions(self) -> list["Session"]:
        """The runs of the driver, by their start."""
        return sorted(self._runs.values(), key=lambda run: run.start)

    def run_of(self, session: str) -> "Session | None":
        """The run of the driver in a session; None if it has recorded no start."""
        return self._runs.get(session)

    @property
    def live(self) -> set[str]:
        """The sessions that have claimed trials and have not ended, as far as it was recorded."""
        return self.claims.live - self.left

    def last_attempt(self, trial: str) -> int:
        """The number of the last attempt for which a trial was taken, or that was recorded; 0 if there is none."""
        if owner := self.claims.owners.get(trial):
            return owner.attempt
        number = 0
        while (trial, number + 1) in self.attempts:
            number += 1
        return number

    def end_of(self, trial: str) -> tuple[str, Ended] | None:
        """How the last attempt at a trial has ended, with the session that says so; None if it has not, by itself.

        One that was interrupted may be continued once its session has given it back, unless it is `retried`.
        """
        key = trial, self.last_attempt(trial)
        if committed := self.claims.ends.get(key):
            return self.claims.owners[trial].session, committed
        recorded = self._ends.get(key)
        is_over = recorded and (recorded[1].status is not TrialStatus.INTERRUPTED or recorded[1].retried)
        return recorded if is_over else None

    def is_given_back(self, trial: str, take: Take) -> bool:
        """Whether a trial that was taken and has not ended may be taken again."""
        return take.session in self.left or (trial, take.entry) in self.released or self.claims.is_given_up(take)

    def is_claimed(self, trial: str) -> bool:
        """Whether a session has taken a trial that has not ended, and not given it back."""
        take = self.claims.owners.get(trial)
        return take is not None and not self.end_of(trial) and not self.is_given_back(trial, take)

    def next_attempt(self, trial: str) -> int:
        """The number of an attempt at a trial that is taken now; the same if the last one is known not to have begun.

        It is, by who was there: the session itself, or one that has seen its process end.
        """
        last = self.last_attempt(trial)
        owner = self.claims.owners.get(trial)
        if owner is None or (trial, last) in self.attempts:
            return last + 1
        _, given_up = self.claims.given_up.get(owner.session, (0, GivenUp()))
        is_seen = self.claims.is_given_up(owner) and given_up.is_gone and trial not in given_up.ends
        is_unused = is_seen or owner.session in self.left or (trial, owner.entry) in self.released
        return last if is_unused else last + 1

    def uncommitted(self) -> list[Ended]:
        """The ends in the journals that count in the log once an entry has them."""
        self._uncommitted = {
            key: end
            for key, end in self._uncommitted.items()
            if key not in self.claims.ends and self.claims.is_last(*key)
        }
        return list(filter(self.claims.may_end, self._uncommitted.values()))

    def commit(self, session: str) -> None:
        """Append the ends in the journals to the log, if there are any that it lacks.

        Raises:
            StorageError: they cannot be written.
        """
        while ends := self.update().uncommitted():
            self.claims.append(session, ends=ends)

    def update(self) -> "Fold":
        """Read the new entries and lines; everything, if a file was replaced."""
        self.news()
        return self

    def news(self) -> list[tuple[str, Event]]:
        """Read the new entries and lines, and return the events that are new, each with its session.

        The events of a session are in the order of its journal.
        """
        entries = self.claims.read()
        if not self._find_journals():
            self._reset()
            entries = self.claims.read()
            self._find_journals()
        events = list[tuple[str, Event]]()
        for name in [name for name in self._readers if name not in self.left]:
            events += [(name, event) for event in self._read(name)]
        for entry in entries:
            self._unsettled |= {(end.trial, end.attempt) for end in entry.ends}
            for trial, last in entry.take.items():
                self._unsettled |= {(trial, number) for number in range(1, last) if (trial, number) in self._ends}
        for run in self._runs.values():
            for key in sorted(run.opened):
                if end := self._settle(key, run.name):
                    update_session(run, end)
        for key in self._unsettled:
            self._settle(key)
        self._unsettled.clear()
        return events

    def _find_journals(self) -> bool:
        """Find new journals; returns whether what was read of the others is still there."""
        files = {path.name.removesuffix(".jsonl"): path for path in journal_files(self._folder)}
        named = self.claims.sessions - files.keys()  # a network file system may list them late
        files |= {name: self._folder / SESSIONS / f"{name}.jsonl" for name in named}
        for name in files.keys() - self._readers.keys():
            self._readers[name] = Reader(files[name], decode)
            self._readers[name].restarts()
        is_lost = any(self._readers[name].restarts() for name in self._readers if name not in self.left)
        return not is_lost and self._readers.keys() <= files.keys()

    def _read(self, session: str) -> Iterator[Event]:
        """Apply the new events of a session; returns those that an earlier call has not returned."""
        for event in self._readers[session].new():
            if isinstance(event, SessionStarted):
                self._runs[session] = Session(event, session, end=event.time)
            elif run := self.run_of(session):
                update_session(run, event)
            self._apply(session, event)
            self._counts[session] = count = self._counts.get(session, 0) + 1
            if count > self._returned.get(session, 0):
                self._returned[session] = count
                yield event

    def _apply(self, session: str, event: Event) -> None:
        match event:
            case Reread(trial=trial, attempt=number, rules=rules):
                readings = self.readings[trial, number]
                if rules not in readings or readings[rules].time <= event.time:
                    readings[rules] = event
            case Ended(trial=trial, attempt=number):
                key = trial, number
                self._unsettled.add(key)
                if key not in self.attempts:  # its start is damaged
                    update_attempts(self.attempts, event)
                # The first counts; but a program may be found to have ended by itself after its driver was killed.
                if key not in self._ends or (event.is_final and not self._ends[key][1].is_final):
                    self._ends[key] = session, event
                    if event.is_final:
                        self._uncommitted[key] = event
            case TrialEvent():
                update_attempts(self.attempts, event)
            case Released():
                self.released.add((event.trial, event.claim))
            case Left():
                self.left.add(session)
            case FlopsCounted(flops=flops):
                self.flops |= flops
            case BudgetReached(budget=budget):
                self.budgets_reached.append(budget)

    def _settle(self, key: AttemptKey, session: str = "") -> Ended | None:
        """End an attempt as the log and the journals say by now, if they do; of an open one, `session` runs it."""
        if end := self._find_end(key, session):
            if key in self.attempts:
                self.attempts[key].outcome = TrialStatus.RUNNING
            update_attempts(self.attempts, end)
        return end

    def _find_end(self, key: AttemptKey, session: str) -> Ended | None:
        """The end of an attempt in the log, or else in a journal, which is void once the trial was taken again.

        What a session has left open, or had taken before it was given up, ends as interrupted at its last event or
        output. It may go on: how its attempt ends in truth may be read later.
        """
        trial, number = key
        if committed := self.claims.ends.get(key):
            return committed
        _, recorded = self._ends.get(key, ("", None))
        interrupted = Ended(trial=trial, attempt=number, status=TrialStatus.INTERRUPTED)
        if recorded:
            is_void = recorded.is_final and not self.claims.is_last(trial, number)
            return replace(interrupted, ended=recorded.ended or recorded.time) if is_void else recorded
        take = self.claims.owners.get(trial)
        is_taken_again = take is not None and take.attempt > number
        # If the entry by which the session has taken the trial is not read yet, another one may have had this number.
        is_its_own = take is not None and (take.session, take.attempt) == (session, number)
        is_given_up = take is not None and is_its_own and self.claims.is_given_up(take)
        if not session or not (session in self.left or is_taken_again or is_given_up):
            return None
        _, given_up = self.claims.given_up.get(session, (0, GivenUp()))
        return replace(interrupted, ended=max(self.attempts[key].end, given_up.ends.get(trial, 0.0)))


def group_by_trial(attempts: Iterable[Attempt]) -> dict[str, list[Attempt]]:
    """Attempts of each trial, oldest first."""
    grouped: dict[str, list[Attempt]] = {}
    for attempt in sorted(attempts, key=lambda each: each.number):
        grouped.setdefault(attempt.trial, []).append(attempt)
    return grouped


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
    continued: list[tuple[Attempt, float]] = []
    current = last
    for attempt in attempts_before(attempts, last):
        kept_until = _kept_until(attempt, current)
        if kept_until is None:
            break
        if kept_until >= attempt.start:
            continued.append((attempt, min(kept_until, attempt.end) - attempt.start))
            current = attempt
    return continued[::-1]


def _kept_until(attempt: Attempt, later: Attempt) -> float | None:
    """Unix seconds up to which a later attempt does not repeat an attempt; None if it repeats all of it."""
    if later.resumed:
        return later.resumed.modified_ns / 1e9
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
    reported: list[ReportedEpochs] = []
    for each in attempts:
        before = epochs_before(reported, each.resumed) if each.resumed else 0
        reported.append(ReportedEpochs(each.start, before, [(time, epoch) for epoch, time in each.epoch_times.items()]))
    return reported


class Piece(NamedTuple):
    """An attempt that was interrupted, or that ended with exit code 0 before its program was complete."""

    epoch: float | None  # the last that it has reported
    has_saved: bool  # another checkpoint than the one that it resumed from


UNSAVED: Final = "it has saved no checkpoint"
STALLED: Final = "two attempts in a row have reported no later epoch, or without epochs saved no other checkpoint"
MOST_PIECES: Final = 20  # in a row without epochs: nothing proves that the next one would be the last
ENDLESS: Final = (
    f"{MOST_PIECES} attempts in a row have reported no epoch: correct `complete`, or give `metrics` that find its epoch"
)


def why_given_up(pieces: Sequence[Piece]) -> str:
    """Why a program is not continued after these pieces in a row; "" if it is.

    One makes progress if its last epoch is later than those of the pieces before it. Without epochs, it does if it has
    saved another checkpoint.
    """
    reached = -math.inf
    stalls = 0
    for epoch, has_saved in pieces:
        is_further = has_saved if epoch is None else epoch > reached
        stalls = 0 if is_further else stalls + 1
        reached = max(reached, -math.inf if epoch is None else epoch)
    if stalls > 1:
        return STALLED
    latest = [epoch for epoch, _ in pieces[-MOST_PIECES:]]
    return ENDLESS if len(latest) == MOST_PIECES and set(latest) == {None} else ""


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
    missing = last.seconds - own
    for attempt in attempts_before(attempts, last) if len(parts) == 1 else ():
        parts[attempt.number] = min(missing, attempt.end - attempt.start)
        missing -= parts[attempt.number]
    return parts


def whole_epochs(attempts: Sequence[Attempt], last: Attempt) -> list[Row]:
    """The rows of an attempt, after the rows of the attempts that it continued."""
    return join_rows([*(attempt.epochs for attempt, _ in find_continued(attempts, last)), last.epochs])


def slurm_job_of(session: str) -> str:
    """The Slurm job in the name of a session, with the number of its restarts: `7.0`, or `local.0`."""
    return session.partition("-")[2].rpartition("-")[0]


@dataclass
class Session:
    """One run of the driver: one Slurm job, or one process on a machine without Slurm."""

    info: SessionStarted
    name: str = field(default="", compare=False)  # as its journal's
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


def update_session(session: Session, event: Event) -> None:
    """Apply one more event to a run of the driver."""
    end = event.time
    match event:
        case Started():
            session.attempts.append((event.trial, event.attempt))
            session.opened.add((event.trial, event.attempt))
            session.first_start = session.first_start or event.time
        case Ended():
            end = event.ended or event.time  # the end of an attempt whose driver was killed is recorded by the next one
            session.last_end = max(session.last_end, end)
            session.opened.discard((event.trial, event.attempt))
        case SlotStarted():
            session.slot_startups.append(event.startup_seconds)
            session.first_slot = session.first_slot or event.time
    session.end = max(session.end, end)
