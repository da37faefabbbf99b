"""Which job runs which trial: a log of claims that the jobs of a sweep share, without a server and without locks.

Entry n of the log is the file `claims/<n>.json`. It is created with link(2), which succeeds for one process, once: a
compare-and-set, by which an entry's author has read all entries before it. An entry takes trials, has configurations
that a search has drawn, and gives up sessions that have died (`Fence`): of the journal of such a session, only what the
author had read by then counts. So it does not matter whether that session still runs, and no result counts twice. What
users request meanwhile (`requests.py`) are entries, too.

Nothing here depends on clocks, signs of life or Slurm: these only decide when a session is given up
(`packing/session_watch.py`).
"""

import errno
import json
import os
import secrets
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from trainyard.planning.journal import Suggested
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
class Fence:
    """The end of a session that was given up."""

    bytes: int  # of its journal, that count
    is_gone: bool = False  # whether its process is known to have ended: it leaves nothing that writes
    ends: Mapping[str, float] = field(default_factory=dict)  # Unix seconds of the last output of its trials


@dataclass(frozen=True)
class Entry:
    """An entry of the log."""

    number: int
    session: str  # "" for a request of a user
    token: str  # tells whether a link whose reply was lost has succeeded
    take: tuple[str, ...] = ()  # trials
    draws: tuple[Suggested, ...] = ()
    fences: Mapping[str, Fence] = field(default_factory=dict)  # by session
    request: UserRequest | None = None
    until: float | None = None  # Unix seconds at which its trial is predicted to have ended, for a budget

    def encode(self) -> bytes:
        """The content of its file."""
        return json.dumps(
            {
                "n": self.number,
                "session": self.session,
                "token": self.token,
                "take": self.take,
                "draw": [vars(each) for each in self.draws],
                "fence": {name: vars(each) for name, each in self.fences.items()},
                **({"request": vars(self.request)} if self.request else {}),
                **({"until": self.until} if self.until else {}),
            },
            separators=(",", ":"),
        ).encode()

    @classmethod
    def decode(cls, content: bytes) -> "Entry":
        """The entry in a file.

        Raises:
            ValueError, LookupError, TypeError, AttributeError: it is damaged, or of a version with other fields.
        """
        found: dict[str, Any] = json.loads(content)
        return cls(
            found["n"],
            found["session"],
            found["token"],
            tuple(found["take"]),
            tuple(Suggested(**each) for each in found["draw"]),
            {name: Fence(**each) for name, each in found["fence"].items()},
            UserRequest(**found["request"]) if "request" in found else None,
            found.get("until"),
        )


class ClaimLog:
    """The log of a sweep, as far as it was read."""

    def __init__(self, folder: Path) -> None:
        """`folder`: of the sweep."""
        self._folder = folder / "claims"
        self.entries: list[Entry] = []
        self.draws: list[Suggested] = []  # the configurations that searches have drawn, in order
        self.takes: dict[str, list[Entry]] = {}  # by trial: the entries that took it, in order
        self.fences: dict[str, Fence] = {}  # by session
        self.began: dict[str, int] = {}  # by session: its first entry
        self.requests = UserRequests()
        self.takeovers: dict[str, int] = {}  # by trial: the last entry that took it from a session that may still write

    @property
    def sessions(self) -> set[str]:
        """The sessions that have written an entry."""
        return set(self.began)

    def owner(self, trial: str) -> Entry | None:
        """The last entry that took a trial; None if none has."""
        return next(reversed(self.takes.get(trial, [])), None)

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
        for session, fence in entry.fences.items():
            self.fences.setdefault(session, fence)
        for trial in entry.take:
            before = self.owner(trial)
            if before and before.session in self.fences and not self.fences[before.session].is_gone:
                self.takeovers[trial] = entry.number
            self.takes.setdefault(trial, []).append(entry)

    def append(
        self,
        session: str,
        *,
        take: Iterable[str] = (),
        draws: Sequence[Suggested] = (),
        fences: Mapping[str, Fence] | None = None,
        request: UserRequest | None = None,
        seconds: float = 0.0,
    ) -> bool:
        """Append an entry, and read it; returns False if another session has written the next one.

        `seconds`: until its trial is predicted to have ended, of a sweep with a budget; 0 if that is unknown.

        Raises:
            StorageError: it cannot be written.
        """
        number, token, taken = len(self.entries) + 1, secrets.token_hex(8), tuple(take)
        until = round(time.time() + seconds, 4) if taken and seconds else None
        entry = Entry(number, session, token, taken, tuple(draws), dict(fences or {}), request, until)
        path, draft = self._path(entry.number), self._folder / f".{entry.token}.tmp"
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

    def taken_by(self, sessions: Collection[str]) -> list[str]:
        """The trials that these sessions have taken at some time."""
        return [trial for trial, entries in self.takes.items() if any(each.session in sessions for each in entries)]
