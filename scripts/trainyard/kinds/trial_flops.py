"""The FLOPs of trials before any has run, counted on their models on the meta device."""

import logging
import math
import time
from typing import Final

from trainyard.config.train import Train
from trainyard.data.staged import ImageMeta, Staged
from trainyard.planning.duration_model import predict
from trainyard.planning.plan import Plan
from trainyard.utils.files import digest_of

FORWARD: Final = 1 / 3  # of a forward and a backward pass
COUNTED: Final = 24  # models at most; the FLOPs of the others are predicted from them
log = logging.getLogger(__name__)


def is_needed(plan: Plan, slots: int = 1) -> bool:
    """Whether the order of trials needs FLOPs: there are no durations, no `cost`, and no counts yet.

    With at least as many slots as trials, the order does not matter.
    """
    state = plan.state
    forecast = plan.forecast
    is_unknown = state.sweep.trains and any(name not in state.flops for name in forecast.pending)
    return is_unknown and not forecast.seconds and state.sweep.cost is None and len(forecast.pending) > slots


def count_trial_flops(plan: Plan, staged: Staged, *, seconds: float = math.inf) -> dict[str, float]:
    """Training FLOPs per image of each pending trial, times its epochs; empty if they cannot be counted.

    Each model is counted once. If all trials have the same model, it counts as 1, since only the epochs matter. Users'
    models are not built, since their code may do anything. Counting stops after `seconds`.
    """
    meta = staged.require(ImageMeta)
    pending = {name: plan.state.trials[name].spec for name in plan.forecast.pending}
    specs = {name: spec for name, spec in pending.items() if isinstance(spec, Train)}
    examples = {_model_key(spec): name for name, spec in specs.items()}
    if len(examples) > 1 and any(":" in specs[name].model for name in examples.values()):
        return {}
    if len(examples) == 1:
        return {name: spec.epochs for name, spec in specs.items()}
    from trainyard.training.gpu_utilization import count_flops  # torch: only where models differ

    counted = dict[str, float]()
    end = time.monotonic() + seconds
    for key in _spread(list(examples)):
        flops = count_flops(specs[examples[key]], shape=meta.shape, classes=len(meta.classes), trains=False)
        if flops is None or time.monotonic() > end:
            return {}
        counted[key] = flops / FORWARD
    others = [key for key in examples if key not in counted]
    example = {key: plan.state.trials[name] for key, name in examples.items()}
    guess = predict([example[key] for key in others], [(example[key], flops) for key, flops in counted.items()])
    if others and guess:
        counted |= dict(zip(others, guess.seconds.tolist(), strict=True))
    log.info("sweep %s: FLOPs of %d models, before any has run", plan.state.name, len(examples))
    return {name: counted[_model_key(spec)] * spec.epochs for name, spec in specs.items()}


def _spread(keys: list[str]) -> list[str]:
    """At most COUNTED keys, evenly spaced, with the first and the last."""
    count = min(COUNTED, len(keys))
    return [keys[round(index * (len(keys) - 1) / max(1, count - 1))] for index in range(count)]


def _model_key(spec: Train) -> str:
    return digest_of([spec.model, spec.model_args, spec.small_images])
