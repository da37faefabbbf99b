"""Keys that the config had once, and what to do instead."""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any, Final

_METRIC: Final = "set the `metric` and `mode` of the sweep, by which `search` and `stop` compare trials"
_ADVICE: Final = {  # by the path of the key, whose `*` is any text
    "*.slots.auto": "remove it; to choose the number of GPUs, up to `slots`, write `goal: fastest` or another goal",
    "*.slots.trials_per_gpu": "`gpus_per_trial: auto` puts at most four trials on a GPU; for more, give a fraction",
    "*.train.cudnn_benchmark": "remove it: cuDNN chooses its algorithms without timing them",
    "*.train.gradient_compression": "remove it: gradients are reduced in float32",
    "*.augment.rand_augment_magnitude": "remove it: the magnitude is 9, as in torchvision",
    "scaling.*.launcher_options": "add the options to `launcher`, as in `launcher: torchrun --max-restarts 1`",
    "scaling.*.telemetry_seconds": "remove it: there is a sample every 5 seconds",
    **{f"*.{section}.{key}": _METRIC for section in ("search", "stop") for key in ("metric", "mode")},
    "*.stop.grace": "write `grace_period`",
    "*.stop.reduction": "write `reduction_factor`",
    "*.stop.least": "write `min_samples`",
    "*.on_failed_trial": "for an error if a single trial fails, write `max_failed_fraction: 0`",
    "*.train.global_batch_size": "give `batch_size`, which is that of all GPUs together with `mode: strong`",
    "datasets.*.seed": "remove it: the images of this source are always the same",
    "datasets.*.val_fraction": "remove it: the images of this source are always split in the same way",
    "*.train.channels_last": "remove it: the memory format is channels last on GPUs with 16-bit precision",
    "data.on_device": "remove it: images stay on the GPU if they need at most half of its free memory",
    "data.staging_cpus": "remove it: for other than 8 CPUs, run Snakemake with `--set-threads stage=N`",
    "trees.*.seed": "give each model its own in `params`, as in `{xgboost: {random_state: 1}}`",
    "trees.*.retrain": "remove it: to fit again, delete the folder of the study in results/trees",
    "tables": "remove it: tables are CSV, which `pandas.read_csv` and `to_parquet` convert",
    "data.workers": "remove it: there is a DataLoader worker per CPU but one; set `cpus_per_trial` or `cpus_per_gpu`",
    "data.prefetch": "remove it: two batches are prefetched",
    "*.*.tensorboard": "write `tensorboard: true` at the top of the config, for all studies",
}


def removed_key_advice(place: Sequence[Any]) -> str | None:
    """What to do about a key at this place in the config that has been removed; None if there never was such a key."""
    path = ".".join(map(str, place))
    return next((advice for pattern, advice in _ADVICE.items() if fnmatchcase(path, pattern)), None)
