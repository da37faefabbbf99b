"""The file that keeps a program's output."""

import logging
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import Final

from trainyard.utils.errors import storage_error

INCOMPLETE_SUFFIX: Final = ".incomplete"  # of a file that lacks a part of the output: nobody may parse it again
log = logging.getLogger(__name__)


class OutputFile:
    """Keeps a program's output. If the disk is full, the program runs on, and its output is read but not kept."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: FileIO | None = None
        try:
            self._file = open(path, "wb", buffering=0)  # noqa: SIM115  (closed by `close`)
        except OSError as error:
            self._give_up(error)

    def write(self, chunk: bytes) -> None:
        """Append a chunk of the output; does nothing after an error or `close`."""
        try:
            with suppress(ValueError):  # closed meanwhile, while a process that the program started still writes
                while chunk and self._file:
                    chunk = chunk[self._file.write(chunk) :]
        except OSError as error:
            self._give_up(error)

    def close(self) -> None:
        """Close the file."""
        if self._file:
            self._file.close()

    def _give_up(self, error: OSError) -> None:
        self.close()
        self._file = None
        kept = self._path.with_name(self._path.name + INCOMPLETE_SUFFIX)
        if self._path.exists():
            self._path.replace(kept)
        log.warning(
            "the program runs on, but its output is not kept from here on: %s", storage_error(error, kept) or error
        )
