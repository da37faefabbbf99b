"""Checkpoints are written while the training goes on; whatever happens to the writing reaches the training."""

import threading
import time
from dataclasses import replace

import pytest
import torch
from loops import SPEC, assert_equal_states, changed, start, train
from slurm_cluster.waiting import wait_until
from trainyard.training import checkpoints
from trainyard.training.checkpoints import CheckpointStore, host_copy
from trainyard.training.process_group import Group
from trainyard.training.trainer import Diverged, TrainingInterrupted
from trainyard.utils.errors import StorageError, UserError


class HeldStore(CheckpointStore):
    """Writes a checkpoint only after `release` has been set, or fails with `error`."""

    error = None

    def __init__(self, folder):
        super().__init__(folder)
        self.release, self.started = threading.Event(), []

    def save(self, state, **options):
        self.started.append(options["epoch"])
        assert self.release.wait(60)
        if self.error:
            raise self.error
        return super().save(state, **options)


@pytest.fixture
def store(tmp_path):
    return HeldStore(tmp_path)


def test_a_training_goes_on_while_a_checkpoint_is_written(data, store):
    training = start(SPEC, data, store=store)
    epochs = training.epochs()
    next(epochs)
    training.checkpoints.every_seconds = 3600.0
    next(epochs)
    assert store.started == [1]
    assert store.latest() is None, "nothing that is not complete counts"
    waited = training.checkpoints.total_seconds
    store.release.set()
    epochs.close()
    assert len(store.latest()["history"]) == 1, "of the time when it was saved, although the training went on"
    assert training.checkpoints.total_seconds >= waited
    resumed, state = train(SPEC, data, store=CheckpointStore(store.folder))
    whole, same = train(SPEC, data)
    assert resumed == whole
    assert_equal_states(state, same)


def test_there_is_one_copy_of_the_state_at_a_time(data, store, monkeypatch):
    """The second save waits for the first, and this time counts."""
    copies = []
    monkeypatch.setattr(checkpoints, "synchronize", copies.append)  # called for each copy
    training = start(SPEC, data, store=store)
    thread = threading.Thread(target=lambda: list(training.epochs()), daemon=True)
    thread.start()
    wait_until(lambda: len(training.history) == 2, what="the second epoch")
    assert (len(copies), store.started) == (1, [1])
    store.release.set()
    thread.join(60)
    assert store.started == [1, 2, 3, 4]
    assert len(copies) == 4
    assert training.checkpoints.total_seconds > 0


def test_checkpoints_are_saved_at_most_once_in_an_interval_and_at_the_end(data, tmp_path):
    store = CheckpointStore(tmp_path)
    train(SPEC, data, store=store, save_every_seconds=3600.0)
    assert store.epochs() == {SPEC.epochs}
    assert len(store.latest()["history"]) == SPEC.epochs


def test_a_training_without_a_last_checkpoint_leaves_none(data, tmp_path):
    """As a short trial, whose results are in the journal."""
    train(SPEC, data, store=CheckpointStore(tmp_path), save_every_seconds=3600.0, save_last=False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("epochs", "tries"), [(1, [1]), (2, [1, 2]), (3, [1])])
def test_an_error_of_the_writing_ends_the_training(data, store, epochs, tries):
    """At the end of the next epoch, or at the end of the training, where the last checkpoint is tried all the same."""
    store.error = StorageError("a checkpoint of 0.1 MiB cannot be written: no space left")
    store.release.set()
    with pytest.raises(StorageError, match="no space left"):
        train(changed(SPEC, epochs=epochs), data, store=store)
    assert store.started == tries


@pytest.mark.parametrize("stopped", [True, False])
def test_an_error_of_the_writing_does_not_keep_the_last_checkpoint_from_being_written(data, store, caplog, stopped):
    """For the space that it lacked may be there again."""
    store.error = StorageError("no space left")
    store.release.set()
    training = start(changed(SPEC, epochs=2), data, store=store)
    next(epochs := training.epochs())
    wait_until(lambda: "checkpoint" not in str(threading.enumerate()), what="the end of the writing")
    store.error = None
    if stopped:
        training.deadline = 0.0
        with pytest.raises(TrainingInterrupted):
            next(epochs)
    else:
        list(epochs)
    assert "no space left" in caplog.text
    assert store.latest()["progress"]["step"] == (1 if stopped else 0)
    assert len(store.latest()["history"]) == (1 if stopped else 2)


def test_a_trial_that_is_complete_needs_no_checkpoint(data, store, caplog):
    """Its results are in the journal."""
    store.error = StorageError("no space left")
    training = start(changed(SPEC, epochs=2), data, store=store, save_last=False)
    next(epochs := training.epochs())
    training.checkpoints.every_seconds = 3600.0
    store.release.set()
    assert len(list(epochs)) == 1
    assert "no space left" in caplog.text


class LateStore(CheckpointStore):
    """Shows the checkpoint of the last epoch at the second look only, as a file system with a cache."""

    looks = 0

    def latest(self):
        self.looks += 1
        return super().latest() if self.looks > 1 else None


def test_all_ranks_resume_from_the_same_checkpoint(data, tmp_path, monkeypatch):
    train(SPEC, data, store=CheckpointStore(tmp_path), epochs=1)
    found = []  # by each rank; the first one finds the checkpoint
    monkeypatch.setattr(Group, "minimum", lambda group, values: found.append(values.clone()) or found[0])
    assert len(start(SPEC, data, store=CheckpointStore(tmp_path)).history) == 1
    assert len(start(SPEC, data, store=LateStore(tmp_path)).history) == 1
    monkeypatch.setattr(checkpoints, "VISIBLE_SECONDS", -1.0)
    with pytest.raises(UserError, match="rank 0 does not find the checkpoint from which others resume"):
        start(SPEC, data, store=LateStore(tmp_path))


def test_an_error_of_the_writing_does_not_hide_why_a_training_ended(data, store, caplog):
    store.error = StorageError("no space left")
    training = start(SPEC, data, store=store)
    epochs = training.epochs()
    next(epochs)
    training.state.module.register_forward_hook(lambda module, images, output: output * float("nan"))
    threading.Timer(0.05, store.release.set).start()
    with pytest.raises(Diverged):
        next(epochs)
    assert "no space left" in caplog.text


def test_a_stop_waits_until_its_checkpoint_is_complete(data, tmp_path):
    class SlowStore(CheckpointStore):
        def save(self, *arguments, **options):
            time.sleep(0.05)
            return super().save(*arguments, **options)

    store = SlowStore(tmp_path)
    training = start(SPEC, data, store=store, deadline=time.time())
    with pytest.raises(TrainingInterrupted):
        list(training.epochs())
    assert store.latest()["progress"]["step"] == 1
    assert training.checkpoints.last_seconds >= 0.05
    assert training.checkpoints.stop_seconds >= 2 * 0.05, "the next stop leaves time for two"
    assert 0 < start(SPEC, data, store=store).checkpoints.stop_seconds < 0.05, "which its first checkpoint cannot know"


def test_a_training_leaves_time_for_its_first_checkpoint(data, tmp_path):
    """By its size, at the speed of a slow file system."""
    training = start(
        changed(SPEC, optimizer="adam", ema_decay=0.9, epochs=1, model_args={"blocks": 2, "width": 32}),
        data,
        store=CheckpointStore(tmp_path),
    )
    assumed = training.checkpoints.stop_seconds
    list(training.epochs())
    [written] = tmp_path.glob("*.pt")
    assert assumed / 2 * checkpoints.ASSUMED_BYTES_PER_SECOND == pytest.approx(written.stat().st_size, rel=0.5)
    assert start(SPEC, data).checkpoints.stop_seconds == 0, "there is none"


def test_a_write_in_progress_leaves_time_for_itself_before_a_stop(data, store):
    training = start(SPEC, data, store=store)
    next(epochs := training.epochs())
    before = training.checkpoints.stop_seconds
    wait_until(lambda: training.checkpoints.stop_seconds > before, what="a later time")
    store.release.set()
    epochs.close()
    assert 0 < training.checkpoints.last_seconds < training.checkpoints.stop_seconds


def test_the_best_of_the_saved_epochs_is_kept(data, tmp_path):
    """Without the second epoch, which is the best of all, but had no checkpoint."""
    store = CheckpointStore(tmp_path)
    training = start(changed(SPEC, epochs=1), data, store=store)
    row = next(training.epochs())
    training.history.clear()
    for epoch, accuracy in enumerate([0.5, 0.9, 0.8, 0.1, 0.2, 0.3], start=1):
        training.history.append(replace(row, epoch=epoch, val_accuracy=accuracy))
        if epoch != 2:
            training.checkpoints.save(wait=True)
    assert training.state.best_epoch == 2
    assert store.epochs() == {3, 5, 6}


def test_a_host_copy_shares_no_memory():
    tensor = torch.arange(4.0).reshape(2, 2).t()
    state = {"list": [tensor, (1, "text")], "module": torch.nn.BatchNorm1d(2).state_dict()}
    copied = host_copy(state)
    tensor.zero_()
    assert copied["list"][0].tolist() == [[0.0, 2.0], [1.0, 3.0]]
    assert copied["list"][0].stride() == tensor.stride()
    assert copied["list"][1] == (1, "text")
    assert vars(copied["module"]) == vars(state["module"]), "the metadata of torch"


@pytest.mark.parametrize(("before", "now"), [("fp32", "fp16"), ("fp16", "bf16"), ("fp16", "fp16")])
def test_a_training_resumes_in_the_precision_of_another_gpu(data, tmp_path, caplog, before, now):
    """As the default chooses it. Only fp16 scales the loss."""
    train(changed(SPEC, precision=before), data, store=CheckpointStore(tmp_path), epochs=1)
    training = start(changed(SPEC, precision=now), data, store=CheckpointStore(tmp_path))
    line = f"the training goes on in {now}: so far, it was in {before}"
    assert caplog.messages == ([line] if now != before else [])
    assert len(list(training.epochs())) == SPEC.epochs - 1
    assert bool(training.state.scaler.state_dict()) == (now == "fp16")


def test_a_training_that_resumes_has_the_state_of_its_optimizer_once(data, tmp_path, monkeypatch):
    """Otherwise, one whose steps fit into the memory might not resume."""
    spec, beside = changed(SPEC, optimizer="adam"), []
    train(spec, data, store=(store := CheckpointStore(tmp_path)), epochs=1)
    optimizer = type(start(spec, data).state.optimizer)
    load = optimizer.load_state_dict
    monkeypatch.setattr(
        optimizer, "load_state_dict", lambda self, state: (beside.append(dict(self.state)), load(self, state))
    )
    training = start(spec, data, store=store)
    assert beside == [{}]
    assert all(float(each["step"]) > 0 for each in training.state.optimizer.state.values())
