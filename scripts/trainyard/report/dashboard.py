"""The trials of sweeps as studies of Optuna, and optuna-dashboard on them. Nothing is written back to the journal."""

import math
import re
import tempfile
import time
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from threading import Lock
from typing import Any, Final
from wsgiref.types import StartResponse, WSGIEnvironment

import optuna
import pandas as pd
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.storages import BaseStorage, InMemoryStorage, JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState
from optuna_dashboard import wsgi

from trainyard.config.config import Config
from trainyard.config.metric_names import create_study, guess_mode
from trainyard.config.sweep import Draw, Uniform, options_of
from trainyard.config.trial_status import FINAL, TrialStatus
from trainyard.planning.attempts import Fold
from trainyard.planning.history import History, read_state
from trainyard.planning.trial_space import is_placeholder
from trainyard.programs.metric_rows import step_numbers
from trainyard.report.style import is_log_scale, is_numeric
from trainyard.results.ranking import RankedTrial, Ranking, rank_sweep
from trainyard.utils.files import atomic_write

_SECONDS: Final = 2.0  # between two looks at the journals
_STATES: Final = {
    TrialStatus.FINISHED: TrialState.COMPLETE,
    TrialStatus.STOPPED: TrialState.PRUNED,
    TrialStatus.RUNNING: TrialState.RUNNING,
    TrialStatus.INTERRUPTED: TrialState.WAITING,
}


def add_study(state: History, storage: BaseStorage) -> None:
    """Add the trials of a sweep to a storage of Optuna, as a study with its name.

    If nothing ranks the trials, all metrics that they report are objectives.
    """
    ranking = rank_sweep(state)
    guessed = {name: guess_mode(name) for name in ranking.candidates}
    goals = guessed or ranking.objectives or {ranking.metric: ranking.mode}
    study = create_study(goals.values(), storage=storage, study_name=state.name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        study.set_metric_names(list(goals))
    ranked = {trial.trial: trial for each in ranking.configurations for trial in each.trials}
    keys = [key for key in state.varied_keys if key not in state.constant_keys]
    params = dict[str, dict[str, Any]]()  # the values of the keys that apply to a trial
    for record in state.records:
        if not is_placeholder(record.name):
            values = record.values_of(keys)
            own = record.trial.values
            params[record.name] = {
                key: _plain(value) for key, value in values.items() if value is not None or key in own
            }
    columns = {key: [each[key] for each in params.values() if key in each] for key in keys}
    spaces = {key: _space(values, state.sweep.choice(key)) for key, values in columns.items() if values}
    study.add_trials([_trial(state, ranked[name], ranking, goals, of, spaces) for name, of in params.items()])


def _plain(value: Any) -> Any:
    """A value as Optuna has it: a list or mapping as text."""
    return value if isinstance(value, (str, int, float, type(None))) else str(value)


def _space(values: Sequence[Any], choice: Draw) -> BaseDistribution:
    """The distribution of a key, of which these values are known, too: a range of numbers, or else categories."""
    is_range = isinstance(choice, Uniform)
    numbers = [*(choice.ends if isinstance(choice, Uniform) else map(_plain, options_of(choice))), *values]
    column = pd.Series(numbers)
    if None in numbers or not is_numeric(column):
        return CategoricalDistribution(list(dict.fromkeys(values if is_range else numbers)))
    kind = IntDistribution if pd.api.types.is_integer_dtype(column) else FloatDistribution
    return kind(
        min(numbers), max(numbers), log=is_log_scale(column, choice.log if isinstance(choice, Uniform) else None)
    )


def _trial(
    state: History,
    ranked: RankedTrial,
    ranking: Ranking,
    goals: Collection[str],
    params: dict[str, Any],
    spaces: Mapping[str, BaseDistribution],
) -> FrozenTrial:
    record = state.record(ranked.trial)
    end = record.end
    last = record.last
    is_open = end is None and (last is None or last.is_retried or last.outcome in FINAL)  # or it no longer counts
    shown = None if is_open else end or last
    kind = _STATES.get(ranked.status, TrialState.FAIL) if shown else TrialState.WAITING
    known: dict[str, Any] = {**(end.metrics if end else {}), **ranked.judged}
    known |= {} if ranking.candidates else {ranking.metric: ranked.score}
    numbers = {name: float(value) for name, value in known.items() if value is not None and math.isfinite(value)}
    values = [numbers[goal] for goal in goals] if end and numbers.keys() >= set(goals) else None
    if kind == TrialState.COMPLETE and not values:
        kind = TrialState.FAIL
    metric = next(iter(goals))
    rows = record.epochs_of(shown) if shown and len(goals) == 1 else []
    excesses = [of.excess(numbers[key]) for key, of in ranking.constraints.items() if key in numbers]
    trial = optuna.trial.create_trial(
        state=kind,
        values=None if kind == TrialState.FAIL else values,
        params=params,
        distributions={key: spaces[key] for key in params},
        user_attrs={"trial": ranked.trial, "status": ranked.status}
        | {name: value for name, value in numbers.items() if name not in goals},
        intermediate_values={
            step: row[metric] for step, row in zip(step_numbers(rows), rows, strict=True) if row.get(metric) is not None
        },
        system_attrs={"constraints": excesses},  # the form that optuna-dashboard reads
    )
    if shown:
        trial.datetime_start = datetime.fromtimestamp(shown.start)
        trial.datetime_complete = datetime.fromtimestamp(shown.end) if kind.is_finished() else None
    return trial


def write_studies(config: Config, results: Path, path: Path) -> None:
    """Write the studies of all sweeps to a file, a journal of Optuna, in place of what it was."""
    with tempfile.TemporaryDirectory() as folder, atomic_write(path, "wb") as file:
        draft = Path(folder) / "studies"  # Optuna locks and syncs it for each trial
        for name, sweep in config.sweeps.items():
            add_study(read_state(sweep, name, results), JournalStorage(JournalFileBackend(str(draft))))
        file.write(draft.read_bytes())


class Dashboard:
    """A WSGI application: optuna-dashboard on the sweeps as they are now. It changes nothing.

    What has ended cannot change in a study of Optuna, but in a sweep (`retrain`, other `metrics`): so there are new
    studies at each look at the journals. They have the same IDs, so an open page goes on.
    """

    def __init__(self, config: Config, results: Path) -> None:
        self._config = config
        self._results = results
        self._folds = {name: Fold(results / "sweeps" / name) for name in config.sweeps}
        self._lock = Lock()
        self._next = 0.0

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Answer a request to this host by its own names; a foreign page can have its name resolved to 127.0.0.1."""
        if not re.fullmatch(r"(localhost|127\.0\.0\.1)(:\d+)?", environ.get("HTTP_HOST", "")):
            start_response("403 Forbidden", [("Content-Type", "application/json")])
            return [b'{"reason": "open it as localhost or 127.0.0.1"}']
        if environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
            start_response("405 Method Not Allowed", [("Allow", "GET, HEAD"), ("Content-Type", "application/json")])
            return [b'{"reason": "the journals of the sweeps say what is shown: it cannot be changed here"}']
        with self._lock:
            if time.monotonic() >= self._next:
                storage = InMemoryStorage()
                for name, sweep in self._config.sweeps.items():
                    add_study(read_state(sweep, name, self._results, fold=self._folds[name]), storage)
                self._shown = wsgi(storage)
                self._next = time.monotonic() + _SECONDS
            shown = self._shown
        answer: Iterable[bytes] = shown(environ, start_response)
        return answer
