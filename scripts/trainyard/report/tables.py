"""Tables from results: each a fold over a journal, or over the summaries of runs."""

import logging
import statistics
from collections.abc import Collection, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import pandas as pd

from trainyard.config.sweep import Mode, guess_mode
from trainyard.config.trial_status import TrialStatus
from trainyard.config.trials import value_at, varied_keys
from trainyard.planning.attempts import Attempt
from trainyard.planning.plan import Plan
from trainyard.utils.csv_files import write_table
from trainyard.utils.files import atomic_write

log = logging.getLogger(__name__)
METRICS = ("train_loss", "train_accuracy", "val_loss", "val_accuracy", "best_val_accuracy", "images_per_second",
           "step_ms_p50", "step_ms_p95", "micro_batch", "accumulation")  # fmt: skip


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


def write_sweep_tables(plan: Plan, folder: Path) -> None:
    """Write what a sweep leaves: timeline.csv, epochs.csv, stopping.csv if there is a rule, and last trials.csv."""
    tries = [attempt for tries in plan.tries.values() for attempt in tries]
    write_table(timeline_table(tries), folder / "timeline.csv")
    write_table(epochs_table(plan), folder / "epochs.csv")
    if plan.sweep.stop:
        stopped = stopping_table(plan)
        write_table(stopped, folder / "stopping.csv")
        log.info("%s", saved_words(plan, stopped))
    write_table(trials_table(plan), folder / "trials.csv")


def trials_table(plan: Plan) -> pd.DataFrame:
    """One row per trial: trial, every varied key, status, attempts, seconds, and the metrics of the last epoch.

    A trial that diverged has no metrics, so that it takes part in no comparison.
    A metric that has the name of one of the columns before them is in the column `reported_<name>`.
    """
    keys = varied_keys(list(plan.trials.values()))
    results = {name: plan.result(name) for name in plan.trials}
    told = dict.fromkeys(metric for result in results.values() if result for metric in result.metrics)
    metrics = METRICS if plan.sweep.is_training else tuple(told)
    rows = []
    for name, trial in plan.trials.items():
        tries, result, settings, end = plan.tries.get(name, []), results[name], trial.settings, plan.end(name)
        status = end.outcome if end else (tries[-1].outcome if tries else TrialStatus.PENDING)
        row: dict[str, Any] = {"trial": name, **{key: value_at(settings, key) for key in keys}}
        row |= {"status": status, "attempts": len(tries), "seconds": plan.seconds_of(end) if end else None}
        own = {metric: result.metrics.get(metric) if result else None for metric in metrics}
        rows.append(row | _told(own, {*RESERVED, *keys}))
    return pd.DataFrame(rows)


RESERVED = ("trial", "status", "attempts", "seconds")  # columns of trials.csv, which no metric of a program has


def _told(metrics: Mapping[str, Any], reserved: Collection[str]) -> dict[str, Any]:
    """Metrics as columns beside those that keep their names: a reported `lr` is then `reported_lr`."""
    return {f"reported_{name}" if name in reserved else name: value for name, value in metrics.items()}


def shown_metric(plan: Plan, trials: pd.DataFrame) -> tuple[str, Mode | None]:
    """The metric that counts, as a column of `trials`, and what is better; None: to be guessed from its name.

    Where trials have told no metric, their seconds are shown.
    """
    told = list(trials.columns)[list(trials.columns).index("seconds") + 1 :]
    names = {name.removeprefix("reported_"): name for name in told}
    names.setdefault("seconds", "seconds")
    metric, mode = plan.sweep.ranking_metric(list(names)) or ("seconds", None)
    return names[metric], mode


def best_words(plan: Plan, trials: pd.DataFrame) -> str:
    """The best trial, in a line."""
    metric, mode = shown_metric(plan, trials)
    best = best_trial(trials, metric, mode)
    if best is None:
        return f"no trial has finished with {metric}"
    keys = varied_keys(list(plan.trials.values()))
    values = " with " * bool(keys) + ", ".join(f"{key} = {best[key]}" for key in keys)
    return f"{how_best(metric, mode, of=metric)}: {best[metric]:.6g}, of trial {best['trial']}{values}"


def best_trial(trials: pd.DataFrame, metric: str, mode: Mode | None) -> "pd.Series[Any] | None":
    """The row of the best among the finished trials; None if there is none that has told this metric."""
    values = pd.to_numeric(trials.loc[trials["status"] == TrialStatus.FINISHED, metric], errors="coerce").dropna()
    if values.empty:
        return None
    return trials.loc[values.idxmin() if (mode or guess_mode(metric)) == "min" else values.idxmax()]


def how_best(name: str, mode: Mode | None, *, of: str) -> str:
    """What "best" means of the metric `of`, by another `name` maybe: `best rmse (lowest)`."""
    end = {"min": "lowest", "max": "highest"}[mode or guess_mode(of)]
    return f"best {name} ({end}{'' if mode else ', by its name'})"


def stopping_table(plan: Plan) -> pd.DataFrame:
    """One row per trial that was stopped early: how far it came, why it ended, and what that saved.

    `saved_seconds` are those that its remaining epochs would have taken, at the pace of its own, start-up not counted;
    of a program that told a single epoch, at the median pace of the other trials. Empty where neither is known.
    """
    paces = {name: _seconds_per_epoch(plan, name) for name in plan.trials}
    known = [pace for pace in paces.values() if pace is not None]
    usual = statistics.median(known) if known else None
    whole, rows = plan.stop.epochs if plan.stop else None, []
    for name in plan.trials:
        result = plan.result(name)
        if result is None or result.outcome != TrialStatus.STOPPED:
            continue
        epochs, pace = result.epochs[-1]["epoch"], usual if paces[name] is None else paces[name]
        left = None if whole is None else max(0, whole - epochs)
        saved = None if left is None or pace is None else pace * left
        rows.append([name, epochs, left, result.seconds, saved, result.error])
    return pd.DataFrame(rows, columns=["trial", "epochs", "saved_epochs", "seconds", "saved_seconds", "why"])


def _seconds_per_epoch(plan: Plan, trial: str) -> float | None:
    """What an epoch of a trial takes: as Trainyard's loop has measured it, or else between the epochs that it told.

    What an attempt that goes on from an earlier one tells of earlier epochs comes at once, and does not count. Nor does
    the first row of a command, which waits for the second (`reported.Sieve`).
    """
    result = plan.result(trial)
    if result is None:
        return None
    if plan.sweep.is_training:
        return float(statistics.median([row["seconds"] for row in result.epochs])) if result.epochs else None
    before = [each for each in plan.tries[trial]
              if each.number < result.number and each.generation == result.generation]  # fmt: skip
    earlier = {epoch for each in before for epoch in each.epoch_times}
    new = sorted((epoch, at) for epoch, at in result.epoch_times.items() if epoch not in earlier)
    if plan.sweep.command:
        del new[:1]
    if len(new) < 2:
        return None
    (first, began), (last, ended) = new[0], new[-1]
    return (ended - began) / (last - first)


def saved_words(plan: Plan, stopped: pd.DataFrame) -> str:
    """What stopping early saved, in a line."""
    whole = plan.stop.epochs if plan.stop else None
    if stopped.empty or whole is None:
        return f"stopped early: {len(stopped)} of {len(plan.trials)} trials"
    all_epochs = whole * len(plan.trials)
    epochs, seconds = int(stopped["saved_epochs"].sum()), stopped["saved_seconds"].sum()
    all_known = stopped["saved_seconds"].notna().all()
    known = f", or {seconds:.1f} slot-seconds at the pace of each trial" if all_known else ""
    return (f"stopped early: {len(stopped)} of {len(plan.trials)} trials; that saved {epochs} of {all_epochs} epochs "
            f"({epochs / all_epochs:.1%}){known}")  # fmt: skip


def timeline_table(tries: Sequence[Attempt]) -> pd.DataFrame:
    """One row per attempt; start and end in Unix seconds.

    `gpu_model` is the type of GPU that Slurm gave, `device` what the trial computed on: "cpu", or the GPU's full name;
    `expected_seconds` what the trial was expected to take when it started, `gpus_per_trial` its share of a GPU,
    `seconds` what it took as the trial itself has measured it.
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
        "gpus_per_trial",
        "seconds",
    ]
    rows = [{"trial": each.trial, "attempt": each.number, **each.where, "start": each.start, "end": each.end,
             "outcome": each.outcome, "expected_seconds": each.expected_seconds, "gpus_per_trial": each.gpus_per_trial,
             "seconds": each.seconds}
            for each in sorted(tries, key=lambda each: each.start)]  # fmt: skip
    return pd.DataFrame(rows, columns=columns)


def epochs_table(plan: Plan) -> pd.DataFrame:
    """One row per epoch of each trial's result: trial, varied keys, and the epoch's metrics.

    Where the trial was resumed, also the epochs before that.
    A metric of a program has the same name as in `trials_table`. The `seconds` of Trainyard's own loop are an epoch's.
    """
    keys = varied_keys(list(plan.trials.values()))
    reserved = {*(["trial"] if plan.sweep.is_training else RESERVED), *keys}
    rows = []
    for name, trial in plan.trials.items():
        result, settings = plan.result(name), trial.settings
        values = {key: value_at(settings, key) for key in keys}
        own = {"trial": name, **values}
        rows += [own | _told(row, reserved) for row in (plan.epochs_of(result) if result else [])]
    return pd.DataFrame(rows) if rows else pd.DataFrame(columns=["trial", *keys, "epoch"])
