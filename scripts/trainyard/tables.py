"""Tables from results: each a fold over a journal, or over the summaries of runs."""

from collections.abc import Mapping, Sequence
from html import escape
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


def write_parquet(path: Path) -> None:
    """Write a CSV table as Parquet, too, beside it, atomically: the same columns and values."""
    with atomic_write(path.with_suffix(".parquet"), "wb") as file:
        pd.read_csv(path).to_parquet(file, index=False)


_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>{title}</title>
<style>
body {{ font: 14px system-ui, sans-serif; margin: 1.5rem; color: #222 }}
th {{ position: sticky; top: 0; background: white }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums }}
th {{ text-align: left; border-bottom: 2px solid #444; padding: .3rem .8rem }}
td {{ border-bottom: 1px solid #ddd; padding: .25rem .8rem; white-space: nowrap }}
tr:hover td {{ background: #f4f8fb }}
p {{ max-width: 60rem; line-height: 1.5 }}
</style>
<h1>{title}</h1>
{body}
</html>
"""


def write_page(parts: Mapping[str, pd.DataFrame | str], path: Path, *, title: str) -> None:
    """Write tables and words, each below its heading, as a small web page.

    Tables are rounded for reading, and columns without any value are left out. An empty heading is none.
    """
    body = [f"<h2>{escape(heading)}</h2>" * bool(heading) + _html(part) for heading, part in parts.items()]
    with atomic_write(path) as file:
        file.write(_PAGE.format(title=escape(title), body="\n".join(body)))


def _html(part: pd.DataFrame | str) -> str:
    if isinstance(part, str):
        return f"<p>{escape(part)}</p>"
    shown = part.replace("", None).dropna(axis="columns", how="all")
    return str(shown.to_html(index=False, border=0, na_rep="", float_format=_rounded))


def _rounded(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def write_rows(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Write equal mappings as a CSV, as `write_table` does."""
    write_table(pd.DataFrame(list(rows)), path)


def trials_table(plan: Plan) -> pd.DataFrame:
    """One row per trial: trial, every varied key, status, attempts, seconds, and the metrics of the last epoch.

    A trial that diverged has no metrics, so that it takes part in no comparison.
    """
    keys = varied_keys(list(plan.trials.values()))
    results = {name: plan.result(name) for name in plan.trials}
    told = dict.fromkeys(metric for result in results.values() if result for metric in result.metrics)
    metrics = METRICS if plan.sweep.trains else tuple(told)
    rows = []
    for name, trial in plan.trials.items():
        tries, result, settings, end = plan.tries.get(name, []), results[name], trial.settings, plan.end(name)
        status = end.outcome if end else (tries[-1].outcome if tries else "pending")
        row: dict[str, Any] = {"trial": name, **{key: value_at(settings, key) for key in keys}}
        row |= {"status": status, "attempts": len(tries), "seconds": end.seconds if end else None}
        others = [metric for metric in metrics if metric not in row]  # a key goes before a metric of its name
        row |= {metric: result.metrics.get(metric) if result else None for metric in others}
        rows.append(row)
    return pd.DataFrame(rows)


def shown_metric(plan: Plan, trials: pd.DataFrame) -> str:
    """The metric that pictures show: the one that counts, or else the first that trials have told, or their seconds."""
    wanted = plan.sweep.target[0]
    columns = list(trials.columns)
    return next((name for name in (wanted, *columns[columns.index("seconds") + 1 :]) if name in columns), "seconds")


def stopping_table(plan: Plan) -> pd.DataFrame:
    """One row per trial that was stopped early: how far it came, why it ended, and what that saved.

    `saved_seconds` are those that its remaining epochs would have taken, at the mean of its own.
    """
    whole, rows = plan.stop.epochs if plan.stop else None, []
    for name in plan.trials:
        result = plan.result(name)
        if result is None or result.outcome != "stopped":
            continue
        epochs, seconds = result.epochs[-1]["epoch"], result.seconds or 0.0
        left = None if whole is None else whole - epochs
        saved = None if left is None else seconds / epochs * left
        rows.append([name, epochs, left, seconds, saved, result.error])
    return pd.DataFrame(rows, columns=["trial", "epochs", "saved_epochs", "seconds", "saved_seconds", "why"])


def saved_words(plan: Plan, stopped: pd.DataFrame) -> str:
    """What stopping early saved, in a line."""
    whole = plan.stop.epochs if plan.stop else None
    if stopped.empty or whole is None:
        return f"stopped early: {len(stopped)} of {len(plan.trials)} trials"
    all_epochs = whole * len(plan.trials)
    epochs, seconds = int(stopped["saved_epochs"].sum()), stopped["saved_seconds"].sum()
    return (f"stopped early: {len(stopped)} of {len(plan.trials)} trials; that saved {epochs} of {all_epochs} epochs "
            f"({epochs / all_epochs:.1%}), or {seconds:.1f} slot-seconds at the pace of each trial")  # fmt: skip


def timeline_table(tries: Sequence[Attempt]) -> pd.DataFrame:
    """One row per attempt; start and end in Unix seconds.

    `gpu_model` is the type of GPU that Slurm gave, `device` what the trial computed on: "cpu", or the GPU's full name;
    `expected_seconds` what the trial was expected to take when it started.
    """
    columns = [
        "trial",
        "attempt",
        "job",
        "node",
        "gpu",
        "slot",
        "start",
        "end",
        "outcome",
        "gpu_model",
        "device",
        "expected_seconds",
    ]
    rows = [{"trial": each.trial, "attempt": each.number, **each.where, "start": each.start, "end": each.end,
             "outcome": each.outcome, "expected_seconds": each.expected_seconds}
            for each in sorted(tries, key=lambda each: each.start)]  # fmt: skip
    return pd.DataFrame(rows, columns=columns)


def epochs_table(plan: Plan) -> pd.DataFrame:
    """One row per epoch of each trial's result: trial, varied keys, and the epoch's metrics."""
    keys = varied_keys(list(plan.trials.values()))
    rows = []
    for name, trial in plan.trials.items():
        result, settings = plan.result(name), trial.settings
        values = {key: value_at(settings, key) for key in keys}
        rows += [{"trial": name, **values, **row} for row in (result.epochs if result else [])]
    return pd.DataFrame(rows) if rows else pd.DataFrame(columns=["trial", *keys, "epoch"])
