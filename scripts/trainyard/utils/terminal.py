"""Output for a terminal: the progress of a long loop, and tables whose rows are one line each."""

import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskProgressColumn, TextColumn
from rich.text import Text

from trainyard.utils.text import format_duration, printable

log = logging.getLogger(__name__)
LINE_SECONDS: Final = 10.0


@contextmanager
def show_progress(description: str, total: int, *, unit: str, completed: int = 0) -> Iterator[Callable[[int], None]]:
    """Show the progress of the block, which calls the yielded function with each number of newly completed units.

    `completed` of the `total` units were done before; they do not count for the rate. Without a terminal, lines are
    logged instead: Rich would print nothing until the end, and tqdm would write one endless line to a Slurm log.
    """
    console = Console()
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        _RateColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
        speed_estimate_period=math.inf,
        get_time=time.monotonic,
    )
    progress.add_task(description, total=total, completed=completed, unit=unit)
    task = progress.tasks[0]
    last_line = time.monotonic()

    def advance(count: int) -> None:
        nonlocal last_line
        progress.advance(task.id, count)
        if progress.disable and time.monotonic() - last_line > LINE_SECONDS:
            last_line = time.monotonic()
            log.info("%s: %s of %s %s%s", description, f"{task.completed:,}", f"{total:,}", unit, _rate(task))

    with progress:
        yield advance


class _RateColumn(ProgressColumn):
    def render(self, task: Task) -> Text:
        """Rate and remaining time."""
        return Text(_rate(task).removeprefix(", "))


def _rate(task: Task) -> str:
    """Rate and remaining time, after a comma; "" as long as they are unknown."""
    if not task.speed or task.time_remaining is None:
        return ""
    speed = f"{task.speed:,.0f}" if task.speed >= 10 else f"{task.speed:,.1f}"
    return f", {speed} {task.fields['unit']}/s, about {format_duration(task.time_remaining)} left"


GAP: Final = 2  # between columns
CUT_WIDTH: Final = 12  # to which cells are cut before a column is left out
NO_LIMIT: Final = 10_000  # columns of output that is no terminal: a file or a pipe keeps every row whole


@dataclass(frozen=True)
class Column:
    """A column; where the terminal is too narrow, those with the highest `rank` are left out first, with 0 none."""

    name: str
    rank: int = 0
    is_cut: bool = False  # whether long cells may be cut


@dataclass(frozen=True)
class TerminalTable:
    """A table whose rows are one line each: long cells end in `…`, and columns that do not fit are left out.

    Of more than `max_rows` rows, the last line counts those that are not shown.
    """

    columns: Sequence[Column]
    rows: Sequence[Sequence[str]]
    max_rows: int | None = None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        shown, widths = self._fit(options.max_width)
        yield _line([column.name for column in self.columns], shown, widths, style="bold")
        count = len(self.rows)
        if self.max_rows is not None and count > self.max_rows:
            count = max(0, self.max_rows - 1)
        for row in self.rows[:count]:
            yield _line([printable(cell) for cell in row], shown, widths)
        if count < len(self.rows):
            yield Text(f"and {len(self.rows) - count} more", style="dim", no_wrap=True, overflow="ellipsis")

    def _fit(self, width: int) -> tuple[list[int], list[int]]:
        """The numbers of the columns that fit, and their widths."""
        lines = [[column.name for column in self.columns], *self.rows]
        widths = [max(cell_len(printable(line[number])) for line in lines) for number in range(len(self.columns))]
        shown = list(range(len(self.columns)))

        def least(number: int) -> int:
            return min(widths[number], CUT_WIDTH) if self.columns[number].is_cut else widths[number]

        while GAP * (len(shown) - 1) + sum(map(least, shown)) > width:
            last = max(shown, key=lambda number: (self.columns[number].rank, number))
            if self.columns[last].rank == 0:
                break
            shown.remove(last)
        spare = width - GAP * (len(shown) - 1) - sum(map(least, shown))
        for number in shown:  # the first of those that are cut get what is left
            wanted, widths[number] = widths[number], least(number)
            extra = max(0, min(spare, wanted - widths[number]))
            widths[number] += extra
            spare -= extra
        return shown, [widths[number] for number in shown]


def _line(cells: Sequence[str], shown: Sequence[int], widths: Sequence[int], *, style: str = "") -> Text:
    parts = [Text(cells[number]) for number in shown]
    for part, width in zip(parts, widths, strict=True):
        part.truncate(width, overflow="ellipsis", pad=True)
    line = (" " * GAP).join(part.plain for part in parts).rstrip()
    return Text(line, style=style, no_wrap=True, overflow="ellipsis")


def open_console(width: int = NO_LIMIT) -> Console:
    """A console on stdout; if that is no terminal, of this width: by default, no line is cut or wrapped."""
    console = Console()
    return console if console.is_terminal else Console(width=width)
