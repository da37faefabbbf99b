"""What the end of an attempt changes, and when."""

import logging
import os
import threading
import time
from collections import deque
from functools import partial
from types import SimpleNamespace

import pytest
from driven import drive
from slurm_cluster.waiting import wait_until
from sweep_journals import attempts_in, read_journal, run_beside, session_of
from trainyard.config.load import check_config
from trainyard.config.trial_status import TrialStatus
from trainyard.config.user_programs import INCOMPLETE, UserProgram
from trainyard.packing.failure_policy import SAME_ERRORS
from trainyard.packing.slot_pool import CurrentTrial
from trainyard.packing.trial_loop import TrialLoop
from trainyard.planning.attempts import ENDLESS, MOST_PIECES, STALLED, UNSAVED, Attempt, Fold
from trainyard.planning.history import History
from trainyard.planning.journal import Ended, Location, Started
from trainyard.planning.task import Task
from trainyard.programs.function import Context, run_function
from trainyard.programs.runner import OUT_OF_TIME
from trainyard.programs.trial_messages import TrialEnded
from trainyard.utils.errors import ContinuedError, UserError


class IdleWorkers:
    """No worker answers; the names of those that are killed."""

    def __init__(self):
        self.killed = []

    def create(self):
        return SimpleNamespace(start=SimpleNamespace(remote=lambda setup: "answer"))

    def kill(self, worker):
        self.killed.append(worker)


def loop_beside(journal, **sweep):
    """The loop of a job beside a journal, of a sweep with these options more; and one of its slots, which runs "a"."""
    content = {"command": "true {x}", "grid": {"x": [1, 2]}, "slots": {"gpus_per_node": 4}} | sweep
    checked = check_config({"sweeps": {"s": content}}).sweeps["s"]
    folder = journal.path.parents[1]
    state = History("s", checked, "no dataset", folder, Fold(folder))
    loop = TrialLoop(run_beside(journal, state), IdleWorkers())
    slot = loop.slots.slots[0]
    slot.worker = "first"
    return loop, slot


def start(loop, slot, task):
    """The slot runs a task."""
    claims = loop._run.claims
    assert claims.is_mine(task.trial) or claims.claim([task.trial])
    attempt = loop._run.record(Started(trial=task.trial, attempt=loop.queue.start_attempt(task)))
    slot.current = CurrentTrial(slot, task, attempt, time.monotonic())


def ends_of(folder):
    return [event.status for event in read_journal(folder) if isinstance(event, Ended)]


FUNCTION = Task("a", UserProgram(function="m:f"), {}, 0)


def test_the_next_trial_need_not_wait_for_the_disk_but_the_removal_of_checkpoints_does(tmp_path, monkeypatch):
    """If the power fails before the end of a trial is on the disk, the trial resumes from them."""
    checkpoint = tmp_path / "checkpoints/a/last.pt"
    checkpoint.parent.mkdir(parents=True)
    checkpoint.touch()
    may_sync, sync = threading.Event(), os.fsync
    with session_of(tmp_path) as journal:
        loop, slot = loop_beside(journal)
        start(loop, slot, FUNCTION)
        monkeypatch.setattr(os, "fsync", lambda fd: may_sync.wait(60) and sync(fd))
        end = TrialEnded(status=TrialStatus.FINISHED, metrics={"score": 1.0}, seconds=2.0)
        assert loop._end(slot.current, end), "the slot is ready"
        assert ends_of(tmp_path) == [TrialStatus.FINISHED]
        assert checkpoint.exists()
        may_sync.set()
        wait_until(journal.is_synced, what="the sync")
        assert not checkpoint.parent.exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "1 running trial may take up to 30 s to end; a trial without a checkpoint starts again"),
        ({"checkpoint": "last.pt"}, "1 running trial may take up to 30 s to save a checkpoint"),
    ],
)
def test_only_a_trial_that_resumes_saves_a_checkpoint_at_its_end(tmp_path, caplog, options, said):
    caplog.set_level(logging.INFO)
    with session_of(tmp_path) as journal:
        loop, slot = loop_beside(journal, **options)
        start(loop, slot, Task("a", UserProgram(command="true"), {}, 0))
        slot.request_stop = lambda: None
        slot.answer = None
        loop._end_all_trials()
    assert caplog.messages[-1] == said


def test_a_signal_while_the_end_of_a_trial_is_shown_does_not_report_it_twice(tmp_path):
    """At shutdown, the slot still seems to run it. The live view and a search know of no such trial any more."""
    reported = []

    class View:
        def on_event(self, event, attempt, *, is_own):
            reported.extend([event] if isinstance(event, Ended) else [])
            if len(reported) == 1:
                raise KeyboardInterrupt

    with session_of(tmp_path) as journal:
        loop, slot = loop_beside(journal)
        loop._run.consumers = [View()]
        start(loop, slot, FUNCTION)
        with pytest.raises(KeyboardInterrupt):
            loop._end(slot.current, TrialEnded(status=TrialStatus.FINISHED, seconds=2.0))
        assert loop._end_late_trials() == 1
    assert slot.current is None
    assert [event.status for event in reported] == [TrialStatus.FINISHED]
    assert ends_of(tmp_path) == [TrialStatus.FINISHED]


DIVERGED, FAILED = TrialStatus.DIVERGED, TrialStatus.FAILED
JUDGED = {"metrics": {"file": "m.json"}, "metric": "loss"}


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
    with session_of(tmp_path) as journal:
        loop, slot = loop_beside(journal, **JUDGED)
        start(loop, slot, FUNCTION)
        assert not loop._end(slot.current, TrialEnded(status=FAILED, error=error, metrics=metrics, seconds=2.0))
    (attempt,) = attempts_in(tmp_path)
    assert attempt.outcome == status
    assert (attempt.error, attempt.failure) == (
        ("loss became NaN or infinite", error) if status == DIVERGED else (error, "")
    )
    assert attempt.log.endswith("a-1.log")
    assert loop.queue.waiting == (status == FAILED)
    assert loop._workers.killed == ["first"], "what the failure leaves in the process would fail later trials"


@pytest.mark.parametrize(("has_saved", "count", "why"), [(False, 2, STALLED), (True, MOST_PIECES, ENDLESS)])
def test_a_program_that_is_never_complete_fails_and_its_gpu_is_not_blamed(tmp_path, has_saved, count, why):
    end = TrialEnded(status=TrialStatus.INTERRUPTED, error=f"{INCOMPLETE}: no line", seconds=2.0, has_saved=has_saved)
    task = Task("a", UserProgram(command="true"), {}, 0)
    at = Location("", "n", "", 0)
    with session_of(tmp_path) as journal:
        loop, slot = loop_beside(journal, retries=3)
        loop._run.failures.record_failure = lambda failure: pytest.fail("it is no failure of the GPU")
        while task:
            start(loop, slot, task)
            loop._end(slot.current, end)
            task = loop.queue.take(at, [at]) if loop.queue.waiting else None
    tries = attempts_in(tmp_path)
    assert [each.outcome for each in tries] == ["interrupted"] * (count - 1) + ["failed"]
    assert tries[-1].error == f"{end.error}; {why}"


@pytest.mark.parametrize(
    ("earlier", "outcome"),
    [
        ([{"error": INCOMPLETE}], "failed"),
        ([{"error": INCOMPLETE, "has_saved": True}], "interrupted"),
        ([{"error": INCOMPLETE}, {"error": "it was interrupted"}], "interrupted"),
        ([{"error": INCOMPLETE}, {"error": INCOMPLETE, "generation": 1}], "interrupted"),
    ],
)
def test_attempts_of_earlier_jobs_count_for_the_progress_of_a_program(tmp_path, earlier, outcome):
    interrupted = [Attempt("a", 1, 0.0, 1.0, outcome=TrialStatus.INTERRUPTED, **each) for each in earlier]
    end = TrialEnded(status=TrialStatus.INTERRUPTED, error=f"{INCOMPLETE}: no line", seconds=2.0)
    with session_of(tmp_path) as journal:
        loop, slot = loop_beside(journal)
        start(loop, slot, Task("a", UserProgram(command="true"), {}, 0, earlier=tuple(interrupted)))
        loop._end(slot.current, end)
    (attempt,) = attempts_in(tmp_path)
    assert attempt.outcome == outcome


@pytest.mark.parametrize(
    ("epochs", "saves", "why"),
    [
        ([3], True, ""),
        ([3], False, UNSAVED),
        ([None], True, ""),
        ([3, 3], True, ""),  # one may be that of a slow node
        ([3, 3, 3], True, STALLED),  # it does not resume
        ([3, None, None], True, ""),
        ([3, 3, 3, 4], True, ""),
    ],
)
def test_a_job_is_continued_if_a_trial_got_further_before_the_end_of_the_walltime(tmp_path, epochs, saves, why):
    """Attempts at a trial that is longer than the walltime, each in a job."""
    earlier = []
    for number, epoch in enumerate(epochs, 1):
        folder = tmp_path / str(number)
        with session_of(folder) as journal:
            loop, slot = loop_beside(journal, checkpoint="*.pt")
            task = Task("a", UserProgram(command="true"), {}, 0, earlier=tuple(earlier))
            start(loop, slot, task)
            attempt = slot.current.attempt
            attempt.epochs = [] if epoch is None else [{"epoch": epoch}]
            if saves:  # as a function does
                file = loop._run.setup.checkpoint_folder(task) / "last.pt"
                file.parent.mkdir(parents=True)
                file.write_text(str(number))
                os.utime(file, times=(attempt.start + 1, attempt.start + 1))  # file systems tell time by coarse ticks
            loop._end(slot.current, TrialEnded(status=TrialStatus.INTERRUPTED, error=OUT_OF_TIME))
            assert attempt.has_saved is saves
            earlier += [attempt, Attempt("a", 2, 0.0, 1.0, outcome=TrialStatus.FAILED)]  # on its checkpoint
            with pytest.raises(UserError, match="stopped before the end of the walltime with 1 trial left") as raised:
                loop._check_complete(late=0)
    assert raised.type is (UserError if why else ContinuedError)
    assert why in str(raised.value)


@pytest.mark.parametrize(("metric", "status"), [("loss", TrialStatus.UNREADABLE), ("speed", TrialStatus.FINISHED)])
def test_a_metric_that_cannot_be_read_concerns_the_trial_only_if_it_judges_it(tmp_path, metric, status):
    with session_of(tmp_path) as journal:
        loop, slot = loop_beside(journal, **JUDGED)
        start(loop, slot, Task("a", UserProgram(command="python p.py"), {}, 0))
        end = TrialEnded(status=TrialStatus.FINISHED, seconds=2.0, unread={metric: "has two units"}, units={"x": "ms"})
        assert loop._end(slot.current, end)
    (attempt,) = attempts_in(tmp_path)
    assert (attempt.outcome, attempt.units) == (status, {"x": "ms"})
    assert attempt.error == ("has two units" if status is TrialStatus.UNREADABLE else "")


def test_an_error_with_the_bytes_of_a_file_name_that_is_not_utf_8_ends_no_sweep(tmp_path):
    """Python represents such a byte by a surrogate, which cannot be written to a file."""
    name, folder = os.fsdecode(b"caf\xe9.jpg"), tmp_path / "trial"

    def train(config, context):
        raise ValueError(f"cannot decode {name}")

    _, end = drive(partial(run_function, train, {}, Context("a", 1, folder, folder, None)))
    assert "ValueError: cannot decode caf\\xe9.jpg" in end.error
    with session_of(tmp_path) as journal:
        loop, slot = loop_beside(journal)
        start(loop, slot, FUNCTION)
        assert not loop._end(slot.current, end)
    assert loop.queue.waiting == 1, "it is retried"
    assert "caf\\udce9.jpg" in (tmp_path / "logs/a-1.log").read_text()


@pytest.mark.parametrize("fails_up_to", [14, 1000])
def test_the_last_trial_of_the_order_starts_before_the_same_error_of_the_first_ones_ends_a_sweep(tmp_path, fails_up_to):
    """The first trials may all have too large a learning rate. On four slots, more fail than needed."""
    at, spec = Location("", "n", "", 0), UserProgram(command="true")
    started = []
    with session_of(tmp_path) as journal:
        loop, _ = loop_beside(journal)
        queue, slots = loop.queue, deque(loop.slots.slots)
        loop.slots.wake_idle = lambda: None
        queue.add(Task(str(number), spec, {"lr": 2.0**-number}, 0) for number in range(1000))

        def run_all():
            while queue.waiting:
                slots.rotate(-1)
                if (slot := slots[0]).current:
                    number = int(slot.current.task.trial)
                    status = TrialStatus.FAILED if number < fails_up_to else TrialStatus.FINISHED
                    loop._end(slot.current, TrialEnded(status=status, error="AssertionError: loss", seconds=1.0))
                start(loop, slot, queue.take(at, [at]))
                started.append(int(slot.current.task.trial))

        if fails_up_to < 1000:
            run_all()
            assert set(started) == set(range(1000))
        else:
            with pytest.raises(UserError, match="AssertionError: loss"):
                run_all()
            assert len(set(started)) <= SAME_ERRORS + 2 * len(slots), "about as few as without"
        assert list(dict.fromkeys(started)).index(999) <= SAME_ERRORS + len(slots)
