"""What `--json` prints for scripts and agents, in place of tables and sentences. docs/json.md describes it."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from pydantic_core import to_json

from trainyard.checks.findings import Finding
from trainyard.cli.status_view import count_trials, open_attempts, seconds_left, study_counts, sweep_has_ended
from trainyard.config.config import Config
from trainyard.planning.accounting import describe_cost
from trainyard.planning.attempts import Fold
from trainyard.planning.history import History
from trainyard.planning.plan import plan_sweep
from trainyard.results.answer import answer_sweep
from trainyard.results.best_config import find_config, find_files, paste_line
from trainyard.results.ranking import Configuration, Ranking

VERSION: Final = 1  # of the keys: those of a version keep their meaning, and new ones may be added
OPTION: Final = "--json"
HELP: Final = "print one JSON object, for scripts: docs/json.md describes it"


def print_json(**content: Any) -> None:
    """Print an object with its version. A number that is not finite is null."""
    print(to_json({"version": VERSION, **content}, indent=2, inf_nan_mode="null").decode(), flush=True)


def findings_as_json(findings: Iterable[Finding]) -> dict[str, Any]:
    """What a check found, and whether anything fails."""
    found = [asdict(each) for each in findings]
    return {"fails": any(each["verdict"] == "fails" for each in found), "findings": found}


def progress_as_json(config: Config, results: Path, folds: Mapping[str, Fold]) -> dict[str, Any]:
    """How far all sweeps and studies are."""
    sweeps = []
    for name, fold in folds.items():
        plan = plan_sweep(config, name, results, fold=fold)
        opened = open_attempts(plan)
        sweeps.append(
            {
                "sweep": name,
                "has_ended": sweep_has_ended(plan.state),
                **count_trials(plan, opened),
                "seconds_left": seconds_left(plan, opened),
                "answer": answer_as_json(config, plan.state),
            }
        )
    return {"sweeps": sweeps, "studies": study_counts(config, results)}


def answer_as_json(config: Config, state: History) -> dict[str, Any]:
    """The answer of a sweep, as far as it has run."""
    answer = answer_sweep(state)
    ranking = answer.ranking
    trial = ranking.best_trial
    return {
        "sweep": state.name,
        "is_complete": not state.unfinished,
        "metric": ranking.metric if trial else None,
        "mode": ranking.mode if trial else None,
        "best": trial and _configuration(ranking.counting[0], ranking),
        "may_be_best": [_configuration(each, ranking) for each in ranking.leaders],
        "command": paste_line(state, ranking) if trial else None,
        "files": find_files(state, ranking) if trial else None,
        "config": find_config(state, answer) if trial else None,
        "sentences": [*answer.lines, *filter(None, [answer.deciding])],
        "used": describe_cost(state, config.pricing),
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
