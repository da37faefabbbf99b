"""Downloads that arrive whole: resumed where they broke off, tried again, held against a checksum, once per file."""

import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from trainyard.utils.errors import UserError
from trainyard.utils.files import file_digest, hold_lock
from trainyard.utils.progress_bar import counting

CHUNK: Final = 2**20
TRIES: Final = 6  # in a row without a byte
FIRST_WAIT_SECONDS: Final = 1.0  # before the second try; then twice as long each time
LONGEST_WAIT_SECONDS: Final = 60.0
TIMEOUT_SECONDS: Final = 30.0  # without a byte
LOCK_SECONDS: Final = 6 * 3600  # that another workflow may take for the same file
PASSING: Final = frozenset({408, 425, 429, 500, 502, 503, 504})  # answers that may be different in a moment
log = logging.getLogger(__name__)


class DownloadError(UserError):
    """The file cannot be had; the message says what to put where."""


class _Broken(Exception):
    """This try failed; another may not."""


class _Refused(Exception):
    """This address will not do."""


@dataclass(frozen=True)
class Remote:
    """A file to be downloaded."""

    name: str  # of the file
    urls: tuple[str, ...]  # mirrors, the best one first
    checksum: str  # md5:... or sha256:...


def fetch(remote: Remote, folder: Path, *, first_wait_seconds: float = FIRST_WAIT_SECONDS) -> Path:
    """Have the file in `folder`, downloaded if it is not there yet; whoever comes second waits for the first.

    Raises:
        DownloadError: there is no way to it, or what comes is not what it should be; nothing of that is kept.
    """
    target = folder / remote.name
    with hold_lock(folder / f".{remote.name}.lock", wait_seconds=LOCK_SECONDS, notify=log.info):
        if target.exists():
            if (found := checksum_of(target, remote.checksum)) == remote.checksum:
                return target
            raise DownloadError(f"{target}: is not the published file ({found}, not {remote.checksum}): remove it")
        reasons = []
        for url in remote.urls:
            try:
                _fetch_from(url, remote, target, first_wait_seconds)
                return target
            except (_Refused, _Broken) as error:
                reasons.append(f"{url}: {error}")
        raise DownloadError(f"{remote.name} cannot be downloaded here ({'; '.join(reasons)}): put it into {folder} "
                            "from a machine that can, or give `root:` a copy")  # fmt: skip


def checksum_of(path: Path, like: str) -> str:
    """The checksum of a file, in the same way of reckoning as another, `md5:...` or `sha256:...`."""
    algorithm = like.partition(":")[0]
    return f"{algorithm}:{file_digest(path, algorithm)}"


def _fetch_from(url: str, remote: Remote, target: Path, first_wait_seconds: float) -> None:
    """Download from one address, into a file beside the target that takes its name when it is whole."""
    part = target.with_name(f"{target.name}.part")
    for _ in range(2):
        _persist(url, part, first_wait_seconds)
        if (found := checksum_of(part, remote.checksum)) == remote.checksum:
            part.replace(target)
            return
        part.unlink()
        log.info("%s: arrived with a wrong checksum: once more, from the beginning", remote.name)
    raise _Refused(f"what comes has the checksum {found}, not {remote.checksum}")


def _persist(url: str, part: Path, first_wait_seconds: float) -> None:
    """Go on from where it broke off, for as long as something comes."""
    tries = 0  # in a row without a byte
    while True:
        before = _size(part)
        try:
            _receive(url, part)
            return
        except _Broken as error:
            tries = 1 if _size(part) > before else tries + 1
            if tries == TRIES:
                raise
            wait = min(first_wait_seconds * 2 ** (tries - 1), LONGEST_WAIT_SECONDS)
            log.info("%s: %s; trying again in %.0f s", part.stem, error, wait)
            time.sleep(wait)


def _size(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0


def _receive(url: str, part: Path) -> None:
    """Append what is missing to the part, and have it on the disk."""
    import requests
    from urllib3.exceptions import HTTPError

    start = _size(part)
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={start}-"} if start else {})
    try:
        with requests.get(url, headers=headers, stream=True, timeout=TIMEOUT_SECONDS) as answer:
            if answer.status_code == 416:  # nothing after `start`: the part is whole, or too long
                return
            if answer.status_code in PASSING:
                raise _Broken(f"answered {answer.status_code}")
            if answer.status_code not in (200, 206):
                raise _Refused(f"answered {answer.status_code} {answer.reason}")
            resumed = answer.status_code == 206
            with open(part, "ab" if resumed else "wb") as file, _progress(part, answer, start * resumed) as count:
                for chunk in answer.raw.stream(CHUNK, decode_content=False):
                    file.write(chunk)
                    count.add(len(chunk))
                file.flush()
                os.fsync(file.fileno())
    except (requests.RequestException, HTTPError) as error:
        raise _Broken(_in_short(error)) from None


def _in_short(error: BaseException) -> str:
    while error.__context__ is not None or (error.args and isinstance(error.args[-1], Exception)):
        error = error.args[-1] if error.args and isinstance(error.args[-1], Exception) else error.__context__  # type: ignore[assignment]
    return str(error) or type(error).__name__


@contextmanager
def _progress(part: Path, answer: Any, start: int) -> Iterator[Any]:
    total = start + int(answer.headers.get("Content-Length", 0))
    with counting(part.name.removesuffix(".part"), total, unit="bytes", done=start) as count:
        yield count
