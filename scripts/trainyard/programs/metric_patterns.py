"""Metrics in the output of a program: regular expressions that are applied to its lines."""

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from trainyard.config.user_programs import MINUS, NUMBER, SEPARATORS
from trainyard.programs.metric_rows import has_decimal_comma, numeric_row

_UNIT: Final = re.compile(r" ?(?P<unit>[kKMGTB]|[kKMGT]?i?B|[nuµm]?s|sec|min|m|h)(?![A-Za-z])")  # after a number
_SCALES: Final = re.compile(r"[kKMGTB](?:i?B)?(?![A-Za-z])")
REMEDY_FOR_UNITS: Final = (
    "which is not read: numbers with different units do not compare; have the program print the same unit always"
)


class _Reported(NamedTuple):
    """What a pattern has found in a line."""

    pattern: int  # the place of the pattern
    line: str  # without the numbers that differ between ranks; "" if it names no step
    values: dict[str, Any]


class PatternParser:
    """Collects rows of metrics from lines of output. A row is complete once every named group has matched.

    Lines of several ranks for the same step are one row: rank 0's where lines name ranks, else their mean.
    """

    def __init__(
        self,
        patterns: Sequence[re.Pattern[str]],
        *,
        ranks: int = 1,
        hold_first_row: bool = True,
        is_whole: bool = False,
    ) -> None:
        """`ranks`: how many processes may print the same line; `is_whole`: no row is needed before the last line."""
        self._patterns = patterns
        self._groups = {name for pattern in patterns for name in pattern.groupindex}
        self._labels = RankLabels(ranks)
        self._mean = RankMean(ranks, holds_first=hold_first_row, holds_all=is_whole and ranks > 1)
        self._units: dict[str, str] = {}  # of each metric, the first
        self._open: dict[str, Any] = {}  # the incomplete row
        self._rows: list[dict[str, Any]] = []
        self.warning = ""  # about the first number that a pattern matches only partly
        self.error = ""  # about the first one that cannot be read, for its separators

    def add_line(self, line: str) -> None:
        """Search a line with all patterns."""
        line = line.strip()
        self._labels.note(line)
        for place, pattern in enumerate(self._patterns):
            if match := pattern.search(line):
                found = {name: value for name, value in match.groupdict().items() if value is not None}
                for name in list(found):
                    if error := _separator_error(match, name):
                        self.error = self.error or error
                        self.warning = self.warning or error
                        del found[name]
                if len(found) == len(match.re.groupindex):
                    self.warning = self.warning or _partial_number_warning(match) or self._unit_warning(match, found)
                if not found:
                    continue
                for reported in self._labels.select(match, _Reported(place, _without_values(match), found)):
                    self._add(reported)

    @property
    def of_several_ranks(self) -> set[str]:
        """The metrics that more than one rank has printed."""
        return self._labels.of_several_ranks | self._mean.of_several_ranks

    @property
    def rank_warning(self) -> str:
        """A warning about what is taken for the lines of several ranks; "" if nothing is."""
        return self._labels.warning or self._mean.warning

    def take_rows(self, *, final: bool) -> list[dict[str, Any]]:
        """The rows completed since the last call; with `final`, also the incomplete one."""
        if final:
            for reported in self._labels.rest():
                self._add(reported)
            self._add_values(self._mean.end())
        if final and self._open:
            self._close_row()
        rows, self._rows = self._rows, []
        return rows

    def _unit_warning(self, match: "re.Match[str]", names: Iterable[str]) -> str:
        """What is wrong with the letters after a number, which are not read: they scale it, as in `950K`, or change."""
        for name in names:
            end = match.end(name)
            unit = _UNIT.match(match.string, end) if match[name][-1:].isdigit() else None
            if unit is None:
                continue
            first = self._units.setdefault(name, unit["unit"])
            if first != unit["unit"]:
                return f"{name} has the unit {first} and then {unit['unit']}, {REMEDY_FOR_UNITS}"
            if _SCALES.match(match.string, end) and not _is_required(match, name, end):
                return f"{name} has the unit {first} in {match[name] + unit[0]!r}, {REMEDY_FOR_UNITS}"
        return ""

    def _add(self, reported: _Reported) -> None:
        self._add_values(self._mean.add(reported))

    def _add_values(self, values: Sequence[dict[str, Any]]) -> None:
        for found in values:
            if found.keys() & self._open.keys():
                self._close_row()
            self._open |= found
            if self._open.keys() >= self._groups:
                self._close_row()

    def _close_row(self) -> None:
        self._rows.append(self._open)
        self._open = {}


class RankMean:
    """Merges consecutive lines that differ only in their values, as several ranks print them for a step.

    Of ranks that do not print a step at the same time, the lines can be merged only once all of them are known.
    """

    def __init__(self, ranks: int, *, holds_first: bool, holds_all: bool) -> None:
        """With `holds_first`, the first line is held until it is known whether it is repeated; else it counts alone."""
        self._ranks, self._holds_first, self._holds_all = ranks, holds_first, holds_all
        self._steps: dict[tuple[object, ...], list[_Reported]] = {}  # the lines of each step, in order
        self._same: list[_Reported] = []  # the lines of a step
        self._is_passed_on = False  # the first of them
        self._is_repeated: dict[int, bool] = {}  # whether the lines of a pattern are, once it is known
        self.of_several_ranks = set[str]()  # the metrics that may be those of several ranks
        self.warning = ""

    def add(self, reported: _Reported) -> list[dict[str, Any]]:
        """The values that count, now that there is a further line."""
        key = (*reported[:2], None if reported.line else object())
        step = self._steps.setdefault(key, []) if self._ranks > 1 else []
        if step:
            self._is_repeated.setdefault(reported.pattern, True)
            self._note_same(reported, is_equal=step[-1].values == reported.values)
        step.append(reported)
        del step[: -self._ranks]
        if self._holds_all:
            return []
        if len(self._steps) > KEPT_STEPS:
            del self._steps[next(iter(self._steps))]
        last = self._same[-1] if self._same else None
        is_same = last is not None and reported.line != "" and reported[:2] == last[:2]
        passed = list[dict[str, Any]]()
        if is_same:
            self._is_repeated.setdefault(reported.pattern, True)
            self._note_same(reported, is_equal=last is not None and reported.values == last.values)
        else:
            passed = self.end()
        self._same.append(reported)
        is_repeated = self._is_repeated.get(reported.pattern, self._holds_first)
        if self._ranks == 1 or not reported.line or not is_repeated:
            self._same, self._is_passed_on = [reported], True
            return [*passed, reported.values]
        return [*passed, *self.end()] if len(self._same) == self._ranks else passed

    def end(self) -> list[dict[str, Any]]:
        """The values of the step, or of all steps, whose lines were held."""
        if self._holds_all:
            steps, self._steps = self._steps, {}
            return [_mean_of([each.values for each in step]) for step in steps.values()]
        same, self._same = self._same, []
        is_passed_on, self._is_passed_on = self._is_passed_on, False
        if same and same[0].line:
            self._is_repeated.setdefault(same[0].pattern, False)
        return [_mean_of([each.values for each in same])] if same and not is_passed_on else []

    def _note_same(self, reported: _Reported, *, is_equal: bool) -> None:
        """Take notice of a line that differs from an earlier one only in its values."""
        if self._ranks > 1:
            self.of_several_ranks |= reported.values.keys()
        if not is_equal and not self.warning:
            is_mean = self._ranks > 1 and self._is_repeated[reported.pattern]
            counts = "their mean counts" if is_mean else "the last counts"
            self.warning = (
                f"lines that differ only in their values, as {reported.line!r}, may be those of several ranks: "
                f"{counts}; let rank 0 alone print them"
            )


def _mean_of(values: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The values of one row; of several, the mean of each metric, which is NaN if one is no finite number."""
    if len(values) == 1:
        return values[0]
    rows = [numeric_row(each) for each in values]
    mean = dict[str, Any]()
    for name in rows[0]:
        numbers = [row[name] for row in rows if name in row]
        finite = [number for number in numbers if number is not None]
        if len(finite) < len(numbers):
            mean[name] = math.nan
        else:
            mean[name] = numbers[0] if len(set(numbers)) == 1 else math.fsum(finite) / len(finite)
    return mean


_COUNTERS: Final = re.compile(r"epoch|step|iter", re.IGNORECASE)  # in the names of metrics
_COUNTED: Final = re.compile(r"(?:epoch|step|iter(?:ation)?)[\s:=\[/#]{0,3}\d", re.IGNORECASE)
# A step that all ranks name alike: `'epoch': 1.5`, and that of `step 3. loss`. Durations are none.
_STEP: Final = re.compile(
    r"(?<!/)(?<!per )(?:epoch[\"']?[\s:=\[(]{0,3}\d+(?:\.\d+)?|(?:step|iter(?:ation)?)[\"']?[\s:=\[(]{0,3}\d+)"
    r"(?!\d|[.:]\d| ?m?s\b)",
    re.IGNORECASE,
)
# Numbers that differ between ranks: fractions, times of day and durations, memory.
_VALUE: Final = re.compile(
    r"(?<!\d)(?:\d++(?::\d++)+(?:[.,]\d+)?|\d++\.\d*+(?:[eE][+-]?\d+)?)|\b(?:nan|inf)\b", re.IGNORECASE
)


def _without_values(match: "re.Match[str]") -> str:
    """The line, with `#` for each number that may differ between the ranks that print it for the same step.

    "" if it has no number of a step.
    """
    line, names = match.string, [name for name in match.re.groupindex if match[name] is not None]
    counters = [name for name in names if _COUNTERS.search(name)]
    if not counters and not _COUNTED.search(line):
        return ""
    for start, end in sorted((match.span(name) for name in names if name not in counters), reverse=True):
        line = f"{line[:start]}#{line[end:]}"
    steps = [found.span() for found in _STEP.finditer(line)]
    for found in reversed(list(_VALUE.finditer(line))):
        start, end = found.span()
        if not any(first < end and start < last for first, last in steps):
            line = f"{line[:start]}#{line[end:]}"
    return line


_NAMED_RANK: Final = re.compile(
    r"\W*(?:rank[ :=]*(?P<rank>\d+)\b|default(?P<torchrun>\d+)\]|\d+,(?P<mpi>\d+)\]<std(?:out|err)>)[\]:|]*",
    re.IGNORECASE,
)
_NUMBERED: Final = re.compile(r"(?:(\d{1,5}):|\[(\d{1,5})\]:?) ")  # as `srun --label` and `mpiexec -prepend-rank` write
KEPT_STEPS: Final = 1000  # in which a line of another rank is looked for
AWAITED_ROWS: Final = 3  # of other ranks, until rank 0 is known to print none
FEWEST_RANKS: Final = 8  # as many processes may print where no GPUs tell how many there are


class RankLabels:
    """Selects what the lowest rank prints, where lines name ranks: `[rank0]:`, `[1,0]<stdout>`, or `0: ` on all lines.

    The numbers at the beginnings of lines are ranks if they go back: those of epochs do not.
    """

    def __init__(self, ranks: int) -> None:
        """`ranks`: how many processes may print; numbers that rise beyond them are those of epochs."""
        self._most = max(ranks, FEWEST_RANKS)
        self._lead: int | None = None  # the rank that counts
        self._held: list[tuple[int, _Reported]] = []  # of other ranks, until it is known
        self._names: dict[str, set[int]] = {}  # of each metric, the ranks that have printed it
        self._is_numbered, self._last_number = True, -1  # whether all lines begin with a number
        self._are_numbers_ranks = False
        self.warning = ""

    @property
    def of_several_ranks(self) -> set[str]:
        """The metrics that more than one rank has printed."""
        return {name for name, ranks in self._names.items() if len(ranks) > 1}

    def note(self, line: str) -> None:
        """Take notice of a line of output, also of one without metrics."""
        if line and not line.startswith("srun: "):
            self._is_numbered = self._is_numbered and _NUMBERED.match(line) is not None

    def select(self, match: "re.Match[str]", reported: _Reported) -> list[_Reported]:
        """What counts now, of this line and those that were held."""
        named, numbered = _NAMED_RANK.match(match.string), _NUMBERED.match(match.string)
        first = min(match.start(name) for name in match.re.groupindex if match[name] is not None)
        is_own = "rank" in match.re.pattern.partition("(?P<")[0].lower()  # as in `rank1: (?P<rank1>{number})`
        if named and named.end() <= first and not is_own:
            rank = int(named["rank"] or named["torchrun"] or named["mpi"] or 0)
            self._count(rank, reported)
            return self._select(rank, reported)
        may_be_rank = self._is_numbered or self._are_numbers_ranks
        if numbered is None or numbered.end() > first or not may_be_rank:
            return [*self._release(), reported]
        number = int(numbered[1] or numbered[2])
        self._are_numbers_ranks = self._are_numbers_ranks or number < self._last_number
        self._last_number = number
        if self._are_numbers_ranks:
            self.warning = "the numbers at the beginning of all lines are taken for ranks, as those of `srun --label`"
            for rank, held in self._held:
                self._count(rank, held)
            self._count(number, reported)
            return self._select(number, reported)
        self._is_numbered = number < self._most
        if number == 0 or not self._is_numbered:
            return [*self._release(), reported]
        self._held.append((number, reported))
        return []

    def rest(self) -> list[_Reported]:
        """What was held and counts, once there are no further lines."""
        if self._last_number >= 0 and not self._are_numbers_ranks:
            return self._release()
        return self._lead_with(min((rank for rank, _ in self._held), default=0))

    def _count(self, rank: int, reported: _Reported) -> None:
        for name in reported.values:
            self._names.setdefault(name, set()).add(rank)

    def _select(self, rank: int, reported: _Reported) -> list[_Reported]:
        if self._lead is not None:
            self._lead = min(self._lead, rank)
            return [reported] if rank == self._lead else []
        self._held.append((rank, reported))
        ranks = [held for held, _ in self._held]
        if rank == 0 or ranks.count(rank) > AWAITED_ROWS:
            return self._lead_with(min(ranks))
        return []

    def _lead_with(self, rank: int) -> list[_Reported]:
        self._lead = rank
        selected = [reported for held, reported in self._held if held == rank]
        self._held = []
        return selected

    def _release(self) -> list[_Reported]:
        released = [reported for _, reported in self._held]
        self._held = []
        return released


_WHOLE_NUMBER: Final = re.compile(rf"(?:\d+(?:\.\d+)?|\.\d+)(?:[eE][+\-{MINUS}]?\d+)?")
_IN_NUMBER: Final = f"0123456789.eE+-{MINUS}"
_SIGN_BEFORE: Final = re.compile(rf"(?:^|[\s=:,;(\[|])[-{MINUS}]$")
_QUANTIFIER: Final = re.compile(r"(?<!\\)[*+?]$")  # as in `.*`, which takes the first digits of a number


_INTEGER: Final = re.compile(rf"[+\-{MINUS}]?\d+|[1-9]\d{{0,2}}(?:\.\d{{3}})+")  # also as in 1.234,5
# Two columns, as in `85,0.32`, are not one number.
_SEPARATED_AFTER: Final = re.compile(rf"(?:[{SEPARATORS}]\d++)+(?!\.)|(?:[{SEPARATORS}]\d{{3}})+\.\d+")
_SEPARATED_BEFORE: Final = re.compile(rf"(?<![\d.])\d+[{SEPARATORS}]$")
_SPACED_AFTER: Final = re.compile(r" \d{3}(?:\.\d+)?(?![\w:/%])(?! \d{3})|(?: \d{3}){2,}(?:\.\d+)?(?![\w:/%])")
_CLOCK_AFTER: Final = re.compile(r"(?::[0-5]\d)+(?:\.\d+)?(?![\w:])")  # 1:32
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
    clock = _CLOCK_AFTER.match(line, end) if is_whole and not _COUNTERS.search(name) else None
    if clock and not after and not before:
        remedy, after = "have the program print one number, as that of the seconds", clock
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
