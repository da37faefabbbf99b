"""The driver of a sweep: it starts Ray and runs the pending trials on its slots."""

import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Set
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from trainyard.cluster import host, slurm_allocation
from trainyard.cluster.gpus import has_gpu, run_mps
from trainyard.cluster.job_memory import record_memory
from trainyard.cluster.node_folders import copy_patterns, remove_copies_at_exit
from trainyard.cluster.ray.start import RayEndedError, start_ray
from trainyard.cluster.ray.worker_parent import WorkerParent, preload, prepared_parent
from trainyard.cluster.slurm_queries import list_user_jobs, run_slurm_command
from trainyard.config.config import Config, Data
from trainyard.config.load import config_copy
from trainyard.config.trials import trainings
from trainyard.config.user_programs import ProgramOptions
from trainyard.packing.live_view import LiveView
from trainyard.packing.messages import WORKER_MODULES, WorkerSetup
from trainyard.packing.saved_outputs import read_outputs, record_completed
from trainyard.packing.session_watch import SessionWatch
from trainyard.packing.sweep_run import open_run, planned_tasks
from trainyard.packing.trial_claims import TrialClaims, run_of_snakemake
from trainyard.packing.trial_kind import find_kind
from trainyard.planning.added_trials import add_trials, announce_config
from trainyard.planning.attempts import Fold, slurm_job_of
from trainyard.planning.job_costs import summarize_plan
from trainyard.planning.job_marks import CANCELLED, COMPLETE, DONE, JOBS, read_mark, set_mark
from trainyard.planning.journal import (
    SESSIONS,
    FlopsCounted,
    Journal,
    RayStarted,
    SessionStarted,
)
from trainyard.planning.memory_request import measured_processes
from trainyard.planning.plan import Plan, plan_sweep
from trainyard.planning.trial_space import TrialSpace
from trainyard.programs.node_setup import prepared_nodes
from trainyard.programs.user_environment import (
    RECORD,
    code_record,
    find_interpreter,
    record_environment,
    thread_variables,
    worker_threads,
)
from trainyard.results.completeness import warn_unreadable
from trainyard.utils.background import in_background
from trainyard.utils.environment_variables import Variables, environment_variables
from trainyard.utils.errors import UserError
from trainyard.utils.text import count_of

RAY_STARTS: Final = 4  # at most, in one job: then the cause is not an accident
COUNTING_SECONDS: Final = 10.0  # limit for counting FLOPs, while the GPUs are idle
# Ray imports pyarrow when it first sends a message; both import numpy.
NEEDED_WITH_RAY: Final = ("pyarrow", "trainyard.planning.duration_model")
log = logging.getLogger(__name__)


@contextmanager
def start_workers(
    plan: Plan, config: Config, parent: WorkerParent | None, *, order_job: int
) -> Iterator[tuple[Any, dict[str, float]]]:
    """Start Ray for the block; returns the workers of the slots, and the seconds of each step."""
    slots = plan.state.sweep.slots
    copies = config.data.local
    counted, _ = measured_processes(plan.state.sweep, slots)
    with (
        environment_variables({RECORD: os.environ.get(RECORD) or record_environment()}),  # before Ray adds its own
        remove_copies_at_exit(copies),
        record_memory(plan.state.folder, processes=counted, order_job=order_job),
        run_mps(slots.uses_mps),
        start_ray(
            gpus=slots.gpus_per_node,
            cpus=slots.cpus_per_node,
            cleanup=copy_patterns(copies),
            parent=parent,
        ) as running,
    ):
        from trainyard.packing.workers import Workers  # Ray reads on import the environment that `start_ray` sets

        yield Workers(slots, running.has_ended), running.seconds


StartWorkers = Callable[..., AbstractContextManager[tuple[Any, dict[str, float]]]]


@dataclass
class DriverSession:
    """A session of a sweep in this job, with what it needs to plan and run trials."""

    config: Config  # as it was at the start
    name: str  # of the sweep
    results: Path
    begun: int  # the entry of the log after which others may add trials
    journal: Journal
    watch: SessionWatch
    fold: Fold
    start_workers: StartWorkers
    resources: ExitStack  # held until its end

    @cached_property
    def variables(self) -> Variables:
        """The variables that the user's `setup` changes; it runs when they are first asked for.

        Raises:
            UserError: it failed.
        """
        sweep = self.config.sweeps[self.name]
        if not isinstance(sweep, ProgramOptions):
            return {}
        output = self.results / "sweeps" / self.name / "logs" / f"setup-{self.journal.session}.log"
        return next(iter(self.resources.enter_context(prepared_nodes(sweep, output)).values()), {})

    def find_config(self) -> Config:
        """The config with what it has gained."""
        return add_trials(self.config, self.name, self.results, self.fold.claims.requests, after=self.begun)

    def plan(self) -> Plan:
        """The plan for the GPUs of this job, with all that is recorded by now."""
        config = self.find_config()
        slots = config.sweeps[self.name].slots
        allocation = slurm_allocation.current_allocation()
        models = list[str]()
        if not slots.has_gpus:
            models = ["cpu"]
        elif allocation and allocation.gpu_model:
            models = [allocation.gpu_model]
        return plan_sweep(config, self.name, self.results, gpu_models=models, fold=self.fold.update())


def run_sweep(
    config: Config, name: str, results: Path, *, order_job: int | None = None, start: StartWorkers = start_workers
) -> Plan:
    """Run the pending trials of a sweep; returns the plan afterwards, whether or not all trials have a result.

    `order_job` is the number of this job if the sweep has several: then it ends without waiting for the others.

    Raises:
        UserError: the sweep cannot go on.
    """
    begun = announce_config(config, name, results)  # the entry of the log after which others may add trials
    folder = results / "sweeps" / name
    with (
        Journal.of_new_session(folder, order_job=order_job or 0) as journal,
        SessionWatch(folder / SESSIONS, journal.session) as watch,
        ExitStack() as resources,
    ):
        fold = Fold(folder).update()
        session = DriverSession(config, name, results, begun, journal, watch, fold, start, resources)
        try:
            while True:
                before = len(fold.claims.entries)
                plan, claims = _run_until_done(session)
                if claims.has_work() and len(fold.claims.entries) > before:  # others have given trials back
                    continue
                if order_job is not None or not (others := claims.describe_others()):
                    break
                _await_others(claims, f"sweep {name}: its last trials run in {others}")
            if read_outputs(journal, plan.state):  # a worker was killed before it had reported all rows
                plan = session.plan()
        finally:
            with suppress(UserError):  # an error that has ended the session is more important
                fold.commit(journal.session)
            journal.leave(has_claims=journal.session in fold.claims.sessions)
    digests = {plan.state.space.digest, TrialSpace(config.sweeps[name], plan.state.space.dataset_digest).digest}
    if order_job is not None:  # Snakemake touches it; if it has another config by now, it looks whether this job has it
        set_mark(folder, DONE.format(job=order_job), digests)
    if (order_job is not None or len(digests) > 1) and claims.is_complete():
        set_mark(folder, COMPLETE, digests)
    if order_job is not None and claims.is_taken():
        _cancel_queued(folder, claims.claiming_jobs())
    return plan


def _cancel_queued(folder: Path, claiming: Set[str]) -> None:
    """Cancel the pending jobs of this sweep: each would start on GPUs that this job frees, find no trial, and end.

    `claiming` are the jobs that have taken the trials that are left. If one of them does not run, nothing is cancelled:
    it may have been requeued.
    """
    if (job := slurm_allocation.job_id()) == "local":
        return
    try:
        listed = list_user_jobs()
        own = next((each for each in listed if each.job == job and each.is_of(folder.name)), None)
        if own is None or not claiming <= {each.job for each in listed if each.state == "RUNNING"}:
            return
        of_sweep = (each for each in listed if each.folder == own.folder and each.shares_sweep_with(own.comment))
        if jobs := [each.job for each in of_sweep if each.state == "PENDING"]:
            set_mark(folder, CANCELLED, {*read_mark(folder / JOBS / CANCELLED), *jobs})
            run_slurm_command("scancel", "--state=PENDING", *jobs)
            log.info("all trials are taken; cancelled the pending jobs of this sweep: %s", ", ".join(jobs))
    except UserError as error:
        log.warning("%s", error)


def _await_others(claims: TrialClaims, what: str) -> None:
    """Wait until another process that runs trials has ended. If none is in this job of Slurm, GPUs would be idle.

    Raises:
        UserError: they would.
    """
    if slurm_allocation.current_allocation() and not claims.others_are_here():
        raise UserError(f"{what}: wait until they end, then run the same command, which takes their results")
    log.info("%s: waiting for them", what)
    claims.await_end()


def _run_until_done(session: DriverSession) -> tuple[Plan, TrialClaims]:
    """Run the pending trials, also if Ray ends meanwhile."""
    for starts_left in reversed(range(RAY_STARTS)):
        try:
            return _run(session)
        except RayEndedError as error:
            if not starts_left:
                raise
            log.warning("%s; starting Ray again", error)
    raise AssertionError("the last start returns or raises")


def _run(session: DriverSession) -> tuple[Plan, TrialClaims]:
    """Run the pending trials that this session may run; returns the plan afterwards."""
    journal = session.journal
    fold = session.fold
    plan = session.plan()
    sweep = plan.state.sweep
    parent = None
    if plan.state.unfinished:  # the parent of the workers imports what they need during the rest of the preparation
        kind = find_kind(sweep)
        modules = [*WORKER_MODULES, kind.__module__, *kind.preload(sweep)]
        parent = prepared_parent(modules, thread_variables(sweep.slots.cpus_per_trial))
        kind.check_job(sweep, session.results / "data" / sweep.dataset if sweep.dataset else None)
    plan = _fix_slots(plan)
    find_interpreter(sweep)  # an environment that does not exist is an error before Ray starts
    on_cpus = slurm_allocation.job_id() == "local" and not has_gpu()
    log.info(summarize_plan(plan, on_cpus=on_cpus))
    claims = TrialClaims(
        plan.state, journal, session.watch, find_sweep=lambda: session.find_config().sweeps[session.name]
    )
    if not claims.has_work():
        claims.await_others()
    plan = _fix_slots(session.plan())
    if record_completed(journal, plan.state, plan.state.unfinished):
        plan = _fix_slots(session.plan())
    is_for_trials = bool(plan.forecast.pending)
    if read_outputs(journal, plan.state):
        plan = _fix_slots(session.plan())
        if not is_for_trials:
            _check_can_run(plan)
    claims.use(plan.state)
    if plan.forecast.pending and claims.has_work():
        if plan.state.sweep.required_metrics:  # search and early stopping depend on them
            warn_unreadable(plan.state)
        if fold.run_of(journal.session) is None:
            _record_session(session, plan)
        _run_pending(session, plan, claims, parent)
        if sweep.has_changed_code():
            log.warning("`code` has changed since this job started: the trials that started later may have used it")
    plan = session.plan()
    claims.use(plan.state)
    return plan, claims


def _fix_slots(plan: Plan) -> Plan:
    """The plan with the number of slots that it chose, or the one for which Slurm allocated GPUs or CPUs."""
    slots = plan.slots
    allocation = slurm_allocation.current_allocation()
    if plan.state.sweep.goal and plan.forecast.pending and allocation:
        allocated = {"gpus_per_node": allocation.gpus_per_node}
        if not slots.has_gpus:
            fitting = max(1, allocation.cpus_per_node // slots.cpus_per_trial)  # on a whole node, more than requested
            allocated = {"cpus": slots.cpus_per_trial * min(fitting, plan.state.sweep.slots.count)}
        slots = slots.model_copy(update=allocated)
    return plan.with_slots(slots)


def _check_can_run(plan: Plan) -> None:
    """Check that no trial must run after outputs were read again, in a job that was requested only for the tables.

    Raises:
        UserError: one must, and a job of Slurm has no GPU, and minutes of walltime.
    """
    if plan.forecast.pending and slurm_allocation.current_allocation():
        count = count_of(len(plan.forecast.pending), "trial")
        raise UserError(
            f"sweep {plan.state.name}: {count} must run again by the output as it is read now, and this job was "
            "requested only to read it: the same command requests the rest, and so do Snakemake's retries"
        )


def _run_pending(session: DriverSession, plan: Plan, claims: TrialClaims, parent: WorkerParent | None) -> None:
    """Start Ray, run the pending trials on its slots, and shut it down."""
    journal = session.journal
    config = session.find_config()
    variables = session.variables
    view = LiveView(plan)
    log.info("starting Ray with %s", count_of(plan.state.sweep.slots.count, "slot"))
    with (
        _preparing_in_thread(plan, session.results) as flops,
        environment_variables(worker_threads(plan.state.sweep.slots.cpus_per_trial, variables)),
        session.start_workers(plan, config, parent, order_job=journal.order_job) as (workers, spent),
        _shown(view),
    ):
        from trainyard.packing.trial_loop import TrialLoop  # it imports Ray

        journal.record(RayStarted(spent=spent))
        if counted := flops.result():
            journal.record(FlopsCounted(flops=counted))
            plan.state.flops |= counted
            plan = replace(plan)  # with another forecast
        setup = _worker_setup(plan, session.results, config.data, variables)
        run = open_run(plan, journal, claims, setup, view, workers.clock)
        TrialLoop(run, workers).run(planned_tasks(plan, claims))


def _shown(view: LiveView) -> AbstractContextManager[None]:
    """Show the table of a view during the block, if there is a terminal, and all log lines above it."""
    if not sys.stdout.isatty():
        return nullcontext()
    from trainyard.packing.live_table import shown_table  # imports rich

    return shown_table(view)


def _record_session(session: DriverSession, plan: Plan) -> None:
    journal = session.journal
    config = config_copy(session.find_config(), session.results).stem
    sweep = plan.state.sweep
    slots = plan.state.sweep.slots
    allocation = slurm_allocation.current_allocation()
    # A job may go on in another session, as after it was suspended; users start programs in allocations of their own.
    is_new_job = slurm_job_of(journal.session) not in {slurm_job_of(run.name) for run in plan.state.sessions}
    timed = allocation if allocation and allocation.is_of_workflow and is_new_job else None
    journal.record(
        SessionStarted(
            run=run_of_snakemake(plan.state),
            job=slurm_allocation.job_id(),
            node=host.node_name(),
            process=os.getpid(),
            code_digest=sweep.code_digest or None,
            **code_record(sweep, config=config),
            slots=slots.count,
            nodes=slots.nodes_per_trial,
            gpus=slots.gpus,
            cpus=None if slots.has_gpus else slots.units,
            walltime_seconds=allocation.walltime_seconds if allocation else None,
            lead_seconds=max(0.0, time.time() - timed.start_time) if timed else None,
            pending=len(plan.forecast.pending),
            predicted_seconds=plan.predicted_seconds,
            predicted_low_seconds=plan.predicted_range and plan.predicted_range[0],
            predicted_high_seconds=plan.predicted_range and plan.predicted_range[1],
        )
    )


def _worker_setup(plan: Plan, results: Path, data: Data, variables: Variables) -> WorkerSetup:
    sweep = plan.state.sweep
    return WorkerSetup(
        sweep=sweep.model_copy(update={"grid": {}, "trials": []}),  # which may be long; assignments have them
        folder=(results / "sweeps" / plan.state.name).absolute(),
        data=data,
        is_deterministic=any(spec.deterministic for spec in trainings(sweep)),
        dataset=(results / "data" / sweep.dataset).absolute() if sweep.dataset else None,
        cwd=str(Path.cwd()),
        variables=variables,
        python=find_interpreter(sweep),
    )


@contextmanager
def _preparing_in_thread(plan: Plan, results: Path) -> Iterator[Future[dict[str, float]]]:
    """Import what is needed once Ray has started, while it does. Then count the FLOPs of the pending trials.

    The result has none if something else determines the order of the trials. The end of the block waits for the thread,
    since torch aborts a process that ends while another thread computes; but not for ever, see `in_background`.
    """
    sweep = plan.state.sweep
    dataset = results / "data" / sweep.dataset if sweep.dataset else None

    def prepare() -> dict[str, float]:
        preload(NEEDED_WITH_RAY)
        return find_kind(sweep).count_flops(plan, dataset, seconds=COUNTING_SECONDS)

    counted = in_background(prepare)
    try:
        yield counted
    finally:
        wait([counted], timeout=COUNTING_SECONDS)
