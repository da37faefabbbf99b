"""Whether finished trials did the same work: if not, their values do not compare, and the answer says so."""

import re
from collections.abc import Mapping
from typing import Final

from trainyard.config.placeholders import dotted_items
from trainyard.config.sweep import Score
from trainyard.config.trial_status import TrialStatus
from trainyard.config.trials import Values
from trainyard.planning.history import History
from trainyard.planning.trial_value import TrialWork, describe_score, work_of
from trainyard.programs.progress import Progress
from trainyard.utils.text import count_of

NAMED: Final = 5  # trials, or numbers of epochs, in words
# A varied key with such a name sets how many epochs a trial has.
_SETS_EPOCHS: Final = re.compile(r"epoch|step|iter|update|round|frames|samples|tokens", re.IGNORECASE)


def find_incomplete(work: Mapping[str, TrialWork]) -> dict[str, Progress]:
    """The trials whose programs ended by themselves before the total that they print, with the last that they printed.

    One that ends just before its total counts from 0, unless a program of the sweep reached its total. If it began
    at 0, only another that did so can tell.
    """
    printed = {name: each.progress for name, each in work.items() if each.progress}
    reached = [each for each in printed.values() if each.number >= each.total]
    return {
        name: each
        for name, each in printed.items()
        if not each.may_be_complete or any(_ends_before(each, other) for other in reached)
    }


def _ends_before(progress: Progress, whole: Progress) -> bool:
    """Whether a counter ends before its total, by another that reached its own."""
    is_early = progress.number < progress.total and progress.step == 1 and not progress.stops_early
    return is_early and progress.unit == whole.unit and (whole.begins_at_0 or not progress.begins_at_0)


def describe_work(work: Mapping[str, TrialWork], settings: Mapping[str, Values], score: Score = "last") -> list[str]:
    """Whether the finished trials have different units and numbers of epochs, trained several times, or are incomplete.

    A line for each of these. `settings` are the values of the varied keys of each trial.
    """
    incomplete = find_incomplete(work)
    return [
        *_describe_units(work),
        *_describe_incomplete(incomplete, len(work)),
        *_describe_late_beginnings(work),
        *_describe_hidden_errors(work),
        *_describe_epochs(work, settings, incomplete),
        *_describe_new_beginnings(work, score),
    ]


def describe_finished_work(state: History) -> list[str]:
    """The same of the trials of a sweep that have finished so far."""
    finished = [result for result in state.results if result.outcome is TrialStatus.FINISHED]
    work = {result.trial: work_of(state, result) for result in finished}
    return describe_work(work, {name: state.trials[name].values for name in work}, state.sweep.score)


def _describe_units(work: Mapping[str, TrialWork]) -> list[str]:
    lines = list[str]()
    for metric in dict.fromkeys(metric for each in work.values() for metric in each.units):
        trials: dict[str, str] = {}  # the first one with each unit
        for trial, each in work.items():
            if metric in each.units:
                trials.setdefault(each.units[metric], trial)
        if len(trials) > 1:
            units = ", ".join(f"{unit or 'none'} (trial {trial})" for unit, trial in trials.items())
            lines.append(f"{metric} has different units, which are not read: {units}: its values do not compare")
    return lines


def _describe_incomplete(incomplete: Mapping[str, Progress], total: int) -> list[str]:
    if not incomplete:
        return []
    ends = [f"trial {name} at {progress}" for name, progress in list(incomplete.items())[:NAMED]]
    more = len(incomplete) - len(ends)
    named = ", ".join(ends) + (f" and {more} more" if more else "")
    are = "is not complete: its program" if len(incomplete) == 1 else "are not complete: their programs"
    ended = f"{len(incomplete)} of {count_of(total, 'finished trial')} {are} ended early with exit code 0, {named}"
    return [f"{ended}; `complete` says when they are, and they go on until then"]


def _share(found: Mapping[str, object], work: Mapping[str, TrialWork]) -> str:
    return f"{len(found)} of {count_of(len(work), 'finished trial')}"


def _describe_late_beginnings(work: Mapping[str, TrialWork]) -> list[str]:
    """That trials began with a later epoch than others: they may have resumed from what another trial has saved."""
    found = {name: each.began_late_at for name, each in work.items() if each.began_late_at is not None}
    if not found:
        return []
    trial, epoch = next(iter(found.items()))
    began = f"{_share(found, work)} began with a later epoch than others"
    resumed = f"as trial {trial} with epoch {epoch:.6g}: it may have resumed from the checkpoint of another trial"
    remedy = "let the program save in its own folder, `{trial_dir}`"
    return [f"{began}, {resumed}: {remedy}; or `metrics` do not read its first epochs"]


def _describe_hidden_errors(work: Mapping[str, TrialWork]) -> list[str]:
    """That programs with exit code 0 end with an error, as one that is caught, or hidden by `|| true` or `wait`."""
    errors = {name: each.hidden_error for name, each in work.items() if each.hidden_error}
    if not errors:
        return []
    trial, error = next(iter(errors.items()))
    ended = f"{_share(errors, work)} ended with exit code 0 after an error"
    return [f"{ended}, as trial {trial}: {error}; `complete` says when they are done, or let the program fail"]


def _describe_epochs(
    work: Mapping[str, TrialWork], settings: Mapping[str, Values], incomplete: Mapping[str, Progress]
) -> list[str]:
    """That trials have different last epochs, and what explains it, unless those that are incomplete do."""
    last_epochs = {name: each.last_epoch for name, each in work.items() if each.last_epoch is not None}
    if len({epoch for name, epoch in last_epochs.items() if name not in incomplete}) < 2:
        return []
    trials_by_epoch: dict[float, list[str]] = {}
    for name, epoch in sorted(last_epochs.items(), key=lambda item: item[1]):
        trials_by_epoch.setdefault(epoch, []).append(name)
    if len(trials_by_epoch) > NAMED:
        low, *_, high = trials_by_epoch
        counts = f"{low:.6g} to {high:.6g}"
    else:
        counts = ", ".join(f"{epoch:.6g} ({_name(names)})" for epoch, names in trials_by_epoch.items())
    key = _explaining_key(last_epochs, settings)
    patient = sum(each.ended_by_patience for each in work.values())
    stopped = sum(each.progress is not None and each.progress.stops_early for each in work.values())
    if key:
        why = f": `{key}` is varied"
    elif patient:
        why = f": {patient} of them ended early, without a new best"
    elif stopped:
        why = f": {count_of(stopped, 'program')} said to stop early"
    else:
        why = ", and no key explains it: their values may not compare"
    return [f"the finished trials have different last epochs, {counts}{why}"]


def _describe_new_beginnings(work: Mapping[str, TrialWork], score: Score) -> list[str]:
    """That programs train several times, as for each fold of a cross-validation, and which epoch counts."""
    beginnings = {name: each.began_again_after for name, each in work.items() if each.began_again_after is not None}
    if not beginnings:
        return []
    trial, epoch = next(iter(beginnings.items()))
    again = f"report an earlier epoch again, as trial {trial} after epoch {epoch:.6g}"
    counts = f"if their programs train several times, the {describe_score(score)} of all trainings counts"
    remedy = "have them print the one value to rank by at the end, under another name"
    return [f"{_share(beginnings, work)} {again}: {counts}; {remedy}"]


def _name(trials: list[str]) -> str:
    return f"trial {trials[0]}" if len(trials) == 1 else f"{len(trials)} trials"


def _explaining_key(last_epochs: Mapping[str, float], settings: Mapping[str, Values]) -> str:
    """The varied key that sets the number of epochs: all trials with the same value of it have the same; or ""."""
    values = {name: dict(dotted_items(settings[name])) for name in last_epochs}  # also of mappings, as in a grid
    for key in dict.fromkeys(key for each in values.values() for key in each):
        pairs = {(str(values[name].get(key)), epoch) for name, epoch in last_epochs.items()}
        if _SETS_EPOCHS.search(key) and len(pairs) == len({value for value, _ in pairs}):
            return key
    return ""
