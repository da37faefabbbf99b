"""The trials of a sweep, by identity: those of the config, of a search, and further seeds of the best."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from trainyard.config.sweep import Sweep
from trainyard.config.train import RESULT_VERSION
from trainyard.config.trials import Trial, Values, expand, make_trial, trials_to_check
from trainyard.config.user_programs import metrics_digest
from trainyard.planning.journal import Suggested
from trainyard.utils.files import digest_of

NOT_STAGED: Final = "not staged"  # in place of a dataset's digest
_PLACEHOLDER: Final = "draw-"


@dataclass(frozen=True)
class Suggestion:
    """A configuration that a search has drawn."""

    trial: Trial
    name: str  # the trial's identity
    params: Values  # as Optuna drew them: of lists, the index
    attrs: Values  # state of Optuna's sampler


class TrialSpace:
    """The trials of a sweep by identity. Identities are provisional until the dataset is staged.

    `trials` holds those of the config in its order, then those that were drawn by a search or as further seeds of the
    best, then a placeholder for each one that may still be drawn, so that forecasts count them.
    """

    def __init__(self, sweep: Sweep, dataset_digest: str, suggested: Sequence[Suggested] = ()) -> None:
        self.sweep = sweep
        self.dataset_digest = dataset_digest
        self.suggestions: list[Suggestion] = []  # of the search
        self.further = set[str]()  # trials with further seeds of the best configurations
        self.optional = set[str]()  # those of other selections, which count if they have a result, but need not run
        self._chosen = list[str]()  # of their draws: of `selections`; `digest` if none was best
        self.trials: dict[str, Trial] = expand(sweep).by_name(dataset_digest)
        self.extend(suggested)
        self.trials |= self._placeholders()

    def _placeholders(self) -> dict[str, Trial]:
        again = len(self.suggestions) - len({each.name for each in self.suggestions})
        last = min(self.sweep.draw_count, self.sweep.distinct_draw_count + again)
        numbers = [*range(len(self.suggestions) + 1, last + 1), *(f"seed-{each + 1}" for each in range(self.unchosen))]
        known = expand(self.sweep)
        example = Trial((known.examples or known.trials)[0].spec, {}) if numbers else None
        return {f"{_PLACEHOLDER}{number}": example for number in numbers if example}

    @cached_property
    def search_key(self) -> str:
        """Identifies the search: it changes with everything but the number of trials. Empty without a search."""
        if self.sweep.search is None:
            return ""
        search = self.sweep.search.model_dump(mode="json", exclude={"trials"}) | self._compared_by
        of_sweep = [self.sweep.spec_content, self.sweep.retrain, self.sweep.repeats_of_all]
        return digest_of([search, *of_sweep, self.dataset_digest, RESULT_VERSION], length=10)

    @cached_property
    def seeds_key(self) -> str:
        """Identifies further seeds of configurations, as `search_key` what a search draws."""
        sweep = self.sweep
        return digest_of(["seeds", sweep.spec_content, self.dataset_digest, RESULT_VERSION, sweep.retrain], length=10)

    @cached_property
    def selections(self) -> list[str]:
        """Identify what the best are selected from, and how many, for 1, 2, ... repeats, up to those of the config."""
        sweep = self.sweep
        among: list[Any] = list(expand(sweep).by_name(self.dataset_digest))
        among += [self.search_key, sweep.draw_count] if sweep.search else []
        options = [sweep.repeat_best, sweep.target, self._judged_by]
        return [digest_of([among, repeats, *options], length=10) for repeats in range(1, sweep.repeats + 1)]

    @property
    def unchosen(self) -> int:
        """Further seeds of the best configurations that are not drawn yet, if those with fewer repeats are the same."""
        sweep = self.sweep
        if not sweep.repeat_best or self.digest in self._chosen:
            return 0
        levels = len(sweep.averaged)
        count = (sweep.distinct_draw_count + len(expand(sweep).trials)) // levels
        chosen = [repeats for repeats, each in enumerate(self.selections, 1) if each in self._chosen]
        return levels * min(sweep.repeat_best, count) * (sweep.repeats - max(chosen, default=1))

    @property
    def _compared_by(self) -> dict[str, Any]:
        return dict(zip(("metric", "mode"), self.sweep.compared_by, strict=True)) | self.sweep.scored

    @property
    def _judged_by(self) -> dict[str, Any]:
        return self.sweep.model_dump(mode="json", include={"objectives", "constraints"}) | self.sweep.scored

    @property
    def has_patience(self) -> bool:
        """Whether a trial may end before its last epoch without a rule that compares trials."""
        return any(trial.spec.patience for trial in self.trials.values())

    @property
    def undrawn_count(self) -> int:
        """Configurations that the search will still draw."""
        return self.sweep.draw_count - len(self.suggestions)

    def suggestion(self, event: Suggested) -> Suggestion:
        """A configuration that the search has drawn."""
        trial = make_trial(self.sweep, event.values)
        return Suggestion(trial, trial.identity(self.dataset_digest), event.params, event.attrs)

    def extend(self, suggested: Sequence[Suggested]) -> None:
        """Add what was drawn since. `suggested` are all draws, of any search."""
        of_this = [event for event in suggested if event.search == self.search_key]
        for event in of_this[len(self.suggestions) :]:
            if self.undrawn_count:
                suggestion = self.suggestion(event)
                self.suggestions.append(suggestion)
                self.trials[suggestion.name] = suggestion.trial
                self.optional.discard(suggestion.name)
        for event in [event for event in suggested if event.search == self.seeds_key][len(self._chosen) :]:
            self._chosen.append(selection := event.attrs["selection"])
            if not event.values:  # there was none to choose
                continue
            suggestion = self.suggestion(event)
            if suggestion.name not in self.trials or suggestion.name in self.optional:
                self.trials[suggestion.name] = suggestion.trial
                self.further.add(suggestion.name)
                if selection == self.selections[-1]:
                    self.optional.discard(suggestion.name)
                else:
                    self.optional.add(suggestion.name)

    @cached_property
    def digest(self) -> str:
        """Changes when the set of results that the sweep must have changes, and only then: the rule's parameter."""
        sweep = self.sweep
        # The defaults of what a trial runs are in no other part of a search than its examples.
        content: list[object] = [trial.content for trial in trials_to_check(sweep)]
        if sweep.search:
            content += [sweep.search.model_dump() | self._compared_by, sweep.spec_content]
        stop = sweep.stop.model_dump() | self._compared_by if sweep.stop else None
        # A change of these causes the saved output to be parsed again; no trial runs.
        metrics = metrics_digest(sweep.program_metrics, sweep.completion)
        monitored = sweep.metric if sweep.keeps_output else None
        best = [sweep.repeats, sweep.repeat_best, sweep.target] if sweep.repeat_best else None
        options = [stop, metrics, monitored, best, sweep.budget and sweep.budget.model_dump(), self._judged_by]
        return digest_of([content, RESULT_VERSION, sweep.retrain, *options])


def is_placeholder(name: str) -> bool:
    """Whether a name stands for a configuration that a search has not drawn yet."""
    return name.startswith(_PLACEHOLDER)
