"""The plots of each dataset and study. One that could only say why it is empty is not made."""

from collections.abc import Mapping
from typing import Final

from trainyard.config.config import Config
from trainyard.config.trials import constant_keys, count_configured

# The plots of each kind of study with their labels, in the order of interest, in which the report shows them. The
# caption of each is workflow/report/<kind>-<plot>.rst.
PLOT_LABELS: Final = {
    "data": {"samples": "samples", "classes": "class balance"},
    "sweeps": {
        "front": "Pareto front of the objectives",
        "metric": "metric against each varied key",
        "parallel": "parallel coordinates",
        "importance": "importance of the varied keys",
        "loss": "curves over epochs",
        "gantt": "slots over time",
        "waste": "requested and wasted time",
        "prediction": "predicted and measured durations",
    },
    "scaling": {
        "speedup": "speedup and efficiency",
        "steps": "time of a step",
        "telemetry": "memory and utilization over time",
        "loss": "loss against epochs and training time",
    },
}
_MIN_TRIALS: Final = 20
_MIN_PER_KEY: Final = 5  # trials per varied key


def plots_of(config: Config, kind: str, name: str) -> tuple[str, ...]:
    """The plots of a dataset (kind `data`) or study, as far as its section of the config tells.

    A sweep has no Pareto front without objectives, no parallel coordinates of fewer than two varied keys, and no
    importance of fewer than two besides seeds, which also needs enough trials.
    """
    empty = set[str]()
    if kind == "sweeps":
        sweep = config.sweeps[name]
        keys = set(sweep.varied_keys) - constant_keys(sweep)
        settings = len({sweep.paired.get(key, key) for key in keys if sweep.is_setting(key)})
        empty |= set() if sweep.objectives else {"front"}
        empty |= {"parallel"} if len(keys) < 2 else set()
        has_enough = count_configured(sweep) >= trials_for_importance(settings)
        empty |= {"importance"} if settings < 2 or not has_enough else set()
    return tuple(plot for plot in PLOT_LABELS[kind] if plot not in empty)


def ordered_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """The labels with leading spaces, which no browser shows, so that the report has them in this order.

    Snakemake's report sorts labels and categories, and a space comes before letters.
    """
    return {key: " " * (len(labels) - place) + label for place, (key, label) in enumerate(labels.items())}


def trials_for_importance(keys: int) -> int:
    """The number of finished trials from which on the importance of so many varied keys is measured."""
    return max(_MIN_TRIALS, _MIN_PER_KEY * keys)
