"""Reads the saved output of commands: after a change of `metrics` in the config, or of what no driver has recorded."""

import logging
import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from trainyard.config.sweep import CommandSweep
from trainyard.config.trial_status import TrialStatus
from trainyard.config.user_programs import metrics_digest
from trainyard.planning.attempts import (
    Attempt,
    attempts_before,
    epochs_before,
    reported_epochs,
    update_attempts,
)
from trainyard.planning.journal import Ended, Journal, Reread
from trainyard.planning.sweep_state import SweepState
from trainyard.programs.metric_rows import find_divergence, shift_epoch
from trainyard.programs.metrics import ParsedOutput, latest_saved_metrics, parse_saved_output
from trainyard.programs.output import saved_progress
from trainyard.utils.guarded_process import completed_seconds
from trainyard.utils.text import count_of

log = logging.getLogger(__name__)


def record_completed(journal: Journal, state: SweepState, trials: Iterable[str]) -> list[tuple[Ended, Attempt]]:
    """Record the results of unfinished trials whose programs had ended by themselves, with exit code 0.

    Their driver was stopped or killed before it had recorded that; the guard has. Returns the ends of these attempts.
    """
    ends = list[tuple[Ended, Attempt]]()
    for trial in trials if isinstance(state.sweep, CommandSweep) else ():
        attempt = state.last_attempt(trial)
        if not attempt or attempt.outcome is not TrialStatus.INTERRUPTED or attempt.generation < state.sweep.retrain:
            continue
        output = state.output_of(attempt)
        seconds = completed_seconds(output)
        if seconds is None:
            continue
        completed = replace(attempt, outcome=TrialStatus.FINISHED, seconds=seconds, error="")
        parsed = _parse(state, completed)
        outcome, error = _judge(state, completed, parsed)
        printed = saved_progress(output)
        progress = printed._asdict() if printed else None
        _record(journal, state, attempt, parsed, outcome=outcome, error=error, seconds=seconds, progress=progress)
        ended = Ended(
            trial=trial,
            attempt=attempt.number,
            status=outcome,
            metrics=parsed.metrics,
            error=error or None,
            seconds=seconds,
            exit_code=0,
            output=str(output),
            progress=progress,
            metrics_digest=attempt.metrics_digest,
        )
        ends.append((journal.record(ended), attempt))
    if ends:
        count = count_of(len(ends), "trial")
        log.info("took the results of %s whose driver was stopped or killed before it had recorded them", count)
    return ends


def reparse_outputs(journal: Journal, state: SweepState) -> None:
    """Apply the current `metrics` to the saved outputs, without running anything."""
    reparse_continued(journal, state)
    warning, readable, continued = "", 0, 0
    for attempt in state.to_reparse:
        parsed, outcome = reparse_output(journal, state, attempt)
        readable += not parsed.missing
        if parsed.warning and not warning:
            warning = f"trial {attempt.trial}: {parsed.warning}"
        continued += outcome == TrialStatus.INTERRUPTED
    if warning:
        log.warning("%s", warning)
    if state.to_reparse:
        count = len(state.to_reparse)
        log.info("%d of %d saved outputs could be read again; no trial was run", readable, count)
    if continued:
        log.info("%s, stopped early by other values than `metrics` find now, will go on", count_of(continued, "trial"))


def reparse_continued(journal: Journal, state: SweepState) -> bool:
    """The same for attempts that others have continued or may continue; returns whether there were any."""
    for attempt in state.to_reparse_first:
        _record(journal, state, attempt, _parse_alone(state, attempt), outcome=attempt.outcome, error=attempt.error)
    return bool(state.to_reparse_first)


def reparse_output(journal: Journal, state: SweepState, attempt: Attempt) -> tuple[ParsedOutput, TrialStatus]:
    """Apply the current `metrics` to the saved output of an attempt, which is updated; returns what they find."""
    parsed = _parse(state, attempt)
    outcome, error = _judge(state, attempt, parsed)
    is_same = attempt.metrics_digest == metrics_digest(state.sweep.program_metrics)
    if not is_same or (outcome, error) != (attempt.outcome, attempt.error):
        _record(journal, state, attempt, parsed, outcome=outcome, error=error)
    return parsed, outcome


def _record(
    journal: Journal,
    state: SweepState,
    attempt: Attempt,
    parsed: ParsedOutput,
    *,
    outcome: str,
    error: str,
    seconds: float | None = None,
    progress: dict[str, Any] | None = None,
) -> None:
    reread = Reread(
        trial=attempt.trial,
        attempt=attempt.number,
        outcome=outcome,
        error=error,
        rows=parsed.rows,
        metrics=parsed.metrics,
        metrics_digest=metrics_digest(state.sweep.program_metrics),
        number=attempt.reread[0] + 1,
        seconds=seconds,
        progress=progress,
    )
    update_attempts({(attempt.trial, attempt.number): attempt}, journal.record(reread))  # for those that continue it


def _parse(state: SweepState, attempt: Attempt) -> ParsedOutput:
    """The output of an attempt; with the metrics of those that it continued if nothing was left to do for it."""
    parsed, metrics = _parse_alone(state, attempt), state.sweep.program_metrics
    if not parsed.had_nothing_to_do:
        return parsed
    earlier = map(state.output_of, state.continued_by(attempt))
    latest = parsed.metrics or latest_saved_metrics(metrics, state.output_of(attempt).parent, earlier)
    return replace(parsed, metrics=latest, missing="") if latest else parsed


def _parse_alone(state: SweepState, attempt: Attempt) -> ParsedOutput:
    output, metrics = state.output_of(attempt), state.sweep.program_metrics
    seconds = attempt.end - attempt.start if attempt.seconds is None else attempt.seconds  # None: it was interrupted
    torn = attempt.outcome not in (TrialStatus.FINISHED, TrialStatus.UNREADABLE, TrialStatus.DIVERGED)
    torn = torn or bool(attempt.early or attempt.failure)
    parsed = parse_saved_output(
        metrics,
        output.parent,
        output,
        seconds=seconds,
        resumed=attempt.resumed is not None,
        began=attempt.start,
        ranks=max(1, math.ceil(attempt.gpus_per_trial)),
        torn=torn,
    )
    if not attempt.resumed or not (metrics and metrics.numbers_rows):
        return parsed
    earlier = attempts_before(state.attempts_at(attempt.trial), attempt)[::-1]
    before = epochs_before(reported_epochs(earlier), attempt.resumed)
    return replace(parsed, rows=[shift_epoch(row, before) for row in parsed.rows])


def _judge(state: SweepState, attempt: Attempt, parsed: ParsedOutput) -> tuple[TrialStatus, str]:
    """The status of an attempt by its newly parsed output, and the error or the reason for its early end."""
    if diverged := find_divergence(parsed.metrics, state.sweep.monitored_metrics):
        return TrialStatus.DIVERGED, diverged
    if attempt.failure:
        return TrialStatus.FAILED, attempt.failure
    if parsed.missing:
        return TrialStatus.UNREADABLE, parsed.missing
    why = attempt.error if attempt.outcome == TrialStatus.STOPPED else attempt.early
    metric = attempt.rule and attempt.rule["metric"]  # its program may have printed more before it ended
    if why and metric and not any(row[metric] == attempt.stopped_at for row in parsed.rows if metric in row):
        return TrialStatus.INTERRUPTED, "it was stopped early by other values than `metrics` find now"
    return (TrialStatus.STOPPED, why) if why else (TrialStatus.FINISHED, "")
