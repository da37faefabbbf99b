"""Further seeds of the best configurations of a sweep: trials that are drawn from the results of the others."""

import itertools
import math
from typing import Any, Final

from trainyard.config.trials import with_seed
from trainyard.packing.shared_order import SharedOrder
from trainyard.planning.journal import Suggested
from trainyard.planning.sweep_state import SweepState, Task, is_placeholder
from trainyard.results.ranking import Configuration, describe_ranking, rank_sweep
from trainyard.utils.errors import FinalError
from trainyard.utils.event_log import read_clock

FILLED_BEST: Final = 5  # configurations of which slots without trials run further seeds


class FurtherSeeds:
    """Draws the trials of `repeat_best` in whichever job sees that all others have ended, and those of `fill`."""

    def __init__(self, order: SharedOrder) -> None:
        self._order = order

    @property
    def undrawn(self) -> int:
        """How many trials will be drawn, at most."""
        return self._order.space.unchosen

    def draw(self) -> bool:
        """Draw them, for this and other jobs to run; False if others run or may run still.

        Raises:
            FinalError: no configuration has a result, or it is not known by which metric they are compared.
        """
        space = self._order.space
        first = [name for name in space.trials if name not in space.further and not is_placeholder(name)]
        if self._order.ended(first) is None:
            return False
        self._order.draw(lambda: (self._choose(first), None))
        return not self.undrawn

    def _choose(self, first: list[str]) -> list[Suggested]:
        """The draws, unless another job has made them: each seed of all leaders, then the next seed."""
        state = self._order.ended(first)
        if state is None or not self.undrawn:
            return []
        space, ranking = state.space, rank_sweep(state)
        leaders = ranking.best(space.sweep.repeat_best)
        if not leaders:
            raise FinalError(f"repeat_best has no configuration to repeat: {describe_ranking(ranking)[0]}")
        repeats, attrs = range(1, space.sweep.repeats), {"selection": space.selection}
        return [self._draw_of(state, each, repeat, attrs) for repeat in repeats for each in leaders]

    def fill(self, seconds: float) -> Task | None:
        """A further seed of one of the best, claimed, that ends within so many seconds; None if there is none."""
        trial = self._order.draw(lambda: self._choose_fill(seconds))
        return None if trial is None else self._order.claimed(self._order.task(trial))

    def _choose_fill(self, seconds: float) -> tuple[list[Suggested], str | None]:
        """The least seed that some leader has not had, the same for all, of the first of them."""
        state = self._order.state_now()
        space, leaders = state.space, rank_sweep(state).best(FILLED_BEST)
        shortest = min((_seconds_of(state, each) for each in leaders), default=math.inf)
        for repeat in itertools.count(space.sweep.repeats) if shortest <= seconds else ():
            for each in leaders:
                event = self._draw_of(state, each, repeat, {})
                name = space.suggestion(event).name
                if name not in space.trials and _seconds_of(state, each) <= seconds and self._order.may_run(name):
                    return [event], name
        return [], None

    @staticmethod
    def _draw_of(state: SweepState, leader: Configuration, repeat: int, attrs: dict[str, Any]) -> Suggested:
        space, values = state.space, state.trials[leader.trials[0].trial].values
        return Suggested(
            time=round(read_clock(), 4),
            search=space.seeds_key,
            values=with_seed(space.sweep, values, repeat),
            params={},
            attrs=attrs,
        )


def _seconds_of(state: SweepState, configuration: Configuration) -> float:
    """The longest that a trial of a configuration took; infinite if none was measured."""
    names = [each.trial for each in configuration.trials if each.trial in state.measured_seconds]
    return max((state.measured_seconds[name] for name in names), default=math.inf)
