"""Hyperparameter search: each configuration is drawn from the results of the previous ones (Optuna, ask and tell).

The state of a search is in the log of claims, which has each draw, and in the journals: the ends of the trials. The
n-th configuration is a function of the seed, of n, and of the results known when it is drawn. So a search that was
killed makes the same suggestions as an uninterrupted one if its trials end in the same order. Results of trials that
it has not drawn are evidence for it, if it could have drawn them.
"""

import logging
import math
import statistics
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Protocol

from trainyard.config.metric_names import DURATION, create_study
from trainyard.config.sweep import Choice, Draw, Search, Sweep, Uniform, condition_of, holds, options_of
from trainyard.config.train import value_at
from trainyard.config.trial_status import WITH_RESULT, TrialStatus
from trainyard.config.trials import Trial, Values, expand, make_trial, run_of
from trainyard.planning.attempts import Attempt
from trainyard.planning.history import History
from trainyard.planning.journal import Ended, Suggested, TrialEvent
from trainyard.planning.task import Task
from trainyard.planning.trial_space import Suggestion, TrialSpace
from trainyard.planning.trial_value import judged_metrics
from trainyard.utils.event_log import read_clock
from trainyard.utils.files import digest_of
from trainyard.utils.text import count_of

if TYPE_CHECKING:
    import optuna  # it takes a second: imported only where there is something to draw


class OptunaStudy:
    """The study of Optuna that a search draws from. It follows the order of the sweep."""

    def __init__(self, sweep: Sweep) -> None:
        assert sweep.search is not None
        self._sweep = sweep
        self._search = sweep.search
        self._bad: Sequence[float] = ()  # the values that were told of trials without good ones
        self._start()

    def _start(self) -> None:
        import optuna

        self._storage = optuna.storages.InMemoryStorage()
        self._study = create_study(self._sweep.goals.values(), storage=self._storage)
        self._told: list[tuple[Values, Attempt | None]] = []  # of each trial in it, the parameters and the end

    def draw(
        self, drawn: Sequence[Suggestion], ends: Mapping[str, Attempt], evidence: Sequence[Suggestion] = ()
    ) -> tuple[Values, Values, Values]:
        """The next configuration: (values, params, attrs), from those before it and from how theirs ended, by name.

        Trials that were stopped early count with their last value, those that diverged or ran out of GPU memory as
        worse than all others (with several objectives, also those that were stopped), and others that failed and
        cancelled ones do not count. Running trials are passed to Optuna, too. `evidence` are other trials.
        """
        known = [*evidence, *drawn]
        self._tell([(each, ends.get(each.name)) for each in known], bad=self._worse_than_all(ends.values()))
        asked = self._ask(len(drawn))
        values = {key: _value(self._search.values[key], param) for key, param in asked.params.items()}
        return values, dict(asked.params), {name: attr for name, attr in asked.system_attrs.items() if name != _GUESS}

    def _worse_than_all(self, ends: Iterable[Attempt]) -> list[float]:
        """For each objective a value that is clearly worse than the values of all trials so far."""
        worst = list[float]()
        reported = [end.metrics for end in ends if end.outcome in WITH_RESULT]
        for metric, mode in self._sweep.goals.items():
            known = [metrics.get(metric) for metrics in reported]
            values = [float(value) for value in known if value is not None and math.isfinite(value)] or [0.0]
            spread = (max(values) - min(values)) or abs(values[0]) or 1.0
            worst.append(min(values) - spread if mode == "max" else max(values) + spread)
        return worst

    def _tell(self, drawn: Sequence[tuple[Suggestion, Attempt | None]], *, bad: Sequence[float]) -> None:
        """Bring the study up to date with the trials before the next draw. `bad` are the values of a diverged one."""

        def is_same(told: tuple[Values, Attempt | None], now: tuple[Suggestion, Attempt | None]) -> bool:
            return told[0] == now[0].params and told[1] in (None, now[1])

        # To add all trials again for each draw takes a quarter of a second with 4,000 of them. Other methods save what
        # they have worked out in the study, which would then depend on when the job started.
        is_kept = self._search.method in ("tpe", "qmc") and len(self._told) <= len(drawn)
        if self._sweep.objectives:  # with one, none are told where it is kept
            is_kept = is_kept and bad == self._bad
            self._bad = bad
        if self._told and not (is_kept and all(map(is_same, self._told, drawn))):
            self._start()
        for number, (suggestion, end) in enumerate(drawn):
            if number < len(self._told):
                if end is not None and self._told[number][1] is None:
                    self._finish(number, self._as_known(suggestion, end, bad))
            elif self._search.method == "qmc":
                self._ask(number)  # the study counts what it has drawn
            else:
                self._study.add_trial(self._as_known(suggestion, end, bad))
                self._told.append((suggestion.params, None))
            self._told[number] = (suggestion.params, end)

    def _finish(self, number: int, frozen: "optuna.trial.FrozenTrial") -> None:
        study = self._storage.get_study_id_from_name(self._study.study_name)
        trial = self._storage.get_trial_id_from_study_id_trial_number(study, number)
        for name, attr in frozen.system_attrs.items():  # its constraints are among them
            self._storage.set_trial_system_attr(trial, name, attr)
        for epoch, value in frozen.intermediate_values.items():
            self._storage.set_trial_intermediate_value(trial, epoch, value)
        self._storage.set_trial_state_values(trial, frozen.state, frozen.values)

    def _ask(self, number: int) -> "optuna.trial.FrozenTrial":
        """Have Optuna draw the next trial; `number` were drawn before."""
        import optuna

        search = self._search
        seed = digest_of([search.seed, 0 if search.method == "qmc" else number], length=8)
        self._study.sampler = search.sampler(int(seed, 16) % 2**31)
        guesses = {key: _guess(choice) for key, choice in search.values.items() if _guess(choice) is not None}
        if guesses and not number:
            self._study.enqueue_trial(guesses)
        values = Values()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            trial = self._study.ask()
            for key, choice in search.values.items():
                if holds(condition_of(choice), values):
                    values[key] = _value(choice, _suggest(trial, key, _distribution(choice)))
        self._told.append((trial.params, None))
        return self._study.get_trials(deepcopy=False)[-1]

    def _as_known(
        self, suggestion: Suggestion, end: Attempt | None, bad: Sequence[float]
    ) -> "optuna.trial.FrozenTrial":
        """A trial as Optuna has it."""
        import optuna
        from optuna.trial import TrialState

        state = TrialState.RUNNING
        curve = dict[int, float]()
        constraints = dict[str, float]()
        values: Sequence[float] | None = None
        if end is not None:
            goals = list(self._sweep.goals)
            limits = self._sweep.constraints
            metrics = {name: end.metrics.get(name) for name in (*goals, *limits)}
            judged = {
                name: float(value) for name, value in metrics.items() if value is not None and math.isfinite(value)
            }
            needed = metrics if end.outcome == TrialStatus.FINISHED else goals
            states = {TrialStatus.FINISHED: TrialState.COMPLETE, TrialStatus.STOPPED: TrialState.PRUNED}
            state = states.get(end.outcome, TrialState.FAIL)
            values = [judged[name] for name in goals if name in judged]
            constraints = {
                name: limit.excess(judged[name]) if name in judged else 0.0 for name, limit in limits.items()
            }
            # Optuna prunes no trials with several objectives.
            is_bad = end.outcome == TrialStatus.DIVERGED or end.ran_out_of_memory
            if is_bad or (end.outcome == TrialStatus.STOPPED and len(goals) > 1):
                # TPE ranks pruned trials without values last; the others use completed trials only.
                is_last = self._search.method == "tpe" and len(goals) == 1
                state, values = (TrialState.PRUNED, None) if is_last else (TrialState.COMPLETE, bad)
            elif not judged.keys() >= set(needed):
                state = TrialState.FAIL
                values = None
            elif len(goals) == 1:
                curve = {row["epoch"]: row[goals[0]] for row in end.epochs if row.get(goals[0]) is not None}
        return optuna.trial.create_trial(
            state=state,
            values=values,
            params=suggestion.params,
            distributions={key: _distribution(self._search.values[key]) for key in suggestion.params},
            system_attrs=dict(suggestion.attrs),  # Optuna adds the constraints
            intermediate_values=curve,
            constraints=constraints,
        )


# Of repeats of a configuration: if one has diverged, it counts as diverged, and if one was stopped, as stopped.
_BADNESS: Final = {TrialStatus.FAILED: 1, TrialStatus.STOPPED: 2, TrialStatus.DIVERGED: 3}
_GUESS: Final = "fixed_params"  # where Optuna keeps the values of an enqueued trial
log = logging.getLogger(__name__)


def _distribution(choice: Draw) -> "optuna.distributions.BaseDistribution":
    from optuna import distributions

    if not isinstance(choice, Uniform):
        return distributions.CategoricalDistribution(range(len(options_of(choice))))
    if choice.integer:
        low, high = map(int, choice.ends)
        return distributions.IntDistribution(low, high, log=choice.log, step=int(choice.step or 1))
    return distributions.FloatDistribution(*choice.ends, log=choice.log, step=choice.step)


def _suggest(trial: "optuna.Trial", key: str, of: "optuna.distributions.BaseDistribution") -> Any:
    from optuna import distributions

    if isinstance(of, distributions.CategoricalDistribution):
        return trial.suggest_categorical(key, of.choices)
    if isinstance(of, distributions.IntDistribution):
        return trial.suggest_int(key, of.low, of.high, log=of.log, step=of.step)
    assert isinstance(of, distributions.FloatDistribution)
    return trial.suggest_float(key, of.low, of.high, log=of.log, step=of.step)


def _guess(choice: Draw) -> Any:
    """The guess of a value as Optuna draws it: of a list, the index."""
    if isinstance(choice, Choice):
        return None if choice.guess is None else choice.choices.index(choice.guess)
    return choice.guess if isinstance(choice, Uniform) else None


def _value(choice: Draw, param: Any) -> Any:
    return choice.in_table(param) if isinstance(choice, Uniform) else options_of(choice)[param]


def params_of(search: Search, values: Values) -> Values | None:
    """Values of the varied keys as Optuna draws them; None if the search cannot draw them. Other keys are ignored."""
    import optuna

    params = Values()
    used = Values()
    for key, choice in search.values.items():
        if not holds(condition_of(choice), used):
            continue
        used[key] = value = values.get(key)
        if not isinstance(choice, Uniform):
            options = options_of(choice)
            value = options.index(value) if value in options else None
        if value is None:
            return None
        params[key] = value
    try:  # which checks ranges and steps
        distributions = {key: _distribution(search.values[key]) for key in params}
        optuna.trial.create_trial(value=0.0, params=params, distributions=distributions)
    except (TypeError, ValueError):
        return None
    return params


def as_drawn(space: TrialSpace, name: str, values: Values) -> Suggestion | None:
    """A trial as if the search had drawn it; None if it differs from what the search draws, other than by seed."""
    search = space.sweep.search
    digest = space.dataset_digest
    assert search is not None
    with suppress(ValueError):  # of a config with other keys
        trial = make_trial(space.sweep, values)
        whole = {key: value_at(trial.settings, key) for key in search.values} | values
        if params := params_of(search, whole):
            drawn = {key: whole[key] for key in whole if key in params or not space.sweep.is_setting(key)}
            same = make_trial(space.sweep, drawn)
            if trial.identity(digest) == same.identity(digest) == name:
                return Suggestion(trial, name, params, {})
    return None


def describe_new_search(state: History) -> str:
    """That a search begins although trials of an earlier config have ended, and how many count; "" otherwise."""
    search = state.sweep.search
    space = state.space
    ends = list(filter(None, (record.end for record in state.earlier)))
    if not search or space.suggestions or not ends:
        return ""
    drawn = [end for end in ends if search.learns and as_drawn(space, end.trial, end.values)]
    goals = state.sweep.goals.keys() - {DURATION}
    counting = sum(end.outcome == TrialStatus.DIVERGED or goals <= end.metrics.keys() for end in drawn)
    return f"a new search, for which {counting} of {count_of(len(ends), 'earlier trial')} count"


class Claims(Protocol):
    """What a search needs of the trials that the jobs of its sweep have claimed."""

    @property
    def cancelled(self) -> Set[str]:
        """The trials that users have cancelled."""

    def may_run(self, trial: str) -> bool:
        """Whether this job may run an unfinished trial."""

    def draw(self, choose: Callable[[], tuple[list[Suggested], str | None]], *, seconds: float = 0.0) -> str | None:
        """Record the draws that `choose` makes from all results so far, and claim the trial that it returns, if any."""

    def task(self, trial: str) -> Task:
        """A trial as a task."""


class SuggestionSource:
    """A source of tasks that a search draws."""

    def __init__(self, state: History, claims: Claims) -> None:
        assert state.sweep.search is not None
        self._state = state
        self._claims = claims
        self._search = state.sweep.search
        self._study = OptunaStudy(state.sweep)
        ends = (record.end or record.out_of_memory for record in state.records)
        self._ends = {end.trial: self._with_values(end) for end in filter(None, ends)}
        self._sweep: Sweep | None = None  # for which the following was looked up
        self._configured = dict[str, Trial]()  # trials of `grid`, `trials` and `sample`
        self._evidence: list[list[Suggestion]] = []  # trials that it has not drawn, by configuration

    @property
    def remaining(self) -> int:
        """Configurations that are not drawn yet."""
        return self._state.space.undrawn_count

    def on_event(self, event: TrialEvent, attempt: Attempt, *, is_own: bool) -> None:
        """Take up the end of a trial, in whichever job."""
        if isinstance(event, Ended) and event.is_final:
            self._ends[event.trial] = self._with_values(attempt, is_new=True)

    def _with_values(self, end: Attempt, *, is_new: bool = False) -> Attempt:
        """An end whose metrics are the values by which trials are compared."""
        sweep = self._state.sweep
        is_timed = DURATION in (*sweep.goals, *sweep.constraints)
        if is_new and (is_timed or sweep.score != "last"):  # which may continue earlier attempts
            self._state.refresh()
        return replace(end, metrics=judged_metrics(self._state, end, *sweep.compared_by))

    def _find_evidence(self) -> None:
        """Look up what the search could have drawn: trials of the config, ended ones of earlier ones."""
        state = self._state
        space = self._state.space
        by_params = dict[str, list[Suggestion]]()
        self._sweep = space.sweep
        self._configured = expand(space.sweep).by_name(space.dataset_digest)
        self._evidence = []
        if not self._search.learns:
            return
        configured = {name: trial.values for name, trial in self._configured.items()}
        ends = filter(None, (self._find_end(record.name) for record in state.earlier))
        values_of = configured | {end.trial: end.values for end in ends}
        others = [as_drawn(space, name, values) for name, values in values_of.items()]
        for each in filter(None, others):
            by_params.setdefault(str(each.params), []).append(each)
        average = space.sweep.average
        for group in by_params.values():
            levels = {str([value_at(each.trial.settings, key) for key in average]) for each in group}
            if len(levels) == len(space.sweep.averaged):  # a configuration needs trials at all values of `average`
                self._evidence.append(group)
        if others:
            count = sum(map(len, self._evidence))
            log.info("search: %d trials that it has not drawn count, %d do not fit", count, len(others) - count)

    def _find_end(self, name: str) -> Attempt | None:
        """How a trial ended by the present rules, if it has."""
        end = self._state.record(name).end
        if end is not None:
            self._ends[name] = self._with_values(end)
        return end

    def next_task(self, seconds: float = 0.0) -> Task | None:
        """The next configuration that has no result yet; None if all are drawn, or it does not fit the budget."""
        trial = self._claims.draw(self._choose, seconds=seconds)
        return None if trial is None else self._claims.task(trial)

    def draw_ahead(self, seconds: float = 0.0) -> None:
        """Draw the next configuration for whichever job has a free slot first, unless another job has just drawn."""
        count = self.remaining
        self._claims.draw(lambda: (self._choose()[0] if self.remaining == count else [], None), seconds=seconds)

    def _draw(self, drawn: Sequence[Suggestion]) -> tuple[Values, Values, Values]:
        """The next configuration, or the next repeat of the last one."""
        sweep = self._state.sweep
        repeat = len(drawn) % self._state.sweep.trials_of_each
        if repeat:
            first = drawn[-repeat]
            return run_of(sweep, first.trial.values, repeat), first.params, first.attrs
        cancelled = self._claims.cancelled - self._ends.keys()
        gone = {name: Attempt(name, 0, 0.0, 0.0, outcome=TrialStatus.CANCELLED) for name in cancelled}
        repeats = sweep.trials_of_each
        firsts = drawn[::repeats]
        ends = self._ends | gone
        evidence = self._evidence
        if evidence:
            names = {each.name for each in drawn}
            evidence = [group for group in evidence if names.isdisjoint(each.name for each in group)]
        if repeats > 1 or evidence:
            groups = [*evidence, *zip(*(drawn[each::repeats] for each in range(repeats)), strict=True)]
            means = {group[0].name: self._mean_end(group, ends) for group in groups}
            ends = {name: mean for name, mean in means.items() if mean}
        values, params, attrs = self._study.draw(firsts, ends, [group[0] for group in evidence])
        return run_of(sweep, values, 0), params, attrs

    def _mean_end(self, repeats: Sequence[Suggestion], known: Mapping[str, Attempt]) -> Attempt | None:
        """How the repeats of a configuration ended, as one trial with their mean; None until all have ended."""
        ends = [known[each.name] for each in repeats if each.name in known]
        if len(repeats) == 1 and ends:
            return ends[0]
        if len(ends) < len(repeats):
            return None
        sweep = self._state.sweep
        metrics = (*sweep.goals, *sweep.constraints)
        worst = max(ends, key=lambda end: (end.ran_out_of_memory, _BADNESS.get(end.outcome, 0)))
        if worst.ran_out_of_memory or worst.outcome == TrialStatus.DIVERGED:
            return worst
        reported = [end.metrics for end in ends if end.outcome in WITH_RESULT]
        values = {metric: [each[metric] for each in reported if metric in each] for metric in metrics}
        needed = len(ends) if sweep.average else 1  # a mean over some values is on another scale
        outcome = worst.outcome if worst.outcome in WITH_RESULT else TrialStatus.FINISHED
        means = {key: statistics.fmean(of) for key, of in values.items() if len(of) >= needed}
        return replace(worst, outcome=outcome, metrics=means)

    def _choose(self) -> tuple[list[Suggested], str | None]:
        """The next draws, up to one whose trial must run, and this trial, if any."""
        space = self._state.space
        if space.sweep is not self._sweep:
            self._find_evidence()
        drawn = list(space.suggestions)
        events = list[Suggested]()
        names = {each.name for each in drawn} | self._configured.keys()
        while len(drawn) - len(space.suggestions) < self.remaining:
            values, params, attrs = self._draw(drawn)
            event = Suggested(
                time=round(read_clock(), 4), search=space.search_key, values=values, params=params, attrs=attrs
            )
            events.append(event)
            drawn.append(suggestion := space.suggestion(event))
            if suggestion.name in names:
                continue
            names.add(suggestion.name)
            if not self._find_end(suggestion.name) and self._claims.may_run(suggestion.name):
                return events, suggestion.name  # an earlier search may have drawn and started it
        return events, None
