"""A program or function of a user, driven as its worker does."""

from collections.abc import Generator
from typing import Any


def drive(running: Generator[Any, Any, Any], *, stop_at: int | None = None) -> tuple[list[dict[str, Any]], Any]:
    """The rows that it reports, and how it ends; it is stopped after the epoch `stop_at`."""
    rows: list[dict[str, Any]] = []
    answer = None
    while True:
        try:
            rows.append(running.send(answer).row)
        except StopIteration as end:
            return rows, end.value
        answer = rows[-1]["epoch"] == stop_at
