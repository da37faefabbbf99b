"""Parses the saved output of commands again after a change of `metrics` in the config."""

import logging

from trainyard.config.trial_status import TrialStatus
from trainyard.config.user_programs import metrics_digest
from trainyard.planning.attempts import Attempt
from trainyard.planning.journal import Journal, Reread
from trainyard.planning.sweep_state import SweepState
from trainyard.programs.metrics import ParsedOutput, find_divergence, parse_saved_output

log = logging.getLogger(__name__)


def reread_outputs(journal: Journal, state: SweepState) -> None:
    """Apply the current `metrics` to the saved outputs, without running anything."""
    digest, warnings, readable = metrics_digest(state.sweep.metrics), dict[str, str](), 0
    for attempt in state.to_reread:
        output = state.output_of(attempt)
        parsed = parse_saved_output(state.sweep.metrics, output.parent, output, seconds=attempt.seconds or 0.0)
        readable += not parsed.missing
        if parsed.warning:
            warnings.setdefault("pattern", f"trial {attempt.trial}: {parsed.warning}")
        if parsed.missing and attempt.outcome != TrialStatus.UNREADABLE:
            warnings.setdefault(
                "kept",
                f"trial {attempt.trial}, read again: {parsed.missing}; see {output}. The metrics that were read "
                "before are kept, also those of similar trials",
            )
            continue
        outcome, error = _judge(state, attempt, parsed)
        if (outcome, error, digest) != (attempt.outcome, attempt.error, attempt.metrics_digest):
            journal.record(
                Reread(
                    trial=attempt.trial,
                    attempt=attempt.number,
                    outcome=outcome,
                    error=error,
                    rows=parsed.rows,
                    metrics=parsed.metrics,
                    heard=digest,
                )
            )
    for warning in warnings.values():
        log.warning("%s", warning)
    log.info("%d of %d saved outputs could be read again; no trial was run", readable, len(state.to_reread))


def _judge(state: SweepState, attempt: Attempt, parsed: ParsedOutput) -> tuple[TrialStatus, str]:
    """The status of an attempt by its newly parsed output, and the error or the reason for its early end."""
    if attempt.outcome == TrialStatus.STOPPED:
        return attempt.outcome, attempt.error
    if parsed.missing:
        return TrialStatus.UNREADABLE, parsed.missing
    if diverged := find_divergence(parsed.metrics, state.sweep.monitored_metrics):
        return TrialStatus.DIVERGED, diverged
    if attempt.failure:
        return TrialStatus.FAILED, attempt.failure
    return (TrialStatus.STOPPED, attempt.early) if attempt.early else (TrialStatus.FINISHED, "")
