"""Repeats the best configurations of a sweep with further seeds (`repeat_best`), once all other trials have ended."""

import logging
from functools import partial

from trainyard.config.trials import Values, with_seed
from trainyard.packing.trial_claims import TrialClaims
from trainyard.planning.history import History
from trainyard.planning.journal import Suggested
from trainyard.planning.trial_space import is_placeholder
from trainyard.results.ranking import describe_ranking, rank_sweep
from trainyard.utils.errors import FinalError
from trainyard.utils.event_log import read_clock

log = logging.getLogger(__name__)


def repeat_best(claims: TrialClaims) -> bool:
    """Draw the further seeds, for this and other jobs to run; False if other trials run or may run still.

    Raises:
        FinalError: no trial has a result, or it is not known by which metric they are compared.
    """
    space = claims.space
    first = [name for name in space.trials if name not in space.further and not is_placeholder(name)]
    if claims.ended(first) is None:
        return False
    claims.draw(partial(_draw_seeds, claims, first))
    return not space.unchosen


def _draw_seeds(claims: TrialClaims, first: list[str]) -> tuple[list[Suggested], None]:
    """The draws, unless another job has made them: each seed of all leaders, then the next seed.

    Without leaders it is one draw that adds no trial.
    """
    state = claims.ended(first)
    if state is None or not state.space.unchosen:
        return [], None
    space = state.space
    ranking = rank_sweep(state)
    leaders = ranking.best(space.sweep.repeat_best)
    if not leaders:
        why = f"repeat_best has no configuration to repeat: {describe_ranking(ranking)[0]}"
        if ranking.candidates or not any(state.record(name).result for name in first):
            raise FinalError(why)
        log.warning("%s", why)
        return [_draw(state, {}, space.digest)], None
    draws = list[Suggested]()
    for repeat in range(1, space.sweep.repeats):
        for leader in leaders:
            values = state.trials[leader.trials[0].trial].values
            further = with_seed(state.sweep, values, repeat)
            draws += [_draw(state, further | level, space.selections[-1]) for level in space.sweep.averaged]
    return draws, None


def _draw(state: History, values: Values, selection: str) -> Suggested:
    return Suggested(
        time=round(read_clock(), 4),
        search=state.space.seeds_key,
        values=values,
        params={},
        attrs={"selection": selection},
    )
