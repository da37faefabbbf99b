"""The forecast of a sweep: the durations of its unfinished trials, and their makespan on a number of slots."""

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import cycle
from typing import TYPE_CHECKING, Final

from trainyard.config.trials import relative_cost
from trainyard.planning.schedule import makespan
from trainyard.planning.sweep_state import SweepState
from trainyard.planning.trial_space import is_placeholder

if TYPE_CHECKING:
    from trainyard.planning.duration_model import Prediction

UNFINISHED: Final = (1.05, 2.0)  # assumed range of the duration of an interrupted trial, relative to what it ran


class DurationForecast:
    """Predicted seconds of the unfinished trials, from the attempts in the journal."""

    def __init__(self, state: SweepState) -> None:
        self._state = state
        self._orders: dict[tuple[int, float], list[str]] = {}  # by number of slots and limit

    @cached_property
    def pending(self) -> list[str]:
        """Unfinished trials, longest first, those that failed before last."""
        costs, names = self._costs, self._state.unfinished
        return sorted(names, key=lambda name: (self._state.has_failed(name), -costs.get(name, 0.0)))

    def order(self, slots: int, *, limit_seconds: float = math.inf) -> list[str]:
        """The pending trials in the order in which they start on a number of slots: see `start_order`.

        It equals `pending` without evidence, and while the number of trials per GPU must be measured: the first
        trials show how much memory a trial needs at most, and the number of slots changes after them.
        """
        key = slots, limit_seconds
        if key not in self._orders:
            self._orders[key] = self._find_order(slots, limit_seconds)
        return self._orders[key]

    def _find_order(self, slots: int, limit_seconds: float) -> list[str]:
        state = self._state
        if self._prediction is None or state.is_share_open:
            return self.pending
        from trainyard.planning.order import start_order  # numpy: not for a dry run without evidence

        order = start_order(
            self._prediction,
            [state.has_failed(name) for name in state.unfinished],
            slots=slots,
            may_end_early=state.may_end_early,
            has_more=any(map(is_placeholder, state.unfinished)),
            limit_seconds=limit_seconds,
        )
        return [state.unfinished[place] for place in order]

    def _places(self, names: Sequence[str]) -> list[int]:
        """The places of pending trials in the prediction."""
        place = {name: index for index, name in enumerate(self._state.unfinished)}
        return [place[name] for name in names]

    def to_run(self, slots: int, *, limit_seconds: float = math.inf) -> list[str]:
        """The trials of `order` without placeholders of a search."""
        return [name for name in self.order(slots, limit_seconds=limit_seconds) if not is_placeholder(name)]

    @cached_property
    def seconds(self) -> dict[str, float]:
        """Expected seconds of the unfinished trials; empty without evidence."""
        if self._prediction is None:
            return {}
        return dict(zip(self._state.unfinished, self._prediction.seconds.tolist(), strict=True))

    @cached_property
    def min_seconds(self) -> dict[str, float]:
        """Seconds that unfinished trials exceed with 95 % probability; without evidence, of interrupted ones only."""
        if self._prediction is None:
            return {name: least for name in self._state.unfinished if (least := self._if_interrupted([name])[0][0])}
        return dict(zip(self._state.unfinished, self._prediction.lower_bounds().tolist(), strict=True))

    @property
    def longest_interrupted_seconds(self) -> float:
        """What a job must have for the trials that were interrupted and cannot resume, if nothing else is known."""
        return max(self._if_interrupted(self._state.unfinished)[1], default=0.0)

    def _if_interrupted(self, names: Sequence[str]) -> tuple[list[float], list[float]]:
        """The assumed ranges of the durations of trials that were interrupted and cannot resume; 0 for the others."""
        seconds = [self._state.interrupted_seconds(name) for name in names]
        least, most = ([ratio * each for each in seconds] for ratio in UNFINISHED)
        return least, most

    def durations(self, names: Iterable[str]) -> list[float]:
        """Expected seconds of pending trials; without evidence, relative durations."""
        return [self._costs.get(name, 1.0) for name in names]

    @cached_property
    def _costs(self) -> dict[str, float]:
        return self.seconds or self._relative_costs(self._state.unfinished)

    def makespan(self, slots: int) -> float | None:
        """Expected makespan of all pending trials on a number of slots, without the start-up; None without evidence."""
        return makespan(self.durations(self.order(slots)), slots) if self.seconds else None

    def makespan_samples(self, slots: int) -> list[float]:
        """Equally probable makespans on a number of slots, ascending; empty without evidence."""
        if self._prediction is None:
            return []
        places = self._places(self.order(slots))
        return sorted(makespan(sample, slots) for sample in self._prediction.draws[:, places].tolist())

    @property
    def evidence_count(self) -> int:
        """Trials with a measured duration."""
        return sum(self._state.evidence(name) is not None for name in self._state.trials)

    @cached_property
    def _prediction(self) -> "Prediction | None":
        return self.predict(self._state.unfinished, {})

    def predict(self, names: Sequence[str], finished: Mapping[str, float]) -> "Prediction | None":
        """The durations of trials, from the journal and the seconds of trials that have `finished` since.

        None without evidence.
        """
        if not names:
            return None
        state = self._state
        measured = {name: attempt for name in state.trials if (attempt := state.evidence(name))}
        found = {name: state.present_seconds_of(attempt) for name, attempt in measured.items()} | dict(finished)
        known = {name: seconds for name, seconds in found.items() if seconds}  # the shortest trials round to 0
        if not known:
            return None
        from trainyard.planning.duration_model import predict  # numpy: not for a dry run without evidence

        least, most = self._if_interrupted(names)
        drawn = cycle(name for name in known if not is_placeholder(name))  # stand in for configurations not drawn yet
        names = [next(drawn) if is_placeholder(name) else name for name in names]
        relative = self._relative_costs([*names, *known])
        prediction = predict(
            [state.trials[name] for name in names],
            [(state.trials[name], seconds) for name, seconds in known.items()],
            relative=[relative[name] for name in (*names, *known)] if relative else None,
        )
        return prediction.longer_than(least, most) if prediction and any(least) else prediction

    def _relative_costs(self, names: Sequence[str]) -> dict[str, float]:
        """Relative costs by the sweep's `cost`, or else FLOPs; empty unless all are known."""
        state = self._state
        if state.sweep.cost is None:
            return {name: state.work[name] for name in names} if state.work.keys() >= set(names) else {}
        return {name: relative_cost(state.sweep.cost, state.trials[name]) for name in names}
