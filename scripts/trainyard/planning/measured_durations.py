"""What the attempts of a sweep tell about the durations of its trials, before and beside the model of durations."""

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Final

from trainyard.config.trial_status import TrialStatus
from trainyard.config.trials import full_seconds, relative_cost
from trainyard.planning.attempts import Attempt, whole_seconds
from trainyard.planning.history import History
from trainyard.planning.task import folder_name

UNFINISHED: Final = (1.05, 2.0)  # assumed range of the duration of an interrupted trial, relative to what it ran
UNPROVEN_STARTUP_SECONDS: Final = 60.0  # assumed from the start of the driver to the first trial


class MeasuredDurations:
    """The measured durations of a sweep's trials, as they were known first when they were needed."""

    def __init__(self, history: History) -> None:
        self._history = history

    @cached_property
    def startup_seconds(self) -> float:
        """From the start of the driver to its first trial: the longest measured."""
        seconds = [run.startup_seconds for run in self._history.sessions if run.startup_seconds is not None]
        return max(seconds, default=UNPROVEN_STARTUP_SECONDS)

    @cached_property
    def seconds(self) -> dict[str, float]:
        """Seconds of the trials that finished, as if they had trained all epochs; the shortest round to 0."""
        found = dict[str, float]()
        for name, end in self._ends.items():
            seconds = whole_seconds(self._history.attempts[name], end) or 0.0
            found[name] = full_seconds(self._history.trials[name].spec, seconds, end.metrics)
        return found

    @cached_property
    def gpu_models(self) -> dict[str, str]:
        """The GPU models on which these seconds were measured, by trial, as `Attempt.gpu_model`."""
        return {name: end.gpu_model for name, end in self._ends.items()}

    @property
    def unmeasured_models(self) -> list[str]:
        """The GPU models that a job may get on which no trial was measured, although some were on others."""
        measured = set(self.gpu_models.values())
        if not measured or "" in measured:
            return []
        return [model for model in self._history.gpu_models if model not in measured]

    @cached_property
    def _ends(self) -> dict[str, Attempt]:
        return {name: end for name in self._history.trials if (end := self._find_finished(name))}

    def _find_finished(self, name: str) -> Attempt | None:
        """A finished attempt with a duration, including one that `retrain` has overruled.

        Attempts on the present share of a GPU take precedence over others, and of these, those on a model that a job
        gets.
        """
        history = self._history

        def comparability(attempt: Attempt) -> tuple[bool, bool, int]:
            has_same_share = attempt.gpus_per_trial == history.sweep.slots.share
            has_same_model = has_same_share and attempt.gpu_model in history.gpu_models
            return has_same_share, has_same_model, attempt.number

        attempts = history.record(name).attempts
        finished = [attempt for attempt in attempts if attempt.outcome is TrialStatus.FINISHED]
        best = max(finished, key=comparability, default=None)
        return best if best and best.seconds else None

    def interrupted_seconds(self, name: str) -> float:
        """The longest that an attempt at a trial ran until it was interrupted; 0 if the trial can resume or has ended.

        A function cannot if it has left nothing in its folder of checkpoints. From the beginning and on the same share
        of such a GPU, the trial takes longer. `retrain` overrules an attempt that something else held up: otherwise, a
        trial that hung once for the longest walltime would never start again.
        """
        sweep = self._history.sweep
        if (sweep.can_resume and sweep.saves_by_itself) or self._find_finished(name):
            return 0.0
        longest = 0.0
        for attempt in self._history.record(name).current:
            is_cut = attempt.outcome == TrialStatus.INTERRUPTED and attempt.gpus_per_trial == sweep.slots.share
            models = self._history.gpu_models
            is_comparable = not models or attempt.gpu_model in ("", *models)
            folder = self._history.folder / "checkpoints"
            checkpoints = (folder / folder_name(name, attempt.generation, attempt.takeover)).glob("*")
            if is_cut and is_comparable and (sweep.saves_by_itself or not any(checkpoints)):
                longest = max(longest, attempt.end - attempt.start)
        return longest

    def likely_seconds(self, names: Iterable[str]) -> float:
        """What a job must have for those of these trials that were interrupted and cannot resume, for want of more."""
        return UNFINISHED[1] * max(map(self.interrupted_seconds, names), default=0.0)

    def relative_costs(self, names: Sequence[str]) -> dict[str, float]:
        """Relative costs of trials by the sweep's `cost`, or else FLOPs; empty unless all are known."""
        cost = self._history.sweep.cost
        flops = self._history.flops
        if cost is not None:
            return {name: relative_cost(cost, self._history.trials[name]) for name in names}
        return {name: flops[name] for name in names} if flops.keys() >= set(names) else {}
