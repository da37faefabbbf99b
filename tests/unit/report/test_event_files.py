"""TensorBoard's event files say what the journal and the tables of a study say, however often they are written."""

import json
import os

import pytest
from sweep_journals import write_session
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData
from trainyard.config.load import check_config
from trainyard.planning.history import read_state
from trainyard.report.tensorboard import FILE, write_event_files

CONFIG = {
    "sweeps": {
        "mine": {
            "command": "train {lr} {name} {nesterov}",
            "args": {"name": "a", "nesterov": False},
            "trials": [{"lr": 0.1}, {"lr": 0.2, "name": "b"}, {"lr": 0.4, "nesterov": True}],
            "metrics": {"file": "metrics.jsonl"},
        }
    },
    "scaling": {
        "wide": {"script": "train.py", "scales": ["1x1", "1x2"], "repeats": 2},
        "none": {"script": "train.py", "scales": ["1x1"]},
    },
}


def epoch(number, time, **metrics):
    return {"event": "epoch", "time": time, "metrics": {"epoch": number, **metrics}}


class Sweep:
    """A sweep with a journal that the test writes."""

    def __init__(self, results):
        self.results, self.config = results, check_config(CONFIG)
        self.trials = list(read_state(self.config.sweeps["mine"], "mine", results).trials)
        self.folder = results / "tensorboard/sweeps/mine"
        self.journal = write_session(results / "sweeps/mine", [])

    def record(self, trial, attempt, *events):
        with open(self.journal, "a") as file:
            for event in events:
                file.write(json.dumps({"trial": self.trials[trial], "attempt": attempt, **event}) + "\n")

    def write(self):
        return write_event_files(self.config, "sweeps", "mine", self.results)

    def path(self, trial):
        return self.folder / self.trials[trial] / FILE

    def read(self, trial):
        return read(self.path(trial))


def read(path):
    accumulator = EventAccumulator(str(path.parent))
    accumulator.Reload()
    return accumulator


def points(accumulator, tag):
    return [(point.wall_time, point.step, pytest.approx(point.value)) for point in accumulator.Scalars(tag)]


def hparams_of(accumulator):
    """The settings of a run, and how it ended: 1 with a result, 2 without, None while it has not."""
    content = accumulator.PluginTagToContent("hparams")
    begun = HParamsPluginData.FromString(content["_hparams_/session_start_info"]).session_start_info
    values = {key: getattr(value, value.WhichOneof("kind")) for key, value in begun.hparams.items()}
    end = content.get("_hparams_/session_end_info")
    return values, end and HParamsPluginData.FromString(end).session_end_info.status


@pytest.fixture
def sweep(tmp_path):
    made = Sweep(tmp_path)
    made.record(
        0,
        1,
        {"event": "started", "time": 100.0},
        epoch(1, 110.0, loss=0.5, accuracy=0.1),
        epoch(2, 120.0, loss=None, accuracy=0.2),
        {"event": "finished", "time": 121.0, "seconds": 21.0, "metrics": {"accuracy": 0.2, "size": 7}},
    )
    return made


def test_a_trial_has_its_epochs_and_its_settings(sweep):
    assert sweep.write() == 1
    found = sweep.read(0)
    assert points(found, "accuracy") == [(110, 1, 0.1), (120, 2, 0.2)]
    assert points(found, "loss") == [(110, 1, 0.5)]
    assert points(found, "size") == [(121, 2, 7)]
    assert hparams_of(found) == ({"lr": 0.1, "name": "a", "nesterov": False}, 1)


def test_writing_again_changes_no_file(sweep):
    sweep.write()
    before = sweep.path(0).stat()
    sweep.write()
    after = sweep.path(0).stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_a_resumed_trial_has_one_curve(sweep):
    sweep.record(1, 1, {"event": "started", "time": 200.0}, epoch(1, 210.0, loss=4.0), epoch(2, 220.0, loss=3.0))
    sweep.record(1, 1, {"event": "interrupted", "time": 221.0})
    sweep.record(1, 2, {"event": "started", "time": 300.0})
    sweep.write()  # has begun again, but reported nothing yet
    assert points(sweep.read(1), "loss") == [(210, 1, 4), (220, 2, 3)]
    again = epoch(1, 301.0, loss=4.0), epoch(2, 301.0, loss=3.0)  # as Trainyard's own loop reports them
    sweep.record(1, 2, *again, epoch(3, 310.0, loss=2.0), {"event": "finished", "time": 311.0, "seconds": 31.0})
    sweep.write()
    assert points(sweep.read(1), "loss") == [(210, 1, 4), (220, 2, 3), (310, 3, 2)]


def test_a_command_that_continues_from_its_checkpoint_has_one_curve(sweep):
    sweep.record(1, 1, {"event": "started", "time": 200.0}, epoch(1, 210.0, loss=4.0), epoch(2, 220.0, loss=3.0))
    sweep.record(1, 1, {"event": "interrupted", "time": 221.0})
    checkpoint = {"name": "last.pt", "modified_ns": 211 * 10**9, "size": 1}
    sweep.record(
        1, 2, {"event": "started", "time": 300.0}, {"event": "resumed", "time": 300.0, "checkpoint": checkpoint}
    )
    sweep.record(1, 2, epoch(2, 310.0, loss=2.9), epoch(3, 320.0, loss=2.0))
    sweep.write()
    assert points(sweep.read(1), "loss") == [(210, 1, 4), (310, 2, 2.9), (320, 3, 2)]


def test_a_file_grows_in_place_while_its_trial_runs(sweep):
    """TensorBoard keeps the file open: it would not see the rows of a file that replaces it."""
    sweep.record(2, 1, {"event": "started", "time": 200.0}, epoch(1, 210.0, loss=4.0))
    sweep.write()
    inode, found = sweep.path(2).stat().st_ino, sweep.read(2)
    assert hparams_of(found) == ({"lr": 0.4, "name": "a", "nesterov": True}, None)
    with open(sweep.path(2), "rb+") as file:  # as if the writer had been killed while it appended
        file.truncate(sweep.path(2).stat().st_size - 3)
    sweep.record(2, 1, epoch(2, 220.0, loss=3.0), {"event": "diverged", "time": 230.0, "error": "NaN"})
    sweep.write()
    assert sweep.path(2).stat().st_ino == inode
    assert points(sweep.read(2), "loss") == [(210, 1, 4), (220, 2, 3)]
    assert hparams_of(sweep.read(2))[1] == 2


def test_a_trial_that_is_no_longer_in_the_config_is_removed(sweep):
    sweep.write()
    (sweep.folder / "mine.txt").write_text("of the user")
    mine = CONFIG["sweeps"]["mine"]
    sweep.config = check_config({"sweeps": {"mine": {**mine, "trials": mine["trials"][1:]}}})
    assert sweep.write() == 0
    assert not sweep.path(0).parent.exists()
    assert (sweep.folder / "mine.txt").exists()


def test_retraining_begins_a_new_curve(sweep):
    mine = CONFIG["sweeps"]["mine"]
    sweep.config = check_config({"sweeps": {"mine": {**mine, "retrain": 1}}})
    assert sweep.write() == 0
    sweep.record(0, 2, {"event": "started", "time": 500.0, "generation": 1}, epoch(1, 510.0, accuracy=0.9))
    sweep.write()
    assert points(sweep.read(0), "accuracy") == [(510, 1, 0.9)]


def test_retraining_with_the_same_metrics_is_shown_when_it_ran(sweep):
    sweep.config = check_config({"sweeps": {"mine": {**CONFIG["sweeps"]["mine"], "retrain": 1}}})
    sweep.record(0, 2, {"event": "started", "time": 500.0, "generation": 1}, epoch(1, 510.0, loss=0.5, accuracy=0.1))
    sweep.write()
    assert points(sweep.read(0), "accuracy") == [(510, 1, 0.1)]


def test_each_scale_and_repeat_is_a_run(tmp_path):
    for run in ("1x1", "1x1/repeat-2"):
        folder = tmp_path / "scaling/wide" / run
        folder.mkdir(parents=True)
        (folder / "history.csv").write_text("epoch,val_loss,seconds\n1,0.5,10\n2,0.25,20\n")
        os.utime(folder / "history.csv", (1000, 1000))
        (folder / "summary.json").write_text(json.dumps({"gpus": 1, "lr": 0.1, "val_loss": 0.25, "mfu": 0.4}))
    for name, count in (("wide", 2), ("none", 0)):
        assert write_event_files(check_config(CONFIG), "scaling", name, tmp_path) == count
    found = read(tmp_path / "tensorboard/scaling/wide/1x1/repeat-2" / FILE)
    assert points(found, "val_loss") == [(980, 1, 0.5), (1000, 2, 0.25)]
    assert points(found, "mfu") == [(1000, 2, 0.4)]
    assert hparams_of(found) == ({"gpus": 1, "lr": 0.1}, 1)
