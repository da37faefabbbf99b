"""The driver of a sweep: starts Ray, feeds its slots what is pending, and judges how the sweep ended."""

import logging
import os
import signal
import time
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from trainyard.cluster import host, slurm_allocation
from trainyard.config.config import Config, Data
from trainyard.config.sweep import Slots
from trainyard.config.trial_status import FINAL, TrialStatus
from trainyard.config.user_programs import metrics_digest
from trainyard.data.staged import Staged
from trainyard.packing.failure_policy import FailurePolicy
from trainyard.packing.gpu_sharing import Use, trials_per_gpu
from trainyard.planning import trial_flops
from trainyard.planning.attempts import Attempt
from trainyard.planning.forecast import summary
from trainyard.planning.journal import Ended, Journal, RayUp, Reread, SessionStarted, Share, TrialEvent, Work
from trainyard.planning.plan import Plan, plan_sweep
from trainyard.planning.task import Task
from trainyard.programs.command import Kept, blames_checkpoint
from trainyard.programs.metrics import UNREADABLE_REMEDY, Reading, divergence, read_again
from trainyard.utils.errors import UserError

if TYPE_CHECKING:
    from trainyard.packing.worker import Setting

COUNTING_SECONDS = 10.0  # for FLOPs, at most: GPUs are waiting
log = logging.getLogger(__name__)


def run(config: Config, name: str, results: Path, *, wait_seconds: float = 0.0) -> Plan:
    """Train what is pending of a sweep; the plan as it stands then, whether or not all trials have a result.

    Raises:
        LockHeldError: another process works on the sweep, and still does after `wait_seconds`.
        UserError: the sweep cannot go on.
    """
    with Journal.opened(results / "sweeps" / name / "journal.jsonl", wait_seconds=wait_seconds) as journal:
        plan = _as_given(plan_sweep(config, name, results))
        _check(plan, results)
        log.info(summary(plan))
        _close_open_attempts(journal, plan)
        if plan.to_reread:
            _read_again(journal, plan)
            plan = _as_given(plan_sweep(config, name, results))
        if plan.pending:
            if plan.sweep.required_metrics:  # what is drawn and stopped goes by them
                _say_unreadable(plan)
            _train(plan, journal, results, how=config.data)
        return plan_sweep(config, name, results)


def _as_given(plan: Plan) -> Plan:
    """The plan on the slots that it chose, or those for which Slurm has given GPUs."""
    slots, given = plan.slots, slurm_allocation.current_allocation()
    if slots.auto and given:
        slots = slots.model_copy(update={"nodes": len(given.nodes), "gpus_per_node": given.gpus_per_node})
    fixed = slots.model_copy(update={"auto": False})
    return replace(plan, sweep=plan.sweep.model_copy(update={"slots": fixed}))


def _check(plan: Plan, results: Path) -> None:
    """What can be found wrong before Ray is started."""
    if plan.sweep.dataset and plan.sweep.is_training:
        Staged(results / "data" / plan.sweep.dataset).check_images()
    plan.check_retrain()


def _close_open_attempts(journal: Journal, plan: Plan) -> None:
    """Attempts that an earlier driver was killed in the middle of end with the last that was heard of them."""
    for tries in plan.tries.values():
        for attempt in tries:
            if attempt.outcome == TrialStatus.RUNNING:
                status = TrialStatus.INTERRUPTED
                journal.record(Ended(trial=attempt.trial, attempt=attempt.number, status=status, ended=attempt.end))


def _read_again(journal: Journal, plan: Plan) -> None:
    """Apply the `metrics` that there are now to what commands have left, without running anything."""
    heard, warnings, found = metrics_digest(plan.sweep.metrics), dict[str, str](), 0
    for attempt in plan.to_reread:
        output = plan.output_of(attempt)
        reading = read_again(plan.sweep.metrics, output.parent, output, seconds=attempt.seconds or 0.0)
        found += not reading.untold
        if reading.warning:
            warnings.setdefault("pattern", f"trial {attempt.trial}: {reading.warning}")
        if reading.untold and attempt.outcome != TrialStatus.UNREADABLE:
            warnings.setdefault("kept", f"trial {attempt.trial}, as it is read now: {reading.untold}; see {output}. Of "
                                "it and others alike, the metrics that were read before are kept")  # fmt: skip
            continue
        outcome, error = _outcome(plan, attempt, reading)
        if (outcome, error, heard) != (attempt.outcome, attempt.error, attempt.metrics_digest):
            journal.record(
                Reread(
                    trial=attempt.trial,
                    attempt=attempt.number,
                    outcome=outcome,
                    error=error,
                    rows=reading.rows,
                    metrics=reading.metrics,
                    heard=heard,
                )
            )
    for warning in warnings.values():
        log.warning("%s", warning)
    log.info("%d of %d kept outputs could be read again; nothing was run for that", found, len(plan.to_reread))


def _outcome(plan: Plan, attempt: Attempt, reading: Reading) -> tuple[TrialStatus, str]:
    """How an attempt ended by what its output tells now; and what is to be said of that."""
    if attempt.outcome == TrialStatus.STOPPED:
        return attempt.outcome, attempt.error
    if reading.untold:
        return TrialStatus.UNREADABLE, reading.untold
    if diverged := divergence(reading.metrics, plan.sweep.monitored_metrics):
        return TrialStatus.DIVERGED, diverged
    return (TrialStatus.STOPPED, attempt.early) if attempt.early else (TrialStatus.FINISHED, "")


def _train(plan: Plan, journal: Journal, results: Path, *, how: Data) -> None:
    """Start Ray, feed its slots until nothing is pending, and take it down."""
    from trainyard.cluster.held_folders import remove_copies_at_exit
    from trainyard.cluster.ray_job import start_ray
    from trainyard.packing.live_view import Progress  # these take a second to import: only where there is work

    slots, given = plan.sweep.slots, slurm_allocation.current_allocation()
    journal.record(
        SessionStarted(
            job=slurm_allocation.job_id(),
            node=host.node_name(),
            process=os.getpid(),
            slots=slots.count,
            nodes=slots.nodes,
            gpus=slots.gpus,
            gpus_per_trial=slots.share,
            walltime_seconds=given.walltime_seconds if given else None,
            lead_seconds=max(0.0, time.time() - given.start_time) if given else None,
            pending=len(plan.pending),
            predicted_seconds=plan.predicted_seconds,
            predicted_low_seconds=plan.predicted_range and plan.predicted_range[0],
            predicted_high_seconds=plan.predicted_range and plan.predicted_range[1],
        )
    )
    progress = Progress(plan)
    log.info("starting Ray with %d slots", slots.count)
    folder = results / "sweeps" / plan.name
    counting = _work_counted(plan, results)  # while Ray starts
    with (
        remove_copies_at_exit(how.local),
        start_ray(slots, folder=folder, local=how.local) as cluster,
        progress.shown(),
    ):
        # A polite end is recorded, whoever asks. Not before: Ray installs a handler of its own that skips clean-up.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        journal.record(RayUp(spent=cluster.startup_seconds))
        from trainyard.packing.packer import (  # Ray reads its environment when it is imported: not before
            Packer,
            gpu_is_seen,
        )
        from trainyard.planning.search import SuggestionSource

        if flops := counting.result():
            journal.record(Work(flops=flops))
            plan = replace(plan, work=flops)
        tasks = [_task(plan, name) for name in plan.to_run]
        source = SuggestionSource(plan, journal) if plan.sweep.search else None

        def hear(event: TrialEvent) -> None:
            progress.see(event)
            if source:
                source.see(event)

        packer = partial(
            Packer,
            journal,
            failures=_failure_policy(plan),
            allocation=given,
            rule=plan.rule(),
            metrics=plan.sweep.monitored_metrics,
            untold=set(plan.sweep.required_metrics) - _told(plan),
            predict=partial(_predict, plan),
            on_event=hear,
        )
        setting = _setting(plan, results, how)
        if not plan.shares_open:
            packer(slots=slots, setting=replace(setting, share=plan.found_share), source=source).run(tasks)
            return
        first, rest = tasks[: slots.count], tasks[slots.count :]
        with_gpus = gpu_is_seen()
        looking = packer(slots=slots, setting=setting, look=with_gpus)
        looking.run(first if with_gpus else tasks)
        if not with_gpus:
            log.info("gpus_per_trial: auto is 1 here, for there is no GPU")
        elif rest:
            shared = _shared(slots, looking.uses, journal)
            packer(slots=shared, setting=replace(setting, share=shared.share)).run(rest)


def _failure_policy(plan: Plan) -> FailurePolicy:
    tries = (attempt for name in plan.trials for attempt in plan.tries.get(name, ()))
    has_succeeded = any(attempt.outcome in FINAL for attempt in tries)
    patient = plan.sweep.max_failed_fraction == 1
    return FailurePolicy(retries=plan.sweep.retries, has_succeeded=has_succeeded, patient=patient)


def _told(plan: Plan) -> set[str]:
    """The metrics that the results so far tell."""
    return {metric for name in plan.trials if (result := plan.result(name)) for metric in result.metrics}


def _task(plan: Plan, name: str) -> Task:
    """A trial as it is handed out."""
    trial, tries = plan.trials[name], plan.tries.get(name, ())
    failed = [each for each in tries if each.outcome == TrialStatus.FAILED and each.resumed]
    bad = tuple(Kept(**each.resumed) for each in failed if blames_checkpoint(each.error))
    return Task(name, trial.spec, trial.values, plan.generation(name), len(tries), plan.seconds.get(name), bad,
                plan.least_seconds.get(name))  # fmt: skip


def _setting(plan: Plan, results: Path, how: Data) -> "Setting":
    """What all trials have in common."""
    from trainyard.packing.worker import Setting  # it imports Ray

    sweep = plan.sweep
    return Setting(
        folder=(results / "sweeps" / plan.name).absolute(),
        how=how,
        threads=sweep.slots.cpus_per_trial,
        trains=sweep.is_training,
        dataset=(results / "data" / sweep.dataset).absolute() if sweep.dataset else None,
        metrics=sweep.metrics,
        checkpoint=sweep.checkpoint,
        resume=sweep.resume,
        resumes=sweep.can_resume,
        grace_seconds=sweep.trial_grace_seconds,
        timeout_seconds=60 * sweep.timeout_minutes if sweep.timeout_minutes else None,
        cwd=str(Path.cwd()),
    )


def _shared(slots: Slots, uses: list[Use], journal: Journal) -> Slots:
    """The slots on which the other trials run, now that it is known what the first ones took of their GPUs."""
    count = trials_per_gpu(uses, most=slots.trials_per_gpu)
    found = slots.model_copy(update={"gpus_per_trial": 1 / count})
    if uses:
        most = max(uses, key=lambda use: use.peak_mib)
        log.info("%d trials share a GPU from now on: the largest took %s", count, most)
        seen = [asdict(use) for use in uses]
        journal.record(Share(gpus_per_trial=found.share, slots=found.count, uses=seen))
    return found


def _work_counted(plan: Plan, results: Path) -> Future[dict[str, float]]:
    """FLOPs of the pending trials, where nothing else tells which takes longest; counted beside what follows."""

    def count() -> dict[str, float]:
        if not trial_flops.is_needed(plan, plan.slots.count) or plan.sweep.dataset is None:
            return {}
        staged = Staged(results / "data" / plan.sweep.dataset)
        return trial_flops.count_work(plan, staged, own=False, seconds=COUNTING_SECONDS)

    pool = ThreadPoolExecutor(1)
    counted = pool.submit(count)
    pool.shutdown(wait=False)
    return counted


def _predict(plan: Plan, names: list[str], finished: dict[str, float]) -> list[tuple[float, float]]:
    """Seconds of trials, as expected and at least, now that some others have finished."""
    prediction = plan.predict(names, finished)
    if prediction is None:
        return [(0.0, 0.0)] * len(names)
    return list(zip(prediction.seconds.tolist(), prediction.least().tolist(), strict=True))


def check_results(plan: Plan) -> None:
    """Say what failed, and see that a sweep is done and worth its tables.

    Raises:
        UserError: it is not.
    """
    _say_unreadable(plan)
    failed = [name for name in plan.pending if plan.tries.get(name, ())]
    for name in failed[:5]:
        attempt = plan.tries[name][-1]
        log.error("trial %s failed: %s; see %s", name, attempt.error, attempt.log)
    if (failed and plan.sweep.on_failed_trial == "stop") or len(failed) < len(plan.pending):
        raise UserError(f"sweep {plan.name}: {len(plan.pending)} of {len(plan.trials)} trials are without a result; "
                        "the others are kept: correct what is wrong and run the same command")  # fmt: skip
    ends = _ends(plan)
    _check_enough_succeeded(plan, failed, ends[TrialStatus.FINISHED] + ends[TrialStatus.STOPPED])


def how_it_ended(plan: Plan) -> str:
    """How many trials finished, were stopped early, diverged, and failed, in words."""
    ends, failed = _ends(plan), sum(name in plan.tries for name in plan.pending)
    words = f", {ends[TrialStatus.STOPPED]} stopped early" if plan.sweep.stop else ""
    words += f", {ends[TrialStatus.DIVERGED]} diverged" if ends[TrialStatus.DIVERGED] else ""
    words += f", {ends[TrialStatus.UNREADABLE]} without metrics" if ends[TrialStatus.UNREADABLE] else ""
    return f"sweep {plan.name}: {ends[TrialStatus.FINISHED]} trials finished{words}, {failed} failed"


def _ends(plan: Plan) -> Counter[TrialStatus]:
    return Counter(end.outcome for name in plan.trials if (end := plan.end(name)))


def _check_enough_succeeded(plan: Plan, failed: list[str], results: int) -> None:
    """See that a sweep is worth its tables.

    Raises:
        UserError: no trial has a result, or more have failed than the config allows.
    """
    total, limit = len(plan.trials), plan.sweep.max_failed_fraction
    if results and len(failed) <= limit * total:
        return
    if not failed:
        raise UserError(f"sweep {plan.name}: all {total} trials diverged, so there is no result: try a lower lr, or "
                        "correct what is wrong and raise `retrain`")  # fmt: skip
    cause, count = Counter(plan.tries[name][-1].error for name in failed).most_common(1)[0]
    allow = f", or raise `max_failed_fraction`, which is {limit:g}" if results else ""
    raise UserError(f"sweep {plan.name}: {len(failed)} of {total} trials failed for good, {count} of them with: "
                    f"{cause}. Results so far ({results}) are kept: correct the cause and run the same command, which "
                    f"tries the failed ones again{allow}")  # fmt: skip


def _say_unreadable(plan: Plan) -> None:
    """Warn of trials that told no metrics.

    Raises:
        UserError: no trial told any, or the sweep is to stop with one that has none.
    """
    unreadable = [each for name in plan.trials if (each := plan.unreadable(name))]
    if not unreadable:
        return
    first, count = unreadable[0], f"{len(unreadable)} of {len(plan.trials)}"
    said = (f"sweep {plan.name}: {count} trials have no metrics; the first, {first.trial}: {first.error}; see "
            f"{plan.output_of(first)}. {UNREADABLE_REMEDY}")  # fmt: skip
    if plan.sweep.on_failed_trial == "stop" or not any(plan.result(name) for name in plan.trials):
        raise UserError(said)
    log.warning("%s", said)
