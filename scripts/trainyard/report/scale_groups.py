"""The table of a scaling study in groups of columns, each narrow enough for a screen."""

from collections.abc import Mapping, Sequence
from typing import Final

import pandas as pd

from trainyard.report.pages import ReportTable

QUALITY: Final = "Quality"
REPEATS: Final = "Repeats"
GROUPS: Final[Mapping[str, Sequence[str]]] = {
    "Verdict": ("verdict", "gpus", "train_seconds", "images_per_second", "throughput_scaling", "speedup", "efficiency"),
    "Cost": ("gpu_hours", "gpu_hours_increase", "cost", "cost_per_million_images"),
    QUALITY: ("epochs", "global_batch", "lr", "train_loss", "train_accuracy", "val_loss", "val_accuracy"),
    "Where a step's time goes": ("step_ms_p50", "step_ms_p95", "data_wait_fraction", "exposed_comm_fraction"),
    "Batches and gradients": ("micro_batch", "accumulation", "gradient_mib", "allreduce_mib", "hiding_gbit_per_second"),
    "Memory": ("gpu0_peak_mib", "gpu0_avg_mib", "gpu0_mode_mib", "memory_avg_scaling", "cpu_rss_peak_mib"),
    "Time besides training": ("startup_seconds", "warmup_seconds", "checkpoint_seconds"),
    "Hardware": ("nodes", "device", "precision", "gpu_peak", "tflops_per_gpu", "mfu", "roofline_images_per_second"),
    REPEATS: ("repeats", "speedup_low", "speedup_high", "train_seconds_spread", "images_per_second_spread"),
}


def group_scales(scaling: pd.DataFrame) -> dict[str, ReportTable]:
    """The columns of scaling.csv by group, each with the scale first; the recommended scale is highlighted.

    Own metrics follow the columns of `Quality`. A group without a value is omitted, and `Repeats` if there are none.
    """
    best = next((index for index, flag in enumerate(scaling["recommended"]) if flag), None)
    grouped = {"scale", "recommended", *(column for columns in GROUPS.values() for column in columns)}
    own = [name for name in scaling if name not in grouped]
    groups = {name: [*columns, *own] if name == QUALITY else columns for name, columns in GROUPS.items()}
    frames = {name: scaling[["scale", *columns]] for name, columns in groups.items()}
    filled = {name for name, frame in frames.items() if frame.drop(columns="scale").notna().any(axis=None)}
    filled -= {REPEATS} if scaling["repeats"].max() <= 1 else set()
    return {name: ReportTable(frame, best) for name, frame in frames.items() if name in filled}
