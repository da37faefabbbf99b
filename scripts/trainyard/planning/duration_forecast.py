"""The forecast of a sweep: the durations of its unfinished trials, and their makespan on a number of slots."""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import cycle
from typing import TYPE_CHECKING, Final

from trainyard.config.trial_status import TrialStatus
from trainyard.config.trials import full_seconds, relative_cost
from trainyard.planning.attempts import Attempt, whole_seconds
from trainyard.planning.history import History
from trainyard.planning.order import makespan, spanning_trials
from trainyard.planning.task import folder_name
from trainyard.planning.trial_space import is_placeholder

if TYPE_CHECKING:
    from trainyard.planning.duration_model import Array, Prediction

UNFINISHED: Final = (1.05, 2.0)  # assumed range of the duration of an interrupted trial, relative to what it ran
UNPROVEN_STARTUP_SECONDS: Final = 60.0  # assumed from the start of the driver to the first trial


class DurationForecast:
    """Predicted seconds of the unfinished trials, from the attempts that were known when they were first needed."""

    def __init__(self, history: History) -> None:
        self._history = history

    @cached_property
    def unfinished(self) -> list[str]:
        """The unfinished trials when this was first needed, in the config's order."""
        return self._history.unfinished

    @cached_property
    def failed(self) -> set[str]:
        """Those whose last attempt failed."""
        return {name for name in self.unfinished if self._history.record(name).has_failed}

    @cached_property
    def pending(self) -> list[str]:
        """The same trials, longest first, those that failed before last."""
        return sorted(self.unfinished, key=lambda name: (name in self.failed, -self._costs.get(name, 0.0)))

    def order(self, slots: int) -> list[str]:
        """The pending trials in the order in which they start on a number of slots.

        As long as nothing is known about durations, the first ones, one per slot, span the keys (at most 64); the
        others follow in the order of the config.
        """
        if self._costs:
            return self.pending
        new = [name for name in self.pending if name not in self.failed and not is_placeholder(name)]
        first = spanning_trials([self._history.trials[name] for name in new], slots)
        return list(dict.fromkeys([*(new[place] for place in first), *self.pending]))

    @cached_property
    def seconds(self) -> dict[str, float]:
        """Expected seconds of the unfinished trials; empty without evidence."""
        return self._by_name(self._prediction.seconds) if self._prediction else {}

    @cached_property
    def min_seconds(self) -> dict[str, float]:
        """Seconds that unfinished trials exceed with 95 % probability; without evidence, of interrupted ones only."""
        if self._prediction is None:
            ran = {name: self.interrupted_seconds(name) for name in self.unfinished}
            return {name: UNFINISHED[0] * seconds for name, seconds in ran.items() if seconds}
        return self._by_name(self._prediction.lower_bounds())

    @cached_property
    def max_seconds(self) -> dict[str, float]:
        """Seconds that unfinished trials exceed with 5 % probability; empty without evidence."""
        return self._by_name(self._prediction.upper_bounds()) if self._prediction else {}

    def _by_name(self, seconds: "Array") -> dict[str, float]:
        return dict(zip(self.unfinished, seconds.tolist(), strict=True))

    def durations(self, names: Iterable[str]) -> list[float]:
        """Expected seconds of pending trials; without evidence, relative durations."""
        return [self._costs.get(name, 1.0) for name in names]

    @cached_property
    def _costs(self) -> dict[str, float]:
        return self.seconds or self.relative_costs(self.unfinished)

    def makespan(self, slots: int) -> float | None:
        """Expected makespan of all pending trials on a number of slots, without the start-up; None without evidence."""
        return makespan(self.durations(self.pending), slots) if self.seconds else None

    def makespan_samples(self, slots: int) -> list[float]:
        """Equally probable makespans on a number of slots, ascending; empty without evidence."""
        if self._prediction is None:
            return []
        place = {name: index for index, name in enumerate(self.unfinished)}
        draws = self._prediction.draws[:, [place[name] for name in self.pending]]
        return sorted(makespan(draw, slots) for draw in draws.tolist())

    @property
    def longest_samples(self) -> list[float]:
        """Equally probable durations of the longest pending trial, ascending; empty without evidence."""
        return sorted(self._prediction.draws.max(axis=1).tolist()) if self._prediction else []

    @property
    def serial_seconds(self) -> float:
        """The pending trials one after another, each as long as the longest measured one, or as expected if longer.

        On a GPU model on which none was measured, they may take longer than on others.
        """
        longest = max([self.likely_seconds(self.unfinished), *self.measured_seconds.values()])
        longest *= UNFINISHED[1] if self.unmeasured_models else 1.0
        return sum(max(longest, expected) for expected in self.seconds.values())

    @cached_property
    def _prediction(self) -> "Prediction | None":
        return self.predict(self.unfinished, {})

    def predict(self, names: Sequence[str], finished: Mapping[str, float]) -> "Prediction | None":
        """The durations of trials, from the journal and the seconds of trials that have `finished` since.

        These have run here. Of the GPU models that a job may get, each is equally probable; if that is unknown, those
        on which trials were measured. None without evidence.
        """
        if not names:
            return None
        trials = self._history.trials
        measured = self.measured_seconds | dict(finished)
        evidence = {name: seconds for name, seconds in measured.items() if seconds and name in trials}
        if not evidence:
            return None
        from trainyard.planning.duration_model import Prediction, predict  # numpy takes a tenth of a second to import

        ran = [self.interrupted_seconds(name) for name in names]
        drawn = cycle(
            name for name in evidence if not is_placeholder(name)
        )  # stand in for configurations not drawn yet
        names = [next(drawn) if is_placeholder(name) else name for name in names]
        costs = self.relative_costs([*names, *evidence])
        models = self._history.gpu_models or tuple(dict.fromkeys(self.measured_gpu_models.values())) or ("",)
        here = models[0] if len(models) == 1 else ""
        measured_on = [here if name in finished else self.measured_gpu_models[name] or here for name in evidence]
        predictions = [
            predict(
                [trials[name] for name in names],
                [(trials[name], seconds) for name, seconds in evidence.items()],
                relative=[costs[name] for name in (*names, *evidence)] if costs else None,
                gpu_models=[*[model] * len(names), *measured_on],
            )
            for model in ([here] if finished else models)
        ]
        prediction = Prediction.of_any([each for each in predictions if each])
        return prediction.longer_than(ran, UNFINISHED) if any(ran) else prediction

    # ---- what was measured

    @cached_property
    def startup_seconds(self) -> float:
        """From the start of the driver to its first trial: the longest measured."""
        seconds = [run.startup_seconds for run in self._history.sessions if run.startup_seconds is not None]
        return max(seconds, default=UNPROVEN_STARTUP_SECONDS)

    @cached_property
    def measured_seconds(self) -> dict[str, float]:
        """Seconds of the trials that finished, as if they had trained all epochs; the shortest round to 0."""
        seconds_of = dict[str, float]()
        for name, end in self._ends.items():
            seconds = whole_seconds(self._history.attempts[name], end) or 0.0
            seconds_of[name] = full_seconds(self._history.trials[name].spec, seconds, end.metrics)
        return seconds_of

    @cached_property
    def measured_gpu_models(self) -> dict[str, str]:
        """The GPU models on which these seconds were measured, by trial, as `Attempt.gpu_model`."""
        return {name: end.gpu_model for name, end in self._ends.items()}

    @property
    def unmeasured_models(self) -> list[str]:
        """The GPU models that a job may get on which no trial was measured, although some were on others."""
        measured = set(self.measured_gpu_models.values())
        if not measured or "" in measured:
            return []
        return [model for model in self._history.gpu_models if model not in measured]

    @cached_property
    def _ends(self) -> dict[str, Attempt]:
        ends = filter(None, map(self._find_finished, self._history.trials))
        return {end.trial: end for end in ends}

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
