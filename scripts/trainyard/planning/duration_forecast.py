"""The forecast of a sweep: the durations of its unfinished trials, and their makespan on a number of slots."""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import cycle

from trainyard.planning.duration_model import Array, Prediction, predict
from trainyard.planning.history import History
from trainyard.planning.measured_durations import UNFINISHED, MeasuredDurations
from trainyard.planning.order import makespan, spanning_trials
from trainyard.planning.trial_space import is_placeholder


class DurationForecast:
    """Predicted seconds of the unfinished trials, from the attempts in the journal."""

    def __init__(self, history: History) -> None:
        self._history = history
        self.evidence = MeasuredDurations(history)

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

        As long as nothing is known about durations, the first ones, one per slot, span the keys; the others follow in
        the order of the config.
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
            ran = {name: self.evidence.interrupted_seconds(name) for name in self.unfinished}
            return {name: UNFINISHED[0] * seconds for name, seconds in ran.items() if seconds}
        return self._by_name(self._prediction.lower_bounds())

    @cached_property
    def max_seconds(self) -> dict[str, float]:
        """Seconds that unfinished trials exceed with 5 % probability; empty without evidence."""
        return self._by_name(self._prediction.upper_bounds()) if self._prediction else {}

    def _by_name(self, seconds: Array) -> dict[str, float]:
        return dict(zip(self.unfinished, seconds.tolist(), strict=True))

    def durations(self, names: Iterable[str]) -> list[float]:
        """Expected seconds of pending trials; without evidence, relative durations."""
        return [self._costs.get(name, 1.0) for name in names]

    @cached_property
    def _costs(self) -> dict[str, float]:
        return self.seconds or self.evidence.relative_costs(self.unfinished)

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
        longest = max([self.evidence.likely_seconds(self.unfinished), *self.evidence.seconds.values()])
        longest *= UNFINISHED[1] if self.evidence.unmeasured_models else 1.0
        return sum(max(longest, expected) for expected in self.seconds.values())

    @cached_property
    def _prediction(self) -> Prediction | None:
        return self.predict(self.unfinished, {})

    def predict(self, names: Sequence[str], finished: Mapping[str, float]) -> Prediction | None:
        """The durations of trials, from the journal and the seconds of trials that have `finished` since.

        These have run here. Of the GPU models that a job may get, each is equally probable; if that is unknown, those
        on which trials were measured. None without evidence.
        """
        if not names:
            return None
        trials = self._history.trials
        evidence = self.evidence
        known = {name: seconds for name, seconds in (evidence.seconds | dict(finished)).items() if seconds}
        if not known:
            return None
        ran = [evidence.interrupted_seconds(name) for name in names]
        drawn = cycle(name for name in known if not is_placeholder(name))  # stand in for configurations not drawn yet
        names = [next(drawn) if is_placeholder(name) else name for name in names]
        costs = evidence.relative_costs([*names, *known])
        models = self._history.gpu_models or tuple(dict.fromkeys(evidence.gpu_models.values())) or ("",)
        here = models[0] if len(models) == 1 else ""
        measured_on = [here if name in finished else evidence.gpu_models[name] or here for name in known]
        found = [
            predict(
                [trials[name] for name in names],
                [(trials[name], seconds) for name, seconds in known.items()],
                relative=[costs[name] for name in (*names, *known)] if costs else None,
                gpu_models=[*[model] * len(names), *measured_on],
            )
            for model in ([here] if finished else models)
        ]
        prediction = Prediction.of_any([each for each in found if each])
        return prediction.longer_than(ran) if any(ran) else prediction
