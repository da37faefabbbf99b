"""What a sweep is doing now, for people: a table that updates itself on a terminal, plain lines elsewhere."""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from trainyard.journal import Attempt, Event, attempts
from trainyard.planning import Plan, duration, makespan

log = logging.getLogger(__name__)


class Progress:
    """Follows the events of one run of a sweep."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._events: list[Event] = []
        self._began = time.time()
        self._live: Live | None = None

    @contextmanager
    def shown(self) -> Iterator["Progress"]:
        """Show the table for the length of the block, where there is a terminal."""
        console = Console()
        if not console.is_terminal:
            yield self
            return
        with Live(console=console, get_renderable=self.render, refresh_per_second=4, transient=True) as self._live:
            yield self
        self._live = None

    def see(self, event: Event) -> None:
        """Take in an event; one that ends an attempt is also said in a line."""
        self._events.append(event)
        if event["event"] in ("finished", "failed"):
            self._say(self._line(event))

    def _say(self, line: str) -> None:
        if self._live:
            self._live.console.print(line, highlight=False, markup=False)
        for handler in logging.getLogger().handlers:
            if not (self._live and type(handler) is logging.StreamHandler):
                handler.handle(logging.LogRecord(__name__, logging.INFO, __file__, 0, line, None, None))

    def _line(self, event: Event) -> str:
        done, total = self._counts()
        values = ", ".join(f"{key.split('.')[-1]}={value}" for key, value in self._values(event["trial"]).items())
        head = f"[{done}/{total}] {event['trial']} {values}"
        if event["event"] == "failed":
            again = "will be tried again" if event["retried"] else "gave up"
            return f"{head}: FAILED ({again}): {event['error']}; see {event['log']}"
        accuracy = event["metrics"]["val_accuracy"]
        return f"{head}: {event['seconds']:.1f} s, validation accuracy {accuracy:.1%}{self._left()}"

    def _values(self, trial: str) -> dict[str, object]:
        return self._plan.trials[trial].values

    def _counts(self) -> tuple[int, int]:
        """(trials that have ended for good, trials that this run must do)."""
        ended = {
            e["trial"]
            for e in self._events
            if e["event"] == "finished" or (e["event"] == "failed" and not e["retried"])
        }
        return len(ended), len(self._plan.pending)

    def _left(self) -> str:
        """The time left, from durations predicted, or else from the mean of those seen."""
        tries = attempts(self._events)
        seen = [each.seconds for each in tries if each.outcome == "finished" and each.seconds]
        if not seen:
            return ""
        started = {each.trial for each in tries}
        mean = sum(seen) / len(seen)
        expected = {name: self._plan.seconds.get(name, mean) for name in self._plan.pending}
        waiting = [seconds for name, seconds in expected.items() if name not in started]
        now = time.time()
        running = [max(0.0, expected[each.trial] - (now - each.start)) for each in tries if each.outcome == "running"]
        return f", about {duration(makespan(running + waiting, self._plan.sweep.slots.count))} left"

    def render(self) -> Group:
        """The table of slots, and a bar."""
        running = [each for each in attempts(self._events) if each.outcome == "running"]
        done, total = self._counts()
        since = duration(time.time() - self._began)
        head = Text(f"sweep {self._plan.name}: {done} of {total} trials done, {since}{self._left()}")
        return Group(head, ProgressBar(total=total, completed=done, width=60), slot_table(running, self._plan))


def slot_table(running: list[Attempt], plan: Plan) -> Table:
    """One line per trial that runs now."""
    table = Table("slot", "node", "GPU", "trial", "configuration", "epoch", "val. accuracy", "seconds", box=None)
    for attempt in sorted(running, key=lambda each: int(each.where["slot"])):
        where, trial = attempt.where, plan.trials.get(attempt.trial)
        values = ", ".join(f"{key.split('.')[-1]}={value}" for key, value in trial.values.items()) if trial else ""
        epochs = f"{len(attempt.epochs)}/{trial.spec.epochs}" if trial else str(len(attempt.epochs))
        accuracy = f"{attempt.epochs[-1]['val_accuracy']:.1%}" if attempt.epochs else ""
        seconds = f"{time.time() - attempt.start:.0f}"
        table.add_row(str(where["slot"]), where["node"], where["gpu"], attempt.trial, values, epochs, accuracy, seconds)
    return table
