"""Signs of life of the sessions of a sweep: each sets the time of a file every few seconds, and looks at the others.

Only changes of the times count, so clocks need not agree. This module decides when a session is given up; the claims
make this safe at any time.
"""

import logging
import math
import os
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Final, Self

from trainyard.cluster import slurm_queries
from trainyard.planning.journal import order_job_of
from trainyard.utils.errors import storage_errors
from trainyard.utils.locks import Holder

BEAT_SECONDS: Final = 5.0  # between two signs of life, and between two looks at those of others
ENDED_LOOKS: Final = 2  # without a sign of life, after which a job has ended if Slurm reports so, or may have
SILENT_LOOKS: Final = 12  # after which a session counts as dead, whatever Slurm reports
QUERY_SECONDS: Final = 15.0  # between two queries of Slurm about a job
log = logging.getLogger(__name__)


class Life(Enum):
    """What is known about a session."""

    RUNS = "runs"
    UNKNOWN = "unknown"  # it has given no sign of life yet, since this process looks, or for some seconds
    SILENT = "silent"  # for a minute: its node or its file system hangs, or it is suspended
    ENDED = "ended"  # according to Slurm, and it gives no sign of life
    GONE = "gone"  # its process, on this node, has ended


@dataclass
class _Sign:
    """What was seen of a session."""

    holder: Holder | None = None
    modified: int = 0  # nanoseconds
    changes: int = 0
    silent_looks: int = 0
    queried_at: float = -math.inf  # Slurm, on the monotonic clock
    has_ended: bool = False  # by Slurm

    def query_slurm(self) -> None:
        """Query Slurm whether its job runs."""
        if self.holder:
            self.has_ended = slurm_queries.is_given_up(self.holder)


def beat_file(folder: Path, session: str) -> Path:
    """The file whose time a session sets as its sign of life; it is removed at its end."""
    return folder / f"{session}.beat"


class SessionWatch:
    """Gives signs of life of this session, and watches those of others, in threads; use it in a `with` statement."""

    def __init__(self, folder: Path, session: str) -> None:
        """`folder`: of the sessions' files."""
        self._folder = folder
        self._session = session
        self._signs: dict[str, _Sign] = {}
        self._names = set[str]()  # of the others
        self._looked_at = time.monotonic()  # when the last look ended
        self._ended = threading.Event()
        self._lock = threading.Lock()  # for the signs; no thread holds it while it reads a file
        self._paused = 0.0, math.inf  # as `paused_seconds` before the present wait, and when this must end

    def __enter__(self) -> Self:
        with storage_errors(beat_file(self._folder, self._session)):
            self._write_beat()
        # A look at the others may take long: this session gives its own signs of life meanwhile.
        threading.Thread(target=self._beat, name="session-beat", daemon=True).start()
        threading.Thread(target=self._watch, name="session-watch", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        with suppress(OSError):
            beat_file(self._folder, self._session).unlink()

    def _beat(self) -> None:
        while not self._wait():
            with suppress(OSError):
                try:
                    os.utime(beat_file(self._folder, self._session))
                except FileNotFoundError:  # others had given this session up
                    self._write_beat()

    def _write_beat(self) -> None:
        beat_file(self._folder, self._session).write_bytes(Holder.this_process().encode())

    def _watch(self) -> None:
        reported = ""
        while not self._ended.wait(BEAT_SECONDS):
            try:
                self.look()
            except Exception as error:
                if str(error) != reported:
                    reported = str(error)
                    log.warning("a look at the other jobs of this sweep failed, and is repeated: %s", error)

    def _wait(self) -> bool:
        """Wait until the next sign of life is due, and note longer pauses; returns whether this session has ended."""
        self._paused = self.paused_seconds, time.monotonic() + BEAT_SECONDS
        has_ended = self._ended.wait(BEAT_SECONDS)
        self._paused = self.paused_seconds, math.inf
        return has_ended

    @property
    def paused_seconds(self) -> float:
        """Seconds in which this process was stopped, as in a job that Slurm suspends, also just before this call."""
        before, due = self._paused
        late = time.monotonic() - due
        return before + late if late > BEAT_SECONDS else before

    def look(self) -> None:
        """Look at the other sessions. After a pause of this process itself, the count begins again.

        A pause is a long time since the end of the last look: the look itself may take long.
        """
        if time.monotonic() - self._looked_at > 2 * BEAT_SECONDS:
            with self._lock:
                self._signs.clear()
        names = self._names
        for name in names:
            self._look_at(name)
        now = self._looked_at = time.monotonic()
        with self._lock:
            signs = [self._signs[name] for name in names]
        for sign in signs:
            if not sign.holder or sign.has_ended or sign.silent_looks < ENDED_LOOKS:
                continue
            if now - sign.queried_at >= QUERY_SECONDS:
                sign.queried_at = now
                # Slurm may not respond for a minute, in which no look would take place.
                threading.Thread(target=sign.query_slurm, name="query-slurm", daemon=True).start()

    def only(self, sessions: Iterable[str]) -> None:
        """Watch these sessions from now on."""
        self._names = set(sessions)

    def forget(self, session: str) -> None:
        """Remove the sign of life of a session that was given up."""
        with suppress(OSError):
            beat_file(self._folder, session).unlink()

    def _look_at(self, session: str) -> None:
        content = b""
        modified = 0
        # Opening the file makes a network file system query its server, which `stat` does not.
        with suppress(OSError), open(beat_file(self._folder, session), "rb") as file:
            content = file.read()
            modified = os.fstat(file.fileno()).st_mtime_ns
        holder = Holder.parse(content)
        with self._lock:
            sign = self._signs.get(session)
            if sign is None:
                self._signs[session] = _Sign(holder, modified)
                return
            sign.holder = sign.holder or holder  # it may have been read while it was written
            if modified != sign.modified and modified:
                sign.modified = modified
                sign.changes = sign.changes + 1
                sign.silent_looks = 0
            else:
                sign.silent_looks += 1

    def _sign_of(self, session: str) -> _Sign:
        if session not in self._signs:
            self._look_at(session)
        with self._lock:
            return replace(self._signs.get(session, _Sign()))

    def life_of(self, session: str) -> Life:
        """What is known about a session."""
        sign = self._sign_of(session)
        if sign.holder and sign.holder.has_ended():
            return Life.GONE
        is_here = sign.holder is not None and sign.holder.is_here()
        is_predecessor = order_job_of(session) == order_job_of(self._session)
        is_silent = sign.silent_looks >= ENDED_LOOKS
        if is_silent and not is_here and (sign.has_ended or is_predecessor):
            return Life.ENDED
        if sign.silent_looks >= SILENT_LOOKS:
            return Life.SILENT
        is_seen = sign.changes or is_here
        return Life.RUNS if is_seen and not is_silent else Life.UNKNOWN

    def sees_process(self, session: str) -> bool:
        """Whether the process of a session exists on this node, even if it is stopped."""
        holder = self._sign_of(session).holder
        return holder is not None and holder.is_here() and not holder.has_ended()

    def describe(self, session: str) -> str:
        """As in `process 7 on n1 in job 3, since 2026-01-31 10:00:00`."""
        sign = self._signs.get(session)
        return str(sign.holder) if sign and sign.holder else f"session {session}"
