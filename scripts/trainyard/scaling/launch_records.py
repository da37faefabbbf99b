"""The launches of a user's script, and the rows of metrics that it reports: a resumed one continues the previous ones.

<folder>/rows.jsonl       a line for each launch, each row, each checkpoint that cannot be resumed from, and the end
<folder>/output.log       the output of the last launch
<folder>/output-<k>.log   the output of launch k, from 1, which a later one has resumed
"""

import logging
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

from trainyard.config.user_programs import Complete, Metrics
from trainyard.planning.attempts import ReportedEpochs
from trainyard.programs.metric_rows import Row, join_rows, merge_row, shift_epoch
from trainyard.programs.metrics import ParsedOutput, join_outputs, parse_saved_output
from trainyard.programs.runner import CheckpointFile
from trainyard.utils.errors import StorageError
from trainyard.utils.event_log import Event, EventLog, read_clock, read_decoded

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Report:
    """What a script has reported, without the epochs that a resumed launch has repeated."""

    rows: list[Row]
    row_seconds: list[float]  # of each row: since the row before it, or since its launch
    seconds: float  # of the last launch, and of these rows of earlier launches


class Launches:
    """The launches of a script with its output in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / "rows.jsonl"
        self.output = folder / "output.log"
        self._log: EventLog | None = None

    @cached_property
    def _events(self) -> list[Event]:
        """All events, also those that a full disk has not kept."""
        return read_decoded(self._path, _checked)

    @contextmanager
    def launch(self, *, resumes: bool, **facts: Any) -> Iterator[None]:
        """Record a launch with `facts`, which continues or replaces the previous ones; `add` its rows within the block.

        Raises:
            StorageError: the file cannot be written.
        """
        failed = [] if resumes else self.failed_checkpoints()
        if resumes and self.output.exists():
            self.output.rename(self._folder / f"output-{1 + len(self.earlier_outputs)}.log")
        if not resumes:
            for path in (self._path, *self.earlier_outputs):
                path.unlink(missing_ok=True)
            self._events = []
        with EventLog.opened(self._path) as self._log:
            for checkpoint in failed:
                self.add_failed(checkpoint)
            self._append("launched", **facts)
            yield

    def add_failed(self, checkpoint: CheckpointFile) -> None:
        """Record that the script has failed to resume from a checkpoint."""
        self._append("failed", checkpoint=checkpoint)

    def failed_checkpoints(self) -> list[CheckpointFile]:
        """Checkpoints that the script has failed to resume from."""
        return [CheckpointFile(*event["checkpoint"]) for event in self._events if event["event"] == "failed"]

    @property
    def failed_in_a_row(self) -> int:
        """How many checkpoints the script has failed to resume from since a launch that resumed has reported a row."""
        count = launches = 0
        for event in self._events:
            launches += event["event"] == "launched"
            count += event["event"] == "failed"
            if event["event"] == "row" and launches > 1:
                count = 0
        return count

    def add_end(self, **facts: Any) -> None:
        """Record that the script has succeeded, with `facts` that its output does not contain."""
        self._append("ended", durable=True, **facts)

    def end(self) -> Event | None:
        """The facts about the last launch, with the `time` of its end; None if it has not succeeded."""
        last = self._events[-1] if self._events else {"event": ""}
        return last if last["event"] == "ended" and self.output.exists() else None

    def facts(self, names: Sequence[str]) -> list[dict[str, Any]]:
        """Some facts about each launch; None where one has not recorded them."""
        return [{name: event.get(name) for name in names} for event in self._events if event["event"] == "launched"]

    def add(self, row: Row) -> None:
        """Record a row; a full disk does not end the script."""
        try:
            self._append("row", row=row)
        except StorageError as error:
            log.warning("a row of metrics is not kept for a later launch: %s", error)

    def add_kept(self, rows: Iterable[Row]) -> None:
        """Record rows that the metrics file already has at a launch, unless earlier launches reported their epochs."""
        known = max((row["epoch"] for _, earlier in self._launched() for row in earlier), default=-math.inf)
        for row in rows:
            if (row["epoch"] or 0) > known:
                self._append("kept", row=row)

    def _append(self, event: str, *, durable: bool = False, **fields: Any) -> None:
        assert self._log is not None
        self._events.append({"event": event, "time": read_clock(), **fields})
        self._log.write(self._events[-1], durable=durable)

    def report(self, *, ended: float) -> Report:
        """What has been reported until the last launch `ended` (Unix seconds)."""
        launches = list(self._launched())
        rows = join_rows([rows for _, rows in launches])
        return Report(
            [{name: value for name, value in row.items() if name not in _TIMES} for row in rows],
            [row["_seconds"] for row in rows],
            ended - launches[-1][0] + sum(row["_seconds"] for row in rows if row["_time"] < launches[-1][0]),
        )

    def epochs(self) -> list[ReportedEpochs]:
        """When each launch reported its epochs."""
        return [
            ReportedEpochs(began, rows[0]["epoch"] - 1 if rows else 0, [(row["_time"], row["epoch"]) for row in rows])
            for began, rows in self._launched()
        ]

    def last_rows(self) -> list[Row]:
        """The rows of the last launch."""
        return [rows for _, rows in self._launched()][-1]

    def parse_outputs(
        self, metrics: Metrics | None, *, complete: Complete | None = None, seconds: float, ranks: int
    ) -> ParsedOutput:
        """The metrics in the saved outputs of all launches, which took `seconds`, parsed again.

        `ranks` is as in `MetricsCollector`; why there are no metrics is that of the last launch.
        """
        outputs = [*self.earlier_outputs, self.output]
        last_began = max(began for began, _ in self._launched())
        parsed = [
            parse_saved_output(
                metrics,
                self._folder,
                output,
                complete=complete,
                seconds=seconds,
                resumed=number > 0,
                began=last_began if output == self.output else 0.0,
                ranks=ranks,
                torn=output != self.output,
            )
            for number, output in enumerate(outputs)
        ]
        for each in parsed:
            if each.warning:
                log.warning("%s", each.warning)
        parts = [each.rows for each in parsed]
        if metrics and metrics.numbers_rows:
            launches = dict(enumerate(each.before for each in self.epochs()))
            parts = [[shift_epoch(row, launches.get(number, 0)) for row in rows] for number, rows in enumerate(parts)]
        rows = join_rows(parts)
        return replace(
            join_outputs(parsed[-1], reversed(parsed[:-1])),
            rows=rows,
            counts_epochs=all(each.counts_epochs for each in parsed if each.rows),
            of_several_ranks=frozenset().union(*(each.of_several_ranks for each in parsed)),
        )

    @property
    def earlier_outputs(self) -> list[Path]:
        """The outputs of the launches before the last one, oldest first."""
        return sorted(self._folder.glob("output-*.log"), key=lambda path: (len(path.name), path.name))

    def _launched(self) -> Iterator[tuple[float, list[dict[str, Any]]]]:
        """The start of each launch and its rows, with their times and durations."""
        launches: list[tuple[float, list[dict[str, Any]]]] = []
        for event in self._events:
            if event["event"] == "launched":
                launches.append((event["time"], []))
            elif event["event"] == "kept" and launches:  # of the launch before, which ended before it could be recorded
                began, rows = launches[-2:][0]
                merge_row(rows, {**event["row"], "_time": rows[-1]["_time"] if rows else began})
            elif event["event"] == "row" and launches:
                merge_row(launches[-1][1], {**event["row"], "_time": event["time"]}, resumed=len(launches) > 1)
        for began, rows in launches:
            times = [began, *(row["_time"] for row in rows)]
            seconds = [later - earlier for earlier, later in pairwise(times)]
            yield began, [row | {"_seconds": took} for row, took in zip(rows, seconds, strict=True)]


_TIMES = ("_time", "_seconds")


def _checked(event: Event) -> Event:
    """The event, unless it lacks a field."""
    row = event.get("row")
    if event["event"] in ("row", "kept") and not (isinstance(row, dict) and isinstance(row.get("epoch"), (int, float))):
        raise ValueError("a row without an epoch")
    return event
