"""The journal's events of attempts, and the log files of failed ones."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from trainyard.config.trial_status import TrialStatus
from trainyard.packing.slot import Phase, Slot
from trainyard.planning.journal import Ended, Journal, TrialEvent


class AttemptRecorder:
    """Writes the events of attempts to the journal, then passes them to `on_event`."""

    def __init__(self, journal: Journal, *, folder: Path, on_event: Callable[[TrialEvent], None]) -> None:
        self._journal, self._logs, self._on_event = journal, folder / "logs", on_event

    def record(self, on: Slot, kind: type[TrialEvent], **fields: Any) -> None:
        """Record an event of the trial that runs on a slot."""
        assert on.task is not None
        self._on_event(self._journal.record(kind(trial=on.task.trial, attempt=on.attempt, **fields)))

    def record_end(self, slot: Slot, status: TrialStatus, **fields: Any) -> None:
        """Record how the trial of a slot ended. The slot is idle then."""
        self.record(slot, Ended, status=status, **fields)
        slot.task = None
        slot.expect(Phase.IDLE, None)

    def write_log(self, slot: Slot, text: str) -> Path:
        """Write the log of a failed attempt. Others have none: file systems have quotas of files."""
        assert slot.task is not None
        path = self._logs / f"{slot.task.trial}-{slot.attempt}.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.rstrip() + "\n")
        return path
