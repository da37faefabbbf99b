"""The trials of a sweep: from its config, and drawn, now or later, by a search."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from trainyard.config.sweep import Sweep
from trainyard.config.trials import RESULT_VERSION, Trial, expand, make_trial
from trainyard.planning.journal import Suggested
from trainyard.utils.errors import UserError
from trainyard.utils.files import digest_of

NOT_STAGED: Final = "not staged"  # in place of a dataset's digest
_PLACEHOLDER: Final = "draw-"


@dataclass(frozen=True)
class Suggestion:
    """A configuration that a search has drawn."""

    trial: Trial
    name: str  # the trial's identity
    params: dict[str, Any]  # as Optuna drew them: of lists, the index
    attrs: dict[str, Any]  # state of Optuna's sampler


class TrialSpace:
    """The trials of a sweep by identity. Identities are provisional until the dataset is staged.

    `trials` holds those of the config in its order, then those that a search has drawn, then a placeholder for each one
    that it will still draw, so that forecasts count them.
    """

    def __init__(self, sweep: Sweep, dataset_digest: str, suggested: Iterable[Suggested] = ()) -> None:
        self.sweep, self.dataset_digest = sweep, dataset_digest
        self.suggestions: list[Suggestion] = []
        self.trials: dict[str, Trial] = expand(sweep).by_name(dataset_digest)
        for event in suggested:
            if event.search == self.search_key and self.undrawn_count:
                self.add(event)
        if sweep.search:
            example, drawn = Trial(expand(sweep).examples[0].spec, {}), len(self.suggestions)
            numbers = range(drawn + 1, sweep.search.trials + 1)
            self.trials |= {f"{_PLACEHOLDER}{number}": example for number in numbers}

    @cached_property
    def search_key(self) -> str:
        """Identifies the search: it changes with everything but the number of trials. Empty without a search."""
        if self.sweep.search is None:
            return ""
        search = self.sweep.search.model_dump(mode="json", exclude={"trials"})
        # Retraining single trials keeps what was drawn.
        retrain = self.sweep.retrain if isinstance(self.sweep.retrain, int) else self.sweep.retrain.get("all", 0)
        return digest_of([search, self.sweep.spec_content, self.dataset_digest, RESULT_VERSION, retrain], length=10)

    @property
    def undrawn_count(self) -> int:
        """Configurations that the search will still draw."""
        return self.sweep.search.trials - len(self.suggestions) if self.sweep.search else 0

    def add(self, event: Suggested) -> Suggestion:
        """Add a configuration that the search has drawn."""
        trial = make_trial(self.sweep, event.values)
        suggestion = Suggestion(trial, trial.identity(self.dataset_digest), event.params, event.attrs)
        self.suggestions.append(suggestion)
        self.trials[suggestion.name] = trial
        return suggestion

    def generation(self, trial: str) -> int:
        """The `retrain` number that a trial's result must have at least."""
        retrain = self.sweep.retrain
        return retrain if isinstance(retrain, int) else max(retrain.get(trial, 0), retrain.get("all", 0))

    def check_retrain(self, name: str) -> None:
        """Check that `retrain` names trials of this sweep `name`, as far as they are known before staging.

        Raises:
            UserError: it names another trial.
        """
        names = self.sweep.retrain if isinstance(self.sweep.retrain, dict) else {}
        unknown = [trial for trial in names if trial != "all" and trial not in self.trials]
        if unknown and self.dataset_digest != NOT_STAGED:
            remedy = "take the names from the column `trial` of trials.csv"
            raise UserError(f"sweeps.{name}.retrain: not a trial of this sweep: {', '.join(unknown)}; {remedy}")

    @cached_property
    def digest(self) -> str:
        """Changes when the set of results that the sweep must have changes, and only then: the rule's parameter."""
        sweep = self.sweep
        content: list[object] = [trial.content for trial in self.trials.values()]
        if sweep.search:
            content = [sweep.search.model_dump(), sweep.spec_content]
        stop = [sweep.stop.content] if sweep.stop else []
        # A change of these causes the saved output to be parsed again; no trial runs.
        metrics = [sweep.metrics.digest] if sweep.metrics else []
        monitored = [sweep.metric] if sweep.command and sweep.metric else []
        return digest_of([content, RESULT_VERSION, sweep.retrain, *stop, *metrics, *monitored])


def is_placeholder(name: str) -> bool:
    """Whether a name stands for a configuration that a search has not drawn yet."""
    return name.startswith(_PLACEHOLDER)
