"""Metrics in the output of a program: regular expressions that are applied to its lines."""

import re
from collections.abc import Sequence
from typing import Any, Final

from trainyard.config.user_programs import MINUS, NUMBER, SEPARATORS
from trainyard.programs.metric_rows import has_decimal_comma


class PatternParser:
    """Collects rows of metrics from lines of output. A row is complete once every named group has matched."""

    def __init__(self, patterns: Sequence[re.Pattern[str]]) -> None:
        self._patterns = patterns
        self._groups = {name for pattern in patterns for name in pattern.groupindex}
        self._open: dict[str, Any] = {}  # the incomplete row
        self._rows: list[dict[str, Any]] = []
        self.warning = ""  # about the first number that a pattern matches only partly
        self.error = ""  # about the first one that cannot be read, for its separators

    def add_line(self, line: str) -> None:
        """Search a line with all patterns."""
        line = line.strip()
        for pattern in self._patterns:
            if match := pattern.search(line):
                found = {name: value for name, value in match.groupdict().items() if value is not None}
                for name in list(found):
                    if error := _separator_error(match, name):
                        self.error = self.error or error
                        self.warning = self.warning or error
                        del found[name]
                if len(found) == len(match.re.groupindex):
                    self.warning = self.warning or _partial_number_warning(match)
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


_WHOLE_NUMBER: Final = re.compile(rf"(?:\d+(?:\.\d+)?|\.\d+)(?:[eE][+\-{MINUS}]?\d+)?")
_IN_NUMBER: Final = f"0123456789.eE+-{MINUS}"
_SIGN_BEFORE: Final = re.compile(rf"(?:^|[\s=:,;(\[|])[-{MINUS}]$")
_QUANTIFIER: Final = re.compile(r"(?<!\\)[*+?]$")  # as in `.*`, which takes the first digits of a number


_INTEGER: Final = re.compile(rf"[+\-{MINUS}]?\d+|[1-9]\d{{0,2}}(?:\.\d{{3}})+")  # also as in 1.234,5
_SEPARATED_AFTER: Final = re.compile(rf"(?:[{SEPARATORS}]\d[\d.]*)+")
_SEPARATED_BEFORE: Final = re.compile(rf"(?<![\d.])\d+[{SEPARATORS}]$")
_SPACED_AFTER: Final = re.compile(r" \d{3}(?:\.\d+)?(?![\w:/%])(?! \d{3})|(?: \d{3}){2,}(?:\.\d+)?(?![\w:/%])")
_SPACED_BEFORE: Final = re.compile(r"(?<![\w.,:/+\-])[1-9]\d{0,2}(?: \d{3})* $")


def _separator_error(match: "re.Match[str]", name: str) -> str:
    """Why the number of a group cannot be read, as `3,2451`, or `1` of `1 234.5`; "" if it can.

    A separator that the pattern itself matches stands between two numbers.
    """
    line, value = match.string, match[name]
    start, end = match.span(name)
    pattern = match.re.pattern.replace(NUMBER, "{number}")  # as the user wrote it
    if has_decimal_comma(value):
        return f"the pattern {pattern} finds {value} for {name}: have the program print a decimal point"
    if not value[-1:].isdigit() and not value[:1].isdigit():
        return ""
    is_whole, is_short = _INTEGER.fullmatch(value), re.fullmatch(rf"[+\-{MINUS}]?[1-9]\d{{0,2}}", value)
    after = _SEPARATED_AFTER.match(line, end) if is_whole else None
    before = _SEPARATED_BEFORE.search(line, 0, start) if value[:1].isdigit() else None
    remedy = "have the program print numbers with a decimal point, and without other separators"
    if not after and not before and name != "epoch":
        remedy = (
            "if these are two numbers, let the pattern match both; else have the program print it without the space"
        )
        after = _SPACED_AFTER.match(line, end) if is_short else None
        before = _SPACED_BEFORE.search(line, 0, start) if re.fullmatch(r"\d{3}(?:\.\d+)?", value) else None
    if after and not _is_required(match, name, end):
        printed = value + after[0]
    elif before and not _is_required(match, name, start - 1):
        printed = before[0] + value
    else:
        return ""
    return f"the pattern {pattern} matches only {value!r} of {printed!r} for {name}: {remedy}"


def _is_required(match: "re.Match[str]", name: str, at: int) -> bool:
    """Whether the pattern needs the character at this place of the line to find the same number."""
    other = match.re.search(f"{match.string[:at]}\0{match.string[at + 1 :]}")
    return other is None or other.span(name) != match.span(name)


def _partial_number_warning(match: "re.Match[str]") -> str:
    """What is wrong with a pattern that matches only a part of a number, as `1.2` of `1.2e-05`; "" if nothing is."""
    line, starts = match.string, [match.start(name) for name in match.re.groupindex]
    for name in match.re.groupindex:
        start, end = match.span(name)
        if start == end:  # it has matched nothing
            continue
        first = _start_of_number(match, name)
        whole = _WHOLE_NUMBER.match(line, first + (line[first] in f"+-{MINUS}"))
        if whole is None or any(end <= other < whole.end() for other in starts):
            continue
        sign = line[first - 1] if _SIGN_BEFORE.search(line, max(0, first - 2), first) else ""
        if whole.end() > end or sign or first < start:
            value, number = match[name], sign + line[first : max(end, whole.end())]
            remedy = f"write (?P<{name}>{{number}}), which matches signs, exponents and percent"
            if first < start:
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
