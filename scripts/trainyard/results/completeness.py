"""Checks that the results of a sweep are complete enough for its tables."""

import logging
from collections import Counter
from collections.abc import Sequence

from trainyard.config.trial_status import TrialStatus
from trainyard.planning.attempts import Attempt
from trainyard.planning.history import History
from trainyard.planning.task import output_file
from trainyard.programs.metrics import UNREADABLE_REMEDY
from trainyard.results.error_patterns import error_pattern
from trainyard.utils.errors import FinalError, UserError, mentions_full_disk, mentions_held_folder
from trainyard.utils.text import count_of, format_time
from trainyard.utils.typed_commands import trainyard_call

SHOWN_FAILURES = 5
OUTER_REASONS = (  # a test of an error, what happened to its trials, and the remedy
    (mentions_full_disk, "had no space on the disk", "make room (`df -h` and `quota -s` show what is used)"),
    (mentions_held_folder, "are still running elsewhere", "wait until their processes have ended, or end them"),
)
log = logging.getLogger(__name__)


def check_sweep(state: History) -> None:
    """Log what failed, and check that the results are complete enough.

    Raises:
        UserError: they are not.
    """
    if state.unfinished and state.requests.paused_at:
        raise FinalError(describe_pause(state))
    warn_unreadable(state, error=UserError if state.unfinished else FinalError)  # what failed may report some
    unfinished = state.unfinished
    failed = state.failed
    for attempt in failed[:SHOWN_FAILURES]:
        log.error("%s", describe_failure(attempt))
    if len(failed) < len(unfinished):
        raise UserError(
            f"sweep {state.name}: {len(unfinished)} of {len(state.trials)} trials are without a result; "
            "the others are kept: correct the error and run the same command"
        )
    for mentions, what, remedy in OUTER_REASONS:  # failed trials that would succeed once the reason has gone
        if count := sum(mentions(attempt.error) for attempt in failed):
            raise UserError(
                f"sweep {state.name}: {count} of {len(state.trials)} trials {what}; the others are kept: {remedy}, "
                "then run the same command"
            )
    _check_enough_succeeded(state, failed)


def describe_failure(attempt: Attempt) -> str:
    """The error of a failed attempt, and the file with details: one line."""
    details = f"; see {attempt.log}" if attempt.log else ""
    return f"trial {attempt.trial} failed: {attempt.error}{details}"


def summarize_sweep(state: History) -> str:
    """How many trials finished, were stopped early, diverged, failed, and are left to run: one line."""
    counts = Counter(end.outcome for end in state.ends)
    failed = len(state.failed)
    to_run = len(state.unfinished) - failed
    parts = f", {counts[TrialStatus.STOPPED]} stopped early" if state.sweep.stop else ""
    parts += f", {counts[TrialStatus.DIVERGED]} diverged" if counts[TrialStatus.DIVERGED] else ""
    parts += f", {counts[TrialStatus.UNREADABLE]} without metrics" if counts[TrialStatus.UNREADABLE] else ""
    parts += f", {len(cancelled)} cancelled" if (cancelled := state.cancelled) else ""
    parts += f", {failed} failed"
    parts += f", {to_run} to run" if to_run else ""
    if misread := sum(map(state.is_misread, state.ends)):
        parts += f", {count_of(misread, 'output')} to re-read by the present `metrics`"
    parts += f"; {reached}" if (reached := state.describe_budget()) else ""
    return f"sweep {state.name}: {count_of(counts[TrialStatus.FINISHED], 'trial')} finished{parts}"


def describe_pause(state: History) -> str:
    """Since when a sweep is paused, and how it goes on."""
    since = format_time(state.requests.paused_at or 0.0)
    resume = trainyard_call("control", "--sweep", state.name, "resume")
    return (
        f"sweep {state.name}: paused since {since}, with {count_of(len(state.unfinished), 'trial')} left: "
        f"`{resume}`, then the same command, lets it go on"
    )


def _check_enough_succeeded(state: History, failed: Sequence[Attempt]) -> None:
    """Check that there is a result, and that not more trials failed than the config allows.

    Raises:
        UserError: there is no result, or too many trials failed.
    """
    total = len(state.trials)
    result_count = len(state.results)
    limit = state.sweep.max_failed_fraction
    own_errors = sum(not each.ran_out_of_memory for each in failed)
    if result_count and own_errors <= limit * total:
        return
    if not failed:
        if budget := state.describe_budget():
            broken = list(filter(None, (record.last for record in state.records if record.has_failed)))
            if not broken:
                return
            why = f"{len(broken)} failed; {describe_failure(broken[-1])}"
            raise FinalError(f"sweep {state.name}: no trial has a result: {why}; {budget}")
        if not (ran := total - len(state.cancelled)):
            raise FinalError(f"sweep {state.name}: all {total} trials are cancelled, so there is no result")
        raise FinalError(
            f"sweep {state.name}: all {ran} trials diverged, so there is no result: try a lower lr, or correct the "
            "error and increase `retrain`"
        )
    kinds = [error_pattern(each.error, each.trial, state.trials[each.trial].values) for each in failed]
    kind, count = Counter(kinds).most_common(1)[0]
    cause = failed[kinds.index(kind)].error
    allow = f", or raise `max_failed_fraction`, which is {limit:g}" if result_count else ""
    raise UserError(
        f"sweep {state.name}: {len(failed)} of {total} trials failed for good, {count} of them with: {cause}. Results "
        f"so far ({result_count}) are kept: correct the cause and run the same command, which retries the failed "
        f"ones{allow}"
    )


def warn_unreadable(state: History, *, error: type[UserError] = FinalError) -> None:
    """Warn about trials that reported no metrics.

    Raises:
        UserError: no trial reported any, or the sweep has `max_failed_fraction: 0`. It is an `error`.
    """
    unreadable = [end for end in state.ends if end.outcome is TrialStatus.UNREADABLE]
    if not unreadable:
        return
    first = next((each for each in unreadable if output_file(state.folder, each).exists()), unreadable[0])
    output = output_file(state.folder, first)
    details = f"; see {output}. {UNREADABLE_REMEDY}" if output.exists() else ""
    count = f"{len(unreadable)} of {len(state.trials)}"
    message = f"sweep {state.name}: {count} trials have no metrics; the first, {first.trial}: {first.error}{details}"
    if not state.sweep.max_failed_fraction or not state.results:
        raise error(message)
    log.warning("%s", message)
