"""The plan of a sweep: which trials are pending, in what order, on how many slots, and how long that will take."""

import heapq
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from trainyard.config import Config, Sweep
from trainyard.counting import duration
from trainyard.files import digest_of
from trainyard.journal import Attempt, attempts, by_trial, read_events, result_of
from trainyard.trials import RESULT_VERSION, Trial, expand

UNPROVEN_MINUTES = 60  # walltime to ask for before any trial of a sweep has shown what it takes


@dataclass(frozen=True)
class Plan:
    """What running a sweep now would mean. Trial identities are provisional until the dataset is staged."""

    name: str
    sweep: Sweep
    trials: dict[str, Trial]  # all, by identity, in the config's order
    tries: dict[str, list[Attempt]]  # what the journal knows of them

    def generation(self, trial: str) -> int:
        """The `retrain` number that a trial's result must reach: an earlier result does not count any more."""
        retrain = self.sweep.retrain
        return retrain if isinstance(retrain, int) else max(retrain.get(trial, 0), retrain.get("all", 0))

    def result(self, trial: str) -> Attempt | None:
        """The attempt that finished a trial, or None while it is pending."""
        return result_of(self.tries.get(trial, ()), self.generation(trial))

    @cached_property
    def pending(self) -> list[str]:
        """Trials without a result, longest first by the best cost known."""
        names = [name for name in self.trials if self.result(name) is None]
        costs = self.seconds or self._relative_costs(names)
        return sorted(names, key=lambda name: -costs.get(name, 0.0))

    @cached_property
    def seconds(self) -> dict[str, float]:
        """Expected seconds of the pending trials; empty without evidence."""
        evidence = [
            (self.trials[name], result.seconds) for name in self.trials if (result := _last_finished(self, name))
        ]
        names = [name for name in self.trials if self.result(name) is None]
        if not evidence or not names:
            return {}
        from trainyard.costs import predict_seconds  # numpy: not for a dry run that has nothing to predict

        predicted = predict_seconds([self.trials[name] for name in names], [(t, s) for t, s in evidence if s])
        return dict(zip(names, predicted or [], strict=False))

    def _relative_costs(self, names: list[str]) -> dict[str, float]:
        if self.sweep.cost is None:
            return {}
        from trainyard.costs import relative_cost

        return {name: relative_cost(self.sweep.cost, self.trials[name]) for name in names}

    @property
    def failed_before(self) -> int:
        """Pending trials whose last attempt failed."""
        last = [self.tries[name][-1] for name in self.pending if name in self.tries]
        return sum(attempt.outcome == "failed" for attempt in last)

    @property
    def predicted_seconds(self) -> float | None:
        """Makespan of the pending trials, without the start-up; None before there is evidence."""
        return makespan([self.seconds[name] for name in self.pending], self.sweep.slots.count) if self.seconds else None

    @property
    def walltime_minutes(self) -> int:
        """What to ask of the scheduler: the prediction and half as much again, and two minutes to start."""
        predicted = self.predicted_seconds
        return UNPROVEN_MINUTES if predicted is None else 2 + int(predicted * 1.5 / 60 + 1)

    @cached_property
    def digest(self) -> str:
        """Changes when the set of results that the sweep must have changes, and only then: the rule's parameter."""
        return digest_of([[trial.content for trial in self.trials.values()], RESULT_VERSION, self.sweep.retrain])

    def summary(self) -> str:
        """One line in words, for `snakemake -n`."""
        slots = self.sweep.slots
        again = f" ({self.failed_before} failed before)" if self.failed_before else ""
        what = f"{len(self.pending)} of {len(self.trials)} trials pending{again}"
        if not self.pending:
            return f"sweep {self.name}: {what}; only the tables will be written"
        count = f"{slots.count} slot{'s' if slots.count > 1 else ''}"
        asked = f"{count} of {slots.gpus_per_trial:g} GPU and {slots.cpus_per_trial} CPU"
        nodes = f" on {slots.nodes} nodes" if slots.nodes > 1 else ""
        predicted = self.predicted_seconds
        when = "the time is unknown until a first trial has finished"
        if predicted is not None:
            when = f"predicted {duration(predicted)} of training after the start-up"
        return f"sweep {self.name}: {what}; asks for {asked}{nodes}; {when}"


def _last_finished(plan: Plan, name: str) -> Attempt | None:
    """Any finished attempt with a duration, also one that `retrain` has overruled: it is evidence all the same."""
    result = result_of(plan.tries.get(name, ()))
    return result if result and result.seconds else None


def plan_sweep(config: Config, name: str, results: Path) -> Plan:
    """The plan of a sweep, from the config and from what `results` holds of its dataset and journal."""
    sweep = config.sweeps[name]
    dataset_digest = _dataset_digest(results / "data" / sweep.dataset / "meta.json")
    trials = {trial.identity(dataset_digest): trial for trial in expand(sweep).trials}
    tries = by_trial(attempts(read_events(results / "sweeps" / name / "journal.jsonl")))
    return Plan(name=name, sweep=sweep, trials=trials, tries=tries)


def _dataset_digest(meta: Path) -> str:
    """The digest of a staged dataset; before it is staged, what no dataset has."""
    try:
        return str(json.loads(meta.read_text())["digest"])
    except FileNotFoundError:
        return "not staged"


def makespan(durations: Sequence[float], slots: int) -> float:
    """Seconds until the last trial ends if each slot takes the next one, in the order given, as soon as it is free."""
    free = [0.0] * slots
    for seconds in durations:
        heapq.heapreplace(free, free[0] + seconds)
    return max(free)


def lower_bound(durations: Sequence[float], slots: int) -> float:
    """No order of the trials ends before max(longest, sum / G, p_G + p_(G+1)), p sorted descending, on G slots.

    The last term: of the G + 1 longest trials, two must share a slot.
    """
    longest = sorted(durations, reverse=True)
    if not longest:
        return 0.0
    pair = longest[slots - 1] + longest[slots] if len(longest) > slots else 0.0
    return max(longest[0], sum(longest) / slots, pair)
