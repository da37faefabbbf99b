"""The trials of sweeps as studies of Optuna, and optuna-dashboard on them. Nothing is written back to the journal."""

import math
import tempfile
import time
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from socketserver import ThreadingMixIn
from threading import Lock
from typing import TYPE_CHECKING, Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import optuna
import pandas as pd
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.storages import BaseStorage, InMemoryStorage, JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState
from optuna_dashboard import wsgi

from trainyard.config.config import Config
from trainyard.config.metric_names import Mode, guess_mode
from trainyard.config.trial_status import FINAL, TrialStatus
from trainyard.config.trials import value_at, varied_keys
from trainyard.planning.attempts import Fold
from trainyard.planning.plan import read_state
from trainyard.planning.sweep_state import SweepState, is_placeholder
from trainyard.report.style import is_log_scale, is_numeric
from trainyard.results.ranking import RankedTrial, Ranking, rank_sweep
from trainyard.utils.files import atomic_write

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

LOOPBACK: Final = "127.0.0.1"
_SECONDS: Final = 2.0  # between two looks at the journals
_STATES: Final = {
    TrialStatus.FINISHED: TrialState.COMPLETE,
    TrialStatus.STOPPED: TrialState.PRUNED,
    TrialStatus.RUNNING: TrialState.RUNNING,
    TrialStatus.PENDING: TrialState.WAITING,
    TrialStatus.INTERRUPTED: TrialState.WAITING,
}


# ---- the studies


def add_study(state: SweepState, storage: BaseStorage) -> None:
    """Add the trials of a sweep to a storage of Optuna, as a study with its name and the numbers of its trials.

    If nothing ranks the trials, all metrics that they report are objectives.
    """
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    ranking = rank_sweep(state)
    goals: Mapping[str, Mode] = ranking.objectives or {ranking.metric: ranking.mode}
    if ranking.candidates:
        goals = {name: guess_mode(name) for name in ranking.candidates}
    directions = [StudyDirection.MAXIMIZE if mode == "max" else StudyDirection.MINIMIZE for mode in goals.values()]
    study = optuna.create_study(storage=storage, study_name=state.name, directions=directions)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        study.set_metric_names(list(goals))
    ranked = {trial.trial: trial for each in ranking.configurations for trial in each.trials}
    keys = [key for key in varied_keys(list(state.trials.values())) if key not in state.constant_keys]
    params = {name: _params(state, name, keys) for name in state.trials if not is_placeholder(name)}
    spaces = {key: _space(state, key, [each[key] for each in params.values() if key in each]) for key in keys}
    study.add_trials([_trial(state, ranked[name], ranking, goals, of, spaces) for name, of in params.items()])


def _params(state: SweepState, name: str, keys: Iterable[str]) -> dict[str, Any]:
    """The values of the keys of a trial; those of lists and mappings as text. A key that does not apply is left out."""
    trial = state.trials[name]
    settings = trial.settings
    values = {key: value_at(settings, key) for key in keys}
    known = {key: value for key, value in values.items() if value is not None or key in trial.values}
    is_plain = (str, int, float, type(None))
    return {key: value if isinstance(value, is_plain) else str(value) for key, value in known.items()}


def _space(state: SweepState, key: str, values: Sequence[Any]) -> BaseDistribution:
    """The distribution of a key: numbers within its declared range, or else those that trials have; or categories."""
    column, declared = pd.Series(values), state.sweep.range_of(key)
    if not is_numeric(column):
        return CategoricalDistribution(list(dict.fromkeys(values)))
    bounds = [*values, declared.low, declared.highest] if declared else values
    kind = IntDistribution if pd.api.types.is_integer_dtype(column) else FloatDistribution
    return kind(min(bounds), max(bounds), log=is_log_scale(column, state.sweep.is_log(key)))


def _trial(
    state: SweepState,
    ranked: RankedTrial,
    ranking: Ranking,
    goals: Collection[str],
    params: dict[str, Any],
    spaces: Mapping[str, BaseDistribution],
) -> FrozenTrial:
    end, last = state.end(ranked.trial), state.last_attempt(ranked.trial)
    shown = end or last
    if end is None and last and (last.is_retried or last.outcome in FINAL):  # which does not count any more
        shown = None
    kind = _STATES.get(ranked.status, TrialState.FAIL) if shown else TrialState.WAITING
    known: dict[str, Any] = {**(end.metrics if end else {}), **ranked.judged}
    known |= {} if ranking.candidates else {ranking.metric: ranked.score}
    numbers = {name: float(value) for name, value in known.items() if value is not None and math.isfinite(value)}
    has_values = kind in (TrialState.COMPLETE, TrialState.PRUNED) and numbers.keys() >= set(goals)
    if kind == TrialState.COMPLETE and not has_values:
        kind = TrialState.FAIL
    (first, *others), rows = goals, state.epochs_of(shown) if shown else []
    curve = {} if others else {row["epoch"]: row[first] for row in rows if row.get(first) is not None}
    trial = optuna.trial.create_trial(
        state=kind,
        values=[numbers[goal] for goal in goals] if has_values else None,
        params=params,
        distributions={key: spaces[key] for key in params},
        user_attrs={"trial": ranked.trial, "status": ranked.status}
        | {name: value for name, value in numbers.items() if name not in goals},
        intermediate_values=curve,
        constraints={
            name: limits.excess(numbers[name]) for name, limits in ranking.constraints.items() if name in numbers
        },
    )
    if shown:
        trial.datetime_start = datetime.fromtimestamp(shown.start)
        trial.datetime_complete = datetime.fromtimestamp(shown.end) if kind.is_finished() else None
    return trial


def write_studies(config: Config, results: Path, path: Path) -> None:
    """Write the studies of all sweeps to a file, a journal of Optuna, in place of what it was."""
    with tempfile.TemporaryDirectory() as folder:  # Optuna locks and syncs the file for each trial
        draft = Path(folder) / "studies"
        storage = JournalStorage(JournalFileBackend(str(draft)))
        for name, sweep in config.sweeps.items():
            add_study(read_state(sweep, name, results), storage)
        with atomic_write(path, "wb") as file:
            file.write(draft.read_bytes())


# ---- the dashboard


class Dashboard:
    """A WSGI application: optuna-dashboard on the sweeps as they are now. It changes nothing.

    What has ended cannot change in a study of Optuna, but in a sweep (`retrain`, other `metrics`): so there are new
    studies at each look at the journals. They have the same IDs, so an open page goes on.
    """

    def __init__(self, config: Config, results: Path) -> None:
        self._config, self._results = config, results
        self._folds = {name: Fold(results / "sweeps" / name) for name in config.sweeps}
        self._lock, self._shown, self._next = Lock(), wsgi(InMemoryStorage()), 0.0

    def __call__(self, environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        """Answer a request."""
        if environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
            start_response("405 Method Not Allowed", [("Allow", "GET, HEAD"), ("Content-Type", "application/json")])
            return [b'{"reason": "the journals of the sweeps say what is shown: it cannot be changed here"}']
        with self._lock:
            if time.monotonic() >= self._next:
                self._shown = wsgi(self._read_studies())
                self._next = time.monotonic() + _SECONDS
            shown = self._shown
        answer: Iterable[bytes] = shown(environ, start_response)
        return answer

    def _read_studies(self) -> InMemoryStorage:
        storage = InMemoryStorage()
        for name, sweep in self._config.sweeps.items():
            add_study(read_state(sweep, name, self._results, fold=self._folds[name]), storage)
        return storage


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True  # a browser may keep its connection open


class _Handler(WSGIRequestHandler):
    def log_message(self, *of_request: object) -> None:
        """Print no line for each request."""


def open_server(dashboard: Dashboard, port: int) -> WSGIServer:
    """A server that only this node reaches; its `server_port` is the port, of which 0 is any.

    Raises:
        OSError: the port is taken.
    """
    return make_server(LOOPBACK, port, dashboard, server_class=_Server, handler_class=_Handler)
