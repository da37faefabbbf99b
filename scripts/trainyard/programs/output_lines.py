"""A program's output as lines of text."""

import codecs
import re
from typing import Final

LINE_CHARACTERS: Final = 16_384  # searched in each line: the time of a regular expression may grow with their square
_LINE_END: Final = re.compile(r"[\r\n]+")
# Colors, cursor movements, window titles: ECMA-48, sections 5.3 to 5.6.
_ESCAPE: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-~])")


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
