"""The progress of a running sweep, with a log line for each trial that ends. `live_table` shows it on a terminal."""

import logging
from collections.abc import Sequence

from trainyard.config.trial_status import TrialStatus
from trainyard.config.trials import early_end
from trainyard.planning.attempts import Attempt
from trainyard.planning.history import History
from trainyard.planning.journal import Ended, MicroBatchHalved, Resumed, Row, Started, TrialEvent
from trainyard.planning.plan import Plan
from trainyard.planning.trial_space import is_placeholder
from trainyard.utils.event_log import read_clock
from trainyard.utils.text import count_of, format_duration

log = logging.getLogger(__name__)


class LiveView:
    """Shows the events of a sweep. The time per event does not depend on the number of trials."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self.state = plan.state
        self._began = read_clock()
        self.running: dict[str, Attempt] = {}  # by trial
        self._waiting = dict.fromkeys(plan.forecast.pending)  # trials that have not started
        self._started = set[str]()  # trials
        self._waiting_seconds = sum(plan.forecast.seconds.values())  # as predicted; 0 without evidence
        self._total = len(plan.forecast.pending)
        self.ended = 0  # trials that will not run again
        self._finished = 0  # trials
        self._finished_seconds = 0.0  # the sum of their durations

    def on_event(self, event: TrialEvent, attempt: Attempt, *, is_own: bool) -> None:
        """Count trials that start and end, and log and show what happens to those of this job."""
        if isinstance(event, Started):
            self._start(event)
        elif isinstance(event, Ended):
            self._count(event)
        if is_own:
            self._show(event, attempt)

    def _show(self, event: TrialEvent, attempt: Attempt) -> None:
        match event:
            case Started():
                self.running[event.trial] = attempt
            case Resumed(checkpoint=checkpoint):
                log.info("%s: resumes from %s", self._describe(event), checkpoint["name"])
            case MicroBatchHalved():
                size = f"{event.micro_batch} images x {event.accumulation}"
                log.info("%s: out of memory; continues with micro-batches of %s", self._describe(event), size)
            case Ended():
                del self.running[event.trial]
                if event.status != TrialStatus.INTERRUPTED:
                    head = f"[{self.ended}/{self.total}] {self._describe(event)}"
                    log.info("%s: %s", head, self._describe_end(event, attempt))

    def _describe(self, event: TrialEvent) -> str:
        return f"{event.trial} {values_text(self.state, event.trial)}"

    def add(self, trials: Sequence[str]) -> None:
        """Count trials, or placeholders, that the config has gained."""
        self._waiting |= dict.fromkeys(trials)
        self._total += len(trials)

    @property
    def total(self) -> int:
        """How many trials there are to run in all, without those that were cancelled."""
        return self._total - len(self.state.requests.cancelled.intersection(self._plan.forecast.pending))

    def _start(self, event: Started) -> None:
        if event.trial in self._started:  # a retry
            return
        self._started.add(event.trial)
        waiting = event.trial if event.trial in self._waiting else next(filter(is_placeholder, self._waiting), None)
        if waiting is not None:
            del self._waiting[waiting]
            self._waiting_seconds -= self._plan.forecast.seconds.get(waiting, 0.0)

    def _count(self, event: Ended) -> None:
        self.ended += not event.retried and event.status != TrialStatus.INTERRUPTED
        if event.status == TrialStatus.FINISHED:
            self._finished += 1
            self._finished_seconds += event.seconds or 0.0

    def _describe_end(self, event: Ended, attempt: Attempt) -> str:
        seconds = f"{event.seconds or 0.0:.1f} s"
        match event.status:
            case TrialStatus.FAILED:
                retry = "may be retried" if event.retried else "no retries left"
                return f"FAILED ({retry}): {event.error}; see {event.log}"
            case TrialStatus.DIVERGED:
                failed = f"; then it failed: {event.failure}; see {event.log}" if event.failure else ""
                return f"DIVERGED, not retried: {event.error}{failed}"
            case TrialStatus.UNREADABLE:
                return f"{seconds}, without metrics; see {event.log}"
        metric = metric_text(self.state, event.metrics or {}, attempt.epochs)
        result = f"{seconds}, {metric}" if metric else seconds
        reason = f"; {event.why}" if event.status == TrialStatus.STOPPED else _patience_text(self.state, event)
        return f"{result}{reason}{self._time_left()}"

    def describe(self) -> str:
        """How far the sweep is, in a line."""
        done = f"{self.ended} of {count_of(self.total, 'trial')} done"
        return f"sweep {self.state.name}: {done}, {format_duration(read_clock() - self._began)}{self._time_left()}"

    def _time_left(self) -> str:
        """The remaining time: the predicted seconds of all trials, or else their mean so far, shared by the slots."""
        if not self._finished:
            return ""
        mean = self._finished_seconds / self._finished
        now = read_clock()
        waiting = self._waiting_seconds if self._plan.forecast.seconds else len(self._waiting) * mean
        running = [
            max(0.0, self._plan.forecast.seconds.get(attempt.trial, mean) - (now - attempt.start))
            for attempt in self.running.values()
        ]
        left = max([*running, (waiting + sum(running)) / self._plan.slot_count])
        return f", about {format_duration(left)} left" if left >= 1 else ""


def _patience_text(state: History, event: Ended) -> str:
    """Why a training has finished before its last epoch; "" if it has not."""
    spec = state.trials[event.trial].spec if event.trial in state.trials else None
    trained = early_end(spec, event.metrics or {}) if spec else None
    if spec is None or trained is None or not spec.monitored:
        return ""
    return f"; ended after {trained:g} of {spec.epochs} epochs, {spec.patience} without a better {spec.monitored}"


def values_text(state: History, trial: str) -> str:
    """The varied values of a trial, as in `blocks=4, lr=0.1`."""
    if trial not in state.trials:
        return ""
    values = {key: value for key, value in state.trials[trial].values.items() if key not in state.constant_keys}
    return ", ".join(f"{key.split('.')[-1]}={value}" for key, value in values.items())


def metric_text(state: History, metrics: dict[str, float], epochs: Sequence[Row] = ()) -> str:
    """The metric that ranks trials, as in `validation accuracy 91.2% at epoch 6`; "" if it was not reported.

    The epoch is that of the last of `epochs` that has the metric, if several have it.
    """
    judged = state.sweep.ranking_metric([name for name in metrics if name != "epoch"])
    if judged is None or metrics.get(judged[0]) is None:
        return ""
    name = judged[0]
    value = metrics[judged[0]]
    words = {"val_accuracy": "validation accuracy"}.get(name, name)
    shown = f"{value:.1%}" if name.endswith("accuracy") and 0 <= value <= 1 else f"{value:.4g}"
    reports = [row for row in epochs if row.get(name) is not None and "epoch" in row]
    when = f" at epoch {reports[-1]['epoch']:.6g}" if len(reports) > 1 else ""
    return f"{words} {shown}{when}"
