"""The plan of a sweep: its state, a forecast of its pending trials, and the job that it requests."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from trainyard.config.config import Config, Trees
from trainyard.config.scaling import Scaling
from trainyard.config.sweep import Slots, Sweep
from trainyard.data.staged import read_meta
from trainyard.planning.attempts import Fold, group_by_trial
from trainyard.planning.duration_forecast import DurationForecast
from trainyard.planning.job_request import JobRequest
from trainyard.planning.search import describe_new_search
from trainyard.planning.sweep_state import NOT_STAGED, SweepState, TrialSpace
from trainyard.utils.errors import MissingResultError


@dataclass(frozen=True)
class Plan:
    """The plan of a sweep as of now: state, forecast and job request."""

    state: SweepState
    limit_minutes: float = math.inf  # the longest walltime that can be requested
    limit_gpus: float = math.inf  # the most GPUs, of all jobs
    limit_jobs: float = math.inf  # the most jobs of `jobs: auto`
    fixed_minutes: float | None = None  # the walltime that is requested in any case
    price: float | None = None  # of a GPU-hour; without GPUs, of a CPU-hour

    @cached_property
    def forecast(self) -> DurationForecast:
        """How long the pending trials take."""
        return DurationForecast(self.state)

    @cached_property
    def request(self) -> JobRequest:
        """The job that the pending trials need."""
        return JobRequest(self)

    @cached_property
    def new_search(self) -> str:
        """As `describe_new_search`."""
        return describe_new_search(self.state)

    def with_slots(self, slots: Slots) -> "Plan":
        """The plan of jobs with exactly these slots."""
        sweep = self.state.sweep.model_copy(update={"slots": slots, "goal": None})
        return replace(self, state=replace(self.state, sweep=sweep))


def plan_sweep(
    config: Config,
    name: str,
    results: Path,
    *,
    limit_minutes: float = math.inf,
    limit_gpus: float = math.inf,
    limit_jobs: float = math.inf,
    fixed_minutes: float | None = None,
    gpu_models: Sequence[str] = (),
    fold: Fold | None = None,
) -> Plan:
    """The plan of a sweep, from the config and from its dataset and journal in `results`.

    No job may take longer than `limit_minutes`; with a goal, all together request at most `limit_gpus`; `jobs: auto` is
    at most `limit_jobs`. With `fixed_minutes`, each requests this walltime. Durations are those on `gpu_models`, of
    which a job gets one; empty if that is unknown. A caller that plans repeatedly passes the `fold` of the journal,
    which then reads new lines only.
    """
    sweep = config.sweeps[name]
    state = read_state(sweep, name, results, gpu_models=gpu_models, fold=fold)
    return Plan(
        state,
        limit_minutes=limit_minutes if fixed_minutes is None else fixed_minutes,
        limit_gpus=limit_gpus,
        limit_jobs=limit_jobs,
        fixed_minutes=fixed_minutes,
        price=config.pricing.per_hour(sweep.slots.unit),
    )


def read_state(
    sweep: Sweep, name: str, results: Path, *, gpu_models: Sequence[str] = (), fold: Fold | None = None
) -> SweepState:
    """The state of a sweep, from its dataset and journal in `results`. `gpu_models` as in `plan_sweep`."""
    folder = results / "sweeps" / name
    known = (fold or Fold(folder)).update()
    fractions = [each for each in known.gpu_fractions.values() if (each.mps or "off") == sweep.slots.mps]
    if gpu_models:
        fractions = [each for each in fractions if each.gpu_model in (None, *gpu_models)]
    state = SweepState(
        name,
        sweep,
        TrialSpace(sweep, dataset_digest(results, sweep), known.suggested),
        folder,
        attempts=group_by_trial(known.attempts.values()),
        sessions=known.sessions,
        takeovers=dict(known.claims.takeovers),
        requests=known.claims.requests,
        flops=dict(known.flops),
        submissions=list(known.submissions),
        measured=max(fractions, key=lambda each: each.time, default=None),
        gpu_models=tuple(gpu_models),
        budgets_reached=known.budgets_reached,
    )
    for trial in state.space.optional:
        if state.result(trial) is None:
            del state.trials[trial]
    return state


def dataset_digest(results: Path, study: Sweep | Scaling | Trees) -> str:
    """The digest of a study's staged dataset; a constant if it has none or it is not staged."""
    if study.dataset is None:
        return "no dataset"
    try:
        return read_meta(results / "data" / study.dataset).digest
    except MissingResultError:
        return NOT_STAGED
