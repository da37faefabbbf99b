"""How far a long count is: a bar with rate and time left on a terminal, a line now and then elsewhere."""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from trainyard.utils.text import format_duration

log = logging.getLogger(__name__)
LINE_SECONDS: Final = 10.0


class Count:
    """Counts up to a total; get one from `counting`."""

    def __init__(self, what: str, total: int, unit: str, done: int) -> None:
        self._what, self._total, self._unit = what, total, unit
        self._done = self._done_before = done
        self._began = self._told = time.monotonic()
        self._bar: Progress | None = None
        self._task = TaskID(0)

    def add(self, number: int) -> None:
        """So many more are done."""
        self._done += number
        if self._bar:
            self._bar.update(self._task, completed=self._done, rest=self._rest())
        elif time.monotonic() - self._told > LINE_SECONDS:
            self._told = time.monotonic()
            log.info("%s: %s of %s %s%s", self._what, f"{self._done:,}", f"{self._total:,}", self._unit, self._rest())

    def _rest(self) -> str:
        """Rate and time left, since this count began."""
        seconds, done = time.monotonic() - self._began, self._done - self._done_before
        if seconds < 0.5 or not done:
            return ""
        left = format_duration((self._total - self._done) * seconds / done)
        return f", {done / seconds:,.0f} {self._unit}/s, about {left} left"

    @contextmanager
    def shown(self, console: Console) -> Iterator[None]:
        """Show the bar for the length of the block."""
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:.0f} %{task.fields[rest]}"),
        )
        with Progress(*columns, console=console, transient=True) as self._bar:
            self._task = self._bar.add_task(self._what, total=self._total, completed=self._done, rest="")
            yield
        self._bar = None


@contextmanager
def counting(what: str, total: int, *, unit: str, done: int = 0) -> Iterator[Count]:
    """Count up to `total`, of which `done` were done before."""
    count, console = Count(what, total, unit, done), Console()
    if console.is_terminal:
        with count.shown(console):
            yield count
    else:
        yield count
