"""What a session shares while it runs trials, and the only way of an event to those that follow the trials."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

from trainyard.cluster import slurm_allocation
from trainyard.packing.failure_policy import FailurePolicy
from trainyard.packing.live_view import LiveView
from trainyard.packing.messages import WorkerSetup
from trainyard.packing.time_limits import Clock, TimeLimits
from trainyard.packing.trial_claims import TrialClaims
from trainyard.planning.attempts import Attempt, Attempts, update_attempts
from trainyard.planning.early_stopping import EarlyStoppingRule
from trainyard.planning.history import History
from trainyard.planning.journal import Ended, Journal, TrialEvent
from trainyard.planning.plan import Plan
from trainyard.planning.search import SuggestionSource
from trainyard.planning.task import Task
from trainyard.planning.trial_space import is_placeholder
from trainyard.results.retention import Retention


class Consumer(Protocol):
    """Follows the trials of a sweep."""

    def on_event(self, event: TrialEvent, attempt: Attempt, *, is_own: bool) -> None:
        """Take up an event of this job or of another one, with its attempt as it is after the event."""


@dataclass
class SweepRun:
    """What the parts of a run share. `open_run` makes it, and every part gets it and nothing else."""

    state: History  # as it was planned; `TrialClaims.state_now` returns the present one
    journal: Journal
    claims: TrialClaims
    setup: WorkerSetup
    limits: TimeLimits
    failures: FailurePolicy
    rule: EarlyStoppingRule | None = None
    search: SuggestionSource | None = None
    consumers: Sequence[Consumer] = ()
    clock: Clock = time
    running: Attempts = field(default_factory=dict)  # of this job

    def record(self, event: TrialEvent, *, then: Callable[[], object] | None = None) -> Attempt:
        """Write an event of this job to the journal, and apply it. `then` is as in `Journal.record`."""
        event = self.journal.record(event, then=then)
        attempt = update_attempts(self.running, event)
        if isinstance(event, Ended):
            del self.running[event.trial, event.attempt]
        self.apply(event, attempt, is_own=True)
        return attempt

    def apply(self, event: TrialEvent, attempt: Attempt, *, is_own: bool) -> None:
        """Pass on an event that is in the journal of this job, or of another one."""
        for consumer in self.consumers:
            consumer.on_event(event, attempt, is_own=is_own)


def open_run(
    plan: Plan, journal: Journal, claims: TrialClaims, setup: WorkerSetup, view: LiveView, clock: Clock
) -> SweepRun:
    """Make what the parts of a run share. From now on, events of other jobs reach those that follow the trials."""
    state = plan.state
    sweep = state.sweep
    failures = FailurePolicy.of_sweep(state)
    rule = EarlyStoppingRule.of(state)
    search = None
    if sweep.search:
        search = SuggestionSource(state, claims)
    retention = None
    if sweep.kept_files != "all":
        retention = Retention(sweep.kept_files, claims.state_now)
    allocation = slurm_allocation.current_allocation()
    limits = TimeLimits(allocation, sweep.can_resume, sweep.trial_grace_seconds, sweep.timeout_seconds, clock)
    run = SweepRun(
        state=state,
        journal=journal,
        claims=claims,
        setup=setup,
        limits=limits,
        failures=failures,
        rule=rule,
        search=search,
        consumers=[each for each in (view, rule, search, failures, retention) if each],
        clock=clock,
    )
    claims.listener = partial(run.apply, is_own=False)
    claims.note_added = view.add
    return run


def planned_tasks(plan: Plan, claims: TrialClaims) -> list[Task]:
    """The tasks of the trials that this job may run, in the order in which they start."""
    forecast = plan.forecast
    tasks = list[Task]()
    for name in forecast.order(plan.state.sweep.slots.count):
        if not is_placeholder(name) and claims.may_run(name):
            task = replace(
                plan.state.task(name),
                expected_seconds=forecast.seconds.get(name),
                min_seconds=forecast.min_seconds.get(name),
                max_seconds=forecast.max_seconds.get(name),
            )
            tasks.append(task)
    return tasks
