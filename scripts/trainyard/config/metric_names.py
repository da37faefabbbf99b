"""The names of metrics: those of Trainyard's training loop, and what a name says about the direction of improvement."""

from typing import Final, Literal

Mode = Literal["max", "min"]

# Metrics of Trainyard's training loop: those of each epoch, and those of a whole training.
EPOCH_METRICS: Final = (
    "epoch", "lr", "train_loss", "train_accuracy", "val_loss", "val_accuracy", "images_per_second", "seconds",
    "step_ms_p50", "step_ms_p95", "data_wait_fraction",
)  # fmt: skip
TRAINING_METRICS: Final = (*EPOCH_METRICS, "best_val_accuracy", "micro_batch", "accumulation")
MONITORED: Final = ("val_accuracy", "val_loss", "train_accuracy", "train_loss")  # by which an epoch can be the best
DEFAULT_METRIC: Final = "val_accuracy"
MINIMIZED: Final = ("loss", "error", "rmse", "mse", "mae", "perplexity", "seconds")  # suffixes of the names of metrics


def guess_mode(metric: str) -> Mode:
    """Whether a metric is to be minimized or maximized, judged by the end of its name."""
    return "min" if metric.lower().endswith(MINIMIZED) else "max"
