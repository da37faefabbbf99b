"""Limits the rows of metrics that reach the journal: one per epoch, at a limited rate."""

import time
from collections.abc import Callable
from typing import Final

Row = dict[str, float | int | None]  # metrics by name; None for NaN and infinity
# Each row costs a line of the journal and time of the driver. After these bursts, one row per second is allowed:
# a program that reports more often reports steps, not epochs.
BURST_ROWS: Final = 300
RESUMED_BURST_ROWS: Final = 3000  # when the rows of an earlier attempt arrive all at once
ROWS_PER_SECOND: Final = 1.0


def shift_epoch(row: Row, by: int) -> Row:
    """The row as that of a later epoch."""
    return {**row, "epoch": int(row["epoch"] or 0) + by}


class RowLimiter:
    """Merges the rows of an epoch and limits the rate of rows.

    If a program reports an epoch more than once (a progress bar does, with each step), the merged row passes when the
    next epoch begins. The second row shows which kind of program it is: until then, the first row is held. Rows beyond
    the rate are merged into one, with the last value of each metric, which passes as soon as the rate allows.
    """

    def __init__(self, burst: float = BURST_ROWS, clock: Callable[[], float] = time.monotonic) -> None:
        self._burst, self._clock = burst, clock
        self._room, self._updated = burst, clock()
        self._repeats = False
        self._epoch: float | int | None = None  # the latest
        self._held: Row = {}  # of an epoch that may not be over
        self._excess: Row = {}  # rows beyond the rate, merged
        self._passed: list[Row] = []

    def add(self, row: Row, *, complete: bool) -> None:
        """Take a row; `complete` if no other row of its epoch is expected."""
        is_first = self._epoch is None
        same, self._epoch = row["epoch"] == self._epoch, row["epoch"]
        self._repeats = self._repeats or same
        if same:
            self._held |= row
            return
        self._pass(self._held)
        self._held = {}
        if self._repeats or (is_first and not complete):
            self._held = dict(row)
        else:
            self._pass(row)

    def take_rows(self, *, final: bool) -> list[Row]:
        """The rows that passed since the last call; with `final`, also what is held or beyond the rate."""
        if final:
            self._passed += [row for row in (self._excess, self._held) if row]
            self._held, self._excess = {}, {}
        else:
            self._pass(self._excess)
        passed, self._passed = self._passed, []
        return passed

    def _pass(self, row: Row) -> None:
        if not row:
            return
        now = self._clock()
        self._room = min(self._burst, self._room + ROWS_PER_SECOND * (now - self._updated))
        self._updated = now
        self._excess = self._excess | row
        if self._room < 1:
            return
        self._room -= 1
        self._passed.append(self._excess)
        self._excess = {}


def thin_rows(rows: list[Row], max_rows: int) -> list[Row]:
    """At most `max_rows` rows, evenly spaced, including the last; each merged with the dropped rows before it."""
    step = max(1, -(-len(rows) // max(1, max_rows)))
    kept, merged = list[Row](), Row()
    for remaining, row in zip(reversed(range(len(rows))), rows, strict=True):
        merged = merged | row
        if remaining % step == 0:
            kept.append(merged)
            merged = {}
    return kept
