"""The tasks of a search: drawn one by one, as slots come free, and kept in the journal before they begin."""

from collections import defaultdict

from trainyard.config.trials import make_trial
from trainyard.packing.tasks import Task
from trainyard.planning.journal import SETTLED, TERMINAL, Attempt, Event, Journal, attempts
from trainyard.planning.plan import Plan
from trainyard.planning.search import Suggestion, draw


class Suggested:
    """Gives what a search suggests next; it must `see` all events of the journal's trials."""

    def __init__(self, plan: Plan, journal: Journal) -> None:
        import optuna  # noqa: F401  (it takes a second or two: while the slots start)

        assert plan.sweep.search is not None
        self._plan, self._journal, self._search = plan, journal, plan.sweep.search
        self._drawn = list(plan.suggestions)
        ends = {each.name: plan.end(each.name) for each in self._drawn}
        self._ends = {name: end for name, end in ends.items() if end}
        self._events: dict[str, list[Event]] = defaultdict(list)  # of trials that run

    @property
    def open(self) -> int:
        """How many are still to be drawn."""
        return self._search.trials - len(self._drawn)

    def see(self, event: Event) -> None:
        """Take in an event of a trial."""
        name = event["trial"]
        self._events[name].append(event)
        if event["event"] not in TERMINAL:
            return
        attempt: Attempt = attempts(self._events[name])[-1]
        if attempt.outcome in SETTLED or (attempt.outcome == "failed" and not event["retried"]):
            self._ends[name] = attempt
            del self._events[name]

    def next_task(self) -> Task | None:
        """What is drawn next. What was drawn before needs no second training: its result counts again."""
        while self.open:
            values, params, attrs = draw(self._search, self._drawn, self._ends)
            trial = make_trial(self._plan.sweep, values)
            name = trial.identity(self._plan.dataset_digest)
            known = any(each.name == name for each in self._drawn)
            self._journal.append(
                "suggested", durable=True, search=self._plan.search_key, values=values, params=params, attrs=attrs
            )
            self._drawn.append(Suggestion(trial, name, params, attrs))
            self._plan.trials[name] = trial  # progress shows its values
            if not known:
                tries = self._plan.tries.get(name, [])
                if (end := self._plan.end(name)) is None:
                    return Task(name, trial.spec, trial.values, self._plan.generation(name), len(tries))
                self._ends[name] = end
        return None
