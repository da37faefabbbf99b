"""Metrics in the output of a program: regular expressions that are applied to its lines."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any, Final, NamedTuple

from trainyard.config.user_programs import MINUS, NUMBER, SEPARATORS
from trainyard.programs.metric_rows import REMEDY_FOR_UNITS, ReadingNotes, find_subject, has_decimal_comma, numeric_row

# After a number; `s`, `m` and the like begin no word.
_UNIT: Final = re.compile(r" ?(?P<unit>%|[kKMGT]?i?B|[kKMGT]|[nuµm]?s|sec|min|m|h)(?![A-Za-z])")
_SCALES: Final = frozenset("kKMGT")
_WORDS_TELL: Final = "let the pattern match the words before those numbers that count"


class _Reported(NamedTuple):
    """What a pattern has found in a line."""

    pattern: int  # the place of the pattern
    line: str  # without the numbers that differ between ranks; "" if it names no step
    values: dict[str, Any]


class PatternParser:
    """Collects rows of metrics from lines of output. A row is complete once every named group has matched.

    Lines of several ranks for the same step are one row: rank 0's where lines name ranks, else their mean.
    """

    error = ""  # as of files
    is_complete = True

    def __init__(
        self,
        patterns: Sequence[re.Pattern[str]],
        notes: ReadingNotes,
        *,
        ranks: int = 1,
        hold_first_row: bool = True,
    ) -> None:
        """`ranks`: how many processes may print the same line; `hold_first_row`: as in `MetricsCollector`."""
        self._patterns = patterns
        self._signed = [_with_signs(pattern) for pattern in patterns]
        self._notes = notes
        self._groups = {name for pattern in patterns for name in pattern.groupindex}
        self._labels = RankLabels(notes)
        self._mean = RankMean(ranks, notes, holds_first=hold_first_row)
        self._training: dict[str, str] = {}  # of several in the program: the number of the first one
        self._looked_at = set[str]()  # metrics
        self.has_reported = False
        self._open: dict[str, Any] = {}  # the incomplete row
        self._rows: list[dict[str, Any]] = []

    def add_line(self, line: str) -> None:
        """Search a line with all patterns."""
        line = line.strip()
        for place, pattern in enumerate(self._patterns):
            matches = _matches(pattern, line)
            for match in matches:
                self._add_match(place, match)
            signed = self._signed[place]
            if signed and not matches and (missed := signed.search(line)):
                for name, text in missed.groupdict().items():
                    if text and _SIGNED.fullmatch(text):
                        written = pattern.pattern.replace(NUMBER, "{number}")
                        problem = f"the pattern {written} does not match {text} for {name}"
                        self._notes.refuse(name, f"{problem}: write (?P<{name}>{{number}})")

    def _add_match(self, place: int, match: "re.Match[str]") -> None:
        names = [name for name, value in match.groupdict().items() if value is not None]
        texts = {name: match[name] for name in names if self._is_read(match, name)}
        if texts:
            self._note_training(match, texts)
            for reported in self._labels.select(match, _Reported(place, _without_values(match), texts)):
                self._add_values(self._mean.add(reported))

    def _note_other(self, match: "re.Match[str]", name: str, subject: str) -> None:
        """Take notice of a line in which a pattern would find a metric again, of other data that no group names."""
        if name in self._looked_at or any(find_subject(f"{group} ") for group in self._groups):
            return
        self._looked_at.add(name)
        other = match.re.search(match.string, match.end())
        if other and other[name] and subject != (also := find_subject(match.string[: other.start(name)])):
            both = f"{name} is of {subject or 'unnamed data'}, and the same line has it of {also or 'unnamed data'}"
            self._notes.warn(f"others of {name}", f"{both}: the first counts; {_WORDS_TELL}")

    def _note_training(self, match: "re.Match[str]", names: Mapping[str, Any]) -> None:
        """Take notice of lines of several trainings, as of the folds of a cross-validation."""
        for kind, number in _TRAINING.findall(match.string):
            if self._training.setdefault(kind, number) != number:
                several = f"lines name {kind} {self._training[kind]} and {kind} {number}"
                remedy = "to rank by all, have the program print their mean under another name"
                counts = f"which count as epochs of one training: {remedy}"
                self._notes.warn("trainings", f"{', '.join(names)}: {several}, {counts}")

    def new_rows(self, *, final: bool, torn: bool = False) -> list[dict[str, Any]]:
        """The rows completed since the last call; with `final`, also the incomplete one: no line is `torn`."""
        if final:
            for reported in self._labels.rest():
                self._add_values(self._mean.add(reported))
            self._add_values(self._mean.end())
        if final and self._open:
            self._close_row()
        rows = self._rows
        self._rows = []
        self.has_reported = self.has_reported or bool(rows)
        return rows

    def _is_read(self, match: "re.Match[str]", name: str) -> bool:
        """Whether the text of a group is a whole number, in the unit of those before it."""
        if problem := _find_part(match, name):
            self._notes.refuse(name, problem)
            return False
        if _COUNTERS.search(name):
            return True
        subject = find_subject(match.string[: match.start(name)])
        if not self._notes.note_subject(name, subject, _WORDS_TELL, pattern=match.re.pattern):
            return False
        self._note_other(match, name, subject)
        if not match[name].endswith((*"0123456789%",)):
            return True
        after = _UNIT.match(match.string, match.end(name))
        unit = after["unit"] if after else ""
        if match[name].endswith("%"):
            unit = "%"
        if after and unit in _SCALES and not _is_required(match, name, match.end(name)):
            printed = match[name] + after[0]
            self._notes.refuse(name, f"{name} has the unit {unit} in {printed!r}, {REMEDY_FOR_UNITS}")
            return False
        return self._notes.note_unit(name, unit)

    def _add_values(self, values: Sequence[dict[str, Any]]) -> None:
        for row in values:
            if row.keys() & self._open.keys():
                self._close_row()
            self._open |= row
            if self._open.keys() >= self._groups:
                self._close_row()

    def _close_row(self) -> None:
        self._rows.append(self._open)
        self._open = {}


_SIGNED: Final = re.compile(rf"[-{MINUS}]\d[\d.eE+-]*|(?i:[-+]?(?:nan|inf(?:inity)?)\b)")
_OWN_CLASS: Final = re.compile(r"\(\?P<(?P<name>\w+)>(?P<digits>(?:[^()\[\\]|\\.|\[(?:[^\]\\]|\\.)+\])+)\)")


def _with_signs(pattern: re.Pattern[str]) -> re.Pattern[str] | None:
    """The pattern whose groups of digits also match negative numbers and NaN; None if it has no such group."""
    signed = _OWN_CLASS.sub(
        lambda group: group[0] if _COUNTERS.search(group["name"]) else f"{group[0][:-1]}|{_SIGNED.pattern})",
        pattern.pattern,
    )
    return re.compile(signed, pattern.flags) if signed != pattern.pattern else None


def _matches(pattern: re.Pattern[str], line: str) -> list["re.Match[str]"]:
    """What a pattern finds in a line, or in each of several that stand in it without a line's end between them.

    With PYTHONUNBUFFERED, `print` writes the end of a line by itself, and another rank may write before it.
    """
    first = pattern.search(line)
    if first is None:
        return []
    number = re.compile(r"\d+").search(line, first.start())
    beginning = line[: number.end() if number else first.end()]
    texts = re.split(r"\d+", beginning)
    if texts[0] not in line[len(beginning) :]:
        return [first]
    end_before = r"(?<=[^\W_]|[.)\]}%!])" if texts[0] else r"(?<=[^\W\d_]|[)\]}%!])"
    lines = re.compile(end_before + r"\d++".join(map(re.escape, texts)))
    starts = [0, *(match.start() for match in lines.finditer(line, len(beginning))), len(line)]
    parts = [line[start:end] for start, end in pairwise(starts)]
    matches = list(filter(None, map(pattern.search, parts)))
    # As in `loss 0.5 valloss 0.4`, a name may end with another one. But ranks print the same words.
    words = {" ".join(re.sub(r"\d+", "#", _VALUE.sub("#", part)).split()) for part in parts}
    return matches if len(matches) == len(parts) and len(words) == 1 else [first]


def parse_lines(
    patterns: Sequence[re.Pattern[str]], lines: Iterable[str]
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """The rows that patterns find in some lines, and by metric, why its values cannot be read."""
    notes = ReadingNotes()
    parser = PatternParser(patterns, notes)
    for line in lines:
        parser.add_line(line)
    return parser.new_rows(final=True), notes.unread


class RankMean:
    """Merges consecutive lines that differ only in their values, as several ranks print them for a step."""

    def __init__(self, ranks: int, notes: ReadingNotes, *, holds_first: bool) -> None:
        """With `holds_first`, the first line is held until it is known whether it is repeated; else it counts alone."""
        self._ranks = ranks
        self._notes = notes
        self._holds_first = holds_first
        self._seen: dict[tuple[int, str], dict[str, Any]] = {}  # values by pattern and line; of one rank, the last ones
        self._same: list[_Reported] = []  # the lines of a step that are held
        self._is_repeated: dict[int, bool] = {}  # whether the lines of a pattern are, once it is known

    def add(self, reported: _Reported) -> list[dict[str, Any]]:
        """The values that count, now that there is a further line."""
        if not reported.line:
            return [*self.end(), reported.values]
        key = (reported.pattern, reported.line)
        is_next = next(reversed(self._seen), None) == key
        if key in self._seen:
            self._note_same(reported, is_next=is_next, is_equal=self._seen.pop(key) == reported.values)
        if self._ranks == 1:
            self._seen = {key: reported.values}
            return [reported.values]
        self._seen[key] = reported.values
        if len(self._seen) > KEPT_STEPS:
            del self._seen[next(iter(self._seen))]
        passed = [] if is_next else self.end()
        if not self._is_repeated.get(reported.pattern, self._holds_first):
            return [*passed, reported.values]
        self._same.append(reported)
        return [*passed, *self.end()] if len(self._same) == self._ranks else passed

    def end(self) -> list[dict[str, Any]]:
        """The values of the step whose lines were held."""
        same = self._same
        self._same = []
        if not same:
            return []
        self._is_repeated.setdefault(same[0].pattern, False)
        return [_mean_of([each.values for each in same])]

    def _note_same(self, reported: _Reported, *, is_next: bool, is_equal: bool) -> None:
        """Take notice of a line that differs from an earlier one only in its values."""
        if self._ranks > 1:
            self._notes.of_several_ranks |= reported.values.keys()
        if is_next:
            self._is_repeated.setdefault(reported.pattern, True)
        if not is_equal:
            is_mean = self._ranks > 1 and is_next and self._is_repeated[reported.pattern]
            counts = "their mean counts" if is_mean else "the last counts"
            remedy = "if they are those of several ranks, let rank 0 alone print them"
            differ = f"lines that differ only in their values, as {reported.line!r}"
            self._notes.warn("ranks", f"{differ}: {counts}; {remedy}")


def _mean_of(values: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The values of one row; of several, the mean of each metric, which is NaN if one is no finite number."""
    if len(values) == 1:
        return values[0]
    rows = [numeric_row(each) for each in values]
    return {name: _mean([row[name] for row in rows if name in row]) for name in rows[0]}


def _mean(numbers: Sequence[float | int | None]) -> float | int:
    """The mean; a number that all ranks print stays as it is: the mean of three times 0.1 is another one."""
    known = [math.nan if number is None else number for number in numbers]
    return known[0] if len(set(known)) == 1 else fmean(known)


_TRAINING: Final = re.compile(r"(?<![a-z])(fold|run|seed|split|repeat)[\s:=#]{0,3}(\d+)", re.IGNORECASE)
_COUNTERS: Final = re.compile(r"epoch|step|iter", re.IGNORECASE)  # in the names of metrics
_COUNTED: Final = re.compile(r"(?:epoch|step|iter(?:ation)?)[\s:=\[/#\"']{0,4}\d", re.IGNORECASE)
# A step that all ranks name alike: `'epoch': 1.5`, and that of `step 3. loss`. Durations are none.
_STEP: Final = re.compile(
    r"(?<!/)(?<!per )(?:epoch[\s:=\[(\"']{0,4}\d+(?:\.\d+)?|(?:step|iter(?:ation)?)[\s:=\[(\"']{0,4}\d+)"
    r"(?!\d|[.:]\d| ?m?s\b)",
    re.IGNORECASE,
)
# Numbers that differ between ranks: fractions, times of day and durations, memory.
_VALUE: Final = re.compile(
    r"(?<!\d)(?:\d++(?::\d++)+(?:[.,]\d+)?|\d++\.\d*+(?:[eE][+-]?\d+)?)|\b(?:nan|inf)\b", re.IGNORECASE
)


# May be a rank, as `srun --label` and `mpiexec -prepend-rank` write it before each line.
_NUMBERED: Final = re.compile(r"(?:\d{1,5}:|\[\d{1,5}\]:?) ")


# As in `[rank0]:`, `local_rank=1`, `[GPU1]`, `cuda:1` and `(Process 1)`, but not `GPU 1.5 GB` and `Process 5/90`.
_LABEL: Final = (
    r"(?:rank|local_rank|global_rank|gpu|cuda|process(?! *\d+/))[ :=]*"
    r"(?P<rank>\d+)(?!\w|[.,]\d| ?%| [KMG]i?B)"
)
_LABEL_ANYWHERE: Final = re.compile(rf"(?<![^\W\d]){_LABEL}", re.IGNORECASE)


def _without_values(match: "re.Match[str]") -> str:
    """The line, with `#` for each number that may differ between the ranks that print it for the same step.

    "" if it has no number of a step.
    """
    names = [name for name in match.re.groupindex if match[name] is not None]
    rank = _NUMBERED.match(match.string)
    line = match.string
    if rank and rank.end() <= min(match.start(name) for name in names):
        line = "#" * rank.end() + line[rank.end() :]
    for label in _LABEL_ANYWHERE.finditer(line):
        start, end = label.span("rank")
        if all(end <= match.start(name) or match.end(name) <= start for name in names):
            line = line[:start] + "#" * (end - start) + line[end:]
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
    rf"[\W\d]*+(?:{_LABEL}|default(?P<torchrun>\d+)\])[\]:|]*"
    r"|\W*+\d+,(?P<mpi>\d+)\]<std(?:out|err)>[\]:|]*",
    re.IGNORECASE,
)
_NAMED_RANK_AT_END: Final = re.compile(rf"[(\[]{_LABEL}[)\]]$", re.IGNORECASE)
KEPT_STEPS: Final = 1000  # in which a line of another rank is looked for
AWAITED_ROWS: Final = 3  # of other ranks, until rank 0 is known to print none


class RankLabels:
    """Selects what the lowest rank prints, where lines name their ranks, as in `[rank0]:` or `[1,0]<stdout>`."""

    def __init__(self, notes: ReadingNotes) -> None:
        self._notes = notes
        self._lead: int | None = None  # the rank that counts
        self._held: list[tuple[int, _Reported]] = []  # of other ranks, until it is known
        self._names: dict[str, set[int]] = {}  # of each metric, the ranks that have printed it
        self._values: dict[tuple[int, str], dict[str, Any]] = {}  # the last ones of each pattern and line

    def select(self, match: "re.Match[str]", reported: _Reported) -> list[_Reported]:
        """What counts now, of this line and those that were held."""
        rank = _find_rank(match)
        if rank is None:
            return [reported]
        for name in reported.values:
            ranks = self._names.setdefault(name, set())
            ranks.add(rank)
            if len(ranks) > 1:
                self._notes.of_several_ranks.add(name)
        self._note_values(reported)
        if self._lead is not None:
            self._lead = min(self._lead, rank)
            return [reported] if rank == self._lead else []
        self._held.append((rank, reported))
        count = sum(held == rank for held, _ in self._held)
        return self.rest() if rank == 0 or count > AWAITED_ROWS else []

    def rest(self) -> list[_Reported]:
        """What was held and counts, once it is known which ranks print."""
        if not self._held:
            return []
        self._lead = min(rank for rank, _ in self._held)
        selected = [reported for rank, reported in self._held if rank == self._lead]
        self._held = []
        return selected

    def _note_values(self, reported: _Reported) -> None:
        key = (reported.pattern, reported.line)
        is_other = self._values.get(key, reported.values) != reported.values
        self._values = {key: reported.values}
        if reported.line and is_other and self._notes.of_several_ranks:
            several = f"several ranks print lines as {reported.line!r} with different values"
            self._notes.warn("ranks", f"{several}: those of the lowest count; let rank 0 alone print them")


def _find_rank(match: "re.Match[str]") -> int | None:
    """The rank that a line names before or after what a pattern finds; None if it names none."""
    names = [name for name in match.re.groupindex if match[name] is not None]
    before = _NAMED_RANK.match(match.string, 0, min(match.start(name) for name in names))
    is_own = "rank" in match.re.pattern.partition("(?P<")[0].lower()  # as in `rank1: (?P<rank1>{number})`
    if before and not is_own:
        return int(before["rank"] or before["torchrun"] or before["mpi"])
    behind = _NAMED_RANK_AT_END.search(match.string, max(match.end(name) for name in names))
    return int(behind["rank"]) if behind else None


# Whole numbers, also such as are not read: with a decimal comma, spaces between digits, or colons.
# Two columns, as in `85,0.32`, are not one number.
_WHOLE: Final = re.compile(
    rf"(?:(?<![^\s=:,;(\[|])[-{MINUS}])?"
    rf"(?:[1-9]\d{{0,2}}(?:\.\d{{3}})+,\d++(?!\.)"
    rf"|\d+(?:(?:[{SEPARATORS}]\d++)+(?!\.)|(?:[{SEPARATORS}]\d{{3}})+\.\d+|\.\d+)?|\.\d+)"
    rf"(?:[eE][+\-{MINUS}]?\d+|[dD][+\-{MINUS}]\d+| ?[x*\u00d7\u00b7] ?10(?:\^|\*\*)[+\-{MINUS}]?\d+)?"
)
_SPACED: Final = re.compile(rf"(?<![\w.,:/+\-])[+\-{MINUS}]?[1-9]\d{{0,2}}(?: \d{{3}})++(?:\.\d+)?(?![\w:/%])")
_CLOCK: Final = re.compile(r"(?<![\d:.])\d+(?::[0-5]\d)++(?:\.\d+)?(?![\w:])")  # 1:32


def _find_part(match: "re.Match[str]", name: str) -> str:
    """Why the text of a group is only a part of a number, as `1.2` of `1.2e-05`, or `1` of `1 234.5`; "" if it is not.

    What the pattern itself matches beside the group stands between two numbers.
    """
    pattern = match.re.pattern.replace(NUMBER, "{number}")  # as the user wrote it
    if has_decimal_comma(match[name]):
        return f"the pattern {pattern} finds {match[name]} for {name}: have the program print a decimal point"
    kinds = {
        _WHOLE: "have the program print it with a decimal point and no other separators, and let "
        f"(?P<{name}>{{number}}) match all of it",
        _SPACED: "if these are two numbers, let the pattern match both; else have the program print it without space",
        _CLOCK: "have the program print one number, as that of the seconds",
    }
    start, end = match.span(name)
    for kind, remedy in kinds.items():
        if kind is not _WHOLE and _COUNTERS.search(name):
            continue
        for number in kind.finditer(match.string):
            if number.end() <= start or end <= number.start():
                continue
            begins_before = number.start() < start and not _is_required(match, name, start - 1)
            ends_behind = end < number.end() and not _is_required(match, name, end)
            if begins_before or ends_behind:
                if kind is _WHOLE and "," not in number[0] and re.fullmatch(NUMBER, number[0]):
                    remedy = f"write (?P<{name}>{{number}})"
                return f"the pattern {pattern} matches only {match[name]!r} of {number[0]!r} for {name}: {remedy}"
    return ""


def _is_required(match: "re.Match[str]", name: str, at: int) -> bool:
    """Whether the pattern needs the character at this place of the line to find the same number."""
    other = match.re.search(f"{match.string[:at]}\0{match.string[at + 1 :]}")
    return other is None or other.span(name) != match.span(name)
