"""The driver of a sweep: it starts Ray and runs the pending trials on its slots."""

import logging
import os
import time
from collections import deque
from collections.abc import Callable, Set
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from trainyard.cluster import host, slurm_allocation
from trainyard.cluster.gpus import has_gpu, run_mps
from trainyard.cluster.job_memory import record_memory
from trainyard.cluster.node_folders import copy_patterns, remove_copies_at_exit
from trainyard.cluster.ray.start import RayEndedError, RunningRay, start_ray
from trainyard.cluster.ray.worker_parent import WorkerParent, prepared_parent
from trainyard.cluster.slurm_queries import list_user_jobs, run_slurm_command
from trainyard.config.config import Config, Data
from trainyard.config.load import config_copy
from trainyard.config.sweep import CommandSweep, ProgramSweep, Slots, TrainSweep
from trainyard.config.trial_status import FINAL
from trainyard.config.trials import trainings
from trainyard.config.user_programs import GRACE_SECONDS
from trainyard.data.staged import Staged
from trainyard.packing.completeness import warn_unreadable
from trainyard.packing.failure_policy import FailurePolicy
from trainyard.packing.gpu_fraction import GpuFractionMeasurement
from trainyard.packing.live_view import LiveView
from trainyard.packing.messages import TRAINING_MODULES, WORKER_MODULES, WorkerSetup
from trainyard.packing.saved_outputs import record_completed, reparse_continued, reparse_output, reparse_outputs
from trainyard.packing.session_watch import SessionWatch
from trainyard.packing.shared_order import GivenUpError, SharedOrder, run_of_snakemake
from trainyard.packing.trial_queue import Predict, TimeLimits
from trainyard.packing.worker_gpu import GpuUse
from trainyard.planning import trial_flops
from trainyard.planning.added_trials import add_trials, announce_config
from trainyard.planning.attempts import Attempt, Fold, slurm_job_of
from trainyard.planning.duration_model import Prediction
from trainyard.planning.job_costs import summarize_plan
from trainyard.planning.job_marks import CANCELLED, COMPLETE, DONE, JOBS, read_mark, set_mark
from trainyard.planning.journal import (
    SESSIONS,
    Ended,
    FlopsCounted,
    Journal,
    RayStarted,
    SessionStarted,
    TrialEvent,
)
from trainyard.planning.memory_request import measured_processes
from trainyard.planning.plan import Plan, plan_sweep
from trainyard.planning.search import SuggestionSource
from trainyard.planning.sweep_state import Task, TaskSource, TrialSpace
from trainyard.programs.user_environment import (
    RECORD,
    code_record,
    find_interpreter,
    record_environment,
)
from trainyard.results.retention import Retention
from trainyard.scaling.launchers import check_allocation
from trainyard.utils.environment_variables import environment_variables
from trainyard.utils.errors import UserError
from trainyard.utils.text import count_of

if TYPE_CHECKING:  # it imports Ray
    from trainyard.packing.packer import Packer

RAY_STARTS: Final = 4  # at most, in one job: then the cause is not an accident
COUNTING_SECONDS: Final = 10.0  # limit for counting FLOPs, while the GPUs are idle
log = logging.getLogger(__name__)


def run_sweep(config: Config, name: str, results: Path, *, order_job: int | None = None) -> Plan:
    """Run the pending trials of a sweep; returns the plan afterwards, whether or not all trials have a result.

    `order_job` is the number of this job if the sweep has several: then it ends without waiting for the others.

    Raises:
        UserError: the sweep cannot go on.
    """
    begun = announce_config(config, name, results)
    while True:
        try:
            return _run_session(config, name, results, order_job, begun=begun)
        except GivenUpError as error:
            log.warning("%s; beginning again", error)
            slurm_allocation.refresh_allocation()  # the job may have been suspended


def _run_session(config: Config, name: str, results: Path, order_job: int | None, *, begun: int) -> Plan:
    """Run pending trials in a new session. `begun`: the entry of the log after which others may add trials."""
    folder = results / "sweeps" / name
    with (
        Journal.of_new_session(folder, order_job=order_job or 0) as journal,
        SessionWatch(folder / SESSIONS, journal.session) as watch,
    ):
        fold = Fold(folder).update()

        def find_config() -> Config:
            return add_trials(config, name, results, fold.claims.requests, after=begun)

        try:
            while True:
                before = len(fold.claims.entries)
                plan, order = _run_until_done(journal, watch, fold, find_config, name, results)
                if order.has_work() and len(fold.claims.entries) > before:  # others have given trials back
                    continue
                if order_job is not None or not (others := order.describe_others()):
                    break
                _await_others(order, f"sweep {name}: its last trials run in {others}")
            if reparse_continued(journal, plan.state):  # a worker was killed before it had reported all rows
                plan = _plan_now(find_config(), name, results, fold)
        finally:
            journal.leave(has_claims=journal.session in fold.claims.sessions)
    digests = {plan.state.space.digest, TrialSpace(config.sweeps[name], plan.state.space.dataset_digest).digest}
    if order_job is not None:  # Snakemake touches it; if it has another config by now, it looks whether this job has it
        set_mark(folder, DONE.format(job=order_job), digests)
    if (order_job is not None or len(digests) > 1) and order.is_complete():
        set_mark(folder, COMPLETE, digests)
    if order_job is not None and order.is_taken():
        _cancel_queued(folder, order_job, order.claiming_jobs())
    return plan


def _cancel_queued(folder: Path, order_job: int, claiming: Set[str]) -> None:
    """Cancel the pending jobs of this sweep: each would start on GPUs that this job frees, find no trial, and end.

    `claiming` are the jobs that have taken the trials that are left. If one of them does not run, nothing is cancelled:
    it may have been requeued.
    """
    if (job := slurm_allocation.job_id()) == "local":
        return
    try:
        listed = list_user_jobs()
        own = next((each for each in listed if each.job == job and each.is_of_sweep(folder.name, order_job)), None)
        if own is None or not claiming <= {each.job for each in listed if each.state == "RUNNING"}:
            return
        of_sweep = (each for each in listed if each.folder == own.folder and each.shares_sweep_with(own.comment))
        if jobs := [each.job for each in of_sweep if each.state == "PENDING"]:
            set_mark(folder, CANCELLED, {*read_mark(folder / JOBS / CANCELLED), *jobs})
            run_slurm_command("scancel", "--state=PENDING", *jobs)
            log.info("all trials are taken; cancelled the pending jobs of this sweep: %s", ", ".join(jobs))
    except UserError as error:
        log.warning("%s", error)


def _await_others(order: SharedOrder, what: str) -> None:
    """Wait until another process that runs trials has ended. If none is in this job of Slurm, GPUs would be idle.

    Raises:
        UserError: they would.
    """
    if slurm_allocation.current_allocation() and not order.others_are_here():
        raise UserError(f"{what}: wait until they end, then run the same command, which takes their results")
    log.info("%s: waiting for them", what)
    order.await_end()


def _run_until_done(
    journal: Journal, watch: SessionWatch, fold: Fold, find_config: Callable[[], Config], name: str, results: Path
) -> tuple[Plan, SharedOrder]:
    """Run the pending trials, also if Ray ends meanwhile. `find_config` returns the config with what it has gained."""
    for left in reversed(range(RAY_STARTS)):
        try:
            return _run(journal, watch, fold, find_config, name, results)
        except RayEndedError as error:
            if not left:
                raise
            log.warning("%s; starting Ray again", error)
    raise AssertionError("the last start returns or raises")


def _run(
    journal: Journal, watch: SessionWatch, fold: Fold, find_config: Callable[[], Config], name: str, results: Path
) -> tuple[Plan, SharedOrder]:
    """Run the pending trials that this session may run; returns the plan afterwards."""

    def plan_now() -> Plan:
        return _plan_now(find_config(), name, results, fold.update())

    plan = plan_now()
    sweep = plan.state.sweep
    parent = None
    if plan.state.unfinished:  # the parent of the workers imports what they need during the rest of the preparation
        if sweep.slots.nodes_per_trial > 1:
            check_allocation(sweep.slots.scale, slurm_allocation.current_allocation())
        trains = isinstance(sweep, TrainSweep) and sweep.slots.ranks == 1  # in the workers themselves
        modules = [*WORKER_MODULES, *(TRAINING_MODULES if trains else ())]
        parent = prepared_parent(modules, threads=sweep.slots.cpus_per_trial)
    plan = _fix_slots(plan)
    if isinstance(sweep, TrainSweep):
        Staged(results / "data" / sweep.dataset).check_images()
    find_interpreter(sweep)  # an environment that does not exist is an error before Ray starts
    on_cpus = slurm_allocation.job_id() == "local" and not has_gpu()
    log.info(summarize_plan(plan, on_cpus=on_cpus))
    order = SharedOrder(plan.state, journal, watch, fold, find_sweep=lambda: find_config().sweeps[name])
    if not order.has_work():
        order.await_others()
    plan = _fix_slots(plan_now())
    if record_completed(journal, plan.state, plan.state.unfinished):
        plan = _fix_slots(plan_now())
    if plan.state.to_reparse or plan.state.to_reparse_first:
        is_for_trials = bool(plan.forecast.pending)  # before the fold, whose attempts are the state's, reads more
        reparse_outputs(journal, plan.state)
        plan = _fix_slots(plan_now())
        if not is_for_trials:
            _check_can_run(plan)
    order.use(plan.state)
    if plan.forecast.pending and order.has_work():
        if plan.state.sweep.required_metrics:  # search and early stopping depend on them
            warn_unreadable(plan.state)
        if fold.run_of(journal.session) is None:
            _record_session(journal, plan, config_copy(find_config(), results).stem)
        _run_pending(plan, journal, order, results, find_config(), parent)
        if sweep.has_changed_code():
            log.warning("`code` has changed since this job started: the trials that started later may have used it")
    plan = plan_now()
    order.use(plan.state)
    return plan, order


def _plan_now(config: Config, name: str, results: Path, fold: Fold) -> Plan:
    """The plan for the GPUs of this job."""
    slots, allocation = config.sweeps[name].slots, slurm_allocation.current_allocation()
    model = allocation.gpu_model if allocation and slots.has_gpus else "cpu" if not slots.has_gpus else ""
    return plan_sweep(config, name, results, gpu_models=[model] if model else [], fold=fold)


def _fix_slots(plan: Plan) -> Plan:
    """The plan with the number of slots that it chose, or the one for which Slurm allocated GPUs or CPUs."""
    slots, allocation = plan.request.slots, slurm_allocation.current_allocation()
    if plan.state.sweep.goal and plan.forecast.pending and allocation:
        given = {"gpus_per_node": allocation.gpus_per_node}
        if not slots.has_gpus:
            fitting = max(1, allocation.cpus_per_node // slots.cpus_per_trial)  # on a whole node, more than requested
            given = {"slots_per_node": min(fitting, plan.state.max_slots.slots_per_node)}
        slots = slots.model_copy(update=given)
    if slots.jobs == "auto" and not allocation:
        slots = slots.model_copy(update={"jobs": 1})
    return plan.with_slots(slots)


def _check_can_run(found: Plan) -> None:
    """Check that no trial must run after outputs were read again, in a job that was requested only for the tables.

    Raises:
        UserError: one must, and a job of Slurm has no GPU, and minutes of walltime.
    """
    if found.forecast.pending and slurm_allocation.current_allocation():
        count = count_of(len(found.forecast.pending), "trial")
        raise UserError(
            f"sweep {found.state.name}: {count} must run again by the output as it is read now, and this job was "
            "requested only to read it: the same command requests the rest, and so do Snakemake's retries"
        )


def _run_pending(
    plan: Plan, journal: Journal, order: SharedOrder, results: Path, config: Config, parent: WorkerParent | None
) -> None:
    """Start Ray, run the pending trials on its slots, and shut it down."""
    slots, folder = plan.state.sweep.slots, results / "sweeps" / plan.state.name
    counted, _ = measured_processes(config.sweeps[plan.state.name], slots)
    view = LiveView(plan)
    log.info("starting Ray with %s", count_of(slots.count, "slot"))
    flops = _count_flops(plan, results)  # while Ray starts
    with (
        environment_variables({RECORD: os.environ.get(RECORD) or record_environment()}),  # before Ray adds its own
        remove_copies_at_exit(config.data.local),
        record_memory(folder, processes=counted, order_job=journal.order_job),
        run_mps(slots.uses_mps),
        start_ray(
            gpus=slots.gpus_per_node,
            cpus=slots.cpus_per_node,
            cleanup=copy_patterns(config.data.local),
            parent=parent,
        ) as running,
        view.show(),
    ):
        journal.record(RayStarted(spent=running.seconds))
        _run_trials(plan, journal, order, flops, _worker_setup(plan, results, config.data), view, running)


def _record_session(journal: Journal, plan: Plan, config_digest: str) -> None:
    sweep, slots = plan.state.sweep, plan.state.sweep.slots
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
            **code_record(sweep, config=config_digest),
            slots=slots.count,
            nodes=slots.nodes_per_trial,
            gpus=slots.gpus,
            cpus=None if slots.has_gpus else slots.units,
            gpus_per_trial=slots.share,
            walltime_seconds=allocation.walltime_seconds if allocation else None,
            lead_seconds=max(0.0, time.time() - timed.start_time) if timed else None,
            pending=len(plan.forecast.pending),
            predicted_seconds=plan.request.predicted_seconds,
            predicted_low_seconds=plan.request.predicted_range and plan.request.predicted_range[0],
            predicted_high_seconds=plan.request.predicted_range and plan.request.predicted_range[1],
        )
    )


def _run_trials(
    plan: Plan,
    journal: Journal,
    order: SharedOrder,
    flops: Future[dict[str, float]],
    setup: WorkerSetup,
    view: LiveView,
    running: RunningRay,
) -> None:
    """Run the pending trials. With `gpus_per_trial: auto`, measure first how many should share a GPU."""
    # It imports Ray, which without a parent of the workers reads on import the environment that `start_ray` sets.
    from trainyard.packing.packer import Packer, can_see_gpu

    if counted := flops.result():
        journal.record(FlopsCounted(flops=counted))
        plan = replace(plan, state=replace(plan.state, flops=counted))
    slots, allocation = plan.state.sweep.slots, slurm_allocation.current_allocation()
    limits = TimeLimits(allocation, setup.can_resume, setup.grace_seconds, setup.timeout_seconds)
    names = plan.forecast.to_run(slots.count, limit_seconds=limits.seconds_to_run())
    names = [name for name in names if order.may_run(name)]
    expected, least, most = plan.forecast.seconds, plan.forecast.min_seconds, plan.forecast.max_seconds
    tasks = [
        replace(task, expected_seconds=expected.get(name), min_seconds=least.get(name), max_seconds=most.get(name))
        for name, task in zip(names, map(plan.state.task, names), strict=True)
    ]
    sweep = plan.state.sweep
    retention = Retention(sweep, order.state_now) if isinstance(sweep, ProgramSweep) and sweep.keep != "all" else None
    tries = (attempt for name in plan.state.trials for attempt in plan.state.attempts_at(name))
    results = filter(None, map(plan.state.result, plan.state.trials))
    reread = partial(reparse_output, journal, plan.state)
    search = SuggestionSource(plan.state, order, reread=reread) if plan.state.sweep.search else None
    rule = plan.state.early_stopping_rule()
    failures = FailurePolicy(
        retries=plan.state.sweep.retries,
        has_succeeded=any(attempt.outcome in FINAL for attempt in tries),
        ignores_common_failures=plan.state.sweep.max_failed_fraction == 1,
        constant_keys=plan.state.constant_keys,
    )

    def note(event: TrialEvent, attempt: Attempt, *, elsewhere: bool = False) -> None:
        if rule and event.trial not in plan.state.space.further:
            rule.note(event, elsewhere=elsewhere)

    def note_elsewhere(event: TrialEvent, attempt: Attempt) -> None:
        view.note_elsewhere(event)
        note(event, attempt, elsewhere=True)
        if search:
            search.update(event, attempt)
        if isinstance(event, Ended) and event.trial in plan.state.trials:
            failures.note_elsewhere(attempt, plan.state.trials[event.trial].values)

    order.listener, order.note_added = note_elsewhere, view.add
    if plan.state.sweep.slots.most_jobs > 1:  # a trial has its retries once, in whichever jobs
        for name in plan.state.unfinished:
            for attempt in takewhile(lambda each: each.is_retried, reversed(plan.state.attempts_at(name))):
                failures.note_elsewhere(attempt, plan.state.trials[name].values)
    create = partial(
        Packer,
        journal,
        order,
        limits=limits,
        failures=failures,
        ray_has_ended=running.has_ended,
        gpu_model=allocation.gpu_model if allocation else "",
        rule=rule,
        monitored_metrics=plan.state.sweep.monitored_metrics,
        required_metrics=set(plan.state.sweep.required_metrics) - {name for each in results for name in each.metrics},
        predict=_predict_now(plan, order),
        may_end_early=plan.state.may_end_early,
        listeners=[view.update, note, *([search.update] if search else []), *([retention.note] if retention else [])],
    )
    if not plan.state.is_gpu_fraction_open:
        create(slots=slots, setup=setup, source=search).run(tasks)
    elif can_see_gpu():
        _measure_and_run(plan, tasks, journal, order, create=create, setup=setup)
    else:
        log.info("gpus_per_trial: auto is 1 here, because there is no GPU")
        create(slots=slots, setup=setup).run(tasks)


def _predict_now(plan: Plan, order: SharedOrder) -> Predict:
    """Predicts durations from all attempts that are known at the time of the call, also those of other jobs."""

    def predict(names: list[str], finished: dict[str, float]) -> Prediction | None:
        now = replace(plan.state, attempts=order.state_now().attempts)
        return replace(plan, state=now).forecast.predict(names, finished)

    return predict


def _measure_and_run(
    plan: Plan,
    tasks: list[Task],
    journal: Journal,
    order: SharedOrder,
    *,
    create: "Callable[..., Packer]",
    setup: WorkerSetup,
) -> None:
    """Run the tasks, the first ones with various shares of a GPU, and the others with the best of these."""

    def run(slots: Slots, source: TaskSource | None, tasks: list[Task]) -> list[GpuUse]:
        setup_there = replace(setup, gpu_share=slots.share)
        packer = create(slots=slots, setup=setup_there, source=source, measures_gpu=slots.share == 1)
        packer.run(tasks)
        return packer.gpu_uses

    waiting, slots = deque(tasks), plan.state.sweep.slots
    share = GpuFractionMeasurement(plan.state, journal.session, partial(run, tasks=[])).measure(waiting)
    if share:
        log.info("gpus_per_trial: auto: %s", share.why)
        journal.record(share)
        plan = replace(plan, state=replace(plan.state, measured=share))
        create = partial(create, predict=_predict_now(plan, order))
    if waiting:
        run(slots.model_copy(update={"gpus_per_trial": share.gpus_per_trial if share else 1.0}), None, list(waiting))


def _worker_setup(plan: Plan, results: Path, data: Data) -> WorkerSetup:
    sweep = plan.state.sweep
    program = sweep if isinstance(sweep, ProgramSweep) else None
    command = sweep if isinstance(sweep, CommandSweep) else None
    return WorkerSetup(
        folder=(results / "sweeps" / plan.state.name).absolute(),
        data=data,
        threads=sweep.slots.cpus_per_trial,
        gpu_share=sweep.slots.node_share,
        nodes=sweep.slots.nodes_per_trial,
        is_training=isinstance(sweep, TrainSweep),
        profile=sweep.profile if isinstance(sweep, TrainSweep) else None,
        is_deterministic=any(spec.deterministic for spec in trainings(sweep)),
        dataset=(results / "data" / sweep.dataset).absolute() if sweep.dataset else None,
        metrics=sweep.program_metrics,
        checkpoint=command.checkpoint if command else None,
        resume=command.resume if command else None,
        can_resume=sweep.can_resume,
        grace_seconds=sweep.trial_grace_seconds,
        end_seconds=command.grace_seconds if command else GRACE_SECONDS,
        timeout_seconds=60 * program.timeout_minutes if program and program.timeout_minutes else None,
        cwd=str(Path.cwd()),
        trial_workdirs=program is not None and program.workdir == "trial",
        python=find_interpreter(sweep),
    )


def _count_flops(plan: Plan, results: Path) -> Future[dict[str, float]]:
    """The FLOPs of the pending trials if nothing else determines their order, counted in another thread."""

    def count() -> dict[str, float]:
        if not trial_flops.is_needed(plan, plan.request.slots.count) or plan.state.sweep.dataset is None:
            return {}
        staged = Staged(results / "data" / plan.state.sweep.dataset)
        return trial_flops.count_trial_flops(plan, staged, own=False, seconds=COUNTING_SECONDS)

    pool = ThreadPoolExecutor(1)
    counted = pool.submit(count)
    pool.shutdown(wait=False)
    return counted
