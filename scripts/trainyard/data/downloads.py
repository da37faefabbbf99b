"""Downloads with pooch: retried, verified by their checksum, and made once for all workflows that share a folder."""

import logging
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from trainyard.utils.errors import UserError, storage_errors
from trainyard.utils.files import file_digest
from trainyard.utils.locks import hold
from trainyard.utils.terminal import show_progress

CHUNK_BYTES: Final = 2**20
RETRIES: Final = 4  # per mirror; pooch waits 1 s before the first one, 2 s before the second, and so on
TIMEOUT_SECONDS: Final = 30.0  # to connect, and between two chunks
LOCK_SECONDS: Final = 6 * 3600  # that another workflow may take to download the same file
RETRIED_STATUSES: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
log = logging.getLogger(__name__)


class DownloadError(UserError):
    """The file cannot be downloaded; the message names the file and the folder where it belongs."""


class _PermanentFailure(Exception):
    """A response that a retry would not change; unlike `requests.HTTPError`, pooch does not retry it."""


@dataclass(frozen=True)
class RemoteFile:
    """A file to download."""

    name: str
    urls: tuple[str, ...]  # mirrors, tried in this order
    checksum: str  # md5:... or sha256:..., or a prefix of one
    alternative: str = "set `root` to a local copy"


def download(remote: RemoteFile, folder: Path) -> Path:
    """The path of the file in `folder`, downloaded unless it exists; concurrent callers wait for the first.

    Raises:
        DownloadError: no mirror delivers it with the right checksum (nothing is kept then), another file has its name,
            or it does not fit the disk.
        StorageError: it cannot be read or written.
    """
    from requests import RequestException

    target = folder / remote.name
    failures = []
    with storage_errors(target):
        if target.exists() and has_checksum(target, remote.checksum):
            return target  # without the lock, whose file a folder of another user does not store
    with hold(folder / f".{remote.name}.lock", wait_seconds=LOCK_SECONDS):
        if target.exists():
            if has_checksum(target, remote.checksum):
                return target
            raise DownloadError(f"{target}: its checksum is not {remote.checksum}: remove it to download it again")
        for url in remote.urls:
            try:
                with storage_errors(target):
                    _download_from(url, remote, target)
                return target
            except (_PermanentFailure, RequestException, ValueError) as error:
                failures.append(f"{url}: {_root_cause(error)}")
    raise DownloadError(
        f"{remote.name} cannot be downloaded ({'; '.join(failures)}): copy it to {folder} "
        f"from a machine with access, or {remote.alternative}"
    )


def has_checksum(path: Path, checksum: str) -> bool:
    """Whether a file has this checksum, `md5:...` or `sha256:...`, or begins with it."""
    algorithm, _, expected = checksum.partition(":")
    return file_digest(path, algorithm).startswith(expected)


def _download_from(url: str, remote: RemoteFile, target: Path) -> None:
    """Download from one mirror into a temporary folder; the file becomes `target` once its checksum is verified."""
    import pooch

    pooch.get_logger().setLevel(logging.WARNING)  # `_Downloader` logs the same
    temporary = target.with_name(f".{target.name}.part")
    shutil.rmtree(temporary, ignore_errors=True)  # of a process that was killed
    mirror = pooch.create(
        temporary,
        base_url="",
        registry={target.name: None},  # `_Downloader` verifies the checksum
        urls={target.name: url},
        retry_if_failed=RETRIES,
    )
    try:
        Path(mirror.fetch(target.name, downloader=_Downloader(remote.checksum))).replace(target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@dataclass
class _Downloader:
    """A downloader for pooch with a progress bar, which does not retry permanent failures."""

    checksum: str
    received: set[str] = field(default_factory=set)  # the wrong checksums of what was downloaded

    def __call__(self, url: str, output_file: str, _: Any) -> None:
        """Download to a file."""
        import requests
        from urllib3.exceptions import HTTPError

        log.info("downloading %s", url)
        headers = {"Accept-Encoding": "identity"}  # some servers declare a .gz as gzip-encoded all the same
        try:
            with requests.get(url, headers=headers, stream=True, timeout=TIMEOUT_SECONDS) as response:
                if not response.ok:
                    retried = response.status_code in RETRIED_STATUSES
                    failure = requests.HTTPError if retried else _PermanentFailure
                    raise failure(f"HTTP status {response.status_code} ({response.reason})")
                _write(response, Path(output_file), url.rpartition("/")[2])
            algorithm = self.checksum.partition(":")[0]
            checksum = f"{algorithm}:{file_digest(Path(output_file), algorithm)}"
            if not checksum.startswith(self.checksum):  # if it arrives twice, it is no longer the published file
                error_class = _PermanentFailure if checksum in self.received else requests.RequestException
                self.received.add(checksum)
                raise error_class(f"its checksum is {checksum}, not {self.checksum}")
        except (requests.RequestException, HTTPError) as error:
            log.info("%s: %s", url, _root_cause(error))
            raise requests.RequestException(error) from error


def _write(response: Any, path: Path, name: str) -> None:
    size = int(response.headers.get("Content-Length", 0))
    free = shutil.disk_usage(path.parent).free
    if size > free:
        folder = path.parent.parent
        raise DownloadError(f"{folder}: {name} needs {size / 2**20:,.0f} MiB, {free / 2**20:,.0f} MiB are free")
    with open(path, "wb") as file, show_progress(name, size, unit="bytes") as advance:
        for chunk in response.raw.stream(CHUNK_BYTES, decode_content=False):  # `iter_content` decompresses it
            file.write(chunk)
            advance(len(chunk))


def _root_cause(error: BaseException) -> str:
    """The innermost error in one sentence: requests wraps urllib3's, which wraps the operating system's."""
    while inner := error.__context__ or next((arg for arg in error.args if isinstance(arg, BaseException)), None):
        error = inner
    return (str(error) or type(error).__name__).split(". ")[0]
