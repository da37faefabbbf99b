"""The metrics of an epoch, the best epoch by the metric of its training, and early stopping by patience."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from trainyard.config.metric_names import EPOCH_METRICS, guess_mode
from trainyard.config.train import Training
from trainyard.training.loss_and_metrics import Means
from trainyard.training.step_timing import StepTimes
from trainyard.utils.text import format_duration


@dataclass(frozen=True)
class EpochMetrics:
    """Metrics of one epoch over all ranks: a row of `history.csv`.

    Without classes, that is with numbers as labels, there are no accuracies.
    """

    epoch: int  # counted from 1
    lr: float  # at the first step
    train_loss: float  # mean per image, during training, with label smoothing
    train_accuracy: float | None  # fraction, during training
    val_loss: float  # mean per image, without label smoothing
    val_accuracy: float | None
    images_per_second: float  # training images of all ranks, without validation
    seconds: float  # training and validation
    step_ms_p50: float
    step_ms_p95: float
    data_wait_fraction: float  # of the training time, in which rank 0 waited for images
    epoch_start_seconds: float  # of the training time, before the first step
    metrics: dict[str, float] = field(default_factory=dict)  # of the config, by column: `val_<name>`

    @classmethod
    def measured(
        cls, train: Means, val: Means, times: StepTimes, *, epoch: int, lr: float, seconds: float
    ) -> "EpochMetrics":
        """The metrics of an epoch from the means over its images and the times of its steps."""
        step_ms_p50, step_ms_p95 = times.percentiles_ms()
        return cls(
            epoch=epoch,
            lr=lr,
            train_loss=train.loss,
            train_accuracy=train.accuracy,
            val_loss=val.loss,
            val_accuracy=val.accuracy,
            images_per_second=train.images / times.seconds,
            seconds=seconds,
            step_ms_p50=step_ms_p50,
            step_ms_p95=step_ms_p95,
            data_wait_fraction=times.waited_seconds / times.seconds,
            epoch_start_seconds=times.start_seconds,
            metrics={f"val_{name}": value for name, value in val.metrics.items()},
        )

    def as_row(self) -> dict[str, Any]:
        """All metrics by column."""
        row = asdict(self)
        metrics: dict[str, float] = row.pop("metrics")
        return row | metrics

    def value(self, name: str) -> Any:
        """The metric in this column."""
        return self.metrics[name] if name in self.metrics else getattr(self, name)

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> "EpochMetrics":
        """The metrics from `as_row`."""
        known: dict[str, Any] = {name: row[name] for name in EPOCH_METRICS}
        return cls(**known, metrics={name: value for name, value in row.items() if name not in known})


def epoch_line(row: EpochMetrics, epochs: int) -> str:
    """The log line of an epoch."""
    parts = [
        f"Epoch [{row.epoch}/{epochs}] LR: {row.lr:.6f}",
        f"Loss (train, val): {row.train_loss:.3f}, {row.val_loss:.3f}",
    ]
    if row.train_accuracy is not None and row.val_accuracy is not None:
        parts.append(f"Accuracy (train, val): {row.train_accuracy:.2%}, {row.val_accuracy:.2%}")
    parts += [f"{name.removeprefix('val_')} (val): {value:.4g}" for name, value in row.metrics.items()]
    return " | ".join([*parts, f"Throughput: {row.images_per_second:.1f} img/s"])


def time_left(row: EpochMetrics, epochs: int) -> str:
    """How long the epochs after this one take if they are as long, for the log; "" for less than ten seconds."""
    seconds = (epochs - row.epoch) * row.seconds
    return f"about {format_duration(seconds)} left" if seconds >= 10 else ""


def best_epoch(spec: Training, history: Sequence[EpochMetrics]) -> int | None:
    """The first epoch with the best value of the training's metric, of which NaN is the worst; None without epochs."""
    sign = 1 if guess_mode(spec.metric) == "max" else -1
    values = [row.value(spec.metric) for row in history]
    worth = [-math.inf if value is None or math.isnan(value) else sign * value for value in values]
    return 1 + worth.index(max(worth)) if worth else None


def is_out_of_patience(spec: Training, history: Sequence[EpochMetrics]) -> bool:
    """Whether the last `patience` epochs brought no new best."""
    if spec.patience is None:
        return False
    best = best_epoch(spec, history)
    return best is not None and len(history) - best >= spec.patience
