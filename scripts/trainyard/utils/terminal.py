"""Output for a terminal: the progress of a long loop, and tables whose rows are one line each."""

import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskProgressColumn, TextColumn
from rich.table import Table
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

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        cells = [[printable(cell) for cell in row] for row in self.rows]
        fitting = self._fit(cells, options.max_width)
        table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0))
        for number in fitting:
            column = self.columns[number]
            table.add_column(_line(column.name), no_wrap=not column.is_cut)
        count = len(cells)
        if self.max_rows is not None and count > self.max_rows:
            count = max(0, self.max_rows - 1)
        for row in cells[:count]:
            table.add_row(*(_line(row[number]) for number in fitting))
        yield table
        if count < len(cells):
            yield _line(f"and {len(cells) - count} more", style="dim")

    def _fit(self, cells: Sequence[Sequence[str]], width: int) -> list[int]:
        """The numbers of the columns that fit."""
        lines = [[column.name for column in self.columns], *cells]
        least = [max(map(cell_len, texts)) for texts in zip(*lines, strict=True)]
        for number, column in enumerate(self.columns):
            if column.is_cut:
                least[number] = min(least[number], CUT_WIDTH)
        fitting = list(range(len(self.columns)))
        while sum(least[number] + GAP for number in fitting) - GAP > width:
            last = max(fitting, key=lambda number: (self.columns[number].rank, number))
            if self.columns[last].rank == 0:
                break
            fitting.remove(last)
        return fitting


def _line(text: str, style: str = "") -> Text:
    return Text(text, style=style, no_wrap=True, overflow="ellipsis")


def open_console(width: int = NO_LIMIT) -> Console:
    """A console on stdout; if that is no terminal, of this width: by default, no line is cut or wrapped."""
    console = Console()
    return console if console.is_terminal else Console(width=width)
