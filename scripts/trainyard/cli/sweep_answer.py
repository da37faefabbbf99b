"""The answer of a sweep in the terminal: the same lines after a run and whenever a user asks for it."""

from typing import Any

from trainyard.checks.script_checks import describe_spoiled_results
from trainyard.config.config import Pricing
from trainyard.planning.history import History
from trainyard.results.accounting import describe_cost
from trainyard.results.answer import Answer
from trainyard.results.best_config import find_config, find_files, paste_line
from trainyard.results.completeness import describe_failure, summarize_sweep
from trainyard.results.provenance import describe_mismatch
from trainyard.results.ranking import Configuration, Ranking


def describe_sweep(state: History, answer: Answer, pricing: Pricing) -> list[str]:
    """What has run of a sweep, its answer as far as it has run, where the best is, and what it used: a line each."""
    ranking = answer.ranking
    failed = state.failed
    best, *more = answer.lines
    if ranking.best_trial and len(state.unfinished) > len(failed):
        best = f"so far: {best}"
    lines = [*map(describe_failure, failed[:1]), best, *more]
    if not state.unfinished:
        lines += filter(None, [answer.deciding, describe_mismatch(state)])
    lines += describe_spoiled_results(state.sweep)
    if ranking.best_trial:
        line = paste_line(state, ranking)
        its = "the first one's" if ranking.front else "its"
        if files := find_files(state, ranking):
            lines.append(f"{its} files: {files}")
        if line and "\n" not in line:
            lines.append(f"by hand: {line}")
        if path := find_config(state, answer):
            lines.append(f"{its} config: {path}")
    lines += filter(None, [describe_cost(state, pricing)])
    return [summarize_sweep(state), *(f"  {line}" for line in lines)]


def answer_as_json(state: History, answer: Answer, pricing: Pricing) -> dict[str, Any]:
    """The same for programs, as `--json` prints it."""
    ranking = answer.ranking
    trial = ranking.best_trial
    metric, mode = (ranking.metric, ranking.mode) if trial else state.sweep.target
    return {
        "sweep": state.name,
        "is_complete": not state.unfinished,
        "metric": metric,
        "mode": mode,
        "best": trial and _configuration(ranking.counting[0], ranking),
        "may_be_best": [_configuration(each, ranking) for each in ranking.leaders],
        "command": paste_line(state, ranking) if trial else None,
        "files": find_files(state, ranking) if trial else None,
        "config": find_config(state, answer) if trial else None,
        "sentences": [*answer.lines, *filter(None, [answer.deciding])],
        "used": describe_cost(state, pricing),
    }


def _configuration(configuration: Configuration, ranking: Ranking) -> dict[str, Any]:
    """The settings of a configuration, the mean of its trials, and its best trial."""
    trial = configuration.best_trial(ranking.mode)
    return {
        "settings": configuration.values,
        "value": configuration.mean,
        "deviation": configuration.deviation,
        "trials": configuration.n,
        "trial": trial and trial.trial,
        "epoch": trial and trial.value and trial.value.epoch,
    }
