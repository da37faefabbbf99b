"""Progress of a long loop: a bar on a terminal, elsewhere a log line every few seconds."""

import logging
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskProgressColumn, TextColumn
from rich.text import Text

from trainyard.utils.text import format_duration

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
    return f", {task.speed:,.0f} {task.fields['unit']}/s, about {format_duration(task.time_remaining)} left"
