"""The table of a running sweep on a terminal. Jobs have none: their drivers import neither this module nor rich."""

import io
import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from rich.console import Console, Group
from rich.live import Live
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.text import Text

from trainyard.packing.live_view import LiveView, metric_text, values_text
from trainyard.planning.attempts import Attempt
from trainyard.planning.history import History
from trainyard.utils.event_log import read_clock
from trainyard.utils.terminal import Column, TerminalTable

OTHER_LINES: Final = 4  # above and below the rows of the table of slots: progress, bar, header, and the cursor's


@contextmanager
def shown_table(view: LiveView) -> Iterator[None]:
    """Show the table of a view during the block, and all log lines above it.

    A terminal that is closed meanwhile ends nothing: trials have yet to save their state.
    """
    console = Console()
    if isinstance(console.file, io.TextIOWrapper):  # values and errors have characters that a terminal may lack
        console.file.reconfigure(errors="backslashreplace")
    table = LiveTable(view, console)
    live = Live(console=console, get_renderable=table.render, transient=True)
    with _log_to(console):
        live.start()
        try:
            yield
        finally:
            with suppress(OSError):
                live.stop()


class LiveTable:
    """What a terminal shows of a view."""

    def __init__(self, view: LiveView, console: Console) -> None:
        self._view = view
        self._console = console
        self._width = console.width

    def render(self) -> Group:
        """A line of progress, its bar, and as many rows of the table of slots as the terminal has room for."""
        view = self._view
        console = self._console
        if console.width != self._width:  # the terminal has wrapped the lines of the last picture
            console.clear()
            self._width = console.width
        head = Text(view.describe(), no_wrap=True, overflow="ellipsis")
        bar = Padding(ProgressBar(total=view.total, completed=view.ended, width=60), 0)  # which ends its line
        rows = max(1, console.height - OTHER_LINES)
        return Group(head, bar, slot_table(list(view.running.values()), view.state, max_rows=rows))


class _AboveLiveTable(logging.Handler):
    """Prints log records above the live table, whole: the terminal wraps them."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(OSError):  # the terminal is closed
            self._console.print(self.format(record), highlight=False, markup=False, soft_wrap=True)


@contextmanager
def _log_to(console: Console) -> Iterator[None]:
    """In the block, log to the console instead of writing into its live table; log files are as before."""
    root = logging.getLogger()
    before = root.handlers
    root.handlers = [each for each in before if type(each) is not logging.StreamHandler] + [_AboveLiveTable(console)]
    try:
        yield
    finally:
        root.handlers = before


SLOT_COLUMNS: Final = (
    Column("slot"),
    Column("node", rank=3, is_cut=True),
    Column("GPU", rank=4),
    Column("trial", rank=2),
    Column("configuration", is_cut=True),
    Column("epoch"),
    Column("metric", rank=1),
    Column("seconds"),
)


def slot_table(running: list[Attempt], state: History, *, max_rows: int | None = None) -> TerminalTable:
    """A table with one row per running trial; without the column GPU if the sweep has none."""
    columns = [each for each in SLOT_COLUMNS if each.name != "GPU" or state.sweep.slots.has_gpus]
    attempts = sorted(running, key=lambda each: int(each.location.slot))
    rows = [_cells(attempt, state) for attempt in attempts]
    return TerminalTable(columns, [[row[each.name] for each in columns] for row in rows], max_rows)


def _cells(attempt: Attempt, state: History) -> dict[str, str]:
    where = attempt.location
    trial = state.trials.get(attempt.trial)
    of = f"/{trial.epochs}" if trial and trial.epochs else ""
    return {
        "slot": str(where.slot),
        "node": where.node,
        "GPU": "none" if where.device == "cpu" else where.gpu,
        "trial": attempt.trial,
        "configuration": values_text(state, attempt.trial),
        "epoch": f"{_last_epoch(attempt):.6g}{of}",
        "metric": metric_text(state, attempt.epochs[-1]) if attempt.epochs else "",
        "seconds": f"{read_clock() - attempt.start:.0f}",
    }


def _last_epoch(attempt: Attempt) -> float:
    """The last epoch that an attempt has reported, or how many rows, if these have none; 0 before the first."""
    rows = attempt.epochs
    return rows[-1].get("epoch", len(rows)) if rows else 0
