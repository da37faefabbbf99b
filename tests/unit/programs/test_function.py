"""A function as a trial: it reports metrics, and a report may end it."""

import contextlib
import re
import time
from functools import partial

from driven import drive
from trainyard.config.trial_status import TrialStatus
from trainyard.programs.function import Context, run_function
from trainyard.programs.metric_rows import BURST_ROWS


def context(folder, **fields):
    return Context("t1", 1, folder / "trial", folder / "checkpoints", None, **fields)


def run(function, made, *, stop_at=None):
    """The rows that a function reports, and how it ends; it is stopped after the epoch `stop_at`."""
    return drive(partial(run_function, function, {"lr": 0.1}, made), stop_at=stop_at)


def test_reports_are_epochs_and_the_returned_numbers_are_metrics(tmp_path):
    def train(config, context):
        context.report(val_accuracy=config["lr"])
        context.report(epoch=5, val_accuracy=0.5)
        return {"size": 12, "name": "x"}

    rows, end = run(train, context(tmp_path))
    assert rows == [{"epoch": 1, "val_accuracy": 0.1}, {"epoch": 5, "val_accuracy": 0.5}]
    assert end.status == TrialStatus.FINISHED
    assert end.metrics == {"val_accuracy": 0.5, "size": 12}


def test_huge_numbers_are_infinite_and_end_nothing(tmp_path):
    def train(config, context):
        context.report(epoch=10**400, loss=10**400)
        return {"size": 10**400}

    rows, end = run(train, context(tmp_path))
    assert rows == [{"epoch": 1, "loss": None}]
    assert (end.status, end.metrics) == (TrialStatus.FINISHED, {"loss": None, "size": None})


def test_the_rows_of_a_function_that_reports_each_step_are_limited(tmp_path):
    def train(config, context):
        for step in range(5000):
            context.report(loss=step)
            if step % 1000 == 500:
                context.report(val_accuracy=step / 5000)

    def train_in_epochs(config, context):
        for step in range(5000):
            context.report(epoch=step // 1000, loss=step)

    began = time.monotonic()
    rows, end = run(train, context(tmp_path))
    assert len(rows) <= BURST_ROWS + time.monotonic() - began + 1
    assert rows[-1] == {"epoch": 5005, "loss": 4999, "val_accuracy": 0.9}
    assert end.metrics == {"loss": 4999, "val_accuracy": 0.9}
    rows, end = run(train_in_epochs, context(tmp_path))
    told = [(row["epoch"], row["loss"]) for row in rows]
    assert told == [(0, 0), (0, 999), (1, 1999), (2, 2999), (3, 3999), (4, 4999)]


def test_a_function_that_catches_all_exceptions_stops_at_a_report(tmp_path):
    def train(config, context):
        while True:
            with contextlib.suppress(Exception):
                context.report(val_accuracy=0.5)

    _, end = run(train, context(tmp_path), stop_at=3)
    assert end.status == TrialStatus.STOPPED
    assert end.metrics == {"val_accuracy": 0.5}


def test_a_function_may_interrupt_itself_at_the_deadline(tmp_path):
    def train(config, context):
        while not context.time_is_up:
            time.sleep(0.01)
        context.interrupt()

    _, end = run(train, context(tmp_path, deadline=time.time() + 0.05))
    assert end.status == TrialStatus.INTERRUPTED
    assert (end.error, end.interrupts_itself) == ("it ended itself before the end of the job", False)
    _, end = run(lambda config, context: context.interrupt(), context(tmp_path))
    assert end.status == TrialStatus.INTERRUPTED
    assert end.interrupts_itself


def test_an_exception_is_reported_with_its_traceback(tmp_path):
    def train(config, context):
        raise KeyError("nothing")

    _, end = run(train, context(tmp_path))
    assert end.status == TrialStatus.FAILED
    assert re.fullmatch(r"KeyError: 'nothing' \(.*test_function.py, line \d+\)", end.error)
    assert "in train" in end.traceback
