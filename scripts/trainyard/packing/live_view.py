"""The progress of a running sweep: a table that updates itself on a terminal, log lines elsewhere."""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from trainyard.config.train import Train
from trainyard.config.trial_status import TrialStatus
from trainyard.config.trials import early_end
from trainyard.planning.attempts import Attempt, fold_attempts
from trainyard.planning.journal import Ended, Epoch, Halved, Resumed, Started, TrialEvent
from trainyard.planning.plan import Plan
from trainyard.planning.sweep_state import SweepState
from trainyard.planning.trial_space import is_placeholder
from trainyard.programs.metrics import merge_row
from trainyard.utils.text import format_duration

log = logging.getLogger(__name__)


class LiveView:
    """Shows the events of a sweep. The time per event does not depend on the number of trials."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._began = time.time()
        self._live: Live | None = None
        self._running: dict[str, Attempt] = {}  # by trial
        self._waiting = dict.fromkeys(plan.forecast.pending)  # trials that have not started
        self._waiting_seconds = sum(plan.forecast.seconds.values())  # as predicted; 0 without evidence
        self._ended = 0  # trials that will not run again
        self._finished_seconds: list[float] = []

    @contextmanager
    def show(self) -> Iterator[None]:
        """Show the table during the block, if there is a terminal."""
        console = Console()
        if not console.is_terminal:
            yield
            return
        with Live(console=console, get_renderable=self.render, refresh_per_second=4, transient=True) as self._live:
            yield
        self._live = None

    def update(self, event: TrialEvent) -> None:
        """Update the view with an event of a trial. The end of an attempt is also logged."""
        match event:
            case Started():
                self._start(event)
            case Epoch(trial=trial, metrics=row):
                merge_row(self._running[trial].epochs, row)
            case Resumed(trial=trial, checkpoint=checkpoint):
                self._log(f"{trial} {_values_text(self._plan.state, trial)}: resumes from {checkpoint['name']}")
            case Halved(trial=trial):
                size = f"{event.micro_batch} images x {event.accumulation}"
                values = _values_text(self._plan.state, trial)
                self._log(f"{trial} {values}: out of memory; continues with micro-batches of {size}")
            case Ended():
                self._end(event)

    def _start(self, event: Started) -> None:
        (self._running[event.trial],) = fold_attempts([event])
        waiting = event.trial if event.trial in self._waiting else next(filter(is_placeholder, self._waiting), None)
        if waiting is not None:
            del self._waiting[waiting]
            self._waiting_seconds -= self._plan.forecast.seconds.get(waiting, 0.0)

    def _end(self, event: Ended) -> None:
        del self._running[event.trial]
        self._ended += not event.retried
        if event.status == TrialStatus.FINISHED:
            self._finished_seconds.append(event.seconds or 0.0)
        if event.status != TrialStatus.INTERRUPTED:
            self._log(self._end_line(event))

    def _log(self, line: str) -> None:
        if self._live:
            self._live.console.print(line, highlight=False, markup=False)
        for handler in logging.getLogger().handlers:
            if not (self._live and type(handler) is logging.StreamHandler):
                handler.handle(logging.LogRecord(__name__, logging.INFO, __file__, 0, line, None, None))

    def _end_line(self, event: Ended) -> str:
        values, seconds = _values_text(self._plan.state, event.trial), f"{event.seconds or 0.0:.1f} s"
        head = f"[{self._ended}/{len(self._plan.forecast.pending)}] {event.trial} {values}"
        match event.status:
            case TrialStatus.FAILED:
                retry = "will be retried" if event.retried else "no retries left"
                return f"{head}: FAILED ({retry}): {event.error}; see {event.log}"
            case TrialStatus.DIVERGED:
                return f"{head}: DIVERGED, not retried: {event.error}"
            case TrialStatus.UNREADABLE:
                return f"{head}: {seconds}, but {event.error}; see {event.log}"
        metric = _metric_text(self._plan.state, event.metrics or {})
        reason = f"; {event.why}" if event.status == TrialStatus.STOPPED else _patience_text(self._plan.state, event)
        return f"{head}: {', '.join(filter(None, [seconds, metric]))}{reason}{self._time_left()}"

    def _time_left(self) -> str:
        """The remaining time: the predicted seconds of all trials, or else their mean so far, shared by the slots."""
        if not self._finished_seconds:
            return ""
        mean, now = sum(self._finished_seconds) / len(self._finished_seconds), time.time()
        waiting = self._waiting_seconds if self._plan.forecast.seconds else len(self._waiting) * mean
        running = [
            max(0.0, self._plan.forecast.seconds.get(attempt.trial, mean) - (now - attempt.start))
            for attempt in self._running.values()
        ]
        left = max([*running, (waiting + sum(running)) / self._plan.request.slots.count])
        return f", about {format_duration(left)} left" if left >= 1 else ""

    def render(self) -> Group:
        """The table of slots, and a progress bar."""
        total, since = len(self._plan.forecast.pending), format_duration(time.time() - self._began)
        head = Text(f"sweep {self._plan.state.name}: {self._ended} of {total} trials done, {since}{self._time_left()}")
        bar = ProgressBar(total=total, completed=self._ended, width=60)
        return Group(head, bar, slot_table(list(self._running.values()), self._plan.state))


def _patience_text(state: SweepState, event: Ended) -> str:
    """Why a training has finished before its last epoch; "" if it has not."""
    spec = state.trials[event.trial].spec if event.trial in state.trials else None
    trained = early_end(spec, event.metrics or {}) if spec else None
    if not isinstance(spec, Train) or trained is None:
        return ""
    return f"; ended after {trained:g} of {spec.epochs} epochs, {spec.patience} without a better {spec.monitor}"


def _values_text(state: SweepState, trial: str) -> str:
    """The varied values of a trial, as in `blocks=4, lr=0.1`."""
    if trial not in state.trials:
        return ""
    return ", ".join(f"{key.split('.')[-1]}={value}" for key, value in state.trials[trial].values.items())


def _metric_text(state: SweepState, metrics: dict[str, float]) -> str:
    """The metric that ranks trials, as in `validation accuracy 91.2%`; "" if it was not reported."""
    judged = state.sweep.ranking_metric([name for name in metrics if name != "epoch"])
    if judged is None or metrics.get(judged[0]) is None:
        return ""
    name, value = judged[0], metrics[judged[0]]
    words = {"val_accuracy": "validation accuracy"}.get(name, name)
    return f"{words} {value:.1%}" if name.endswith("accuracy") and 0 <= value <= 1 else f"{words} {value:.4g}"


def slot_table(running: list[Attempt], state: SweepState) -> Table:
    """A table with one row per running trial."""
    table = Table("slot", "node", "GPU", "trial", "configuration", "epoch", "metric", "seconds", box=None)
    for attempt in sorted(running, key=lambda each: int(each.location.slot)):
        where, trial = attempt.location, state.trials.get(attempt.trial)
        of = f"/{trial.epochs}" if trial and trial.epochs else ""
        epochs = f"{len(attempt.epochs)}{of}"
        metric = _metric_text(state, attempt.epochs[-1]) if attempt.epochs else ""
        values, seconds = _values_text(state, attempt.trial), f"{time.time() - attempt.start:.0f}"
        gpu = "none" if where.device == "cpu" else where.gpu
        table.add_row(str(where.slot), where.node, gpu, attempt.trial, values, epochs, metric, seconds)
    return table
