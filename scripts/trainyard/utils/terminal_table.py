"""Tables for a terminal: each row is one line, however narrow the terminal is."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions
from rich.text import Text

from trainyard.utils.text import printable

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


def open_console() -> Console:
    """A console on stdout; if that is no terminal, so wide that no line is cut or wrapped."""
    console = Console()
    return console if console.is_terminal else Console(width=NO_LIMIT)
