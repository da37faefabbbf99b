"""A function as a trial: it reports, may be ended at a report, and has a folder that outlives an attempt."""

import contextlib
import time

from trainyard.programs.function import Context, run
from trainyard.programs.metrics import BURST_ROWS


def context(folder, **fields):
    return Context("t1", 1, folder / "trial", folder / "checkpoints", None, **fields)


def messages(function, made, *, prune_at=None):
    found, answer = [], None
    running = run(function, {"lr": 0.1}, made)
    while not found or "epoch" in found[-1]:
        found.append(running.send(answer))
        answer = found[-1].get("epoch", {}).get("epoch") == prune_at
    return found


def test_reports_are_epochs_and_what_it_returns_are_metrics_too(tmp_path):
    def train(config, context):
        context.report(val_accuracy=config["lr"])
        context.report(epoch=5, val_accuracy=0.5)
        return {"size": 12, "name": "x"}

    first, second, last = messages(train, context(tmp_path))
    assert first == {"epoch": {"epoch": 1, "val_accuracy": 0.1}}
    assert second == {"epoch": {"epoch": 5, "val_accuracy": 0.5}}
    assert last["finished"] == {"val_accuracy": 0.5, "size": 12}


def test_one_that_reports_each_step_tells_no_more_than_a_journal_can_take(tmp_path):
    def train(config, context):
        for step in range(5000):
            context.report(loss=step)
            if step % 1000 == 500:
                context.report(val_accuracy=step / 5000)

    def train_in_epochs(config, context):
        for step in range(5000):
            context.report(epoch=step // 1000, loss=step)

    began = time.monotonic()
    *rows, last = messages(train, context(tmp_path))
    assert len(rows) <= BURST_ROWS + time.monotonic() - began + 1
    assert rows[-1]["epoch"] == {"epoch": 5005, "loss": 4999, "val_accuracy": 0.9}
    assert last["finished"] == {"loss": 4999, "val_accuracy": 0.9}
    *rows, last = messages(train_in_epochs, context(tmp_path))
    told = [(row["epoch"]["epoch"], row["epoch"]["loss"]) for row in rows]
    assert told == [(0, 0), (0, 999), (1, 1999), (2, 2999), (3, 3999), (4, 4999)]


def test_it_ends_at_a_report_even_if_it_catches_all_exceptions(tmp_path):
    def train(config, context):
        while True:
            with contextlib.suppress(Exception):
                context.report(val_accuracy=0.5)

    last = messages(train, context(tmp_path), prune_at=3)[-1]
    assert last["pruned"] == {"val_accuracy": 0.5}


def test_it_may_stop_at_the_deadline_and_is_then_called_again(tmp_path):
    def train(config, context):
        while not context.time_is_up:
            time.sleep(0.01)
        context.interrupt()

    last = messages(train, context(tmp_path, deadline=time.time() + 0.05))[-1]
    assert last["stopped"] == "it kept where it was before the end of the walltime"


def test_what_it_raises_is_told_with_its_traceback(tmp_path):
    def train(config, context):
        raise KeyError("nothing")

    last = messages(train, context(tmp_path))[-1]
    assert last["failed"] == "KeyError: 'nothing'"
    assert "in train" in last["traceback"]
