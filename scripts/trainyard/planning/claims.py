"""Which job runs which trial: a log of claims that the jobs of a sweep share, without a server and without locks.

Entry n of the log is the file `claims/<n>.json`. It is created with link(2), which succeeds for one process, once: a
compare-and-set, by which an entry's author has read all entries before it. An entry takes trials, each for an attempt,
ends attempts, has configurations that a search has drawn, and gives up sessions that have died, so that others may take
their trials. What users request meanwhile (`requests.py`) are entries, too.

The first end of the attempt for which a trial was taken last counts, for ever; it does not depend on what a job has
seen of the journals of others. A journal has an end before the log does: until another entry takes the trial, it counts
in tables. Whoever has read it adds it to its next entry, so that the end of a session that was killed counts, too.

Nothing here depends on clocks, signs of life or Slurm: these only decide when a session is given up
(`packing/session_watch.py`).
"""

import errno
import json
import os
import secrets
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, cast

from trainyard.planning.journal import Ended, Suggested, decode, encode
from trainyard.planning.requests import UserRequest, UserRequests
from trainyard.utils.errors import StorageError, UserError, storage_errors
from trainyard.utils.files import sync_folder

NO_LINKS: Final = (
    "this file system has no hard links, by which the jobs of a sweep agree who runs which trial: keep the results on "
    "another one (Snakemake's option `--directory FOLDER`)"
)

DAMAGED_REMEDY: Final = (
    "so that it is unknown which trials it takes: use the version that wrote it; or, if no job of the sweep runs, "
    "remove this file and run the same command: results are kept"
)


@dataclass(frozen=True)
class GivenUp:
    """That a session was given up: others may take the trials that it had taken by then."""

    is_gone: bool = False  # whether its process is known to have ended: it leaves nothing that writes
    ends: Mapping[str, float] = field(default_factory=dict)  # Unix seconds of the last output of trials it had started


@dataclass(frozen=True)
class Take:
    """That a session has taken a trial."""

    entry: int
    session: str
    attempt: int  # at the trial: no other session starts one with this number, unless this one gives the trial back


@dataclass(frozen=True)
class Entry:
    """An entry of the log."""

    number: int
    session: str  # "" for a request of a user
    token: str  # tells whether a link whose reply was lost has succeeded
    ends: tuple[Ended, ...] = ()
    take: Mapping[str, int] = field(default_factory=dict)  # attempts, by trial
    draws: tuple[Suggested, ...] = ()
    given_up: Mapping[str, GivenUp] = field(default_factory=dict)  # by session
    request: UserRequest | None = None
    until: float | None = None  # Unix seconds at which its trial is predicted to have ended, for a budget

    def encode(self) -> bytes:
        """The content of its file."""
        content: dict[str, Any] = {
            "n": self.number,
            "session": self.session,
            "token": self.token,
            "end": [encode(replace(end, tail=None)) for end in self.ends],
            "take": self.take,
            "draw": [vars(draw) for draw in self.draws],
            "give_up": {session: vars(given_up) for session, given_up in self.given_up.items()},
        }
        if self.request:
            content["request"] = vars(self.request)
        if self.until:
            content["until"] = self.until
        return json.dumps(content, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, content: bytes) -> "Entry":
        """The entry in a file.

        Raises:
            ValueError, LookupError, TypeError, AttributeError: it is damaged, or of a version with other fields.
        """
        fields: dict[str, Any] = json.loads(content)
        ends = tuple(decode(end) for end in fields["end"])
        if not all(isinstance(end, Ended) for end in ends):
            raise ValueError("this is no end of an attempt")
        return cls(
            fields["n"],
            fields["session"],
            fields["token"],
            cast(tuple[Ended, ...], ends),
            dict(fields["take"]),
            tuple(Suggested(**draw) for draw in fields["draw"]),
            {session: GivenUp(**given_up) for session, given_up in fields["give_up"].items()},
            UserRequest(**fields["request"]) if "request" in fields else None,
            fields.get("until"),
        )


class ClaimLog:
    """The log of a sweep, as far as it was read."""

    def __init__(self, folder: Path) -> None:
        """`folder`: of the sweep."""
        self._folder = folder / "claims"
        self.entries: list[Entry] = []
        self.draws: list[Suggested] = []  # the configurations that searches have drawn, in order
        self.owners: dict[str, Take] = {}  # by trial: the last entry that took it
        self.ends: dict[tuple[str, int], Ended] = {}  # that count for ever, by trial and attempt
        self.given_up: dict[str, tuple[int, GivenUp]] = {}  # by session, each with the last such entry
        self.began: dict[str, int] = {}  # by session: its first entry
        self.wrote: dict[str, int] = {}  # by session: its last entry
        self.requests = UserRequests()
        self.takeovers: dict[str, int] = {}  # by trial: the last entry that took it from a session that may still write

    @property
    def sessions(self) -> set[str]:
        """The sessions that have written an entry."""
        return set(self.began)

    @property
    def live(self) -> set[str]:
        """Those that have written one since they were given up, if they were."""
        return {name for name, last in self.wrote.items() if name not in self.given_up or last > self.given_up[name][0]}

    def is_given_up(self, take: Take) -> bool:
        """Whether others may take a trial because its session was given up since."""
        return take.session in self.given_up and take.entry < self.given_up[take.session][0]

    def is_last(self, trial: str, attempt: int) -> bool:
        """Whether a trial was not taken again for a later attempt."""
        owner = self.owners.get(trial)
        return owner is None or owner.attempt <= attempt

    def may_end(self, end: Ended) -> bool:
        """Whether an end counts as soon as an entry has it."""
        owner = self.owners.get(end.trial)
        return owner is not None and owner.attempt == end.attempt and (end.trial, end.attempt) not in self.ends

    def read(self) -> list[Entry]:
        """Read the new entries, and return them.

        Each is opened by name: a network file system then asks its server, which it does not for a listing.

        Raises:
            UserError: one cannot be read, because it is damaged or of another version.
            StorageError: the file system fails.
        """
        new = []
        while (entry := self._open(len(self.entries) + 1)) is not None:
            self._add(entry)
            new.append(entry)
        return new

    def _open(self, number: int) -> Entry | None:
        path = self._path(number)
        try:
            with storage_errors(path):
                content = path.read_bytes()
        except FileNotFoundError:
            return None
        try:
            return Entry.decode(content)
        except (ValueError, LookupError, TypeError, AttributeError):
            what = "is no entry of this version of Trainyard" if content else "is empty"
            raise UserError(f"{path}: {what}, {DAMAGED_REMEDY}") from None

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:08d}.json"

    def _add(self, entry: Entry) -> None:
        self.entries.append(entry)
        self.draws += entry.draws
        if entry.request:
            self.requests.add(entry.number, entry.request)
        else:
            self.began.setdefault(entry.session, entry.number)
            self.wrote[entry.session] = entry.number
        for end in entry.ends:
            if self.may_end(end):
                self.ends[end.trial, end.attempt] = end
        for session, given_up in entry.given_up.items():
            self.given_up[session] = entry.number, given_up
        for trial, attempt in entry.take.items():
            before = self.owners.get(trial)
            is_from_other = before and before.session != entry.session and self.is_given_up(before)
            if before and is_from_other and not self.given_up[before.session][1].is_gone:
                self.takeovers[trial] = entry.number
            self.owners[trial] = Take(entry.number, entry.session, attempt)

    def append(
        self,
        session: str,
        *,
        ends: Iterable[Ended] = (),
        take: Mapping[str, int] | None = None,
        draws: Sequence[Suggested] = (),
        given_up: Mapping[str, GivenUp] | None = None,
        request: UserRequest | None = None,
        seconds: float = 0.0,
    ) -> bool:
        """Append an entry, and read it; returns False if another session has written the next one.

        `seconds`: until its trial is predicted to have ended, of a sweep with a budget; 0 if that is unknown.

        Raises:
            StorageError: it cannot be written.
        """
        entry = Entry(
            len(self.entries) + 1,
            session,
            secrets.token_hex(8),
            tuple(ends),
            take or {},
            tuple(draws),
            given_up or {},
            request,
            round(time.time() + seconds, 4) if take and seconds else None,
        )
        path = self._path(entry.number)
        draft = self._folder / f".{entry.token}.tmp"
        with storage_errors(path):
            try:
                self._folder.mkdir(exist_ok=True)
                with open(draft, "xb", buffering=0) as file:
                    file.write(entry.encode())
                    os.fsync(file.fileno())
                os.link(draft, path)
                sync_folder(self._folder)
            except FileExistsError:
                found = self._open(entry.number)
                if found is None or found.token != entry.token:
                    return False
            except FileNotFoundError as error:
                raise UserError(f"{self._folder.parent}: it was moved or removed while its trials run") from error
            except OSError as error:
                if error.errno in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS):  # of link(2)
                    raise StorageError(f"{path}: {NO_LINKS}") from error
                raise
            finally:
                with suppress(OSError):
                    draft.unlink()
        self._add(entry)
        return True

    def request(self, request: UserRequest) -> None:
        """Append a request of a user.

        Raises:
            StorageError: it cannot be written.
        """
        with storage_errors(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
        self.read()
        while not self.append("", request=request):
            self.read()
