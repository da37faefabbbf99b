"""Further seeds of the best configurations of a sweep: trials that are drawn from the results of the others."""

from trainyard.config.trials import with_seed
from trainyard.packing.shared_order import SharedOrder
from trainyard.planning.journal import Suggested
from trainyard.planning.sweep_state import is_placeholder
from trainyard.results.ranking import describe_ranking, rank_sweep
from trainyard.utils.errors import FinalError
from trainyard.utils.event_log import read_clock


class FurtherSeeds:
    """Draws the trials of `repeat_best`, once, in whichever job sees that all other trials have ended."""

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
        leaders = [each for each in ranking.counting if not each.is_incomplete][: space.sweep.repeat_best]
        if not leaders:
            raise FinalError(f"repeat_best has no configuration to repeat: {describe_ranking(ranking)[0]}")
        values = [state.trials[each.trials[0].trial].values for each in leaders]
        return [
            Suggested(
                time=round(read_clock(), 4),
                search=space.seeds_key,
                values=with_seed(space.sweep, each, repeat),
                params={},
                attrs={"selection": space.selection},
            )
            for repeat in range(1, space.sweep.repeats)
            for each in values
        ]
