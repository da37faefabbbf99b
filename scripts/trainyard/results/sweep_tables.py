"""The tables of a sweep: trials.csv, timeline.csv, epochs.csv, stopping.csv and ranking.csv.

Every row is computed from the sweep's journal.
"""

import logging
import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from trainyard.config.metric_names import DURATION
from trainyard.config.trial_status import TrialStatus
from trainyard.planning.attempts import attempts_before
from trainyard.planning.history import History, TrialRecord
from trainyard.planning.requests import CANCELLED
from trainyard.results.accounting import conclusive_ends, kept_seconds
from trainyard.results.ranking import RankedTrial, Ranking, means_by_value
from trainyard.utils.csv_files import write_table
from trainyard.utils.text import count_of

log = logging.getLogger(__name__)
MIN_FOR_MEDIAN = 10  # predictions
RESERVED = ("trial", "status", "attempts", "seconds")  # columns of trials.csv that are not metrics


def write_sweep_tables(state: History, ranking: Ranking, folder: Path) -> None:
    """Write timeline.csv, epochs.csv, with early stopping stopping.csv, and last the rule's output, trials.csv."""
    write_table(timeline_table(state), folder / "timeline.csv")
    write_table(epochs_table(state), folder / "epochs.csv")
    if state.sweep.stop:
        stopped = stopping_table(state)
        write_table(stopped, folder / "stopping.csv")
        log.info("%s", summarize_savings(state, stopped))
    write_table(trials_table(state, ranking), folder / "trials.csv")


def trials_table(state: History, ranking: Ranking) -> pd.DataFrame:
    """One row per trial: trial, every varied key, status, attempts, seconds, and the metrics of the last epoch.

    `energy_kwh`, if GPUs have counted it, is that of all attempts. A diverged trial has no metrics, so that no
    comparison includes it. A metric with the same name as another column is in the column `reported_<name>`. With
    objectives, `is_on_pareto_front` says whether the trial's configuration is on it; with constraints, `is_feasible`,
    whether the trial's own values meet them, if it has reported all of them. With a `score`, `<metric>_score` is the
    value that ranks the trial, and `<metric>_score_epoch` its epoch.
    """
    keys = state.varied_keys
    front = {trial.trial for each in ranking.front for trial in each.trials}
    ranked = {trial.trial: trial for trial in ranking.trials}
    results = {record.name: record.result for record in state.records}
    reported = dict.fromkeys(metric for result in results.values() if result for metric in result.metrics)
    known = dict.fromkeys(metric for trial in state.trials.values() for metric in trial.spec.known_metrics)
    if known:
        reported = known | dict.fromkeys(state.sweep.monitored_metrics)
        reported.pop(DURATION, None)
        if state.space.has_patience:
            reported["epoch"] = None
    attempts = [attempt for record in state.records for attempt in record.attempts]
    has_energy = any(attempt.energy_kwh is not None for attempt in attempts)
    rows = []
    for record in state.records:
        row: dict[str, Any] = {"trial": record.name, **record.values_of(keys)}
        row |= {"status": record.status, "attempts": len(record.attempts), "seconds": record.seconds}
        if has_energy:
            spent = [attempt.energy_kwh for attempt in record.attempts if attempt.energy_kwh is not None]
            row["energy_kwh"] = sum(spent) if spent else None
        result = results[record.name]
        metrics = result.metrics if result else {}
        row |= _metric_columns({name: metrics.get(name) for name in reported}, row)
        trial = ranked.get(record.name)
        if ranking.score != "last":
            value = trial and trial.value
            row[f"{ranking.metric}_score"] = value and value.value
            row[f"{ranking.metric}_score_epoch"] = value and value.epoch
        if ranking.objectives:
            row["is_on_pareto_front"] = record.name in front
        if ranking.constraints:
            values = trial.judged if trial else {}
            is_known = not any(math.isnan(values.get(name, math.nan)) for name in ranking.constraints)
            row["is_feasible"] = ranking.meets_constraints(values) if is_known else None
        rows.append(row)
    return pd.DataFrame(rows)


def _metric_columns(metrics: Mapping[str, Any], reserved: Collection[str]) -> dict[str, Any]:
    """Metrics by column name; a metric `lr` becomes `reported_lr` if `lr` is reserved."""
    return {f"reported_{name}" if name in reserved else name: value for name, value in metrics.items()}


def timeline_table(state: History) -> pd.DataFrame:
    """One row per attempt; `start` and `end` in Unix seconds.

    `gpu_model` is the GPU type as Slurm names it; `device` is "cpu" or the GPU's full name. `expected_seconds` is the
    prediction at the attempt's start, `seconds` the duration that the attempt measured itself, and `gpus_per_trial` its
    share of a GPU. `kept_seconds` are those that are a part of its trial's duration: all of an attempt with the result,
    those up to the checkpoint of one that was continued, and 0 of others. `session` is as in jobs.csv. The outcome is
    `cancelled` if the attempt was interrupted because a user has cancelled its trial.
    """
    tries = [attempt for attempts in state.attempts.values() for attempt in attempts]
    kept = kept_seconds(state, conclusive_ends(state))
    sessions = {key: run.name for run in state.sessions for key in run.attempts}
    columns = ("trial", "attempt", "job", "node", "gpu", "slot", "start", "end", "outcome", "gpu_model", "device",
               "expected_seconds", "gpus_per_trial", "seconds", "kept_seconds", "session")  # fmt: skip
    rows = [
        {
            "trial": each.trial,
            "attempt": each.number,
            **each.location._asdict(),
            "start": each.start,
            "end": each.end,
            "outcome": TrialStatus.CANCELLED if each.error == CANCELLED else each.outcome,
            "expected_seconds": each.expected_seconds,
            "gpus_per_trial": each.gpus_per_trial,
            "seconds": each.seconds,
            "kept_seconds": kept.get((each.trial, each.number), 0.0),
            "session": sessions.get((each.trial, each.number), ""),
        }
        for each in sorted(tries, key=lambda each: each.start)
    ]
    return pd.DataFrame(rows, columns=columns)


def predicted_attempts(timeline: pd.DataFrame) -> pd.DataFrame:
    """The finished attempts of timeline.csv that were predicted, with their `measured` seconds.

    A prediction is that of a whole trial, so these include the parts of earlier attempts that an attempt continued.
    """
    is_finished = timeline["outcome"] == TrialStatus.FINISHED
    predicted = timeline[is_finished & (timeline["expected_seconds"] > 0)]
    kept = timeline["kept_seconds"]
    continued = predicted["trial"].map(kept[~is_finished].groupby(timeline["trial"]).sum()).astype(float).fillna(0)
    return predicted.assign(
        measured=predicted["end"] - predicted["start"] + continued.where(kept[predicted.index] > 0, 0)
    )


def describe_prediction_errors(predicted: pd.DataFrame) -> str:
    """By how much the durations of `predicted_attempts` missed their predictions; "" without any.

    Of few trials, a median says little: the range is named instead.
    """
    errors = predicted["measured"] / predicted["expected_seconds"] - 1
    count = len(errors)
    if count >= MIN_FOR_MEDIAN:
        return f"half of {count} trials took within {errors.abs().median():.0%} of the predicted time"
    if not count:
        return ""
    ends = (errors.min(), errors.max())
    texts = dict.fromkeys(f"{-error:.0%} less" if error < 0 else f"{error:.0%} more" for error in ends)
    return f"{count_of(count, 'trial')} took {' to '.join(texts)} than predicted"


def epochs_table(state: History) -> pd.DataFrame:
    """One row per epoch of each trial's result: trial, varied keys, and the epoch's metrics.

    The result of a resumed trial includes the epochs before it was resumed. Metrics have the column names of
    `trials_table`, except that `seconds` of Trainyard's own loop is the time of the epoch.
    """
    keys = state.varied_keys
    reserved = {*(["trial"] if state.sweep.trains else RESERVED), *keys}
    rows = []
    for record in state.records:
        if result := record.result:
            values = {"trial": record.name, **record.values_of(keys)}
            rows += [values | _metric_columns(row, reserved) for row in record.epochs_of(result)]
    return pd.DataFrame(rows) if rows else pd.DataFrame(columns=["trial", *keys, "epoch"])


# ---- early stopping


def stopping_table(state: History) -> pd.DataFrame:
    """One row per trial that was stopped early: its epochs, the reason, and the epochs and seconds that this saved.

    `saved_seconds` is the time of the remaining epochs at the trial's own seconds per epoch, or at the median of the
    other trials if it reported a single epoch; empty if neither is known.
    """
    paces = {record.name: _seconds_per_epoch(record) for record in state.records}
    known = [pace for pace in paces.values() if pace is not None]
    median = statistics.median(known) if known else None
    all_epochs = state.stop.epochs if state.stop else None
    rows = []
    for record in state.records:
        result = record.result
        if result is None or result.outcome != TrialStatus.STOPPED:
            continue
        reported = record.epochs_of(result)
        pace = median if paces[record.name] is None else paces[record.name]
        # None if its output has no epochs any more; many programs count from 0.
        epochs = reported[-1]["epoch"] + (reported[0]["epoch"] == 0) if reported else None
        left = None if all_epochs is None or epochs is None else max(0, all_epochs - epochs)
        saved = None if left is None or pace is None else pace * left
        rows.append([record.name, epochs, left, record.seconds, saved, result.why])
    return pd.DataFrame(rows, columns=["trial", "epochs", "saved_epochs", "seconds", "saved_seconds", "why"])


def _seconds_per_epoch(record: TrialRecord) -> float | None:
    """Seconds per epoch of a trial: as Trainyard's loop measures it, or from the times at which epochs were reported.

    A resumed attempt may report the epochs of earlier attempts again, all at once; these do not count. The first row of
    a command does not count either, because it is reported together with the second one.
    """
    result = record.result
    sweep = record.history.sweep
    if result is None:
        return None
    if sweep.trains:
        return float(statistics.median([row["seconds"] for row in result.epochs])) if result.epochs else None
    before = attempts_before(record.attempts, result)
    earlier = {epoch for each in before for epoch in each.epoch_times}
    new = sorted((epoch, time) for epoch, time in result.epoch_times.items() if epoch not in earlier)
    if sweep.keeps_output:
        del new[:1]
    if len(new) < 2:
        return None
    (first, start), (last, end) = new[0], new[-1]
    return (end - start) / (last - first)


def summarize_savings(state: History, stopped: pd.DataFrame) -> str:
    """One line about what early stopping saved; `stopped` is the `stopping_table`."""
    all_epochs = state.stop.epochs if state.stop else None
    counts = f"stopped early: {len(stopped)} of {len(state.trials)} trials"
    if all_epochs is None or stopped["saved_epochs"].isna().all():
        return counts
    total = all_epochs * len(state.trials)
    epochs = stopped["saved_epochs"].sum()
    seconds = stopped["saved_seconds"].sum()
    slot_seconds = f", or {seconds:.1f} slot-seconds" if stopped["saved_seconds"].notna().all() else ""
    return f"{counts}; this saved {epochs:g} of {total} epochs ({epochs / total:.1%}){slot_seconds}"


# ---- the ranking


def metric_column(table: pd.DataFrame, metric: str) -> str:
    """The column of trials.csv or epochs.csv that has a metric, if it has one."""
    return name if (name := f"reported_{metric}") in table else metric


def curve_column(epochs: pd.DataFrame, metrics: Sequence[str], keys: Collection[str]) -> str:
    """The column of epochs.csv that has the first of these metrics that trials reported by epochs; "" if none was.

    A varied key may have the name of a metric, which then has another column.
    """
    columns = [metric_column(epochs, metric) for metric in metrics]
    known = [column for column in columns if column in epochs and column not in keys]
    by_epochs = [column for column in known if epochs["trial"][epochs[column].notna()].duplicated().any()]
    return next(iter(by_epochs or known), "")


def ranking_table(ranking: Ranking) -> pd.DataFrame:
    """One row per configuration, best first: place, every varied key but the seed, and the metric over its trials.

    One without a trial that counts, or beyond the constraints, has no place. `n` of its `trials` count for
    `<metric>_mean`, `_deviation` and `_best`; `trial` is the best of them. If it `is_incomplete`, others diverged or
    were stopped early. It `may_be_best` if it cannot be told apart from the first, or with one run each, if it has the
    same value; with objectives, if it is on the Pareto front. `<key>=<value>` is the mean at a value of a key of
    `average`. A key with the name of such a column is `varied_<name>`.
    If trials report the metric by epochs: `<metric>_epoch` and `<metric>_epochs` are the epoch of the value of `trial`
    and its number of epochs, `<metric>_at_best_epoch` and `<metric>_best_epoch` the best value of all its epochs.
    """
    metric = ranking.metric
    rows = []
    further = [name for name in (*ranking.objectives, *ranking.constraints) if name != metric]
    places = {entry: place for place, entry in enumerate(ranking.counting, start=1)}
    for entry in ranking.configurations:
        best = entry.best_trial(ranking.mode)
        row = {"place": places.get(entry), "trial": best.trial if best else None, "n": entry.n,
               "trials": len(entry.trials), f"{metric}_mean": entry.mean, f"{metric}_deviation": entry.deviation,
               f"{metric}_best": best.score if best else None, **_epoch_columns(metric, best, ranking),
               **{f"{name}_mean": entry.means.get(name) for name in further}}  # fmt: skip
        for key in ranking.average:
            means = means_by_value(entry.counting or entry.finished, key)
            row |= {f"{key}={value}": mean for value, mean in means.items()}
        row |= {"is_incomplete": entry.is_incomplete, "may_be_best": entry in ranking.leaders}
        keys = {f"varied_{key}" if key in row else key: value for key, value in entry.values.items()}
        rows.append({"place": row.pop("place"), **keys, **row})
    return pd.DataFrame(rows, columns=None if rows else ["place"]).astype({"place": "Int64"})


def _epoch_columns(metric: str, best: RankedTrial | None, ranking: Ranking) -> dict[str, float | None]:
    """The columns about the epochs of a configuration's best trial; none if no trial reports the metric by epochs."""
    if all(value.epoch is None for value in ranking.finished.values()):
        return {}
    value = best.value if best else None
    top = value.best if value else None
    return {
        f"{metric}_epoch": value.epoch if value else None,
        f"{metric}_epochs": value.work.epochs if value else None,
        f"{metric}_at_best_epoch": top.value if top else None,
        f"{metric}_best_epoch": top.epoch if top else None,
    }
