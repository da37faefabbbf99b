"""What a worker reports of a training: its own metrics, its best epoch, and an end by patience."""

from functools import partial
from types import SimpleNamespace

from driven import drive
from loops import LEARNER, changed
from trainyard.cluster.stop_request import StopRequest
from trainyard.config.config import Data
from trainyard.config.sweep import TrainSweep
from trainyard.config.trial_status import TrialStatus
from trainyard.kinds.train import TrainTrials
from trainyard.packing.messages import Assignment, WorkerSetup
from trainyard.training.process_group import single_process


def run_trial(spec, data, folder):
    """The rows that a worker reports of a training, and its end."""
    sweep = TrainSweep.model_validate({"dataset": "d", "trials": [{}]})
    kind = TrainTrials(WorkerSetup(sweep, folder, Data()), StopRequest())
    kind._data, kind._group, kind._dataset = data, single_process(), SimpleNamespace(digest="")
    assignment = Assignment(spec, "t", 1, folder, folder / "checkpoints")
    return drive(partial(kind.run, assignment))


def test_a_training_that_patience_ends_is_finished_and_reports_its_best_epoch(data, tmp_path):
    values = {"metrics": {"close": "top5_accuracy"}, "metric": "val_loss", "patience": 2, "epochs": 40, "lr": 0.05}
    rows, end = run_trial(changed(LEARNER, **values), data, tmp_path)
    losses = [row["val_loss"] for row in rows]
    assert end.status == TrialStatus.FINISHED
    assert len(rows) == losses.index(min(losses)) + 3 < 40
    assert all(0 <= row["val_close"] <= 1 for row in rows)
    assert (end.metrics["epoch"], end.metrics["best_val_loss"]) == (len(rows), min(losses))
    assert end.metrics["best_val_accuracy"] == max(row["val_accuracy"] for row in rows)
