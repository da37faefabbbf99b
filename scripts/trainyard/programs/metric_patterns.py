"""Metrics in the output of a program: regular expressions that are applied to its lines."""

import re
from collections.abc import Sequence
from typing import Any, Final

from trainyard.config.user_programs import NUMBER


class PatternParser:
    """Collects rows of metrics from lines of output. A row is complete once every named group has matched."""

    def __init__(self, patterns: Sequence[re.Pattern[str]]) -> None:
        self._patterns = patterns
        self._groups = {name for pattern in patterns for name in pattern.groupindex}
        self._open: dict[str, Any] = {}  # the incomplete row
        self._rows: list[dict[str, Any]] = []
        self.warning = ""  # about the first number that a pattern matches only partly

    def add_line(self, line: str) -> None:
        """Search a line with all patterns."""
        line = line.strip()
        for pattern in self._patterns:
            if match := pattern.search(line):
                self.warning = self.warning or _partial_number_warning(match)
                found = {name: value for name, value in match.groupdict().items() if value is not None}
                if found.keys() & self._open.keys():
                    self._close_row()
                self._open |= found
                if self._open.keys() >= self._groups:
                    self._close_row()

    def take_rows(self, *, final: bool) -> list[dict[str, Any]]:
        """The rows completed since the last call; with `final`, also the incomplete one."""
        if final and self._open:
            self._close_row()
        rows, self._rows = self._rows, []
        return rows

    def _close_row(self) -> None:
        self._rows.append(self._open)
        self._open = {}


_WHOLE_NUMBER: Final = re.compile(r"\d+(?:,\d{3}(?!\d)|_\d+)*(?:\.\d+)?(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?")
_IN_NUMBER: Final = "0123456789.,_eE+-"
_SIGN_BEFORE: Final = re.compile(r"(?:^|[\s=:,;(\[|])-$")
_QUANTIFIER: Final = re.compile(r"(?<!\\)[*+?]$")  # as in `.*`, which takes the first digits of a number


def _partial_number_warning(match: "re.Match[str]") -> str:
    """What is wrong with a pattern that matches only a part of a number, as `1.2` of `1.2e-05`; "" if nothing is."""
    line, starts = match.string, [match.start(name) for name in match.re.groupindex]
    for name in match.re.groupindex:
        start, end = match.span(name)
        if start == end:  # it has matched nothing
            continue
        first = _start_of_number(match, name)
        whole = _WHOLE_NUMBER.match(line, first + (line[first] in "+-"))
        if whole is None or any(end <= other < whole.end() for other in starts):
            continue
        sign = "-" if _SIGN_BEFORE.search(line, max(0, first - 2), first) else ""
        if whole.end() > end or sign or first < start:
            value, number = match[name], sign + line[first : max(end, whole.end())]
            remedy = f"write (?P<{name}>{{number}}), which matches signs, exponents and percent"
            if re.search("[,_]", whole[0]):
                remedy = "numbers must not contain `,` or `_`: have the program print them without"
            elif first < start:
                remedy = f"write the text that is before the number, as in `{name}=`, before (?P<{name}>"
            pattern = match.re.pattern.replace(NUMBER, "{number}")  # as the user wrote it
            return f"the pattern {pattern} matches only {value!r} of {number!r} for {name}: {remedy}"
    return ""


def _start_of_number(match: "re.Match[str]", name: str) -> int:
    """Where the number of a group begins: before the group, unless the pattern matches what is there."""
    line, start = match.string, match.start(name)
    if start == 0 or line[start - 1] not in _IN_NUMBER:
        return start
    before = match.re.pattern.partition(f"(?P<{name}>")[0]
    if match.start() < start and not _QUANTIFIER.search(before):
        return start
    numbers = _WHOLE_NUMBER.finditer(line)
    return next((number.start() for number in numbers if number.start() < start < number.end()), start)
