"""Tables from results: each a fold over a journal, or over the summaries of runs."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from trainyard.files import atomic_write
from trainyard.journal import Attempt
from trainyard.planning import Plan
from trainyard.trials import value_at, varied_keys

METRICS = ("train_loss", "train_accuracy", "val_loss", "val_accuracy", "best_val_accuracy", "images_per_second",
           "step_ms_p50", "step_ms_p95", "micro_batch", "accumulation")  # fmt: skip


def write_table(frame: pd.DataFrame, path: Path) -> None:
    """Write a CSV, atomically, with as many digits as tell two measurements apart."""
    with atomic_write(path) as file:
        frame.to_csv(file, index=False, float_format="%.15g")


_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>{title}</title>
<style>
body {{ font: 14px system-ui, sans-serif; margin: 1.5rem; color: #222 }}
th {{ position: sticky; top: 0; background: white }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums }}
th {{ text-align: left; border-bottom: 2px solid #444; padding: .3rem .8rem }}
td {{ border-bottom: 1px solid #ddd; padding: .25rem .8rem; white-space: nowrap }}
tr:hover td {{ background: #f4f8fb }}
</style>
<h1>{title}</h1>
{table}
</html>
"""


def write_page(frame: pd.DataFrame, path: Path, *, title: str) -> None:
    """Write a table as a small web page, rounded for reading; columns without any value are left out."""
    shown = frame.dropna(axis="columns", how="all")
    table = shown.to_html(index=False, border=0, na_rep="", float_format=_rounded)
    with atomic_write(path) as file:
        file.write(_PAGE.format(title=title, table=table))


def _rounded(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def write_rows(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Write equal mappings as a CSV, as `write_table` does."""
    write_table(pd.DataFrame(list(rows)), path)


def trials_table(plan: Plan) -> pd.DataFrame:
    """One row per trial: trial, every varied key, status, attempts, seconds, and the metrics of the last epoch."""
    keys = varied_keys(list(plan.trials.values()))
    rows = []
    for name, trial in plan.trials.items():
        tries, result = plan.tries.get(name, []), plan.result(name)
        spec = trial.spec.model_dump(mode="json")
        status = "finished" if result else (tries[-1].outcome if tries else "pending")
        row: dict[str, Any] = {"trial": name, **{key: value_at(spec, key) for key in keys}}
        row |= {"status": status, "attempts": len(tries), "seconds": result.seconds if result else None}
        row |= {metric: result.metrics.get(metric) if result else None for metric in METRICS}
        rows.append(row)
    return pd.DataFrame(rows)


def timeline_table(tries: Sequence[Attempt]) -> pd.DataFrame:
    """One row per attempt; start and end in Unix seconds.

    `gpu_model` is the type of GPU that Slurm gave, `device` what the trial computed on: "cpu", or the GPU's full name.
    """
    columns = ["trial", "attempt", "job", "node", "gpu", "slot", "start", "end", "outcome", "gpu_model", "device"]
    rows = [{"trial": each.trial, "attempt": each.number, **each.where,
             "start": each.start, "end": each.end, "outcome": each.outcome}
            for each in sorted(tries, key=lambda each: each.start)]  # fmt: skip
    return pd.DataFrame(rows, columns=columns)


def epochs_table(plan: Plan) -> pd.DataFrame:
    """One row per epoch of each trial's result: trial, varied keys, and the epoch's metrics."""
    keys = varied_keys(list(plan.trials.values()))
    rows = []
    for name, trial in plan.trials.items():
        result, spec = plan.result(name), trial.spec.model_dump(mode="json")
        values = {key: value_at(spec, key) for key in keys}
        rows += [{"trial": name, **values, **row} for row in (result.epochs if result else [])]
    return pd.DataFrame(rows)


# ---- scaling

SCALING_COLUMNS = ("scale", "nodes", "gpus", "global_batch", "train_loss", "train_accuracy", "val_loss", "val_accuracy",
                   "images_per_second", "step_ms_p50", "step_ms_p95", "data_wait_fraction", "exposed_comm_fraction",
                   "gpu0_peak_mib", "gpu0_avg_mib", "gpu0_mode_mib", "cpu_rss_peak_mib", "train_seconds",
                   "startup_seconds", "warmup_seconds", "gpu_hours", "cost", "speedup", "efficiency", "micro_batch",
                   "accumulation", "precision", "tflops_per_gpu", "mfu", "roofline_images_per_second",
                   "device")  # fmt: skip


def scaling_table(folders: Sequence[Path], *, mode: str, gpu_hour: float | None) -> pd.DataFrame:
    """One row per scale, from the `summary.json` of each folder; the first is the baseline.

    Let T be the training time at the baseline over that at a scale of G times as many GPUs, and R the ratio of their
    images per second. `speedup` is T for strong scaling (the same work) and R for weak scaling (G times the work);
    `efficiency` is speedup / G. A CPU run costs no GPU hours: the columns `gpu_hours` and `cost` stay empty.
    """
    frame = pd.DataFrame([json.loads((folder / "summary.json").read_text()) for folder in folders])
    base = frame.iloc[0]
    on_gpu = frame["device"] != "cpu"
    frame["gpu_hours"] = (frame["gpus"] * frame["train_seconds"] / 3600).where(on_gpu)
    frame["cost"] = frame["gpu_hours"] * gpu_hour if gpu_hour is not None else float("nan")
    if mode == "strong":
        frame["speedup"] = base["train_seconds"] / frame["train_seconds"]
    else:
        frame["speedup"] = frame["images_per_second"] / base["images_per_second"]
    frame["efficiency"] = frame["speedup"] / (frame["gpus"] / base["gpus"])
    return frame.reindex(columns=list(SCALING_COLUMNS))
