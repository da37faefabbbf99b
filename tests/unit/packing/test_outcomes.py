"""What the end of an attempt changes, and when."""

import os
import threading
from types import SimpleNamespace

from slurm_cluster.waiting import wait_until
from trainyard.config.config import Data
from trainyard.config.trial_status import TrialStatus
from trainyard.config.user_programs import UserProgram
from trainyard.packing.failure_policy import FailurePolicy
from trainyard.packing.messages import WorkerSetup
from trainyard.packing.outcomes import AttemptRecorder, OutcomeHandler
from trainyard.packing.slot import Slot
from trainyard.packing.time_limits import TimeLimits
from trainyard.packing.trial_queue import TrialQueue
from trainyard.planning.journal import Journal, read_journal
from trainyard.planning.task import Task
from trainyard.programs.trial_messages import TrialEnded


def test_the_next_trial_need_not_wait_for_the_disk_but_the_removal_of_checkpoints_does(tmp_path, monkeypatch):
    """If the power fails before the end of a trial is on the disk, the trial resumes from them."""
    task = Task("a", UserProgram(function="m:f"), {}, 0, earlier_attempts=0)
    setup, failures = WorkerSetup(folder=tmp_path, data=Data(), threads=1), FailurePolicy(retries=0)
    queue = TrialQueue(limits=TimeLimits(None, can_resume=True), failures=failures, source=None, predict=None)
    checkpoint = setup.checkpoint_folder(task) / "last.pt"
    checkpoint.parent.mkdir(parents=True)
    checkpoint.touch()
    may_sync, sync, path = threading.Event(), os.fsync, tmp_path / "journal.jsonl"
    with Journal.opened(path) as journal:
        monkeypatch.setattr(os, "fsync", lambda fd: may_sync.wait(60) and sync(fd))
        outcomes = OutcomeHandler(
            setup,
            recorder=AttemptRecorder(journal, folder=tmp_path, on_event=lambda event: None),
            queue=queue,
            pool=SimpleNamespace(running_seconds={}, places=[]),
            failures=failures,
            rule=None,
            monitored_metrics=set(),
            required_metrics=set(),
        )
        end = TrialEnded(status=TrialStatus.FINISHED, metrics={"score": 1.0}, seconds=2.0)
        assert outcomes.handle(Slot(0, task=task, attempt=1), end), "the slot is ready"
        assert [event.status for event in read_journal(path)] == [TrialStatus.FINISHED]
        assert checkpoint.exists()
        may_sync.set()
        wait_until(journal.is_synced, what="the sync")
        assert not checkpoint.parent.exists()
