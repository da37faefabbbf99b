"""What the first page says of a sweep, in short sentences: what ran, its cost and waste, predictions, failures."""

import math
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

import pandas as pd

from trainyard.config.sweep import Uniform, Unit
from trainyard.config.trial_status import ENDED, WITH_RESULT, TrialStatus
from trainyard.planning.attempts import Attempt
from trainyard.planning.history import History
from trainyard.report.style import format_setting, short_names
from trainyard.results import SweepResults
from trainyard.results.accounting import covered_seconds
from trainyard.results.answer import Answer
from trainyard.results.best_config import FILE
from trainyard.results.error_patterns import error_pattern
from trainyard.results.ranking import EXTREMES, Configuration, Ranking, describe_best
from trainyard.results.sweep_tables import describe_prediction_errors, predicted_attempts
from trainyard.utils.text import count_of, format_duration, format_time

SHOWN_CONFIGURATIONS: Final = 4  # the best one and the next three
SHOWN_FAILURES: Final = 3  # different errors
NEAR: Final = 0.05  # of a range: close to its end
MIN_VALUES: Final = 3  # different values of a key: of two, the best one is always at an end of the range
ORDER: Final = (TrialStatus.FINISHED, TrialStatus.STOPPED, TrialStatus.DIVERGED, TrialStatus.UNREADABLE,
                TrialStatus.FAILED, TrialStatus.CANCELLED, TrialStatus.INTERRUPTED, TrialStatus.RUNNING,
                TrialStatus.PENDING)  # fmt: skip
WORDS: Final = {TrialStatus.STOPPED: "stopped early", TrialStatus.UNREADABLE: "without metrics"}


def sweep_facts(tables: SweepResults) -> dict[str, str]:
    """How a sweep ran, by label."""
    if tables.jobs.empty:
        return {"ran": "nothing yet"}
    return {
        "ran": _describe_runs(tables),
        "wasted": _describe_waste(tables),
        "duration": _describe_makespan(tables),
        "predicted": _describe_predictions(tables),
        **_describe_queue(tables),
        "failed": _describe_failed_attempts(tables),
    }


def answer_rows(ranking: Ranking) -> list[list[str]]:
    """The best configuration and the next ones, a column each: metric, settings, and trial; [] without any."""
    shown = dict(enumerate(ranking.counting[:SHOWN_CONFIGURATIONS], start=1))
    if ranking.front:
        shown = ranking.spread_of_front
    if ranking.candidates or not shown:
        return []
    configurations = list(shown.values())
    goals = ranking.objectives or {ranking.metric: ranking.mode}
    best = list(filter(None, (each.best_trial(ranking.mode) for each in configurations)))
    keys = dict.fromkeys(key for each in configurations for key in each.values if key not in ranking.constant_keys)
    names = short_names(list(keys))
    rows = [["", *("best" if place == 1 and not ranking.front else f"{place}." for place in shown)]]
    for metric, mode in goals.items():
        label = (
            describe_best(ranking).removeprefix("best ") if metric == ranking.metric else f"{metric} ({EXTREMES[mode]})"
        )
        if ranking.unreported:
            label += f"; no trial has reported {ranking.unreported}"
        rows.append([label, *(_describe_value(each, metric, ranking) for each in configurations)])
    rows += [[names[key], *(format_setting(each.values.get(key)) for each in configurations)] for key in keys]
    if ranking.evidence:
        rows.append(["may be the best", *("yes" if each in ranking.leaders else "no" for each in configurations)])
    if any(each.when for each in best):
        rows.append(["value of", *(each.when.removeprefix(" at ") for each in best)])
    return [*rows, ["trial", *(each.trial for each in best)]]


def _describe_value(configuration: Configuration, metric: str, ranking: Ranking) -> str:
    """The value of a configuration, with its deviation between seeds, and whether trials of it ended early."""
    is_first = metric == ranking.metric
    mean = configuration.mean if is_first else configuration.means[metric]
    value = f"{mean:.4g}"
    if is_first and configuration.deviation is not None:
        value += f" ± {configuration.deviation:.2g}"
    if ranking.has_seeds:
        value += f" (n = {configuration.n})"
    if any(trial.trial in ranking.incomplete for trial in configuration.trials):
        value += " NOT COMPLETE"
    return value


def _strategy(tables: SweepResults, name: str) -> Any:
    """A row of the strategies."""
    return tables.strategies.set_index("strategy").loc[name]


def _describe_runs(tables: SweepResults) -> str:
    counts = Counter(tables.trials["status"])
    jobs = tables.jobs
    parts = [f"{counts[status]} {WORDS.get(status, status)}" for status in ORDER if counts[status]]
    last = jobs.iloc[-1]
    names = tables.timeline["node"].dropna().astype(str).str.split(",").explode().unique()  # a trial may have several
    most = max(last["nodes"], len(names))  # of one job, or of several
    node = names[0] if len(names) else last["node"]
    nodes = f"{most:.0f} nodes" if most > 1 else f"node {node}"
    devices = ["CPUs" if name == "cpu" else str(name) for name in tables.timeline["device"].dropna().unique()]
    seconds = covered_seconds(zip(jobs["start"], jobs["start"] + jobs["elapsed_seconds"], strict=True))
    times = f"{count_of(len(jobs), 'job')}, {format_duration(seconds)}"
    when = f"from {format_time(jobs['start'].iloc[0])}"
    trials = count_of(len(tables.trials), "trial")
    where = ", ".join([nodes, *devices])
    return f"{trials}: {', '.join(parts)}; {times}, {when}, on {where}"


def _charged(tables: SweepResults) -> Unit:
    """What the sweep is charged for."""
    return "CPU" if "requested_cpu_seconds" in tables.strategies else "GPU"


def _describe_waste(tables: SweepResults) -> str:
    packed = _strategy(tables, "packed")
    unit = _charged(tables).lower()
    if not packed[f"used_{unit}_seconds"]:
        return "nothing"
    startup = packed[f"startup_{unit}_seconds"] / packed[f"used_{unit}_seconds"]
    array = _strategy(tables, "job_array")
    times = array[f"requested_{unit}_seconds"] / (array[f"used_{unit}_seconds"] or 1.0)
    return (
        f"{packed['wasted_fraction']:.0%} of what was used ({startup:.0%} to start programs); the same trials would "
        f"waste {array['wasted_fraction']:.0%} as a job array, which would request {times:.1f} times what it uses"
    )


def _describe_makespan(tables: SweepResults) -> str:
    packed = _strategy(tables, "packed")
    seconds = packed["makespan_seconds"]
    bound = packed["makespan_lower_bound_seconds"]
    if not bound:
        return "no trial has a result"
    slots = count_of(int(packed["slots"]), "slot")
    return (
        f"{format_duration(seconds)} from the first trial's start to the last one's end; on {slots}, these trials take "
        f"at least {format_duration(bound)} in any order ({seconds / bound - 1:+.0%})"
    )


def _describe_predictions(tables: SweepResults) -> str:
    facts = []
    for job in tables.jobs.dropna(subset=["gap"]).tail(1).itertuples():
        predicted = format_duration(job.predicted_seconds)
        measured = format_duration(job.measured_seconds)
        facts.append(f"{predicted} for the last job, which took {measured} ({job.gap:+.0%})")
    if trials := describe_prediction_errors(predicted_attempts(tables.timeline)):
        facts.append(trials)
    return "; ".join(facts) or "nothing: no trial had finished before the others started"


def _describe_queue(tables: SweepResults) -> dict[str, str]:
    """How long the jobs waited in Slurm's queue, by its accounting."""
    waits = tables.jobs["wait_seconds"].dropna().clip(lower=0.0)  # Slurm's times are whole seconds
    if waits.empty:
        return {}
    ends = dict.fromkeys(map(format_duration, (waits.min(), waits.max())))
    return {"queue": f"a job started {' to '.join(ends)} after its submission"}


def _describe_failed_attempts(tables: SweepResults) -> str:
    attempts = tables.timeline[tables.timeline["trial"].isin(tables.trials["trial"])]  # of others, the jobs are counted
    count = int((attempts["outcome"] == TrialStatus.FAILED).sum())
    return f"{count or 'none'} of {count_of(len(attempts), 'attempt')}"


# ---- failures, and what to do next


def list_failures(state: History) -> list[str]:
    """One line for each reason for which trials ended without a result, the most frequent ones first.

    Errors that differ only in the names and values of their trials are one reason.
    """
    ended = [record.end or record.last for record in state.records]
    lost = [each for each in ended if each and each.outcome not in {*WITH_RESULT, TrialStatus.RUNNING}]
    reasons: dict[tuple[str, str], list[Attempt]] = {}
    for each in lost:
        pattern = error_pattern(each.error, each.trial, state.trials[each.trial].values)
        reasons.setdefault((each.outcome, pattern), []).append(each)
    groups = sorted(reasons.values(), key=len, reverse=True)
    lines = []
    for first, *others in groups[:SHOWN_FAILURES]:
        why = f": {first.error}" if first.error else ""
        if first.failure:
            why += f", then it failed: {first.failure}"
        if first.log:
            why += f"; see {first.log}"
        count = count_of(1 + len(others), "trial")
        status = WORDS.get(first.outcome, first.outcome)
        lines.append(f"{count} {status}, as {first.trial}{why}")
    if hidden := groups[SHOWN_FAILURES:]:
        lines.append(f"{sum(map(len, hidden))} more, for {count_of(len(hidden), 'other reason')}")
    return lines


def list_next_steps(state: History, answer: Answer) -> list[str]:
    """What to do next about a sweep."""
    ranking = answer.ranking
    steps = []
    if failed := sum(not each.ran_out_of_memory for each in state.failed):
        steps.append(
            f"Correct the error of {count_of(failed, 'failed trial')} and run the same command with "
            f"`--forcerun {state.folder / 'trials.csv'}`: only what is missing runs."
        )
    if left := len(state.unfinished) - len(state.failed):
        steps.append(f"Run the same command, `trainyard run`, for {count_of(left, 'trial')} without a result.")
    if text := state.describe_budget():
        steps.append(f"{text[0].upper()}{text[1:]}.")
    if ranking.best_trial:
        steps += [*filter(None, [answer.deciding]), *_list_edges(state, ranking)]
        steps.append(f"Train the best configuration again: {state.folder / FILE} says how.")
    return steps


def _list_edges(state: History, ranking: Ranking) -> Iterator[str]:
    """Advice to extend the range of each key in which all that may be the best lie at the same end.

    The ends are those of the range that the config gives, or the least and the greatest value that ended, in vain too.
    """
    ended = [each for each in ranking.configurations if any(trial.status in ENDED for trial in each.trials)]
    tried = pd.DataFrame([each.values for each in ended])
    for key, best in ranking.counting[0].values.items():
        values = tried[key].dropna()
        leading = [each.values[key] for each in ranking.leaders]
        if not leading or None in leading or values.dtype.kind not in "if" or values.nunique() < MIN_VALUES:
            continue  # lists cannot be counted
        sources = (source.values.get(key) for source in (state.sweep.sample, state.sweep.search) if source)
        drawn = next((each for each in sources if isinstance(each, Uniform)), None)  # the range of the draws, if any
        low, high = (drawn.low, drawn.high) if drawn else (values.min(), values.max())
        if not all(low <= value <= high for value in leading):  # it is not drawn, but of `grid` or `trials`
            continue
        scale = math.log if drawn and drawn.log else float
        near = NEAR * (scale(high) - scale(low)) if drawn else 0.0  # a draw hardly ever is an end itself
        for end, word, further in ((low, "smallest", "smaller"), (high, "largest", "larger")):
            if all(abs(scale(value) - scale(end)) <= near for value in leading):
                where = f"is close to {end:g}, the {word} of its range" if drawn else f"is the {word} that was tried"
                yield f"The best {key}, {best:g}, {where}: try {further} ones."
