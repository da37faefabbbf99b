"""Hyperparameter search: each configuration is drawn from the results of the previous ones (Optuna, ask and tell).

The state of a search is in the log of claims, which has each draw, and in the journals: the ends of the trials. The
n-th configuration is a function of the seed, of n, and of the results known when it is drawn. So a search that was
killed makes the same suggestions as an uninterrupted one if its trials end in the same order.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from trainyard.config.metric_names import Mode
from trainyard.config.sweep import Draw, Search, Sweep
from trainyard.config.trial_status import FINAL, WITH_RESULT, TrialStatus
from trainyard.config.trials import in_table
from trainyard.planning.attempts import Attempt
from trainyard.planning.journal import Ended, Suggested, TrialEvent
from trainyard.planning.sweep_state import Suggestion, SweepState, Task
from trainyard.utils.event_log import read_clock
from trainyard.utils.files import digest_of

if TYPE_CHECKING:
    import optuna  # it takes a second: imported only where there is something to draw


def draw(
    sweep: Sweep, drawn: Sequence[Suggestion], ends: Mapping[str, Attempt]
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """The next configuration: (values, params, attrs), from those before it and from how their trials ended, by name.

    Trials that were stopped early count with their last value, those that diverged as worse than all others, and failed
    ones do not count. Running trials are passed to Optuna, too.
    """
    import optuna

    assert sweep.search is not None
    search, (metric, mode) = sweep.search, sweep.compared_by
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(
        sampler=_sampler(search, number=len(drawn)), direction="maximize" if mode == "max" else "minimize"
    )
    distributions = {key: _distribution(choice) for key, choice in search.values.items()}
    bad = _worse_than_all(ends.values(), metric, mode)
    study.add_trials([_as_known(each, ends.get(each.name), sweep, distributions, bad=bad) for each in drawn])
    drawn_trial = study.ask(distributions)
    attrs = dict(study.get_trials(deepcopy=False)[-1].system_attrs)
    values = {key: _value(choice, drawn_trial.params[key]) for key, choice in search.values.items()}
    return values, dict(drawn_trial.params), attrs


def _as_known(
    each: Suggestion, end: Attempt | None, sweep: Sweep, distributions: dict[str, Any], *, bad: float
) -> "optuna.trial.FrozenTrial":
    import optuna
    from optuna.trial import TrialState

    state, value, curve = TrialState.RUNNING, None, dict[int, float]()
    if end is not None:
        metric = sweep.compared_by[0]
        value = end.metrics.get(metric)
        usable = value is not None and math.isfinite(value)
        states = {TrialStatus.FINISHED: TrialState.COMPLETE, TrialStatus.STOPPED: TrialState.PRUNED}
        state = states.get(end.outcome, TrialState.FAIL)
        curve = {row["epoch"]: row[metric] for row in end.epochs if row.get(metric) is not None}
        if end.outcome == TrialStatus.DIVERGED:
            # TPE ranks pruned trials without values last; CMA-ES uses completed trials only.
            is_cmaes = sweep.search is not None and sweep.search.method == "cmaes"
            state, value = (TrialState.COMPLETE, bad) if is_cmaes else (TrialState.PRUNED, None)
            curve = {}
        elif not usable:
            state, value = TrialState.FAIL, None
    return optuna.trial.create_trial(
        state=state,
        value=value,
        params=each.params,
        distributions=distributions,
        system_attrs=each.attrs,
        intermediate_values=curve,
    )


def _worse_than_all(ends: Iterable[Attempt], metric: str, mode: Mode) -> float:
    """A value that is clearly worse than the values of all trials so far."""
    reported = [end.metrics.get(metric) for end in ends if end.outcome in WITH_RESULT]
    values = [value for value in reported if value is not None and math.isfinite(value)] or [0.0]
    spread = (max(values) - min(values)) or abs(values[0]) or 1.0
    return min(values) - spread if mode == "max" else max(values) + spread


def _sampler(search: Search, *, number: int) -> "optuna.samplers.BaseSampler":
    import warnings

    import optuna

    seed = int(digest_of([search.seed, number], length=8), 16) % 2**31
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        if search.method == "tpe":  # `constant_liar` avoids drawing close to running trials
            return optuna.samplers.TPESampler(seed=seed, constant_liar=True)
        if search.method == "cmaes":
            return optuna.samplers.CmaEsSampler(seed=seed, warn_independent_sampling=False)
        return optuna.samplers.RandomSampler(seed=seed)


def _distribution(choice: Draw) -> "optuna.distributions.BaseDistribution":
    from optuna import distributions

    if isinstance(choice, list):
        return distributions.CategoricalDistribution(range(len(choice)))
    if choice.integer:
        return distributions.IntDistribution(math.ceil(choice.low), math.floor(choice.high), log=choice.log)
    return distributions.FloatDistribution(choice.low, choice.high, log=choice.log)


def _value(choice: Draw, param: Any) -> Any:
    return choice[param] if isinstance(choice, list) else in_table(param, choice)


class Order(Protocol):
    """What a search needs of the order that the jobs of its sweep share."""

    def may_run(self, trial: str) -> bool:
        """Whether this job may run an unfinished trial."""

    def draw(self, choose: Callable[[], tuple[list[Suggested], str | None]]) -> str | None:
        """Record the draws that `choose` makes from all results so far, and claim the trial that it returns, if any."""

    def task(self, trial: str) -> Task:
        """A trial as a task."""


class SuggestionSource:
    """A source of tasks that a search draws. Call `update` with every event of a trial, in any job."""

    def __init__(self, state: SweepState, order: Order, *, reread: Callable[[Attempt], object]) -> None:
        """`reread` brings an attempt up to date whose output was read by other `metrics` rules."""
        import optuna  # noqa: F401  (it takes a second or two: while the slots start)

        self._state, self._order = state, order
        self._reread = reread
        ends = {each.name: state.end(each.name) for each in state.space.suggestions}
        self._ends = {name: end for name, end in ends.items() if end}

    @property
    def remaining(self) -> int:
        """Configurations that are not drawn yet."""
        return self._state.space.undrawn_count

    def update(self, event: TrialEvent, attempt: Attempt) -> None:
        """Update the search with an event of an attempt at a trial."""
        if isinstance(event, Ended) and (
            event.status in FINAL or (event.status == TrialStatus.FAILED and not event.retried)
        ):
            self._ends[event.trial] = attempt

    def next_task(self) -> Task | None:
        """The next configuration that has no result yet; None if all are drawn."""
        trial = self._order.draw(self._choose)
        return None if trial is None else self._order.task(trial)

    def _choose(self) -> tuple[list[Suggested], str | None]:
        """The next draws, up to one whose trial must run, and this trial, if any."""
        state, space = self._state, self._state.space
        drawn, events = list(space.suggestions), list[Suggested]()
        known = {each.name for each in drawn}
        while len(drawn) - len(space.suggestions) < self.remaining:
            values, params, attrs = draw(state.sweep, drawn, self._ends)
            event = Suggested(
                time=round(read_clock(), 4), search=space.search_key, values=values, params=params, attrs=attrs
            )
            events.append(event)
            drawn.append(found := space.suggestion(event))
            if found.name in known:
                continue
            known.add(found.name)
            if state.must_reparse(end := state.end(found.name)):
                self._reread(end)
                end = state.end(found.name)
            if end is not None:
                self._ends[found.name] = end
            elif self._order.may_run(found.name):
                return events, found.name  # an earlier search may have drawn and started it
        return events, None
