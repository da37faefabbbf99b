"""The journal of a sweep: one JSON line per event, appended by the one driver that holds the lock, never rewritten.

Everything known about trials is a fold over it: the pending set, `trials.csv`, `timeline.csv`, the Gantt chart, the
live status and the evidence for the next plan.

    {"event": "started", "trial": "3f2a...", "attempt": 1, "time": 1730000000.0, "node": "n1", "gpu": "0", ...}

Events of a trial: `started`, `resumed` (from which checkpoint of a command), `epoch` (a row of metrics; of the same
epoch again, more of that row), `halved` (its micro-batch did not fit the memory), then one that ends the attempt:
`finished`, `stopped` (early, since others were better), `diverged` (its loss, or the metric that counts, became NaN or
infinite; `early` tells why its program was ended, if it was), `unreadable` (its program ended well, but no metrics were
found in what it said), `failed` or `interrupted`.
After its end there may be `reread`: its kept output, read with other `metrics`; the last such event counts. Events of
the driver: `session` (it begins), `ray_up` (Ray can hand out slots), `slot_up`, `slot_down`, `work` (the FLOPs of
trials, counted before any has run), `share` (how many trials share a GPU from now on, and what showed that),
`suggested` (a search has drawn a configuration).
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from trainyard.config.trial_status import ENDED, TrialStatus
from trainyard.programs.metrics import add_row
from trainyard.utils.jsonl import Event, EventLog


class Journal(EventLog):
    """Appends to the journal of a sweep; get one from `opened`, which holds the lock."""

    def append(self, event: str, *, durable: bool = False, **fields: Any) -> Event:
        """Write one event with the time now; it is on the disk when this returns if `durable` or it ends an attempt."""
        return super().append(event, durable=durable or event in ENDED, **fields)


# ---- folds


@dataclass(slots=True)
class Attempt:
    """One attempt at a trial. `end` is that of the last event seen, also if the attempt is still open."""

    trial: str
    number: int
    start: float  # Unix seconds
    end: float
    where: dict[str, Any] = field(default_factory=dict)  # job, node, gpu, slot
    generation: int = 0  # the `retrain` number that it was trained for
    expected_seconds: float | None = None  # when it started
    gpus_per_trial: float = 1.0  # on which it ran
    outcome: TrialStatus = TrialStatus.RUNNING
    seconds: float | None = None
    error: str = ""
    log: str = ""  # where more is said of it
    metrics: dict[str, float] = field(default_factory=dict)
    epochs: list[dict[str, Any]] = field(default_factory=list)
    told_at: dict[int, float] = field(default_factory=dict)  # by epoch: Unix seconds at which it was first told
    resumed: dict[str, Any] = field(default_factory=dict)  # the checkpoint that it resumed from, if any
    heard: str | None = None  # digest of the `metrics` that they were read with; None where the journal does not say
    early: str = ""  # why its program was ended before it had done its work; of what was `stopped`, `error` tells it
    later: Callable[[], None] | None = field(default=None, repr=False, compare=False)  # reads DETAILS that are not set

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """The value of a detail that was left in the journal (`folding`) until now."""
            if name not in DETAILS or self.later is None:
                raise AttributeError(f"an attempt has no {name}")
            self.later()
            return getattr(self, name)


DETAILS: Final = ("metrics", "epochs", "told_at")  # most of a journal
WHERE = ("job", "node", "gpu", "slot", "gpu_model", "device")


def attempts(events: Iterable[Event]) -> list[Attempt]:
    """Fold events into attempts, in the order in which they started."""
    found: dict[tuple[str, int], Attempt] = {}
    for event in events:
        take_attempt(found, event)
    return list(found.values())


def take_attempt(found: dict[tuple[str, int], Attempt], event: Event) -> None:
    """Take one more event into attempts, by trial and number."""
    if "trial" not in event:
        return
    key = (event["trial"], event["attempt"])
    if event["event"] == "started":
        where = {name: event.get(name, "") for name in WHERE}
        generation = event.get("generation", 0)
        found[key] = Attempt(*key, event["time"], event["time"], where=where, generation=generation,
                             expected_seconds=event.get("expected_seconds"),
                             gpus_per_trial=event.get("gpus_per_trial", 1.0))  # fmt: skip
    elif key in found:
        _apply(found[key], event)


def _apply(attempt: Attempt, event: Event) -> None:
    if event["event"] == "reread":  # long after its end
        attempt.outcome, attempt.error = TrialStatus(event["outcome"]), event["error"]
        attempt.epochs, attempt.metrics, attempt.heard = event["rows"], event["metrics"], event["heard"]
        return
    if event["event"] in ENDED and attempt.outcome != TrialStatus.RUNNING:
        return  # a driver that is told to end while it writes an end may write another one
    attempt.end = event["time"]
    if event["event"] == "epoch":
        add_row(attempt.epochs, event["metrics"])
        attempt.told_at.setdefault(event["metrics"].get("epoch", len(attempt.epochs)), event["time"])
    elif event["event"] == "resumed":
        attempt.resumed = event["checkpoint"]
    elif event["event"] in ENDED:
        attempt.outcome = TrialStatus(event["event"])
        attempt.seconds = event.get("seconds")
        attempt.error = event.get("error", "") or event.get("why", "")
        attempt.log = event.get("log", "")
        attempt.metrics = event.get("metrics", {})
        attempt.heard = event.get("heard")
        if attempt.outcome == TrialStatus.DIVERGED:
            # Old journals record only the exit code of a program that was ended early.
            attempt.early = event.get("early", "") or ("it was ended early" if event.get("exit_code") else "")
        attempt.end = event.get("ended") or event["time"]


def by_trial(all_attempts: Iterable[Attempt]) -> dict[str, list[Attempt]]:
    """Attempts of each trial, oldest first."""
    grouped: dict[str, list[Attempt]] = {}
    for attempt in all_attempts:
        grouped.setdefault(attempt.trial, []).append(attempt)
    return grouped


def result_of(
    tries: Iterable[Attempt], generation: int = 0, *, early: bool = False, diverged: bool = False
) -> Attempt | None:
    """The latest finished attempt that counts for this `retrain` number, or None.

    Also one that was stopped `early` or that `diverged`, if given.
    """
    allowed = {TrialStatus.FINISHED: True, TrialStatus.STOPPED: early, TrialStatus.DIVERGED: diverged}
    counting = [each for each in tries if allowed.get(each.outcome) and each.generation >= generation]
    return counting[-1] if counting else None


def parts(tries: Iterable[Attempt], last: Attempt) -> list[tuple[Attempt, float]]:
    """The attempts that an attempt continued, oldest first, and the seconds of each that it did not have to repeat.

    These end with the checkpoint that it resumed from, or else with the epoch before the first that it told. What
    Trainyard's own loop resumes tells all epochs and seconds itself: it has no parts.
    """
    found: list[tuple[Attempt, float]] = []
    before = [each for each in tries if each.number < last.number and each.generation == last.generation]
    current, at = last, _checkpoint_time(last)
    for attempt in reversed(before):
        kept = at if current.resumed else _told_before(attempt, current)
        if kept is None:
            break
        if kept >= attempt.start:
            found.append((attempt, min(kept, attempt.end) - attempt.start))
            current, at = attempt, _checkpoint_time(attempt)
    return found[::-1]


def _checkpoint_time(attempt: Attempt) -> float | None:
    """Unix seconds at which the checkpoint was written that an attempt resumed from."""
    return attempt.resumed["modified_ns"] / 1e9 if attempt.resumed else None


def _told_before(attempt: Attempt, later: Attempt) -> float | None:
    """Unix seconds at which an attempt told the epoch before the first one of a later attempt, if it did."""
    first = later.epochs[0].get("epoch", 1) if later.epochs else 1
    told = [epoch for epoch in attempt.told_at if epoch < first]
    return attempt.told_at[max(told)] if told else None


def whole_seconds(tries: Iterable[Attempt], last: Attempt) -> float | None:
    """What an attempt took, with what it continued: what the trial takes if nothing interrupts it."""
    return None if last.seconds is None else last.seconds + sum(seconds for _, seconds in parts(tries, last))


def whole_epochs(tries: Iterable[Attempt], last: Attempt) -> list[dict[str, Any]]:
    """The rows of an attempt, after those of earlier epochs in the attempts that it continued."""
    rows = list(last.epochs)
    for attempt, _ in reversed(parts(tries, last)):
        first = rows[0].get("epoch", 1) if rows else math.inf
        rows = [row for row in attempt.epochs if row.get("epoch", math.inf) < first] + rows
    return rows


@dataclass
class Session:
    """One run of the driver: one job, where Slurm runs it."""

    began: dict[str, Any]  # its event `session`
    first_start: float | None = None  # of a trial, Unix seconds
    last_end: float = 0.0  # of a trial
    end: float = 0.0  # of all that was heard
    attempts: list[tuple[str, int]] = field(default_factory=list)  # trial and number
    slot_startups: list[float] = field(default_factory=list)  # seconds in which the process of a slot came up

    @property
    def start(self) -> float:
        """Unix seconds."""
        return float(self.began["time"])

    @property
    def startup_seconds(self) -> float | None:
        """From its beginning to its first trial; None if it had none."""
        return None if self.first_start is None else self.first_start - self.start


def sessions(events: Iterable[Event]) -> list[Session]:
    """Fold events into runs of the driver."""
    found: list[Session] = []
    for event in events:
        take_session(found, event)
    return found


def take_session(found: list[Session], event: Event) -> None:
    """Take one more event into runs of the driver."""
    if event["event"] == "session":
        found.append(Session(event, end=event["time"]))
    elif found:
        _take_part(found[-1], event)


def _take_part(session: Session, event: Event) -> None:
    if event["event"] == "reread":  # by a later run, which may have no session of its own
        return
    time_of_it = event.get("ended") or event["time"]  # an attempt that died with its driver was ended by the next
    session.end = max(session.end, time_of_it)
    if event["event"] == "share":
        session.began |= {name: event[name] for name in ("slots", "gpus_per_trial")}
    elif event["event"] == "slot_up":
        session.slot_startups.append(sum(value for name, value in event.items() if name.endswith("_seconds")))
    elif event["event"] == "started":
        session.attempts.append((event["trial"], event["attempt"]))
        session.first_start = session.first_start or event["time"]
    elif event["event"] in ENDED:
        session.last_end = max(session.last_end, time_of_it)
