"""The output of a running program: kept in a file, and split into lines."""

import logging
import queue
from collections import deque
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import Final

from trainyard.programs.output_lines import LineSplitter
from trainyard.utils.errors import storage_error

INCOMPLETE_SUFFIX: Final = ".incomplete"  # of a file that lacks a part of the output: nobody may parse it again
TAIL_LINES: Final = 30  # of the output, for the journal
TAIL_CHARACTERS: Final = 2000
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
        """Append a chunk of the output; does nothing after an error."""
        try:
            while chunk and self._file:
                chunk = chunk[self._file.write(chunk) :]
        except OSError as error:
            self._give_up(error)

    def close(self) -> None:
        """Close the file."""
        try:
            if self._file:
                self._file.close()
        except OSError as error:  # a network file system may report only now that it could not store a part
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        self._file, file = None, self._file
        kept = self._path.with_name(self._path.name + INCOMPLETE_SUFFIX)
        with suppress(OSError):  # the file system may fail in all that it is asked for
            if file:
                file.close()
        with suppress(OSError):
            if self._path.exists():
                self._path.replace(kept)
        log.warning(
            "the program runs on, but its output is not kept from here on: %s", storage_error(error, kept) or error
        )


class OutputReader:
    """Takes a program's output in chunks, keeps it in a file, and puts its lines into a queue, which None ends."""

    def __init__(self, path: Path) -> None:
        self.lines = queue.SimpleQueue[str | None]()
        self._file, self._splitter = OutputFile(path), LineSplitter()
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)

    def take(self, chunk: bytes) -> None:
        """Take a chunk of the output; b"" is its end."""
        self._file.write(chunk)
        for line in self._splitter.feed(chunk, final=not chunk):
            self._tail.append(line)
            self.lines.put(line)
        if not chunk:
            self._file.close()
            self.lines.put(None)

    def tail(self) -> str:
        """The last lines so far."""
        return "\n".join(self._tail)[-TAIL_CHARACTERS:]
