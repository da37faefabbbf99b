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

from trainyard.planning.journal import Attempt, attempts
from trainyard.planning.plan import Plan
from trainyard.planning.search import is_place
from trainyard.programs.metrics import add_row
from trainyard.utils.jsonl import Event
from trainyard.utils.text import format_duration

log = logging.getLogger(__name__)


class Progress:
    """Follows the events of one run of a sweep. Each event costs the same, however many trials there are."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._began = time.time()
        self._live: Live | None = None
        self._running: dict[str, Attempt] = {}  # by trial
        self._waiting = dict.fromkeys(plan.pending)  # trials that have not begun
        self._waiting_seconds = sum(plan.seconds.values())  # as predicted; 0 without evidence
        self._ended = 0  # trials that finished or failed for good
        self._seconds_seen: list[float] = []

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show the table for the length of the block, where there is a terminal."""
        console = Console()
        if not console.is_terminal:
            yield
            return
        with Live(console=console, get_renderable=self.render, refresh_per_second=4, transient=True) as self._live:
            yield
        self._live = None

    def see(self, event: Event) -> None:
        """Take in an event; one that ends an attempt is also said in a line."""
        trial = event["trial"]
        if event["event"] == "started":
            self._running[trial] = attempts([event])[0]
            place = trial if trial in self._waiting else next(filter(is_place, self._waiting), None)
            if place is not None:
                del self._waiting[place]
                self._waiting_seconds -= self._plan.seconds.get(place, 0.0)
        elif event["event"] == "epoch":
            add_row(self._running[trial].epochs, event["metrics"])
        elif event["event"] == "resumed":
            self._say(f"{trial} {_values_text(self._plan, trial)}: resumes from {event['checkpoint']['name']}")
        elif event["event"] == "halved":
            size = f"{event['micro_batch']} images x {event['accumulation']}"
            self._say(f"{trial} {_values_text(self._plan, trial)}: out of memory; goes on with micro-batches of {size}")
        else:
            del self._running[trial]
            self._ended += not event.get("retried", False)
        if event["event"] == "finished":
            self._seconds_seen.append(event["seconds"])
        if event["event"] in ("finished", "stopped", "diverged", "unreadable", "failed"):
            self._say(self._line(event))

    def _say(self, line: str) -> None:
        if self._live:
            self._live.console.print(line, highlight=False, markup=False)
        for handler in logging.getLogger().handlers:
            if not (self._live and type(handler) is logging.StreamHandler):
                handler.handle(logging.LogRecord(__name__, logging.INFO, __file__, 0, line, None, None))

    def _line(self, event: Event) -> str:
        values = _values_text(self._plan, event["trial"])
        head = f"[{self._ended}/{len(self._plan.pending)}] {event['trial']} {values}"
        if event["event"] == "failed":
            again = "will be tried again" if event["retried"] else "gave up"
            return f"{head}: FAILED ({again}): {event['error']}; see {event['log']}"
        if event["event"] == "diverged":
            return f"{head}: DIVERGED, not tried again: {event['error']}"
        if event["event"] == "unreadable":
            return f"{head}: {event['seconds']:.1f} s, but {event['error']}; see {event['log']}"
        told = _metric_text(self._plan, event["metrics"])
        why = f"; {event['why']}" if event["event"] == "stopped" else ""
        words = filter(None, [f"{event['seconds']:.1f} s", told])
        return f"{head}: {', '.join(words)}{why}{self._left()}"

    def _left(self) -> str:
        """The time left: the work left, as predicted or else as the mean of what was seen, shared among the slots."""
        if not self._seconds_seen:
            return ""
        mean, now = sum(self._seconds_seen) / len(self._seconds_seen), time.time()
        waiting = self._waiting_seconds if self._plan.seconds else len(self._waiting) * mean
        running = [self._plan.seconds.get(each.trial, mean) - (now - each.start) for each in self._running.values()]
        rest = [max(0.0, seconds) for seconds in running]
        left = max([*rest, (waiting + sum(rest)) / self._plan.slots.count])
        return f", about {format_duration(left)} left" if left >= 1 else ""

    def render(self) -> Group:
        """The table of slots, and a bar."""
        total, since = len(self._plan.pending), format_duration(time.time() - self._began)
        head = Text(f"sweep {self._plan.name}: {self._ended} of {total} trials done, {since}{self._left()}")
        bar = ProgressBar(total=total, completed=self._ended, width=60)
        return Group(head, bar, slot_table(list(self._running.values()), self._plan))


def _values_text(plan: Plan, trial: str) -> str:
    """The varied values of a trial in short: `blocks=4, lr=0.1`."""
    if trial not in plan.trials:
        return ""
    return ", ".join(f"{key.split('.')[-1]}={value}" for key, value in plan.trials[trial].values.items())


def _metric_text(plan: Plan, metrics: dict[str, float]) -> str:
    """The metric that counts, or else the first that was told: `validation accuracy 91.2%`."""
    judged = plan.sweep.ranking_metric([name for name in metrics if name != "epoch"])
    if judged is None or metrics.get(judged[0]) is None:
        return ""
    name, value = judged[0], metrics[judged[0]]
    words = {"val_accuracy": "validation accuracy"}.get(name, name)
    return f"{words} {value:.1%}" if name.endswith("accuracy") and 0 <= value <= 1 else f"{words} {value:.4g}"


def slot_table(running: list[Attempt], plan: Plan) -> Table:
    """One line per trial that runs now."""
    table = Table("slot", "node", "GPU", "trial", "configuration", "epoch", "metric", "seconds", box=None)
    for attempt in sorted(running, key=lambda each: int(each.where["slot"])):
        where, trial = attempt.where, plan.trials.get(attempt.trial)
        of = f"/{trial.epochs}" if trial and trial.epochs else ""
        epochs = f"{len(attempt.epochs)}{of}"
        metric = _metric_text(plan, attempt.epochs[-1]) if attempt.epochs else ""
        values, seconds = _values_text(plan, attempt.trial), f"{time.time() - attempt.start:.0f}"
        gpu = "none" if where.get("device") == "cpu" else where["gpu"]
        table.add_row(str(where["slot"]), where["node"], gpu, attempt.trial, values, epochs, metric, seconds)
    return table
