"""A program or function of a user, driven as its worker does."""

import threading
from collections.abc import Callable, Generator
from queue import SimpleQueue
from typing import Any

Run = Callable[[Callable[[Any], bool]], Any]  # of `report`, which returns whether to stop

CLOSED = object()


class ClosedError(Exception):
    """Nobody takes the reports any more."""


def step_by_step(run: Run) -> Generator[Any, Any, Any]:
    """What `run(report)` reports, in another thread; send the answer to each report. It returns what `run` returns."""
    reports, answers = SimpleQueue[Any](), SimpleQueue[Any]()
    results: list[Any] = []

    def report(message: Any) -> bool:
        reports.put(message)
        if (answer := answers.get()) is CLOSED:
            raise ClosedError
        return bool(answer)

    def call() -> None:
        try:
            results.append(run(report))
        except BaseException as error:
            results.append(error)
        reports.put(CLOSED)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    try:
        while (message := reports.get()) is not CLOSED:
            answers.put((yield message))
    except GeneratorExit:
        answers.put(CLOSED)
        thread.join()
        raise
    if isinstance(results[0], BaseException):
        raise results[0]
    return results[0]


def drive(
    run: Callable[[Callable[[Any], bool]], Any], *, stop_at: int | None = None
) -> tuple[list[dict[str, Any]], Any]:
    """The rows that `run(report)` reports, and what it returns; it is stopped after the epoch `stop_at`."""
    rows: list[dict[str, Any]] = []

    def report(message: Any) -> bool:
        rows.append(message.row)
        return rows[-1]["epoch"] == stop_at

    return rows, run(report)


def drive_on(running: Generator[Any, Any, Any]) -> tuple[list[dict[str, Any]], Any]:
    """The further rows of what runs step by step, and what it returns."""
    rows = list[dict[str, Any]]()
    while True:
        try:
            rows.append(running.send(False if rows else None).row)
        except StopIteration as end:
            return rows, end.value
