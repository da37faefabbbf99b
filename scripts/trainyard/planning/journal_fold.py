"""The fold of a sweep's journal, updated as the journal grows and cached in a file beside it.

The cache is a file that may be deleted at any time. It is valid if the same code wrote it as it is, by the signature in
its first line, and if the journal is unchanged up to the cached position: by inode, size and modification time, or else
by digest. It does not hold the metrics and epochs of ended attempts, which are most of a journal and not needed for a
plan; they are read from the journal on first access.
"""

import hashlib
import json
import re
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

from trainyard.config import trial_status
from trainyard.config.trial_status import TrialStatus
from trainyard.planning import attempts, journal
from trainyard.planning.attempts import (
    DETAILS,
    Attempt,
    Attempts,
    Session,
    update_attempts,
    update_sessions,
)
from trainyard.planning.journal import (
    Ended,
    Epoch,
    Event,
    Location,
    SessionStarted,
    Share,
    Started,
    Suggested,
    TrialEvent,
    Work,
    decode,
    decode_all,
    encode,
)
from trainyard.programs import metrics
from trainyard.programs.command import CheckpointFile
from trainyard.utils import jsonl
from trainyard.utils.files import atomic_write, digest_of, file_digest
from trainyard.utils.garbage_collection import pause_garbage_collection
from trainyard.utils.jsonl import BLOCK_BYTES, Reader

MIN_CACHED_BYTES: Final = 1 << 20  # new bytes that make a new cache worthwhile: fewer are read as fast as the cache
# Most lines have this form, in which `Journal` writes them. Unless their rows are needed, they are not parsed.
_ROW: Final = re.compile(rb'{"event":"epoch","time":([0-9]+(?:\.[0-9]+)?),"trial":"([^"\\]*)","attempt":([0-9]+),.*}$')
_CACHED: Final = [each.name for each in fields(Attempt) if each.name not in (*DETAILS, "load_details")]


@dataclass(frozen=True)
class JournalPosition:
    """How far a journal was read, and what identifies it."""

    offset: int = 0
    lines: int = 0
    inode: int = 0
    changed: int = 0  # modification time in nanoseconds if the file ended at `offset`; else 0
    digest: str = ""  # of the bytes before `offset`


@dataclass
class _Open:
    """An open attempt and the lines of its epochs, which are dropped unparsed if it ends before they are needed."""

    attempt: Attempt
    lines: list[bytes] = field(default_factory=list)
    parsed: int = 0

    def parse(self) -> None:
        """Add all epochs to the attempt."""
        found = {_key(self.attempt): self.attempt}
        for line in self.lines[self.parsed :]:
            with suppress(ValueError):  # damaged
                if (record := jsonl.parse_event(line)) and isinstance(event := decode(record), TrialEvent):
                    update_attempts(found, event)
        self.parsed = len(self.lines)


class Fold:
    """The state of a sweep by its journal; `update` reads the lines that were added since."""

    def __init__(self, path: Path) -> None:
        self.path, self._cache = path, path.with_name(f".{path.stem}-fold.json")
        self._reset()
        if not self._restore():
            self._reset()

    def _reset(self) -> None:
        self.attempts: Attempts = {}
        self.sessions: list[Session] = []
        self.suggested: list[Suggested] = []
        self.work: dict[str, float] = {}  # FLOPs by trial
        self.share: Share | None = None  # for `gpus_per_trial: auto`
        self._open: dict[tuple[bytes, bytes], _Open] = {}  # by trial and number
        self._position, self._cached_bytes = JournalPosition(), 0
        self._digest: hashlib._Hash | None = hashlib.sha256()  # of what was read; None if it is not computed

    def update(self) -> "Fold":
        """Read the new lines; all lines, if the journal was replaced."""
        try:
            found = self.path.stat()
        except FileNotFoundError:
            self._reset()
            return self
        position = self._position
        ended_here = found.st_size == position.offset and position.changed
        if ended_here and found.st_ino == position.inode and found.st_mtime_ns == position.changed:
            return self
        if ended_here or found.st_ino != position.inode or found.st_size < position.offset or not self._has_digest():
            self._reset()
        reader = Reader(self.path, offset=self._position.offset, lines=self._position.lines, digest=self._digest)
        with pause_garbage_collection():
            for first, lines in reader.blocks():
                for number, line in enumerate(lines, start=first):
                    self._read_line(reader, number, line)
        reader.warn()
        for each in self._open.values():
            each.parse()
        changed = found.st_mtime_ns if reader.offset == found.st_size else 0
        self._position = JournalPosition(reader.offset, reader.lines, found.st_ino, changed)
        if reader.offset - self._cached_bytes > max(MIN_CACHED_BYTES, reader.offset // 10):
            self._write_cache()
        return self

    def _has_digest(self) -> bool:
        """Whether the digest of what was read is known; compute that of a journal which had not changed until now."""
        if self._digest is None:
            self._digest = _digest(self.path, self._position.offset)
            return self._digest.hexdigest() == self._position.digest
        return True

    def _read_line(self, reader: Reader, number: int, line: bytes) -> None:
        row = _ROW.match(line)
        if row and (attempt := self._open.get((row[2], row[3]))):
            attempt.lines.append(line)
            if self.sessions:
                self.sessions[-1].end = max(self.sessions[-1].end, float(row[1]))
        elif event := reader.parsed(line, number, decode):
            self._apply_event(event, line)

    def _apply_event(self, event: Event, line: bytes) -> None:
        update_sessions(self.sessions, event)
        match event:
            case TrialEvent():
                self._apply_trial_event(event, line)
            case Suggested():
                self.suggested.append(event)
            case Work(flops=flops):
                self.work |= flops
            case Share():
                self.share = event

    def _apply_trial_event(self, event: TrialEvent, line: bytes) -> None:
        key, name = (event.trial, event.attempt), (event.trial.encode(), b"%d" % event.attempt)
        opened, attempt = self._open.get(name), self.attempts.get(key)
        is_incomplete = attempt is not None and attempt.load_details is not None
        if isinstance(event, Epoch) and opened:
            opened.lines.append(line)
            return
        if isinstance(event, Epoch) and attempt and is_incomplete:  # of an ended attempt: it is read with the others
            attempt.end = max(attempt.start, event.time)
            return
        if opened and not isinstance(event, Ended):
            opened.parse()
        if attempt and is_incomplete:  # its details are dropped again below: none may be read for this event
            attempt.metrics, attempt.epochs, attempt.epoch_times = {}, [], {}
        update_attempts(self.attempts, event)
        if isinstance(event, Started):
            self._open[name] = _Open(self.attempts[key])
        elif opened and opened.attempt.outcome != TrialStatus.RUNNING:
            del self._open[name]
            if opened.parsed < len(opened.lines):
                self._unload(opened.attempt, "epochs", "epoch_times")
        elif attempt and is_incomplete:
            self._unload(attempt, *DETAILS)

    def _unload(self, attempt: Attempt, *names: str) -> None:
        """Drop some details; they are read from the journal on the next access."""
        attempt.load_details = None
        for name in names:
            if hasattr(attempt, name):
                delattr(attempt, name)
        attempt.load_details = self._load_details

    def _load_details(self, attempt: Attempt, name: str) -> None:
        """Read a detail of an attempt from the journal, and of all other attempts that will need it too.

        The last metrics of all trials take a fraction of the memory of all epochs. The epochs of trials with several
        attempts show what these continued. Details are empty if the journal does not exist any more.
        """
        retried = {trial for trial, number in self.attempts if number > 1}
        trials = set[str]() if name == "metrics" else retried if attempt.trial in retried else None
        read = self._read_attempts(epochs_of=trials)
        for key, known in self.attempts.items():
            if known.load_details is None:
                continue
            is_whole = trials is None or known.trial in trials
            known.load_details, found = None, read.get(key) or Attempt(*key, known.start, known.end)
            for detail in DETAILS if is_whole else ("metrics",):
                if not hasattr(known, detail):
                    setattr(known, detail, getattr(found, detail))
            known.load_details = None if is_whole else self._load_details

    def _read_attempts(self, *, epochs_of: set[str] | None) -> Attempts:
        """The attempts in the part of the journal that was read, with the epochs of some trials (None: of all)."""
        found: Attempts = {}
        if not self.path.exists():
            return found
        names = None if epochs_of is None else {trial.encode() for trial in epochs_of}
        reader = Reader(self.path)
        with pause_garbage_collection():
            for first, lines in reader.blocks(until=self._position.offset):
                for number, line in enumerate(lines, start=first):
                    row = _ROW.match(line) if names is not None else None
                    if row and names is not None and row[2] not in names:
                        continue
                    if isinstance(event := reader.parsed(line, number, decode), TrialEvent):
                        update_attempts(found, event)
        reader.warn()
        return found

    # ---- the cache

    def _write_cache(self) -> None:
        """Write the fold beside the journal; if that fails, the next program reads the journal again.

        The digest is that of the lines as they were read: the journal may have been replaced since.
        """
        assert self._digest
        locations: dict[Location, int] = {}
        rows = []
        for attempt in self.attempts.values():
            row = [getattr(attempt, name) for name in _CACHED]
            row[_LOCATION] = locations.setdefault(attempt.location, len(locations))
            rows.append(row)
        content = {
            "position": asdict(replace(self._position, digest=self._digest.hexdigest())),
            "attempts": dict(zip(_CACHED, zip(*rows, strict=True), strict=False)),
            "locations": list(locations),
            "open": [[*_key(each.attempt), [line.decode(errors="replace") for line in each.lines]]
                     for each in self._open.values()],
            "sessions": [{**vars(each), "info": encode(each.info)} for each in self.sessions],
            "suggested": [encode(each) for each in self.suggested],
            "work": self.work,
            "share": [encode(self.share)] if self.share else [],
        }  # fmt: skip
        body = json.dumps(content, separators=(",", ":")).encode()
        with suppress(OSError), atomic_write(self._cache, "wb") as file:
            file.write(_signature(body) + b"\n" + body)
        self._cached_bytes = self._position.offset

    def _restore(self) -> bool:
        """Load the cache if it is valid; returns whether it is."""
        try:
            with pause_garbage_collection():
                signature, _, body = self._cache.read_bytes().partition(b"\n")
                if signature != _signature(body):  # damaged, or of another version
                    return False
                cached = json.loads(body)
                position = JournalPosition(**cached["position"])
                if not self._is_at(position):
                    return False
                self._fill(cached)
        except (OSError, ValueError, TypeError, LookupError, AttributeError):  # missing, or not to be restored
            return False
        self._cached_bytes = position.offset
        return True

    def _is_at(self, position: JournalPosition) -> bool:
        """Whether the journal is the one that was read up to this position, from which the fold can then continue."""
        found = self.path.stat()
        same = (found.st_size, found.st_ino, found.st_mtime_ns) == (position.offset, position.inode, position.changed)
        if found.st_size < position.offset:
            return False
        self._digest = None if same else _digest(self.path, position.offset)
        if self._digest and self._digest.hexdigest() != position.digest:
            return False
        changed = found.st_mtime_ns if found.st_size == position.offset else 0
        self._position = replace(position, inode=found.st_ino, changed=changed)
        return True

    def _fill(self, cached: dict[str, Any]) -> None:
        columns, locations = cached["attempts"], [Location(*each) for each in cached["locations"]]
        for values in zip(*(columns[name] for name in _CACHED), strict=True) if columns else ():
            attempt = Attempt(**dict(zip(_CACHED, values, strict=True)))
            attempt.outcome = _STATUS[attempt.outcome]
            attempt.location = locations[values[_LOCATION]]
            attempt.resumed = CheckpointFile(*attempt.resumed) if attempt.resumed else None
            self.attempts[_key(attempt)] = attempt
        for trial, number, lines in cached["open"]:
            attempt = self.attempts[trial, number]
            self._open[trial.encode(), b"%d" % number] = _Open(attempt, [line.encode() for line in lines])
        is_open = {id(each.attempt) for each in self._open.values()}
        for attempt in self.attempts.values():
            if id(attempt) not in is_open:
                self._unload(attempt, *DETAILS)
        for each in self._open.values():
            end = each.attempt.end  # may come from another event
            each.parse()
            each.attempt.end = end
        self._fill_sessions(cached["sessions"])
        self.suggested = [each for each in decode_all(cached["suggested"]) if isinstance(each, Suggested)]
        self.work = cached["work"]
        for share in decode_all(cached["share"]):
            assert isinstance(share, Share)
            self.share = share

    def _fill_sessions(self, cached: list[dict[str, Any]]) -> None:
        for session in cached:
            (info,) = decode_all([session["info"]])
            assert isinstance(info, SessionStarted)
            started = [(trial, number) for trial, number in session["attempts"]]
            self.sessions.append(Session(**{**session, "info": info, "attempts": started}))


_LOCATION: Final = _CACHED.index("location")
_STATUS: Final = {status.value: status for status in TrialStatus}  # a lookup is faster than a call of TrialStatus


def _key(attempt: Attempt) -> tuple[str, int]:
    return attempt.trial, attempt.number


@cache
def _code() -> str:
    """Changes with the code that folds."""
    modules = (attempts, journal, jsonl, metrics, trial_status)
    return digest_of([file_digest(Path(file)) for file in (__file__, *(str(each.__file__) for each in modules))])


def _signature(body: bytes) -> bytes:
    """Changes with the content of the cache, and with the code that wrote it."""
    return hashlib.sha256(_code().encode() + body).hexdigest().encode()


def _digest(path: Path, size: int) -> "hashlib._Hash":
    """Of the first bytes of a file."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(min(BLOCK_BYTES, size - file.tell())):
            digest.update(block)
    return digest
