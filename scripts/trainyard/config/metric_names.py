"""The metrics of Trainyard's training loop, and whether lower or higher is better, by the name of a metric."""

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, Literal

if TYPE_CHECKING:
    import optuna

Mode = Literal["max", "min"]

# Metrics of Trainyard's training loop: of each epoch, and of a whole training.
EPOCH_METRICS: Final = (
    "epoch", "lr", "train_loss", "train_accuracy", "val_loss", "val_accuracy", "images_per_second", "seconds",
    "step_ms_p50", "step_ms_p95", "data_wait_fraction", "epoch_start_seconds",
)  # fmt: skip
TRAINING_METRICS: Final = (*EPOCH_METRICS, "best_val_accuracy", "micro_batch", "accumulation")
TABLE_METRICS: Final = (  # of a training, as columns of trials.csv
    "train_loss", "train_accuracy", "val_loss", "val_accuracy", "best_val_accuracy", "images_per_second",
    "step_ms_p50", "step_ms_p95", "micro_batch", "accumulation",
)  # fmt: skip
MONITORED: Final = ("val_accuracy", "val_loss", "train_accuracy", "train_loss")  # by which an epoch can be the best
DEFAULT_METRIC: Final = "val_accuracy"
DURATION: Final = "seconds"  # of a whole trial, which every trial has

# By its name, a metric is to be minimized if one of its words (`val_error_rate` has three) is one of these, or
# has one of the endings (`valloss`). The words after `per` name a unit, as in `images_per_second`.
MINIMIZED_ENDINGS: Final = (
    "loss", "error", "perplexity", "rmse", "rmsle", "mse", "mae", "mape", "nll", "seconds",
)  # fmt: skip
MINIMIZED_WORDS: Final = frozenset((
    "errors", "err", "ppl", "wer", "cer", "ter", "eer", "ece", "fpr", "fnr", "bits", "bpb", "bpc", "brier",
    "fid", "kid", "fvd", "lpips", "epe", "hausdorff", "divergence", "kl", "deviance", "regret", "latency", "duration",
    "time", "ms", "ce", "bce", "xent", "cost",
))  # fmt: skip
MINIMIZED_IN_WORDS: Final = "names with a word such as loss, error, rmse, mse, mae, perplexity, wer, cer or seconds"

# A name of which all words are among these is no measure of quality: it counts the progress, or repeats a setting.
_COUNTED: Final = frozenset((
    "step", "steps", "epoch", "epochs", "iter", "iters", "iteration", "iterations", "it", "update", "updates", "batch",
    "batches", "sample", "samples", "example", "examples", "token", "tokens", "episode", "episodes", "time",
    "timestamp", "walltime", "runtime", "elapsed", "eta", "duration", "seconds", "minutes", "hours", "lr", "seed",
))  # fmt: skip
_BESIDE_COUNTED: Final = frozenset((
    "global", "local", "num", "n", "number", "idx", "index", "current", "total", "best", "last", "base", "train",
    "training", "trainer", "val", "valid", "validation", "eval", "test", "wall", "clock", "seen", "processed", "s",
))  # fmt: skip


_TIMING_WORDS: Final = frozenset((
    "seconds", "second", "sec", "secs", "ms", "minutes", "hours", "time", "times", "elapsed", "eta", "date",
    "datetime", "timestamp", "walltime", "runtime", "duration", "latency", "throughput", "speed", "fps", "sps", "tps",
    "ips", "tflops", "flops", "mfu", "memory", "mem", "mib", "mb", "gib", "gb", "vram", "gpu", "cpu", "rss",
    "watts", "kwh", "joules", "wait", "utilization", "util",
))  # fmt: skip


def is_timing(metric: str) -> bool:
    """Whether a number by this name is a time, a speed or a use of the machine, which differs from run to run."""
    words = _words(metric)
    per = list[str]()
    if "per" in words[1:]:
        per = words[words.index("per") + 1 :]
    elif "/" in metric:
        per = words[1:]
    return not _TIMING_WORDS.isdisjoint(words) or bool({"s", "ms", "it"}.intersection(per))


def is_counter(metric: str) -> bool:
    """Whether a number by this name is a counter, a time or a setting, which does not measure how good a trial is."""
    words = _words(re.sub("learning[_ -]?rate", "lr", metric, flags=re.IGNORECASE))
    is_rate = words[:1] == ["lr"]  # also of one optimizer, as in `lr-Adam`
    return is_rate or not (_COUNTED.isdisjoint(words) or set(words) - _COUNTED - _BESIDE_COUNTED)


def _words(metric: str) -> list[str]:
    return re.findall(r"[a-z]+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", metric).lower())


def guess_mode(metric: str) -> Mode:
    """Whether a metric is to be minimized or maximized, judged by the words of its name.

    `negative_log_likelihood` is a loss, but `log_likelihood` and scikit-learn's `neg_log_loss` are not.
    """
    metric = re.sub("ms[_-]?ssim", "ssim", metric, flags=re.IGNORECASE)  # a score, not milliseconds
    words = _words(re.sub("cross[_-]?entropy", "loss", metric, flags=re.IGNORECASE))
    words = words[: words.index("per")] if "per" in words[1:-1] else words
    if "likelihood" in words:
        return "max" if {"neg", "negative"}.isdisjoint(words) else "min"
    is_minimized = any(word in MINIMIZED_WORDS or word.endswith(MINIMIZED_ENDINGS) for word in words)
    is_minimized = is_minimized or words[-1:] == ["per"]  # phonemes; `per_class_accuracy` is a score
    return "min" if is_minimized and words[0] != "neg" else "max"


def create_study(modes: Iterable[Mode], **options: Any) -> "optuna.Study":
    """A study of Optuna with these objectives. Optuna logs errors only from then on."""
    import optuna  # takes a third of a second

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    directions: dict[Mode, Literal["minimize", "maximize"]] = {"min": "minimize", "max": "maximize"}
    return optuna.create_study(directions=[directions[mode] for mode in modes], **options)
