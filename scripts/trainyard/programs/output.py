"""The output of a running program: kept in a file, and split into lines."""

import codecs
import logging
import queue
import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from io import FileIO
from itertools import chain
from pathlib import Path
from typing import Final

from trainyard.programs.progress import Progress, ProgressReader
from trainyard.utils.errors import mentions_gpu_memory, storage_error

INCOMPLETE_SUFFIX: Final = ".incomplete"  # of a file that lacks a part of the output: nobody may parse it again
HIDDEN_LINES: Final = 5  # at the end of the output, in which an error is that of a program with exit code 0
TAIL_LINES: Final = 30  # of the output, for the journal
TAIL_CHARACTERS: Final = 2000
ERROR_LINES: Final = 200  # in which the error of a failed program is looked for: torchrun adds 50 after it
MAX_LINES: Final = 100  # of output to search until the limits are checked again: a pattern may take long for each
CHUNK_BYTES: Final = 2**20  # of saved output, at a time
QUEUED_LINES: Final = 1000  # that were not read yet: then the program waits, as if the pipe were full
_KILLED_RANK: Final = re.compile(r"exitcode +: -9 \(pid")  # in the report of torchrun, which accelerate uses, too
LINE_CHARACTERS: Final = 16_384  # searched in each line: the time of a regular expression may grow with their square
_LINE_END: Final = re.compile(r"[\r\n]+")
# Colors, cursor movements, window titles: ECMA-48, sections 5.3 to 5.6.
_ESCAPE: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-~])")
# Torch writes `[rank0]: ` before each line. Rich draws a box around all but the exception, as of Typer's programs.
_TRACEBACK: Final = re.compile(
    r"(.*?)(?:Traceback \(most recent call last\):|╭─+ Traceback \(most recent call last\) ─+╮)"
)
_BOX: Final = ("│", "╰")
# Of a `__del__` at the end of Python, or of a thread beside the training: they end no program.
_HARMLESS: Final = re.compile(r"Exception (ignored|in thread)")
_ENDED: Final = re.compile(r": line \d+: +\d+ (Killed|Terminated|Aborted|Segmentation fault|Bus error)")  # bash says it
_SUMMARY: Final = re.compile(r"wandb: (?!ERROR)")  # W&B prints dozens of such lines after an exception
_OF_LAUNCHER: Final = re.compile(r"[\w.]*(ChildFailedError|CalledProcessError)\b")  # it reports that a rank has failed
_HINT: Final = "Set the environment variable HYDRA_FULL_ERROR=1"
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
    """Takes a program's output in chunks, keeps it in a file, and puts whole lines into a queue, which None ends."""

    def __init__(self, path: Path, *, on_line: Callable[[str], object] = lambda line: None) -> None:
        self._on_line = on_line  # called with each line, also with those that are not read
        self.lines = queue.Queue[str | None](QUEUED_LINES)
        self._file = OutputFile(path)
        self._splitter = LineSplitter()
        self._progress = ProgressReader()
        self._last: deque[str] = deque(maxlen=ERROR_LINES)
        self._is_read = True
        self.rest = ""  # the last line, if no line break ends it: its program may have been killed while it wrote it
        self.has_killed_rank = False  # whether a launcher has reported that SIGKILL ended a rank

    def take(self, chunk: bytes) -> None:
        """Take a chunk of the output; b"" is its end. It waits while the queue is full."""
        self._file.write(chunk)
        for line in self._splitter.feed(chunk):
            self._keep(line)
            self._put(line)
        if not chunk:
            for line in self._splitter.feed(b"", final=True):
                self.rest = line
                self._keep(line)
            self._file.close()
            self._put(None)

    def _keep(self, line: str) -> None:
        self._on_line(line)
        if not _SUMMARY.match(line):
            self._last.append(line)
        self._progress.add_line(line)
        self.has_killed_rank = self.has_killed_rank or _KILLED_RANK.search(line) is not None

    def _put(self, line: str | None) -> None:
        if self._is_read:
            self.lines.put(line)

    def read_lines(self, timeout_seconds: float) -> tuple[list[str], bool]:
        """Some new lines, after waiting at most `seconds` for the first one, and whether any may follow."""
        lines = list[str]()
        may_follow = True
        with suppress(queue.Empty):
            line = self.lines.get(timeout=timeout_seconds)
            while line is not None:
                lines.append(line)
                if len(lines) == MAX_LINES:
                    return lines, may_follow
                line = self.lines.get_nowait()
            may_follow = False
        return lines, may_follow

    def stop_reading(self) -> None:
        """Empty the queue and leave it empty: from now on, output is kept in the file only."""
        self._is_read = False
        with suppress(queue.Empty):
            while True:
                self.lines.get_nowait()  # makes room for a line that `take` waits with

    @property
    def progress(self) -> Progress | None:
        """What the program has printed of its progress so far."""
        return self._progress.progress

    def tail(self) -> str:
        """The last lines so far."""
        return "\n".join(list(self._last)[-TAIL_LINES:])[-TAIL_CHARACTERS:]

    def error(self) -> str:
        """The error of the program, as `find_error` finds it in the output so far."""
        return find_error(list(self._last), recent=TAIL_LINES)

    def hidden_error(self) -> str:
        """The error at the end of the output of a program with exit code 0, as `find_hidden_error` finds it."""
        return find_hidden_error(list(self._last))


def saved_progress(output: Path) -> Progress | None:
    """What a program has printed of its progress, from its saved output."""
    reader = ProgressReader()
    for line in read_saved_lines(output):
        reader.add_line(line)
    return reader.progress


def read_saved_lines(output: Path, *, torn: bool = False) -> Iterator[str]:
    """The lines of a saved output; of a `torn` one, without the last if no line break ends it."""
    splitter = LineSplitter()
    with open(output, "rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            yield from splitter.feed(chunk)
    if not torn:
        yield from splitter.feed(b"", final=True)


class LineSplitter:
    """Splits output into lines as it arrives and removes escape codes. It takes linear time, even without line ends."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._parts: list[str] = []  # of the incomplete line
        self._room = LINE_CHARACTERS

    def feed(self, chunk: bytes, *, final: bool = False) -> list[str]:
        """The lines that this chunk completes, without empty ones; with `final`, the rest counts as a line."""
        parts = _LINE_END.split(self._decoder.decode(chunk, final))
        lines = []
        for part in parts[:-1]:
            self._extend(part)
            lines.append(self._end_line())
        self._extend(parts[-1])
        if final:
            lines.append(self._end_line())
        return [line for line in lines if line]

    def _extend(self, part: str) -> None:
        if part and self._room:
            self._parts.append(part[: self._room])
            self._room -= len(self._parts[-1])

    def _end_line(self) -> str:
        line = _ESCAPE.sub("", "".join(self._parts)).rstrip()
        self._parts = []
        self._room = LINE_CHARACTERS
        return line


def find_error(lines: Sequence[str], *, recent: int) -> str:
    """The line of a failed program's last output that names the error; "" without any output.

    It is the exception of the last traceback, if that is among the `recent` lines: an earlier one was handled, unless
    the GPU's memory did not suffice. The traceback of a launcher only reports that another process failed, so the one
    before it counts. Without a traceback, it is the last line that is not a hint on how to get one.
    """
    raised = list(_exceptions(lines))
    if raised and (raised[-1][0] >= len(lines) - recent or mentions_gpu_memory(raised[-1][1])):
        return next((error for _, error in reversed(raised) if not _OF_LAUNCHER.match(error)), raised[-1][1])
    return next((line.strip() for line in reversed(lines) if _HINT not in line), "")


def find_hidden_error(lines: Sequence[str]) -> str:
    """The error with which a program, or one that it started, seems to have ended although its exit code is 0."""
    last = len(lines) - HIDDEN_LINES
    killed = (line.strip() for line in lines[max(0, last) :] if _ENDED.search(line))
    raised = (error for at, error in _exceptions(lines) if at >= last)
    return next(chain(killed, raised), "")


def _exceptions(lines: Sequence[str]) -> Iterator[tuple[int, str]]:
    """The exceptions of all tracebacks, each with the index of its line."""
    for start, header in enumerate(lines):
        if not (traceback := _TRACEBACK.fullmatch(header)) or _HARMLESS.match(lines[max(0, start - 1)]):
            continue
        own = [(at, line.removeprefix(traceback[1])) for at, line in enumerate(lines) if line.startswith(traceback[1])]
        after = ((at, line) for at, line in own if at > start and not line.startswith(_BOX))
        rest = [(at, line) for at, line in after if not line[:1].isspace()]  # frames are indented
        if rest:
            at, error = rest[0]
            following = lines[at + 1 : at + 2] if error.endswith(":") else []  # its message begins there
            yield at, " ".join([error, *(line.removeprefix(traceback[1]).strip() for line in following)])
