"""The throughput of a GPU with several trials at a time, relative to one at a time, from attempts in the journal."""

import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from trainyard.config.trial_status import TrialStatus
from trainyard.config.trials import full_seconds
from trainyard.planning.attempts import Attempt
from trainyard.planning.duration_forecast import DurationForecast
from trainyard.planning.sweep_state import SweepState

CLOCK_SECONDS: Final = 0.5  # by which the seconds of a worker may exceed those between two events of the driver


def relative_throughput(state: SweepState, attempts: Sequence[Attempt], count: int) -> float | None:
    """How many times as many trials a GPU ends per hour with `count` at a time as with one; None if that is unknown.

    Trials differ in cost: each is compared with the seconds that it would have taken alone, which the duration model
    predicts from the `attempts` that ran alone (and from `cost` or FLOPs). An attempt's estimate is

        mean number of trials on its GPU while it ran * predicted seconds alone / measured seconds

    and the median of the estimates counts, so that a trial with bad luck does not decide.
    """
    alone, together = (_measured(state, attempts, each) for each in (1, count))
    if count == 1:
        return 1.0 if alone else None
    forecast = DurationForecast(replace(state, attempts={}))
    finished = {each.trial: seconds for each, seconds in alone}
    prediction = forecast.predict([each.trial for each, _ in together], finished)
    if prediction is None:
        return None
    estimates = [
        _concurrency(each, attempts) * statistics.median(draws) / seconds  # a mean would count unlikely stragglers
        for (each, seconds), draws in zip(together, prediction.draws.T.tolist(), strict=True)
    ]
    return statistics.median(estimates) if estimates else None


def _measured(state: SweepState, attempts: Sequence[Attempt], count: int) -> list[tuple[Attempt, float]]:
    """The attempts that ended with `count` to a GPU, and their seconds as if none had been stopped early.

    An attempt that resumed from a checkpoint is not among them: a part of its seconds was measured in another job.
    """
    found = []
    for each in attempts:
        is_whole = each.seconds is not None and each.seconds <= each.end - each.start + CLOCK_SECONDS
        if each.gpus_per_trial != 1 / count or not each.seconds or not is_whole:
            continue
        epochs = state.trials[each.trial].epochs
        if each.outcome == TrialStatus.FINISHED:
            found.append((each, full_seconds(state.trials[each.trial].spec, each.seconds, each.metrics)))
        elif each.outcome == TrialStatus.STOPPED and epochs and each.epochs:
            found.append((each, each.seconds * epochs / len(each.epochs)))
    return found


def _concurrency(attempt: Attempt, attempts: Sequence[Attempt]) -> float:
    """The mean number of trials on the GPU of an attempt while it ran, including itself."""
    here = [each for each in attempts if each.location[1:3] == attempt.location[1:3]]  # node and GPU
    shared = sum(max(0.0, min(each.end, attempt.end) - max(each.start, attempt.start)) for each in here)
    return shared / max(attempt.end - attempt.start, attempt.seconds or 0.0)
