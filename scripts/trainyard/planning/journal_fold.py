"""All that the journal of a sweep has told, folded as it grows, and kept beside it so that only what is new is read.

The kept fold is a file that may be deleted at any time. It counts if it was made by this code, from a journal that is
unchanged up to where it was read: by inode, size and time of change, or else by digest. It leaves out the metrics and
epochs of attempts that have ended, which are most of a journal and no part of a plan; they are read from the journal
when somebody first asks for them.
"""

import hashlib
import json
import re
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

from trainyard.config.trial_status import ENDED, TrialStatus
from trainyard.planning import journal
from trainyard.planning.journal import DETAILS, Attempt, Session, attempts, take_attempt, take_session
from trainyard.programs import metrics
from trainyard.utils import jsonl
from trainyard.utils.files import atomic_write, digest_of, file_digest
from trainyard.utils.garbage_collection import pause_garbage_collection
from trainyard.utils.jsonl import BLOCK_BYTES, Event, Reader, parse, read_events

LEAST_BYTES: Final = 1 << 20  # that must be new for the fold to be kept: fewer are as quickly read again
# What most lines are, as `Journal.append` writes them: where no rows are wanted, they need not be parsed.
_ROW: Final = re.compile(rb'{"event":"epoch","time":([0-9.]+),"trial":"([^"\\]*)","attempt":([0-9]+),.*}$')
_KEPT: Final = [each.name for each in fields(Attempt) if each.name not in (*DETAILS, "later")]


@dataclass(frozen=True)
class Place:
    """How far a journal was read, and by what it is known again."""

    offset: int = 0
    lines: int = 0
    inode: int = 0
    changed: int = 0  # the file's time of change, in nanoseconds, if it ended at `offset`; else 0
    digest: str = ""  # of all up to `offset`


@dataclass
class _Open:
    """An attempt that has not ended, and the lines of its epochs: if it ends before anybody asks, they are dropped."""

    attempt: Attempt
    lines: list[bytes] = field(default_factory=list)
    parsed: int = 0

    def parse(self) -> None:
        """Have the attempt know all its epochs."""
        found = {(self.attempt.trial, self.attempt.number): self.attempt}
        for line in self.lines[self.parsed :]:
            take_attempt(found, parse(line) or {})
        self.parsed = len(self.lines)


class Fold:
    """What a journal has told so far; `update` takes in what was added since."""

    def __init__(self, path: Path) -> None:
        self.path, self._kept_in = path, path.with_name(f".{path.stem}-fold.json")
        self._begin()
        if not self._restored():
            self._begin()

    def _begin(self) -> None:
        self.attempts: dict[tuple[str, int], Attempt] = {}  # by trial and number, in the order in which they started
        self.sessions: list[Session] = []
        self.suggested: list[Event] = []  # what searches have drawn
        self.work: dict[str, float] = {}  # FLOPs by trial
        self.share: float | None = None  # GPUs per trial, as found
        self._open: dict[tuple[bytes, bytes], _Open] = {}  # by trial and number
        self._place, self._kept_bytes = Place(), 0

    def update(self) -> "Fold":
        """Read what is new; all, if the journal is not the one that was read before."""
        try:
            found = self.path.stat()
        except FileNotFoundError:
            self._begin()
            return self
        place = self._place
        ended_here = found.st_size == place.offset and place.changed
        if ended_here and found.st_ino == place.inode and found.st_mtime_ns == place.changed:
            return self
        if ended_here or found.st_ino != place.inode or found.st_size < place.offset:
            self._begin()
        reader = Reader(self.path, offset=self._place.offset, lines=self._place.lines)
        with pause_garbage_collection():
            for first, lines in reader.blocks():
                for number, line in enumerate(lines, start=first):
                    self._take(reader, number, line)
        reader.warn()
        for each in self._open.values():
            each.parse()
        changed = found.st_mtime_ns if reader.offset == found.st_size else 0
        self._place = Place(reader.offset, reader.lines, found.st_ino, changed)
        if reader.offset - self._kept_bytes > max(LEAST_BYTES, reader.offset // 10):
            self._keep()
        return self

    def _take(self, reader: Reader, number: int, line: bytes) -> None:
        row = _ROW.match(line)
        if row and (attempt := self._open.get((row[2], row[3]))):
            attempt.lines.append(line)
            if self.sessions:
                self.sessions[-1].end = max(self.sessions[-1].end, float(row[1]))
        elif event := reader.parsed(line, number):
            self._take_event(event, line)

    def _take_event(self, event: Event, line: bytes) -> None:
        kind, key = event["event"], (event.get("trial", ""), event.get("attempt", 0))
        name = (key[0].encode(), b"%d" % key[1])
        take_session(self.sessions, event)
        if (known := self._open.get(name)) and kind == "epoch":
            known.lines.append(line)
            return
        if known and kind not in ENDED:
            known.parse()
        left = (attempt := self.attempts.get(key)) and attempt.later
        if attempt and left and kind == "epoch":  # of one that has ended: it stays where the others are
            attempt.end = event["time"]
            return
        take_attempt(self.attempts, event)
        if kind == "started":
            self._open[name] = _Open(self.attempts[key])
        elif known and known.attempt.outcome != TrialStatus.RUNNING:
            del self._open[name]
            if known.parsed < len(known.lines):
                self._leave(known.attempt, "epochs", "told_at")
        elif attempt and left:
            self._leave(attempt, *DETAILS)
        elif kind == "suggested":
            self.suggested.append(event)
        elif kind == "work":
            self.work |= event["flops"]
        elif kind == "share":
            self.share = event["gpus_per_trial"]

    def _leave(self, attempt: Attempt, *names: str) -> None:
        """Leave some details in the journal until somebody asks for them."""
        attempt.later = None
        for name in names:
            if hasattr(attempt, name):
                delattr(attempt, name)
        attempt.later = self._read_details

    def _read_details(self) -> None:
        """Read those of all attempts at once; empty ones, where the journal has vanished meanwhile."""
        events = read_events(self.path, until=self._place.offset)
        whole = {(each.trial, each.number): each for each in attempts(events)}
        for key, attempt in self.attempts.items():
            if attempt.later is None:
                continue
            attempt.later = None
            read = whole.get(key, Attempt(*key, attempt.start, attempt.end))
            for name in DETAILS:
                if not hasattr(attempt, name):
                    setattr(attempt, name, getattr(read, name))

    # ---- what is kept

    def _keep(self) -> None:
        """Write what is known beside the journal; where that cannot be written, it is read again the next time."""
        wheres: dict[tuple[Any, ...], int] = {}
        rows = []
        for attempt in self.attempts.values():
            row = [getattr(attempt, name) for name in _KEPT]
            row[_WHERE] = wheres.setdefault(tuple(attempt.where.items()), len(wheres))
            rows.append(row)
        content = {
            "code": _code(),
            "place": asdict(replace(self._place, digest=_digest(self.path, self._place.offset))),
            "attempts": dict(zip(_KEPT, zip(*rows, strict=True), strict=False)),
            "where": [dict(each) for each in wheres],
            "open": [[*_key(each.attempt), [line.decode(errors="replace") for line in each.lines]]
                     for each in self._open.values()],
            "sessions": [vars(each) for each in self.sessions],
            "suggested": self.suggested,
            "work": self.work,
            "share": self.share,
        }  # fmt: skip
        with suppress(OSError), atomic_write(self._kept_in) as file:
            file.write(json.dumps(content, separators=(",", ":")))
        self._kept_bytes = self._place.offset

    def _restored(self) -> bool:
        """Take in what was kept, if it is of this journal."""
        try:
            with pause_garbage_collection():
                kept = json.loads(self._kept_in.read_bytes())
                place = Place(**kept["place"])
                if kept["code"] != _code() or not self._is_at(place):
                    return False
                self._fill(kept)
        except (OSError, ValueError, TypeError, LookupError, AttributeError):  # none, damaged, or of another version
            return False
        self._kept_bytes = place.offset
        return True

    def _is_at(self, place: Place) -> bool:
        """Whether the journal is the one that was read up to there; then this goes on from there."""
        found = self.path.stat()
        same = (found.st_size, found.st_ino, found.st_mtime_ns) == (place.offset, place.inode, place.changed)
        if found.st_size < place.offset or not (same or _digest(self.path, place.offset) == place.digest):
            return False
        changed = found.st_mtime_ns if found.st_size == place.offset else 0
        self._place = replace(place, inode=found.st_ino, changed=changed)
        return True

    def _fill(self, kept: dict[str, Any]) -> None:
        columns = kept["attempts"]
        for values in zip(*(columns[name] for name in _KEPT), strict=True) if columns else ():
            attempt = Attempt(**dict(zip(_KEPT, values, strict=True)))
            attempt.outcome = TrialStatus(attempt.outcome)
            attempt.where = kept["where"][values[_WHERE]]
            self.attempts[_key(attempt)] = attempt
        for trial, number, lines in kept["open"]:
            attempt = self.attempts[trial, number]
            self._open[trial.encode(), b"%d" % number] = _Open(attempt, [line.encode() for line in lines])
        is_open = {id(each.attempt) for each in self._open.values()}
        for attempt in self.attempts.values():
            if id(attempt) not in is_open:
                self._leave(attempt, *DETAILS)
        for each in self._open.values():
            end = each.attempt.end  # may be that of another event
            each.parse()
            each.attempt.end = end
        self.sessions = [
            Session(**{**each, "attempts": list(map(tuple, each["attempts"]))}) for each in kept["sessions"]
        ]
        self.suggested, self.work, self.share = kept["suggested"], kept["work"], kept["share"]


_WHERE: Final = _KEPT.index("where")


def _key(attempt: Attempt) -> tuple[str, int]:
    return attempt.trial, attempt.number


@cache
def _code() -> str:
    """Changes with the code that folds."""
    return digest_of(
        [file_digest(Path(file)) for file in (__file__, journal.__file__, metrics.__file__, jsonl.__file__)]
    )


def _digest(path: Path, size: int) -> str:
    """Of the first bytes of a file."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(min(BLOCK_BYTES, size - file.tell())):
            digest.update(block)
    return digest.hexdigest()
