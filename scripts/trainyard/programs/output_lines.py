"""A program's output as lines of text."""

import codecs
import re
from collections.abc import Iterator, Sequence
from typing import Final

LINE_CHARACTERS: Final = 16_384  # searched in each line: the time of a regular expression may grow with their square
_LINE_END: Final = re.compile(r"[\r\n]+")
# Colors, cursor movements, window titles: ECMA-48, sections 5.3 to 5.6.
_ESCAPE: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-~])")

_TRACEBACK: Final = re.compile(
    r"(.*?)Traceback \(most recent call last\):"
)  # torch writes `[rank0]: ` before each line
_OF_LAUNCHER: Final = re.compile(r"[\w.]*(ChildFailedError|CalledProcessError)\b")  # it reports that a rank has failed
_HINT: Final = "Set the environment variable HYDRA_FULL_ERROR=1"


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
        self._parts, self._room = [], LINE_CHARACTERS
        return line


def find_error(lines: Sequence[str], *, recent: int) -> str:
    """The line of a failed program's last output that says why, as a person would find it; "" without any.

    It is the exception of the last traceback, if that is among the `recent` lines: an earlier one was handled. The
    traceback of a launcher only says that another process failed, so the one before it counts. Without a traceback, it
    is the last line that is not a hint on how to get one.
    """
    raised = list(_exceptions(lines))
    if raised and raised[-1][0] >= len(lines) - recent:
        return next((error for _, error in reversed(raised) if not _OF_LAUNCHER.match(error)), raised[-1][1])
    return next((line.strip() for line in reversed(lines) if _HINT not in line), "")


def _exceptions(lines: Sequence[str]) -> Iterator[tuple[int, str]]:
    """The exceptions of all tracebacks, each with the index of its line."""
    for start, header in enumerate(lines):
        if not (found := _TRACEBACK.fullmatch(header)):
            continue
        own = [(at, line.removeprefix(found[1])) for at, line in enumerate(lines) if line.startswith(found[1])]
        rest = [(at, line) for at, line in own if at > start and not line[:1].isspace()]  # frames are indented
        if rest:
            at, error = rest[0]
            following = lines[at + 1 : at + 2] if error.endswith(":") else []  # its message begins there
            yield at, " ".join([error, *(line.removeprefix(found[1]).strip() for line in following)])
