"""The output of a running program: kept in a file, and split into lines."""

import logging
import queue
from collections import deque
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import Final

from trainyard.programs.output_lines import LineSplitter, find_error
from trainyard.utils.errors import storage_error

INCOMPLETE_SUFFIX: Final = ".incomplete"  # of a file that lacks a part of the output: nobody may parse it again
TAIL_LINES: Final = 30  # of the output, for the journal
TAIL_CHARACTERS: Final = 2000
ERROR_LINES: Final = 100  # in which the error of a failed program is looked for: torchrun adds 50 after it
QUEUED_LINES: Final = 1000  # that were not read yet: then the program waits, as if the pipe were full
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
        self.lines = queue.Queue[str | None](QUEUED_LINES)
        self._file, self._splitter = OutputFile(path), LineSplitter()
        self._last: deque[str] = deque(maxlen=ERROR_LINES)
        self._is_read = True

    def take(self, chunk: bytes) -> None:
        """Take a chunk of the output; b"" is its end. It waits while the queue is full."""
        self._file.write(chunk)
        for line in self._splitter.feed(chunk, final=not chunk):
            self._last.append(line)
            self._put(line)
        if not chunk:
            self._file.close()
            self._put(None)

    def _put(self, line: str | None) -> None:
        if self._is_read:
            self.lines.put(line)

    def stop_reading(self) -> None:
        """Empty the queue and leave it empty: from now on, output is kept in the file only."""
        self._is_read = False
        with suppress(queue.Empty):
            while True:
                self.lines.get_nowait()  # makes room for a line that `take` waits with

    def tail(self) -> str:
        """The last lines so far."""
        return "\n".join(list(self._last)[-TAIL_LINES:])[-TAIL_CHARACTERS:]

    def error(self) -> str:
        """The line so far that says why the program failed; "" without any."""
        return find_error(list(self._last), recent=TAIL_LINES)
