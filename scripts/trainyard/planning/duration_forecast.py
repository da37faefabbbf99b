"""The forecast of a sweep: the durations of its unfinished trials, and their makespan on a number of slots."""

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import cycle

from trainyard.planning.duration_model import Prediction, predict
from trainyard.planning.order import makespan, plan_order
from trainyard.planning.sweep_state import UNFINISHED, SweepState, is_placeholder


class DurationForecast:
    """Predicted seconds of the unfinished trials, from the attempts in the journal."""

    def __init__(self, state: SweepState) -> None:
        self._state = state
        self._orders: dict[tuple[int, float], list[str]] = {}  # by number of slots and limit

    @cached_property
    def pending(self) -> list[str]:
        """Unfinished trials, longest first, those that failed before last."""
        state, costs = self._state, self._costs
        return sorted(state.unfinished, key=lambda name: (state.has_failed(name), -costs.get(name, 0.0)))

    def order(self, slots: int, *, limit_seconds: float = math.inf) -> list[str]:
        """The pending trials in the order in which they start on a number of slots: see `plan_order`."""
        key = slots, limit_seconds
        if key not in self._orders:
            self._orders[key] = plan_order(self._state, self._prediction, self.pending, slots, limit_seconds)
        return self._orders[key]

    def to_run(self, slots: int, *, limit_seconds: float = math.inf) -> list[str]:
        """The trials of `order` without placeholders of a search."""
        return [name for name in self.order(slots, limit_seconds=limit_seconds) if not is_placeholder(name)]

    @cached_property
    def seconds(self) -> dict[str, float]:
        """Expected seconds of the unfinished trials; empty without evidence."""
        found = self._prediction
        return dict(zip(self._state.unfinished, found.seconds.tolist(), strict=True)) if found else {}

    @cached_property
    def min_seconds(self) -> dict[str, float]:
        """Seconds that unfinished trials exceed with 95 % probability; without evidence, of interrupted ones only."""
        names, found = self._state.unfinished, self._prediction
        if found is None:
            return {name: least for name in names if (least := UNFINISHED[0] * self._state.interrupted_seconds(name))}
        return dict(zip(names, found.lower_bounds().tolist(), strict=True))

    @cached_property
    def max_seconds(self) -> dict[str, float]:
        """Seconds that unfinished trials exceed with 5 % probability; empty without evidence."""
        found = self._prediction
        return dict(zip(self._state.unfinished, found.upper_bounds().tolist(), strict=True)) if found else {}

    def durations(self, names: Iterable[str]) -> list[float]:
        """Expected seconds of pending trials; without evidence, relative durations."""
        return [self._costs.get(name, 1.0) for name in names]

    @cached_property
    def _costs(self) -> dict[str, float]:
        return self.seconds or self._state.relative_costs(self._state.unfinished)

    def makespan(self, slots: int) -> float | None:
        """Expected makespan of all pending trials on a number of slots, without the start-up; None without evidence."""
        return makespan(self.durations(self.order(slots)), slots) if self.seconds else None

    def makespan_samples(self, slots: int) -> list[float]:
        """Equally probable makespans on a number of slots, ascending; empty without evidence."""
        if self._prediction is None:
            return []
        place = {name: index for index, name in enumerate(self._state.unfinished)}
        draws = self._prediction.draws[:, [place[name] for name in self.order(slots)]]
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
        longest = max([self._state.longest_interrupted_seconds, *self._state.measured_seconds.values()])
        longest *= UNFINISHED[1] if self._state.unmeasured_models else 1.0
        return sum(max(longest, expected) for expected in self.seconds.values())

    @cached_property
    def _prediction(self) -> Prediction | None:
        return self.predict(self._state.unfinished, {})

    def predict(self, names: Sequence[str], finished: Mapping[str, float]) -> Prediction | None:
        """The durations of trials, from the journal and the seconds of trials that have `finished` since.

        These have run here. Of the GPU models that a job may get, each is equally probable; if that is unknown, those
        on which trials were measured. None without evidence.
        """
        if not names:
            return None
        state = self._state
        known = {name: seconds for name, seconds in (state.measured_seconds | dict(finished)).items() if seconds}
        if not known:
            return None
        ran = [state.interrupted_seconds(name) for name in names]
        drawn = cycle(name for name in known if not is_placeholder(name))  # stand in for configurations not drawn yet
        names = [next(drawn) if is_placeholder(name) else name for name in names]
        costs = state.relative_costs([*names, *known])
        models = state.gpu_models or tuple(dict.fromkeys(state.measured_models.values())) or ("",)
        here = models[0] if len(models) == 1 else ""
        measured_on = [here if name in finished else state.measured_models[name] or here for name in known]
        found = [
            predict(
                [state.trials[name] for name in names],
                [(state.trials[name], seconds) for name, seconds in known.items()],
                relative=[costs[name] for name in (*names, *known)] if costs else None,
                gpu_models=[*[model] * len(names), *measured_on],
            )
            for model in ([here] if finished else models)
        ]
        prediction = Prediction.of_any([each for each in found if each])
        return prediction.longer_than(ran) if any(ran) else prediction
