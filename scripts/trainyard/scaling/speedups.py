"""Speedup, efficiency and cost of each scale of a study, with verdicts and a recommendation."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import pandas as pd

from trainyard.config.scaling import EFFICIENT
from trainyard.utils.errors import MissingResultError
from trainyard.utils.text import count_of, format_duration

SAME_WORK_REMEDY: Final = (
    "Let each scale do the same work. A script that resumes from a file in a folder that all scales share continues "
    "the training of another scale: let it save below {out_dir}, or set `workdir: trial`, and the same command trains "
    "each scale from the beginning."
)
MAX_INCREASE: Final = 0.2  # of GPU-hours over the baseline, for the recommended scale
NOT_COMPARED: Final = "not compared: "
WORK: Final = {"trained_epochs": "epoch", "trained_images": "image", "trained_steps": "step"}  # by column of a summary
SAME_WORK: Final = 0.1  # images and steps may differ by this fraction: they are those between two reports
DIMINISHING: Final = "diminishing returns"
ON_CPU: Final = "on CPUs: says nothing of GPUs"

SCALING_COLUMNS: Final = (
    "scale", "nodes", "gpus", "global_batch", "train_loss", "train_accuracy", "val_loss", "val_accuracy",
    "images_per_second", "step_ms_p50", "step_ms_p95", "data_wait_fraction", "exposed_comm_fraction", "gpu0_peak_mib",
    "gpu0_avg_mib", "gpu0_mode_mib", "cpu_rss_peak_mib", "train_seconds", "startup_seconds", "warmup_seconds",
    "checkpoint_seconds", "gpu_hours", "gpu_hours_increase", "cost", "speedup", "speedup_low", "speedup_high",
    "efficiency", "throughput_scaling", "memory_avg_scaling", "cost_per_million_images", "verdict", "recommended",
    "gradient_mib", "micro_batch", "accumulation", "precision",
    "tflops_per_gpu", "mfu", "repeats", "train_seconds_spread",
    "images_per_second_spread", "device", "gpu_peak",
    "epochs", "lr", "program", "measured_steps", "measured_in", "epoch_start_seconds",
    "energy_kwh", "max_memory_allocated_mib",
)  # fmt: skip
SPREAD: Final = ("train_seconds", "images_per_second")  # metrics with a column `<name>_spread`


def scaling_table(
    runs: Mapping[str, Sequence[Path]],
    *,
    mode: Literal["weak", "strong"],
    gpu_hour: float | None,
) -> pd.DataFrame:
    """One row per scale, from the `summary.json` in each folder: medians over repeats. The first scale is the baseline.

    G is the number of GPUs relative to the baseline, T the training time in seconds (`train_seconds`), I the images per
    second. T includes epochs, validation and checkpoints, but not the start-up; for a user's script, it is the time
    from launch to end.

    - `speedup`: strong scaling (the same work) T0 / T, weak scaling (G times the work) I / I0; `speedup_low` and
      `speedup_high` are those of the slowest and the fastest repeat. After `patience`, T is the time of an epoch.
    - `efficiency`: speedup / G. `throughput_scaling`: I / I0. `memory_avg_scaling`: ratio of `gpu0_avg_mib`.
    - `gpu_hours`: GPUs x T. `gpu_hours_increase`: for the same number of images, 1 / efficiency - 1.
    - `cost`: `gpu_hours` at the price `gpu_hour`; `cost_per_million_images` at the throughput I.
    - `energy_kwh`: of all GPUs during the training, as NVML counts it.
    - `<name>_spread`: (maximum - minimum) / median over the repeats.

    Scales that did another amount of work than the baseline are not compared, which is known of scripts that report
    their epochs, images or steps.

    The columns about GPU hours and cost are empty for CPU runs. The `metrics` of the training follow as `val_<name>`.
    """
    repeats = {scale: _summaries(folders) for scale, folders in runs.items()}
    frame = pd.DataFrame([_medians(each) for each in repeats.values()]).reset_index(drop=True)
    base = frame.iloc[0]
    frame["throughput_scaling"] = frame["images_per_second"] / base["images_per_second"]
    frame["speedup"] = _speedups(frame, base, mode)
    for column, choose in (("speedup_low", np.min), ("speedup_high", np.max)):
        frame[column] = [choose(_speedups(each, base, mode)) for each in repeats.values()]
    baseline = next(iter(repeats.values()))
    differences = [_difference(each, baseline, mode) for each in repeats.values()]
    frame.loc[[bool(each) for each in differences], ["speedup", "speedup_low", "speedup_high"]] = float("nan")
    frame["efficiency"] = frame["speedup"] / (frame["gpus"] / base["gpus"])
    frame["memory_avg_scaling"] = frame["gpu0_avg_mib"] / base["gpu0_avg_mib"]
    on_gpu = frame["device"] != "cpu"
    price = float("nan") if gpu_hour is None else gpu_hour
    frame["gpu_hours"] = (frame["gpus"] * frame["train_seconds"] / 3600).where(on_gpu)
    frame["gpu_hours_increase"] = (1 / frame["efficiency"] - 1).where(on_gpu)
    frame["cost"] = frame["gpu_hours"] * price
    frame["cost_per_million_images"] = (price * frame["gpus"] / 3600 / frame["images_per_second"] * 1e6).where(on_gpu)
    # The fastest scale among the efficient ones with few more GPU-hours; none on CPUs.
    candidates = frame[(frame["efficiency"] >= EFFICIENT) & (frame["gpu_hours_increase"] <= MAX_INCREASE + 1e-9)]
    best = None if candidates.empty else candidates["speedup"].idxmax()
    frame["recommended"] = frame.index == best
    frame["verdict"] = [
        NOT_COMPARED + difference if difference else _verdict(row, row.Index == best)
        for row, difference in zip(frame.itertuples(), differences, strict=True)
    ]
    metrics = [name for name in frame if name.startswith("val_") and name not in SCALING_COLUMNS]
    return frame.reindex(columns=[*SCALING_COLUMNS, *metrics])


_NUMBERS: Final = (*WORK, "epochs", "gpu0_avg_mib", "data_wait_fraction",
                   "exposed_comm_fraction", "images_per_second", "step_ms_p50", "step_ms_p95", "epoch_start_seconds",
                   "measured_steps", "energy_kwh", "max_memory_allocated_mib")  # fmt: skip


def _summaries(folders: Sequence[Path]) -> pd.DataFrame:
    summaries = [folder / "summary.json" for folder in folders]
    for path in summaries:
        if not path.exists():
            raise MissingResultError(path)
    frame = pd.DataFrame([json.loads(path.read_text()) for path in summaries])
    for column in _NUMBERS:  # a user's script reports only some of them
        frame[column] = pd.to_numeric(frame[column]) if column in frame else float("nan")
    frame["images_per_second"] = frame["images_per_second"].where(frame["images_per_second"] > 0)  # 0: not measured
    return frame


def _medians(repeats: pd.DataFrame) -> dict[str, Any]:
    row: dict[str, Any] = dict(repeats.iloc[0])
    numbers = repeats.select_dtypes("number")
    row |= {name: numbers[name].median() for name in numbers if numbers[name].nunique() > 1}
    row |= {f"{name}_spread": np.ptp(repeats[name]) / repeats[name].median() for name in SPREAD}
    return row | {"repeats": len(repeats)}


def _speedups(repeats: pd.DataFrame, base: "pd.Series[Any]", mode: Literal["weak", "strong"]) -> "pd.Series[float]":
    if mode == "strong":
        speedups: pd.Series[float] = base["train_seconds"] / repeats["train_seconds"]
        if "launcher" in repeats:  # a script, which may report steps: then a longer run has more rows
            return speedups
        work = repeats["epochs"] / base["epochs"]  # 1, unless `patience` ended trainings at different epochs
        return speedups * work.fillna(1)
    return repeats["images_per_second"] / base["images_per_second"]


def _difference(repeats: pd.DataFrame, baseline: pd.DataFrame, mode: Literal["weak", "strong"]) -> str:
    """How the work of a scale differs from that of the baseline, as `4 epochs instead of 1`; "" if it is not known to.

    Whatever is known of both counts, in the order of `WORK`. Weak scaling has the same epochs, and other steps. In
    strong scaling, a script whose batch size is per GPU takes fewer steps.
    """
    for column, noun in WORK.items():
        counted = repeats[column].dropna()
        expected = baseline[column].dropna()
        if counted.empty or expected.empty or (mode == "weak" and noun != "epoch"):
            continue
        tolerance = 0.0 if noun == "epoch" else SAME_WORK
        counts = f"{_range(counted)} {noun}" if counted.max() == 1 else f"{_range(counted)} {noun}s"
        if np.ptp(counted) > tolerance * counted.max():
            return f"{counts} in its repeats"
        both = pd.concat([counted, expected])
        gpus = [*repeats["gpus"][counted.index], *baseline["gpus"][expected.index]]
        measures = [both, both * gpus] if noun == "step" else [both]
        is_same = any(np.ptp(each) <= tolerance * each.max() for each in measures)
        return "" if is_same else f"{counts} instead of {_range(expected)}"
    return ""


def _range(values: "pd.Series[float]") -> str:
    low = f"{values.min():,.0f}"
    high = f"{values.max():,.0f}"
    return low if low == high else f"{low} to {high}"


def _verdict(row: Any, recommended: bool) -> str:
    if row.device == "cpu":
        return ON_CPU
    if recommended:
        return f"recommended: best time for at most {MAX_INCREASE:.0%} more GPU-hours"
    if row.Index == 0:
        return "baseline"
    if row.efficiency != row.efficiency:
        return "its throughput is unknown"
    if row.efficiency < EFFICIENT:
        return "does not pay"
    return "good value" if row.gpu_hours_increase <= MAX_INCREASE + 1e-9 else DIMINISHING


PASTED: Final = {  # by column: the title, and the format of its numbers
    "train_loss": ("Train loss", "{:.3f}"),
    "train_accuracy": ("Train accuracy", "{:.2%}"),
    "images_per_second": ("Throughput (img/s)", "{:.1f}"),
    "gpu0_peak_mib": ("GPU 0 peak (MiB)", "{:.0f}"),
    "gpu0_avg_mib": ("GPU 0 avg (MiB)", "{:.2f}"),
    "gpu0_mode_mib": ("GPU 0 mode (MiB)", "{:.0f}"),
    "throughput_scaling": ("Throughput scaling", "{:.2f}x"),
    "memory_avg_scaling": ("Memory avg scaling", "{:.2f}x"),
}


def tables_to_paste(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Two tables of nine columns, as text with units: `gpus`, the scales of one node, and `nodes`, those of several.

    Both begin with the baseline. A table without another scale is left out.
    """
    shown = pd.DataFrame({"Experiment": [_experiment(row) for row in table.itertuples()]}, index=table.index)
    for column, (title, number) in PASTED.items():
        shown[title] = ["-" if value != value else number.format(value) for value in pd.to_numeric(table[column])]
    is_first = table.index == table.index[0]
    chosen = {"gpus": is_first | (table["nodes"] == 1), "nodes": is_first | (table["nodes"] > 1)}
    return {name: shown[rows] for name, rows in chosen.items() if rows.sum() > 1}


def _experiment(row: Any) -> str:
    gpus = count_of(row.gpus, "GPU")
    what = gpus if row.nodes == 1 else f"{row.nodes} nodes, {gpus}"
    return f"Baseline ({what})" if row.Index == 0 else what


def as_markdown(table: pd.DataFrame) -> str:
    """A table of text in Markdown."""
    rows = [list(table), ["---"] * len(table.columns), *table.to_numpy().tolist()]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def recommendation(table: pd.DataFrame) -> str:
    """The conclusion in words: the recommended scale, the largest efficient one, and those that do not pay off."""
    apart = table["verdict"].astype(str).str.startswith(NOT_COMPARED)
    if not apart.any():
        return _advice(table)
    scales = ", ".join(f"{row.scale} ({row.verdict.removeprefix(NOT_COMPARED)})" for row in table[apart].itertuples())
    return (
        f"These scales did other work than {table['scale'].iloc[0]} and are not compared: {scales}. {SAME_WORK_REMEDY} "
        + (_advice(table[~apart]) if len(table[~apart]) > 1 else "")
    ).rstrip()


def _advice(table: pd.DataFrame) -> str:
    if (table["device"] == "cpu").any():
        return "There is no recommendation: measurements on CPUs do not show how this training scales on GPUs."
    if table["efficiency"].isna().all():
        return "There is no recommendation: the throughput of this training is unknown."
    words = [
        f"Use {best.scale}: the best time ({format_duration(best.train_seconds)}) for at most {MAX_INCREASE:.0%} more "
        f"GPU-hours than {table['scale'].iloc[0]} ({best.gpu_hours_increase:+.0%})."
        for best in table[table["recommended"]].itertuples()
    ]
    efficient = table[table["efficiency"] >= EFFICIENT]
    largest = efficient.loc[efficient["gpus"].idxmax()]
    words.append(
        f"The largest scale with an efficiency of at least {EFFICIENT:.0%} is {largest['scale']} "
        f"({largest['efficiency']:.0%}, {largest['gpu_hours_increase']:+.0%} GPU-hours)."
    )
    if len(diminishing := table[table["verdict"] == DIMINISHING]):
        words.append(
            f"More than {MAX_INCREASE:.0%} more GPU-hours at {', '.join(diminishing['scale'])}: {DIMINISHING}."
        )
    inefficient = table[table["efficiency"] < EFFICIENT]
    if (inefficient["gpus"] < efficient["gpus"].max()).any():  # as across a slow network
        words.append(f"These scales do not pay off: {', '.join(inefficient['scale'])}.")
    elif len(inefficient):
        words.append(f"Scales from {inefficient.loc[inefficient['gpus'].idxmin(), 'scale']} on do not pay off.")
    elif table["efficiency"].notna().all() and not len(diminishing):
        words.append("All scales of this study pay off.")
    if unknown := ", ".join(table["scale"][table["efficiency"].isna()]):
        words.append(f"The throughput of these scales is unknown: {unknown}.")
    return " ".join(words)
