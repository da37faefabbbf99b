"""Whether the results of a sweep are complete enough for its tables."""

import logging
from collections import Counter

from trainyard.config.trial_status import TrialStatus
from trainyard.planning.plan import Plan
from trainyard.programs.metrics import UNREADABLE_REMEDY
from trainyard.utils.errors import UserError

SHOWN_FAILURES = 5
log = logging.getLogger(__name__)


def check_sweep(plan: Plan) -> None:
    """Log what failed, and check that the results are complete enough.

    Raises:
        UserError: they are not.
    """
    warn_unreadable(plan)
    failed = [name for name in plan.pending if plan.tries.get(name, ())]
    for name in failed[:SHOWN_FAILURES]:
        attempt = plan.tries[name][-1]
        log.error("trial %s failed: %s; see %s", name, attempt.error, attempt.log)
    if (failed and plan.sweep.on_failed_trial == "stop") or len(failed) < len(plan.pending):
        raise UserError(
            f"sweep {plan.name}: {len(plan.pending)} of {len(plan.trials)} trials are without a result; "
            "the others are kept: correct what is wrong and run the same command"
        )
    counts = _count_ends(plan)
    _check_enough_succeeded(plan, failed, counts[TrialStatus.FINISHED] + counts[TrialStatus.STOPPED])


def summarize_sweep(plan: Plan) -> str:
    """How many trials finished, were stopped early, diverged, and failed: one line."""
    counts, failed = _count_ends(plan), sum(name in plan.tries for name in plan.pending)
    parts = f", {counts[TrialStatus.STOPPED]} stopped early" if plan.sweep.stop else ""
    parts += f", {counts[TrialStatus.DIVERGED]} diverged" if counts[TrialStatus.DIVERGED] else ""
    parts += f", {counts[TrialStatus.UNREADABLE]} without metrics" if counts[TrialStatus.UNREADABLE] else ""
    return f"sweep {plan.name}: {counts[TrialStatus.FINISHED]} trials finished{parts}, {failed} failed"


def _count_ends(plan: Plan) -> Counter[TrialStatus]:
    return Counter(end.outcome for name in plan.trials if (end := plan.end(name)))


def _check_enough_succeeded(plan: Plan, failed: list[str], result_count: int) -> None:
    """Check that there is a result, and that not more trials failed than the config allows.

    Raises:
        UserError: one of these is not so.
    """
    total, limit = len(plan.trials), plan.sweep.max_failed_fraction
    if result_count and len(failed) <= limit * total:
        return
    if not failed:
        raise UserError(
            f"sweep {plan.name}: all {total} trials diverged, so there is no result: try a lower lr, or correct what "
            "is wrong and raise `retrain`"
        )
    cause, count = Counter(plan.tries[name][-1].error for name in failed).most_common(1)[0]
    allow = f", or raise `max_failed_fraction`, which is {limit:g}" if result_count else ""
    raise UserError(
        f"sweep {plan.name}: {len(failed)} of {total} trials failed for good, {count} of them with: {cause}. Results "
        f"so far ({result_count}) are kept: correct the cause and run the same command, which tries the failed ones "
        f"again{allow}"
    )


def warn_unreadable(plan: Plan) -> None:
    """Warn about trials that reported no metrics.

    Raises:
        UserError: no trial reported any, or the sweep has `on_failed_trial: stop`.
    """
    unreadable = [attempt for name in plan.trials if (attempt := plan.unreadable(name))]
    if not unreadable:
        return
    first, count = unreadable[0], f"{len(unreadable)} of {len(plan.trials)}"
    message = (
        f"sweep {plan.name}: {count} trials have no metrics; the first, {first.trial}: {first.error}; see "
        f"{plan.output_of(first)}. {UNREADABLE_REMEDY}"
    )
    if plan.sweep.on_failed_trial == "stop" or not any(plan.result(name) for name in plan.trials):
        raise UserError(message)
    log.warning("%s", message)
