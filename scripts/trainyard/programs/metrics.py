"""Metrics that a user's program reports while it runs: rows of numbers by name, from a file or from its output."""

import math
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from trainyard.config.metric_names import is_counter, is_timing
from trainyard.config.user_programs import Complete, Metrics, find_mismatch
from trainyard.programs.metric_files import (
    BEFORE,
    EventFiles,
    MatchingFiles,
    State,
    file_states,
    find_shared_file,
    has_changed,
    metric_files,
    suggest_pattern,
)
from trainyard.programs.metric_patterns import PatternParser
from trainyard.programs.metric_rows import (
    BURST_ROWS,
    RESUMED_BURST_ROWS,
    ROWS_PER_SECOND,
    ReadingNotes,
    Row,
    RowLimiter,
    find_subject,
    has_decimal_comma,
    may_have_decimal_comma,
    merge_row,
    numeric_row,
    take_epoch,
    thin_rows,
)
from trainyard.programs.output import read_saved_lines

_AT_EACH_START: Final = re.compile(rf"\.ya?ml$|tfevents|\.pyc$|{re.escape(BEFORE)}$")
_TEXTS_TELL: Final = "only a text in its rows tells which: have the program give both metrics names of their own"
KEPT_LINES: Final = 100  # the last ones, for the error that names the part of a pattern that matches,
KEPT_CHARACTERS: Final = 300  # and of each: the parts of a pattern with several `.*` take cubic time
UNREADABLE_REMEDY: Final = (
    "It is not run again: correct `metrics`, and the same command reads the saved output again, without running "
    "anything. If the program itself must be corrected, increase `retrain`"
)


class MetricsCollector:
    """Collects rows: call `add_line` for each line of output, `new_rows` regularly, and once more with `final`."""

    def __init__(
        self,
        metrics: Metrics | None,
        folder: Path,
        *,
        complete: Complete | None = None,
        checkpoint: str | None = None,
        resumes: bool = False,
        began: float | None = None,
        ranks: int = 1,
        hold_first_row: bool = True,
        burst: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """If the program `resumes` an earlier attempt, the rows that are in the file already are those before its own.

        Of a program that has ended, `began` is its start, in Unix seconds: what was written since is its own, and no
        file is renamed. `ranks`: how many of its processes may print the same line.

        With `hold_first_row`, the first row is held until it is known whether its epoch is reported again. Early
        stopping needs this: it must not judge the first values of an epoch that is still running.
        """
        self.section = metrics
        self.folder = folder
        self.complete = complete
        self._checkpoint = checkpoint  # the pattern of its files in the folder
        self._began = time.time() if began is None else began
        self._has_line = False  # that says that the program is complete
        self._notes = ReadingNotes()
        self._row_count = 0
        self._hold_first_row = hold_first_row
        self._epoch: float | None = None  # the last one that was reported
        self.latest: Row = {}  # the last value of each metric in all rows until the latest `new_rows`
        self.counts_epochs = True  # whether each row had a whole number as its epoch
        self._limiter = RowLimiter(burst or (RESUMED_BURST_ROWS if resumes else BURST_ROWS), clock)
        self._is_final = False
        self._said = set[str]()  # warnings
        self._words: dict[str, tuple[Any, dict[str, str]]] = {}  # by metric: epoch and texts of the last row with it
        self._last_lines = deque[str](maxlen=KEPT_LINES)
        for path in metric_files(metrics, folder) if not resumes and began is None else ():
            path.rename(path.with_name(f"{path.name}{BEFORE}"))
        # The files of earlier attempts, without which this one has reported nothing.
        self._before = dict[Path, State]()
        self._resumes = resumes
        if metrics or complete:
            self._before = file_states(folder, self._done_files, until=math.inf if began is None else began)
        continued = self._before if resumes else {}
        self._parser = PatternParser(
            metrics.compiled if metrics else [], self._notes, ranks=ranks, hold_first_row=hold_first_row
        )
        self._source: PatternParser | MatchingFiles | EventFiles = self._parser
        if metrics and metrics.has_event_files:
            self._source = EventFiles(metrics, folder, continued)
        elif metrics and metrics.file:
            self._source = MatchingFiles(metrics, folder, continued, self._notes)

    @property
    def error(self) -> str:
        """Why a part of the file cannot be read; "" if nothing is wrong. Only after the `final` call of `new_rows`."""
        return self._source.error

    @property
    def missing(self) -> str:
        """Why no metrics were found, or not those that were printed; "" if all is well.

        Only after the `final` call of `new_rows`.
        """
        if not self._source.is_complete:
            return self.error
        if self.section is None or self._has_reported:
            return ""
        for problem in self.unread.values():
            return problem
        where = self.section.file or f"its output by {' and '.join(self.section.patterns)}"
        where_else = self._mismatch
        is_text = not self.section.has_event_files
        hint = find_shared_file(self.section, self.folder, self._began)
        if is_text and not hint:
            hint = suggest_pattern(self.section.file or "", self._left_files, self.folder)
        return self.error or f"it succeeded, but reported no metrics: none were found in {where}{where_else}{hint}"

    @property
    def incomplete(self) -> str:
        """Why the program is not complete if it ended with exit code 0; "" if it is. Only after the `final` call."""
        if self.complete is None:
            return ""
        # An earlier attempt wrote one that is as before. It counts if nothing was left to do for this one.
        before = self._before if self._has_reported or self._has_gone_on else {}
        has_file = has_changed(self._done_files, before)
        counts_steps = self.section is not None and self.section.is_wandb and not self._notes.names_epochs
        epoch = None if counts_steps else self._epoch
        return self.complete.missing(epoch=epoch, has_line=self._has_line, has_file=has_file)

    @property
    def _done_files(self) -> list[Path]:
        """What makes the program complete, of whichever attempt."""
        return list(self.folder.glob(self.complete.file)) if self.complete and self.complete.file else []

    @property
    def had_nothing_to_do(self) -> bool:
        """Whether a program that resumed wrote no metrics, no checkpoint and no such file: it was complete before.

        Only after the `final` call of `new_rows`, and if it succeeded.
        """
        has_problem = self.unread or not self._source.is_complete
        return self._resumes and not has_problem and not self._has_reported and not self._has_gone_on

    @property
    def _mismatch(self) -> str:
        """Which part of a pattern matches one of the last lines, none of which matches as a whole; "" if none does."""
        places = (find_mismatch(pattern, self._last_lines) for pattern in self.section.patterns) if self.section else ()
        return next(filter(None, places), "")

    @property
    def _has_gone_on(self) -> bool:
        """Whether the program has written a checkpoint, or, if its metrics are in files, any file.

        Beside metrics that are printed, a program that resumed after its last epoch may write a summary or a figure,
        unless it has printed metrics in another form.
        """
        left = self._left_files
        if not left or self._checkpoint is None or (self.section and self.section.file):
            return bool(left)
        checkpoints = set(self.folder.glob(self._checkpoint))
        has_saved = any(not checkpoints.isdisjoint((path, *path.parents)) for path in left)
        return has_saved or bool(self._mismatch)

    @property
    def _has_reported(self) -> bool:
        return bool(self.latest) and self._source.has_reported

    @property
    def _left_files(self) -> list[Path]:
        """The files that the program has written, but for what many write at each start: settings, logs of events."""
        states = file_states(self.folder)
        left = [path for path, state in states.items() if self._before.get(path) != state]
        return sorted(path for path in left if not _AT_EACH_START.search(path.name))

    @property
    def unread(self) -> dict[str, str]:
        """By metric: why its values cannot be read, or do not compare. They do not count."""
        return self._notes.unread

    @property
    def units(self) -> dict[str, str]:
        """The units of the metrics that have one, such as `ms` or `%`."""
        return {name: unit for name, unit in self._notes.units.items() if unit}

    def add_line(self, line: str) -> None:
        """Search a line of the output."""
        self._parser.add_line(line)
        self._has_line = self._has_line or (self.complete is not None and self.complete.is_line(line))
        self._last_lines.append(line.strip()[:KEPT_CHARACTERS])

    def new_rows(self, *, final: bool = False, torn: bool = False) -> list[Row]:
        """The rows since the last call; a row of a known epoch holds later values of it.

        Not every row is returned: see `RowLimiter`. The `final` call always returns the last row. `torn`: the program
        was killed or failed, so the end of its file may be only a part of a row.
        """
        self._is_final = final
        for row in self._source.new_rows(final=final, torn=torn):
            numbers = numeric_row(row)
            for name in self._find_unread(row, numbers):
                del numbers[name]
            if not numbers:
                continue
            self._row_count += 1
            reported = take_epoch(numbers)
            self.counts_epochs &= isinstance(reported, int)
            complete = reported is None or not self._hold_first_row  # without an epoch, each row is one
            self._epoch = self._epoch if reported is None else reported
            epoch = self._row_count if self._epoch is None else self._epoch
            self.latest |= numbers
            epoch_row: Row = {"epoch": epoch, **numbers}
            self._limiter.add(epoch_row, complete=complete)
        for name in self.unread if final else ():
            self.latest.pop(name, None)
        return self._limiter.take_rows(final=final)

    def _find_unread(self, row: Mapping[str, Any], numbers: Row) -> list[str]:
        """The numbers of a row that do not count: they have another unit, or are of other data, than those before."""
        texts = {name: value.strip() for name, value in row.items() if isinstance(value, str)}
        for name, text in texts.items():
            if has_decimal_comma(text):
                problem = f"{text} has a decimal comma; have the program print a decimal point"
                self._notes.refuse(name, f"{name} is not read: {problem}")
            elif may_have_decimal_comma(text):
                self._notes.warn("comma", f"{name}: the comma in {text} is taken to separate thousands")
        if self._source is self._parser:
            return []  # the parser of lines has looked at units and at the words before each number
        words = {key: text for key, text in texts.items() if key not in numbers and not re.search(r"\d", text)}
        subject = next(filter(None, map(find_subject, filter(str.isidentifier, words.values()))), "")
        melted = next((texts[key] for key in ("name", "metric", "key", "tag", "variable") if key in texts), "")
        epoch = numbers.get("epoch")
        unread = list[str]()
        for name in numbers:
            if is_counter(name) or is_timing(name):
                continue
            known_epoch, known_words = self._words.get(name, (None, words))
            self._words[name] = epoch, words
            for key in words if epoch is not None and epoch == known_epoch else ():
                if known_words.get(key, words[key]) != words[key]:
                    differ = f"{known_words[key]!r} and {words[key]!r}"
                    self._notes.warn("texts", f"{name}: rows of one epoch differ in {key}, {differ}: the last counts")
            is_read = self._notes.note_subject(name, (name == "value" and melted) or subject, _TEXTS_TELL)
            if is_read and numbers[name] is not None:
                is_read = self._notes.note_unit(name, "%" if texts.get(name, "").endswith("%") else "")
            if not is_read:
                unread.append(name)
        return unread

    def take_warning(self) -> str:
        """A new warning about how metrics are read; "" if there is none."""
        warnings = [*self._notes.warnings.values(), *self.unread.values(), self.error if self._is_final else ""]
        new = next((each for each in warnings if each and each not in self._said), "")
        self._said |= {new} - {""}
        return new

    def parsed(self, rows: Sequence[Row] = (), *, warning: str = "") -> "ParsedOutput":
        """What the program has reported in all, with these rows. Only after the `final` call of `new_rows`."""
        return ParsedOutput(
            rows=list(rows),
            metrics=self.latest,
            missing=self.missing,
            incomplete=self.incomplete,
            unread=self.unread,
            units=self.units,
            warning=warning,
            counts_epochs=self.counts_epochs,
            had_nothing_to_do=self.had_nothing_to_do,
            of_several_ranks=frozenset(self._notes.of_several_ranks),
        )


def first_unread(unread: Mapping[str, str], judged: Iterable[str]) -> str:
    """Why one of the metrics that judge a trial cannot be read; "" if all can."""
    return next((unread[name] for name in judged if name in unread), "")


@dataclass(frozen=True)
class ParsedOutput:
    """What a program has reported in all: the metrics in its output or its files."""

    rows: list[Row] = field(default_factory=list)
    metrics: Row = field(default_factory=dict)  # the last value of each
    missing: str = ""  # why there are none
    incomplete: str = ""  # as in `MetricsCollector`
    unread: dict[str, str] = field(default_factory=dict)  # as in `MetricsCollector`
    units: dict[str, str] = field(default_factory=dict)  # as in `MetricsCollector`
    warning: str = ""
    counts_epochs: bool = False  # as in `MetricsCollector`
    had_nothing_to_do: bool = False  # as in `MetricsCollector`
    of_several_ranks: frozenset[str] = frozenset()  # metrics that more than one rank has printed


def parse_saved_output(
    metrics: Metrics | None,
    folder: Path,
    output: Path,
    *,
    complete: Complete | None = None,
    checkpoint: str | None = None,
    seconds: float,
    resumed: bool = False,
    began: float = 0.0,
    ranks: int = 1,
    torn: bool = False,
) -> ParsedOutput:
    """The metrics of a program that ran for `seconds`, parsed again from its saved files.

    `resumed` is as in `merge_row`, `checkpoint`, `began` and `ranks` are as in `MetricsCollector`, and `torn` is as in
    `MetricsCollector.new_rows`.
    """
    if metrics is None and complete is None:
        return ParsedOutput()
    collector = MetricsCollector(
        metrics,
        folder,
        complete=complete,
        checkpoint=checkpoint,
        resumes=resumed,
        began=began,
        ranks=ranks,
        burst=math.inf,
    )
    has_lines = bool(metrics and metrics.patterns) or bool(complete and complete.line)
    for line in read_saved_lines(output, torn=torn) if has_lines else ():
        collector.add_line(line)
    rows = list[Row]()
    for row in collector.new_rows(final=True, torn=torn):
        merge_row(rows, row, resumed=resumed)
    rows = thin_rows(rows, int(BURST_ROWS + seconds * ROWS_PER_SECOND))
    return collector.parsed(rows, warning=collector.take_warning())


def parse_ended_outputs(
    metrics: Metrics | None, folder: Path, outputs: Iterable[Path], *, complete: Complete | None = None
) -> Iterator[ParsedOutput]:
    """What programs that were ended have reported, from their saved outputs.

    An output may be missing: its program did not start, or the disk was full.
    """
    for output in outputs:
        if output.exists():
            yield parse_saved_output(metrics, folder, output, complete=complete, seconds=0.0, torn=True)


def join_outputs(last: ParsedOutput, earlier: Iterable[ParsedOutput]) -> ParsedOutput:
    """What a program has reported that continues `earlier` ones, the latest first.

    If nothing was left to do for it, they have reported its metrics, and said that it is complete.
    """
    if not last.had_nothing_to_do:
        return last
    outputs = [last, *earlier]
    reported = next((each for each in outputs if each.metrics), last)
    return replace(
        last,
        metrics=reported.metrics,
        missing="" if reported.metrics else last.missing,
        incomplete=reported.incomplete if all(each.incomplete for each in outputs) else "",
    )
