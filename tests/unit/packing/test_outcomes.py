"""What the end of an attempt changes, and when."""

import os
import threading
import time
from collections import deque
from types import SimpleNamespace

import pytest
from slurm_cluster.waiting import wait_until
from sweep_journals import fold_attempts, order_beside, read_journal, session_of
from trainyard.config.config import Data
from trainyard.config.trial_status import TrialStatus
from trainyard.config.user_programs import UserProgram
from trainyard.packing.failure_policy import SAME_ERRORS, FailurePolicy, SlotLocation
from trainyard.packing.messages import WorkerSetup
from trainyard.packing.outcomes import AttemptRecorder, OutcomeHandler
from trainyard.packing.slot_pool import Slot
from trainyard.packing.trial_queue import TimeLimits, TrialQueue
from trainyard.planning.attempts import Attempt
from trainyard.planning.journal import Ended, Journal, Started
from trainyard.planning.sweep_state import Task
from trainyard.programs.function import Context, run_function
from trainyard.programs.trial_messages import TrialEnded
from trainyard.utils.errors import UserError


def handler(journal, *, places=(), monitored_metrics=()):
    """A handler of outcomes beside a journal, its queue, and the list of slots whose workers it has replaced."""
    setup, failures = WorkerSetup(folder=journal.path.parents[1], data=Data(), threads=1), FailurePolicy(retries=1)
    limits, order = TimeLimits(None, can_resume=True), order_beside(journal)
    queue = TrialQueue(limits=limits, failures=failures, order=order, source=None, predict=None)
    replaced, recorder = [], AttemptRecorder(journal, folder=setup.folder, listeners=[])
    pool = SimpleNamespace(
        fills=[],
        running_seconds={},
        known_places=places,
        places=places,
        replace_worker=replaced.append,
        wake_idle=lambda: None,
    )
    outcomes = OutcomeHandler(
        setup,
        recorder=recorder,
        queue=queue,
        order=order,
        pool=pool,
        failures=failures,
        rule=None,
        monitored_metrics=set(monitored_metrics),
        required_metrics=set(),
    )
    return outcomes, queue, replaced


def test_the_next_trial_need_not_wait_for_the_disk_but_the_removal_of_checkpoints_does(tmp_path, monkeypatch):
    """If the power fails before the end of a trial is on the disk, the trial resumes from them."""
    task = Task("a", UserProgram(function="m:f"), {}, 0)
    checkpoint = tmp_path / "checkpoints/a-0/last.pt"
    checkpoint.parent.mkdir(parents=True)
    checkpoint.touch()
    may_sync, sync = threading.Event(), os.fsync
    with session_of(tmp_path) as journal:
        monkeypatch.setattr(os, "fsync", lambda fd: may_sync.wait(60) and sync(fd))
        outcomes, _, _ = handler(journal)
        end = TrialEnded(status=TrialStatus.FINISHED, metrics={"score": 1.0}, seconds=2.0)
        assert outcomes.handle(Slot(0, task=task, attempt=Attempt("a", 1, 0.0, 0.0)), end), "the slot is ready"
        assert [event.status for event in read_journal(tmp_path)] == [TrialStatus.FINISHED]
        assert checkpoint.exists()
        may_sync.set()
        wait_until(journal.is_synced, what="the sync")
        assert not checkpoint.parent.exists()


def test_a_signal_while_the_end_of_a_trial_is_shown_does_not_report_it_twice(tmp_path):
    """At shutdown, the slot still seems to run it. The live view and a search know of no such trial any more."""
    reported = []

    def report(event, attempt):
        reported.extend([event] if isinstance(event, Ended) else [])
        if len(reported) == 1:
            raise KeyboardInterrupt

    slot = Slot(0, task=Task("a", UserProgram(function="m:f"), {}, 0))
    with Journal.of_new_session(tmp_path) as journal:
        recorder = AttemptRecorder(journal, folder=tmp_path, listeners=[report])
        slot.attempt = recorder.record(Started(trial="a", attempt=1))
        with pytest.raises(KeyboardInterrupt):
            recorder.record_end(slot, TrialEnded(status=TrialStatus.FINISHED, seconds=2.0))
        recorder.record_end(slot, TrialEnded(status=TrialStatus.INTERRUPTED))
    assert slot.task is None
    assert [event.status for event in reported] == [TrialStatus.FINISHED]
    assert [event.status for event in read_journal(tmp_path)[1:]] == [TrialStatus.FINISHED]


DIVERGED, FAILED = TrialStatus.DIVERGED, TrialStatus.FAILED


@pytest.mark.parametrize(
    ("error", "metrics", "status"),
    [
        ("AssertionError: the loss is nan", {"loss": None}, DIVERGED),
        ("exit code 1: the loss is nan", {"loss": float("inf"), "accuracy": 0.1}, DIVERGED),
        ("AssertionError: the loss is nan", {"accuracy": None}, FAILED),
        ("AssertionError: other", {"loss": 0.5}, FAILED),
        ("CUDA error: an illegal memory access was encountered", {"loss": None}, FAILED),
    ],
)
def test_a_trial_that_fails_because_it_has_diverged_is_not_retried(tmp_path, error, metrics, status):
    """Many programs end with an error once the loss is NaN."""
    task = Task("a", UserProgram(function="m:f"), {}, 0)
    with session_of(tmp_path) as journal:
        outcomes, queue, replaced = handler(journal, monitored_metrics=["loss"])
        slot = Slot(0, task=task, attempt=Attempt("a", 1, 0.0, 0.0))
        assert not outcomes.handle(slot, TrialEnded(status=FAILED, error=error, metrics=metrics, seconds=2.0))
    (attempt,) = fold_attempts([Started(trial="a", attempt=1), *read_journal(tmp_path)])
    assert attempt.outcome == status
    assert (attempt.error, attempt.failure) == (
        ("loss became NaN or infinite", error) if status == DIVERGED else (error, "")
    )
    assert attempt.log.endswith("a-1.log")
    assert queue.waiting == (status == FAILED)
    assert replaced == [slot], "what the failure leaves in the process would fail later trials"


def test_an_error_with_the_bytes_of_a_file_name_that_is_not_utf_8_ends_no_sweep(tmp_path):
    """Python represents such a byte by a surrogate, which cannot be written to a file."""
    name, folder = os.fsdecode(b"caf\xe9.jpg"), tmp_path / "trial"

    def train(config, context):
        raise ValueError(f"cannot decode {name}")

    running = run_function(train, {}, Context("a", 1, folder, folder, None))
    with pytest.raises(StopIteration) as ended:
        next(running)
    end = ended.value.value
    assert "ValueError: cannot decode caf\\xe9.jpg" in end.error
    task = Task("a", UserProgram(function="m:f"), {}, 0)
    with session_of(tmp_path) as journal:
        outcomes, queue, _ = handler(journal)
        assert not outcomes.handle(Slot(0, task=task, attempt=Attempt("a", 1, 0.0, 0.0)), end)
    assert queue.waiting == 1, "it is retried"
    assert "caf\\udce9.jpg" in (tmp_path / "logs/a-1.log").read_text()


@pytest.mark.parametrize("fails_up_to", [14, 1000])
def test_the_last_trial_of_the_order_starts_before_the_same_error_of_the_first_ones_ends_a_sweep(tmp_path, fails_up_to):
    """The first trials may all have too large a learning rate. On four slots, more fail than needed."""
    at, spec = SlotLocation("n", "", 0), UserProgram(command="true")
    slots, started = deque(Slot(number) for number in range(4)), []
    with session_of(tmp_path) as journal:
        outcomes, queue, _ = handler(journal, places=[at])
        queue.add(Task(str(number), spec, {"lr": 2.0**-number}, 0) for number in range(1000))

        def run_all():
            while queue.waiting:
                slots.rotate(-1)
                if (slot := slots[0]).task:
                    number = int(slot.task.trial)
                    status = TrialStatus.FAILED if number < fails_up_to else TrialStatus.FINISHED
                    outcomes.handle(slot, TrialEnded(status=status, error="AssertionError: loss", seconds=1.0))
                slot.task = queue.take(at, [at])
                slot.attempt = Attempt(slot.task.trial, queue.start_attempt(slot.task), 0.0, 0.0)
                slot.began = time.monotonic()
                started.append(int(slot.task.trial))

        if fails_up_to < 1000:
            run_all()
            assert set(started) == set(range(1000))
        else:
            with pytest.raises(UserError, match="AssertionError: loss"):
                run_all()
            assert len(set(started)) <= SAME_ERRORS + 2 * len(slots), "about as few as without"
        assert list(dict.fromkeys(started)).index(999) <= SAME_ERRORS + len(slots)
