"""The plan of a sweep: which trials are pending, in what order, on how many slots, and how long that will take."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final

from trainyard.config import Config, Sweep
from trainyard.counting import duration
from trainyard.files import digest_of
from trainyard.journal import Attempt, attempts, by_trial, read_events, result_of, startups
from trainyard.schedules import makespan
from trainyard.trials import RESULT_VERSION, Trial, expand

if TYPE_CHECKING:
    from trainyard.costs import Prediction

UNPROVEN_MINUTES: Final = 60  # walltime to ask for before any trial of a sweep has shown what it takes
UNPROVEN_STARTUP_SECONDS: Final = 60.0  # from the start of the program to the first trial, before that was seen
MARGIN_SECONDS: Final = 60.0  # of the walltime, for what comes before the program and after the last trial
INTERVAL: Final = (0.05, 0.95)  # quantiles of what the makespan may be


@dataclass(frozen=True)
class Plan:
    """What running a sweep now would mean. Trial identities are provisional until the dataset is staged."""

    name: str
    sweep: Sweep
    trials: dict[str, Trial]  # all, by identity, in the config's order
    tries: dict[str, list[Attempt]]  # what the journal knows of them
    startups: list[float]  # seconds from the start of the program to its first trial, of each time it ran

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
        costs = self.seconds or self._relative_costs(self._unfinished)
        return sorted(self._unfinished, key=lambda name: -costs.get(name, 0.0))

    @cached_property
    def _unfinished(self) -> list[str]:
        """Trials without a result, in the config's order."""
        return [name for name in self.trials if self.result(name) is None]

    @cached_property
    def _prediction(self) -> "Prediction | None":
        """What the unfinished trials will take; None without evidence."""
        return self.predict(self._unfinished, {})

    def predict(self, names: Sequence[str], finished: Mapping[str, float]) -> "Prediction | None":
        """What trials will take, from the journal and from the seconds of what has `finished` since."""
        known = {name: result.seconds for name in self.trials if (result := _last_finished(self, name))} | dict(
            finished
        )
        if not known or not names:
            return None
        from trainyard.costs import predict  # numpy: not for a dry run that has nothing to predict

        relative = self._relative_costs([*names, *known])
        return predict(
            [self.trials[name] for name in names],
            [(self.trials[name], seconds) for name, seconds in known.items() if seconds],
            relative=[relative[name] for name in (*names, *known)] if relative else None,
        )

    @cached_property
    def seconds(self) -> dict[str, float]:
        """Expected seconds of the pending trials; empty without evidence."""
        return dict(zip(self._unfinished, self._prediction.seconds.tolist(), strict=True)) if self._prediction else {}

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

    @cached_property
    def predicted_range(self) -> tuple[float, float] | None:
        """Between what the makespan will be in nine of ten cases; None before there is evidence."""
        if self._prediction is None or self.predicted_seconds is None:
            return None
        place = {name: index for index, name in enumerate(self._unfinished)}
        order = [place[name] for name in self.pending]
        spans = sorted(makespan(draw, self.sweep.slots.count) for draw in self._prediction.draws[:, order].tolist())
        low, high = (spans[round(share * (len(spans) - 1))] for share in INTERVAL)
        return min(low, self.predicted_seconds), max(high, self.predicted_seconds)

    @property
    def startup_seconds(self) -> float:
        """From the start of the program to the first trial: the longest that was seen."""
        return max(self.startups, default=UNPROVEN_STARTUP_SECONDS)

    @property
    def walltime_minutes(self) -> int:
        """What to ask of the scheduler: the upper end of the prediction, the start-up, and a margin."""
        if self.predicted_range is None:
            return UNPROVEN_MINUTES
        return math.ceil((self.predicted_range[1] + self.startup_seconds + MARGIN_SECONDS) / 60)

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
            low, high = map(duration, self.predicted_range or (predicted, predicted))
            between = f" ({low} to {high})" if low != high else ""
            when = f"predicted {duration(predicted)}{between} of training after the start-up"
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
    events = read_events(results / "sweeps" / name / "journal.jsonl")
    return Plan(name, sweep, trials, tries=by_trial(attempts(events)), startups=startups(events))


def _dataset_digest(meta: Path) -> str:
    """The digest of a staged dataset; before it is staged, what no dataset has."""
    try:
        return str(json.loads(meta.read_text())["digest"])
    except FileNotFoundError:
        return "not staged"
