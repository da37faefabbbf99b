"""A scaling study: a row per scale, a verdict on each, one recommendation, and what the network must carry."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import pandas as pd

from trainyard.config.scaling import EFFICIENT
from trainyard.utils.text import format_duration

DEARER: Final = 0.2  # more GPU-hours than at the baseline, at most, for the recommended scale
BACKWARD: Final = 2 / 3  # of a step's computing: a backward pass takes twice the FLOPs of a forward pass
ON_CPU: Final = "on CPUs: says nothing of GPUs"

SCALING_COLUMNS: Final = (
    "scale", "nodes", "gpus", "global_batch", "train_loss", "train_accuracy", "val_loss", "val_accuracy",
    "images_per_second", "step_ms_p50", "step_ms_p95", "data_wait_fraction", "exposed_comm_fraction", "gpu0_peak_mib",
    "gpu0_avg_mib", "gpu0_mode_mib", "cpu_rss_peak_mib", "train_seconds", "startup_seconds", "warmup_seconds",
    "checkpoint_seconds", "gpu_hours", "gpu_hours_increase", "cost", "speedup", "speedup_low", "speedup_high",
    "efficiency", "throughput_scaling", "memory_avg_scaling", "cost_per_million_images", "verdict", "recommended",
    "gradient_mib", "allreduce_mib", "hiding_gbit_per_second", "micro_batch", "accumulation", "precision",
    "tflops_per_gpu", "mfu", "roofline_images_per_second", "repeats", "train_seconds_spread",
    "images_per_second_spread", "device",
)  # fmt: skip
SPREAD: Final = ("train_seconds", "images_per_second")  # of which there are columns `<name>_spread`


def scaling_table(
    runs: Mapping[str, Sequence[Path]], *, mode: Literal["weak", "strong"], gpu_hour: float | None
) -> pd.DataFrame:
    """One row per scale, medians over its repeats, from the `summary.json` in each folder; the first is the baseline.

    G is a scale's number of GPUs over the baseline's, T its training seconds, I its images per second. T (the column
    `train_seconds`) is what a whole training takes after its start-up: its epochs, their validation, and checkpoints,
    which are in `checkpoint_seconds`, too; of a user's script, all from its launch to its end.

    - `speedup`: strong scaling (the same work) T0 / T, weak scaling (G times the work) I / I0; `speedup_low` and
      `speedup_high` are those of its slowest and its fastest repeat.
    - `efficiency`: speedup / G. `throughput_scaling`: I / I0. `memory_avg_scaling`: of `gpu0_avg_mib`.
    - `gpu_hours`: GPUs x T. `gpu_hours_increase` over the baseline is for the same images: 1 / efficiency - 1.
    - `cost`: `gpu_hours` at the price `gpu_hour`; `cost_per_million_images` at the rate I.
    - `allreduce_mib`: what each GPU sends at each step, and receives, if N GPUs reduce gradients in a ring:
      2 (N - 1) / N of them (Patarasu and Yuan 2009). `hiding_gbit_per_second`: the network that does so within the
      backward pass, which is taken for two thirds of a step's computing; with less, communication shows.
    - `<name>_spread`: the largest of the repeats less the smallest, over the median.

    A CPU run costs no GPU hours, and gets no verdict: those columns stay empty.
    """
    repeats = {scale: _summaries(folders) for scale, folders in runs.items()}
    frame = pd.DataFrame([_medians(each) for each in repeats.values()]).reset_index(drop=True)
    base = frame.iloc[0]
    gpus = frame["gpus"] / base["gpus"]
    on_gpu = frame["device"] != "cpu"
    frame["gpu_hours"] = (frame["gpus"] * frame["train_seconds"] / 3600).where(on_gpu)
    price = float("nan") if gpu_hour is None else gpu_hour
    frame["cost"] = frame["gpu_hours"] * price
    frame["cost_per_million_images"] = (price * frame["gpus"] / 3600 / frame["images_per_second"] * 1e6).where(on_gpu)
    frame["throughput_scaling"] = frame["images_per_second"] / base["images_per_second"]
    frame["speedup"] = _speedups(frame, base, mode)
    for column, choose in (("speedup_low", np.min), ("speedup_high", np.max)):
        frame[column] = [choose(_speedups(each, base, mode)) for each in repeats.values()]
    frame["efficiency"] = frame["speedup"] / gpus
    frame["gpu_hours_increase"] = (1 / frame["efficiency"] - 1).where(on_gpu)
    frame["memory_avg_scaling"] = frame["gpu0_avg_mib"] / base["gpu0_avg_mib"]
    _communication(frame)
    best = _recommended(frame)
    frame["recommended"] = frame.index == best
    frame["verdict"] = [_verdict(row, row.Index == best) for row in frame.itertuples()]
    return frame.reindex(columns=list(SCALING_COLUMNS))


_NUMBERS: Final = ("gpu0_avg_mib", "gradient_mib", "accumulation", "data_wait_fraction", "exposed_comm_fraction",
                   "images_per_second", "step_ms_p50", "step_ms_p95")  # fmt: skip


def _summaries(folders: Sequence[Path]) -> pd.DataFrame:
    frame = pd.DataFrame([json.loads((folder / "summary.json").read_text()) for folder in folders])
    for column in _NUMBERS:  # of a user's script, only those that it told are there
        frame[column] = pd.to_numeric(frame[column]) if column in frame else float("nan")
    return frame


def _medians(repeats: pd.DataFrame) -> dict[str, Any]:
    row: dict[str, Any] = dict(repeats.iloc[0])
    numbers = repeats.select_dtypes("number")
    row |= {name: numbers[name].median() for name in numbers if numbers[name].nunique() > 1}
    row |= {f"{name}_spread": np.ptp(repeats[name]) / repeats[name].median() for name in SPREAD}
    return row | {"repeats": len(repeats)}


def _speedups(repeats: pd.DataFrame, base: "pd.Series[Any]", mode: Literal["weak", "strong"]) -> "pd.Series[float]":
    if mode == "strong":
        return base["train_seconds"] / repeats["train_seconds"]
    return repeats["images_per_second"] / base["images_per_second"]


def _communication(frame: pd.DataFrame) -> None:
    """What gradients cost the network; gradients are reduced once per step, in its last micro-batch."""
    ranks = frame["gpus"]
    frame["allreduce_mib"] = 2 * (ranks - 1) / ranks * frame["gradient_mib"]
    waits = frame["data_wait_fraction"].fillna(0) + frame["exposed_comm_fraction"].fillna(0)
    computing = frame["step_ms_p50"] / 1000 * (1 - waits) / frame["accumulation"].fillna(1)
    needed = frame["allreduce_mib"] * 2**20 * 8 / 1e9 / (BACKWARD * computing)
    frame["hiding_gbit_per_second"] = needed.where(ranks > 1)


def _recommended(frame: pd.DataFrame) -> Any:
    """The scale with the best time among those that are efficient and cost little more; None on CPUs."""
    pays = frame[(frame["efficiency"] >= EFFICIENT) & (frame["gpu_hours_increase"] <= DEARER + 1e-9)]
    return None if pays.empty else pays["speedup"].idxmax()


def _verdict(row: Any, recommended: bool) -> str:
    if row.device == "cpu":
        return ON_CPU
    if recommended:
        return f"recommended: best time for at most {DEARER:.0%} more GPU-hours"
    if row.Index == 0:
        return "baseline"
    if row.efficiency != row.efficiency:
        return "its throughput is unknown"
    if row.efficiency < EFFICIENT:
        return "does not pay"
    return "good value" if row.gpu_hours_increase <= DEARER + 1e-9 else "diminishing returns"


def recommendation(table: pd.DataFrame) -> str:
    """What the study comes to, in words: which scale to take, how far it is efficient, and where it stops paying."""
    if (table["device"] == "cpu").any():
        return "Measured on CPUs, which says nothing of how this training scales on GPUs: there is no recommendation."
    words = [f"Take {best.scale}: the best time ({format_duration(best.train_seconds)}) for at most {DEARER:.0%} more "
             f"GPU-hours than {table['scale'].iloc[0]} ({best.gpu_hours_increase:+.0%})."
             for best in table[table["recommended"]].itertuples()]  # fmt: skip
    if table["efficiency"].isna().all():
        return "No throughput is known, so nothing can be said of how this training scales."
    efficient = table[table["efficiency"] >= EFFICIENT]
    largest = efficient.loc[efficient["gpus"].idxmax()]
    words.append(f"{largest['scale']} is the largest scale of which the efficiency is at least {EFFICIENT:.0%} "
                 f"({largest['efficiency']:.0%}, {largest['gpu_hours_increase']:+.0%} GPU-hours).")  # fmt: skip
    beyond = table[table["efficiency"] < EFFICIENT]
    if len(beyond):
        words.append(f"From {beyond.loc[beyond['gpus'].idxmin(), 'scale']} on it stops paying.")
    else:
        words.append("None of these scales is so large that it stops paying.")
    return " ".join(words)
