"""Further seeds of the best configurations of a sweep: trials that are drawn from the results of the others."""

import itertools
import logging
from typing import Any, Final

from trainyard.config.trials import with_seed
from trainyard.packing.shared_order import SharedOrder
from trainyard.planning.journal import Suggested
from trainyard.planning.sweep_state import SweepState, Task, is_placeholder
from trainyard.results.ranking import Configuration, describe_ranking, rank_sweep
from trainyard.utils.errors import FinalError
from trainyard.utils.event_log import read_clock

FILLED_BEST: Final = 5  # configurations of which slots without trials run further seeds
log = logging.getLogger(__name__)


class FurtherSeeds:
    """Draws the trials of `repeat_best` in whichever job sees that all others have ended, and those of `fill`."""

    def __init__(self, order: SharedOrder) -> None:
        self._order = order

    def draw(self) -> bool:
        """Draw them, for this and other jobs to run; False if others run or may run still.

        Raises:
            FinalError: no trial has a result, or it is not known by which metric they are compared.
        """
        space = self._order.space
        first = [name for name in space.trials if name not in space.further and not is_placeholder(name)]
        if self._order.ended(first) is None:
            return False
        self._order.draw(lambda: (self._choose(first), None))
        return not space.unchosen

    def _choose(self, first: list[str]) -> list[Suggested]:
        """The draws, unless another job has made them: each seed of all leaders, then the next seed.

        Without leaders it is one draw that adds no trial.
        """
        state = self._order.ended(first)
        if state is None or not state.space.unchosen:
            return []
        space, ranking = state.space, rank_sweep(state)
        leaders = ranking.best(space.sweep.repeat_best)
        if not leaders:
            why = f"repeat_best has no configuration to repeat: {describe_ranking(ranking)[0]}"
            if ranking.candidates or not any(map(state.result, first)):
                raise FinalError(why)
            log.warning("%s", why)
            return [_draw(state, {}, space.digest)]
        repeats = range(1, space.sweep.repeats)
        return [_draw_of(state, each, repeat, space.selections[-1]) for repeat in repeats for each in leaders]

    def fill(self, seconds: float) -> Task | None:
        """A further seed of one of the best, claimed, that ends within so many seconds; None if there is none."""
        trial = self._order.draw(lambda: self._choose_fill(seconds))
        return None if trial is None else self._order.claimed(self._order.task(trial))

    def _choose_fill(self, seconds: float) -> tuple[list[Suggested], str | None]:
        """The least seed that some leader has not had, the same for all, of the first of them."""
        state = self._order.state_now()
        space, measured = state.space, state.measured_seconds
        leaders = rank_sweep(state).best(FILLED_BEST)
        longest = [max(measured.get(trial.trial, 0.0) for trial in each.trials) for each in leaders]
        fitting = [each for each, lasts in zip(leaders, longest, strict=True) if 0 < lasts <= seconds]
        for repeat in itertools.count(space.sweep.repeats) if fitting else ():
            for each in fitting:
                event = _draw_of(state, each, repeat, "")
                name = space.suggestion(event).name
                if name not in space.trials and self._order.may_run(name):
                    return [event], name
        return [], None


def _draw_of(state: SweepState, leader: Configuration, repeat: int, selection: str) -> Suggested:
    return _draw(state, with_seed(state.sweep, state.trials[leader.trials[0].trial].values, repeat), selection)


def _draw(state: SweepState, values: dict[str, Any], selection: str) -> Suggested:
    time, search = round(read_clock(), 4), state.space.seeds_key
    return Suggested(time=time, search=search, values=values, params={}, attrs={"selection": selection})
