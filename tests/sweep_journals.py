"""Journals and claims of a sweep as its sessions leave them, and what a session sees of them."""

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from trainyard.config.config import Data
from trainyard.config.load import check_config
from trainyard.config.trial_status import TrialStatus
from trainyard.packing.failure_policy import FailurePolicy
from trainyard.packing.messages import WorkerSetup
from trainyard.packing.session_watch import SessionWatch
from trainyard.packing.sweep_run import SweepRun
from trainyard.packing.time_limits import TimeLimits
from trainyard.packing.trial_claims import TrialClaims
from trainyard.planning.attempts import Attempt, Attempts, Fold, update_attempts
from trainyard.planning.claims import ClaimLog
from trainyard.planning.history import History
from trainyard.planning.journal import (
    SESSIONS,
    Ended,
    Event,
    Journal,
    Started,
    Suggested,
    TrialEvent,
    decode,
    journal_files,
)
from trainyard.utils.event_log import read_decoded, read_events
from trainyard.utils.locks import Holder

SWEEP = {"command": "true {x}", "grid": {"x": [1, 2]}}


@contextmanager
def session_of(folder: Path) -> Iterator[Journal]:
    """The journal of a new session of the sweep in `folder`, which ends as it should."""
    with Journal.of_new_session(folder) as journal:
        yield journal
        journal.leave()


@contextmanager
def killed_session(folder: Path, *trials: str) -> Iterator[Journal]:
    """The journal of a session that claims these trials, and whose process on this node is killed afterwards."""
    with Journal.of_new_session(folder) as journal:
        log = ClaimLog(folder)
        log.read()
        assert log.append(journal.session, take=dict.fromkeys(trials, 1))
        yield journal
    ended = replace(Holder.this_process(), started=0)  # as if another process had its PID now
    (folder / SESSIONS / f"{journal.session}.beat").write_bytes(ended.encode())


def record_draws(folder: Path, *draws: Suggested) -> None:
    """A session of the sweep in `folder` draws configurations, and ends."""
    with Journal.of_new_session(folder) as journal:
        log = ClaimLog(folder)
        log.read()
        assert log.append(journal.session, draws=draws)
        journal.leave(has_claims=True)


def write_session(folder: Path, records: Iterable[dict[str, Any]], *, number: int = 0, order_job: int = 0) -> Path:
    """Write JSON objects as the journal of a session of a job that does not end; returns its path."""
    path = folder / SESSIONS / f"{order_job}-local.0-{number:08d}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record, separators=(",", ":")) + "\n" for record in records))
    return path


def record_attempt(journal: Journal, trial: str, **end: Any) -> None:
    """Record the first attempt at a trial, and how it ended: finished after a second, unless `end` says otherwise."""
    journal.record(Started(trial=trial, attempt=1))
    journal.record(Ended(trial=trial, attempt=1, **{"status": TrialStatus.FINISHED, "seconds": 1.0} | end))


def journal_text(folder: Path) -> str:
    """The lines of all journals of the sweep in `folder`."""
    return "".join(path.read_text() for path in journal_files(folder))


def read_records(folder: Path) -> list[dict[str, Any]]:
    """The events of all journals of the sweep in `folder` as JSON objects, by time."""
    return sorted((each for path in journal_files(folder) for each in read_events(path)), key=lambda each: each["time"])


def read_journal(folder: Path) -> list[Event]:
    """The same, decoded: all events of the sweep in `folder`, also those of sessions that were given up."""
    found = [event for path in journal_files(folder) for event in read_decoded(path, decode)]
    return sorted(found, key=lambda event: event.time)


def attempts_in(folder: Path) -> list[Attempt]:
    """The attempts at all trials of the sweep in `folder`, by their start."""
    return sorted(Fold(folder).update().attempts.values(), key=lambda attempt: attempt.start)


def fold_attempts(events: Iterable[Event]) -> list[Attempt]:
    """The attempts of events, in the order in which they started."""
    found: Attempts = {}
    for event in events:
        if isinstance(event, TrialEvent):
            update_attempts(found, event)
    return list(found.values())


def decode_all(records: Iterable[dict[str, Any]]) -> list[Event]:
    """The events of JSON objects; unknown kinds are skipped."""
    return [event for record in records if (event := decode(record)) is not None]


def claims_beside(journal: Journal, state: History | None = None) -> TrialClaims:
    """The trials of a sweep as the session of this journal shares them; by default, of a sweep with two trials."""
    folder = journal.path.parent.parent
    if state is None:
        sweep = check_config({"sweeps": {"s": SWEEP}}).sweeps["s"]
        state = History("s", sweep, "no dataset", folder, Fold(folder).update())
    return TrialClaims(state, journal, SessionWatch(journal.path.parent, journal.session))


def run_beside(journal: Journal, state: History | None = None, **parts: Any) -> SweepRun:
    """What the session of this journal shares while it runs trials without a deadline; see `claims_beside`."""
    claims = parts.pop("claims", None) or claims_beside(journal, state)
    common = {
        "setup": WorkerSetup(claims.state_now().sweep, folder=journal.path.parents[1], data=Data()),
        "limits": TimeLimits(None, can_resume=True),
        "failures": FailurePolicy(retries=1),
    }
    return SweepRun(state=claims.state_now(), journal=journal, claims=claims, **common | parts)
