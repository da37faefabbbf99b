"""The best epoch of a training by the metric that it monitors, and early stopping by patience."""

import math
from collections.abc import Sequence

from trainyard.config.train import Train
from trainyard.training.epoch_metrics import EpochMetrics


def _worth(spec: Train, row: EpochMetrics) -> float:
    """The monitored value of an epoch, larger is better; NaN counts as the worst."""
    value = row.value(spec.monitor)
    if value is None or math.isnan(value):
        return -math.inf
    return float(value if spec.mode == "max" else -value)


def best_epoch(spec: Train, history: Sequence[EpochMetrics]) -> int | None:
    """The first epoch with the best monitored value; None without epochs."""
    values = [_worth(spec, row) for row in history]
    return 1 + values.index(max(values)) if values else None


def is_out_of_patience(spec: Train, history: Sequence[EpochMetrics]) -> bool:
    """Whether the last `patience` epochs brought no new best."""
    if spec.patience is None:
        return False
    best = best_epoch(spec, history)
    return best is not None and len(history) - best >= spec.patience
