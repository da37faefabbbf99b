"""Reads the saved output of commands: after a change of `metrics` in the config, or of what no driver has recorded."""

import logging
import math
from collections.abc import Iterable
from dataclasses import replace

from trainyard.config.trial_status import CONCLUSIVE, TrialStatus
from trainyard.planning.attempts import (
    Attempt,
    epochs_before,
    reported_epochs,
    update_attempts,
)
from trainyard.planning.history import LOST, History
from trainyard.planning.journal import Ended, Journal, Reread
from trainyard.planning.task import output_file
from trainyard.programs.metric_rows import find_divergence, shift_epoch
from trainyard.programs.metrics import (
    ParsedOutput,
    first_unread,
    join_outputs,
    parse_ended_outputs,
    parse_saved_output,
)
from trainyard.programs.output import saved_progress
from trainyard.utils.guarded_process import completed_seconds
from trainyard.utils.text import count_of

log = logging.getLogger(__name__)


def record_completed(journal: Journal, state: History, trials: Iterable[str]) -> list[tuple[Ended, Attempt]]:
    """Record the results of unfinished trials whose programs had ended by themselves, with exit code 0.

    Their driver was stopped or killed before it had recorded that; the guard has. Returns the ends of these attempts.
    """
    ends = list[tuple[Ended, Attempt]]()
    for trial in trials if state.sweep.keeps_output else ():
        attempt = state.record(trial).last
        if not attempt or attempt.outcome is not TrialStatus.INTERRUPTED or attempt.generation < state.sweep.retrain:
            continue
        output = output_file(state.folder, attempt)
        seconds = completed_seconds(output)
        if seconds is None:
            continue
        completed = replace(attempt, outcome=TrialStatus.FINISHED, seconds=seconds, error="")
        parsed = _parse(state, completed)
        outcome, error = _judge(state, completed, parsed)
        if outcome is TrialStatus.INTERRUPTED:  # it goes on
            continue
        printed = saved_progress(output)
        ended = Ended(
            trial=trial,
            attempt=attempt.number,
            status=outcome,
            metrics=parsed.metrics,
            error=error or None,
            seconds=seconds,
            exit_code=0,
            output=str(output),
            progress=printed._asdict() if printed else None,
            units=parsed.units or None,
            ended=attempt.end,
        )
        event = journal.record(ended)
        attempt.outcome = TrialStatus.RUNNING  # as far as its driver had recorded
        update_attempts({(trial, attempt.number): attempt}, event)
        ends.append((event, _record(journal, state, attempt, parsed, outcome=outcome, error=error)))  # with its rows
    if ends:
        count = count_of(len(ends), "trial")
        log.info("took the results of %s whose driver was stopped or killed before it had recorded them", count)
    return ends


def read_outputs(journal: Journal, state: History) -> bool:
    """Apply the present `metrics` to the saved outputs to which they were not applied, without running anything.

    Returns whether any attempt is known in another way now.
    """
    has_read = False
    of_ended = dict[str, tuple[ParsedOutput, TrialStatus]]()  # of the trials that had ended
    for attempt in state.unread:
        recorded = state.fold.attempts[attempt.trial, attempt.number]  # before any output was read again
        is_read = attempt.metrics_digest == state.metrics_digest
        if state.can_read(attempt):
            parsed = _parse(state, recorded)
            outcome, error = _judge(state, recorded, parsed)
            if is_read and (outcome, error) == (attempt.outcome, attempt.error):
                continue
            if attempt is state.record(attempt.trial).end:
                of_ended[attempt.trial] = parsed, outcome
        elif is_read or attempt.metrics_digest is None or attempt.outcome is TrialStatus.UNREADABLE:
            continue
        else:
            parsed = ParsedOutput()
            outcome = attempt.outcome
            error = attempt.error
            if outcome in CONCLUSIVE:
                outcome = TrialStatus.UNREADABLE
                error = LOST
        tries = state.attempts[attempt.trial]
        tries[tries.index(attempt)] = _record(journal, state, recorded, parsed, outcome=outcome, error=error)
        has_read = True
    for trial, (parsed, _) in of_ended.items():
        if parsed.warning:
            log.warning("trial %s: %s", trial, parsed.warning)
            break
    statuses = [outcome for _, outcome in of_ended.values()]
    if statuses:
        readable = len(statuses) - statuses.count(TrialStatus.UNREADABLE)
        log.info("%d of %d saved outputs could be read again; no trial was run", readable, len(statuses))
    if continued := statuses.count(TrialStatus.INTERRUPTED):
        log.info("%s, stopped early by other values than `metrics` find now, will go on", count_of(continued, "trial"))
    return has_read


def _record(
    journal: Journal, state: History, attempt: Attempt, parsed: ParsedOutput, *, outcome: TrialStatus, error: str
) -> Attempt:
    """Record what an output says by the present rules; returns the attempt with it."""
    reading = Reread(
        trial=attempt.trial,
        attempt=attempt.number,
        rules=state.rules,
        metrics_digest=state.metrics_digest,
        rows=parsed.rows,
        metrics=parsed.metrics,
        outcome=outcome if attempt.is_readable else None,
        error=error,
        units=parsed.units or None,
    )
    state.fold.readings[attempt.trial, attempt.number][state.rules] = journal.record(reading)
    return state.as_read(attempt)


def _parse(state: History, attempt: Attempt) -> ParsedOutput:
    """The output of an attempt; with the metrics of those that it continued if nothing was left to do for it."""
    output = output_file(state.folder, attempt)
    metrics = state.sweep.program_metrics
    complete = state.sweep.completion
    seconds = attempt.end - attempt.start if attempt.seconds is None else attempt.seconds  # None: it was interrupted
    is_whole = attempt.is_readable and attempt.outcome is not TrialStatus.STOPPED
    parsed = parse_saved_output(
        metrics,
        output.parent,
        output,
        complete=complete,
        checkpoint=state.sweep.checkpoint_pattern,
        seconds=seconds,
        resumed=attempt.resumed is not None,
        began=attempt.start,
        ranks=max(1, math.ceil(attempt.gpus_per_trial)),
        torn=not is_whole or bool(attempt.why or attempt.failure),
    )
    continued = state.record(attempt.trial).continued_by(attempt)
    if attempt.resumed and metrics and metrics.numbers_rows:
        before = epochs_before(reported_epochs(continued[::-1]), attempt.resumed)
        parsed = replace(parsed, rows=[shift_epoch(row, before) for row in parsed.rows])
    outputs = (output_file(state.folder, each) for each in continued)
    return join_outputs(parsed, parse_ended_outputs(metrics, output.parent, outputs, complete=complete))


def _judge(state: History, attempt: Attempt, parsed: ParsedOutput) -> tuple[TrialStatus, str]:
    """The status of an attempt by its newly parsed output, and the error or the reason for its early end."""
    if not attempt.is_readable:
        return attempt.outcome, attempt.error
    if diverged := find_divergence(parsed.metrics, state.sweep.monitored_metrics):
        return TrialStatus.DIVERGED, diverged
    if attempt.failure:
        return TrialStatus.FAILED, attempt.failure
    if parsed.incomplete and not attempt.why:
        return TrialStatus.INTERRUPTED, parsed.incomplete
    if problem := parsed.missing or first_unread(parsed.unread, state.sweep.monitored_metrics):
        return TrialStatus.UNREADABLE, problem
    if attempt.why and attempt.rule:
        metric = attempt.rule["metric"]
        stopped_at = attempt.metrics.get(metric)
        if not any(row[metric] == stopped_at for row in parsed.rows if metric in row):  # it may have printed more
            return TrialStatus.INTERRUPTED, "it was stopped early by other values than `metrics` find now"
    return (TrialStatus.STOPPED if attempt.why else TrialStatus.FINISHED), ""
